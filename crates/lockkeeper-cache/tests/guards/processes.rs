//! Other processes, for the tests of what the database sees of several.
//!
//! The test binary is its own other process: it is run again for the one test [`child_main`], with `CACHE_CHILD` set to what
//! it shall do. It says what it has done on standard output, and does the next thing when it is told to.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use sqlx::postgres::{PgPool, PgPoolOptions};
use testkit::database::{Database, System};
use testkit::wait::CASE;
use tokio::runtime::Builder;
use tokio::sync::mpsc;

use crate::{herd, killed, skew, writer};

const VARIABLE: &str = "CACHE_CHILD";
const MARK: &str = "@cache ";

/// How many there are.
pub(crate) const PROCESSES: usize = 4;

/// Another process.
pub(crate) struct Process {
    child: Child,
    said: mpsc::UnboundedReceiver<String>,
}

impl Process {
    pub(crate) fn start(order: &str) -> Self {
        Self::start_under(order, &[])
    }

    /// The same with these variables besides.
    pub(crate) fn start_under(order: &str, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new("/proc/self/exe")
            .args(["processes::child_main", "--exact", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, order)
            .envs(variables.iter().copied())
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
        Self { child, said }
    }

    pub(crate) fn tell(&mut self, word: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{word}").unwrap();
    }

    pub(crate) async fn says(&mut self) -> String {
        tokio::time::timeout(CASE, self.said.recv()).await.unwrap().expect("it is gone")
    }

    /// The numbers that it says.
    pub(crate) async fn counts<const N: usize>(&mut self) -> [u64; N] {
        let said = self.says().await;
        let numbers: Vec<u64> = said.split(' ').map(|word| word.parse().unwrap()).collect();
        numbers.try_into().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// So many, that are ready.
pub(crate) async fn start(orders: impl IntoIterator<Item = String>) -> Vec<Process> {
    let mut processes: Vec<Process> =
        orders.into_iter().map(|order| Process::start(&order)).collect();
    for process in &mut processes {
        assert_eq!(process.says().await, "ready");
    }
    processes
}

pub(crate) fn say(word: impl std::fmt::Display) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{MARK}{word}").unwrap();
    output.flush().unwrap();
}

/// Waits until it is told something; ends with whoever should tell it.
pub(crate) async fn told() -> String {
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    let line = line.await.unwrap().unwrap();
    if line.is_empty() {
        std::process::exit(1);
    }
    line.trim_end().to_owned()
}

/// A database with these tables, and a pool of connections to it.
pub(crate) async fn database(tables: &[&'static str]) -> (Arc<Database>, PgPool) {
    let database = System::Postgres.shared().await;
    let pool = connect(&database.url("here")).await;
    for sql in tables {
        sqlx::query(*sql).execute(&pool).await.unwrap();
    }
    (database, pool)
}

pub(crate) async fn connect(url: &str) -> PgPool {
    let options = PgPoolOptions::new().max_connections(8).acquire_timeout(CASE);
    options.connect(url).await.unwrap()
}

#[test]
fn child_main() {
    let Ok(order) = std::env::var(VARIABLE) else { return };
    let words: Vec<String> = order.split(' ').map(str::to_owned).collect();
    let [what, server, database] = [0, 1, 2].map(|at| words[at].as_str());
    match what {
        "herd" => {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.unwrap().block_on(herd::child(server, database));
        }
        "traffic" => {
            // One thread: see there.
            let runtime = Builder::new_current_thread().enable_all().build();
            let (number, limited) = (words[3].parse().unwrap(), words[4] == "limited");
            runtime.unwrap().block_on(killed::child(server, database, number, limited));
        }
        "skew" => {
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(skew::child(server));
        }
        "writer" => {
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(writer::child(server, database));
        }
        other => panic!("{other}"),
    }
    std::process::exit(0);
}
