//! The steps of BLock's flow charts, one test each; `docs/BLOCK.md` says which is which.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Error, Locks, Name};
use testkit::faulty::{Faulty, Mode};
use testkit::nodes::ask;
use testkit::proxy::Proxy;
use testkit::relay::Relay;
use testkit::server::{self, Server};
use testkit::taker::{Signal, Taker};
use testkit::wait::{eventually, soon};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn url(server: &Server) -> String {
    format!("redis://{}", server.address())
}

async fn connect(server: &Server) -> Locks {
    Locks::connect(&url(server)).await.unwrap()
}

async fn is_held(locks: &Locks, name: &str) -> bool {
    let name: Name = name.parse().unwrap();
    !locks.admin().show(&name).await.unwrap().holders.is_empty()
}

/// What is left of the lease at the store.
async fn left(server: &Server, name: &str) -> Duration {
    let left: i64 = ask(server.address(), &format!("PTTL {name}")).await.parse().unwrap();
    Duration::from_millis(u64::try_from(left).unwrap_or(0))
}

fn lost(result: Result<(), Error>) -> Cause {
    match result {
        Err(Error::Lost { cause, .. }) => cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn taker_main() {
    testkit::taker::main();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_lock_with_a_ttl_is_a_lease_that_nobody_renews() {
    let server = server::redis(&[]).await;
    let (one, other) = (connect(&server).await, connect(&server).await);
    let lease = secs(1);
    let guard = one.lease(lease).mutex("x").try_lock().await.unwrap().expect("free");
    assert!(left(&server, "x").await <= lease);
    assert!(other.mutex("x").try_lock().await.unwrap().is_none(), "false, and at once");
    assert_eq!(soon("its end", guard.lost()).await, Cause::Expired);
    let free = async || other.lease(lease).mutex("x").try_lock().await.unwrap().is_some();
    eventually("free", free).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_lock_without_a_ttl_is_hosted() {
    let server = server::redis(&[]).await;
    let (one, other) = (connect(&server).await, connect(&server).await);
    // BLock resets 30 s; the same, so that the test need not last that long.
    let ttl = secs(1);
    let guard = one.ttl(ttl).mutex("x").try_lock().await.unwrap().expect("free");
    let first_end = guard.expires_at().unwrap();
    eventually("its first lease is over", async || Instant::now() > first_end + ttl).await;
    assert!(!guard.is_lost());
    assert!(other.mutex("x").try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(other.mutex("x").try_lock().await.unwrap().is_some());
    let default = one.mutex("y").try_lock().await.unwrap().expect("free");
    assert_eq!(default.term().ttl(), secs(30));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_waits_for_as_long_as_timeout_says() {
    let server = server::redis(&[]).await;
    let (one, other) = (connect(&server).await, connect(&server).await);
    let held = one.mutex("x").lock().await.unwrap();
    for locks in [other.clone(), other.lease(secs(60))] {
        let mutex = locks.mutex("x");
        // The holder is named by a server that tells it in a moment.
        let named = async || {
            let wait = Duration::from_millis(300);
            let error = soon("the time-out", mutex.lock_timeout(wait)).await.unwrap_err();
            let Error::Timeout { waited, held_by, .. } = error else { panic!("{error}") };
            assert!(waited >= wait && waited < secs(3), "{waited:?}");
            held_by.len() == 1
        };
        eventually("named", named).await;
    }
    let mutex = other.mutex("x");
    let waiting = tokio::spawn(async move { mutex.lock_timeout(secs(20)).await });
    let name: Name = "x".parse().unwrap();
    let queued = async || one.admin().show(&name).await.unwrap().waiters.len() == 1;
    eventually("it waits", queued).await;
    held.release().await.unwrap();
    soon("granted", waiting).await.unwrap().unwrap().release().await.unwrap();
    assert!(!is_held(&one, "x").await, "and those who gave up left nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_asks_as_often_as_round_says() {
    let server = server::redis(&[]).await;
    let (one, other) = (connect(&server).await, connect(&server).await);
    let (_held, mutex) = (one.mutex("x").lock().await.unwrap(), other.lease(secs(9)).mutex("x"));
    // So that the script is known.
    mutex.lock_attempts(1).await.unwrap_err();
    let asked = async || -> u64 {
        let stats = ask(server.address(), "INFO commandstats").await;
        let of = |line: &str| line.split(['=', ',']).nth(1)?.parse::<u64>().ok();
        stats.lines().filter(|line| line.starts_with("cmdstat_eval")).filter_map(of).sum()
    };
    let cost = {
        let before = asked().await;
        mutex.lock_attempts(1).await.unwrap_err();
        asked().await - before
    };
    let before = asked().await;
    let error = mutex.lock_attempts(5).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    // The error names the holder, which is asked for once.
    assert_eq!(asked().await - before, cost + 4, "one alone costs {cost}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_out_is_followed_by_the_same_lock_again() {
    let server = server::redis(&[]).await;
    let (proxy, other) = (Proxy::to(server.address()).await, connect(&server).await);
    let locks = Locks::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    for locks in [locks.clone(), locks.lease(secs(60))] {
        proxy.lose_next_reply();
        // Nobody else can have taken it: what is there is ours, and no orphan.
        let guard = soon("granted", locks.mutex("x").try_lock()).await.unwrap().expect("ours");
        assert!(proxy.lost_a_reply());
        assert!(other.mutex("x").try_lock().await.unwrap().is_none());
        guard.release().await.unwrap();
        assert!(!is_held(&other, "x").await);
    }
}

/// The second picture of BLock's time-out: the first request arrives only after the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_request_that_arrives_last_leaves_no_orphan() {
    let server = server::redis(&[]).await;
    let (relay, other) = (Relay::to(server.address()).await, connect(&server).await);
    // So that the script is known.
    other.lease(secs(60)).mutex("x").lock().await.unwrap().release().await.unwrap();
    let locks = Locks::connect(&format!("redis://{}", relay.address())).await.unwrap();
    relay.hold_commands();
    let guard = soon("granted", locks.lease(secs(60)).mutex("x").lock()).await.unwrap();
    guard.release().await.unwrap();
    let calls = async || ask(server.address(), "INFO commandstats").await;
    let before = calls().await;
    relay.let_go();
    eventually("it arrives", async || calls().await != before).await;
    let next = soon("free", other.lease(secs(60)).mutex("x").lock()).await.unwrap();
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renew_has_three_outcomes() {
    let server = server::redis(&[]).await;
    let (one, other) = (connect(&server).await, connect(&server).await);
    let lease = one.lease(secs(20));
    let guard = lease.mutex("x").lock().await.unwrap();
    guard.renew(secs(60)).await.unwrap();
    assert!(left(&server, "x").await > secs(50), "the time to live is set anew");

    // Somebody gave it back in our name, and nobody has it: it is not taken again by renewing.
    ask(server.address(), "DEL x").await;
    assert_eq!(lost(guard.renew(secs(60)).await), Cause::Gone);
    assert!(!is_held(&other, "x").await);

    // Somebody else has it: its lease is not touched.
    let guard = lease.mutex("y").lock().await.unwrap();
    ask(server.address(), "DEL y").await;
    let theirs = other.lease(secs(30)).mutex("y").lock().await.unwrap();
    assert_eq!(lost(guard.renew(secs(600)).await), Cause::Gone);
    assert!(guard.is_lost() && left(&server, "y").await <= secs(30));
    theirs.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unlock_has_three_outcomes() {
    let server = server::redis(&[]).await;
    let (one, other) = (connect(&server).await, connect(&server).await);
    for locks in [one.clone(), one.lease(secs(60))] {
        let guard = locks.mutex("x").fair().lock().await.unwrap();
        guard.release().await.unwrap();
        assert!(!is_held(&other, "x").await);

        let guard = locks.mutex("x").fair().lock().await.unwrap();
        ask(server.address(), "DEL x").await;
        assert_eq!(lost(guard.release().await), Cause::Gone);

        let guard = locks.mutex("x").fair().lock().await.unwrap();
        ask(server.address(), "DEL x").await;
        let theirs = other.mutex("x").lock().await.unwrap();
        assert_eq!(lost(guard.release().await), Cause::Gone);
        assert!(is_held(&other, "x").await, "theirs is left alone");
        theirs.release().await.unwrap();
    }
}

/// The three outcomes of the watchdog's own renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hosted_lock_that_is_gone_is_told() {
    let server = server::redis(&[]).await;
    let (one, other) = (connect(&server).await, connect(&server).await);
    let ttl = secs(3);
    let renewed = one.ttl(ttl).mutex("renewed").lock().await.unwrap();
    let (gone, taken) = (one.ttl(ttl).mutex("gone"), one.ttl(ttl).mutex("taken"));
    let (gone, taken) = (gone.lock().await.unwrap(), taken.lock().await.unwrap());
    ask(server.address(), "DEL gone taken").await;
    let theirs = other.mutex("taken").lock().await.unwrap();
    assert_eq!(within_a_pass(ttl, gone.lost()).await, Cause::Gone);
    assert_eq!(within_a_pass(ttl, taken.lost()).await, Cause::Gone);
    assert!(!renewed.is_lost() && !theirs.is_lost());
    assert!(!is_held(&other, "gone").await, "not taken again");
    renewed.release().await.unwrap();
    theirs.release().await.unwrap();
}

/// Well before the lease would have ended.
async fn within_a_pass(ttl: Duration, lost: impl Future<Output = Cause>) -> Cause {
    tokio::time::timeout(ttl * 5 / 6, lost).await.expect("told by the next pass")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_of_the_watchdog_does_not_overlap_itself() {
    let (backend, faults) = Faulty::new(Arc::clone(Locks::memory().backend()));
    let locks = Locks::new(backend).ttl(secs(3));
    let guard = locks.mutex("x").lock().await.unwrap();
    // Answers come late, or not at all: the next renewal does not begin while one is under way.
    for mode in [Mode::Hang, Mode::HoldReply] {
        faults.renew.set(mode);
        let begun = faults.renew.begun();
        eventually("two more", async || faults.renew.begun() >= begun + 2).await;
        faults.renew.set(Mode::Pass);
        let (begun, end) = (faults.renew.begun(), guard.expires_at().unwrap());
        let renewed = async || faults.renew.begun() > begun && guard.expires_at().unwrap() > end;
        eventually("renewed", renewed).await;
    }
    assert!(!guard.is_lost());
    assert_eq!(faults.renew.most_at_once(), 1);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_gives_back_what_is_held() {
    let server = server::redis(&[]).await;
    let other = connect(&server).await;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut taker = Taker::spawn(&url(&server)).await;
        taker.ask("release-on-signal").await;
        taker.ask("lock x").await;
        taker.signal(signal);
        assert_eq!(taker.ask("wait-lost").await, Cause::ShutDown.to_string());
        assert!(is_held(&other, "x").await, "until the work has stopped");
        // The lock is lost, so that is the answer, if the process still gives one.
        taker.send("release");
        let status = taker.ends_within(secs(5)).await;
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status}");
        assert!(!is_held(&other, "x").await);
    }
}

/// Nobody is granted the lock who is not there any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_takes_those_who_wait_out_of_the_line() {
    let server = server::redis(&[]).await;
    let (other, name): (_, Name) = (connect(&server).await, "x".parse().unwrap());
    let held = other.mutex("x").lock().await.unwrap();
    let mut taker = Taker::spawn(&url(&server)).await;
    taker.ask("release-on-signal").await;
    taker.send("fair x");
    let waiting = async || other.admin().show(&name).await.unwrap().waiters.len();
    eventually("it waits", async || waiting().await == 1).await;
    taker.signal(Signal::TERM);
    let status = taker.ends_within(secs(5)).await;
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status}");
    assert_eq!(waiting().await, 0);
    held.release().await.unwrap();
}

/// The work does not stop: what is hosted or long is given back after the grace period all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_gives_back_hosted_and_long_leases_and_leaves_short_ones() {
    let server = server::redis(&[]).await;
    let other = connect(&server).await;
    let mut taker = Taker::spawn(&url(&server)).await;
    for command in ["release-on-signal", "lock a", "lock b lease=60000", "lock c lease=30000"] {
        taker.ask(command).await;
    }
    taker.signal(Signal::TERM);
    taker.ends_within(secs(18)).await;
    assert!(!is_held(&other, "a").await && !is_held(&other, "b").await);
    assert!(is_held(&other, "c").await, "ends by itself");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_at_once() {
    let server = server::redis(&[]).await;
    let other = connect(&server).await;
    let mut taker = Taker::spawn(&url(&server)).await;
    taker.ask("release-on-signal").await;
    taker.ask("lock x").await;
    taker.signal(Signal::TERM);
    assert_eq!(taker.ask("wait-lost").await, Cause::ShutDown.to_string());
    taker.signal(Signal::INT);
    let status = taker.ends_within(secs(5)).await;
    assert_eq!(status.signal(), Some(Signal::INT.as_raw()), "{status}");
    assert!(is_held(&other, "x").await, "nobody gave it back");
}
