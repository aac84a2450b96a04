//! Writers that bring their value.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_cache::{Error, Freshness, Loaded, Source};
use testkit::wait::soon;

use crate::harness::{Client, Database, Place, on_each_store, value};

on_each_store! {
    an_older_value_is_replaced_and_a_newer_one_is_kept
    what_is_not_there_is_not_filled
    a_load_under_way_is_overtaken
    a_value_of_a_refresh_is_not_put_over_it
    values_that_cannot_be_replaced_are_invalidated
}

fn version(number: u64) -> Loaded<u64> {
    Loaded::found(number).version(number)
}

async fn versioned(place: &Place, database: &Database) -> Client {
    Client::with_versions(place.builder().await, database, true)
}

async fn an_older_value_is_replaced_and_a_newer_one_is_kept(place: &Place) {
    let database = Database::new();
    let mut client = versioned(place, &database).await;
    let mut other = versioned(place, &database).await;
    assert_eq!(client.loaded().await, 1);
    let before = client.cache.read(&1, Freshness::Any).await.unwrap();
    assert_eq!(client.cache.set_many(&[(1, version(5))]).await.unwrap(), [true]);
    assert_eq!((client.hit().await, other.hit().await), (5, 5));
    let read = other.cache.read(&1, Freshness::AtLeast(5)).await.unwrap();
    assert_eq!((read.version, read.source, read.made), (5, Source::Hit, before.made));
    // Late, and once more.
    assert_eq!(client.cache.set_many(&[(1, version(4))]).await.unwrap(), [false]);
    assert_eq!(client.cache.set_many(&[(1, version(5))]).await.unwrap(), [true]);
    assert_eq!(other.hit().await, 5);
    // Also that there is nothing any more.
    assert_eq!(client.cache.set_many(&[(1, Loaded::nothing().version(6))]).await.unwrap(), [true]);
    assert_eq!(other.cache.get(&1).await.unwrap(), None);
    let refused = client.cache.set_many(&[(1, version(7)), (2, Loaded::found(1))]).await;
    assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
    assert_eq!(other.cache.get(&1).await.unwrap(), None, "none of them");
    assert_eq!(client.cache.set_many(&[]).await.unwrap(), [false; 0]);
}

/// R7: a store that forgot everything, and a writer that comes late.
async fn what_is_not_there_is_not_filled(place: &Place) {
    let database = Database::new();
    let mut client = versioned(place, &database).await;
    assert_eq!(client.loaded().await, 1);
    database.commit();
    place.wipe().await;
    let many: Vec<_> = (1..=30).map(|key| (key, version(2))).collect();
    assert_eq!(client.cache.set_many(&many).await.unwrap(), [false; 30]);
    database.commit();
    assert_eq!(client.loaded().await, 3);
    // A floor: what is older is not filled for a while.
    client.cache.invalidate(&[1]).await.unwrap();
    assert_eq!(client.cache.set_many(&[(1, version(4))]).await.unwrap(), [false]);
    assert_eq!(client.loaded().await, 3);
    assert_eq!(client.stats().await.old_fills, 1);
    // A writer is at work.
    let write = client.cache.intend(&[1]).await.unwrap();
    assert_eq!(client.cache.set_many(&[(1, version(5))]).await.unwrap(), [false]);
    write.settle(None).await.unwrap();
    assert_eq!(client.loaded().await, 3);
    assert_eq!(client.stats().await.old_fills, 2);
}

async fn a_load_under_way_is_overtaken(place: &Place) {
    let database = Database::new();
    let mut client = versioned(place, &database).await;
    let early = client.get();
    let load = client.load().await;
    let new = database.commit();
    assert_eq!(client.cache.set_many(&[(1, version(new))]).await.unwrap(), [false]);
    load.go();
    assert_eq!((value(early).await, client.stats().await.lost_fills), (1, 1));
    assert_eq!(client.loaded().await, 2);
}

async fn a_value_of_a_refresh_is_not_put_over_it(place: &Place) {
    let database = Database::new();
    let builder = place.builder().await.refresh_after(Duration::from_millis(1));
    let mut client = Client::with_versions(builder, &database, true);
    assert_eq!(client.loaded().await, 1);
    let refresh = soon("a refresh", async {
        loop {
            assert_eq!(value(client.get()).await, 1);
            if let Some(load) = client.try_load() {
                return load;
            }
        }
    })
    .await;
    let new = database.commit();
    assert_eq!(client.cache.set_many(&[(1, version(new))]).await.unwrap(), [true]);
    refresh.go();
    client.eventually("the refresh is over", |stats| stats.lost_fills == 1).await;
    let read = client.cache.get(&1).await.unwrap();
    assert_eq!(read, Some(Arc::new(2)));
}

async fn values_that_cannot_be_replaced_are_invalidated(place: &Place) {
    let database = Database::new();
    // Of an unknown version: it may be newer.
    let mut plain = Client::new(place.builder().await, &database);
    assert_eq!(plain.loaded().await, 1);
    assert_eq!(plain.cache.set_many(&[(1, version(5))]).await.unwrap(), [false]);
    assert_eq!(plain.loaded().await, 1);
    // Of a newer program.
    let spaced = async |schema| place.builder().await.namespace("schema").schema(schema);
    let mut new = Client::with_versions(spaced(2).await, &database, true);
    let old = Client::with_versions(spaced(1).await, &database, true);
    assert_eq!(new.loaded().await, 1);
    assert_eq!(old.cache.set_many(&[(1, version(5))]).await.unwrap(), [false]);
    assert_eq!(new.loaded().await, 1);
    // Too large to be cached.
    let builder = place.builder().await.namespace("large").max_value(2);
    let mut small = Client::with_versions(builder, &database, true);
    assert_eq!(small.loaded().await, 1);
    assert_eq!(small.cache.set_many(&[(1, version(500))]).await.unwrap(), [false]);
    assert_eq!(small.loaded().await, 1);
    // Which is nothing to others that are set with it.
    let builder = place.builder().await.namespace("mixed").max_value(2);
    let mixed = builder.build(async |_: u32| Ok::<_, Error>(version(1))).unwrap();
    mixed.get_many(&[1, 2, 3]).await.unwrap();
    mixed.idle().await;
    let set = [(1, version(11)), (2, version(222)), (3, version(33))];
    assert_eq!(mixed.set_many(&set).await.unwrap(), [true, false, true]);
    let now = mixed.get_many(&[1, 2, 3]).await.unwrap();
    assert_eq!(now, [11, 1, 33].map(|value| Some(Arc::new(value))));
}
