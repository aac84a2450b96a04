//! `memory:` does what every backend must do.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::backend::memory::Memory;
use lockkeeper::{Cause, Locks, Shutdown};
use testkit::conformance::Harness;
use testkit::faulty::{Faulty, Mode};
use testkit::wait::{LONG, eventually, soon};

/// One table. Kept here, because it ends with its last user.
struct MemoryHarness(Arc<Memory>);

impl MemoryHarness {
    fn start() -> Self {
        Self(Memory::private())
    }
}

#[async_trait]
impl Harness for MemoryHarness {
    async fn locks(&self) -> Locks {
        let memory: Arc<Memory> = Arc::clone(&self.0);
        Locks::new(memory)
    }

    async fn elsewhere(&self) -> Locks {
        Locks::new(Memory::shared("elsewhere"))
    }

    fn url(&self) -> Option<String> {
        None
    }
}

testkit::conformance!(in_process, MemoryHarness::start());

/// A grant that comes at the moment of a shutdown is on its way back when all waits are over: a process that ended then
/// would leave it. One thread, so that nobody runs between the grant and the shutdown.
#[tokio::test]
async fn what_is_granted_while_it_shuts_down_is_back_before_that_ends() {
    let (store, faults) = Faulty::new(Memory::private());
    let locks = Locks::new(store);
    faults.acquire.set(Mode::HoldReply);
    let mutex = locks.mutex("x").fair();
    let waiting = tokio::spawn(async move { mutex.lock().await.map(drop) });
    eventually("it is granted", async || faults.acquire.done() == 1).await;
    faults.release.set(Mode::HoldReply);
    faults.acquire.deliver();
    let slow = async {
        eventually("it is given back", async || faults.release.done() == 1).await;
        // As a store does that is not next door.
        tokio::time::sleep(Duration::from_millis(50)).await;
        faults.release.deliver();
    };
    let ends = async { tokio::join!(locks.shutdown(LONG), slow) };
    let (report, ()) = soon("the end", ends).await;
    assert_eq!((report.released, report.left), (0, 0));
    soon("the wait", waiting).await.unwrap().unwrap();
}

/// Shuts down with this grace while somebody waits whose grant comes at that moment, and who stops so long after being
/// told. What is reported, and how long it took. For one thread, as above, and a clock that jumps.
async fn shut_down_at_a_grant(grace: Duration, stops_after: Duration) -> (Shutdown, Duration) {
    let (store, faults) = Faulty::new(Memory::private());
    let locks = Locks::new(store);
    faults.acquire.set(Mode::HoldReply);
    let mutex = locks.mutex("x").fair();
    let holder = tokio::spawn(async move {
        let guard = mutex.lock().await.unwrap();
        assert_eq!(guard.lost().await, Cause::ShutDown);
        tokio::time::sleep(stops_after).await;
        drop(guard);
    });
    eventually("it is granted", async || faults.acquire.done() == 1).await;
    faults.acquire.deliver();
    let since = tokio::time::Instant::now();
    let report = soon("the end", locks.shutdown(grace)).await;
    let took = since.elapsed();
    assert_eq!(holder.is_finished(), took >= stops_after, "it went by itself or not");
    assert_eq!(faults.release.done(), 1, "it is back in any case");
    soon("the holder", holder).await.unwrap();
    (report, took)
}

#[tokio::test(start_paused = true)]
async fn who_is_granted_it_while_it_shuts_down_has_the_grace_to_stop() {
    let (report, took) = shut_down_at_a_grant(LONG / 2, LONG / 4).await;
    assert_eq!((report.released, report.left), (0, 0), "released under its holder");
    assert!(took >= LONG / 4 && took < LONG / 2, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn who_is_granted_it_while_it_shuts_down_has_no_more_than_the_grace() {
    let (report, took) = shut_down_at_a_grant(LONG / 4, LONG / 2).await;
    assert_eq!((report.released, report.left), (1, 0));
    assert!(took >= LONG / 4 && took < LONG / 3, "{took:?}");
}
