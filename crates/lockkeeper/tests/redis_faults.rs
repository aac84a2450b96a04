//! What can go wrong between a client and its Redis server.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use lockkeeper::backend::redis::keyspace::Keyspace;
use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Error, Locks, Name};
use testkit::proxy::{Proxy, Way};
use testkit::server::{self, Server};
use testkit::traffic::Traffic;
use testkit::wait::{LONG, eventually, soon};

async fn connect(server: &Server) -> Locks {
    Locks::connect(&format!("redis://{}", server.address())).await.unwrap()
}

/// A client behind a proxy.
async fn through(server: &Server) -> (Locks, Proxy) {
    let proxy = Proxy::to(server.address()).await;
    (Locks::connect(&format!("redis://{}", proxy.address())).await.unwrap(), proxy)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// What an operator types.
async fn operator(server: &Server, words: &[&str]) -> redis::Value {
    let client = redis::Client::open(format!("redis://{}", server.address())).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| {
        command.arg(*word);
    });
    command.query_async(&mut connection).await.unwrap()
}

async fn holders(locks: &Locks) -> usize {
    locks.admin().show(&name("x")).await.unwrap().holders.len()
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
async fn a_lost_reply_to_acquire_is_asked_for_again() {
    let server = server::redis(&[]).await;
    let direct = connect(&server).await;
    for fair in [false, true] {
        let (locks, proxy) = through(&server).await;
        let mutex = locks.mutex("x");
        let mutex = if fair { mutex.fair() } else { mutex };
        proxy.lose_next_reply();
        let guard = soon("granted all the same", mutex.lock()).await.unwrap();
        assert!(proxy.lost_a_reply());
        assert_eq!(holders(&direct).await, 1, "once");
        assert!(direct.mutex("x").try_lock().await.unwrap().is_none());
        guard.release().await.unwrap();
        idle(&direct).await;
    }
    let (locks, proxy) = through(&server).await;
    proxy.lose_next_reply();
    let guard = soon("tried once", locks.mutex("x").fair().try_lock()).await.unwrap();
    guard.expect("free").release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn giving_up_without_an_answer_leaves_nothing() {
    let server = server::redis(&[]).await;
    let direct = connect(&server).await;
    let (locks, proxy) = through(&server).await;
    proxy.lose_next_reply();
    let mutex = locks.mutex("x").fair();
    let given_up = tokio::time::timeout(Duration::from_millis(50), mutex.lock()).await;
    drop(given_up);
    idle(&direct).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_renew_costs_nothing() {
    let server = server::redis(&[]).await;
    let (locks, proxy) = through(&server).await;
    let guard = locks.ttl(Duration::from_secs(6)).mutex("x").lock().await.unwrap();
    for _ in 0..2 {
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
    let server = server::redis(&[]).await;
    let direct = connect(&server).await;
    let (locks, proxy) = through(&server).await;
    let guard = locks.mutex("x").lock().await.unwrap();
    proxy.lose_next_reply();
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
    idle(&direct).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_survives_cut_connections() {
    let server = server::redis(&[]).await;
    let direct = connect(&server).await;
    let (locks, proxy) = through(&server).await;
    for fair in [false, true] {
        let held = direct.mutex("x").lock().await.unwrap();
        let mutex = locks.mutex("x");
        let mutex = if fair { mutex.fair() } else { mutex };
        let waiting = tokio::spawn(async move { mutex.lock().await });
        let queued = async || direct.admin().show(&name("x")).await.unwrap().waiters.len() == 1;
        eventually("in line", queued).await;
        proxy.drop_connections();
        held.release().await.unwrap();
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_answer_breaks_no_bound() {
    let server = server::redis(&[]).await;
    let (locks, proxy) = through(&server).await;
    let ttl = Duration::from_secs(5);
    let held = locks.ttl(ttl).mutex("y").lock().await.unwrap();
    proxy.freeze();
    let since = Instant::now();
    let error = locks.mutex("x").lock_timeout(Duration::from_secs(1)).await.unwrap_err();
    let took = Instant::now().since(since);
    assert!(took < Duration::from_secs(3), "{took:?}: {error}");
    let error = locks.mutex("x").fair().lock_timeout(Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. } | Error::Unavailable { .. }), "{error}");
    assert_eq!(soon("the loss", held.lost()).await, Cause::Expired);
    assert!(Instant::now() < held.expires_at().unwrap(), "in time");
    proxy.pass();
    let direct = connect(&server).await;
    idle(&direct).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_is_an_error_in_bounded_time() {
    let mut server = server::redis(&[]).await;
    let locks = connect(&server).await;
    server.kill();
    let error = soon("an error", locks.mutex("x").lock()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let since = Instant::now();
    let error = locks.mutex("x").lock_timeout(Duration::from_millis(500)).await.unwrap_err();
    assert!(Instant::now().since(since) < Duration::from_secs(3), "{error}");
    let error = soon("refused", Locks::connect(&format!("redis://{}", server.address()))).await;
    assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_forgot_everything_costs_the_lock_and_works_on() {
    let mut server = server::redis(&[]).await;
    let locks = connect(&server).await;
    let guard = locks.ttl(Duration::from_secs(6)).mutex("x").lock().await.unwrap();
    server.kill();
    server.restart().await;
    assert_eq!(soon("the loss", guard.lost()).await, Cause::Gone);
    assert!(guard.release().await.is_err());
    let guard = soon("works on", locks.mutex("x").lock()).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_no_lock_is_an_error_and_is_left_alone() {
    let server = server::redis(&[]).await;
    let locks = connect(&server).await;
    operator(&server, &["RPUSH", "x", "precious"]).await;
    let error = soon("an error", locks.mutex("x").try_lock()).await.unwrap_err();
    assert!(
        text(&error).contains("not a lock") || text(&error).contains("something else"),
        "{error}"
    );
    let kept: Vec<String> =
        redis::from_redis_value(operator(&server, &["LRANGE", "x", "0", "-1"]).await).unwrap();
    assert_eq!(kept, ["precious"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_without_ttl_that_somebody_left_is_held_until_it_is_evicted() {
    let server = server::redis(&[]).await;
    let locks = connect(&server).await;
    operator(&server, &["HSET", "x", "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1"]).await;
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    let status = locks.admin().show(&name("x")).await.unwrap();
    assert_eq!(status.holders[0].owner.to_string(), "8743c9c0-0795-4907-87fd-6c719a6b4586:1");
    let eviction = locks.admin().evict(&name("x"), "left behind").await.unwrap();
    assert_eq!(eviction.holders.len(), 1);
    locks.mutex("x").try_lock().await.unwrap().expect("free").release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_say_what_to_do_and_no_password() {
    let server = server::redis(&["--requirepass", "s3cret"]).await;
    let without = format!("redis://{}", server.address());
    let error = text(&Locks::connect(&without).await.unwrap_err());
    assert!(error.contains("password"), "{error}");
    let wrong = format!("redis://:wr0ng@{}", server.address());
    let error = Locks::connect(&wrong).await.unwrap_err();
    assert!(!format!("{error:?} {}", text(&error)).contains("wr0ng"), "{error:?}");
    let right = format!("redis://:s3cret@{}", server.address());
    let locks = Locks::connect(&right).await.unwrap();
    assert!(!format!("{locks:?}").contains("s3cret"));
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_to_write_says_why() {
    let server = server::redis(&[]).await;
    let locks = connect(&server).await;
    operator(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = soon("an error", locks.mutex("x").try_lock()).await.unwrap_err();
    assert!(text(&error).contains("memory"), "{}", text(&error));
    operator(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
    let master = server::redis(&[]).await;
    let port = master.address().port().to_string();
    operator(&server, &["REPLICAOF", "127.0.0.1", &port]).await;
    let error = soon("an error", locks.mutex("x").try_lock()).await.unwrap_err();
    assert!(text(&error).to_lowercase().contains("read"), "{}", text(&error));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_use_one_prefix_only_is_enough() {
    let server = server::redis(&[]).await;
    let rights = "reset on >pw ~app:* ~lockkeeper*:{app:* ~lockkeeper*::app:* ~redisson_*{app:* ~{app:* \
                  resetchannels &lockkeeper_wake:* &redisson_*{app:* \
                  +@connection +@scripting +@pubsub +@read +@write +time -@dangerous +info";
    let mut words = vec!["ACL", "SETUSER", "app"];
    words.extend(rights.split_whitespace());
    operator(&server, &words).await;
    let url = format!("redis://app:pw@{}?prefix=app:", server.address());
    let (locks, other) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    for fair in [false, true] {
        let held = locks.mutex("x").lock().await.unwrap();
        let mutex = other.mutex("x");
        let mutex = if fair { mutex.fair() } else { mutex };
        let waiting = tokio::spawn(async move { mutex.lock().await });
        let queued = async || locks.admin().show(&name("x")).await.unwrap().waiters.len() == 1;
        eventually("in line", queued).await;
        held.release().await.unwrap();
        soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
    }
    let outside = format!("redis://app:pw@{}?prefix=other:", server.address());
    let outside = Locks::connect(&outside).await.unwrap();
    let error = text(&outside.mutex("x").try_lock().await.unwrap_err());
    assert!(error.contains("may not do that") && !error.contains("pw@"), "{error}");
    drop(locks.rw_lock("y").read().await.unwrap());
    drop(locks.semaphore("z", 2).acquire().await.unwrap());
    assert!(locks.latch("w").close(1).await.unwrap());
    assert_eq!(other.latch("w").count_down().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_while_nobody_listened_is_told() {
    let server = server::redis(&[]).await;
    let direct = connect(&server).await;
    let (locks, proxy) = through(&server).await;
    let guard = locks.lease(Duration::from_secs(600)).mutex("x").lock().await.unwrap();
    proxy.cut();
    direct.admin().evict(&name("x"), "stuck").await.unwrap();
    proxy.pass();
    assert_eq!(soon("told", guard.lost()).await, Cause::Evicted("stuck".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_hold_does_not_end_a_long_one_of_the_same_owner() {
    let server = server::redis(&[]).await;
    let locks = connect(&server).await;
    let mine = locks.owned_by(&locks.new_owner());
    let write = mine.ttl(Duration::from_millis(600)).rw_lock("x").write().await.unwrap();
    let read = mine.lease(Duration::from_secs(60)).rw_lock("x").read().await.unwrap();
    let first = write.expires_at().unwrap();
    eventually("the write lock is renewed", async || write.expires_at().unwrap() > first).await;
    write.release().await.unwrap();
    let later = Instant::now() + Duration::from_secs(1);
    eventually("the write lock would be over", async || Instant::now() > later).await;
    assert!(locks.rw_lock("x").try_write().await.unwrap().is_none(), "{read:?}");
    read.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_differ_in_braces_only_are_different_locks() {
    let server = server::redis(&[]).await;
    let locks = connect(&server).await.ttl(Duration::from_millis(600));
    let (one, two) =
        (locks.mutex("a").lock().await.unwrap(), locks.mutex("{a}").lock().await.unwrap());
    let first = two.expires_at().unwrap();
    eventually("renewed", async || two.expires_at().unwrap() > first).await;
    assert!(!one.is_lost() && !two.is_lost());
    assert_eq!(locks.admin().list().await.unwrap().len(), 2);
    one.release().await.unwrap();
    two.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_has_gone_silent_is_replaced() {
    let server = server::redis(&[]).await;
    let (locks, proxy) = through(&server).await;
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    proxy.silence();
    let guard = soon("through another one", locks.mutex("x").lock()).await.unwrap();
    guard.release().await.unwrap();
}

/// Whether a connection is dead takes a second to find out, and nobody here has as much patience.
#[tokio::test]
async fn a_silent_connection_is_replaced_although_nobody_waits_for_it() {
    let server = server::redis(&[]).await;
    let proxy = Proxy::to(server.address()).await;
    let url = format!("redis://{}", proxy.address()).parse().unwrap();
    let keyspace = Keyspace::connect(&url).await.unwrap();
    let answers = async || {
        let mut get = redis::cmd("GET");
        let looking = keyspace.query::<Option<String>>("x", get.arg("x"));
        tokio::time::timeout(Duration::from_millis(50), looking).await.is_ok_and(|it| it.is_ok())
    };
    eventually("it answers", &answers).await;
    proxy.silence();
    assert!(!answers().await, "it was to be silent");
    eventually("there is another connection", &answers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_was_given_up_is_refused_when_it_arrives_late() {
    let server = server::redis(&[]).await;
    let locks = connect(&server).await;
    let request = |patience| lockkeeper::backend::Request {
        name: name("x"),
        kind: lockkeeper::backend::Kind::FairMutex,
        owner: locks.new_owner(),
        id: lockkeeper::RequestId::from_bytes([7; 16]),
        term: lockkeeper::backend::Term::Fixed(Duration::from_secs(60)),
        tokens: 1,
        patience,
    };
    let backend = || std::sync::Arc::clone(locks.backend());
    let held = locks.mutex("x").fair().lock().await.unwrap();
    let waiting = tokio::spawn(backend().acquire(request(lockkeeper::backend::Patience::Forever)));
    let queued = async || locks.admin().show(&name("x")).await.unwrap().waiters.len() == 1;
    eventually("in line", queued).await;
    waiting.abort();
    held.release().await.unwrap();
    idle(&locks).await;
    // The copy of the request that was still on its way, on a connection that was given up.
    let late = backend().acquire(request(lockkeeper::backend::Patience::TryOnce)).await.unwrap();
    assert!(late.is_none(), "nobody waits for it: {late:?}");
    assert_eq!(holders(&locks).await, 0);
}

/// The server hangs for a moment; then all is well, and connecting takes a tenth of a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_client_connects_again() {
    let server = server::redis(&[]).await;
    let proxy = Proxy::to(server.address()).await;
    let locks = Locks::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let traffic = Traffic::start(&locks, Duration::from_millis(20));
    traffic.flows(LONG).await;
    proxy.blackhole();
    // Longer than one attempt to connect takes.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    proxy.pass();
    proxy.delay(Way::Down, Duration::from_millis(100));
    traffic.flows(LONG).await;
}
