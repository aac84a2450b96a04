//! What the audit counts, and what it does not.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::clock::Instant;
use lockkeeper_cache::{
    BoxError, Builder, Cache, Database, Error, Event, Loaded, Loader, Order, Stats, Strategy,
};
use testkit::random::Random;
use testkit::wait::eventually;

use crate::harness::{Place, on_each_store};
use crate::processes;

pub(crate) const OFTEN: NonZeroU32 = NonZeroU32::new(1000).unwrap();

on_each_store! {
    strategies_without_leases_are_audited_as_well
    what_was_changed_behind_its_back_is_counted_and_mended
    a_writer_has_the_delay_to_invalidate
    it_asks_no_more_than_it_may_and_ends_with_its_handle
    what_is_read_much_takes_no_places_of_others
}

/// Each is compared once at a time, so many are compared soon only where there are many.
const KEYS: usize = 100;

/// Numbers, each with its version or not.
#[derive(Clone)]
pub(crate) struct Rows(Arc<[AtomicU64]>);

impl Rows {
    fn new() -> Self {
        Self::many(KEYS)
    }

    pub(crate) fn many(rows: usize) -> Self {
        Self((0..rows).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn row(&self, key: usize) -> &AtomicU64 {
        &self.0[key]
    }

    pub(crate) fn cache(&self, builder: Builder, versions: bool) -> Cache<usize, u64> {
        let rows = self.clone();
        let loader = move |key: usize| {
            let value = rows.row(key).load(Ordering::SeqCst);
            let version = if versions { value + 1 } else { 0 };
            async move { Ok::<_, Error>(Loaded::found(value).version(version)) }
        };
        builder.build(loader).unwrap()
    }
}

/// Reads until that holds.
async fn read_until(
    cache: &Cache<usize, u64>,
    what: &str,
    holds: impl Fn(Stats) -> bool + Send + Sync,
) {
    let keys: Vec<usize> = (0..KEYS).cycle().take(2 * KEYS).collect();
    eventually(what, async || {
        cache.get_many(&keys).await.unwrap();
        holds(cache.stats())
    })
    .await;
}

/// Those that need it most.
async fn strategies_without_leases_are_audited_as_well(place: &Place) {
    struct Counter(Arc<AtomicU64>);
    #[async_trait]
    impl Loader<u32, u64> for Counter {
        async fn load(&self, _: &u32) -> Result<Loaded<u64>, BoxError> {
            Ok(Loaded::found(self.0.load(Ordering::SeqCst)))
        }
    }
    #[async_trait]
    impl Database<u32, u64> for Counter {
        async fn store(
            &self,
            _: &u32,
            to: Option<&u64>,
            _: Option<Order>,
        ) -> Result<u64, BoxError> {
            self.0.store(*to.unwrap_or(&0), Ordering::SeqCst);
            Ok(0)
        }
    }
    let row = Arc::<AtomicU64>::default();
    let counter = Counter(Arc::clone(&row));
    let table = place.builder().await.table(Strategy::UpdateThenDelete, counter).unwrap();
    let audit = table.cache().audit(OFTEN, Duration::from_millis(10));
    table.read(&1).await.unwrap();
    row.store(7, Ordering::SeqCst);
    eventually("it is found", async || {
        for _ in 0..100 {
            table.read(&1).await.unwrap();
        }
        table.cache().stats().audit_stale > 0
    })
    .await;
    assert_eq!(table.read(&1).await.unwrap().value.as_deref(), Some(&7));
    eventually("it is known to be read much", async || {
        table.read(&1).await.unwrap();
        table.cache().hot_keys().len() == 1
    })
    .await;
    drop(audit);
}

async fn what_was_changed_behind_its_back_is_counted_and_mended(place: &Place) {
    for versions in [false, true] {
        let rows = Rows::new();
        let builder = place.builder().await.namespace(format!("versions {versions}"));
        let cache = rows.cache(builder, versions);
        let audit = cache.audit(OFTEN, Duration::from_millis(10));
        read_until(&cache, "some are audited", |stats| stats.audited > 20).await;
        assert_eq!(cache.stats().audit_stale, 0);
        // Nobody says that it was.
        rows.row(3).store(7, Ordering::SeqCst);
        read_until(&cache, "it is found", |stats| stats.audit_stale > 0).await;
        assert_eq!(cache.get(&3).await.unwrap().as_deref(), Some(&7), "and mended");
        let events = cache.explain(&3).await.unwrap().events;
        assert!(events.iter().any(|past| past.event == Event::AuditStale), "{events:?}");
        drop(audit);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_memory_nothing_is_counted() {
    nothing_is_counted_while_everybody_invalidates(&Place::memory()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis_nothing_is_counted() {
    nothing_is_counted_while_everybody_invalidates(&Place::redis().await).await;
}

async fn nothing_is_counted_while_everybody_invalidates(place: &Place) {
    let rows = Rows::new();
    let cache = rows.cache(place.builder().await, true);
    // From a commit to its invalidation is far less than this.
    let audit = cache.audit(OFTEN, Duration::from_secs(1));
    let mut random = Random::seeded();
    let writers = (0..4).map(|_| {
        let (rows, cache, mut random) = (rows.clone(), cache.clone(), random.fork());
        tokio::spawn(async move {
            loop {
                let key = usize::try_from(random.below(KEYS as u64)).unwrap();
                rows.row(key).fetch_add(1, Ordering::SeqCst);
                cache.invalidate(&[key]).await.unwrap();
                tokio::time::sleep(random.duration(Duration::from_millis(30))).await;
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    read_until(&cache, "many are audited", |stats| stats.audited > 300).await;
    writers.iter().for_each(|writer| writer.abort());
    let stats = cache.stats();
    assert_eq!(stats.audit_stale, 0, "{stats:?}");
    assert!(stats.invalidations > 5);
    drop(audit);
}

async fn a_writer_has_the_delay_to_invalidate(place: &Place) {
    let rows = Rows::new();
    let cache = rows.cache(place.builder().await, false);
    let audit = cache.audit(OFTEN, Duration::from_secs(5));
    read_until(&cache, "it is cached", |stats| stats.hits > 0).await;
    // Committed, and seen by the audit before the writer gets to invalidate.
    (0..KEYS).for_each(|key| rows.row(key).store(7, Ordering::SeqCst));
    let before = cache.stats().audited;
    read_until(&cache, "the audit has seen it", |stats| stats.audited > before + 5).await;
    assert_eq!(cache.get(&0).await.unwrap().as_deref(), Some(&0));
    cache.invalidate(&(0..KEYS).collect::<Vec<_>>()).await.unwrap();
    let before = cache.stats().audited;
    read_until(&cache, "it goes on", |stats| stats.audited > before + 30).await;
    assert_eq!(cache.stats().audit_stale, 0);
    drop(audit);
}

async fn it_asks_no_more_than_it_may_and_ends_with_its_handle(place: &Place) {
    let rows = Rows::new();
    let cache = rows.cache(place.builder().await, false);
    let audit = cache.audit(NonZeroU32::MIN, Duration::ZERO);
    let other = cache.audit(NonZeroU32::MIN, Duration::ZERO);
    // The first is not the one any more: it takes nothing with it.
    drop(audit);
    let (keys, since) = ((0..10).collect::<Vec<_>>(), Instant::now());
    for _ in 0..200 {
        cache.get_many(&keys).await.unwrap();
    }
    eventually("one is audited", async || cache.stats().audited > 0).await;
    let (stats, seconds) = (cache.stats(), Instant::now().since(since).as_secs());
    assert!(stats.audited <= seconds + 2, "{seconds} s, {stats:?}");
    drop((other, cache));
    eventually("nothing is left of it", async || Arc::strong_count(&rows.0) == 1).await;
}

async fn what_is_read_much_takes_no_places_of_others(place: &Place) {
    let loads: Arc<[AtomicU64; 2]> = Arc::default();
    let counted = Arc::clone(&loads);
    let loader = move |key: usize| {
        counted[key].fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, Error>(Loaded::found(key)) }
    };
    let cache = place.builder().await.build(loader).unwrap();
    let audit = cache.audit(OFTEN, Duration::from_secs(5));
    let now = || loads.each_ref().map(|loads| loads.load(Ordering::SeqCst));
    for key in 0..2 {
        let end = Instant::now() + Duration::from_millis(200);
        eventually("it is read much", async || {
            cache.get_many(&[key; 100]).await.unwrap();
            Instant::now() > end
        })
        .await;
    }
    assert_eq!(now(), [1, 1], "the machine is too slow for this");
    eventually("both are compared", async || now()[1] > 1).await;
    assert_eq!(now(), [2, 2], "once each, by one of some hundred hits that the rate lets");
    drop(audit);
}

const TABLE: [&str; 2] = [
    "CREATE TABLE audited (id INT PRIMARY KEY, val TEXT NOT NULL, ver BIGINT NOT NULL)",
    "INSERT INTO audited SELECT id, 'row ' || id, 1 FROM generate_series(0, 9) id",
];

/// What somebody types at the database, who knows of no cache.
#[tokio::test]
async fn rows_that_are_changed_by_hand_are_found_and_mended() {
    let (server, pool) = processes::database(&TABLE).await;
    let place = Place::redis().await;
    let loader = move |key: i32| {
        let pool = pool.clone();
        async move {
            let select = sqlx::query_as("SELECT val, ver FROM audited WHERE id = $1").bind(key);
            let row: Option<(String, i64)> = select.fetch_optional(&pool).await?;
            let Some((value, version)) = row else { return Ok(Loaded::nothing()) };
            Ok::<_, sqlx::Error>(Loaded::found(value).version(version.cast_unsigned()))
        }
    };
    let cache = place.builder().await.build(loader).unwrap();
    let read = async || {
        for key in (0..10).cycle().take(100) {
            cache.get(&key).await.unwrap();
        }
        cache.stats()
    };
    let audit = cache.audit(OFTEN, Duration::from_millis(50));
    eventually("some are audited", async || read().await.audited > 20).await;
    assert_eq!(cache.stats().audit_stale, 0);
    for (sql, key, expected) in [
        ("UPDATE audited SET val = 'new', ver = ver + 1 WHERE id = 3", 3, Some("new")),
        ("DELETE FROM audited WHERE id = 4", 4, None),
    ] {
        let before = cache.stats().audit_stale;
        server.operator("here", sql);
        assert_ne!(cache.get(&key).await.unwrap().as_deref().map(String::as_str), expected);
        eventually("it is found", async || read().await.audit_stale > before).await;
        let mended =
            async || cache.get(&key).await.unwrap().as_deref().map(String::as_str) == expected;
        eventually("it is mended", mended).await;
    }
    let found = async |key: i32| {
        let events = cache.explain(&key).await.unwrap().events;
        events.iter().any(|past| past.event == Event::AuditStale)
    };
    assert_eq!((found(3).await, found(4).await, found(5).await), (true, true, false));
    drop(audit);
}
