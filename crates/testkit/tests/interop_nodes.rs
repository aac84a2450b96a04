//! Lockkeeper and an unmodified Redisson on one cluster, and under the same sentinels: they exclude each
//! other and wake each other up.
#![cfg(feature = "interop")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Locks, Name};
use testkit::nodes::{Cluster, Sentinels};
use testkit::peer::{Peer, Redisson};
use testkit::wait::{eventually, soon};

/// Woken, not found by asking again: that takes 1.7 s on our side and the lease on theirs.
const WOKEN: Duration = Duration::from_millis(1500);
/// Nobody is replaced.
const PATIENT: Duration = Duration::from_secs(60);

async fn both(url: &str) -> (Locks, Peer) {
    let peer = Peer::redisson(Redisson::Current, url, Some(Duration::from_secs(10))).await;
    (Locks::connect(url).await.unwrap(), peer)
}

async fn woken<T>(what: &str, future: impl Future<Output = T> + Send) -> T {
    let since = Instant::now();
    let done = soon(what, future).await;
    let took = Instant::now().since(since);
    assert!(took < WOKEN, "{what} took {took:?}");
    done
}

async fn queued(locks: &Locks, name: &Name) {
    let shown = async || locks.admin().show(name).await.unwrap().waiters.len() == 1;
    eventually("in line", shown).await;
}

/// A mutex, fair or not, is handed to and fro; then it is read, and permits of it are counted.
async fn to_and_fro(locks: &Locks, peer: &Peer, lock: &str) {
    let name: Name = lock.parse().unwrap();
    for (theirs, mutex) in [("", locks.mutex(lock)), ("fair.", locks.mutex(lock).fair())] {
        peer.ask("t", &format!("{theirs}lock {lock}")).await;
        assert!(mutex.try_lock().await.unwrap().is_none());
        let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
        queued(locks, &name).await;
        peer.ask("t", &format!("{theirs}unlock {lock}")).await;
        let guard = woken("we are", waiting).await.unwrap();
        assert_eq!(peer.ask("t", &format!("{theirs}tryLock {lock}")).await, "false");
        let waits = peer.send("t", &format!("{theirs}lock {lock}"));
        eventually("they wait", async || peer.ask("t", "blocked").await == "true").await;
        guard.release().await.unwrap();
        woken("they are", waits.value()).await;
        peer.ask("t", &format!("{theirs}unlock {lock}")).await;
    }
    let read = format!("{lock}-rw");
    peer.ask("t", &format!("read.lock {read}")).await;
    let ours = locks.rw_lock(&*read).try_read().await.unwrap().expect("readers share");
    peer.ask("t", &format!("read.unlock {read}")).await;
    assert_eq!(peer.ask("t", &format!("write.tryLock {read}")).await, "false", "we still read");
    ours.release().await.unwrap();
    assert_eq!(peer.ask("t", &format!("write.tryLock {read}")).await, "true");
    assert!(locks.rw_lock(&*read).try_read().await.unwrap().is_none());
    peer.ask("t", &format!("write.unlock {read}")).await;
    let fenced: u64 = peer.ask("t", &format!("fenced.lock {lock}")).await.parse().unwrap();
    peer.ask("t", &format!("fenced.unlock {lock}")).await;
    let ours = locks.mutex(lock).lock().await.unwrap();
    assert!(ours.token().get() > fenced);
    ours.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redisson_and_ours_share_a_cluster() {
    let cluster = Cluster::start(PATIENT).await;
    let (locks, peer) = both(&cluster.url()).await;
    // At a master each, and one whose name says its slot.
    let mut masters = Vec::new();
    for lock in ["a", "b", "c", "order:{42}:x"] {
        masters.push(cluster.owner_other_than(cluster.slot(lock).await, None).await);
        to_and_fro(&locks, &peer, lock).await;
    }
    masters.sort_unstable();
    masters.dedup();
    assert_eq!(masters.len(), 3, "one at each");
    peer.quit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redisson_and_ours_share_what_sentinels_watch_over() {
    let sentinels = Sentinels::start(PATIENT).await;
    let (locks, peer) = both(&sentinels.url()).await;
    to_and_fro(&locks, &peer, "a").await;
    peer.quit().await;
}
