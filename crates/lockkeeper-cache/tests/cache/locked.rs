//! The strategies that take locks, in many orders, and when a lock is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::Locks;
use lockkeeper_cache::{
    BoxError, Builder, Cache, Database, Error, Loaded, Loader, Memory, Order, Source, Strategy,
    Table,
};
use testkit::random::Random;
use testkit::server;
use testkit::staleness::lab::{At, Lab, Move, Moved, wander};
use testkit::wait::{eventually, soon};

use crate::harness::{Place, on_each_store};
use crate::tables::Names;

on_each_store! {
    a_lock_that_is_lost_sets_nothing_and_says_so
    a_reader_whose_lock_is_lost_sets_nothing
    a_lock_that_is_not_to_be_had_is_an_error_and_nothing_is_written
}

/// The locks of each process there, so to speak.
struct Shared<'a> {
    place: &'a Place,
    memory: Locks,
}

impl<'a> Shared<'a> {
    fn at(place: &'a Place) -> Self {
        Self { place, memory: Locks::memory() }
    }

    /// Of one more process.
    async fn locks(&self) -> Locks {
        match self.place {
            Place::Memory(_) => self.memory.clone(),
            Place::Redis(server) => {
                Locks::connect(&format!("redis://{}", server.address())).await.unwrap()
            }
        }
    }

    /// A cache with these locks.
    async fn builder(&self, strategy: Strategy, locks: Locks) -> Builder {
        self.place.builder().await.namespace(strategy.name()).locks(locks)
    }
}

/// A database that stands still before and after everything it does.
struct Stepped {
    names: Names,
    at: At,
}

#[async_trait]
impl Loader<u32, String> for Stepped {
    async fn load(&self, id: &u32) -> Result<Loaded<String>, BoxError> {
        self.at.step("before the load").await;
        let loaded = self.names.load(id).await;
        self.at.step("after the load").await;
        loaded
    }
}

#[async_trait]
impl Database<u32, String> for Stepped {
    async fn store(
        &self,
        id: &u32,
        name: Option<&String>,
        order: Option<Order>,
    ) -> Result<u64, BoxError> {
        self.at.step("before the commit").await;
        let stored = self.names.store(id, name, order).await;
        self.at.step("after the commit").await;
        stored
    }
}

/// Two writers and two readers of one key, in so many orders: how often cache and database differ afterwards.
async fn differences(strategy: Strategy, orders: usize) -> usize {
    let [found, ended] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let scene = |lab: &mut Lab| {
        lab.patience(Duration::from_millis(20));
        let (names, store, locks) = (Names::default(), Memory::new(), Locks::memory());
        let table = |at: At| -> Table<u32, String> {
            let builder = Cache::builder(store.clone()).namespace("cache").locks(locks.clone());
            builder.table(strategy, Stepped { names: names.clone(), at }).unwrap()
        };
        for name in ["one", "other"] {
            lab.actor(name, |at| {
                let table = table(at);
                async move {
                    let _ = table.write(&1, Some(name.to_owned())).await.unwrap();
                }
            });
        }
        for name in ["early", "late"] {
            lab.actor(name, |at| {
                let table = table(at);
                async move { drop(table.read(&1).await.unwrap()) }
            });
        }
        (names, store, locks)
    };
    let judge = |(names, store, locks): (Names, Memory, Locks), moves: Vec<Move>| {
        let (found, ended) = (Arc::clone(&found), Arc::clone(&ended));
        async move {
            // On a machine that is busy the lab may lose patience with all of them, and drops them.
            if moves.iter().filter(|(_, moved)| *moved == Moved::Done).count() < 4 {
                return;
            }
            ended.fetch_add(1, Ordering::SeqCst);
            let builder = Cache::builder(store).namespace("cache").locks(locks);
            let table = builder.table(strategy, names.clone()).unwrap();
            let read = soon("a value", table.read(&1)).await.unwrap();
            if read.value.as_deref() != names.get(1).as_ref() {
                found.fetch_add(1, Ordering::SeqCst);
                assert_eq!(strategy, Strategy::UpdateThenDelete, "{moves:?}");
            }
        }
    };
    wander(orders, &mut Random::seeded(), scene, judge).await;
    assert!(ended.load(Ordering::SeqCst) > orders / 2, "too busy");
    found.load(Ordering::SeqCst)
}

#[tokio::test]
async fn two_writers_under_a_lock_never_leave_cache_and_database_different() {
    assert_eq!(differences(Strategy::WriteThrough, 60).await, 0);
    assert_eq!(differences(Strategy::ReadWriteLock, 60).await, 0);
    let naive = differences(Strategy::UpdateThenDelete, 60).await;
    assert!(naive > 0, "these orders show nothing");
}

/// A writer whose lock ends in the middle of its commit, and another one that takes it.
async fn overtaken(shared: &Shared<'_>, strategy: Strategy) {
    let names = Names::default();
    let table = async |locks: Locks| {
        let builder = shared.builder(strategy, locks).await.timeout(Duration::from_secs(30));
        builder.table(strategy, names.clone()).unwrap()
    };
    let slow = table(shared.locks().await.lease(Duration::from_millis(100))).await;
    let quick = table(shared.locks().await).await;
    let commit = async {
        let version = names.set(1, Some("slow"));
        soon("another write", quick.write(&1, Some("quick".into()))).await.unwrap();
        Ok(Loaded::found("slow".to_owned()).version(version))
    };
    let written = slow.write_with(&1, commit).await;
    let known = matches!(&written, Err(Error::Committed { version: 1, source })
        if matches!(**source, Error::Lock(_)));
    assert!(known, "{strategy}: {written:?}");
    assert_eq!(slow.cache().stats().fills, 0, "{strategy}");
    let read = quick.read(&1).await.unwrap();
    assert_eq!(read.value.as_deref().map(String::as_str), Some("quick"), "{strategy}");
}

async fn a_lock_that_is_lost_sets_nothing_and_says_so(place: &Place) {
    overtaken(&Shared::at(place), Strategy::WriteThrough).await;
    overtaken(&Shared::at(place), Strategy::ReadWriteLock).await;
}

async fn a_reader_whose_lock_is_lost_sets_nothing(place: &Place) {
    let shared = Shared::at(place);
    for strategy in [Strategy::WriteThrough, Strategy::ReadWriteLock] {
        let names = Names::default();
        let mut lab = Lab::new();
        lab.patience(Duration::from_secs(30));
        let brief = shared.locks().await.lease(Duration::from_millis(100));
        let builder = shared.builder(strategy, brief).await;
        lab.actor("reader", |at| {
            let table = builder.table(strategy, Stepped { names: names.clone(), at });
            async move { drop(table.unwrap().read(&1).await.unwrap()) }
        });
        lab.play(&[("reader", "after the load")]).await;
        let builder = shared.builder(strategy, shared.locks().await).await;
        let table = builder.table(strategy, names).unwrap();
        // Waits for the lock of the reader to end.
        soon("a write", table.write(&1, Some("new".into()))).await.unwrap();
        lab.play(&[("reader", testkit::staleness::lab::END)]).await;
        let read = table.read(&1).await.unwrap();
        assert_eq!(read.value.as_deref().map(String::as_str), Some("new"), "{strategy}");
    }
}

#[tokio::test]
async fn locks_may_be_at_the_server_of_the_cache() {
    let server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let place = Place::Redis(Box::new(server));
    for strategy in [Strategy::WriteThrough, Strategy::ReadWriteLock] {
        let names = Names::default();
        let locks = Locks::connect(&url).await.unwrap();
        let builder = place.builder().await.namespace(strategy.name()).locks(locks);
        let table = builder.table(strategy, names).unwrap();
        table.write(&1, Some("a".into())).await.unwrap();
        table.read(&1).await.unwrap();
        let read = table.read(&1).await.unwrap();
        assert_eq!((read.value.as_deref(), read.source), (Some(&"a".to_owned()), Source::Hit));
        assert_eq!(table.cache().stats().store_errors, 0);
    }
}

async fn a_lock_that_is_not_to_be_had_is_an_error_and_nothing_is_written(place: &Place) {
    let shared = Shared::at(place);
    for strategy in [Strategy::WriteThrough, Strategy::ReadWriteLock] {
        let (names, other) = (Names::default(), shared.locks().await);
        names.set(1, Some("there"));
        let builder = shared.builder(strategy, shared.locks().await).await;
        let builder = builder.timeout(Duration::from_millis(50));
        let table = builder.table(strategy, names.clone()).unwrap();
        let lock = format!("lock:{strategy}:1");
        let held = match strategy {
            Strategy::WriteThrough => other.mutex(&lock).lock().await.unwrap(),
            _ => other.rw_lock(&lock).fair().read().await.unwrap(),
        };
        let refused = soon("an end", table.write(&1, Some("new".into()))).await;
        assert!(matches!(refused, Err(Error::Lock(_))), "{strategy}: {refused:?}");
        assert_eq!(names.get(1).as_deref(), Some("there"));
        drop(held);
        eventually("it is free", async || table.write(&1, Some("new".into())).await.is_ok()).await;
    }
}
