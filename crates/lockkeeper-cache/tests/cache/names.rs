//! Whole namespaces, and keys with odd letters in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_cache::{Builder, Cache, Error, Loaded, Redis};
use testkit::nodes::Cluster;
use testkit::resp::Raw;
use testkit::wait::{eventually, soon};

use crate::harness::{Client, Database, Place, on_each_store, value};

on_each_store! {
    a_namespace_is_cleared_and_no_other
    a_load_that_began_before_the_clearing_fills_nothing
    odd_letters_in_keys_and_namespaces_are_only_letters
}

/// Counts its loads in the values.
fn counting(builder: Builder) -> Cache<String, u64> {
    let loads = Arc::new(AtomicU64::new(0));
    let load = move |_: String| {
        let loads = Arc::clone(&loads);
        async move { Ok::<_, Error>(Loaded::found(loads.fetch_add(1, Ordering::SeqCst))) }
    };
    builder.build(load).unwrap()
}

async fn loads_of(cache: &Cache<String, u64>, keys: &[String]) -> u64 {
    let before = cache.stats().loads;
    // Not all at once: a slow server has a second for each.
    for some in keys.chunks(100) {
        soon("all", cache.get_many(some)).await.unwrap();
    }
    soon("all are cached", cache.idle()).await;
    cache.stats().loads - before
}

async fn a_namespace_is_cleared_and_no_other(place: &Place) {
    let keys: Vec<String> = (0..1500).map(|number| number.to_string()).collect();
    // As patterns, all but the first would mean others as well.
    let names = ["n", "*", "?", "[nx]", "[^y]", "\\*", "n-z", "{n}"];
    let mut caches = Vec::new();
    for name in names {
        let few = if name == "n" { &keys[..] } else { &keys[..3] };
        let cache = counting(place.builder().await.namespace(name));
        // A server that is slow to answer leaves some out the first time.
        eventually("all are cached", async || loads_of(&cache, few).await == 0).await;
        caches.push((name, cache, few));
    }
    for (name, cache, few) in &caches {
        assert_eq!(soon("cleared", cache.clear()).await.unwrap(), few.len() as u64, "{name}");
        for (of, other, few) in &caches {
            let expected = if of == name { few.len() as u64 } else { 0 };
            assert_eq!(loads_of(other, few).await, expected, "of {of} after {name}");
        }
    }
}

async fn a_load_that_began_before_the_clearing_fills_nothing(place: &Place) {
    let database = Database::new();
    let mut client = Client::new(place.builder().await, &database);
    let other = counting(place.builder().await);
    let early = client.get();
    let load = client.load().await;
    database.commit();
    soon("cleared", other.clear()).await.unwrap();
    load.go();
    assert_eq!((value(early).await, client.stats().await.lost_fills), (1, 1));
    assert_eq!(client.loaded().await, 2);
}

async fn odd_letters_in_keys_and_namespaces_are_only_letters(place: &Place) {
    let odd = [
        "",
        " ",
        "\0",
        "a\r\nb",
        "{",
        "}",
        "{}",
        "{a}b",
        "a:b",
        "*",
        "\u{1f511}",
        "\u{fffd}\u{0301}",
    ];
    let keys: Vec<String> = odd.iter().map(ToString::to_string).collect();
    // A key may be empty, and a namespace not.
    for namespace in &odd[1..] {
        let cache = counting(place.builder().await.namespace(*namespace));
        assert_eq!(loads_of(&cache, &keys).await, keys.len() as u64, "{namespace:?}");
        assert_eq!(loads_of(&cache, &keys).await, 0, "{namespace:?}");
        for key in &keys {
            cache.invalidate(std::slice::from_ref(key)).await.unwrap();
            assert_eq!(loads_of(&cache, &keys).await, 1, "{namespace:?} {key:?}");
        }
        assert_eq!(cache.clear().await.unwrap(), keys.len() as u64, "{namespace:?}");
        assert_eq!(cache.stats().store_errors, 0);
    }
}

#[tokio::test]
async fn what_others_left_in_a_namespace_does_not_keep_it_from_being_cleared() {
    let place = Place::redis().await;
    let Place::Redis(server) = &place else { unreachable!() };
    let url = format!("redis://{}?prefix=app[1]", server.address());
    let cache = counting(Cache::builder(Redis::connect(&url).await.unwrap()).namespace("cache"));
    let keys = ["a".to_owned(), "b".to_owned()];
    assert_eq!(loads_of(&cache, &keys).await, 2);
    let raw = Raw::connect(server.address()).await;
    raw.ask("LPUSH app[1]cache:list junk").await;
    raw.ask("SET app[1]cache:junk junk").await;
    raw.ask("SET app1cache:a other").await;
    assert_eq!(cache.clear().await.unwrap(), 3);
    assert_eq!(loads_of(&cache, &keys).await, 2);
    assert!(raw.exists("app1cache:a").await);
}

#[tokio::test]
async fn a_namespace_is_cleared_at_every_server_of_a_cluster() {
    let cluster = Cluster::shared().await;
    let store = soon("connected", Redis::connect(&cluster.url())).await.unwrap();
    let cache = counting(Cache::builder(store).namespace("cleared"));
    let keys: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    assert_eq!(loads_of(&cache, &keys).await, 200);
    assert_eq!(soon("cleared", cache.clear()).await.unwrap(), 200);
    assert_eq!(loads_of(&cache, &keys).await, 200);
}
