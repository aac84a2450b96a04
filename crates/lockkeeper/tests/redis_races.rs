//! What comes late, or from where nobody expects it.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Error, Guard, Locks, Name};
use testkit::proxy::{Proxy, Way};
use testkit::relay::Relay;
use testkit::server::{self, Server};
use testkit::wait::{eventually, soon};
use tokio::task::JoinHandle;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn connect(server: &Server, options: &str) -> Locks {
    Locks::connect(&format!("redis://{}{options}", server.address())).await.unwrap()
}

async fn through(server: &Server) -> (Locks, Relay) {
    let relay = Relay::to(server.address()).await;
    (Locks::connect(&format!("redis://{}", relay.address())).await.unwrap(), relay)
}

/// What somebody else does.
async fn raw<T: redis::FromRedisValue>(server: &Server, words: &str) -> T {
    let client = redis::Client::open(format!("redis://{}", server.address())).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query_async(&mut connection).await.unwrap()
}

/// How many scripts clients have called so far.
async fn calls(server: &Server) -> u64 {
    let info: String = raw(server, "INFO commandstats").await;
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// Lets go of the command that the relay has kept back, and waits until it has arrived.
async fn arrives_late(server: &Server, relay: &Relay) {
    let before = calls(server).await;
    relay.let_go();
    eventually("the late command", async || calls(server).await > before).await;
}

fn x() -> Name {
    "x".parse().unwrap()
}

/// Waits for `x`, and is in line as number `place` when this returns.
async fn in_line(locks: &Locks, place: usize) -> JoinHandle<Guard> {
    let mutex = locks.mutex("x").fair();
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    let queued = async || locks.admin().show(&x()).await.unwrap().waiters.len() == place;
    eventually("in line", queued).await;
    waiting
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_is_told_after_it_has_ended_is_not_believed() {
    let server = server::redis(&[]).await;
    let (direct, other) = (connect(&server, "").await, connect(&server, "").await);
    let (late, relay) = through(&server).await;
    let held = direct.mutex("x").fair().lock().await.unwrap();
    // Its grant lasts a second and is told after more than that.
    let waiting = in_line(&late.ttl(secs(1)), 1).await;
    let next = in_line(&other, 2).await;
    relay.delay_messages(Duration::from_millis(1800));
    held.release().await.unwrap();
    let next = soon("the next one's turn", next).await.unwrap();
    tokio::time::timeout(secs(4), waiting).await.expect_err("it is held by another");
    assert!(!next.is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_copy_of_the_request_does_not_shorten_the_lease() {
    let server = server::redis(&[]).await;
    // So that the scripts are known.
    connect(&server, "").await.mutex("x").lock().await.unwrap().release().await.unwrap();
    let (locks, relay) = through(&server).await;
    relay.hold_commands();
    let guard = locks.lease(secs(2)).mutex("x").fair().lock().await.unwrap();
    guard.renew(secs(60)).await.unwrap();
    arrives_late(&server, &relay).await;
    let left: i64 = raw(&server, "PTTL x").await;
    assert!(left > 50_000, "{left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_renewal_does_not_shorten_a_later_one() {
    let server = server::redis(&[]).await;
    let direct = connect(&server, "").await;
    for shared in [false, true] {
        // So that the scripts are known.
        direct.lease(secs(9)).rw_lock("w").read().await.unwrap().renew(secs(9)).await.unwrap();
        direct.lease(secs(9)).mutex("v").lock().await.unwrap().renew(secs(9)).await.unwrap();
        let (locks, relay) = through(&server).await;
        let locks = locks.lease(secs(60));
        let guard = if shared {
            locks.rw_lock("x").read().await.unwrap()
        } else {
            locks.mutex("x").fair().lock().await.unwrap()
        };
        relay.hold_commands();
        let error = guard.renew(secs(4)).await.unwrap_err();
        assert!(matches!(error, Error::Unknown { .. }), "{error}");
        guard.renew(secs(60)).await.unwrap();
        arrives_late(&server, &relay).await;
        let left: i64 = raw(&server, "PTTL x").await;
        assert!(left > 50_000, "{left}");
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_eviction_does_not_concern_whoever_came_since() {
    let server = server::redis(&[]).await;
    let direct = connect(&server, "").await;
    direct.admin().evict(&x(), "so that the script is known").await.unwrap();
    let (operator, relay) = through(&server).await;
    operator.admin().show(&x()).await.unwrap();
    let stuck = direct.mutex("x").fair().lock().await.unwrap();
    relay.delay_replies(Duration::from_millis(100));
    let evicting = tokio::spawn(async move { operator.admin().evict(&x(), "stuck").await });
    // Between its look and its request.
    tokio::time::sleep(Duration::from_millis(50)).await;
    relay.hold_commands();
    evicting.await.unwrap().unwrap_err();
    direct.admin().evict(&x(), "stuck").await.unwrap();
    assert_eq!(soon("told", stuck.lost()).await, Cause::Evicted("stuck".into()));
    stuck.release().await.unwrap_err();
    let innocent = direct.mutex("x").fair().lock().await.unwrap();
    arrives_late(&server, &relay).await;
    let shown = direct.admin().show(&x()).await.unwrap();
    assert_eq!(shown.holders[0].token, innocent.token(), "although the last token is a larger one");
    assert!(!innocent.is_lost());
    innocent.release().await.unwrap();
}

#[test]
fn a_renewal_in_a_runtime_that_ends_does_not_stop_the_others() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(server::redis(&[]));
    let locks = runtime.block_on(connect(&server, "?ttl=3s"));
    let guard = runtime.block_on(locks.mutex("x").lock()).unwrap();
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let gone = other.block_on(async {
        tokio::time::timeout(Duration::from_millis(2), guard.renew(secs(3))).await
    });
    gone.expect_err("it goes together with others, a little later");
    drop(other);
    runtime.block_on(async {
        for _ in 0..2 {
            let before = guard.expires_at().unwrap();
            eventually("renewed", async || guard.expires_at().unwrap() > before).await;
        }
    });
    assert!(!guard.is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_dialect_is_refused_and_breaks_nothing() {
    let server = server::redis(&[]).await;
    let dialects = [connect(&server, "").await, connect(&server, "?dialect=plain").await];
    for (mine, theirs) in [(0, 1), (1, 0)] {
        let guard = dialects[mine].mutex("x").lock().await.unwrap();
        let waiting = in_line(&dialects[mine], 1).await;
        dialects[theirs].mutex("x").try_lock().await.unwrap_err();
        let listed = dialects[theirs].admin().list().await.unwrap();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
        soon("its turn", waiting).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multi_lock_that_is_evicted_before_the_reply_is_told() {
    let server = server::redis(&[]).await;
    let direct = connect(&server, "").await;
    direct.multi(["x", "y"]).lock().await.unwrap().release().await.unwrap();
    let (locks, relay) = through(&server).await;
    relay.delay_replies(Duration::from_millis(400));
    let locks = locks.lease(secs(60));
    let taking = tokio::spawn(async move { locks.multi(["x", "y"]).lock().await.unwrap() });
    let taken = async || direct.admin().show(&x()).await.unwrap().holders.len() == 1;
    eventually("taken", taken).await;
    direct.admin().evict(&x(), "early").await.unwrap();
    let both = taking.await.unwrap();
    let (name, cause) = soon("told", both.lost()).await;
    assert_eq!((name, cause), (&x(), Cause::Evicted("early".into())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_behind_a_silent_connection_is_told() {
    let server = server::redis(&[]).await;
    let direct = connect(&server, "").await;
    let proxy = Proxy::to(server.address()).await;
    let locks = Locks::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let guard = locks.lease(secs(120)).mutex("x").lock().await.unwrap();
    proxy.silence();
    direct.admin().evict(&x(), "stuck").await.unwrap();
    assert_eq!(soon("told", guard.lost()).await, Cause::Evicted("stuck".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_was_handed_over_is_soon_as_good_as_any() {
    let server = server::redis(&[]).await;
    let direct = connect(&server, "").await;
    let proxy = Proxy::to(server.address()).await;
    let locks = Locks::connect(&format!("redis://{}?ttl=60s", proxy.address())).await.unwrap();
    let held = direct.mutex("x").lock().await.unwrap();
    let waiting = in_line(&locks, 1).await;
    held.release().await.unwrap();
    let guard = soon("handed over", waiting).await.unwrap();
    let whole = async || guard.remaining().unwrap() > secs(40);
    eventually("whole", whole).await;
    proxy.freeze();
    let later = Instant::now() + secs(4);
    eventually("an outage", async || Instant::now() > later).await;
    proxy.pass();
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_come_back_into_a_queue_that_was_deleted() {
    let server = server::redis(&[]).await;
    let locks = connect(&server, "").await;
    let held = locks.mutex("x").fair().lock().await.unwrap();
    let waiting = in_line(&locks, 1).await;
    let keys = "lockkeeper_queue:{x} redisson_lock_queue:{x}";
    raw::<i64>(&server, &format!("DEL {keys}")).await;
    let back = async || raw::<i64>(&server, &format!("EXISTS {keys}")).await == 2;
    eventually("in line again", back).await;
    held.release().await.unwrap();
    soon("its turn", waiting).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_client_is_gone_is_passed_over_at_once() {
    let server = server::redis(&[]).await;
    let (locks, other) = (connect(&server, "").await, connect(&server, "").await);
    let held = locks.mutex("x").fair().lock().await.unwrap();
    let dying = tokio::runtime::Runtime::new().unwrap();
    let gone = format!("redis://{}", server.address());
    dying.spawn(async move {
        let locks = Locks::connect(&gone).await.unwrap();
        let _ = locks.mutex("x").fair().lock().await;
    });
    let queued = async || locks.admin().show(&x()).await.unwrap().waiters.len() == 1;
    eventually("in line", queued).await;
    let waiting = in_line(&other, 2).await;
    dying.shutdown_background();
    let gone = async || {
        let channels: Vec<String> = raw(&server, "PUBSUB CHANNELS lockkeeper_wake:*").await;
        channels.len() == 2
    };
    eventually("gone", gone).await;
    let since = Instant::now();
    held.release().await.unwrap();
    let guard = soon("its turn", waiting).await.unwrap();
    assert!(Instant::now().since(since) < secs(1), "not after the other's place has expired");
    guard.release().await.unwrap();
    // And nothing is left of it in the end.
    let left = async || {
        let keys: Vec<String> = raw(&server, "KEYS *").await;
        let mut forever = 0;
        for key in keys.iter().filter(|key| !key.starts_with("redisson_lock_token:")) {
            forever += i32::from(raw::<i64>(&server, &format!("PTTL {key}")).await == -1);
        }
        forever == 0
    };
    eventually("every key has a TTL", left).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hash_that_only_looks_like_a_lock_is_left_alone() {
    let server = server::redis(&[]).await;
    let locks = connect(&server, "").await;
    raw::<i64>(&server, "HSET x mode read path /etc/motd owner bob").await;
    locks.admin().show(&x()).await.unwrap();
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    assert_eq!(raw::<i64>(&server, "HLEN x").await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_that_only_a_listener_keeps_is_no_mutex_and_no_latch() {
    let server = server::redis(&[]).await;
    let locks = connect(&server, "").await;
    let client = redis::Client::open(format!("redis://{}", server.address())).unwrap();
    let mut listener = client.get_async_pubsub().await.unwrap();
    listener.subscribe("redisson_sc:{x}").await.unwrap();
    locks.semaphore("x", 2).acquire().await.unwrap().release().await.unwrap();
    let error = locks.mutex("x").try_lock().await.unwrap_err();
    assert!(matches!(error, Error::WrongKind { used_as: "semaphore", .. }), "{error}");
    assert_eq!(locks.latch("x").count_down().await.unwrap(), 0);
    locks.semaphore("x", 2).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_down_whose_reply_is_lost_counts_once() {
    let server = server::redis(&[]).await;
    let direct = connect(&server, "").await;
    let proxy = Proxy::to(server.address()).await;
    let locks = Locks::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    assert!(direct.latch("l").close(9).await.unwrap());
    assert_eq!(direct.latch("l").count_down().await.unwrap(), 8);
    proxy.lose_next_reply();
    assert_eq!(locks.latch("l").count_down().await.unwrap(), 7);
    assert!(proxy.lost_a_reply());
}

/// Wherever a connection is cut, in the middle of a request or of a reply: nothing is stuck, nothing is
/// held twice, and nothing is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_may_be_cut_at_any_point() {
    let server = server::redis(&[]).await;
    let direct = connect(&server, "").await;
    let proxy = Proxy::to(server.address()).await;
    let url = format!("redis://{}", proxy.address());
    let locks = Locks::connect(&url).await.unwrap().ttl(secs(2));
    // A request has some 700 bytes, a reply some 20, and there are three of each.
    let up = (0..2400).step_by(119).map(|bytes| (Way::Up, bytes));
    let down = (0..70).step_by(7).map(|bytes| (Way::Down, bytes));
    for (way, bytes) in up.chain(down) {
        proxy.cut_after(way, bytes);
        let taking = locks.mutex("x").fair();
        let work = tokio::spawn(async move {
            let guard = taking.lock().await?;
            let renewed = guard.renew(secs(2)).await;
            renewed.and(guard.release().await)
        });
        // Long enough for the cut, then the way is free again.
        let cut = async || proxy.is_cut() || work.is_finished();
        eventually("cut, or done before", cut).await;
        proxy.pass();
        // Done, or an outcome that is not known: never a hang.
        let _ = soon("an end", work).await.unwrap();
        let next = soon("free for others", direct.mutex("x").fair().lock()).await.unwrap();
        next.release().await.unwrap();
        let idle = async || {
            let status = direct.admin().show(&x()).await.unwrap();
            status.holders.is_empty() && status.waiters.is_empty()
        };
        eventually("nothing is left behind", idle).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loads_its_data_is_waited_for() {
    let slow = ["--enable-debug-command", "yes", "--key-load-delay", "300"];
    let often = ["--loading-process-events-interval-bytes", "1024"];
    let server = server::redis(&[&slow[..], &often[..]].concat()).await;
    let locks = connect(&server, "").await;
    // So that the script is known: it is forgotten by a restart, not by loading.
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    raw::<()>(&server, "DEBUG POPULATE 5000 filler 10").await;
    let client = redis::Client::open(format!("redis://{}", server.address())).unwrap();
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let mut operator = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    let reloading = tokio::spawn(async move {
        redis::cmd("DEBUG").arg("RELOAD").query_async::<()>(&mut operator).await.unwrap();
    });
    let loading = async || {
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let answer =
            redis::cmd("GET").arg("x").query_async::<Option<String>>(&mut connection).await;
        answer.is_err_and(|error| error.code() == Some("LOADING")) || reloading.is_finished()
    };
    eventually("loading", loading).await;
    assert!(!reloading.is_finished(), "it was too quick to be seen");
    let guard = soon("waits for it", locks.mutex("x").lock()).await.unwrap();
    guard.release().await.unwrap();
    reloading.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bounds_hold_when_nobody_answers() {
    let server = server::redis(&[]).await;
    let proxy = Proxy::to(server.address()).await;
    let locks = Locks::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    assert!(locks.latch("l").close(1).await.unwrap());
    let mut guards = Vec::new();
    for at in 0..8 {
        guards.push(locks.mutex(format!("{at}")).fair().lock().await.unwrap());
    }
    proxy.freeze();
    let since = Instant::now();
    assert!(!locks.latch("l").wait_timeout(Duration::from_millis(100)).await.unwrap());
    assert!(Instant::now().since(since) < secs(1));
    let since = Instant::now();
    assert_eq!(locks.shutdown(Duration::from_millis(100)).await.left, 8);
    assert!(Instant::now().since(since) < secs(5), "all at once, not one after the other");
}
