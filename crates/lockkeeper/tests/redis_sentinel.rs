//! What happens to locks when Sentinel replaces their master, or somebody else does.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Error, Guard, Locks, Name};
use testkit::nodes::{MASTER, SETTLE, Sentinels, ask};
use testkit::traffic::Traffic;
use testkit::wait::{eventually, soon, within};

/// Short, because every test that kills a master waits for it.
const DOWN: Duration = Duration::from_secs(1);

async fn connect(redis: &Sentinels, options: &str) -> Locks {
    Locks::connect(&format!("{}{options}", redis.url())).await.unwrap()
}

async fn waiters(locks: &Locks) -> usize {
    let name: Name = "x".parse().unwrap();
    locks.admin().show(&name).await.map_or(0, |status| status.waiters.len())
}

/// Releases; where the answer is not known because of the fail-over, it is tried again behind us.
async fn let_go(guard: Guard, locks: &Locks) {
    let name = guard.name().clone();
    let released = guard.release().await;
    assert!(matches!(released, Ok(()) | Err(Error::Unknown { .. })), "{released:?}");
    let free = async || {
        let status = locks.admin().show(&name).await;
        status.is_ok_and(|status| status.holders.is_empty())
    };
    within(SETTLE, "free", free).await;
}

/// The holder has not released, its lease has not ended, and another one is granted the lock: with a
/// token that is no larger, because the counter was lost with the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_replicas_a_fail_over_may_grant_twice() {
    let mut redis = Sentinels::start(DOWN).await;
    let [one, two] = [connect(&redis, "").await, connect(&redis, "").await];
    redis.nodes.cut_off_replicas().await;
    let first = one.mutex("x").lock().await.unwrap();
    let ends = first.expires_at().unwrap();
    redis.nodes.servers[0].kill();
    redis.nodes.mend();
    redis.master_other_than(0).await;
    let second = two.mutex("x").lock_timeout(SETTLE).await.unwrap();
    assert!(Instant::now() < ends, "the first one has not ended");
    assert!(second.token() <= first.token(), "the counter was lost as well");
    // It is told as soon as it has found the new master.
    soon("the first one is lost", first.lost()).await;
    second.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_replicas_a_grant_that_would_be_lost_is_refused() {
    let mut redis = Sentinels::start(DOWN).await;
    let locks = connect(&redis, "?replicas=1").await;
    redis.nodes.cut_off_replicas().await;
    let error = locks.mutex("x").try_lock().await.map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Replicas { wanted: 1, reached: 0, .. }), "{error}");
    redis.nodes.servers[0].kill();
    redis.nodes.mend();
    redis.master_other_than(0).await;
    let guard = locks.mutex("x").lock_timeout(SETTLE).await.unwrap();
    let_go(guard, &locks).await;
}

/// Killed right after the grant: whoever has been told that it holds the lock does hold it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_replicas_a_hold_survives_a_fail_over() {
    let mut redis = Sentinels::start(DOWN).await;
    let [one, two] = [connect(&redis, "?replicas=2").await, connect(&redis, "?replicas=1").await];
    let ttl = Duration::from_secs(20);
    let guard = one.ttl(ttl).mutex("x").lock().await.unwrap();
    redis.nodes.servers[0].kill();
    let killed = Instant::now();
    let next = redis.master_other_than(0).await;
    assert_eq!(ask(redis.nodes.servers[next].address(), "EXISTS x").await, "1");
    assert!(two.mutex("x").try_lock().await.unwrap().is_none(), "held");
    // One replica is left, so two cannot acknowledge a renewal. What two have acknowledged stays.
    assert!(!guard.is_lost());
    let token = guard.token();
    let_go(guard, &two).await;
    let guard = two.mutex("x").lock_timeout(SETTLE).await.unwrap();
    assert!(guard.token() > token, "tokens grow over the fail-over");
    assert!(Instant::now().since(killed) < SETTLE);
    let_go(guard, &two).await;
}

/// And is renewed at the new master, by a client that did nothing but hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_is_renewed_at_the_new_master() {
    let mut redis = Sentinels::start(DOWN).await;
    let locks = connect(&redis, "?replicas=1").await.ttl(Duration::from_secs(20));
    let guards = [
        locks.mutex("x").lock().await.unwrap(),
        locks.rw_lock("y").read().await.unwrap(),
        locks.semaphore("z", 3).acquire().await.unwrap(),
    ];
    // Whatever was acknowledged by one, the other has soon.
    for replica in &redis.nodes.servers[1..] {
        eventually("replicated", async || ask(replica.address(), "EXISTS x y z").await == "3")
            .await;
    }
    redis.nodes.servers[0].kill();
    let next = redis.master_other_than(0).await;
    let address = redis.nodes.servers[next].address();
    for guard in &guards {
        let before = guard.expires_at().unwrap();
        let renewed = async || guard.is_lost() || guard.expires_at().unwrap() > before;
        within(SETTLE, "renewed", renewed).await;
        assert!(!guard.is_lost());
    }
    let left: u64 = ask(address, "PTTL x").await.parse().unwrap();
    assert!(left > 5000, "by the new master: {left}");
    for guard in guards {
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_survives_a_fail_over() {
    let mut redis = Sentinels::start(DOWN).await;
    let [one, two] = [connect(&redis, "?replicas=2").await, connect(&redis, "").await];
    let guard = one.ttl(Duration::from_secs(40)).mutex("x").lock().await.unwrap();
    let mut waiting = Vec::new();
    for fair in [false, true] {
        let mutex = if fair { two.mutex("x").fair() } else { two.mutex("x") };
        waiting.push(tokio::spawn(async move {
            let guard = mutex.lock().await?;
            guard.release().await
        }));
    }
    eventually("in line", async || waiters(&two).await == 2).await;
    redis.nodes.servers[0].kill();
    redis.master_other_than(0).await;
    within(SETTLE, "in line again", async || waiters(&two).await == 2).await;
    let released = guard.release().await;
    assert!(matches!(released, Ok(()) | Err(Error::Unknown { .. })), "{released:?}");
    for waiting in waiting {
        soon("its turn", waiting).await.unwrap().unwrap();
    }
}

/// By hand, and without any failure: the old master lives on as a replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_was_demoted_is_left() {
    let redis = Sentinels::start(SETTLE).await;
    let locks = connect(&redis, "").await;
    let guard = locks.mutex("x").lock().await.unwrap();
    for replica in &redis.nodes.servers[1..] {
        eventually("replicated", async || ask(replica.address(), "EXISTS x").await == "1").await;
    }
    let answer = ask(redis.sentinels[0].address(), &format!("SENTINEL FAILOVER {MASTER}")).await;
    assert_eq!(answer, "OK");
    let next = redis.master_other_than(0).await;
    let moved = async || {
        let Ok(Some(guard)) = locks.mutex("y").try_lock().await else { return false };
        let there = ask(redis.nodes.servers[next].address(), "EXISTS y").await == "1";
        guard.release().await.is_ok() && there
    };
    within(SETTLE, "grants come from the new master", moved).await;
    assert!(!guard.is_lost());
    let_go(guard, &locks).await;
}

/// The sentinels have not noticed yet: then there is no master, and no answer but an error in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_never_taken_for_a_master() {
    let redis = Sentinels::start(SETTLE).await;
    let locks = connect(&redis, "").await;
    let second = Duration::from_secs(1);
    let held = locks.ttl(Duration::from_secs(5)).mutex("held").lock().await.unwrap();
    let port = redis.nodes.servers[1].address().port();
    ask(redis.nodes.master().address(), &format!("REPLICAOF 127.0.0.1 {port}")).await;
    let since = Instant::now();
    locks.mutex("x").lock_timeout(second).await.map(|_| ()).unwrap_err();
    assert!(Instant::now().since(since) < 3 * second, "the deadline is kept");
    let error = soon("an error", Locks::connect(&redis.url())).await.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("is not a master"), "{error}");
    soon("lost", held.lost()).await;
    assert!(Instant::now() < held.expires_at().unwrap(), "before it ends");
}

/// Started again as it was, it takes itself for a master until a sentinel tells it otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_master_that_comes_back_empty_is_not_asked() {
    let mut redis = Sentinels::start(DOWN).await;
    let [one, two] = [connect(&redis, "?replicas=2").await, connect(&redis, "").await];
    let guard = one.ttl(Duration::from_secs(60)).mutex("x").lock().await.unwrap();
    redis.nodes.servers[0].kill();
    redis.master_other_than(0).await;
    redis.nodes.servers[0].start_again().await;
    for _ in 0..20 {
        assert!(two.mutex("x").try_lock().await.unwrap().is_none(), "held");
        let fresh = connect(&redis, "").await;
        assert!(fresh.mutex("x").try_lock().await.unwrap().is_none(), "held");
    }
    let_go(guard, &two).await;
}

/// It answers nobody, and when it goes on it takes itself for the master for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_is_left() {
    let redis = Sentinels::start(DOWN).await;
    let [one, two] = [connect(&redis, "?replicas=2").await, connect(&redis, "").await];
    let guard = one.ttl(Duration::from_secs(60)).mutex("x").lock().await.unwrap();
    redis.nodes.servers[0].pause();
    let since = Instant::now();
    let second = Duration::from_secs(1);
    two.mutex("y").lock_timeout(second).await.map(|_| ()).unwrap_err();
    assert!(Instant::now().since(since) < 3 * second, "the deadline is kept");
    let next = redis.master_other_than(0).await;
    // Another name: the old master will take in what was sent to it before.
    let other = two.mutex("z").lock_timeout(SETTLE).await.unwrap();
    assert_eq!(ask(redis.nodes.servers[next].address(), "EXISTS z").await, "1");
    redis.nodes.servers[0].resume();
    for _ in 0..20 {
        assert!(two.mutex("x").try_lock().await.unwrap().is_none(), "held");
    }
    assert!(!other.is_lost() && !guard.is_lost());
    // Who has done nothing but hold finds out as well, and does not release at the old one.
    let moved = async || {
        let status = one.admin().show(other.name()).await;
        status.is_ok_and(|status| status.holders.len() == 1)
    };
    within(SETTLE, "the new master is found", moved).await;
    let_go(other, &two).await;
    let_go(guard, &two).await;
}

/// A host dies with its master and its sentinel, while many want something.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_client_follows_when_a_sentinel_dies_with_the_master() {
    let redis = Sentinels::start(DOWN).await;
    let traffic = Traffic::start(&connect(&redis, "").await, Duration::from_millis(50));
    traffic.flows(SETTLE).await;
    redis.nodes.servers[0].pause();
    redis.sentinels[0].pause();
    let old = redis.nodes.servers[0].address().port().to_string();
    let question = format!("SENTINEL GET-MASTER-ADDR-BY-NAME {MASTER}");
    let moved = async || !ask(redis.sentinels[1].address(), &question).await.contains(&old);
    within(SETTLE, "another master", moved).await;
    traffic.flows(Duration::from_secs(15)).await;
}

/// A sentinel that was away names the old master, which does not know better either. The others have
/// named the new one, and cannot be reached for a moment, nor can that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_known_is_not_forgotten_for_what_is_older() {
    let mut redis = Sentinels::start(DOWN).await;
    let [one, two] = [connect(&redis, "").await, connect(&redis, "").await];
    redis.nodes.servers[0].pause();
    redis.sentinels[0].kill();
    let held = one.ttl(SETTLE).mutex("x").lock_timeout(SETTLE).await.unwrap();
    let knows = async || {
        let status = two.admin().show(held.name()).await;
        status.is_ok_and(|status| status.holders.len() == 1)
    };
    within(SETTLE, "held, and the other one knows where", knows).await;
    let old = redis.nodes.servers[0].address();
    for server in redis.nodes.servers[1..].iter().chain(&redis.sentinels[1..]) {
        server.pause();
    }
    redis.nodes.servers[0].resume();
    redis.sentinels[0].start_again().await;
    assert!(ask(old, "ROLE").await.starts_with("master"), "it does not know better");
    let second = two.mutex("x").lock_timeout(Duration::from_secs(4)).await;
    assert!(second.is_err(), "not granted by a master that we know to be replaced");
    for server in redis.nodes.servers[1..].iter().chain(&redis.sentinels[1..]) {
        server.resume();
    }
    drop(held);
}

/// What was sent to a master before it was replaced is answered when the new one is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_of_a_master_that_was_replaced_is_not_believed() {
    let redis = Sentinels::start(DOWN).await;
    let locks = connect(&redis, "").await;
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    redis.nodes.servers[0].pause();
    let answer = ask(redis.sentinels[0].address(), &format!("SENTINEL FAILOVER {MASTER}")).await;
    assert_eq!(answer, "OK");
    let next = redis.nodes.servers[redis.master_other_than(0).await].address();
    // Until the client knows: of what it has sent to the old one by then, the last is not given up yet.
    let mut asking: Vec<(Name, tokio::task::JoinHandle<_>)> = Vec::new();
    let mut exists = "EXISTS".to_owned();
    while asking.is_empty() || ask(next, &exists).await == "0" {
        let name: Name = format!("x{}", asking.len()).parse().unwrap();
        let mutex = locks.mutex(&name);
        exists = format!("{exists} {name}");
        asking.push((name, tokio::spawn(async move { mutex.lock().await })));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    redis.nodes.servers[0].resume();
    for (name, asking) in asking {
        let guard = soon("granted", asking).await.unwrap().unwrap();
        assert_eq!(ask(next, &format!("EXISTS {name}")).await, "1", "{name}");
        drop(guard);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_are_for_servers_and_sentinels() {
    let server = ["--requirepass", "s3cret", "--masterauth", "s3cret"];
    for sentinel in ["", "requirepass s3cret\nsentinel sentinel-pass s3cret"] {
        let lines = format!("sentinel auth-pass {MASTER} s3cret\n{sentinel}");
        let redis = Sentinels::start_with(SETTLE, &server, &lines).await;
        let url = redis.url().replace("://", "://:s3cret@");
        let locks = Locks::connect(&url).await.unwrap();
        locks.mutex("x").lock().await.unwrap().release().await.unwrap();
        let error = Locks::connect(&redis.url()).await.map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("password"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_the_sentinels_is_said_in_time() {
    let mut redis = Sentinels::start(SETTLE).await;
    let wrong = redis.url().replace(MASTER, "other");
    let error = Locks::connect(&wrong).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    assert!(error.to_string().contains("knows no master called \"other\""), "{error}");
    // One is enough, and a stopped one costs no more than its time.
    redis.sentinels[0].kill();
    redis.sentinels[1].pause();
    let locks = soon("one sentinel is left", Locks::connect(&redis.url())).await.unwrap();
    redis.sentinels[2].kill();
    redis.sentinels[1].kill();
    let error = soon("none is left", Locks::connect(&redis.url())).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    // Who is connected already needs none.
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
}
