//! What is written is in the filter, before anybody is told.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_cache::explain::Outlook;
use lockkeeper_cache::filter::{Build, Filter, FilterError, Shape, Verdict};
use lockkeeper_cache::{
    BoxError, Cache, Database, Error, Freshness, Loaded, Loader, Memory, Order, Source, Strategy,
};
use parking_lot::Mutex;
use testkit::wait::eventually;

/// Writes down what is asked of it, and says absent of what was not inserted; fails when told to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strict(Arc<Mutex<(Vec<String>, bool)>>);

impl Strict {
    fn knows(&self, key: &str) -> bool {
        self.0.lock().0.iter().any(|known| known == key)
    }

    fn fail(&self, fail: bool) {
        self.0.lock().1 = fail;
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

    async fn insert(&self, keys: &[&[u8]]) -> Result<(), FilterError> {
        let mut inside = self.0.lock();
        if inside.1 {
            return Err(FilterError::Store("told to fail".into()));
        }
        inside.0.extend(keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()));
        Ok(())
    }

    async fn begin(&self, _: Shape) -> Result<Box<dyn Build>, FilterError> {
        Err(FilterError::Size("none"))
    }
}

#[tokio::test]
async fn a_key_is_in_the_filter_before_anybody_is_told_that_it_was_written() {
    let filter = Strict::default();
    let builder = Cache::builder(Memory::new()).filter(filter.clone()).namespace("new");
    let builder = builder.timeout(Duration::from_millis(200));
    let cache = builder.build(async |key: u32| Ok::<_, Error>(Loaded::found(key))).unwrap();
    assert!(cache.get(&1).await.unwrap().is_none());
    // Before the commit.
    let write = cache.intend(&[1]).await.unwrap();
    assert!(filter.knows("1"), "without the namespace");
    assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&1));
    // A new filter has begun meanwhile, and the table was read before the commit.
    filter.0.lock().0.clear();
    write.settle(None).await.unwrap();
    assert!(filter.knows("1"));
    // And by an invalidation.
    assert!(cache.get(&2).await.unwrap().is_none());
    cache.invalidate(&[2]).await.unwrap();
    assert_eq!(cache.get(&2).await.unwrap().as_deref(), Some(&2));
    // Where it cannot be done the writer hears of it.
    filter.fail(true);
    assert!(matches!(cache.intend(&[3]).await, Err(Error::Store { .. })));
    assert_eq!(cache.stats().store_errors, 1);
    cache.invalidate(&[2]).await.expect_err("not inserted");
    assert_eq!(cache.stats().invalidations, 2, "it was invalidated nevertheless");
    let loads = cache.stats().loads;
    cache.get(&2).await.unwrap();
    assert_eq!(cache.stats().loads, loads + 1, "it was invalidated nevertheless");
    filter.fail(false);
    cache.invalidate(&[3]).await.unwrap();
    assert_eq!(cache.get(&3).await.unwrap().as_deref(), Some(&3));
}

/// A rebuild that read the table before the commit, in the middle of a write.
#[tokio::test]
async fn what_somebody_is_about_to_write_is_not_for_the_filter_to_deny() {
    let filter = Strict::default();
    let cache = Cache::builder(Memory::new())
        .namespace("cache")
        .filter(filter.clone())
        .build(async |key: u32| Ok::<_, Error>(Loaded::found(key)))
        .unwrap();
    let write = cache.intend(&[1]).await.unwrap();
    filter.0.lock().0.clear();
    assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&1), "it may be committed");
    write.settle(None).await.unwrap();
}

#[tokio::test]
async fn a_value_that_is_set_is_in_the_filter() {
    let filter = Strict::default();
    let cache = Cache::builder(Memory::new())
        .namespace("cache")
        .filter(filter.clone())
        .build(async |key: u32| Ok::<_, Error>(Loaded::found(key).version(1)))
        .unwrap();
    assert!(cache.get(&1).await.unwrap().is_none());
    cache.set_many(&[(1, Loaded::found(1).version(1))]).await.unwrap();
    assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&1));
    filter.fail(true);
    let refused = cache.set_many(&[(2, Loaded::found(2).version(1))]).await;
    assert!(matches!(refused, Err(Error::Store { .. })), "{refused:?}");
}

/// Where filter and store are the same server, and it does not answer.
#[tokio::test]
async fn a_key_that_could_not_be_inserted_is_inserted_later() {
    let filter = Strict::default();
    let cache = Cache::builder(Memory::new())
        .namespace("cache")
        .filter(filter.clone())
        .timeout(Duration::from_millis(200))
        .build(async |key: u32| Ok::<_, Error>(Loaded::found(key)))
        .unwrap();
    filter.fail(true);
    cache.invalidate(&[1]).await.expect_err("not inserted");
    assert_eq!(cache.debt(), Some(1));
    assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&1), "it is not believed meanwhile");
    filter.fail(false);
    eventually("it is inserted", async || cache.debt() == Some(0)).await;
    assert!(filter.knows("1"));
    assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&1));
}

/// After a commit nobody is left who could do without the write, whichever way it went; and its value is as good as ever.
#[tokio::test]
async fn what_was_committed_is_inserted_later_whoever_wrote_it() {
    let filter = Strict::default();
    let builder = Cache::builder(Memory::new()).namespace("cache").filter(filter.clone());
    let table = builder.table(Strategy::UpdateThenDelete, Anything).unwrap();
    let cache = table.cache();
    for way in ["settled", "set", "written"] {
        // What the filter has so far is not in the one that begins now.
        let forget = || {
            filter.0.lock().0.clear();
            filter.fail(true);
        };
        let refused = match way {
            "settled" => {
                let write = cache.intend(&[1]).await.unwrap();
                forget();
                write.settle(None).await.map(drop)
            }
            "set" => {
                forget();
                cache.set_many(&[(1, Loaded::found(1).version(2))]).await.map(drop)
            }
            _ => {
                let commit = async {
                    forget();
                    Ok(Loaded::found(1))
                };
                table.write_with(&1, commit).await.map(drop)
            }
        };
        let told = match &refused {
            Err(Error::Committed { source, .. }) => matches!(**source, Error::Store { .. }),
            other => way != "written" && matches!(other, Err(Error::Store { .. })),
        };
        assert!(told, "{way}: {refused:?}");
        assert_eq!(cache.debt(), Some(1), "{way}");
        assert_eq!(cache.explain(&1).await.unwrap().read, Outlook::Load, "{way}");
        let read = async || cache.read(&1, Freshness::Any).await.unwrap();
        let first = read().await;
        assert_eq!((first.value.as_deref(), first.source), (Some(&1), Source::Loaded), "{way}");
        cache.idle().await;
        assert_eq!(read().await.source, Source::Hit, "{way}");
        filter.fail(false);
        eventually("it is inserted", async || cache.debt() == Some(0)).await;
        assert!(filter.knows("1"), "{way}");
        assert_eq!(read().await.source, Source::Hit, "nothing was invalidated: {way}");
        cache.invalidate(&[1]).await.unwrap();
    }
}

/// Any value, and whoever stores one is content.
pub(crate) struct Anything;

#[async_trait]
impl Loader<u32, u32> for Anything {
    async fn load(&self, key: &u32) -> Result<Loaded<u32>, BoxError> {
        Ok(Loaded::found(*key).version(2))
    }
}

#[async_trait]
impl Database<u32, u32> for Anything {
    async fn store(&self, _: &u32, _: Option<&u32>, _: Option<Order>) -> Result<u64, BoxError> {
        Ok(0)
    }
}

#[tokio::test]
async fn a_table_inserts_what_it_writes_whatever_its_strategy() {
    for strategy in [
        Strategy::FillLease,
        Strategy::Strong,
        Strategy::UpdateThenDelete,
        Strategy::DeleteThenUpdate,
        Strategy::TtlOnly,
        Strategy::Bypass,
    ] {
        let filter = Strict::default();
        let builder = Cache::builder(Memory::new()).namespace("cache").filter(filter.clone());
        let table = builder.table(strategy, Anything).unwrap();
        let known = filter.clone();
        let commit = async move {
            assert!(known.knows("1"), "before the commit");
            Ok(Loaded::found(1))
        };
        table.write_with(&1, commit).await.unwrap();
        table.write(&2, Some(2)).await.unwrap();
        assert!(filter.knows("2"), "{strategy}");
        assert_eq!(table.cache().get(&2).await.unwrap().as_deref(), Some(&2), "{strategy}");
        filter.fail(true);
        let refused = table.write(&3, Some(3)).await;
        assert!(matches!(refused, Err(Error::Store { .. })), "{strategy}: {refused:?}");
    }
}
