//! The first level: what others change is heard in time, or nothing is served.

use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::{
    Builder, Cache, Error, FirstLevel, Freshness, Loaded, Memory, Redis, Source,
};
use testkit::nodes::{Cluster, Sentinels, ask};
use testkit::proxy::{Proxy, Way};
use testkit::resp::Raw;
use testkit::server::{self, Server};
use testkit::wait::{eventually, soon};

use crate::harness::Database;

const BOUND: Duration = Duration::from_millis(400);

/// A cache of what the database has, with a first level.
pub(crate) async fn cache(url: &str, database: &Database) -> Cache<u32, u64> {
    let store = soon("connected", Redis::connect(url)).await.unwrap();
    build(Cache::builder(store).namespace("cache"), database)
        .with_first_level(FirstLevel::new(1000).bound(BOUND))
        .unwrap()
}

pub(crate) fn build(builder: Builder, database: &Database) -> Cache<u32, u64> {
    let database = database.clone();
    let loader = move |_: u32| {
        let read = database.read();
        async move { Ok::<_, Error>(Loaded::found(read).version(read)) }
    };
    builder.timeout(Duration::from_secs(5)).build(loader).unwrap()
}

pub(crate) async fn read(cache: &Cache<u32, u64>) -> (u64, Source) {
    // A hit here does not wait for anything, and those who listen must have their turn.
    tokio::task::yield_now().await;
    let read = soon("a value", cache.read(&1, Freshness::Any)).await.unwrap();
    (*read.value.unwrap(), read.source)
}

/// Reads until it comes from the first level.
pub(crate) async fn first(cache: &Cache<u32, u64>) -> u64 {
    eventually("it is in the first level", async || read(cache).await.1 == Source::First).await;
    read(cache).await.0
}

fn url(server: &Server) -> String {
    format!("redis://{}", server.address())
}

#[tokio::test]
async fn what_was_found_at_the_store_is_served_here() {
    let server = server::redis(&[]).await;
    let database = Database::new();
    let cache = cache(&url(&server), &database).await;
    let reads: Vec<_> = (0..50).map(|_| cache.get(&1)).collect();
    for read in futures_util::future::join_all(reads).await {
        assert_eq!(read.unwrap().as_deref(), Some(&1));
    }
    assert_eq!(first(&cache).await, 1);
    let asked = ask(server.address(), "INFO commandstats").await;
    for _ in 0..100 {
        assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&1));
        assert_eq!(cache.get_many(&[1, 1]).await.unwrap().len(), 2);
    }
    let gets = |stats: &str| -> Option<String> {
        Some(stats.lines().find(|line| line.contains("stat_get:"))?.split(',').next()?.to_owned())
    };
    let again = ask(server.address(), "INFO commandstats").await;
    let stats = cache.stats();
    assert!(stats.first_hits >= 300 && stats.loads == 1, "{stats:?}");
    assert!(stats.first_flushes > 0 || gets(&asked) == gets(&again), "{asked} {again}");
}

/// R13. Messages are late, and the bound is kept.
#[tokio::test]
async fn what_changes_elsewhere_is_served_no_longer_than_the_bound() {
    let server = server::redis(&[]).await;
    let proxy = Proxy::to(server.address()).await;
    let database = Database::new();
    let reader = cache(&format!("redis://{}", proxy.address()), &database).await;
    let writer = cache(&url(&server), &database).await;
    proxy.delay(Way::Down, BOUND / 8);
    for _ in 0..8 {
        let old = first(&reader).await;
        let new = database.commit();
        writer.invalidate(&[1]).await.unwrap();
        let acknowledged = Instant::now();
        assert_eq!(read(&writer).await.0, new, "who has invalidated it has it at once");
        soon("it is heard", async {
            loop {
                let begun = Instant::now();
                let (value, source) = read(&reader).await;
                if value == new {
                    return;
                }
                assert_eq!((value, source), (old, Source::First));
                assert!(begun.since(acknowledged) <= BOUND, "{:?}", begun.since(acknowledged));
            }
        })
        .await;
    }
}

#[tokio::test]
async fn what_is_changed_by_hand_is_heard_as_well() {
    let server = server::redis(&[]).await;
    let database = Database::new();
    let cache = cache(&url(&server), &database).await;
    for (command, flushes) in [("DEL cache:1", 0), ("PEXPIRE cache:1 1", 0), ("FLUSHALL", 1)] {
        first(&cache).await;
        let new = database.commit();
        ask(server.address(), command).await;
        eventually(command, async || read(&cache).await.0 == new).await;
        assert!(cache.stats().first_flushes >= flushes, "{:?}", cache.stats());
    }
}

/// A message that is lost with its connection.
#[tokio::test]
async fn after_a_connection_was_lost_nothing_old_is_served() {
    let server = server::redis(&[]).await;
    let proxy = Proxy::to(server.address()).await;
    let database = Database::new();
    let reader = cache(&format!("redis://{}", proxy.address()), &database).await;
    let writer = build(
        Cache::builder(Redis::connect(&url(&server)).await.unwrap()).namespace("cache"),
        &database,
    );
    assert_eq!(first(&reader).await, 1);
    proxy.cut();
    database.commit();
    writer.invalidate(&[1]).await.unwrap();
    assert_eq!(read(&writer).await.0, 2);
    proxy.pass();
    let found = async || {
        let (value, source) = read(&reader).await;
        source == Source::First && value == 2
    };
    eventually("the new one is here", found).await;
    assert!(reader.stats().first_flushes > 0);
    // The same for one connection alone, of which nobody hears anything else.
    let raw = Raw::connect(server.address()).await;
    let flushes = reader.stats().first_flushes;
    let list = raw.text("CLIENT LIST").await.unwrap();
    let tracking =
        |line: &&str| line.split(' ').any(|word| word.starts_with("flags=") && word.contains('B'));
    let ids: Vec<&str> = list
        .lines()
        .filter(tracking)
        .filter_map(|line| line.split(' ').next()?.strip_prefix("id="))
        .collect();
    assert_eq!(ids.len(), 1, "{list}");
    raw.ask(&format!("CLIENT KILL ID {}", ids[0])).await;
    eventually("it is noticed", async || reader.stats().first_flushes > flushes).await;
    assert_eq!(first(&reader).await, 2);
}

#[tokio::test]
async fn a_server_that_does_not_answer_ends_it_when_the_bound_is_over() {
    let server = server::redis(&[]).await;
    let database = Database::new();
    let cache = cache(&url(&server), &database).await;
    assert_eq!(first(&cache).await, 1);
    server.pause();
    let since = Instant::now();
    database.commit();
    soon("it is served no more", async {
        loop {
            let begun = Instant::now();
            let (value, source) = read(&cache).await;
            if source != Source::First {
                assert_eq!((value, source), (2, Source::Loaded));
                return;
            }
            assert!(begun.since(since) <= BOUND, "{:?}", begun.since(since));
        }
    })
    .await;
    server.resume();
    // The connection is the same, and nothing was missed: what is here is what is there.
    first(&cache).await;
}

#[tokio::test]
async fn that_there_is_nothing_is_known_here_too() {
    let server = server::redis(&[]).await;
    let store = Redis::connect(&url(&server)).await.unwrap();
    let cache = Cache::builder(store)
        .namespace("cache")
        .build(async |_: u32| Ok::<_, Error>(Loaded::<u64>::nothing()))
        .unwrap()
        .with_first_level(FirstLevel::new(10))
        .unwrap();
    let known = async || {
        let read = cache.read(&1, Freshness::Any).await.unwrap();
        read.value.is_none() && read.source == Source::First
    };
    eventually("nothing", known).await;
    assert_eq!(cache.stats().loads, 1);
}

#[tokio::test]
async fn reads_that_want_more_go_on() {
    let server = server::redis(&[]).await;
    let database = Database::new();
    let cache = cache(&url(&server), &database).await;
    assert_eq!(first(&cache).await, 1);
    let source = async |freshness| cache.read(&1, freshness).await.unwrap().source;
    assert_ne!(source(Freshness::Latest).await, Source::First);
    database.commit();
    assert_eq!(cache.read(&1, Freshness::AtLeast(2)).await.unwrap().version, 2);
    cache.idle().await;
    assert_eq!(first(&cache).await, 2);
    assert_eq!(source(Freshness::AtLeast(2)).await, Source::First);
    let minute = Freshness::MaxAge(Duration::from_secs(60));
    assert_eq!(source(minute).await, Source::First);
}

#[tokio::test]
async fn memory_needs_none() {
    let cache = build(Cache::builder(Memory::new()).namespace("cache"), &Database::new());
    // What was refused is not there either, and who tries again is told the same.
    for _ in 0..2 {
        let Err(Error::Config(why)) = cache.clone().with_first_level(FirstLevel::new(10)) else {
            panic!("not refused");
        };
        assert!(why.contains("no first level before"), "{why}");
        assert_eq!(cache.explain(&1).await.unwrap().first, None);
    }
}

#[tokio::test]
async fn there_is_one_first_level_and_no_second() {
    let server = server::redis(&[]).await;
    let cache = cache(&url(&server), &Database::new()).await;
    let refused = cache.clone().with_first_level(FirstLevel::new(10));
    assert!(matches!(&refused, Err(Error::Config(why)) if why.contains("already")), "{refused:?}");
    assert_eq!(first(&cache).await, 1, "it goes on");
}

/// Many keys at several servers, changed elsewhere.
async fn many_keys(url: &str, namespace: &str) {
    let database = Database::new();
    let connect = async || {
        let store = soon("connected", Redis::connect(url)).await.unwrap();
        build(Cache::builder(store).namespace(namespace), &database)
    };
    let level = FirstLevel::new(1000).bound(Duration::from_secs(2));
    let reader = connect().await.with_first_level(level).unwrap();
    let writer = connect().await;
    let keys: Vec<u32> = (0..50).collect();
    for version in 1..=3 {
        let served = async || {
            let before = reader.stats().first_hits;
            let found = reader.get_many(&keys).await.unwrap();
            found.iter().all(|value| value.as_deref() == Some(&version))
                && reader.stats().first_hits == before + 50
        };
        eventually("all come from the first level, and are new", served).await;
        database.commit();
        soon("invalidated", writer.invalidate_to(&keys, version + 1)).await.unwrap();
    }
}

#[tokio::test]
async fn a_cluster_tells_of_changes_at_each_of_its_masters() {
    many_keys(&Cluster::shared().await.url(), "first").await;
}

#[tokio::test]
async fn the_master_that_sentinels_name_tells_of_changes() {
    many_keys(&Sentinels::shared().await.url(), "first").await;
}

#[tokio::test]
async fn after_a_fail_over_the_new_master_is_heard() {
    let mut redis = Sentinels::start(Duration::from_millis(500)).await;
    let database = Database::new();
    let reader = cache(&redis.url(), &database).await;
    assert_eq!(first(&reader).await, 1);
    redis.nodes.servers[0].kill();
    database.commit();
    redis.master_other_than(0).await;
    let found = async || read(&reader).await == (2, Source::First);
    eventually("the new one is here", found).await;
    let writer = build(
        Cache::builder(Redis::connect(&redis.url()).await.unwrap()).namespace("cache"),
        &database,
    );
    database.commit();
    writer.invalidate(&[1]).await.unwrap();
    eventually("it is heard", async || read(&reader).await == (3, Source::First)).await;
}
