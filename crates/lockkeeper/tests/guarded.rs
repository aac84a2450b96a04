//! Guarded transactions of etcd and ZooKeeper: a holder in a process of its own is really stopped past its
//! lease, and goes on with its next write.
#![cfg(all(feature = "etcd", feature = "zookeeper"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::time::Duration;

use lockkeeper::{Guard, Locks};
use testkit::server::{self, etcdctl};
use testkit::taker::{MARK, Taker};
use testkit::wait::soon;
use testkit::zookeeper;
use zookeeper_client::{Acls, Client, CreateMode};

/// The lease of a holder that will be stopped.
const SHORT: Duration = Duration::from_secs(2);
/// What is written, in both.
const STATE: &str = "/state";

fn answer(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}ok {text}").and_then(|()| out.flush()).unwrap();
}

/// Not a test: what this binary does when it is started as another process.
#[test]
fn taker_main() {
    let Ok(url) = std::env::var("TESTKIT_TAKER") else { return };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(serve(&url));
    std::process::exit(0);
}

/// Takes the lock, and writes whenever it is told to, without asking whether it is lost.
async fn serve(url: &str) {
    let locks = Locks::connect(url).await.unwrap().ttl(SHORT);
    answer("ready");
    let guard = locks.mutex("it").lock().await.unwrap();
    // Has its way in before it is stopped.
    let zookeeper = guard.zookeeper().ok();
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).unwrap() > 0 {
        line.clear();
        let written = match &zookeeper {
            None => write_etcd(&guard, "late").await,
            Some(guarded) => {
                let mut writer = guarded.writer().unwrap();
                writer.add_set_data(STATE, b"late", None).unwrap();
                writer.commit().await.map(drop).map_err(|error| error.to_string())
            }
        };
        let written =
            written.map_or_else(|error| format!("refused: {error}"), |()| "written".into());
        answer(&written.replace('\n', " "));
    }
}

async fn write_etcd(guard: &Guard, value: &str) -> Result<(), String> {
    let written = guard.txn().unwrap().put(STATE, value).commit().await;
    written.map(drop).map_err(|error| error.to_string())
}

/// One that wrote in time, was stopped, and was overtaken by the guard.
async fn overtaken(url: &str) -> (Taker, Guard) {
    let locks = Locks::connect(url).await.unwrap();
    let mut late = Taker::spawn(url).await;
    assert_eq!(late.ask("write").await, "written", "in time");
    late.stop();
    (late, soon("its lease has ended", locks.mutex("it").lock()).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_that_writes_late_to_etcd_is_refused() {
    let server = server::etcd(&[]).await;
    let (mut late, guard) = overtaken(&format!("etcd://{}", server.address())).await;
    write_etcd(&guard, "new").await.unwrap();
    late.go_on();
    let answer = late.ask("write").await;
    assert!(answer.starts_with("refused") && answer.contains("is lost"), "{answer}");
    let state = etcdctl(&server, &["get", STATE, "--print-value-only"]);
    assert_eq!(state.trim(), "new", "the new holder's value is intact");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_that_writes_late_to_zookeeper_is_refused() {
    let server = zookeeper::shared().await;
    let operator = Client::connect(&server.address().to_string()).await.unwrap();
    let mode = CreateMode::Persistent.with_acls(Acls::anyone_all());
    operator.create(STATE, b"old", &mode).await.unwrap();
    let (mut late, guard) = overtaken(&format!("zookeeper://{}/guarded", server.address())).await;
    let guarded = guard.zookeeper().unwrap();
    let mut writer = guarded.writer().unwrap();
    writer.add_set_data(STATE, b"new", None).unwrap();
    writer.commit().await.unwrap();
    late.go_on();
    let answer = late.ask("write").await;
    assert!(answer.starts_with("refused"), "{answer}");
    let state = operator.get_data(STATE).await.unwrap().0;
    assert_eq!(state, b"new", "the new holder's value is intact");
}
