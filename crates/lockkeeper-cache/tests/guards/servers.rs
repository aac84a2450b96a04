//! Servers that are there and do not do what they should, and keys that are strange.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::limit::Limit;
use lockkeeper_cache::{Cache, Down, Error, Loaded, Redis, Strategy};
use testkit::proxy::{Proxy, Way};
use testkit::resp::Raw;
use testkit::server::{self, Server};
use testkit::wait::{LONG, eventually, soon};

use crate::harness::{Client, Database, Place, on_each_store, value};
use crate::inserted::Anything;

on_each_store! { strange_keys_are_keys }

async fn strange_keys_are_keys(place: &Place) {
    let loader = async |key: String| Ok::<_, Error>(Loaded::found(format!("<{key}>")));
    let cache = place.builder().await.build(loader).unwrap();
    let strange = ["", " ", "a b", "a\0b", "\r\n*1\r\n", "{x}", "ключ", "🗝", "a:b", "\u{1b}[0m"];
    let long = ["k".repeat(512), "é".repeat(256)];
    let keys: Vec<String> = strange.map(str::to_owned).into_iter().chain(long).collect();
    for _ in 0..2 {
        let found = cache.get_many(&keys).await.unwrap();
        for (key, found) in keys.iter().zip(found) {
            assert_eq!(found.as_deref(), Some(&format!("<{key}>")));
        }
        cache.idle().await;
    }
    let stats = cache.stats();
    assert_eq!((stats.loads, stats.hits), (keys.len() as u64, keys.len() as u64));
    for key in &keys {
        cache.invalidate(std::slice::from_ref(key)).await.unwrap();
        cache.explain(key).await.unwrap();
    }
    cache.get_many(&keys).await.unwrap();
    assert_eq!(cache.stats().loads, 2 * keys.len() as u64);
    for long in ["k".repeat(513), "é".repeat(257), "x".repeat(1 << 20)] {
        assert!(matches!(cache.get(&long).await, Err(Error::InvalidKey(_))));
    }
}

fn url(server: &Server) -> String {
    format!("redis://{}", server.address())
}

#[tokio::test]
async fn a_server_that_takes_no_writes_serves_what_it_has_until_it_is_told() {
    let server = server::redis(&[]).await;
    let database = Database::new();
    let builder = Cache::builder(Redis::connect(&url(&server)).await.unwrap()).namespace("cache");
    let mut client = Client::new(builder.timeout(Duration::from_secs(2)), &database);
    assert_eq!(client.loaded().await, 1);
    let raw = Raw::connect(server.address()).await;
    // A replica whose master is gone.
    raw.ask("REPLICAOF 127.0.0.1 1").await;
    assert_eq!(client.hit().await, 1);
    let mut other = Client::new(
        Cache::builder(Redis::connect(&url(&server)).await.unwrap()).namespace("cache"),
        &database,
    );
    let refused = client.cache.invalidate(&[1]).await;
    assert!(matches!(refused, Err(Error::Store { .. })), "the writer hears of it: {refused:?}");
    assert!(matches!(client.cache.intend(&[1]).await, Err(Error::Store { .. })));
    // Who owes it an invalidation does not believe it; others hear nothing of that.
    assert_eq!(client.loaded().await, 1);
    // What it does not have is loaded, time and again, and the hits go on.
    for _ in 0..10 {
        let cache = other.cache.clone();
        let get = tokio::spawn(async move { cache.get(&2).await });
        other.load().await.go();
        assert_eq!(value(get).await, 1);
        assert_eq!(other.hit().await, 1);
    }
    assert_eq!((client.cache.stats().fills, other.cache.stats().fills), (1, 0));
    raw.ask("REPLICAOF NO ONE").await;
    database.commit();
    client.cache.invalidate(&[1]).await.unwrap();
    eventually("it is paid", async || client.cache.debt() == Some(0)).await;
    assert_eq!(client.loaded().await, 2);
    assert_eq!((client.hit().await, other.hit().await), (2, 2));
}

/// As the server itself knows them.
#[tokio::test]
async fn values_and_nulls_end_each_at_a_time_of_its_own() {
    let server = server::redis(&[]).await;
    let store = Redis::connect(&url(&server)).await.unwrap();
    let (long, short) = (Duration::from_secs(1000), Duration::from_secs(100));
    let builder = Cache::builder(store).namespace("cache").ttl(long).null_ttl(short);
    let loader = async |key: u32| Ok::<_, Error>(Loaded::from((key < 50).then_some(key)));
    let cache = builder.build(loader).unwrap();
    cache.get_many(&(0..100).collect::<Vec<_>>()).await.unwrap();
    cache.idle().await;
    let raw = Raw::connect(server.address()).await;
    for (keys, most) in [(0..50, 1000), (50..100, 100)] {
        let mut ends = HashSet::new();
        for key in keys {
            let left = raw.number(&format!("TTL cache:{key}")).await;
            // A tenth is left to chance, and the test takes its time.
            assert!((most * 9 / 10 - 30..=most).contains(&left), "{key}: {left}");
            ends.insert(left);
        }
        assert!(ends.len() > 3, "{ends:?}");
    }
}

#[tokio::test]
async fn while_a_server_is_gone_no_more_is_loaded_than_was_chosen() {
    let mut server = server::redis(&[]).await;
    let store = Redis::connect(&url(&server)).await.unwrap();
    let number = |number| NonZeroU32::new(number).unwrap();
    let limit = Limit::per_second(number(1)).burst(number(5));
    let builder = Cache::builder(store).namespace("cache").when_down(Down::LoadAtMost(limit));
    let builder = builder.max_loads(64, Duration::from_millis(20));
    let cache = builder.build(async |key: u32| Ok::<_, Error>(Loaded::found(key))).unwrap();
    cache.get_many(&(0..10).collect::<Vec<_>>()).await.unwrap();
    cache.idle().await;
    assert_eq!(cache.stats().loads, 10, "it holds for a server that is gone alone");
    server.kill();
    let (since, mut busy) = (Instant::now(), 0);
    for key in 0..50 {
        match cache.get(&key).await {
            Ok(found) => assert_eq!(found.as_deref(), Some(&key)),
            Err(Error::Busy { retry_after }) => {
                assert!(!retry_after.is_zero());
                busy += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let (loads, seconds) = (cache.stats().loads - 10, Instant::now().since(since).as_secs());
    assert_eq!(loads + busy, 50);
    assert!((5..=5 + seconds + 1).contains(&loads), "{loads} in {seconds} s");
}

/// Whatever is asked of it, and whatever fails.
#[tokio::test]
async fn a_server_that_stands_still_holds_up_no_writer() {
    let server = server::redis(&[]).await;
    let store = Redis::connect(&url(&server)).await.unwrap();
    let patience = Duration::from_millis(500);
    let builder = Cache::builder(store).namespace("cache").timeout(patience);
    let builder = builder.tags(|_: &u32| vec!["tag".to_owned()]);
    let table = builder.table(Strategy::FillLease, Anything).unwrap();
    let cache = table.cache();
    cache.get_many(&[1, 2]).await.unwrap();
    cache.idle().await;
    let write = cache.intend(&[2]).await.unwrap();
    server.pause();
    let since = Instant::now();
    let mut transaction = cache.transaction();
    transaction.touch(&1).unwrap();
    let set = [(1, Loaded::found(1).version(2))];
    let commit = async { Ok::<_, Error>(()) };
    let ended = tokio::join!(
        cache.invalidate(&[1]),
        cache.intend(&[1]),
        write.settle(None),
        cache.set_many(&set),
        cache.clear(),
        cache.invalidate_tag("tag"),
        transaction.commit(commit),
        table.write(&1, Some(1)),
    );
    let took = Instant::now().since(since);
    server.resume();
    let stored = |failed: &Error| matches!(failed, Error::Store { .. });
    let (invalidated, intended, settled, set, cleared, tagged, committed, written) = ended;
    assert!(invalidated.is_err_and(|failed| stored(&failed)));
    assert!(intended.is_err_and(|failed| stored(&failed)));
    assert!(settled.is_err_and(|failed| stored(&failed)));
    assert!(set.is_err_and(|failed| stored(&failed)));
    assert!(cleared.is_err_and(|failed| stored(&failed)));
    assert!(tagged.is_err_and(|failed| stored(&failed)));
    assert!(committed.unwrap().cache.is_err_and(|failed| stored(&failed)));
    assert!(matches!(written, Err(Error::Committed { .. })), "{written:?}");
    // Its own patience, and attempts that began in it: two seconds. The rest is for a busy machine.
    assert!(took < LONG / 2, "{took:?}");
    eventually("it is made up for", async || cache.debt() == Some(0)).await;
}

/// A busy machine gives the process no time for longer than an answer may take, before what it asks for is sent.
#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "to stand still is what it is about")]
async fn a_process_that_stood_still_does_not_take_the_server_for_dead() {
    let server = server::redis(&[]).await;
    let store = Redis::connect(&url(&server)).await.unwrap();
    let cache = Cache::builder(store)
        .namespace("cache")
        .build(async |key: u32| Ok::<_, Error>(Loaded::found(key)));
    let cache = cache.unwrap();
    cache.get(&1).await.unwrap();
    cache.idle().await;
    for _ in 0..2 {
        let read = || {
            let cache = cache.clone();
            tokio::spawn(async move { cache.get(&1).await })
        };
        let reads: Vec<_> = (0..20).map(|_| read()).collect();
        // One thread: what sends has its turn after this one.
        tokio::spawn(async { std::thread::sleep(Duration::from_millis(1300)) });
        for read in reads {
            assert_eq!(read.await.unwrap().unwrap().as_deref(), Some(&1));
        }
    }
    let stats = cache.stats();
    assert_eq!((stats.store_errors, stats.loads, stats.hits), (0, 1, 40), "{stats:?}");
}

/// Nothing says that a connection is dead. Who waits until that is known is not the one who asked.
#[tokio::test]
async fn callers_with_little_patience_get_another_connection_too() {
    let server = server::redis(&[]).await;
    let proxy = Proxy::to(server.address()).await;
    let store = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let builder = Cache::builder(store).namespace("cache").timeout(Duration::from_millis(150));
    let cache = builder.build(async |key: u32| Ok::<_, Error>(Loaded::found(key))).unwrap();
    let hits = async || {
        let before = cache.stats().hits;
        // On a busy machine it may not be over in time.
        let _ = cache.get(&1).await;
        cache.stats().hits > before
    };
    eventually("it is cached", hits).await;
    proxy.silence();
    assert!(!hits().await, "it was to be silent");
    eventually("there is another connection", hits).await;
}

#[tokio::test]
async fn a_server_without_memory_goes_on_serving_what_it_has() {
    let server = server::redis(&[]).await;
    let database = Database::new();
    let builder = Cache::builder(Redis::connect(&url(&server)).await.unwrap()).namespace("cache");
    let mut client = Client::new(builder, &database);
    assert_eq!(client.loaded().await, 1);
    Raw::connect(server.address()).await.ask("CONFIG SET maxmemory 1").await;
    for key in 2..20 {
        let cache = client.cache.clone();
        let get = tokio::spawn(async move { cache.get(&key).await });
        client.load().await.go();
        assert_eq!(value(get).await, 1);
        assert_eq!(client.hit().await, 1, "it is not taken for dead");
    }
}

#[tokio::test]
async fn a_server_that_evicts_costs_loads_and_no_wrong_values() {
    let server = server::redis(&["--maxmemory-policy", "allkeys-random"]).await;
    let raw = Raw::connect(server.address()).await;
    let version = Arc::new(AtomicU64::new(1));
    let read = Arc::clone(&version);
    let loader = move |key: u64| {
        let version = read.load(Ordering::SeqCst);
        async move { Ok::<_, Error>(Loaded::found((key, version, "x".repeat(20_000)))) }
    };
    let store = Redis::connect(&url(&server)).await.unwrap();
    let cache = Cache::builder(store).namespace("cache").build(loader).unwrap();
    let info = raw.text("INFO memory").await.unwrap();
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let used: u64 = used.trim().parse().unwrap();
    raw.ask(&format!("CONFIG SET maxmemory {}", used + 2_000_000)).await;
    let keys: Vec<u64> = (0..200).collect();
    for round in 1..=4 {
        for found in cache.get_many(&keys).await.unwrap() {
            assert_eq!(found.unwrap().1, round);
        }
        version.fetch_add(1, Ordering::SeqCst);
        cache.invalidate(&keys).await.unwrap();
    }
    let info = raw.text("INFO stats").await.unwrap();
    let evicted = info.lines().find_map(|line| line.strip_prefix("evicted_keys:")).unwrap();
    assert_ne!(evicted.trim(), "0", "it was to evict");
}

#[tokio::test]
async fn a_server_that_is_slow_is_waited_for_and_one_that_is_too_slow_is_not() {
    let server = server::redis(&[]).await;
    let proxy = Proxy::to(server.address()).await;
    let store = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let database = Database::new();
    let builder = Cache::builder(store).namespace("cache").timeout(Duration::from_secs(15));
    let mut client = Client::new(builder, &database);
    proxy.delay(Way::Down, Duration::from_millis(100));
    assert_eq!(client.loaded().await, 1);
    assert_eq!(client.hit().await, 1);
    proxy.delay(Way::Down, Duration::from_secs(5));
    database.commit();
    // Each is over in time, and after a few of them it is not waited for any more.
    for _ in 0..4 {
        assert_eq!(client.loaded().await, 2, "from the database");
    }
    let since = Instant::now();
    for _ in 0..20 {
        assert_eq!(client.loaded().await, 2);
    }
    assert!(Instant::now().since(since) < Duration::from_secs(10), "one tries, and not all");
    proxy.delay(Way::Down, Duration::ZERO);
    soon("invalidated", client.cache.invalidate(&[1])).await.unwrap();
    let cache = client.cache.clone();
    tokio::spawn(async move {
        while let Some(load) = client.try_load_soon().await {
            load.go();
        }
    });
    eventually("it is asked again", async || {
        let hits = cache.stats().hits;
        assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&2));
        cache.stats().hits > hits
    })
    .await;
}

impl Client {
    /// The next load, if there is one soon.
    async fn try_load_soon(&mut self) -> Option<crate::harness::Load> {
        loop {
            if let Some(load) = self.try_load() {
                return Some(load);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
