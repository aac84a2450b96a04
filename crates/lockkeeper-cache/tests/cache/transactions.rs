//! What is invalidated with a commit, and what is not.

use std::future::pending;
use std::time::Duration;

use lockkeeper_cache::entry::Settled;
use lockkeeper_cache::{Error, Loaded, WriteError};
use testkit::server;
use testkit::wait::{eventually, soon};
use tokio::sync::oneshot;

use crate::harness::{Client, Database, Place, on_each_store, value};

on_each_store! {
    a_commit_invalidates_in_all_its_caches_and_not_before
    what_is_rolled_back_is_not_invalidated
    a_commit_that_fails_or_is_dropped_invalidates_all_the_same
    a_load_that_began_before_the_commit_fills_nothing
    a_version_that_is_known_keeps_what_is_as_new
    a_strong_write_is_seen_from_the_commit_on
    a_strong_write_that_fails_leaves_nothing_to_be_cached
    a_strong_write_that_takes_too_long_is_told_so
}

type Sql = Result<u64, &'static str>;

async fn two_caches(place: &Place, database: &Database) -> (Client, Client) {
    let first = Client::new(place.builder().await, database);
    let second = Client::new(place.builder().await.namespace("second"), database);
    (first, second)
}

async fn a_commit_invalidates_in_all_its_caches_and_not_before(place: &Place) {
    let database = Database::new();
    let (mut one, mut other) = two_caches(place, &database).await;
    assert_eq!((one.loaded().await, other.loaded().await), (1, 1));
    let mut tx = one.cache.transaction();
    tx.touch(&1).unwrap();
    tx.touch_in(&other.cache, &1, 0).unwrap();
    let (begun, begins) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let source = database.clone();
    let commit = tokio::spawn(tx.commit(async move {
        begun.send(()).unwrap();
        ended.await.unwrap();
        Sql::Ok(source.commit())
    }));
    soon("the commit begins", begins).await.unwrap();
    assert_eq!((one.hit().await, other.hit().await), (1, 1), "nothing before the commit");
    end.send(()).unwrap();
    let committed = soon("committed", commit).await.unwrap().unwrap();
    assert_eq!(committed.value, 2);
    committed.cache.unwrap();
    assert_eq!((one.loaded().await, other.loaded().await), (2, 2));
}

async fn what_is_rolled_back_is_not_invalidated(place: &Place) {
    let database = Database::new();
    let mut client = Client::new(place.builder().await, &database);
    assert_eq!(client.loaded().await, 1);
    let mut tx = client.cache.transaction();
    tx.touch(&1).unwrap();
    drop(tx);
    // And neither is a commit that was never begun.
    let mut tx = client.cache.transaction();
    tx.touch(&1).unwrap();
    drop(tx.commit(async { Sql::Ok(0) }));
    assert_eq!(client.hit().await, 1);
    assert_eq!(client.cache.stats().invalidations, 0);
}

async fn a_commit_that_fails_or_is_dropped_invalidates_all_the_same(place: &Place) {
    let database = Database::new();
    let mut client = Client::new(place.builder().await, &database);
    assert_eq!(client.loaded().await, 1);
    let mut tx = client.cache.transaction();
    tx.touch(&1).unwrap();
    let failed = tx.commit(async {
        database.commit();
        Sql::Err("the connection is lost")
    });
    assert_eq!(failed.await.map(|done| done.value), Err("the connection is lost"));
    assert_eq!(client.loaded().await, 2);
    let mut tx = client.cache.transaction();
    tx.touch(&1).unwrap();
    let (begun, begins) = oneshot::channel();
    let source = database.clone();
    let commit = tokio::spawn(tx.commit(async move {
        source.commit();
        begun.send(()).unwrap();
        pending::<Sql>().await
    }));
    soon("the commit begins", begins).await.unwrap();
    commit.abort();
    client.eventually("it is invalidated", |stats| stats.invalidations == 2).await;
    assert_eq!(client.loaded().await, 3);
}

async fn a_load_that_began_before_the_commit_fills_nothing(place: &Place) {
    let database = Database::new();
    let mut client = Client::new(place.builder().await, &database);
    let early = client.get();
    let load = client.load().await;
    let mut tx = client.cache.transaction();
    tx.touch(&1).unwrap();
    let committed = tx.commit(async { Sql::Ok(database.commit()) }).await.unwrap();
    committed.cache.unwrap();
    load.go();
    assert_eq!((value(early).await, client.stats().await.lost_fills), (1, 1));
    assert_eq!(client.loaded().await, 2);
}

async fn a_version_that_is_known_keeps_what_is_as_new(place: &Place) {
    let database = Database::new();
    let mut client = Client::with_versions(place.builder().await, &database, true);
    assert_eq!(client.loaded().await, 1);
    // Each with its own: key 1 is as new as that, key 2 is not.
    let mut tx = client.cache.transaction();
    tx.touch_to(&1, 1).unwrap();
    tx.touch_to(&2, 9).unwrap();
    tx.commit(async { Sql::Ok(0) }).await.unwrap().cache.unwrap();
    assert_eq!(client.hit().await, 1);
    let cache = client.cache.clone();
    let second = tokio::spawn(async move { cache.get(&2).await });
    client.load().await.go();
    assert_eq!((value(second).await, client.stats().await.old_fills), (1, 1));
    let mut tx = client.cache.transaction();
    let long = place.builder().await.max_key(0);
    let refused = tx.touch_in(&Client::new(long, &database).cache, &1, 0);
    assert!(matches!(refused, Err(Error::InvalidKey(_))), "{refused:?}");
}

async fn a_strong_write_that_takes_too_long_is_told_so(place: &Place) {
    let database = Database::new();
    let source = database.clone();
    let loader = move |_: u32| {
        let read = source.read();
        async move { Ok::<_, Error>(Loaded::found(read)) }
    };
    let builder = place.builder().await.intent(Duration::from_millis(20));
    let cache = builder.build(loader).unwrap();
    let hits = async || {
        cache.get(&1).await.unwrap();
        cache.stats().hits > 0
    };
    let update = async {
        eventually("nobody believes any more that somebody writes", hits).await;
        Sql::Ok(database.commit())
    };
    let written = cache.write(&[1], update).await.unwrap();
    assert_eq!(written.cache.unwrap(), Settled::Lapsed);
    assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&2), "what was filled is gone");
}

async fn a_strong_write_is_seen_from_the_commit_on(place: &Place) {
    let database = Database::new();
    let mut client = Client::with_versions(place.builder().await, &database, true);
    assert_eq!(client.loaded().await, 1);
    let (committed, commits) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let (source, cache) = (database.clone(), client.cache.clone());
    let write = tokio::spawn(async move {
        let update = async {
            let version = source.commit();
            committed.send(()).unwrap();
            ended.await.unwrap();
            Sql::Ok(version)
        };
        cache.write(&[1], update).await
    });
    soon("the commit", commits).await.unwrap();
    assert_eq!(client.loaded().await, 2, "at once");
    assert_eq!(client.cache.stats().bypasses, 1);
    end.send(()).unwrap();
    let written = soon("written", write).await.unwrap().unwrap();
    assert_eq!((written.value, written.cache.unwrap()), (2, Settled::Held));
    assert_eq!((client.loaded().await, client.hit().await), (2, 2));
}

async fn a_strong_write_that_fails_leaves_nothing_to_be_cached(place: &Place) {
    let database = Database::new();
    let builder = place.builder().await.intent(Duration::from_millis(300));
    let mut client = Client::new(builder, &database);
    assert_eq!(client.loaded().await, 1);
    let failed = client.cache.write(&[1], async { Sql::Err("lost") }).await;
    assert!(matches!(failed, Err(WriteError::Failed("lost"))), "{failed:?}");
    assert_eq!(client.loaded().await, 1);
    assert_eq!(client.cache.stats().bypasses, 1);
    // It takes effect after all, and a while later the key is cached again.
    database.commit();
    let cache = client.cache.clone();
    let loads = tokio::spawn(async move {
        eventually("it is cached", async || {
            assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&2));
            cache.stats().fills == 2
        })
        .await;
    });
    while !loads.is_finished() {
        if let Some(load) = client.try_load() {
            load.go();
        }
        tokio::task::yield_now().await;
    }
    loads.await.unwrap();
}

#[tokio::test]
async fn nothing_is_written_when_the_cache_cannot_be_told_before() {
    let mut server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let store = lockkeeper_cache::Redis::connect(&url).await.unwrap();
    let builder = lockkeeper_cache::Cache::builder(store)
        .namespace("cache")
        .timeout(Duration::from_millis(200));
    let client = Client::new(builder, &Database::new());
    server.kill();
    let write = async { unreachable!("it is not to be written") };
    let refused = soon("an end", client.cache.write::<Error>(&[1], write)).await;
    assert!(matches!(refused, Err(WriteError::NotBegun(Error::Store { .. }))), "{refused:?}");
}
