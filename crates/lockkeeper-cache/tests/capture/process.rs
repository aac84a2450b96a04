//! Followers in processes of their own.
//!
//! The test binary is its own other process: it is run again for the one test [`child_main`], with `CAPTURE_CHILD` set.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use lockkeeper::Locks;
use lockkeeper_cache::cdc::{Follower, Source, State, mariadb, postgres};
use testkit::database::System;
use testkit::wait::{CASE, eventually};
use tokio::runtime::Builder;
use tokio::sync::mpsc;

use crate::shop::{Shop, TABLES};

const VARIABLE: &str = "CAPTURE_CHILD";
const MARK: &str = "@capture ";

/// A follower of all tables.
pub(crate) struct Process {
    child: Child,
    said: mpsc::UnboundedReceiver<String>,
    state: String,
}

impl Process {
    pub(crate) fn start(redis: &str, database: &str) -> Self {
        let mut child = Command::new("/proc/self/exe")
            .args(["process::child_main", "--exact", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, format!("{redis} {database}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, said) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, word)) = line.split_once(MARK) {
                    let _ = tell.send(word.to_owned());
                }
            }
        });
        Self { child, said, state: "new".into() }
    }

    /// What it was doing a moment ago.
    pub(crate) fn state(&mut self) -> &str {
        while let Ok(state) = self.said.try_recv() {
            self.state = state;
        }
        &self.state
    }

    /// Waits until it is the one who follows.
    pub(crate) async fn follows(&mut self) {
        let following =
            async { while self.said.recv().await.expect("it is gone") != "Following" {} };
        tokio::time::timeout(CASE, following).await.expect("it follows");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A follower of all tables in this process.
pub(crate) async fn follow(redis: &str, database: &str) -> Follower {
    let shop = Shop::connect(database).await;
    let locks = Locks::connect(&format!("{redis}?ttl=1s")).await.unwrap();
    match shop.system {
        System::Postgres => {
            begin(postgres::Postgres::new(database).unwrap(), &shop, redis, locks).await
        }
        System::MariaDb => {
            begin(mariadb::MariaDb::new(database).unwrap(), &shop, redis, locks).await
        }
    }
}

async fn begin(source: impl Source + 'static, shop: &Shop, redis: &str, locks: Locks) -> Follower {
    let mut builder = Follower::builder(source).name("shop").locks(locks);
    for table in TABLES {
        let cache = shop.cache(table, redis).await;
        builder = builder.rule(table.rule(shop.system), &cache);
    }
    builder.start().unwrap()
}

pub(crate) async fn is_following(follower: &Follower) {
    eventually("it follows", || async { follower.status().state == State::Following }).await;
}

#[test]
fn child_main() {
    let Ok(order) = std::env::var(VARIABLE) else { return };
    let (redis, database) = order.split_once(' ').unwrap();
    // It ends with who has started it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().lock().read_line(&mut String::new());
        std::process::exit(1);
    });
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let follower = follow(redis, database).await;
        let mut last = None;
        loop {
            let status = follower.status();
            let news = (status.state, status.resets, status.last_error.map(|error| error.what));
            if last.as_ref() != Some(&news) {
                let mut output = std::io::stdout().lock();
                writeln!(output, "{MARK}{:?}", news.0).unwrap();
                output.flush().unwrap();
                // All that is known where a run fails.
                eprintln!("follower {}: {news:?}", std::process::id());
            }
            last = Some(news);
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
}
