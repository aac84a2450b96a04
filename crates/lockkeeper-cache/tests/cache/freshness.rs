//! What reads may ask for.

use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::{Error, Freshness, Read, Source};
use testkit::wait::{eventually, soon};
use tokio::task::JoinHandle;

use crate::harness::{Client, Database, Place, on_each_store, value};

on_each_store! {
    who_names_a_version_gets_it_or_a_later_one
    who_names_a_version_does_not_take_nothing_from_a_load_that_began_before
    who_wants_no_less_than_the_database_changes_nothing
    who_takes_a_stale_value_gets_it_at_once
    who_wants_a_young_value_loads_an_old_one_anew
    who_wants_a_value_that_is_younger_than_a_load_takes_loads_once
    what_is_not_there_is_remembered_too
    many_keys_are_read_and_invalidated_together
}

fn read(client: &Client, freshness: Freshness) -> JoinHandle<Result<Read<u64>, Error>> {
    let cache = client.cache.clone();
    tokio::spawn(async move { cache.read(&1, freshness).await })
}

async fn result(read: JoinHandle<Result<Read<u64>, Error>>) -> Result<(u64, Source), Error> {
    let read = soon("a value", read).await.unwrap()?;
    Ok((*read.value.unwrap(), read.source))
}

async fn who_names_a_version_gets_it_or_a_later_one(place: &Place) {
    let database = Database::new();
    let mut client = Client::with_versions(place.builder().await, &database, true);
    assert_eq!(client.loaded().await, 1);
    let old = result(read(&client, Freshness::AtLeast(1))).await.unwrap();
    assert_eq!(old, (1, Source::Hit));
    // Nobody has invalidated it yet.
    database.commit();
    let reading = read(&client, Freshness::AtLeast(2));
    let load = client.load().await;
    assert_eq!(client.hit().await, 1, "others have what is there");
    load.go();
    assert_eq!(result(reading).await.unwrap(), (2, Source::Loaded));
    client.idle().await;
    assert_eq!(client.hit().await, 2);
    // A version that never was.
    let reading = read(&client, Freshness::AtLeast(9));
    client.load().await.go();
    client.load().await.go();
    let refused = result(reading).await;
    assert!(matches!(refused, Err(Error::TooOld { wanted: 9, found: 2 })), "{refused:?}");
    assert_eq!(client.hit().await, 2, "and it has spoilt nothing");
}

/// A row that was inserted while somebody who found none has not returned yet.
async fn who_names_a_version_does_not_take_nothing_from_a_load_that_began_before(place: &Place) {
    let database = Database::new();
    let mut client = Client::with_versions(place.builder().await, &database, true);
    let early = read(&client, Freshness::Any);
    let old = client.load().await;
    database.commit();
    let reading = read(&client, Freshness::AtLeast(2));
    client.eventually("it has joined", |stats| stats.joined == 1).await;
    old.nothing();
    assert_eq!(soon("nothing", early).await.unwrap().unwrap().value, None);
    client.load().await.go();
    assert_eq!(result(reading).await.unwrap(), (2, Source::Loaded));
}

async fn who_wants_a_value_that_is_younger_than_a_load_takes_loads_once(place: &Place) {
    let database = Database::new();
    let mut client = Client::new(place.builder().await, &database);
    for _ in 0..2 {
        let reading = read(&client, Freshness::MaxAge(Duration::ZERO));
        let load = client.load().await;
        let begun = Instant::now();
        let passes = async || Instant::now().since(begun) > Duration::from_millis(5);
        eventually("some time goes by", passes).await;
        load.go();
        assert_eq!(result(reading).await.unwrap(), (1, Source::Loaded));
        client.no_load();
    }
}

async fn who_wants_no_less_than_the_database_changes_nothing(place: &Place) {
    let database = Database::new();
    let mut client = Client::new(place.builder().await, &database);
    assert_eq!(client.loaded().await, 1);
    database.commit();
    let reading = read(&client, Freshness::Latest);
    client.load().await.go();
    assert_eq!(result(reading).await.unwrap(), (2, Source::Loaded));
    assert_eq!(client.hit().await, 1);
}

async fn who_takes_a_stale_value_gets_it_at_once(place: &Place) {
    let database = Database::new();
    let minute = Duration::from_secs(60);
    let builder = place.builder().await.keep_last(minute);
    let mut client = Client::new(builder, &database);
    assert_eq!(client.loaded().await, 1);
    database.commit();
    client.cache.invalidate(&[1]).await.unwrap();
    let stale = Freshness::Stale(minute);
    assert_eq!(result(read(&client, stale)).await.unwrap(), (1, Source::Stale));
    // That has begun a load, which all who want to know wait for.
    let load = client.load().await;
    assert_eq!(result(read(&client, stale)).await.unwrap(), (1, Source::Stale));
    let fresh = client.get();
    load.go();
    assert_eq!(value(fresh).await, 2);
    client.idle().await;
    assert_eq!(result(read(&client, stale)).await.unwrap(), (2, Source::Hit));
    client.no_load();
}

async fn who_wants_a_young_value_loads_an_old_one_anew(place: &Place) {
    let database = Database::new();
    let mut client = Client::new(place.builder().await, &database);
    assert_eq!(client.loaded().await, 1);
    database.commit();
    let minute = Freshness::MaxAge(Duration::from_secs(60));
    assert_eq!(result(read(&client, minute)).await.unwrap(), (1, Source::Hit));
    let found = soon("a value that is a millisecond old", async {
        loop {
            let reading = read(&client, Freshness::MaxAge(Duration::ZERO));
            // Until it is old enough, it is young enough; the load may take longer than no time.
            while !reading.is_finished() {
                if let Some(load) = client.try_load() {
                    load.go();
                }
                tokio::task::yield_now().await;
            }
            let found = result(reading).await.unwrap();
            if found.1 == Source::Loaded {
                return found;
            }
        }
    })
    .await;
    assert_eq!(found.0, 2);
}

async fn what_is_not_there_is_remembered_too(place: &Place) {
    let database = Database::new();
    let mut client = Client::new(place.builder().await, &database);
    let get = client.get();
    client.load().await.nothing();
    assert!(soon("nothing", get).await.unwrap().unwrap().is_none());
    client.idle().await;
    assert!(soon("nothing", client.get()).await.unwrap().unwrap().is_none());
    client.no_load();
    assert_eq!(client.cache.stats().null_hits, 1);
    client.cache.invalidate(&[1]).await.unwrap();
    assert_eq!(client.loaded().await, 1);
}

async fn many_keys_are_read_and_invalidated_together(place: &Place) {
    let database = Database::new();
    let mut client = Client::new(place.builder().await, &database);
    let keys = [1, 2, 3, 2];
    let cache = client.cache.clone();
    let getting = tokio::spawn(async move { cache.get_many(&keys).await });
    for _ in 0..3 {
        client.load().await.go();
    }
    let found = soon("all", getting).await.unwrap().unwrap();
    assert!(found.iter().all(|value| value.as_deref() == Some(&1)), "{found:?}");
    database.commit();
    client.cache.invalidate(&[1, 3]).await.unwrap();
    let cache = client.cache.clone();
    let getting = tokio::spawn(async move { cache.get_many(&keys).await });
    for _ in 0..2 {
        client.load().await.go();
    }
    let found = soon("all", getting).await.unwrap().unwrap();
    let found: Vec<u64> = found.into_iter().map(|value| *value.unwrap()).collect();
    assert_eq!(found, [2, 1, 2, 1]);
    client.no_load();
    assert!(client.cache.get_many(&[]).await.unwrap().is_empty());
}
