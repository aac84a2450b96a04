//! How the steps at a Redis server look from outside: what they cost and what others see of them.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Locks, Multi, Name};
use redis::{FromRedisValue, aio::MultiplexedConnection};
use testkit::proxy::Proxy;
use testkit::server::{self, Server};
use testkit::wait::{eventually, soon};

const JAVA: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:1";

/// A server, two clients of it, and somebody who looks and interferes.
struct Scene {
    server: Server,
    one: Locks,
    two: Locks,
    raw: MultiplexedConnection,
}

impl Scene {
    async fn set(options: &str) -> Self {
        let server = server::redis(&[]).await;
        let connect = async || {
            Locks::connect(&format!("redis://{}{options}", server.address())).await.unwrap()
        };
        let (one, two) = (connect().await, connect().await);
        let client = redis::Client::open(format!("redis://{}", server.address())).unwrap();
        let raw = client.get_multiplexed_async_connection().await.unwrap();
        Self { server, one, two, raw }
    }

    /// What somebody else does.
    async fn raw<T: FromRedisValue>(&self, words: &str) -> T {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        command.query_async(&mut self.raw.clone()).await.unwrap()
    }

    /// How often a command was called so far, from outside.
    async fn calls(&self, command: &str) -> u64 {
        let info: String = self.raw("INFO commandstats").await;
        let line = format!("cmdstat_{command}:calls=");
        let line = info.lines().find_map(|found| found.strip_prefix(&line));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    }

    async fn waiters(&self, count: usize) {
        let name = name("x");
        let queued = async || self.one.admin().show(&name).await.unwrap().waiters.len() == count;
        eventually("in line", queued).await;
    }
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_travels_with_the_release() {
    for options in ["", "?dialect=plain"] {
        let scene = Scene::set(options).await;
        // Once before, so that the scripts are known.
        scene.two.mutex("x").lock().await.unwrap().release().await.unwrap();
        for fair in [false, true] {
            let held = scene.one.mutex("x").lock().await.unwrap();
            let mutex = scene.two.mutex("x");
            let mutex = if fair { mutex.fair() } else { mutex };
            let waiting = tokio::spawn(async move { mutex.lock().await });
            scene.waiters(1).await;
            let before = scene.calls("evalsha").await;
            let token = held.token();
            held.release().await.unwrap();
            let guard = soon("handed over", waiting).await.unwrap().unwrap();
            assert_eq!(scene.calls("evalsha").await, before + 1, "the release alone");
            assert!(guard.token() > token);
            let first = guard.expires_at().unwrap();
            assert!(guard.remaining().unwrap() > Duration::from_secs(2), "{guard:?}");
            let longer = async || guard.remaining().unwrap() > Duration::from_secs(20);
            eventually("renewed to its whole time", longer).await;
            assert!(guard.expires_at().unwrap() > first);
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fixed_lease_that_is_handed_over_is_whole() {
    let scene = Scene::set("").await;
    let held = scene.one.mutex("x").lock().await.unwrap();
    let mutex = scene.two.lease(Duration::from_secs(60)).mutex("x");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    scene.waiters(1).await;
    held.release().await.unwrap();
    let guard = soon("handed over", waiting).await.unwrap().unwrap();
    assert!(guard.remaining().unwrap() > Duration::from_secs(30), "{guard:?}");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_go_together() {
    for options in ["?ttl=3s", "?ttl=3s&dialect=plain"] {
        let scene = Scene::set(options).await;
        let mutexes: Vec<_> = (0..300).map(|at| scene.one.mutex(format!("{at}"))).collect();
        let guards = join_all(mutexes.iter().map(|mutex| mutex.lock())).await;
        let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
        let ends: Vec<_> = guards.iter().map(|guard| guard.expires_at().unwrap()).collect();
        let before = scene.calls("evalsha").await;
        let renewed = async || {
            std::iter::zip(&guards, &ends).all(|(guard, end)| guard.expires_at().unwrap() > *end)
        };
        eventually("all renewed", renewed).await;
        let calls = scene.calls("evalsha").await - before;
        assert!(calls < 100, "{calls} commands for 300 locks");
        assert!(guards.iter().all(|guard| !guard.is_lost()));
        scene.raw::<i64>("DEL 7").await;
        assert_eq!(soon("the loss", guards[7].lost()).await, Cause::Gone);
        let lost = guards.iter().filter(|guard| guard.is_lost()).count();
        assert_eq!(lost, 1, "the others are not concerned");
    }
}

/// The same name under two prefixes is two locks, also as members of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multi_lock_takes_a_name_under_each_prefix() {
    let scene = Scene::set("").await;
    let url = |prefix: &str| format!("redis://{}?prefix={prefix}", scene.server.address());
    let [one, two] = [url("one/"), url("two/")];
    let [one, two] = [Locks::connect(&one).await.unwrap(), Locks::connect(&two).await.unwrap()];
    let both = Multi::new([one.mutex("x"), two.mutex("x")]).lock().await.unwrap();
    for key in ["one/x", "two/x"] {
        assert!(scene.two.mutex(key).try_lock().await.unwrap().is_none(), "{key}");
    }
    both.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_free_mutexes_are_taken_in_one_step() {
    for options in ["", "?dialect=plain"] {
        let scene = Scene::set(options).await;
        let names = ["a", "b", "c", "d", "x"];
        // Once before, so that the script is known.
        scene.one.multi(names).lock().await.unwrap().release().await.unwrap();
        let before = scene.calls("evalsha").await;
        let all = scene.one.multi(names).lock().await.unwrap();
        assert_eq!(scene.calls("evalsha").await, before + 1);
        for name in names {
            assert!(scene.two.mutex(name).try_lock().await.unwrap().is_none(), "{name}");
        }
        let mutex = scene.two.mutex("x");
        let waiting = tokio::spawn(async move { mutex.lock().await });
        scene.waiters(1).await;
        assert!(scene.two.multi(["x", "y"]).try_lock().await.unwrap().is_none());
        all.release().await.unwrap();
        let one = soon("woken", waiting).await.unwrap().unwrap();
        // Not all are free: then in order, waiting.
        let multi = scene.one.multi(names);
        let waiting = tokio::spawn(async move { multi.lock().await });
        scene.waiters(1).await;
        one.release().await.unwrap();
        soon("all of them", waiting).await.unwrap().unwrap().release().await.unwrap();
        assert!(scene.one.admin().list().await.unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_several_leaves_nothing_behind() {
    let scene = Scene::set("").await;
    let proxy = Proxy::to(scene.server.address()).await;
    let locks = Locks::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    proxy.lose_next_reply();
    let all = soon("taken all the same", locks.multi(["x", "y"]).lock()).await.unwrap();
    assert!(proxy.lost_a_reply());
    all.release().await.unwrap();
    let empty = async || scene.one.admin().list().await.unwrap().is_empty();
    eventually("nothing is left", empty).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_redisson_alone_are_listed_and_other_hashes_are_not() {
    let scene = Scene::set("").await;
    scene.raw::<i64>(&format!("HSET theirs {JAVA} 1")).await;
    scene.raw::<i64>(&format!("HSET theirs-too mode write {JAVA}:write 1")).await;
    scene.raw::<i64>("HSET customer name Ada age 36").await;
    let held = scene.one.mutex("ours").lock().await.unwrap();
    let seen = scene.two.admin().list().await.unwrap();
    let names: Vec<_> = seen.iter().map(|status| status.name.to_string()).collect();
    assert_eq!(names, ["ours", "theirs", "theirs-too"]);
    assert_eq!(seen[1].holders[0].owner.to_string(), JAVA);
    assert_eq!(seen[1].holders[0].lease_left, None, "it has no TTL");
    assert_eq!(seen[2].kind.as_deref(), Some("read-write lock"));
    assert_eq!(scene.calls("keys").await, 0);
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_tokens_are_exact() {
    for options in ["", "?dialect=plain"] {
        let scene = Scene::set(options).await;
        scene.raw::<()>("SET redisson_lock_token:{x} 9007199254740000").await;
        let held = scene.one.mutex("x").fair().lock().await.unwrap();
        assert_eq!(held.token().get(), 9_007_199_254_740_001);
        let mutex = scene.two.mutex("x").fair();
        let waiting = tokio::spawn(async move { mutex.lock().await });
        scene.waiters(1).await;
        let shown = scene.one.admin().show(&name("x")).await.unwrap();
        assert_eq!(shown.holders[0].token, held.token());
        held.release().await.unwrap();
        let next = soon("handed over", waiting).await.unwrap().unwrap();
        assert_eq!(next.token().get(), 9_007_199_254_740_002);
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_last_no_longer_than_what_they_stand_for() {
    let scene = Scene::set("").await;
    let long = scene.one.lease(Duration::from_secs(600)).rw_lock("x").read().await.unwrap();
    let short = scene.one.lease(Duration::from_secs(60)).rw_lock("x").read().await.unwrap();
    assert!(scene.raw::<i64>("PTTL x").await > 500_000);
    long.release().await.unwrap();
    assert!(scene.raw::<i64>("PTTL x").await <= 60_000);
    short.release().await.unwrap();
    assert!(scene.one.latch("l").close(3).await.unwrap());
    let whole: i64 = scene.raw("PTTL l").await;
    assert_eq!(scene.two.latch("l").count_down().await.unwrap(), 2);
    assert!((whole - scene.raw::<i64>("PTTL l").await).abs() < 60_000);
    assert_eq!(scene.two.latch("l").count_down().await.unwrap(), 1);
    assert_eq!(scene.two.latch("l").count_down().await.unwrap(), 0);
    let mine = scene.one.owned_by(&scene.one.new_owner());
    let outer = mine.mutex("m").lock().await.unwrap();
    let inner = mine.rw_lock("m").read().await.unwrap();
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    let permit = scene.two.semaphore("s", 2).acquire().await.unwrap();
    permit.release().await.unwrap();
    let left: Vec<String> = scene.raw("KEYS *").await;
    assert!(left.iter().all(|key| key.starts_with("redisson_lock_token:")), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_listens_like_redisson_gets_a_chance() {
    let scene = Scene::set("").await;
    let client = redis::Client::open(format!("redis://{}", scene.server.address())).unwrap();
    let mut listener = client.get_async_pubsub().await.unwrap();
    listener.subscribe("redisson_lock__channel:{x}").await.unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let busy = |locks: &Locks| {
        let (mutex, stop) = (locks.mutex("x"), std::sync::Arc::clone(&stop));
        tokio::spawn(async move {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                mutex.lock().await.unwrap().release().await.unwrap();
            }
        })
    };
    let both = [busy(&scene.one), busy(&scene.two)];
    // What Redisson does when it hears a message: one script, which takes a free lock.
    let take = redis::Script::new(
        "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end \
         redis.call('HSET', KEYS[1], ARGV[1], 1) redis.call('PEXPIRE', KEYS[1], 1000) return 1",
    );
    let mut raw = scene.raw.clone();
    let taken = async {
        let mut messages = listener.on_message();
        while futures_util::StreamExt::next(&mut messages).await.is_some() {
            if take.key("x").arg(JAVA).invoke_async::<u8>(&mut raw).await.unwrap() == 1 {
                return;
            }
        }
    };
    soon("its turn", taken).await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    scene.raw::<i64>("DEL x").await;
    scene.raw::<i64>("PUBLISH redisson_lock__channel:{x} 0").await;
    for busy in both {
        soon("works on", busy).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_lock_of_somebody_else_is_respected() {
    let scene = Scene::set("?dialect=plain&ttl=3s").await;
    let locks = &scene.one;
    scene.raw::<()>("SET x theirs NX PX 60000").await;
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    assert!(locks.rw_lock("x").try_read().await.unwrap().is_none());
    assert!(locks.semaphore("x", 2).try_acquire().await.unwrap().is_none());
    assert_eq!(
        locks.admin().show(&name("x")).await.unwrap().holders[0].owner.to_string(),
        "theirs:0"
    );
    for kind in ["mutex", "fair", "read", "permit"] {
        scene.raw::<()>("SET x theirs PX 60000").await;
        let locks = scene.one.clone();
        let waiting = tokio::spawn(async move {
            match kind {
                "mutex" => locks.mutex("x").lock().await.map(drop),
                "fair" => locks.mutex("x").fair().lock().await.map(drop),
                "read" => locks.rw_lock("x").read().await.map(drop),
                _ => locks.semaphore("x", 2).acquire().await.map(drop),
            }
        });
        scene.waiters(1).await;
        let since = Instant::now();
        scene.raw::<i64>("DEL x").await;
        soon("granted", waiting).await.unwrap().unwrap();
        assert!(Instant::now().since(since) < Duration::from_secs(1), "{kind}: nobody told us");
        let free = async || scene.raw::<i64>("EXISTS x lockkeeper:{x}").await == 0;
        eventually("given back", free).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_ours_any_more_is_left_alone_in_dialect_plain() {
    let scene = Scene::set("?dialect=plain&ttl=3s").await;
    let guard = scene.one.mutex("x").lock().await.unwrap();
    let value: String = scene.raw("GET x").await;
    assert_eq!(scene.raw::<Option<String>>("SET x theirs NX PX 60000").await, None, "excluded");
    assert!(value.contains('#'), "{value}");
    scene.raw::<()>("SET x theirs PX 60000").await;
    assert_eq!(soon("the loss", guard.lost()).await, Cause::Gone);
    assert!(guard.release().await.is_err());
    assert_eq!(scene.raw::<String>("GET x").await, "theirs");
    // The two-command lock of somebody who died in between.
    scene.raw::<()>("SET x dead").await;
    let status = scene.one.admin().show(&name("x")).await.unwrap();
    assert_eq!(status.holders[0].lease_left, None);
    assert!(scene.one.mutex("x").try_lock().await.unwrap().is_none());
    scene.one.admin().evict(&name("x"), "left behind").await.unwrap();
    scene.one.mutex("x").try_lock().await.unwrap().expect("free").release().await.unwrap();
    scene.raw::<i64>("RPUSH x precious").await;
    let error = scene.one.mutex("x").try_lock().await.unwrap_err();
    assert!(
        std::error::Error::source(&error).unwrap().to_string().contains("not a lock"),
        "{error}"
    );
}
