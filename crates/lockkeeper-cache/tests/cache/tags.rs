//! Keys that are invalidated together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_cache::jitter::Jitter;
use lockkeeper_cache::{Builder, Cache, Error, Loaded, Memory, Redis};
use testkit::nodes::Cluster;
use testkit::resp::Raw;
use testkit::wait::{eventually, soon};

use crate::harness::{Client, Database, Place, on_each_store, value};

on_each_store! {
    a_tag_finds_all_of_its_keys_and_no_others
    a_load_under_way_is_found_by_its_tag
}

/// Each key has two tags: whether it is odd, and its last digit.
fn digits(key: &u32) -> Vec<String> {
    vec![format!("odd-{}", key % 2 == 1), (key % 10).to_string()]
}

fn tagged(builder: Builder) -> Cache<u32, u64> {
    let load = async |key: u32| Ok::<_, Error>(Loaded::found(u64::from(key)).version(1));
    builder.tags(digits).build(load).unwrap()
}

async fn all(cache: &Cache<u32, u64>, keys: u32) -> u64 {
    let (before, keys) = (cache.stats().loads, (0..keys).collect::<Vec<_>>());
    // Not all at once: a slow server has a second for each.
    for some in keys.chunks(100) {
        soon("all", cache.get_many(some)).await.unwrap();
    }
    cache.stats().loads - before
}

async fn find_all(cache: &Cache<u32, u64>, keys: u32) {
    assert_eq!(all(cache, keys).await, u64::from(keys));
    cache.idle().await;
    assert_eq!(cache.stats().store_errors, 0);
    for (tag, found) in [("odd-true", keys / 2), ("7", keys / 10), ("none", 0)] {
        let count = soon("invalidated", cache.invalidate_tag(tag)).await.unwrap();
        assert_eq!(count, u64::from(found), "{tag}");
        assert_eq!(all(cache, keys).await, u64::from(found), "{tag}");
    }
}

async fn a_tag_finds_all_of_its_keys_and_no_others(place: &Place) {
    find_all(&tagged(place.builder().await), 1500).await;
    // The tags of another namespace are others.
    let other = tagged(place.builder().await.namespace("other"));
    assert_eq!(other.invalidate_tag("7").await.unwrap(), 0);
    let wrong = place.builder().await.tags(|_: &String| Vec::new());
    let wrong = wrong.build(async |_: u32| Ok::<_, Error>(Loaded::found(1_u64)));
    assert!(matches!(wrong, Err(Error::Config(_))), "{wrong:?}");
}

#[tokio::test]
async fn a_cluster_has_tags_elsewhere_than_their_keys() {
    let cluster = Cluster::shared().await;
    let store = soon("connected", Redis::connect(&cluster.url())).await.unwrap();
    find_all(&tagged(Cache::builder(store).namespace("tagged")), 100).await;
}

async fn a_load_under_way_is_found_by_its_tag(place: &Place) {
    let database = Database::new();
    let mut reader = Client::new(place.builder().await.tags(digits), &database);
    let writer = Client::new(place.builder().await, &database);
    let early = reader.get();
    let load = reader.load().await;
    database.commit();
    assert_eq!(writer.cache.invalidate_tag("1").await.unwrap(), 1);
    load.go();
    assert_eq!((value(early).await, reader.stats().await.lost_fills), (1, 1));
    assert_eq!((reader.loaded().await, reader.hit().await), (2, 2));
}

#[tokio::test]
async fn what_cannot_be_tagged_is_not_cached() {
    let place = Place::redis().await;
    let Place::Redis(server) = &place else { unreachable!() };
    let raw = Raw::connect(server.address()).await;
    let cache = tagged(place.builder().await);
    raw.ask("SET cache#tag:1 junk").await;
    for _ in 0..2 {
        assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&1));
        eventually("the lease is given back", async || !raw.exists("cache:1").await).await;
    }
    let stats = cache.stats();
    assert_eq!((stats.loads, stats.fills, stats.bypasses), (2, 0, 2));
    raw.ask("DEL cache#tag:1").await;
    assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&1));
    cache.idle().await;
    assert_eq!(cache.stats().fills, 1);
    // And not replaced either.
    raw.ask("SET cache#tag:1 junk").await;
    let new = [(1, Loaded::found(5).version(5))];
    assert_eq!(cache.set_many(&new).await.unwrap(), [false]);
    assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&1), "loaded");
    assert_eq!(raw.immortal().await, ["cache#tag:1"]);
}

#[tokio::test]
async fn a_value_that_is_replaced_keeps_its_tags_for_as_long() {
    const SECOND: Duration = Duration::from_secs(1);
    let clock = Arc::new(AtomicU64::new(1000));
    let shown = Arc::clone(&clock);
    let memory = Memory::with_clock(1000, move || shown.load(Ordering::SeqCst));
    let cache = tagged(
        Cache::builder(memory)
            .namespace("cache")
            .ttl(SECOND * 10)
            .null_ttl(SECOND)
            .lease(SECOND)
            .jitter(Jitter::new(0.0).unwrap()),
    );
    assert_eq!(all(&cache, 100).await, 100);
    clock.store(10_000, Ordering::SeqCst);
    let new = [(7, Loaded::found(70).version(2))];
    assert_eq!(cache.set_many(&new).await.unwrap(), [true]);
    // All others have ended, and nobody remembers them.
    clock.store(19_000, Ordering::SeqCst);
    for key in 100..300 {
        cache.get(&key).await.unwrap();
    }
    assert_eq!(cache.get(&7).await.unwrap().as_deref(), Some(&70));
    assert_eq!(cache.invalidate_tag("7").await.unwrap(), 1 + 20);
    assert_eq!(cache.get(&7).await.unwrap().as_deref(), Some(&7));
}
