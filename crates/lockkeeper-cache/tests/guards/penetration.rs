//! Keys that are not there.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::stream;
use lockkeeper::clock::Instant;
use lockkeeper_cache::filter::redis::RedisFilter;
use lockkeeper_cache::filter::{
    Build, Filter, FilterError, LocalFilter, Plan, Shape, Verdict, rebuild,
};
use lockkeeper_cache::limit::Limit;
use lockkeeper_cache::{
    Cache, Down, Error, Freshness, Loaded, Memory, Redis, Source, Stats, Strategy,
};
use parking_lot::Mutex;
use testkit::server::Server;
use testkit::wait::{CASE, soon, within};

use crate::bucket::excess;
use crate::inserted::{Anything, Strict};
use crate::processes;

fn plan(keys: u64) -> Plan {
    Plan::new(Shape::for_keys(keys, 0.001).unwrap()).settle(Duration::ZERO)
}

#[tokio::test]
async fn what_surely_is_not_there_is_not_loaded() {
    let filter = LocalFilter::new();
    let builder = Cache::builder(Memory::new()).namespace("cache").filter(filter.clone());
    let cache = builder.build(async |key: u32| Ok::<_, Error>(Loaded::found(key))).unwrap();
    // Nothing is known before it is loaded.
    assert_eq!(cache.get(&7).await.unwrap().as_deref(), Some(&7));
    assert_eq!(cache.stats().unfiltered, 1);
    let existing = (0..100).map(Ok::<_, Error>);
    let mut told = 0;
    let loaded =
        cache.load_filter(plan(1000), || stream::iter(existing), |progress| told = progress.keys);
    assert_eq!(loaded.await.unwrap().keys, 100);
    assert_eq!(told, 100);
    assert_eq!(cache.get(&50).await.unwrap().as_deref(), Some(&50));
    let loads = cache.stats().loads;
    for key in 1000..1100 {
        let read = cache.read(&key, Freshness::Any).await.unwrap();
        if read.source == Source::Filter {
            assert!(read.value.is_none());
        }
    }
    let stats = cache.stats();
    assert!(stats.filtered >= 95 && stats.filtered + stats.loads - loads == 100, "{stats:?}");
    // A hit does not ask it; who wants the database gets the database.
    assert_eq!(cache.get(&7).await.unwrap().as_deref(), Some(&7));
    let latest = cache.read(&1000, Freshness::Latest).await.unwrap();
    assert_eq!(latest.source, Source::Loaded);
    let own = cache.read(&1001, Freshness::AtLeast(3)).await.unwrap();
    assert_eq!(own.source, Source::Loaded, "who knows of a version is not told that there is none");
}

/// Takes a second to say that it does not know.
#[derive(Debug)]
struct Hangs;

#[async_trait]
impl Filter for Hangs {
    async fn look(&self, keys: &[&[u8]]) -> Vec<Verdict> {
        tokio::time::sleep(Duration::from_millis(1100)).await;
        vec![Verdict::Unknown; keys.len()]
    }

    async fn insert(&self, _: &[&[u8]]) -> Result<(), FilterError> {
        Ok(())
    }

    async fn begin(&self, _: Shape) -> Result<Box<dyn Build>, FilterError> {
        Err(FilterError::Size("none"))
    }
}

#[tokio::test]
async fn a_filter_that_hangs_is_left_alone() {
    let cache = Cache::builder(Memory::new())
        .namespace("cache")
        .filter(Hangs)
        .build(async |key: u32| Ok::<_, Error>(Loaded::found(key)))
        .unwrap();
    let since = Instant::now();
    for key in 0..60 {
        cache.get(&key).await.unwrap();
    }
    assert!(Instant::now().since(since) < Duration::from_secs(30));
}

/// Never says anything.
#[derive(Debug)]
struct Silent;

#[async_trait]
impl Filter for Silent {
    async fn look(&self, _: &[&[u8]]) -> Vec<Verdict> {
        std::future::pending().await
    }

    async fn insert(&self, _: &[&[u8]]) -> Result<(), FilterError> {
        Ok(())
    }

    async fn begin(&self, _: Shape) -> Result<Box<dyn Build>, FilterError> {
        Err(FilterError::Size("none"))
    }
}

#[tokio::test]
async fn a_filter_that_never_answers_holds_up_no_explanation() {
    let cache = Cache::builder(Memory::new())
        .namespace("cache")
        .filter(Silent)
        .timeout(Duration::from_millis(50))
        .build(async |key: u32| Ok::<_, Error>(Loaded::found(key)))
        .unwrap();
    let explained = soon("explained", cache.explain(&1)).await.unwrap();
    assert_eq!(explained.filter, Some(Verdict::Unknown));
}

/// What is chosen for a store that is down counts for every strategy.
#[tokio::test]
async fn a_table_asks_the_database_no_more_than_its_cache_may() {
    for strategy in Strategy::ALL {
        let store = crate::broken::Breaking::default();
        let builder =
            Cache::builder(store.clone()).namespace("cache").keep_last(Duration::from_secs(1));
        let builder = builder.when_down(Down::Busy).timeout(Duration::from_millis(200));
        // Some need more than this store has; one has no use for it.
        let Ok(table) = builder.table(strategy, Anything) else { continue };
        if strategy == Strategy::Bypass {
            continue;
        }
        store.set_down(true);
        for _ in 0..5 {
            let refused = table.read(&1).await;
            assert!(matches!(refused, Err(Error::Busy { .. })), "{strategy}: {refused:?}");
        }
        assert_eq!(table.cache().stats().loads, 0, "{strategy}");
    }
}

#[tokio::test]
async fn a_key_that_is_refused_at_the_door_asks_nobody() {
    let (filter, store) = (Strict::default(), crate::broken::Breaking::default());
    let builder = Cache::builder(store.clone()).namespace("cache").filter(filter);
    let positive = |key: &str| match key.starts_with('-') {
        true => Err("below zero".to_owned()),
        false => Ok(()),
    };
    let cache =
        builder.validate(positive).build(async |key: i32| Ok::<_, Error>(Loaded::found(key)));
    let cache = cache.unwrap();
    let refused = cache.get(&-1).await;
    assert!(matches!(&refused, Err(Error::InvalidKey(why)) if why == "below zero"), "{refused:?}");
    assert!(matches!(cache.get_many(&[1, -1]).await, Err(Error::InvalidKey(_))));
    assert!(matches!(cache.invalidate(&[-1]).await, Err(Error::InvalidKey(_))));
    assert!(matches!(cache.intend(&[-1]).await, Err(Error::InvalidKey(_))));
    assert_eq!((store.looks(), store.others()), (0, 0));
    cache.get(&1).await.unwrap();
    assert_eq!(store.looks(), 1);
}

#[tokio::test]
async fn a_cache_without_a_filter_cannot_load_one() {
    let cache = Cache::builder(Memory::new())
        .namespace("cache")
        .build(async |key: u32| Ok::<_, Error>(Loaded::found(key)))
        .unwrap();
    let nothing = || stream::iter(Vec::<Result<u32, Error>>::new());
    let refused = cache.load_filter(plan(10), nothing, |_| {}).await;
    assert!(matches!(refused, Err(FilterError::Size(_))), "{refused:?}");
    let filter = LocalFilter::new();
    let keys = || stream::iter([Ok::<_, Error>("1")]);
    rebuild(&filter, plan(10), keys, |_| {}).await.unwrap();
}

/// Asks for so many keys that do not exist, with a filter of a hundred thousand that do. How many loads that makes, and how
/// many it may with an error rate of one in a hundred: more is as likely as one in a million. What it could not be asked for,
/// on a machine that is too busy, is counted by the cache, and asked for again.
async fn unknown<F: Filter + Clone + 'static>(filter: F, requests: u64) -> Stats {
    let builder = Cache::builder(Memory::new()).namespace("cache").filter(filter);
    let cache = builder
        .build(async |key: u64| Ok::<_, Error>(Loaded::from((key < 100_000).then_some(key))))
        .unwrap();
    let plan = Plan::new(Shape::for_keys(100_000, 0.01).unwrap()).settle(Duration::ZERO);
    let existing = || stream::iter((0..100_000).map(Ok::<_, Error>));
    let mut told = 0;
    cache.load_filter(plan, existing, |progress| told = progress.keys).await.unwrap();
    assert_eq!(told, 100_000);
    let (mut asked, since) = (0, Instant::now());
    while asked - cache.stats().unfiltered < requests {
        assert!(Instant::now().since(since) < CASE, "it does not answer: {:?}", cache.stats());
        let some: Vec<u64> = (1_000_000 + asked..1_000_000 + asked + 100).collect();
        let found = cache.get_many(&some).await.unwrap();
        assert!(found.iter().all(Option::is_none));
        asked += 100;
    }
    let stats = cache.stats();
    let expected = (asked - stats.unfiltered) as f64 * 0.01;
    let most = expected + 5.0 * (expected * 0.99).sqrt();
    let passed = stats.loads - stats.unfiltered;
    assert!(passed as f64 <= most, "{passed} let through, {most} allowed");
    assert_eq!(stats.loads + stats.filtered, asked);
    // And those that exist are all there.
    let keys: Vec<u64> = (0..100_000).step_by(97).collect();
    for some in keys.chunks(500) {
        let found = cache.get_many(some).await.unwrap();
        assert!(found.iter().zip(some).all(|(found, key)| found.as_deref() == Some(key)));
    }
    stats
}

#[tokio::test]
async fn unknown_keys_reach_the_database_at_the_error_rate() {
    assert_eq!(unknown(LocalFilter::new(), 100_000).await.unfiltered, 0);
}

#[tokio::test]
async fn unknown_keys_reach_the_database_at_the_error_rate_with_a_shared_filter() {
    let server = testkit::server::redis(&[]).await;
    unknown(shared(&server).await, 10_000).await;
}

const TABLES: [&str; 3] = [
    "CREATE TABLE filtered (id INT PRIMARY KEY)",
    "INSERT INTO filtered SELECT id FROM generate_series(0, 1999) id",
    "CREATE TABLE filtered_loads (id INT NOT NULL)",
];

/// Reads the row, and leaves a row of its own: the database counts who looks for what.
const LOAD: &str = "WITH load AS (INSERT INTO filtered_loads VALUES ($1)) \
                    SELECT id FROM filtered WHERE id = $1";

#[tokio::test]
async fn a_filter_is_loaded_from_the_database_that_it_stands_before() {
    let server = testkit::server::redis(&[]).await;
    let (_database, pool) = processes::database(&TABLES).await;
    let near = pool.clone();
    let loader = move |id: i32| {
        let pool = near.clone();
        async move {
            let found: Option<i32> =
                sqlx::query_scalar(LOAD).bind(id).fetch_optional(&pool).await?;
            Ok::<_, sqlx::Error>(Loaded::from(found))
        }
    };
    let store = Redis::connect(&format!("redis://{}", server.address())).await.unwrap();
    let builder = Cache::builder(store).namespace("cache").filter(shared(&server).await);
    let cache = builder.timeout(CASE).max_loads(64, CASE).build(loader).unwrap();
    let plan = Plan::new(Shape::for_keys(2000, 0.01).unwrap()).settle(Duration::ZERO);
    let ids = || sqlx::query_scalar::<_, i32>("SELECT id FROM filtered").fetch(&pool);
    assert_eq!(cache.load_filter(plan, ids, |_| {}).await.unwrap().keys, 2000);
    let found = async |ids: Range<i32>| {
        let mut found = 0;
        for some in ids.collect::<Vec<_>>().chunks(100) {
            found += cache.get_many(some).await.unwrap().iter().flatten().count();
        }
        found
    };
    assert_eq!(found(10_000..15_000).await, 0);
    let counted = sqlx::query_scalar("SELECT count(*) FROM filtered_loads").fetch_one(&pool);
    let counted: i64 = counted.await.unwrap();
    let stats = cache.stats();
    assert_eq!(counted.cast_unsigned(), stats.loads);
    // One in a hundred is 50; this is five deviations more.
    assert!(stats.loads - stats.unfiltered <= 86 && stats.filtered > 4000, "{stats:?}");
    assert_eq!(found(0..2000).await, 2000);
}

/// A filter at this server, as it is by default.
async fn shared(server: &Server) -> RedisFilter {
    RedisFilter::connect(&format!("redis://{}", server.address()), "keys").await.unwrap()
}

/// Then there is only the limit.
#[tokio::test]
async fn while_a_shared_filter_does_not_answer_the_limit_holds_unknown_keys_back() {
    let server = testkit::server::redis(&[]).await;
    let begins = Arc::new(Mutex::new(Vec::new()));
    let begun = Arc::clone(&begins);
    let loader = move |_: u64| {
        begun.lock().push(Instant::now().as_nanos());
        async { Ok::<_, Error>(Loaded::<u64>::nothing()) }
    };
    let [rate, burst] = [50, 10].map(|number| NonZeroU32::new(number).unwrap());
    let limit = Limit::per_second(rate).burst(burst);
    let builder =
        Cache::builder(Memory::new()).namespace("cache").filter(shared(&server).await).limit(limit);
    let cache =
        builder.timeout(CASE).max_loads(64, Duration::from_millis(200)).build(loader).unwrap();
    let existing = || stream::iter((0..1000).map(Ok::<_, Error>));
    cache.load_filter(plan(1000), existing, |_| {}).await.unwrap();
    let asked = AtomicU64::new(1000);
    let ask = async || {
        let from = asked.fetch_add(100, Ordering::SeqCst);
        let keys: Vec<u64> = (from..from + 100).collect();
        for read in join_all(keys.iter().map(|key| cache.get(key))).await {
            assert!(matches!(read, Ok(None) | Err(Error::Busy { .. })), "{read:?}");
        }
    };
    within(CASE, "it answers", async || {
        ask().await;
        cache.stats().filtered >= 90
    })
    .await;
    server.pause();
    within(CASE, "more is wanted than is let", async || {
        ask().await;
        cache.stats().refused_loads >= 1000
    })
    .await;
    let (stats, begins) = (cache.stats(), begins.lock().clone());
    assert!(stats.unfiltered >= 1000 && stats.loads >= 20, "{stats:?}");
    assert_eq!(begins.len() as u64, stats.loads);
    // One thread: see `killed`.
    assert!(excess(&begins, rate.get(), burst.get()) <= 1, "{begins:?}");
    server.resume();
    let filtered = stats.filtered;
    within(CASE, "it is asked again", async || {
        ask().await;
        cache.stats().filtered > filtered
    })
    .await;
}
