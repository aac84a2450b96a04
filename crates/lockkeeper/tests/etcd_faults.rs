//! What can go wrong between a client and its etcd server.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backend::etcd::WAITER_LEASE;
use lockkeeper::backend::{Kind, Patience, Request, Term};
use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Error, Locks, Name, RequestId};
use testkit::proxy::{Proxy, Way};
use testkit::server::{self, Server, etcdctl};
use testkit::wait::{eventually, soon};

async fn connect(server: &Server) -> Locks {
    Locks::connect(&format!("etcd://{}", server.address())).await.unwrap()
}

/// A client behind a proxy.
async fn through(server: &Server) -> (Locks, Proxy) {
    let proxy = Proxy::to(server.address()).await;
    (Locks::connect(&format!("etcd://{}", proxy.address())).await.unwrap(), proxy)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

async fn holders(locks: &Locks) -> usize {
    locks.admin().show(&name("x")).await.unwrap().holders.len()
}

async fn queued(locks: &Locks, waiters: usize) {
    let shown = async || locks.admin().show(&name("x")).await.unwrap().waiters.len() == waiters;
    eventually("in line", shown).await;
}

async fn idle(locks: &Locks) {
    let idle = async || {
        let status = locks.admin().show(&name("x")).await.unwrap();
        status.holders.is_empty() && status.waiters.is_empty()
    };
    eventually("idle", idle).await;
}

/// The whole error, with its sources.
fn text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_lost_at_any_point_is_asked_for_again() {
    let server = server::etcd(&[]).await;
    let direct = connect(&server).await;
    // Lease, transaction, and the answers to both: some 500 bytes.
    for bytes in (0..560).step_by(40) {
        let (locks, proxy) = through(&server).await;
        proxy.cut_after(Way::Down, bytes);
        let mutex = locks.mutex("x").fair();
        let back = async {
            tokio::time::sleep(Duration::from_millis(150)).await;
            proxy.pass();
        };
        let (guard, ()) = tokio::join!(soon("granted all the same", mutex.lock()), back);
        let guard = guard.unwrap();
        assert_eq!(holders(&direct).await, 1, "once; cut after {bytes}");
        assert!(direct.mutex("x").try_lock().await.unwrap().is_none());
        guard.release().await.unwrap();
        idle(&direct).await;
    }
    assert_eq!(
        etcdctl(&server, &["get", "--prefix", "", "--keys-only"]).trim(),
        "",
        "nothing stays"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn giving_up_without_an_answer_leaves_nothing() {
    let server = server::etcd(&[]).await;
    let direct = connect(&server).await;
    for patience in [1, 5, 20, 50] {
        let (locks, proxy) = through(&server).await;
        proxy.lose_next_reply();
        let mutex = locks.mutex("x").fair();
        let given_up = tokio::time::timeout(Duration::from_millis(patience), mutex.lock()).await;
        drop(given_up);
        idle(&direct).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_renew_costs_nothing() {
    let server = server::etcd(&[]).await;
    let (locks, proxy) = through(&server).await;
    let guard = locks.ttl(Duration::from_secs(6)).mutex("x").lock().await.unwrap();
    for _ in 0..3 {
        proxy.lose_next_reply();
        eventually("a reply is lost", async || proxy.lost_a_reply()).await;
        let before = guard.expires_at().unwrap();
        eventually("renewed again", async || guard.expires_at().unwrap() > before).await;
    }
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_release_is_unknown_and_done_all_the_same() {
    let server = server::etcd(&[]).await;
    let direct = connect(&server).await;
    let (locks, proxy) = through(&server).await;
    let guard = locks.mutex("x").lock().await.unwrap();
    proxy.cut();
    let released = tokio::spawn(guard.release());
    let error = soon("an answer", released).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
    proxy.pass();
    idle(&direct).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_survives_cut_connections_in_its_place() {
    let server = server::etcd(&[]).await;
    let direct = connect(&server).await;
    let (locks, proxy) = through(&server).await;
    for _ in 0..3 {
        let held = direct.mutex("x").fair().lock().await.unwrap();
        let mutex = locks.mutex("x").fair();
        let waiting = tokio::spawn(async move { mutex.lock().await });
        queued(&direct, 1).await;
        let mutex = direct.mutex("x").fair();
        let behind = tokio::spawn(async move { mutex.lock().await });
        queued(&direct, 2).await;
        proxy.drop_connections();
        held.release().await.unwrap();
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        assert!(!behind.is_finished(), "in its place");
        guard.release().await.unwrap();
        soon("the one behind", behind).await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_answer_breaks_no_bound() {
    let server = server::etcd(&[]).await;
    let (locks, proxy) = through(&server).await;
    let held = locks.ttl(Duration::from_secs(5)).mutex("y").lock().await.unwrap();
    proxy.freeze();
    let since = Instant::now();
    let error = locks.mutex("x").lock_timeout(Duration::from_secs(1)).await.unwrap_err();
    let took = Instant::now().since(since);
    assert!(took < Duration::from_secs(4), "{took:?}: {error}");
    assert_eq!(soon("the loss", held.lost()).await, Cause::Expired);
    assert!(Instant::now() < held.expires_at().unwrap(), "in time");
    proxy.pass();
    idle(&connect(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_is_an_error_in_bounded_time() {
    let mut server = server::etcd(&[]).await;
    let locks = connect(&server).await;
    server.kill();
    let error = soon("an error", locks.mutex("x").lock()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let error = soon("refused", Locks::connect(&format!("etcd://{}", server.address()))).await;
    assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_keeps_holders_and_waiters() {
    let mut server = server::etcd(&[]).await;
    let locks = connect(&server).await;
    let guard = locks.mutex("x").fair().lock().await.unwrap();
    let mutex = locks.mutex("x").fair();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    queued(&locks, 1).await;
    let token = guard.token();
    server.restart().await;
    let shown = async || holders(&locks).await == 1;
    eventually("still held", shown).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    let next = soon("its turn", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_has_gone_silent_is_replaced() {
    let server = server::etcd(&[]).await;
    let direct = connect(&server).await;
    let (locks, proxy) = through(&server).await;
    let guard = direct.mutex("x").fair().lock().await.unwrap();
    let mutex = locks.mutex("x").fair();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    queued(&direct, 1).await;
    proxy.silence();
    let since = Instant::now();
    guard.release().await.unwrap();
    soon("through another one", waiting).await.unwrap().unwrap().release().await.unwrap();
    let took = Instant::now().since(since);
    assert!(took < Duration::from_secs(10), "by its own question, not by a ping: {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_disturbs_neither_waiters_nor_holders() {
    let server = server::etcd(&[]).await;
    let direct = connect(&server).await;
    let (locks, proxy) = through(&server).await;
    let held = direct.mutex("x").fair().lock().await.unwrap();
    let mutex = locks.lease(Duration::from_secs(60)).mutex("x").fair();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    queued(&direct, 1).await;
    let compact = async || {
        for _ in 0..5 {
            etcdctl(&server, &["put", "unrelated", "1"]);
        }
        let status = etcdctl(&server, &["get", "unrelated", "-w", "json"]);
        let revision = status.split("\"revision\":").nth(1).unwrap().split(',').next().unwrap();
        etcdctl(&server, &["compact", revision]);
    };
    proxy.cut();
    compact().await;
    proxy.pass();
    held.release().await.unwrap();
    let guard = soon("its turn", waiting).await.unwrap().unwrap();
    proxy.cut();
    compact().await;
    direct.admin().evict(&name("x"), "stuck").await.unwrap();
    compact().await;
    proxy.pass();
    assert_eq!(soon("told", guard.lost()).await, Cause::Evicted("stuck".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_somebody_deletes_is_a_loss_at_once() {
    let server = server::etcd(&[]).await;
    let locks = connect(&server).await;
    let guard = locks.lease(Duration::from_secs(600)).mutex("x").lock().await.unwrap();
    let since = Instant::now();
    etcdctl(&server, &["del", "--prefix", "x/"]);
    assert_eq!(soon("told", guard.lost()).await, Cause::Gone);
    assert!(Instant::now().since(since) < Duration::from_secs(2), "at once");
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_key_somebody_deletes_lines_up_again() {
    let server = server::etcd(&[]).await;
    let locks = connect(&server).await;
    let held = locks.mutex("x").fair().lock().await.unwrap();
    let mutex = locks.mutex("x").fair();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    queued(&locks, 1).await;
    let keys = etcdctl(&server, &["get", "--prefix", "x/", "--keys-only", "--sort-by", "CREATE"]);
    let last = keys.lines().rfind(|line| !line.is_empty()).unwrap();
    etcdctl(&server, &["del", last]);
    queued(&locks, 1).await;
    held.release().await.unwrap();
    soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_while_nobody_listened_is_told() {
    let server = server::etcd(&[]).await;
    let direct = connect(&server).await;
    let (locks, proxy) = through(&server).await;
    let guard = locks.lease(Duration::from_secs(600)).mutex("x").lock().await.unwrap();
    proxy.cut();
    direct.admin().evict(&name("x"), "stuck").await.unwrap();
    proxy.pass();
    assert_eq!(soon("told", guard.lost()).await, Cause::Evicted("stuck".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_below_another_is_another_lock() {
    let server = server::etcd(&[]).await;
    let locks = connect(&server).await;
    let inner = locks.mutex("x/b").lock().await.unwrap();
    let deeper = locks.mutex("x/4c00000000000001").lock().await.unwrap();
    let outer = soon("free", locks.mutex("x").lock()).await.unwrap();
    assert!(locks.mutex("x").fair().try_lock().await.unwrap().is_none());
    outer.release().await.unwrap();
    let permit = soon("free", locks.semaphore("x", 1).acquire()).await.unwrap();
    assert!(locks.semaphore("x", 1).try_acquire().await.unwrap().is_none());
    permit.release().await.unwrap();
    assert!(locks.latch("x").close(1).await.unwrap());
    assert_eq!(locks.latch("x").count_down().await.unwrap(), 0);
    let eviction = locks.admin().evict(&name("x"), "why").await.unwrap();
    assert!(eviction.holders.is_empty() && !inner.is_lost());
    assert_eq!(locks.admin().list().await.unwrap().len(), 2);
    inner.release().await.unwrap();
    deeper.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_was_given_up_is_not_granted_late() {
    let server = server::etcd(&[]).await;
    let locks = connect(&server).await;
    let request = |patience| Request {
        name: name("x"),
        kind: Kind::FairMutex,
        owner: locks.new_owner(),
        id: RequestId::from_bytes([7; 16]),
        term: Term::Fixed(Duration::from_secs(60)),
        tokens: 1,
        patience,
    };
    let held = locks.mutex("x").fair().lock().await.unwrap();
    let waiting = tokio::spawn(Arc::clone(locks.backend()).acquire(request(Patience::Forever)));
    queued(&locks, 1).await;
    waiting.abort();
    held.release().await.unwrap();
    idle(&locks).await;
    let guard = locks.mutex("x").try_lock().await.unwrap().expect("nobody else");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guarded_writes_are_carried_out_under_the_lock_only() {
    let server = server::etcd(&[]).await;
    let locks = connect(&server).await;
    etcdctl(&server, &["put", "todo", "1"]);
    let guard = locks.mutex("x").lock().await.unwrap();
    let written = guard.txn().unwrap().put("state", "one").delete("todo").commit().await;
    assert!(written.unwrap() > guard.token().get());
    assert_eq!(etcdctl(&server, &["get", "state", "--print-value-only"]).trim(), "one");
    assert_eq!(etcdctl(&server, &["get", "todo"]), "");
    let late = locks.lease(Duration::from_secs(60)).rw_lock("y").write().await.unwrap();
    let late = late.downgrade().await.unwrap();
    late.txn().unwrap().put("state", "read").commit().await.unwrap();
    locks.admin().evict(&name("y"), "stuck").await.unwrap();
    let refused = late.txn().unwrap().put("state", "late").commit().await.unwrap_err();
    let evicted =
        matches!(&refused, Error::Lost { cause: Cause::Evicted(why), .. } if why == "stuck");
    assert!(evicted, "{refused}");
    assert!(late.is_lost());
    assert_eq!(etcdctl(&server, &["get", "state", "--print-value-only"]).trim(), "read");
    let memory = Locks::memory();
    let elsewhere = memory.mutex("x").lock().await.unwrap();
    assert!(matches!(elsewhere.txn(), Err(Error::Unsupported { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guarded_write_of_a_stopped_holder_is_refused() {
    let server = server::etcd(&[]).await;
    let (locks, proxy) = through(&server).await;
    let guard = locks.lease(Duration::from_secs(2)).mutex("x").lock().await.unwrap();
    // What is sent now arrives when somebody else has the lock.
    proxy.delay(Way::Up, Duration::from_secs(1));
    proxy.freeze();
    let late = tokio::spawn(async move {
        let committed = guard.txn().unwrap().put("state", "late").commit().await;
        (committed, guard)
    });
    let direct = connect(&server).await;
    let next = soon("overtaken", direct.mutex("x").lock()).await.unwrap();
    next.txn().unwrap().put("state", "next").commit().await.unwrap();
    proxy.pass();
    let (committed, guard) = soon("an answer", late).await.unwrap();
    assert!(committed.is_err() && guard.is_lost());
    assert_eq!(etcdctl(&server, &["get", "state", "--print-value-only"]).trim(), "next");
    next.release().await.unwrap();
}

/// From now on users must log in: `app` has rights on keys that begin with `app/` and on no others.
fn let_in(server: &Server) {
    for words in [
        &["user", "add", "root:s3cret"][..],
        &["role", "add", "root"],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "app:pw"],
        &["role", "add", "app"],
        &["role", "grant-permission", "app", "--prefix=true", "readwrite", "app/"],
        &["user", "grant-role", "app", "app"],
        &["auth", "enable"],
    ] {
        etcdctl(server, words);
    }
}

/// A waiter keeps its lease alive again and again; here, past the end of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_on_one_prefix_are_enough_to_wait_and_to_hold() {
    let server = server::etcd(&[]).await;
    let_in(&server);
    let url = format!("etcd://app:pw@{}?prefix=app/", server.address());
    let (locks, other) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let held = locks.ttl(Duration::from_secs(3)).mutex("x").fair().lock().await.unwrap();
    let mutex = other.mutex("x").fair();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    queued(&locks, 1).await;
    let line = || {
        let root = ["--user", "root:s3cret", "get", "--prefix", "app/x/", "--keys-only"];
        etcdctl(&server, &[&root[..], &["-w", "json"]].concat())
    };
    let created = |line: &str| {
        let revisions: Vec<String> =
            line.split("create_revision\":").skip(1).map(|rest| rest[..4].to_owned()).collect();
        revisions
    };
    let before = created(&line());
    assert_eq!(before.len(), 2, "{before:?}");
    tokio::time::sleep(WAITER_LEASE + Duration::from_secs(1)).await;
    assert!(!held.is_lost() && !waiting.is_finished());
    assert_eq!(created(&line()), before, "the same places");
    held.release().await.unwrap();
    soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_log_in_and_refusals_say_what_to_do() {
    let mut server = server::etcd(&[]).await;
    let_in(&server);
    let at = server.address();
    let error = text(&Locks::connect(&format!("etcd://{at}")).await.unwrap_err());
    assert!(error.contains("password"), "{error}");
    let error = Locks::connect(&format!("etcd://app:wr0ng@{at}?prefix=app/")).await.unwrap_err();
    assert!(text(&error).contains("password"), "{}", text(&error));
    assert!(!format!("{error:?} {}", text(&error)).contains("wr0ng"), "{error:?}");
    let error = Locks::connect(&format!("etcd://app:pw@{at}")).await.unwrap_err();
    assert!(text(&error).contains("may not"), "{}", text(&error));
    let url = format!("etcd://app:pw@{at}?prefix=app/");
    let (locks, other) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    assert!(!format!("{locks:?}").contains("pw@"));
    let held = locks.mutex("x").fair().lock().await.unwrap();
    let mutex = other.mutex("x").fair();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    queued(&locks, 1).await;
    held.release().await.unwrap();
    soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
    // Tokens are forgotten by a server that is not asked for five minutes, or restarted.
    let held = locks.mutex("x").fair().lock().await.unwrap();
    let mutex = other.mutex("x").fair();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    queued(&locks, 1).await;
    server.restart().await;
    let renewed = held.expires_at().unwrap();
    eventually("renewed", async || held.expires_at().unwrap() > renewed).await;
    held.release().await.unwrap();
    soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
    drop(locks.rw_lock("y").read().await.unwrap());
    drop(locks.semaphore("z", 2).acquire().await.unwrap());
    assert!(locks.latch("w").close(1).await.unwrap());
    assert_eq!(other.latch("w").count_down().await.unwrap(), 0);
}
