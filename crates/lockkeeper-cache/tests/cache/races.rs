//! The races of the usual recipes, step by step. Names as R1 are those of the literature on caches.

use std::time::Duration;

use lockkeeper_cache::entry::Settled;
use testkit::wait::soon;

use crate::harness::{Client, Database, Place, on_each_store, value};

on_each_store! {
    a_fill_that_comes_after_the_invalidation_is_dropped
    a_fill_under_the_lease_of_another_is_dropped
    a_read_does_not_join_a_load_that_is_older_than_the_invalidation
    a_read_joins_the_load_that_the_store_shows
    a_refresh_does_not_store_over_an_invalidation
    a_fill_after_the_store_forgot_everything_is_dropped
    many_misses_in_two_processes_are_one_load
    nothing_is_cached_while_somebody_writes
    an_old_fill_is_refused_although_its_lease_is_there
}

async fn two(place: &Place) -> (Client, Client, Database) {
    let database = Database::new();
    let first = Client::new(place.builder().await, &database);
    let second = Client::new(place.builder().await, &database);
    (first, second, database)
}

/// R1.
async fn a_fill_that_comes_after_the_invalidation_is_dropped(place: &Place) {
    let (mut reader, writer, database) = two(place).await;
    let early = reader.get();
    let load = reader.load().await;
    database.commit();
    writer.cache.invalidate(&[1]).await.unwrap();
    load.go();
    assert_eq!(value(early).await, 1, "it began before the write");
    assert_eq!(reader.stats().await.lost_fills, 1);
    assert_eq!(reader.loaded().await, 2);
    assert_eq!(reader.hit().await, 2);
}

/// R1, when somebody else loads already.
async fn a_fill_under_the_lease_of_another_is_dropped(place: &Place) {
    let (mut reader, mut other, database) = two(place).await;
    let early = reader.get();
    let old = reader.load().await;
    database.commit();
    other.cache.invalidate(&[1]).await.unwrap();
    let late = other.get();
    let new = other.load().await;
    old.go();
    assert_eq!(value(early).await, 1);
    assert_eq!(reader.stats().await.lost_fills, 1);
    new.go();
    assert_eq!(value(late).await, 2);
    assert_eq!((reader.hit().await, other.stats().await.fills), (2, 1));
}

/// R11, in the process of the load and by the invalidation of another.
async fn a_read_does_not_join_a_load_that_is_older_than_the_invalidation(place: &Place) {
    let (mut reader, writer, database) = two(place).await;
    let early = reader.get();
    let old = reader.load().await;
    database.commit();
    writer.cache.invalidate(&[1]).await.unwrap();
    let late = reader.get();
    let new = reader.load().await;
    assert_eq!(new.read, 2);
    new.go();
    assert_eq!(value(late).await, 2);
    old.go();
    assert_eq!(value(early).await, 1);
    assert_eq!(reader.hit().await, 2, "the old one must not be there");
}

async fn a_read_joins_the_load_that_the_store_shows(place: &Place) {
    let (mut reader, _, _) = two(place).await;
    let early = reader.get();
    let load = reader.load().await;
    // Began later, so that it has to see the lease.
    let late = reader.get();
    reader.eventually("the second one waits", |stats| stats.joined == 1).await;
    load.go();
    assert_eq!((value(early).await, value(late).await), (1, 1));
    reader.no_load();
}

/// R12.
async fn a_refresh_does_not_store_over_an_invalidation(place: &Place) {
    let database = Database::new();
    let builder = place.builder().await.refresh_after(Duration::from_millis(1));
    let mut reader = Client::new(builder, &database);
    assert_eq!(reader.loaded().await, 1);
    let refresh = soon("a refresh", async {
        loop {
            assert_eq!(value(reader.get()).await, 1, "what is there, while it is refreshed");
            if let Some(load) = reader.try_load() {
                return load;
            }
        }
    })
    .await;
    database.commit();
    reader.cache.invalidate(&[1]).await.unwrap();
    refresh.go();
    reader.eventually("the refresh is over", |stats| stats.lost_fills == 1).await;
    assert_eq!(reader.loaded().await, 2);
}

/// R7.
async fn a_fill_after_the_store_forgot_everything_is_dropped(place: &Place) {
    let (mut reader, writer, database) = two(place).await;
    let early = reader.get();
    let load = reader.load().await;
    database.commit();
    writer.cache.invalidate_to(&[1], 2).await.unwrap();
    place.wipe().await;
    load.go();
    assert_eq!(value(early).await, 1);
    assert_eq!(reader.loaded().await, 2);
}

async fn many_misses_in_two_processes_are_one_load(place: &Place) {
    let (mut one, mut other, _) = two(place).await;
    let gets: Vec<_> = (0..200).flat_map(|_| [one.get(), other.get()]).collect();
    let load = soon("a load", async {
        loop {
            if let Some(load) = one.try_load().or_else(|| other.try_load()) {
                return load;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    load.go();
    for get in gets {
        assert_eq!(value(get).await, 1);
    }
    assert_eq!(one.cache.stats().loads + other.cache.stats().loads, 1);
}

/// R4, and the time between the commit and the invalidation.
async fn nothing_is_cached_while_somebody_writes(place: &Place) {
    let (mut reader, mut writer, database) = two(place).await;
    assert_eq!(reader.loaded().await, 1);
    let refused = writer.get();
    assert_eq!(value(refused).await, 1);
    let write = writer.cache.intend(&[1]).await.unwrap();
    assert_eq!(reader.loaded().await, 1);
    database.commit();
    assert_eq!(reader.loaded().await, 2, "at once, and not when it is settled");
    assert_eq!(writer.loaded().await, 2);
    assert_eq!(write.settle(Some(2)).await.unwrap(), Settled::Held);
    let mut versioned = Client::with_versions(place.builder().await, &database, true);
    assert_eq!(versioned.loaded().await, 2);
    assert_eq!((reader.hit().await, writer.hit().await), (2, 2));
}

/// R6: a replica that lags.
async fn an_old_fill_is_refused_although_its_lease_is_there(place: &Place) {
    let database = Database::new();
    let mut reader = Client::with_versions(place.builder().await, &database, true);
    reader.cache.invalidate_to(&[1], 2).await.unwrap();
    assert_eq!(reader.loaded().await, 1);
    assert_eq!(reader.stats().await.old_fills, 1);
    database.commit();
    assert_eq!(reader.loaded().await, 2);
    // It names what is there already.
    reader.cache.invalidate_to(&[1], 2).await.unwrap();
    assert_eq!(reader.hit().await, 2);
}
