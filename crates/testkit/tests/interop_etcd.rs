//! Lockkeeper, etcd's own Go package and `etcdctl lock` at one server: they exclude each other, wake
//! each other up, stand in one line, and survive each other's crash.
#![cfg(feature = "interop")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Locks, Name};
use rustix::process::{Pid, Signal, kill_process};
use testkit::peer::Peer;
use testkit::server::{self, Server, etcdctl, try_etcdctl};
use testkit::wait::{eventually, soon};

/// The best of several rounds is woken within this time; the others may meet a busy machine.
const WOKEN: Duration = Duration::from_millis(200);

async fn both() -> (Server, Locks, Peer) {
    let server = server::etcd(&[]).await;
    let peer = Peer::etcd(&server.address().to_string()).await;
    let locks = Locks::connect(&format!("etcd://{}", server.address())).await.unwrap();
    (server, locks, peer)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

async fn queued(locks: &Locks, waiters: usize) {
    let shown = async || locks.admin().show(&name("x")).await.unwrap().waiters.len() == waiters;
    eventually("in line", shown).await;
}

fn wait_for(locks: &Locks) -> tokio::task::JoinHandle<lockkeeper::Guard> {
    let mutex = locks.mutex("x").fair();
    tokio::spawn(async move { mutex.lock().await.unwrap() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutexes_exclude_and_wake_each_other_under_growing_tokens() {
    let (_server, locks, peer) = both().await;
    let (mut ours_woken, mut theirs_woken) = (Duration::MAX, Duration::MAX);
    let mut last = 0;
    for _ in 0..5 {
        let token: u64 = peer.ask("t", "lock x").await.parse().unwrap();
        assert!(token > last, "{token} after {last}");
        assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
        assert!(locks.rw_lock("x").try_read().await.unwrap().is_none());
        let waiting = wait_for(&locks);
        queued(&locks, 1).await;
        let since = Instant::now();
        peer.ask("t", "unlock x").await;
        let guard = soon("we are woken", waiting).await.unwrap();
        ours_woken = ours_woken.min(Instant::now().since(since));
        assert!(guard.token().get() > token);
        last = guard.token().get();
        assert_eq!(peer.ask("t", "try x").await, "none");
        let waits = peer.send("t", "lock x");
        queued(&locks, 1).await;
        let since = Instant::now();
        guard.release().await.unwrap();
        let token: u64 = waits.value().await.parse().unwrap();
        theirs_woken = theirs_woken.min(Instant::now().since(since));
        assert!(token > last);
        last = token;
        peer.ask("t", "unlock x").await;
    }
    assert!(ours_woken < WOKEN && theirs_woken < WOKEN, "{ours_woken:?} {theirs_woken:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_line_for_both() {
    let (_server, locks, peer) = both().await;
    let first = locks.mutex("x").lock().await.unwrap();
    let mut line = Vec::new();
    for at in 0..3 {
        let theirs = peer.send(&format!("t{at}"), "lock x");
        queued(&locks, 2 * at + 1).await;
        let ours = wait_for(&locks);
        queued(&locks, 2 * at + 2).await;
        line.push((theirs, ours));
    }
    first.release().await.unwrap();
    for (at, (theirs, ours)) in line.into_iter().enumerate() {
        theirs.value().await;
        assert!(!ours.is_finished(), "in the order of arrival");
        assert_eq!(peer.ask(&format!("t{at}"), "owned x").await, "true");
        peer.ask(&format!("t{at}"), "unlock x").await;
        soon("our turn", ours).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_ours_hold_theirs_up_and_never_pass_them() {
    let (_server, locks, peer) = both().await;
    let readers =
        [locks.rw_lock("x").read().await.unwrap(), locks.rw_lock("x").read().await.unwrap()];
    let waits = peer.send("t", "lock x");
    queued(&locks, 1).await;
    assert!(locks.rw_lock("x").try_read().await.unwrap().is_none(), "not past them");
    let [one, two] = readers;
    two.release().await.unwrap();
    assert!(waits.waits());
    one.release().await.unwrap();
    waits.value().await;
    assert!(locks.rw_lock("x").try_read().await.unwrap().is_none());
    peer.ask("t", "unlock x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_theirs_frees_the_lock_after_its_lease() {
    let (_server, locks, mut peer) = both().await;
    peer.ask("t", "lock x ttl=2").await;
    let waiting = wait_for(&locks);
    queued(&locks, 1).await;
    peer.crash().await;
    soon("theirs", waiting).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_ours_frees_the_lock_after_its_lease() {
    let (server, locks, peer) = both().await;
    let mut taker = testkit::taker::Taker::spawn(&format!("etcd://{}", server.address())).await;
    taker.token("lock x ttl=1500").await;
    let waits = peer.send("t", "lock x");
    queued(&locks, 1).await;
    taker.kill();
    waits.value().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_lost_is_skipped_on_either_side() {
    let (server, locks, peer) = both().await;
    // Theirs ends while it holds.
    peer.ask("t", "lock x").await;
    let waiting = wait_for(&locks);
    queued(&locks, 1).await;
    peer.ask("t", "revoke x").await;
    let ours = soon("our turn", waiting).await.unwrap();
    assert_eq!(peer.ask("t", "owned x").await, "false");
    // Ours ends while it holds: we are told, and they are served.
    let waits = peer.send("u", "lock x");
    queued(&locks, 1).await;
    // The first renewal may move our key to a longer lease, also between a look at it and the end of the lease
    // that was seen: until it is gone.
    let first = ["get", "--prefix", "x/", "--sort-by", "CREATE", "--limit", "1", "-w", "fields"];
    eventually("only theirs is left", async || {
        let keys = etcdctl(&server, &["get", "--prefix", "x/", "--keys-only"]);
        if keys.lines().filter(|line| !line.is_empty()).count() < 2 {
            return true;
        }
        let key = etcdctl(&server, &first);
        let lease = key.lines().find_map(|line| line.strip_prefix("\"Lease\" : ")).unwrap();
        let lease = format!("{:x}", lease.parse::<i64>().unwrap());
        try_etcdctl(&server, &["lease", "revoke", &lease]);
        false
    })
    .await;
    waits.value().await;
    assert_eq!(soon("told", ours.lost()).await, Cause::Gone);
    // Theirs is taken away by us.
    let eviction = locks.admin().evict(&name("x"), "stuck").await.unwrap();
    assert_eq!(eviction.holders.len(), 1);
    assert_eq!(peer.ask("u", "owned x").await, "false");
}

/// `etcdctl lock`, killed when dropped.
struct Ctl(Child);

impl Ctl {
    fn lock(server: &Server) -> Self {
        let child = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &server.address().to_string(), "lock", "x", "--ttl", "2"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Waits until it says that it holds; its key.
    async fn holds(&mut self) -> String {
        let output = self.0.stdout.take().unwrap();
        let read = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).unwrap();
            line.trim().to_owned()
        });
        soon("etcdctl holds", read).await.unwrap()
    }

    fn interrupt(&self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, Signal::INT).unwrap();
    }
}

impl Drop for Ctl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_stands_in_the_same_line() {
    let (server, locks, _peer) = both().await;
    let first = locks.mutex("x").lock().await.unwrap();
    let mut theirs = Ctl::lock(&server);
    queued(&locks, 1).await;
    let waiting = wait_for(&locks);
    queued(&locks, 2).await;
    first.release().await.unwrap();
    assert!(theirs.holds().await.starts_with("x/"));
    assert!(!waiting.is_finished());
    theirs.interrupt();
    let ours = soon("our turn", waiting).await.unwrap();
    let mut killed = Ctl::lock(&server);
    queued(&locks, 1).await;
    ours.release().await.unwrap();
    killed.holds().await;
    drop(killed);
    soon("after its lease", locks.mutex("x").lock()).await.unwrap().release().await.unwrap();
}

/// Go's package waits for whatever is below the name; ours does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_theirs_confuses_a_name_with_those_below_it() {
    let (_server, locks, peer) = both().await;
    let below = locks.mutex("x/b").lock().await.unwrap();
    let waits = peer.send("t", "lock x");
    // To us it is the first of its name, and holds.
    let there = async || locks.admin().show(&name("x")).await.unwrap().holders.len() == 1;
    eventually("in line", there).await;
    assert!(waits.waits(), "the limit of Go's layout that the documentation names");
    below.release().await.unwrap();
    waits.value().await;
    assert!(locks.mutex("x/b").try_lock().await.unwrap().is_some());
    peer.ask("t", "unlock x").await;
}

/// Not a test: what this binary does when it is started as another process.
#[test]
fn taker_main() {
    testkit::taker::main();
}
