//! Lockkeeper and unmodified Curator and kazoo on one ensemble: they exclude each other, wake each
//! other up, keep one line, and survive each other's crash and loss of session.
#![cfg(feature = "interop")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Locks, Name};
use testkit::peer::Peer;
use testkit::proxy::Proxy;
use testkit::server::Server;
use testkit::taker::Taker;
use testkit::wait::{eventually, soon};
use testkit::zookeeper;

/// Woken by the server. A loaded machine gets a few tries, see [`woken`].
const WOKEN: Duration = Duration::from_millis(200);
const TRIES: usize = 10;
const SESSION: Duration = Duration::from_secs(4);

/// Which library.
#[derive(Clone, Copy, PartialEq)]
enum Library {
    Curator,
    Kazoo,
}

/// Both of us at one path.
struct Both {
    server: Arc<Server>,
    base: String,
    library: Library,
    locks: Locks,
    peer: Peer,
}

impl Both {
    async fn new(library: Library) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let base = format!("/interop-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let server = zookeeper::shared().await;
        let servers = server.address().to_string();
        let peer = match library {
            Library::Curator => Peer::curator(&servers, SESSION).await,
            Library::Kazoo => Peer::kazoo(&servers, SESSION).await,
        };
        let locks = Locks::connect(&Self::url(&servers, &base, library)).await.unwrap();
        Self { server, base, library, locks, peer }
    }

    fn url(servers: &str, base: &str, library: Library) -> String {
        let dialect = if library == Library::Kazoo { "kazoo" } else { "curator" };
        format!("zookeeper://{servers}{base}?ttl=4s&dialect={dialect}")
    }

    /// The same locks through something else than the server's own address.
    fn at(&self, address: std::net::SocketAddr) -> String {
        Self::url(&address.to_string(), &self.base, self.library)
    }

    /// A command about our lock `x`.
    fn about(&self, command: &str) -> String {
        let (verb, rest) = command.split_once(' ').unwrap_or((command, ""));
        format!("{verb} {}/x {rest}", self.base)
    }

    async fn ask(&self, label: &str, command: &str) -> String {
        self.peer.ask(label, &self.about(command)).await
    }

    async fn in_line(&self, waiters: usize) {
        let name: Name = "x".parse().unwrap();
        eventually("in line", async || {
            self.locks.admin().show(&name).await.unwrap().waiters.len() == waiters
        })
        .await;
    }
}

/// Hands over again and again; most of the time the next one is woken within [`WOKEN`].
async fn woken(what: &str, hand_over: impl AsyncFn() -> Duration) {
    let mut took = Vec::new();
    for _ in 0..TRIES {
        took.push(hand_over().await);
    }
    took.sort();
    assert!(took[TRIES / 2] < WOKEN, "{what}: {took:?}");
}

async fn exclude_and_wake(library: Library, theirs: &str, fair: bool) {
    let both = Both::new(library).await;
    let (lock, unlock, try_lock) =
        (format!("{theirs}lock"), format!("{theirs}unlock"), format!("{theirs}tryLock"));
    let ours = || match theirs {
        "" if fair => both.locks.mutex("x").fair(),
        _ => both.locks.mutex("x"),
    };
    let write = theirs == "write.";
    woken("ours", async || {
        both.ask("t", &lock).await;
        let (mutex, rw) = (ours(), both.locks.rw_lock("x"));
        let waiting = tokio::spawn(async move {
            match write {
                true => lockkeeper::Guard::from(rw.write().await.unwrap()),
                false => mutex.lock().await.unwrap(),
            }
        });
        both.in_line(1).await;
        assert!(ours().try_lock().await.unwrap().is_none());
        let since = Instant::now();
        both.ask("t", &unlock).await;
        let guard = soon("ours", waiting).await.unwrap();
        let took = Instant::now().since(since);
        assert_eq!(both.ask("u", &try_lock).await, "false");
        guard.release().await.unwrap();
        took
    })
    .await;
    woken("theirs", async || {
        let guard = match write {
            true => lockkeeper::Guard::from(both.locks.rw_lock("x").write().await.unwrap()),
            false => ours().lock().await.unwrap(),
        };
        let waits = both.peer.send("t", &both.about(&lock));
        both.in_line(1).await;
        let since = Instant::now();
        guard.release().await.unwrap();
        waits.value().await;
        let took = Instant::now().since(since);
        assert!(ours().try_lock().await.unwrap().is_none());
        both.ask("t", &unlock).await;
        took
    })
    .await;
}

/// Theirs and ours take turns in one line, in the order in which they came.
async fn one_line(library: Library) {
    let both = Both::new(library).await;
    let held = both.locks.mutex("x").lock().await.unwrap();
    let mutex = both.locks.mutex("x").fair();
    let theirs = both.peer.send("a", &both.about("lock"));
    both.in_line(1).await;
    let ours = tokio::spawn(async move { mutex.lock().await.unwrap() });
    both.in_line(2).await;
    let last = both.peer.send("b", &both.about("lock"));
    both.in_line(3).await;
    held.release().await.unwrap();
    theirs.value().await;
    assert!(!ours.is_finished() && last.waits());
    both.ask("a", "unlock").await;
    let guard = soon("ours", ours).await.unwrap();
    assert!(last.waits());
    guard.release().await.unwrap();
    last.value().await;
    both.ask("b", "unlock").await;
}

async fn readers_share(library: Library) {
    let both = Both::new(library).await;
    let rw = both.locks.rw_lock("x");
    both.ask("t", "read.lock").await;
    let ours = rw.try_read().await.unwrap().expect("readers share");
    assert!(rw.try_write().await.unwrap().is_none());
    both.ask("t", "read.unlock").await;
    assert_eq!(both.ask("t", "write.tryLock").await, "false", "we still read");
    ours.release().await.unwrap();
    both.ask("t", "write.lock").await;
    assert!(rw.try_read().await.unwrap().is_none());
    both.ask("t", "write.unlock").await;
    // Reading after a downgrade keeps their writers out.
    let reads = rw.write().await.unwrap().downgrade().await.unwrap();
    assert_eq!(both.ask("t", "write.tryLock").await, "false");
    assert_eq!(both.ask("u", "read.tryLock").await, "true");
    both.ask("u", "read.unlock").await;
    reads.release().await.unwrap();
}

/// A crash of either side frees the lock when its session ends, and not before.
async fn crashes(library: Library) {
    let mut both = Both::new(library).await;
    both.ask("t", "lock").await;
    both.peer.crash().await;
    let guard = soon("theirs", both.locks.mutex("x").lock()).await.unwrap();
    guard.release().await.unwrap();
    let both = Both::new(library).await;
    let mut taker = Taker::spawn(&both.at(both.server.address())).await;
    taker.token("fair x").await;
    let waits = both.peer.send("t", &both.about("lock"));
    both.in_line(1).await;
    taker.kill();
    waits.value().await;
}

/// Whoever loses its session loses the lock, and ours knows before theirs is granted.
async fn lost_sessions(library: Library) {
    let both = Both::new(library).await;
    both.ask("t", "lock").await;
    let mutex = both.locks.mutex("x").fair();
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    both.in_line(1).await;
    both.peer.stop();
    let guard = soon("theirs ends", waiting).await.unwrap();
    both.peer.go_on();
    guard.release().await.unwrap();
    let both = Both::new(library).await;
    let proxy = Proxy::to(both.server.address()).await;
    let cut_off = Locks::connect(&both.at(proxy.address())).await.unwrap();
    let guard = cut_off.mutex("x").lock().await.unwrap();
    let waits = both.peer.send("t", &both.about("lock"));
    both.in_line(1).await;
    proxy.cut();
    assert_eq!(soon("ours is lost", guard.lost()).await, Cause::Expired);
    assert!(waits.waits(), "before theirs is granted");
    waits.value().await;
    both.ask("t", "unlock").await;
}

mod curator {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn mutexes_exclude_and_wake_each_other() {
        exclude_and_wake(Library::Curator, "", false).await;
        exclude_and_wake(Library::Curator, "", true).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn writers_exclude_and_wake_each_other() {
        exclude_and_wake(Library::Curator, "write.", false).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn there_is_one_line() {
        one_line(Library::Curator).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn readers_share_and_writers_exclude() {
        readers_share(Library::Curator).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn permits_are_counted_together() {
        let both = Both::new(Library::Curator).await;
        let semaphore = both.locks.semaphore("x", 2);
        both.ask("t", "permit.acquire n=2").await;
        let ours = semaphore.acquire().await.unwrap();
        assert!(semaphore.try_acquire().await.unwrap().is_none());
        assert_eq!(both.ask("u", "permit.tryAcquire n=2").await, "false");
        let again = both.locks.semaphore("x", 2);
        let waiting = tokio::spawn(async move { again.acquire().await.unwrap() });
        both.in_line(1).await;
        both.ask("t", "permit.release n=2").await;
        soon("ours", waiting).await.unwrap().release().await.unwrap();
        both.ask("t", "permit.acquire n=2").await;
        let waits = both.peer.send("u", &both.about("permit.acquire n=2"));
        both.in_line(1).await;
        ours.release().await.unwrap();
        waits.value().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_mutex_without_reentry_is_a_semaphore_of_one() {
        let both = Both::new(Library::Curator).await;
        both.ask("t", "once.lock").await;
        assert!(both.locks.semaphore("x", 1).try_acquire().await.unwrap().is_none());
        both.ask("t", "once.unlock").await;
        let ours = both.locks.semaphore("x", 1).acquire().await.unwrap();
        assert_eq!(both.ask("t", "once.tryLock").await, "false");
        ours.release().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_crash_of_either_side_frees_the_lock() {
        crashes(Library::Curator).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lost_session_of_either_side_is_a_lost_lock() {
        lost_sessions(Library::Curator).await;
    }
}

mod kazoo {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn mutexes_exclude_and_wake_each_other() {
        exclude_and_wake(Library::Kazoo, "", false).await;
        exclude_and_wake(Library::Kazoo, "", true).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn there_is_one_line() {
        one_line(Library::Kazoo).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn readers_share_and_writers_exclude() {
        readers_share(Library::Kazoo).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_crash_of_either_side_frees_the_lock() {
        crashes(Library::Kazoo).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lost_session_of_either_side_is_a_lost_lock() {
        lost_sessions(Library::Kazoo).await;
    }
}

/// Not a test: what this binary does when it is started as another process.
#[test]
fn taker_main() {
    testkit::taker::main();
}
