//! Lockkeeper and an unmodified Redisson on one server: they exclude each other, wake each other up,
//! and survive each other's crash.
#![cfg(feature = "interop")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Locks, Name};
use testkit::peer::{Peer, Redisson};
use testkit::server::{self, Server};
use testkit::wait::{eventually, soon};

/// Woken, not found by asking again: that takes 1.7 s on our side and the lease on theirs.
const WOKEN: Duration = Duration::from_secs(1);

async fn both(which: Redisson) -> (Server, Locks, Peer) {
    let server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let peer = Peer::redisson(which, &url, Some(Duration::from_secs(3))).await;
    let locks = Locks::connect(&url).await.unwrap();
    (server, locks, peer)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

async fn queued(locks: &Locks, of: &str) {
    let shown = async || locks.admin().show(&name(of)).await.unwrap().waiters.len() == 1;
    eventually("in line", shown).await;
}

async fn woken<T>(what: &str, future: impl Future<Output = T> + Send) -> T {
    let since = Instant::now();
    let done = soon(what, future).await;
    let took = Instant::now().since(since);
    assert!(took < WOKEN, "{what} took {took:?}");
    done
}

/// Ours excludes and wakes theirs, and the other way round, with reentry on their side.
async fn mutexes(which: Redisson) {
    let (server, locks, peer) = both(which).await;
    for round in 0..3 {
        peer.ask("t", "lock x").await;
        peer.ask("t", "lock x").await;
        assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
        let mutex = if round == 1 { locks.mutex("x").fair() } else { locks.mutex("x") };
        let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
        queued(&locks, "x").await;
        assert_eq!(peer.ask("t", "holdCount x").await, "2", "untouched");
        peer.ask("t", "unlock x").await;
        assert!(!waiting.is_finished());
        peer.ask("t", "unlock x").await;
        let guard = woken("we are", waiting).await.unwrap();
        assert_eq!(peer.ask("t", "tryLock x").await, "false");
        let waits = peer.send("t", "lock x");
        let channel = "PUBSUB NUMSUB redisson_lock__channel:{x}";
        let listens = async || raw(&server, channel).await.ends_with(":1\r\n");
        eventually("they wait", listens).await;
        guard.release().await.unwrap();
        woken("they are", waits.value()).await;
        peer.ask("t", "unlock x").await;
    }
    peer.quit().await;
}

async fn raw(server: &Server, command: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(command, stream.read_to_string(&mut answer)).await.unwrap();
    answer.strip_suffix("+OK\r\n").unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutexes_exclude_and_wake_each_other() {
    mutexes(Redisson::Current).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutexes_exclude_and_wake_each_other_with_an_old_redisson() {
    mutexes(Redisson::Old).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_either_side_frees_the_lock_after_its_lease() {
    let (_server, locks, mut peer) = both(Redisson::Current).await;
    peer.ask("t", "lock x").await;
    peer.crash().await;
    let guard = soon("theirs", locks.mutex("x").lock()).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchdogs_of_both_sides_hold_on() {
    let (_server, locks, peer) = both(Redisson::Current).await;
    peer.ask("t", "lock theirs").await;
    let ours = locks.ttl(Duration::from_secs(3)).mutex("ours").lock().await.unwrap();
    let until = Instant::now() + Duration::from_secs(7);
    eventually("twice the time to live", async || Instant::now() > until).await;
    assert!(!ours.is_lost());
    assert_eq!(peer.ask("t", "tryLock ours").await, "false");
    assert!(locks.mutex("theirs").try_lock().await.unwrap().is_none());
    peer.ask("t", "unlock theirs").await;
    ours.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_share_and_writers_exclude() {
    let (server, locks, peer) = both(Redisson::Current).await;
    let rw = locks.rw_lock("x");
    peer.ask("t", "read.lock x").await;
    let ours = rw.try_read().await.unwrap().expect("readers share");
    assert!(rw.try_write().await.unwrap().is_none());
    // Theirs goes first: ours must survive its unlock.
    peer.ask("t", "read.unlock x").await;
    assert_eq!(peer.ask("t", "write.tryLock x").await, "false", "we still read");
    assert!(!ours.is_lost());
    let waits = peer.send("t", "write.lock x");
    let listens =
        async || raw(&server, "PUBSUB NUMSUB redisson_rwlock:{x}").await.ends_with(":1\r\n");
    eventually("they wait", listens).await;
    ours.release().await.unwrap();
    woken("their writer", waits.value()).await;
    assert!(rw.try_read().await.unwrap().is_none());
    let waiting = tokio::spawn(async move { rw.write().await.unwrap() });
    queued(&locks, "x").await;
    peer.ask("t", "write.unlock x").await;
    let ours = woken("our writer", waiting).await.unwrap();
    assert_eq!(peer.ask("t", "read.tryLock x").await, "false");
    ours.release().await.unwrap();
    assert_eq!(peer.ask("t", "read.tryLock x").await, "true");
    peer.ask("t", "read.unlock x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_are_counted_together() {
    let (_server, locks, peer) = both(Redisson::Current).await;
    peer.ask("t", "permit.trySetPermits x n=2").await;
    let id = peer.ask("t", "permit.acquire x lease=60000").await;
    let ours = locks.semaphore("x", 2).try_acquire().await.unwrap().expect("one is left");
    assert_eq!(peer.ask("t", "permit.tryAcquire x").await, "none");
    assert!(locks.semaphore("x", 2).try_acquire().await.unwrap().is_none());
    let semaphore = locks.semaphore("x", 2);
    let waiting = tokio::spawn(async move { semaphore.acquire().await.unwrap() });
    queued(&locks, "x").await;
    peer.ask("t", &format!("permit.release x id={id}")).await;
    let second = woken("ours", waiting).await.unwrap();
    ours.release().await.unwrap();
    second.release().await.unwrap();
    assert_eq!(peer.ask("t", "permit.available x").await, "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latches_are_shared() {
    let (_server, locks, peer) = both(Redisson::Current).await;
    assert!(locks.latch("x").close(2).await.unwrap());
    assert_eq!(peer.ask("t", "latch.getCount x").await, "2");
    let waits = peer.send("u", "latch.await x");
    let latch = locks.latch("x");
    let waiting = tokio::spawn(async move { latch.wait().await.unwrap() });
    peer.ask("t", "latch.countDown x").await;
    assert_eq!(locks.latch("x").count().await.unwrap(), 1);
    assert!(waits.waits() && !waiting.is_finished());
    locks.latch("x").count_down().await.unwrap();
    soon("theirs", waits.value()).await;
    soon("ours", waiting).await.unwrap();
    peer.ask("t", "latch.trySetCount y n=1").await;
    let latch = locks.latch("y");
    let waiting = tokio::spawn(async move { latch.wait().await.unwrap() });
    peer.ask("t", "latch.countDown y").await;
    soon("ours", waiting).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fenced_tokens_grow_over_both() {
    let (_server, locks, peer) = both(Redisson::Current).await;
    let mut last = 0;
    for _ in 0..5 {
        let theirs: u64 = peer.ask("t", "fenced.lock x").await.parse().unwrap();
        assert!(theirs > last, "{theirs} after {last}");
        peer.ask("t", "fenced.unlock x").await;
        let guard = locks.mutex("x").lock().await.unwrap();
        assert!(guard.token().get() > theirs);
        // The whole block: what comes next must be larger than any token of it.
        last = guard.token().get() + 127;
        guard.release().await.unwrap();
    }
}
