//! Everything at once: entries that end together, a database that fails, a store that is down.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::breaker::Policy;
use lockkeeper_cache::jitter::Jitter;
use lockkeeper_cache::limit::Limit;
use lockkeeper_cache::{Cache, Down, Error, Grouped, Loaded, Memory, Store};
use testkit::wait::{LONG, eventually, soon};

use crate::broken::Breaking;
use crate::harness::{Client, Database, value};

const SECOND: Duration = Duration::from_secs(1);

fn limit(rate: u32, burst: u32) -> Limit {
    let number = |number| NonZeroU32::new(number).unwrap();
    Limit::per_second(number(rate)).burst(number(burst))
}

/// Loads that count, and fail when they are told to.
#[derive(Clone, Default)]
struct Source {
    loads: Arc<AtomicUsize>,
    broken: Arc<AtomicBool>,
}

impl Source {
    fn loads(&self) -> usize {
        self.loads.load(Ordering::SeqCst)
    }

    fn cache(&self, builder: lockkeeper_cache::Builder) -> Cache<u32, u32> {
        let Self { loads, broken } = self.clone();
        let loader = move |key: u32| {
            loads.fetch_add(1, Ordering::SeqCst);
            let broken = broken.load(Ordering::SeqCst);
            async move { if broken { Err("no database") } else { Ok(Loaded::found(key)) } }
        };
        builder.build(loader).unwrap()
    }
}

/// When each of a hundred entries that were filled at one moment has ended.
async fn ends(jitter: Option<Jitter>, nothing: bool) -> HashSet<u64> {
    let time = Arc::new(AtomicU64::new(1000));
    let clock = Arc::clone(&time);
    let store = Memory::with_clock(1000, move || clock.load(Ordering::SeqCst));
    let mut builder = Cache::builder(store.clone())
        .namespace("cache")
        .ttl(100 * SECOND)
        .null_ttl(100 * SECOND)
        .early(None);
    if let Some(jitter) = jitter {
        builder = builder.jitter(jitter);
    }
    let loader = move |key: u32| {
        let loaded = Loaded::from((!nothing).then_some(key));
        async move { Ok::<_, Error>(loaded) }
    };
    let cache = builder.build(loader).unwrap();
    let keys: Vec<u32> = (0..100).collect();
    cache.get_many(&keys).await.unwrap();
    let names: Vec<String> = keys.iter().map(|key| format!("cache:{key}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (mut ends, mut left) = (HashSet::new(), names.len());
    while left > 0 {
        let now = time.fetch_add(100, Ordering::SeqCst) + 100;
        let seen = store.get(&names).await.unwrap();
        let there = seen.iter().filter(|seen| **seen != lockkeeper_cache::Seen::Nothing).count();
        if there < left {
            ends.insert((now - 1000) / 1000);
        }
        left = there;
    }
    ends
}

#[tokio::test]
async fn what_is_filled_together_does_not_end_together() {
    for nothing in [false, true] {
        let ends = ends(None, nothing).await;
        assert!(ends.len() >= 9, "in few seconds: {ends:?}");
        assert!(ends.iter().all(|second| (90..=100).contains(second)), "{ends:?}");
    }
    assert_eq!(ends(Some(Jitter::NONE), false).await, HashSet::from([100]), "all at once");
}

/// A shorter one: it may be there soon.
#[tokio::test]
async fn what_is_not_there_has_a_time_of_its_own() {
    let time = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&time);
    let store = Memory::with_clock(1000, move || clock.load(Ordering::SeqCst));
    let builder =
        Cache::builder(store).namespace("cache").ttl(60 * SECOND).null_ttl(SECOND).early(None);
    let loader = |key: u32| {
        let loaded = Loaded::from((key == 1).then_some(key));
        async move { Ok::<_, Error>(loaded) }
    };
    let cache = builder.build(loader).unwrap();
    // Up to a tenth of either time is left to chance.
    for (now, loads, hits) in [(1000, 2, 0), (1800, 2, 2), (2000, 3, 3), (54_000, 4, 4)] {
        time.store(now, Ordering::SeqCst);
        assert!(cache.get(&0).await.unwrap().is_none());
        assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&1));
        cache.idle().await;
        let stats = cache.stats();
        assert_eq!((stats.loads, stats.hits), (loads, hits), "at {now}");
    }
    assert_eq!(cache.stats().null_hits, 1, "the others are of the one that is there");
}

#[tokio::test]
async fn no_more_loads_begin_than_the_limit_lets() {
    let source = Source::default();
    let builder = Cache::builder(Memory::new())
        .namespace("cache")
        .limit(limit(1, 3))
        .max_loads(64, SECOND / 10);
    let cache = source.cache(builder);
    let since = Instant::now();
    let mut refused = 0;
    for key in 0..10 {
        match cache.get(&key).await {
            Ok(_) => {}
            Err(Error::Busy { retry_after }) => {
                assert!(retry_after <= SECOND, "{retry_after:?}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let allowed = 3 + usize::try_from(Instant::now().since(since).as_secs()).unwrap();
    assert!(source.loads() <= allowed, "{}", source.loads());
    assert_eq!(source.loads() + refused, 10);
    assert_eq!(cache.stats().refused_loads, refused as u64);
    // What is cached is not limited.
    for _ in 0..100 {
        cache.get(&0).await.unwrap();
    }
}

#[tokio::test]
async fn a_load_waits_for_its_turn() {
    let source = Source::default();
    let builder =
        Cache::builder(Memory::new()).namespace("cache").limit(limit(20, 1)).max_loads(64, LONG);
    let cache = source.cache(builder.timeout(LONG));
    let keys: Vec<u32> = (0..10).collect();
    let since = Instant::now();
    cache.get_many(&keys).await.unwrap();
    assert!(Instant::now().since(since) >= Duration::from_millis(440), "nine times 50 ms");
    assert_eq!(source.loads(), 10);
}

fn quick() -> Policy {
    Policy { calls: 5, open: SECOND / 20, open_longest: SECOND / 20, ..Policy::default() }
}

#[tokio::test]
async fn a_database_that_fails_is_left_alone_and_tried_by_one() {
    let source = Source::default();
    let policy = Policy { open: Duration::from_secs(600), ..quick() };
    let cache = source.cache(Cache::builder(Memory::new()).namespace("cache").breaker(policy));
    source.broken.store(true, Ordering::SeqCst);
    let mut busy = 0;
    for key in 0..100 {
        match cache.get(&key).await {
            Err(Error::Load(_)) => {}
            Err(Error::Busy { retry_after }) => {
                assert!(retry_after > 500 * SECOND, "{retry_after:?}");
                busy += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((source.loads(), busy), (5, 95));
    // Tried again, by one at a time, until it answers.
    let cache = source.cache(Cache::builder(Memory::new()).namespace("cache").breaker(quick()));
    for key in 0..5 {
        assert!(matches!(cache.get(&key).await, Err(Error::Load(_))));
    }
    source.broken.store(false, Ordering::SeqCst);
    eventually("it is tried again", async || cache.get(&7).await.is_ok()).await;
    for key in 10..20 {
        cache.get(&key).await.unwrap();
    }
}

#[tokio::test]
async fn a_database_that_hangs_is_left_alone_too() {
    let policy = Policy { calls: 2, open: Duration::from_secs(600), ..Policy::default() };
    let builder =
        Cache::builder(Memory::new()).namespace("cache").breaker(policy).timeout(SECOND / 10);
    let cache = builder
        .build(async |_: u32| std::future::pending::<Result<Loaded<u32>, Error>>().await)
        .unwrap();
    eventually("it is left alone", async || matches!(cache.get(&1).await, Err(Error::Busy { .. })))
        .await;
    let loads = cache.stats().loads;
    assert!(loads <= 4, "{loads}");
}

#[tokio::test]
async fn a_store_that_is_down_is_asked_by_one_from_time_to_time() {
    let (store, source) = (Breaking::default(), Source::default());
    let cache = source.cache(Cache::builder(store.clone()).namespace("cache"));
    cache.get(&1).await.unwrap();
    store.set_down(true);
    let before = store.looks();
    let since = Instant::now();
    for _ in 0..200 {
        assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&1), "from the database");
    }
    let probes = usize::try_from(Instant::now().since(since).as_millis() / 500).unwrap();
    let looks = store.looks() - before;
    assert!((3..=4 + probes).contains(&looks), "{looks}");
    assert!(cache.stats().down_reads >= 199);
    // Invalidations are tried nevertheless.
    let others = store.others();
    let cache2 =
        source.cache(Cache::builder(store.clone()).namespace("cache").timeout(SECOND / 20));
    assert!(matches!(cache2.invalidate(&[1]).await, Err(Error::Store { .. })));
    assert!(store.others() > others);
    store.set_down(false);
    cache.invalidate(&[1]).await.unwrap();
    eventually("it is asked again", async || {
        let hits = cache.stats().hits;
        cache.get(&1).await.unwrap();
        cache.stats().hits > hits
    })
    .await;
}

#[tokio::test]
async fn while_it_is_down_one_loads_a_key_at_a_time_and_nobody_gets_what_is_too_old() {
    let store = Breaking::default();
    store.set_down(true);
    let database = Database::new();
    let builder = Cache::builder(store).namespace("cache").max_loads(64, LONG).timeout(LONG);
    let mut client = Client::new(builder, &database);
    let early = client.get();
    let load = client.load().await;
    // Committed: whoever reads now must see it, so nobody may share that load.
    database.commit();
    let late: Vec<_> = (0..100).map(|_| client.get()).collect();
    client.eventually("all wait", |stats| stats.misses == 101).await;
    client.no_load();
    assert!(load.go());
    assert_eq!(value(early).await, 1);
    assert!(client.load().await.go());
    for late in late {
        assert_eq!(value(late).await, 2);
    }
    client.no_load();
    assert_eq!(client.cache.stats().loads, 2);
}

#[tokio::test]
async fn while_it_is_down_reads_get_what_was_chosen() {
    let store = Breaking::default();
    store.set_down(true);
    let source = Source::default();
    let cache =
        source.cache(Cache::builder(store.clone()).namespace("cache").when_down(Down::Busy));
    for _ in 0..10 {
        assert!(matches!(cache.get(&1).await, Err(Error::Busy { .. })));
    }
    assert_eq!(source.loads(), 0);
    let down = Down::LoadAtMost(limit(1, 2));
    let builder =
        Cache::builder(store.clone()).namespace("cache").when_down(down).max_loads(64, SECOND / 20);
    let cache = source.cache(builder);
    let since = Instant::now();
    let mut busy = 0;
    for key in 0..10 {
        busy += usize::from(matches!(cache.get(&key).await, Err(Error::Busy { .. })));
    }
    let allowed = 2 + usize::try_from(Instant::now().since(since).as_secs()).unwrap();
    assert!(source.loads() <= allowed && busy >= 10 - allowed, "{} {busy}", source.loads());
    // Only while it is down.
    store.set_down(false);
    eventually("it is up", async || cache.get(&1).await.is_ok_and(|_| cache.stats().fills > 0))
        .await;
    for key in 100..120 {
        cache.get(&key).await.unwrap();
    }
}

#[tokio::test]
async fn one_of_a_group_that_is_down_is_down_alone() {
    let stores: Vec<Breaking> = (0..3).map(|_| Breaking::on(Memory::new())).collect();
    let nodes = ["a", "b", "c"].iter().zip(&stores);
    let nodes = nodes.map(|(name, store)| (*name, Arc::new(store.clone()) as Arc<dyn Store>));
    let source = Source::default();
    let cache = source.cache(Cache::builder(Grouped::new(nodes).unwrap()).namespace("cache"));
    let keys: Vec<u32> = (0..300).collect();
    cache.get_many(&keys).await.unwrap();
    assert_eq!(cache.get_many(&keys).await.unwrap().len(), 300);
    assert_eq!((source.loads(), cache.stats().hits), (300, 300));
    stores[1].set_down(true);
    let found = cache.get_many(&keys).await.unwrap();
    assert!(found.iter().zip(&keys).all(|(found, key)| found.as_deref() == Some(key)));
    let moved = source.loads() - 300;
    assert!((60..140).contains(&moved), "its share, and no more: {moved}");
    // It is not asked for each key, and the others have not got its keys.
    let (looks, others) = (stores[1].looks(), stores[1].others());
    for key in &keys {
        cache.get(key).await.unwrap();
    }
    assert!(stores[1].looks() - looks < 10, "{}", stores[1].looks() - looks);
    assert_eq!(stores[1].others(), others, "nor for a lease");
    assert_eq!(source.loads() - 300, 2 * moved, "the same again");
    assert_eq!(cache.stats().hits, 300 + 2 * (300 - moved as u64));
    stores[1].set_down(false);
    eventually("it is back", async || {
        let loads = source.loads();
        cache.get_many(&keys).await.unwrap();
        source.loads() == loads
    })
    .await;
}

#[tokio::test]
async fn one_of_a_group_that_hangs_holds_up_nobody_else() {
    let stores: Vec<Breaking> = (0..2).map(|_| Breaking::on(Memory::new())).collect();
    let nodes = ["a", "b"].iter().zip(&stores);
    let nodes = nodes.map(|(name, store)| (*name, Arc::new(store.clone()) as Arc<dyn Store>));
    let source = Source::default();
    let builder = Cache::builder(Grouped::new(nodes).unwrap()).namespace("cache").timeout(LONG);
    let cache = source.cache(builder);
    // Of each, as the counts of looks say.
    let [mut near, mut far] = [Vec::new(), Vec::new()];
    for key in 0..40 {
        let looks = stores[1].looks();
        cache.get(&key).await.unwrap();
        if stores[1].looks() == looks { near.push(key) } else { far.push(key) }
    }
    let loads = source.loads();
    assert_eq!(loads, 40);
    stores[1].tell(Some(0));
    // As many at a time as would go together at one store.
    let hangs: Vec<_> = far.iter().map(|key| (cache.clone(), *key)).collect();
    let hangs =
        hangs.into_iter().map(|(cache, key)| tokio::spawn(async move { cache.get(&key).await }));
    let hangs: Vec<_> = hangs.collect();
    let seen = stores[1].looks() + far.len();
    eventually("they hang", async || stores[1].looks() >= seen).await;
    for key in &near {
        soon("a hit", cache.get(key)).await.unwrap();
    }
    assert_eq!((source.loads(), cache.stats().bypasses), (loads, 0));
    hangs.iter().for_each(tokio::task::JoinHandle::abort);
    // Whoever asks for what is there gives up early, and the others have their turn.
    eventually("it is left alone", async || {
        let patience = Duration::from_millis(20);
        tokio::time::timeout(patience, cache.get(&far[0])).await.is_ok()
    })
    .await;
    let loads = source.loads();
    for key in &near {
        soon("a hit", cache.get(key)).await.unwrap();
    }
    assert_eq!(source.loads(), loads, "the others are as they were");
    stores[1].tell(None);
    eventually("it is asked again", async || {
        let loads = source.loads();
        cache.get(&far[0]).await.unwrap();
        source.loads() == loads
    })
    .await;
}

#[tokio::test]
async fn a_stale_value_is_served_while_another_process_loads() {
    let (memory, database) = (Memory::new(), Database::new());
    let minute = Duration::from_secs(60);
    let [mut one, mut other] = [0; 2].map(|_| {
        Client::new(Cache::builder(memory.clone()).namespace("cache").keep_last(minute), &database)
    });
    assert_eq!(one.loaded().await, 1);
    database.commit();
    one.cache.invalidate(&[1]).await.unwrap();
    let get = one.get();
    let load = one.load().await;
    let stale = lockkeeper_cache::Freshness::Stale(minute);
    for _ in 0..3 {
        assert_eq!(other.cache.read(&1, stale).await.unwrap().value.as_deref(), Some(&1));
    }
    other.no_load();
    assert_eq!(other.cache.stats().stale_hits, 3);
    assert!(load.go());
    assert_eq!(value(get).await, 2);
    assert_eq!(other.hit().await, 2);
}
