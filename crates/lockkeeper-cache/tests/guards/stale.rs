//! What is served while the store is down, although it may be old.

use std::num::NonZeroU32;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::explain::Outlook;
use lockkeeper_cache::limit::Limit;
use lockkeeper_cache::{Cache, Down, Error, FirstLevel, Freshness, Loaded, Memory, Redis, Source};
use testkit::resp::Raw;
use testkit::server::{self, Server};
use testkit::wait::{eventually, soon};

use crate::broken::Breaking;
use crate::harness::Database;

const LONG: Duration = Duration::from_secs(600);

/// What the first level vouches for.
const BOUND: Duration = Duration::from_millis(100);

async fn cache(server: &Server, database: &Database, down: Down) -> Cache<u32, u64> {
    let store = Redis::connect(&format!("redis://{}", server.address())).await.unwrap();
    let database = database.clone();
    let loader = move |_: u32| {
        let read = database.read();
        async move { Ok::<_, Error>(Loaded::found(read).version(read)) }
    };
    let builder =
        Cache::builder(store).namespace("cache").timeout(Duration::from_secs(2)).when_down(down);
    let level = FirstLevel::new(100).bound(BOUND).ttl(LONG);
    builder.build(loader).unwrap().with_first_level(level).unwrap()
}

async fn copied(cache: &Cache<u32, u64>, key: u32) {
    eventually("it is in the first level", async || {
        cache.read(&key, Freshness::Any).await.unwrap().source == Source::First
    })
    .await;
}

async fn source(cache: &Cache<u32, u64>, key: u32) -> Result<Source, Error> {
    soon("an answer", cache.read(&key, Freshness::Any)).await.map(|read| read.source)
}

#[tokio::test]
async fn copies_are_served_while_the_store_is_down_and_nothing_else_is() {
    let mut server = server::redis(&[]).await;
    let database = Database::new();
    let down = Down::Stale { bound: LONG, otherwise: None };
    let cache = cache(&server, &database, down).await;
    for key in [1, 2, 3] {
        copied(&cache, key).await;
    }
    cache.invalidate(&[2]).await.unwrap();
    let loads = cache.stats().loads;
    server.kill();
    database.commit();
    eventually("the bound is over", async || matches!(source(&cache, 1).await, Ok(Source::Stale)))
        .await;
    for _ in 0..20 {
        let read = cache.read(&1, Freshness::Any).await.unwrap();
        assert_eq!((read.value.as_deref(), read.source), (Some(&1), Source::Stale));
    }
    let many = cache.get_many(&[1, 3]).await.unwrap();
    assert!(many.iter().all(|value| value.as_deref() == Some(&1)));
    let stats = cache.stats();
    assert!(stats.down_stale >= 22 && stats.down_reads >= stats.down_stale, "{stats:?}");
    assert_eq!(cache.explain(&1).await.unwrap().read, Outlook::Stale);
    assert_eq!(stats.down_stale, cache.stats().down_stale, "to explain it counts for nothing");
    // What was changed here, what was never copied, and who wants more.
    for key in [2, 4] {
        assert!(matches!(source(&cache, key).await, Err(Error::Busy { .. })), "{key}");
    }
    assert_eq!(cache.explain(&2).await.unwrap().read, Outlook::BusyStore);
    for freshness in [Freshness::AtLeast(2), Freshness::MaxAge(Duration::ZERO)] {
        let refused = cache.read(&1, freshness).await;
        assert!(matches!(refused, Err(Error::Busy { .. })), "{freshness:?}: {refused:?}");
    }
    assert!(cache.read(&1, Freshness::AtLeast(1)).await.is_ok());
    assert_eq!(cache.stats().loads, loads);
    // An invalidation that fails counts as well, here.
    cache.invalidate(&[3]).await.unwrap_err();
    assert!(matches!(source(&cache, 3).await, Err(Error::Busy { .. })));
    server.start_again().await;
    eventually("the new one is served", async || {
        cache.get(&1).await.is_ok_and(|value| value.as_deref() == Some(&2))
    })
    .await;
    copied(&cache, 1).await;
}

#[tokio::test]
async fn copies_are_served_for_as_long_as_was_said() {
    let mut server = server::redis(&[]).await;
    let database = Database::new();
    let bound = Duration::from_secs(2);
    let one = NonZeroU32::MIN;
    let down = Down::Stale { bound, otherwise: Some(Limit::per_second(one)) };
    let cache = cache(&server, &database, down).await;
    copied(&cache, 1).await;
    server.kill();
    let killed = Instant::now();
    database.commit();
    let mut stale = 0;
    soon("it is over", async {
        loop {
            let begun = Instant::now();
            let read = cache.read(&1, Freshness::Any).await.unwrap();
            match read.source {
                Source::First => {}
                Source::Stale => {
                    assert!(begun.since(killed) <= bound, "{:?}", begun.since(killed));
                    stale += 1;
                }
                _ => return assert_eq!(read.value.as_deref(), Some(&2), "loaded"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(stale > 0);
    let more = futures_util::future::join_all((10..20).map(|key| source(&cache, key))).await;
    assert!(more.iter().any(|read| matches!(read, Err(Error::Busy { .. }))), "{more:?}");
}

/// A cache whose store tells nobody of changes, with copies that are asked about again at once or never.
fn unheard(store: &Breaking, database: &Database, ttl: Duration) -> Cache<u32, u64> {
    let database = database.clone();
    let loader = move |_: u32| {
        let read = database.read();
        async move { Ok::<_, Error>(Loaded::found(read).version(read)) }
    };
    let down = Down::Stale { bound: LONG, otherwise: None };
    let builder = Cache::builder(store.clone()).namespace("cache").when_down(down);
    let level = FirstLevel::new(100).bound(LONG).ttl(ttl);
    builder.build(loader).unwrap().with_first_level(level).unwrap()
}

/// What the store has shown to be gone does not come back when it is down.
#[tokio::test]
async fn what_was_seen_to_be_gone_is_not_served() {
    let (store, database) = (Breaking::default(), Database::new());
    let [cache, other] = [(); 2].map(|()| unheard(&store, &database, Duration::from_nanos(1)));
    for loaded in [Source::Loaded, Source::Hit] {
        assert_eq!(source(&cache, 1).await.unwrap(), loaded);
    }
    store.set_down(true);
    // The clock has a coarse hand.
    eventually("its time is over", async || source(&cache, 1).await.unwrap() == Source::Stale)
        .await;
    store.set_down(false);
    database.commit();
    other.invalidate(&[1]).await.unwrap();
    assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&2));
    store.set_down(true);
    let refused = cache.get(&1).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
}

/// Who has changed it has it at once, in whatever way it was changed.
#[tokio::test]
async fn what_is_set_here_is_not_served_as_it_was() {
    let (store, database) = (Breaking::default(), Database::new());
    let cache = unheard(&store, &database, LONG);
    copied(&cache, 1).await;
    let new = database.commit();
    cache.set_many(&[(1, Loaded::found(new).version(new))]).await.unwrap();
    assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&new));
}

/// It is in no list of the store, either.
#[tokio::test]
async fn what_was_cleared_is_not_served() {
    let mut server = server::redis(&[]).await;
    let database = Database::new();
    let down = Down::Stale { bound: LONG, otherwise: None };
    let cache = cache(&server, &database, down).await;
    copied(&cache, 1).await;
    Raw::connect(server.address()).await.ask("FLUSHALL").await;
    assert_eq!(cache.clear().await.unwrap(), 0);
    server.kill();
    eventually("it is down", async || source(&cache, 2).await.is_err()).await;
    let refused = cache.get(&1).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
}

#[tokio::test]
async fn nonsense_is_refused() {
    use lockkeeper_cache::breaker::Policy;
    let build = |builder: lockkeeper_cache::Builder| {
        builder.build(async |key: u32| Ok::<_, Error>(Loaded::found(key))).map(|_| ())
    };
    let (builder, zero) = (|| Cache::builder(Memory::new()).namespace("cache"), Duration::ZERO);
    let policy = Policy::default();
    for wrong in [
        builder().when_down(Down::Stale { bound: zero, otherwise: None }),
        builder().breaker(Policy { percent: 0, ..policy }),
        builder().breaker(Policy { percent: 101, ..policy }),
        builder().breaker(Policy { probe: zero, ..policy }),
        builder().breaker(Policy { open: zero, ..policy }),
        builder().breaker(Policy { window: zero, ..policy }),
        builder().max_loads(0, zero),
        builder().ttl(zero),
        // Others would share its entries.
        Cache::builder(Memory::new()),
        // These are for tables.
        builder().locks(lockkeeper::Locks::memory()),
        builder().second_delete(Duration::from_secs(1)),
        builder().behind(1),
    ] {
        let refused = build(wrong);
        assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
    }
    // Much is no nonsense.
    let much = Duration::MAX;
    let huge = Policy { window: much, open: much, open_longest: much, probe: much, ..policy };
    let builder = builder().ttl(much).null_ttl(much).lease(much).timeout(much).floor(much);
    let builder = builder.intent(much).keep_last(much).max_loads(64, much).breaker(huge);
    let builder = builder.refresh_after(much / 2).max_key(usize::MAX).max_value(usize::MAX);
    let cache = builder.build(async |key: u32| Ok::<_, Error>(Loaded::found(key))).unwrap();
    for _ in 0..3 {
        assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&1));
    }
    let write = cache.intend(&[1]).await.unwrap();
    write.settle(None).await.unwrap();
    cache.invalidate_to(&[1], 5).await.unwrap();
    cache.read(&1, Freshness::Stale(much)).await.unwrap();
    cache.read(&1, Freshness::MaxAge(much)).await.unwrap();
}
