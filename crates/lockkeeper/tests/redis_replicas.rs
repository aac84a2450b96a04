//! `?replicas=k`: a grant counts only when so many replicas have it.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Error, Locks, Multi, Name};
use testkit::nodes::{Replicated, ask};
use testkit::proxy::{Proxy, Way};
use testkit::server;
use testkit::wait::{eventually, soon, within};

async fn connect(redis: &Replicated, options: &str) -> Locks {
    let address = redis.master().address();
    Locks::connect(&format!("redis://{address}{options}")).await.unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Nobody has it, and nobody waits for it.
async fn idle(locks: &Locks, of: &str) {
    let idle = async || {
        let status = locks.admin().show(&name(of)).await;
        status.is_ok_and(|status| status.holders.is_empty() && status.waiters.is_empty())
    };
    eventually("idle", idle).await;
}

/// A `WAIT` is under way. The last command of an idle connection may be a `WAIT` too.
async fn blocked(master: SocketAddr) {
    let blocked = async || ask(master, "INFO clients").await.contains("blocked_clients:1");
    eventually("a grant waits for its replicas", blocked).await;
}

fn missing(error: &Error) -> (u32, u32) {
    match error {
        Error::Replicas { wanted, reached, .. } => (*wanted, *reached),
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_counts_when_the_replicas_have_it() {
    let redis = Replicated::start(2, &[]).await;
    for options in ["?replicas=2", "?replicas=2&dialect=plain"] {
        let locks = connect(&redis, options).await;
        for _ in 0..20 {
            let guard = locks.mutex("x").lock().await.unwrap();
            for replica in &redis.servers[1..] {
                assert_eq!(ask(replica.address(), "EXISTS x").await, "1");
            }
            guard.release().await.unwrap();
        }
    }
}

/// Where every write is on disk before it is answered, replicas have it there too, if the server can
/// say so: Valkey and Redis from 7.2 on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_is_on_the_disks_of_replicas_where_everything_is() {
    let redis = Replicated::start(1, &["--appendonly", "yes", "--appendfsync", "always"]).await;
    let master = redis.master().address();
    let locks = connect(&redis, "?replicas=1").await;
    let granted = async || locks.mutex("x").try_lock().await.is_ok_and(|guard| guard.is_some());
    // A replica that has just come writes its log anew, and has nothing on disk before that is done.
    eventually("granted", granted).await;
    let known = ask(master, "COMMAND INFO WAITAOF").await.contains("waitaof");
    let asked = ask(master, "INFO commandstats").await;
    let [disk, memory] = ["cmdstat_waitaof:", "cmdstat_wait:"].map(|what| asked.contains(what));
    assert_eq!((disk, memory), (known, !known));
    // What was dropped is given back behind it.
    idle(&locks, "x").await;
    redis.servers[1].pause();
    let error = locks.mutex("x").try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(missing(&error), (1, 0));
    redis.servers[1].resume();
    eventually("it is back", granted).await;
}

/// The one by which the server gets its scripts: what waits for replicas has connections of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_has_gone_silent_before_the_first_grant_is_replaced() {
    let redis = Replicated::start(1, &[]).await;
    let proxy = Proxy::to(redis.master().address()).await;
    let locks = Locks::connect(&format!("redis://{}?replicas=1", proxy.address())).await.unwrap();
    proxy.silence();
    let guard = soon("granted", locks.mutex("x").lock()).await.unwrap();
    guard.release().await.unwrap();
}

/// All kinds, in both dialects, whoever waits or does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_replicas_undo_the_grant_and_say_so() {
    let redis = Replicated::start(1, &[]).await;
    redis.cut_off_replicas().await;
    for options in ["?replicas=1", "?replicas=1&dialect=plain"] {
        let locks = connect(&redis, options).await;
        let since = Instant::now();
        let second = Duration::from_secs(3);
        for error in [
            locks.mutex("x").try_lock().await.map(|_| ()).unwrap_err(),
            locks.mutex("x").lock_timeout(second).await.map(|_| ()).unwrap_err(),
            locks.mutex("x").fair().lock_timeout(second).await.map(|_| ()).unwrap_err(),
            locks.rw_lock("x").read_timeout(second).await.map(|_| ()).unwrap_err(),
            locks.rw_lock("x").write_timeout(second).await.map(|_| ()).unwrap_err(),
            locks.semaphore("s", 2).acquire_timeout(second).await.map(|_| ()).unwrap_err(),
        ] {
            assert_eq!(missing(&error), (1, 0));
            assert!(error.is_transient());
        }
        let took = Instant::now().since(since);
        assert!(took < Duration::from_secs(16), "six that give up in time: {took:?}");
        for of in ["x", "s"] {
            idle(&locks, of).await;
        }
        let multi = Multi::new([locks.mutex("a"), locks.mutex("b")]);
        assert_eq!(missing(&multi.lock_timeout(second).await.map(|_| ()).unwrap_err()), (1, 0));
        idle(&locks, "a").await;
        idle(&locks, "b").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_reached_is_reported() {
    let redis = Replicated::start(2, &[]).await;
    let [one, two] = [connect(&redis, "?replicas=1").await, connect(&redis, "?replicas=2").await];
    redis.servers[2].pause();
    one.mutex("x").lock().await.unwrap().release().await.unwrap();
    let error = two.mutex("x").try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(missing(&error), (2, 1));
    redis.servers[2].resume();
    eventually("it is back", async || two.mutex("x").try_lock().await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_granted_when_the_replicas_are_back() {
    let redis = Replicated::start(1, &[]).await;
    let locks = connect(&redis, "?replicas=1").await;
    let token = locks.mutex("x").lock().await.unwrap().token();
    redis.cut_off_replicas().await;
    let error = soon("an error", locks.mutex("x").lock()).await.map(|_| ()).unwrap_err();
    assert_eq!(missing(&error), (1, 0));
    redis.mend();
    let granted = async || {
        let Ok(guard) = locks.mutex("x").lock().await else { return false };
        assert!(guard.token() > token);
        assert_eq!(ask(redis.servers[1].address(), "EXISTS x").await, "1");
        guard.release().await.is_ok()
    };
    eventually("acknowledged again", granted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_counts_when_the_replicas_have_it() {
    let redis = Replicated::start(1, &[]).await;
    let (plain, safe) = (connect(&redis, "").await, connect(&redis, "?replicas=1").await);
    for cut in [false, true] {
        let held = plain.mutex("x").lock().await.unwrap();
        let waiting = tokio::spawn({
            let mutex = safe.mutex("x");
            async move { mutex.lock_timeout(Duration::from_secs(5)).await }
        });
        let queued = async || plain.admin().show(&name("x")).await.unwrap().waiters.len() == 1;
        eventually("in line", queued).await;
        if cut {
            redis.cut_off_replicas().await;
        }
        held.release().await.unwrap();
        let granted = soon("handed over", waiting).await.unwrap();
        if cut {
            assert_eq!(missing(&granted.map(|_| ()).unwrap_err()), (1, 0));
        } else {
            assert_eq!(ask(redis.servers[1].address(), "EXISTS x").await, "1");
            granted.unwrap().release().await.unwrap();
        }
        idle(&plain, "x").await;
    }
}

/// Another server would let it end when the last renewal that it knows of says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_no_replica_has_does_not_count() {
    let redis = Replicated::start(1, &[]).await;
    let locks = connect(&redis, "?replicas=1").await.ttl(Duration::from_secs(3));
    let (mutex, reader) = (locks.mutex("x"), locks.rw_lock("y"));
    let guards = [mutex.lock().await.unwrap(), reader.read().await.unwrap()];
    let before: Vec<_> = guards.iter().map(|guard| guard.expires_at().unwrap()).collect();
    for (guard, before) in guards.iter().zip(&before) {
        eventually("renewed", async || guard.expires_at().unwrap() > *before).await;
    }
    redis.cut_off_replicas().await;
    for guard in &guards {
        soon("lost", guard.lost()).await;
        assert!(Instant::now() < guard.expires_at().unwrap(), "before it ends");
    }
}

/// A grant that nobody acknowledges holds up neither renewals nor releases of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_replicas_holds_nobody_up() {
    let redis = Replicated::start(1, &[]).await;
    let locks = connect(&redis, "?replicas=1").await;
    let held = locks.mutex("held").lock().await.unwrap();
    redis.servers[1].pause();
    let asking: Vec<_> = (0..30)
        .map(|number| {
            let mutex = locks.mutex(format!("x{number}").as_str());
            tokio::spawn(
                async move { mutex.lock_timeout(Duration::from_secs(3)).await.map(|_| ()) },
            )
        })
        .collect();
    let since = Instant::now();
    held.release().await.unwrap();
    assert!(Instant::now().since(since) < Duration::from_secs(1));
    for asking in asking {
        soon("an answer", asking).await.unwrap().unwrap_err();
    }
    assert!(Instant::now().since(since) < Duration::from_secs(8), "deadlines are kept");
    redis.servers[1].resume();
    for number in 0..30 {
        idle(&locks, &format!("x{number}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_replicas_is_an_error_and_not_a_grant() {
    let redis = Replicated::start(0, &[]).await;
    let locks = connect(&redis, "?replicas=1").await;
    let error = locks.mutex("x").try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(missing(&error), (1, 0));
    assert!(error.to_string().contains("0 of the 1 replicas"), "{error}");
}

/// As OPERATIONS advises: then a master without replicas does not even let us give back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_too_few_have_is_given_back_when_the_server_lets_us() {
    let redis = Replicated::start(1, &[]).await;
    let (master, locks) = (redis.master().address(), connect(&redis, "?replicas=1").await);
    locks.mutex("warm").lock().await.unwrap().release().await.unwrap();
    redis.servers[1].pause();
    let mutex = locks.mutex("x");
    let asking = tokio::spawn(async move { mutex.try_lock().await.map(|_| ()) });
    blocked(master).await;
    ask(master, "CONFIG SET min-replicas-to-write 2").await;
    assert_eq!(missing(&soon("an error", asking).await.unwrap().unwrap_err()), (1, 0));
    assert_eq!(ask(master, "EXISTS x").await, "1", "we were not let");
    ask(master, "CONFIG SET min-replicas-to-write 0").await;
    // Long before its lease ends.
    let gone = async || ask(master, "EXISTS x").await == "0";
    within(Duration::from_secs(10), "given back", gone).await;
    redis.servers[1].resume();
}

/// A fail-over leaves the new master without replicas for a moment: who waits goes on waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_lives_through_too_few_replicas_to_write() {
    let redis = Replicated::start(1, &[]).await;
    let (master, locks) = (redis.master().address(), connect(&redis, "").await);
    ask(master, "CONFIG SET min-replicas-to-write 2").await;
    let mutex = locks.mutex("x");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let refused = async || ask(master, "INFO errorstats").await.contains("errorstat_NOREPLICAS");
    eventually("refused", refused).await;
    ask(master, "CONFIG SET min-replicas-to-write 0").await;
    soon("granted", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// The master is demoted while a grant waits for its replicas, and is the master again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_replicas_lives_through_a_demotion() {
    let redis = Replicated::start(1, &[]).await;
    let (master, locks) = (redis.master().address(), connect(&redis, "?replicas=1").await);
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    redis.servers[1].pause();
    let mutex = locks.mutex("x");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    blocked(master).await;
    ask(master, "REPLICAOF 127.0.0.1 1").await;
    ask(master, "REPLICAOF NO ONE").await;
    redis.servers[1].resume();
    soon("granted", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// A slow replica and many who wait: those who hold are renewed all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_does_not_cost_the_holders_their_locks() {
    let master = server::redis(&[]).await;
    let proxy = Proxy::to(master.address()).await;
    let port = proxy.address().port().to_string();
    let _replica = server::redis(&["--replicaof", "127.0.0.1", &port]).await;
    let url = format!("redis://{}", master.address());
    let [plain, safe] = [
        Locks::connect(&url).await.unwrap(),
        Locks::connect(&format!("{url}?replicas=1")).await.unwrap(),
    ];
    eventually("acknowledged", async || safe.mutex("w").try_lock().await.is_ok()).await;
    let mut held = Vec::new();
    for number in 0..60 {
        held.push(plain.mutex(format!("b{number}").as_str()).lock().await.unwrap());
    }
    let guard = safe.ttl(Duration::from_secs(6)).mutex("h").lock().await.unwrap();
    // The proxy may be twice as late.
    proxy.delay(Way::Up, Duration::from_millis(400));
    let waiting: Vec<_> = (0..60)
        .map(|number| {
            let mutex = safe.mutex(format!("b{number}").as_str());
            tokio::spawn(async move { mutex.lock().await.map(|_| ()) })
        })
        .collect();
    let until = Instant::now() + Duration::from_secs(12);
    eventually("twice the time to live", async || Instant::now() > until || guard.is_lost()).await;
    assert!(!guard.is_lost(), "renewed although many wait");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}
