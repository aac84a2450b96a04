//! What strategies do besides reading and writing: to the first level, to the filter, and for what the store fails at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::Locks;
use lockkeeper_cache::entry::{Begun, Filled, Invalidation, Millis, Settled, Ticket, Value};
use lockkeeper_cache::filter::{Build, Filter, FilterError, Shape, Verdict};
use lockkeeper_cache::store::{Changes, Cursor, Deletes, Page, Result};
use lockkeeper_cache::{
    BoxError, Builder, Cache, Down, Error, FirstLevel, Freshness, Loaded, Redis, Seen, Source,
    Store, StoreError, Strategy, Table, Watch,
};
use parking_lot::Mutex;
use testkit::resp::Raw;
use testkit::server::{self, Server};
use testkit::wait::{LONG, eventually, soon};

use crate::tables::Names;

/// A store that tells of no changes, and that fails when it is told to.
#[derive(Debug)]
struct Quiet {
    store: Redis,
    fails: Arc<AtomicBool>,
}

impl Quiet {
    fn check(&self) -> Result<()> {
        match self.fails.load(Ordering::SeqCst) {
            true => Err(StoreError::new("quiet", "told to fail")),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Store for Quiet {
    fn now(&self) -> Millis {
        self.store.now()
    }

    async fn get(&self, keys: &[&str]) -> Result<Vec<Seen>> {
        self.store.get(keys).await
    }

    async fn begin(
        &self,
        key: &str,
        ticket: Ticket,
        lease: Duration,
        except: Option<Ticket>,
    ) -> Result<Begun> {
        self.store.begin(key, ticket, lease, except).await
    }

    async fn fill(&self, key: &str, value: &Value, ttl: Duration) -> Result<Filled> {
        self.store.fill(key, value, ttl).await
    }

    async fn put(&self, key: &str, value: &Value, ttl: Duration) -> Result<()> {
        self.check()?;
        self.store.put(key, value, ttl).await
    }

    async fn give_up(&self, key: &str, ticket: Ticket) -> Result<()> {
        self.store.give_up(key, ticket).await
    }

    async fn invalidate(&self, keys: &[&str], how: Invalidation) -> Result<()> {
        self.check()?;
        self.store.invalidate(keys, how).await
    }

    async fn intend(&self, keys: &[&str], writer: Ticket, ttl: Duration) -> Result<()> {
        self.store.intend(keys, writer, ttl).await
    }

    async fn settle(&self, keys: &[&str], writer: Ticket, how: Invalidation) -> Result<Settled> {
        self.store.settle(keys, writer, how).await
    }

    fn changes(&self) -> Option<&dyn Changes> {
        self.store.changes()
    }

    fn deletes(&self) -> Option<&dyn Deletes> {
        self.store.deletes()
    }

    async fn update(
        &self,
        updates: &[(&str, &Value, Duration)],
        how: Invalidation,
    ) -> Result<Vec<bool>> {
        self.store.update(updates, how).await
    }

    async fn list(&self, prefix: &str, from: Cursor) -> Result<Page> {
        self.check()?;
        self.store.list(prefix, from).await
    }

    async fn tag(&self, key: &str, tags: &[&str], time: Duration) -> Result<()> {
        self.store.tag(key, tags, time).await
    }

    async fn tagged(&self, tag: &str, from: Cursor) -> Result<Page> {
        self.store.tagged(tag, from).await
    }

    fn follow(&self, _: &str, changes: &Arc<Watch>) -> bool {
        changes.caught_up(Watch::now());
        true
    }
}

async fn builder(server: &Server, fails: &Arc<AtomicBool>) -> Builder {
    let store = Redis::connect_warm(&format!("redis://{}", server.address())).await.unwrap();
    let builder = Cache::builder(Quiet { store, fails: Arc::clone(fails) }).namespace("cache");
    builder.timeout(Duration::from_millis(500))
}

async fn table(server: &Server, strategy: Strategy, names: &Names) -> Table<u32, String> {
    let builder = builder(server, &Arc::default()).await.namespace(strategy.name());
    let builder = builder.keep_last(Duration::from_millis(1)).timeout(Duration::from_secs(5));
    builder.locks(Locks::memory()).table(strategy, names.clone()).unwrap()
}

fn level() -> FirstLevel {
    FirstLevel::new(10).bound(Duration::from_secs(3600))
}

async fn read(cache: &Cache<u32, String>) -> (Option<String>, Source) {
    let read = soon("a value", cache.read(&1, Freshness::Any)).await.unwrap();
    (read.value.map(|name| (*name).clone()), read.source)
}

/// Until it is in the first level.
async fn keep(cache: &Cache<u32, String>) {
    eventually("it is kept", async || read(cache).await.1 == Source::First).await;
}

#[tokio::test]
async fn what_a_table_of_this_process_writes_the_first_level_does_not_hide() {
    let server = server::redis(&[]).await;
    for strategy in Strategy::ALL.into_iter().filter(|one| *one != Strategy::TtlOnly) {
        let names = Names::default();
        let table = table(&server, strategy, &names).await;
        if strategy == Strategy::Bypass {
            continue;
        }
        let cache = table.cache().clone().with_first_level(level()).unwrap();
        table.write(&1, Some("a".into())).await.unwrap();
        keep(&cache).await;
        table.write(&1, Some("b".into())).await.unwrap();
        let (seen, source) = read(&cache).await;
        let old = matches!(source, Source::First) && seen.as_deref() == Some("a");
        assert!(!old, "{strategy}");
    }
}

#[tokio::test]
async fn what_is_set_the_first_level_does_not_hide() {
    let server = server::redis(&[]).await;
    let builder = builder(&server, &Arc::default()).await;
    let load = async |_: u32| Ok::<_, Error>(Loaded::found("a".to_owned()).version(1));
    let cache = builder.build(load).unwrap().with_first_level(level()).unwrap();
    keep(&cache).await;
    let rows = [(1, Loaded::found("b".to_owned()).version(2))];
    assert_eq!(cache.set_many(&rows).await.unwrap(), [true]);
    assert_eq!(read(&cache).await.0.as_deref(), Some("b"));
}

/// What was not reached may be anything.
#[tokio::test]
async fn a_clear_that_fails_empties_the_first_level() {
    let server = server::redis(&[]).await;
    let (fails, names) = (Arc::<AtomicBool>::default(), Names::default());
    names.set(1, Some("a"));
    let table = builder(&server, &fails).await.table(Strategy::FillLease, names.clone()).unwrap();
    let cache = table.cache().clone().with_first_level(level()).unwrap();
    keep(&cache).await;
    names.set(1, Some("b"));
    fails.store(true, Ordering::SeqCst);
    assert!(matches!(cache.clear().await, Err(Error::Store { .. })));
    assert_eq!(read(&cache).await.0.as_deref(), Some("b"));
}

/// Strategies that delete after the commit.
const DELETING: [Strategy; 3] =
    [Strategy::UpdateThenDelete, Strategy::WriteThrough, Strategy::ReadWriteLock];

#[tokio::test]
async fn a_delete_that_fails_is_made_up_for() {
    let server = server::redis(&[]).await;
    for strategy in DELETING {
        let (fails, names) = (Arc::<AtomicBool>::default(), Names::default());
        names.set(1, Some("a"));
        let builder =
            builder(&server, &fails).await.namespace(strategy.name()).locks(Locks::memory());
        let table = builder.table(strategy, names.clone()).unwrap();
        for _ in 0..2 {
            table.read(&1).await.unwrap();
        }
        fails.store(true, Ordering::SeqCst);
        let written = table.write(&1, Some("b".into())).await;
        assert!(matches!(written, Err(Error::Committed { .. })), "{strategy}: {written:?}");
        assert_eq!(table.cache().debt(), Some(1), "{strategy}");
        let seen = table.read(&1).await.unwrap().value;
        assert_eq!(seen.as_deref().map(String::as_str), Some("b"), "{strategy}");
        fails.store(false, Ordering::SeqCst);
        eventually("it is made up for", async || table.cache().debt() == Some(0)).await;
        assert_eq!(read(table.cache()).await.0.as_deref(), Some("b"), "{strategy}");
    }
}

/// They are known only as long as the set of the tag is read.
#[tokio::test]
async fn a_tag_is_owed_as_a_whole() {
    let server = server::redis(&[]).await;
    let fails = Arc::<AtomicBool>::default();
    let load = async |key: u32| Ok::<_, Error>(Loaded::found(key));
    let builder = builder(&server, &fails).await.tags(|_: &u32| vec!["all".to_owned()]);
    let cache = builder.timeout(LONG / 4).build(load).unwrap();
    let keys: Vec<u32> = (0..1200).collect();
    let get_all = async || {
        for some in keys.chunks(100) {
            soon("all", cache.get_many(some)).await.unwrap();
        }
        cache.idle().await;
        cache.stats()
    };
    assert_eq!(get_all().await.fills, 1200);
    fails.store(true, Ordering::SeqCst);
    let refused = soon("an end", cache.invalidate_tag("all")).await;
    assert!(matches!(refused, Err(Error::Store { .. })), "{refused:?}");
    assert_eq!(cache.debt(), Some(1200));
    fails.store(false, Ordering::SeqCst);
    eventually("it is made up for", async || cache.debt() == Some(0)).await;
    assert_eq!(get_all().await.loads, 2400);
}

/// Writes down what is inserted, and calls all the rest absent.
#[derive(Clone, Debug, Default)]
struct Strict {
    known: Arc<Mutex<Vec<String>>>,
    fails: Arc<AtomicBool>,
}

impl Strict {
    fn knows(&self, key: &str) -> bool {
        self.known.lock().iter().any(|known| known == key)
    }
}

#[async_trait]
impl Filter for Strict {
    async fn look(&self, keys: &[&[u8]]) -> Vec<Verdict> {
        let look = |key: &&[u8]| match self.knows(std::str::from_utf8(key).unwrap()) {
            true => Verdict::Maybe,
            false => Verdict::Absent,
        };
        keys.iter().map(look).collect()
    }

    async fn insert(&self, keys: &[&[u8]]) -> std::result::Result<(), FilterError> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(FilterError::Store("told to fail".into()));
        }
        self.known.lock().extend(keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()));
        Ok(())
    }

    async fn begin(&self, _: Shape) -> std::result::Result<Box<dyn Build>, FilterError> {
        Err(FilterError::Size("none"))
    }
}

/// R18: who dies right after the commit leaves no row that the filter calls absent. And a filter that was begun while
/// the row was written knows it, too.
#[tokio::test]
async fn the_filter_knows_a_key_before_the_commit_and_after_it() {
    let server = server::redis(&[]).await;
    for strategy in Strategy::ALL {
        let (filter, names) = (Strict::default(), Names::default());
        let builder = builder(&server, &Arc::default()).await.namespace(strategy.name());
        let builder = builder.locks(Locks::memory());
        let builder = builder.keep_last(Duration::from_millis(1)).filter(filter.clone());
        let table = builder.table(strategy, names.clone()).unwrap();
        if strategy == Strategy::WriteBehind {
            filter.fails.store(true, Ordering::SeqCst);
            let refused = table.write(&1, Some("a".into())).await;
            assert!(matches!(refused, Err(Error::Store { .. })), "{refused:?}");
            assert_eq!(table.pending().await.unwrap(), 0);
            filter.fails.store(false, Ordering::SeqCst);
            table.write(&1, Some("a".into())).await.unwrap();
            assert!(filter.knows("1"));
            continue;
        }
        let commit = async {
            assert!(filter.knows("1"), "{strategy}: before the commit");
            filter.known.lock().clear();
            Ok::<_, BoxError>(Loaded::found("a".to_owned()).version(names.set(1, Some("a"))))
        };
        table.write_with(&1, commit).await.unwrap();
        assert!(filter.knows("1"), "{strategy}: after the commit");
        filter.fails.store(true, Ordering::SeqCst);
        let refused = table.write(&2, Some("b".into())).await;
        assert!(matches!(refused, Err(Error::Store { .. })), "{strategy}: {refused:?}");
        assert_eq!(names.get(2), None, "{strategy}: nothing was written");
    }
}

#[tokio::test]
async fn the_filter_knows_what_a_transaction_touches_and_what_is_set() {
    let server = server::redis(&[]).await;
    let filter = Strict::default();
    let builder = builder(&server, &Arc::default()).await.filter(filter.clone());
    let load = async |_: u32| Ok::<_, Error>(Loaded::found("a".to_owned()).version(1));
    let cache = builder.build(load).unwrap();
    let mut tx = cache.transaction();
    tx.touch(&1).unwrap();
    let commit = async {
        assert!(filter.knows("1"), "before the commit");
        Ok::<_, Error>(())
    };
    tx.commit(commit).await.unwrap().cache.unwrap();
    cache.set_many(&[(2, Loaded::found("b".to_owned()).version(2))]).await.unwrap();
    assert!(filter.knows("2"));
}

/// Old values may have been served until now; that the key is called absent from now on would be worse.
#[tokio::test]
async fn a_writer_whose_intent_has_lapsed_is_told_that_the_filter_failed() {
    let server = server::redis(&[]).await;
    let (filter, raw) = (Strict::default(), Raw::connect(server.address()).await);
    let builder = builder(&server, &Arc::default()).await.filter(filter.clone());
    let load = async |key: u32| Ok::<_, Error>(Loaded::found(key));
    let cache = builder.intent(Duration::from_millis(50)).timeout(LONG / 4).build(load).unwrap();
    for fails in [false, true] {
        let write = cache.intend(&[1]).await.unwrap();
        eventually("it has lapsed", async || raw.keys("*:1").await.is_empty()).await;
        filter.fails.store(fails, Ordering::SeqCst);
        let settled = write.settle(None).await;
        match fails {
            false => assert!(matches!(settled, Ok(Settled::Lapsed)), "{settled:?}"),
            true => assert!(matches!(settled, Err(Error::Store { .. })), "{settled:?}"),
        }
    }
    assert_eq!(cache.debt(), Some(1), "and it is inserted later");
    filter.fails.store(false, Ordering::SeqCst);
    eventually("it is", async || cache.debt() == Some(0)).await;
}

#[tokio::test]
async fn without_the_store_plain_strategies_do_what_was_chosen() {
    for strategy in [Strategy::UpdateThenDelete, Strategy::WriteThrough, Strategy::ReadWriteLock] {
        let server = server::redis(&[]).await;
        let names = Names::default();
        let builder = builder(&server, &Arc::default()).await.when_down(Down::Busy);
        let builder = builder.locks(Locks::memory());
        let table = builder.timeout(Duration::from_secs(5)).table(strategy, names.clone()).unwrap();
        table.read(&1).await.unwrap();
        drop(server);
        let refused = soon("an end", table.read(&1)).await;
        assert!(matches!(refused, Err(Error::Busy { .. })), "{strategy}: {refused:?}");
    }
}

#[tokio::test]
async fn tags_find_what_plain_strategies_have_set() {
    let server = server::redis(&[]).await;
    for strategy in [Strategy::UpdateThenDelete, Strategy::WriteThrough, Strategy::ReadWriteLock] {
        let names = Names::default();
        let builder = builder(&server, &Arc::default()).await.namespace(strategy.name());
        let builder = builder.locks(Locks::memory());
        let builder = builder.tags(|_: &u32| vec!["all".to_owned()]);
        let table = builder.table(strategy, names.clone()).unwrap();
        table.write(&1, Some("a".into())).await.unwrap();
        table.read(&1).await.unwrap();
        names.set(1, Some("b"));
        assert_eq!(table.cache().invalidate_tag("all").await.unwrap(), 1, "{strategy}");
        let seen = table.read(&1).await.unwrap().value;
        assert_eq!(seen.as_deref().map(String::as_str), Some("b"), "{strategy}");
    }
    let builder = builder(&server, &Arc::default()).await.tags(|_: &u32| vec!["all".to_owned()]);
    let refused = builder.table(Strategy::WriteBehind, Names::default());
    assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
}
