//! Every strategy does what all of them must.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::Locks;
use lockkeeper_cache::{
    BoxError, Builder, Cache, Database, Error, Loaded, Loader, Order, Redis, Source, Strategy,
    Table,
};
use parking_lot::Mutex;
use testkit::nodes::Cluster;
use testkit::server;
use testkit::wait::soon;

use crate::harness::{Place, on_each_store};

on_each_store! {
    what_is_written_is_read
    a_commit_of_ones_own_is_as_good
    a_database_that_fails_says_so_and_what_it_did_is_seen
    a_write_that_is_dropped_in_the_middle_leaves_nothing_stale
}

/// How many changes a key had, and what it has since the last one.
type Rows = HashMap<u32, (u64, Option<String>)>;

/// A database that can fail, after it has done what it was told or before.
#[derive(Clone, Default)]
pub(crate) struct Names {
    rows: Arc<Mutex<Rows>>,
    fails: Arc<AtomicBool>,
    pub(crate) loads: Arc<AtomicUsize>,
}

impl Names {
    pub(crate) fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::SeqCst);
    }

    pub(crate) fn set(&self, id: u32, name: Option<&str>) -> u64 {
        let mut rows = self.rows.lock();
        let (version, row) = rows.entry(id).or_default();
        (*version, *row) = (*version + 1, name.map(str::to_owned));
        *version
    }

    pub(crate) fn get(&self, id: u32) -> Option<String> {
        self.rows.lock().get(&id).and_then(|(_, name)| name.clone())
    }
}

#[async_trait]
impl Loader<u32, String> for Names {
    async fn load(&self, id: &u32) -> Result<Loaded<String>, BoxError> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        if self.fails.load(Ordering::SeqCst) {
            return Err("no database".into());
        }
        let (version, name) = self.rows.lock().get(id).cloned().unwrap_or_default();
        Ok(Loaded::from(name).version(version))
    }
}

#[async_trait]
impl Database<u32, String> for Names {
    async fn store(
        &self,
        id: &u32,
        name: Option<&String>,
        _: Option<Order>,
    ) -> Result<u64, BoxError> {
        // Done, and nobody knows.
        let version = self.set(*id, name.map(String::as_str));
        if self.fails.load(Ordering::SeqCst) { Err("no answer".into()) } else { Ok(version) }
    }
}

/// What is there of each strategy; write-behind is another matter.
fn strategies() -> impl Iterator<Item = Strategy> {
    Strategy::ALL.into_iter().filter(|strategy| *strategy != Strategy::WriteBehind)
}

async fn table(place: &Place, strategy: Strategy, names: &Names) -> Table<u32, String> {
    configured(place.builder().await.namespace(strategy.name()), strategy, names)
}

fn configured(builder: Builder, strategy: Strategy, names: &Names) -> Table<u32, String> {
    let builder = builder.locks(Locks::memory()).keep_last(Duration::from_millis(1));
    builder.timeout(Duration::from_secs(5)).table(strategy, names.clone()).unwrap()
}

async fn read(table: &Table<u32, String>, id: u32) -> Option<String> {
    let read = soon("a value", table.read(&id)).await.unwrap();
    read.value.map(|name| (*name).clone())
}

/// Whether it is the cache's business that a read sees the write before it.
fn follows(strategy: Strategy) -> bool {
    strategy != Strategy::TtlOnly
}

async fn what_is_written_is_read(place: &Place) {
    for strategy in strategies() {
        let names = Names::default();
        let table = table(place, strategy, &names).await;
        assert_eq!(table.strategy(), strategy);
        assert_eq!(read(&table, 1).await, None, "{strategy}");
        for (name, version) in [(Some("a"), 1), (Some("b"), 2), (None, 3)] {
            let written = table.write(&1, name.map(str::to_owned)).await.unwrap();
            assert_eq!(written.version, version, "{strategy}");
            for _ in 0..2 {
                let expected = if follows(strategy) { name } else { None };
                let seen = fresh(&table).await;
                assert_eq!(seen.as_deref(), expected, "{strategy}");
            }
        }
        let hit = table.read(&1).await.unwrap();
        let cached = hit.source == Source::Hit && hit.value.is_none();
        assert_eq!(cached, strategy != Strategy::Bypass, "{strategy}");
        assert!(matches!(table.read(&7).await, Ok(read) if read.value.is_none()));
    }
}

/// Reads key 1, and not what is served for a millisecond after its end.
async fn fresh(table: &Table<u32, String>) -> Option<String> {
    loop {
        let read = soon("a value", table.read(&1)).await.unwrap();
        if read.source != Source::Stale {
            return read.value.map(|name| (*name).clone());
        }
        tokio::task::yield_now().await;
    }
}

async fn a_commit_of_ones_own_is_as_good(place: &Place) {
    for strategy in strategies() {
        let names = Names::default();
        let table = table(place, strategy, &names).await;
        assert_eq!(read(&table, 1).await, None);
        let commit =
            async { Ok(Loaded::found("own".to_owned()).version(names.set(1, Some("own")))) };
        assert_eq!(table.write_with(&1, commit).await.unwrap().version, 1, "{strategy}");
        let expected = follows(strategy).then_some("own");
        assert_eq!(fresh(&table).await.as_deref(), expected, "{strategy}");
    }
}

async fn a_database_that_fails_says_so_and_what_it_did_is_seen(place: &Place) {
    for strategy in strategies() {
        let names = Names::default();
        let table = table(place, strategy, &names).await;
        assert_eq!(read(&table, 1).await, None);
        names.fail(true);
        let failed = table.write(&1, Some("new".to_owned())).await;
        assert!(matches!(failed, Err(Error::Commit(_))), "{strategy}: {failed:?}");
        let failed = table.read(&2).await;
        assert!(matches!(failed, Err(Error::Load(_))), "{strategy}: {failed:?}");
        names.fail(false);
        let expected = follows(strategy).then_some("new");
        assert_eq!(fresh(&table).await.as_deref(), expected, "{strategy}");
    }
}

async fn a_write_that_is_dropped_in_the_middle_leaves_nothing_stale(place: &Place) {
    let promising = [
        Strategy::FillLease,
        Strategy::Strong,
        Strategy::BoundedStale,
        Strategy::WriteThrough,
        Strategy::ReadWriteLock,
    ];
    for strategy in promising {
        let names = Names::default();
        let table = table(place, strategy, &names).await;
        assert_eq!(read(&table, 1).await, None);
        let commit = async {
            names.set(1, Some("new"));
            std::future::pending().await
        };
        let mut write = Box::pin(table.write_with(&1, commit));
        soon("the commit", async {
            while names.get(1).is_none() {
                let _ = futures_util::poll!(write.as_mut());
                tokio::task::yield_now().await;
            }
        })
        .await;
        drop(write);
        testkit::wait::eventually("it is seen", async || {
            fresh(&table).await.as_deref() == Some("new")
        })
        .await;
    }
}

/// Write-behind as well, which has its own tests at a single server.
#[tokio::test]
async fn each_works_in_a_cluster() {
    let cluster = Cluster::shared().await;
    for strategy in Strategy::ALL {
        let store = match strategy {
            Strategy::WriteBehind => soon("connected", Redis::connect_warm(&cluster.url())).await,
            _ => soon("connected", Redis::connect(&cluster.url())).await,
        };
        let builder = Cache::builder(store.unwrap()).namespace(format!("each-{strategy}"));
        let names = Names::default();
        names.set(1, Some("old"));
        let table = configured(builder, strategy, &names);
        for cached in [false, strategy != Strategy::Bypass] {
            let read = soon("a value", table.read(&1)).await.unwrap();
            let source = if cached { Source::Hit } else { Source::Loaded };
            assert_eq!(read.value.as_deref().map(String::as_str), Some("old"), "{strategy}");
            assert_eq!(read.source, source, "{strategy}");
            soon("it is filled", table.cache().idle()).await;
        }
        soon("written", table.write(&1, Some("new".to_owned()))).await.unwrap();
        let expected = if follows(strategy) { "new" } else { "old" };
        assert_eq!(fresh(&table).await.as_deref(), Some(expected), "{strategy}");
        soon("a flush", table.flush()).await.unwrap();
        assert_eq!(names.get(1).as_deref(), Some("new"), "{strategy}");
        assert_eq!(table.cache().stats().store_errors, 0, "{strategy}");
    }
}

#[tokio::test]
async fn a_store_that_is_gone_is_an_error_of_writes_and_not_of_reads() {
    let mut server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let names = Names::default();
    let mut tables = Vec::new();
    for strategy in strategies() {
        let store = Redis::connect(&url).await.unwrap();
        let builder = Cache::builder(store).namespace(strategy.name()).locks(Locks::memory());
        let builder = builder.keep_last(Duration::from_secs(1)).timeout(Duration::from_millis(900));
        tables.push(builder.table(strategy, names.clone()).unwrap());
    }
    server.kill();
    for table in tables {
        let strategy = table.strategy();
        let before = names.set(1, Some("there"));
        assert_eq!(read(&table, 1).await.as_deref(), Some("there"), "{strategy}");
        let written = soon("an end", table.write(&1, Some("new".to_owned()))).await;
        match strategy {
            Strategy::TtlOnly | Strategy::Bypass => {
                assert_eq!(written.unwrap().version, before + 1);
            }
            Strategy::Strong | Strategy::DeleteThenUpdate | Strategy::DoubleDelete => {
                assert!(matches!(written, Err(Error::Store { .. })), "{strategy}: {written:?}");
                assert_eq!(names.get(1).as_deref(), Some("there"), "{strategy} has written");
            }
            _ => {
                let known = matches!(&written, Err(Error::Committed { version, source })
                    if *version == before + 1 && matches!(**source, Error::Store { .. }));
                assert!(known, "{strategy}: {written:?}");
                assert_eq!(names.get(1).as_deref(), Some("new"));
            }
        }
    }
}

#[tokio::test]
async fn a_key_that_cannot_be_used_is_not_written() {
    for strategy in strategies() {
        let names = Names::default();
        let builder = Place::memory().builder().await.max_key(2).locks(Locks::memory());
        let table =
            builder.keep_last(Duration::from_secs(1)).table(strategy, names.clone()).unwrap();
        let refused = table.write(&100, Some("x".into())).await;
        assert!(matches!(refused, Err(Error::InvalidKey(_))), "{strategy}: {refused:?}");
        assert_eq!(names.get(100), None);
    }
}

#[tokio::test]
async fn what_a_strategy_needs_is_asked_for() {
    let builder = Place::memory().builder().await;
    let refused = builder.table(Strategy::BoundedStale, Names::default());
    assert!(
        matches!(&refused, Err(Error::Config(why)) if why.contains("keep_last")),
        "{refused:?}"
    );
    for strategy in [Strategy::WriteThrough, Strategy::ReadWriteLock] {
        let refused = Place::memory().builder().await.table(strategy, Names::default());
        assert!(
            matches!(&refused, Err(Error::Config(why)) if why.contains("locks")),
            "{refused:?}"
        );
    }
}
