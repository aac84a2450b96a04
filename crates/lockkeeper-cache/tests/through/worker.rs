//! A consumer in a process of its own.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper_cache::through::{RedisQueue, Through};
use lockkeeper_cache::{Cache, Redis};
use serde::{Deserialize, Serialize};
use testkit::wait::eventually;

use crate::rows::Rows;

const VARIABLE: &str = "LOCKKEEPER_TEST_CONSUMER";

/// What it is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) redis: String,
    pub(crate) sql: String,
    pub(crate) who: i64,
    pub(crate) heeds: bool,
    pub(crate) stands: Option<PathBuf>,
    /// Made when it is ready.
    pub(crate) ready: PathBuf,
}

/// With connections of its own; another one is followed after half a second.
pub(crate) async fn through(redis: &str, rows: Rows) -> Through<u32, i64> {
    let cache = Cache::builder(Redis::connect(redis).await.unwrap()).namespace("t");
    let cache = cache.lease(Duration::from_millis(500)).build(rows.clone()).unwrap();
    let queue = RedisQueue::connect(redis, "t").await.unwrap().bound(300);
    Through::builder(queue, cache, rows).wait(Duration::from_secs(30)).build()
}

/// Not a test: what this binary does when it is started as a consumer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_in_a_process_of_its_own() {
    let Ok(task) = std::env::var(VARIABLE) else { return };
    let Task { redis, sql, who, heeds, stands, ready } = serde_json::from_str(&task).unwrap();
    let through = through(&redis, Rows::connect(&sql, who, heeds, stands).await).await;
    let consumer = through.consume();
    std::fs::write(ready, "").unwrap();
    // Its input ends with who has started it, and so does it.
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let _ = ended.await.unwrap();
    consumer.stop().await;
}

/// A consumer that runs; killed when dropped.
pub(crate) struct Worker {
    pub(crate) child: Child,
}

impl Worker {
    pub(crate) fn spawn(task: &Task) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker::consumer_in_a_process_of_its_own", "--nocapture"])
            .env(VARIABLE, serde_json::to_string(task).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child }
    }
}

pub(crate) async fn is_ready(ready: &Path) {
    eventually("a consumer is ready", async || ready.exists()).await;
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
