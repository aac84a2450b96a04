//! Loaders, values and servers that fail.

use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::breaker::Phase;
use lockkeeper_cache::entry::{Begun, Entry, Settled, Ticket};
use lockkeeper_cache::{Cache, Error, Loaded, Redis, Seen, Store};
use testkit::proxy::Proxy;
use testkit::resp::Raw;
use testkit::server;
use testkit::wait::{LONG, soon};

use crate::harness::{Client, Database, Place, on_each_store, value};

on_each_store! {
    a_loader_that_panics_or_fails_leaves_the_key_free
    a_loader_slower_than_its_lease_fills_nothing_and_holds_up_nobody
    a_read_ends_when_its_time_is_over
    a_value_that_cannot_be_read_is_loaded_again
    a_program_of_an_older_schema_leaves_newer_values_alone
    what_is_too_large_is_not_cached
    loads_are_refused_when_the_database_is_to_be_spared
}

const SHORT: Duration = Duration::from_millis(100);

async fn a_loader_that_panics_or_fails_leaves_the_key_free(place: &Place) {
    let database = Database::new();
    let mut client = Client::new(place.builder().await, &database);
    let mut other = Client::new(place.builder().await, &database);
    let get = client.get();
    client.load().await.panic();
    let failed = soon("an error", get).await.unwrap();
    assert!(
        matches!(&failed, Err(Error::Panicked(what)) if what.contains("told to panic")),
        "{failed:?}"
    );
    // At once, and not when the lease ends.
    let get = other.get();
    other.load().await.fail();
    let failed = soon("an error", get).await.unwrap();
    assert!(matches!(&failed, Err(Error::Load(why)) if why.to_string() == "no database"));
    let since = Instant::now();
    assert_eq!(client.loaded().await, 1);
    assert!(Instant::now().since(since) < Duration::from_secs(9));
    assert_eq!((client.cache.stats().load_errors, other.cache.stats().load_errors), (1, 1));
}

async fn a_loader_slower_than_its_lease_fills_nothing_and_holds_up_nobody(place: &Place) {
    let database = Database::new();
    let mut slow = Client::new(place.builder().await.lease(SHORT).timeout(LONG), &database);
    let mut other = Client::new(place.builder().await.timeout(LONG), &database);
    let early = slow.get();
    let late = slow.load().await;
    database.commit();
    // Waits for that lease to end.
    assert_eq!(other.loaded().await, 2);
    assert!(late.go());
    assert_eq!(value(early).await, 1, "who called it has its value");
    assert_eq!(slow.stats().await.lost_fills, 1);
    assert_eq!(slow.hit().await, 2);
}

async fn a_read_ends_when_its_time_is_over(place: &Place) {
    let database = Database::new();
    let mut client = Client::new(place.builder().await.timeout(SHORT), &database);
    let get = client.get();
    let load = client.load().await;
    let ended = soon("an end", get).await.unwrap();
    assert!(matches!(ended, Err(Error::Timeout { .. })), "{ended:?}");
    soon("the load is dropped", async {
        let mut load = Some(load);
        while let Some(waiting) = load.take() {
            if !waiting.is_dropped() {
                load = Some(waiting);
                tokio::task::yield_now().await;
            }
        }
    })
    .await;
    let other = place.builder().await.build(async |_: u32| Ok::<_, Error>(Loaded::found(5_u64)));
    assert_eq!(soon("a value", other.unwrap().get(&1)).await.unwrap().as_deref(), Some(&5));
}

async fn a_value_that_cannot_be_read_is_loaded_again(place: &Place) {
    let texts =
        place.builder().await.build(async |_: u32| Ok::<_, Error>(Loaded::found("x".to_owned())));
    assert_eq!(texts.unwrap().get(&1).await.unwrap().as_deref(), Some(&"x".to_owned()));
    let mut client = Client::new(place.builder().await, &Database::new());
    assert_eq!(client.loaded().await, 1);
    assert!(client.cache.stats().unreadable > 0);
    assert_eq!(client.hit().await, 1, "it has replaced it");
}

async fn a_program_of_an_older_schema_leaves_newer_values_alone(place: &Place) {
    let database = Database::new();
    let mut new = Client::new(place.builder().await.schema(2), &database);
    let mut old = Client::new(place.builder().await.schema(1), &database);
    assert_eq!(old.loaded().await, 1);
    assert_eq!(new.loaded().await, 1, "replaces what is older");
    assert_eq!(old.loaded().await, 1);
    assert_eq!(old.cache.stats().bypasses, 1);
    assert_eq!(new.hit().await, 1);
}

async fn what_is_too_large_is_not_cached(place: &Place) {
    let builder = place.builder().await.max_value(10).max_key(5);
    let cache = builder
        .build(async |size: String| Ok::<_, Error>(Loaded::found("y".repeat(size.len() * 4))))
        .unwrap();
    for _ in 0..2 {
        assert_eq!(cache.get(&"12".into()).await.unwrap().map(|text| text.len()), Some(8));
        assert_eq!(cache.get(&"1234".into()).await.unwrap().map(|text| text.len()), Some(16));
    }
    cache.idle().await;
    let stats = cache.stats();
    assert_eq!((stats.loads, stats.unfit_values, stats.fills), (3, 2, 1));
    assert!(matches!(cache.get(&"123456".into()).await, Err(Error::InvalidKey(_))));
    assert!(matches!(cache.invalidate(&["123456".into()]).await, Err(Error::InvalidKey(_))));
}

async fn loads_are_refused_when_the_database_is_to_be_spared(place: &Place) {
    let builder = place.builder().await.namespace("other").max_loads(2, SHORT);
    let mut client = Client::new(builder, &Database::new());
    let cache = client.cache.clone();
    let gets: Vec<_> = (0..10)
        .map(|key| {
            let cache = cache.clone();
            tokio::spawn(async move { cache.get(&key).await })
        })
        .collect();
    let loads = [client.load().await, client.load().await];
    client.eventually("the others are refused", |stats| stats.refused_loads == 8).await;
    loads.into_iter().for_each(|load| assert!(load.go()));
    let mut found = 0;
    for get in gets {
        found += usize::from(soon("an end", get).await.unwrap().is_ok());
    }
    assert_eq!(found, 2);
}

#[tokio::test]
async fn a_server_that_is_gone_costs_loads_and_no_answers() {
    let mut server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let database = Database::new();
    let builder = Cache::builder(Redis::connect(&url).await.unwrap()).namespace("cache");
    let mut client = Client::new(builder.timeout(Duration::from_secs(5)), &database);
    assert_eq!(client.loaded().await, 1);
    server.kill();
    database.commit();
    assert_eq!(client.loaded().await, 2, "from the database");
    let refused = soon("an end", client.cache.invalidate(&[1])).await;
    assert!(matches!(refused, Err(Error::Store { .. })), "{refused:?}");
    server.start_again().await;
    soon("it is cached again", async {
        loop {
            let get = client.get();
            while !get.is_finished() {
                if let Some(load) = client.try_load() {
                    load.go();
                }
                tokio::task::yield_now().await;
            }
            assert_eq!(value(get).await, 2);
            if client.cache.stats().hits > 0 {
                return;
            }
        }
    })
    .await;
    // Stopped, it accepts everything and answers nothing.
    server.pause();
    let get = client.get();
    client.load().await.go();
    assert_eq!(value(get).await, 2);
    server.resume();
}

#[tokio::test]
async fn a_server_without_memory_still_invalidates() {
    let server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let database = Database::new();
    let mut client = Client::new(
        Cache::builder(Redis::connect(&url).await.unwrap()).namespace("cache"),
        &database,
    );
    assert_eq!(client.loaded().await, 1);
    let raw = Raw::connect(server.address()).await;
    raw.ask("CONFIG SET maxmemory 1").await;
    assert_eq!(client.hit().await, 1);
    database.commit();
    client.cache.invalidate(&[1]).await.unwrap();
    assert_eq!(client.loaded().await, 2);
    assert_eq!(client.loaded().await, 2);
    assert_eq!(client.cache.stats().fills, 1);
    // With something to remember: where there is a value, and where there is nothing.
    raw.ask("CONFIG SET maxmemory 0").await;
    assert_eq!((client.loaded().await, client.hit().await), (2, 2));
    raw.ask("CONFIG SET maxmemory 1").await;
    for key in [1, 2] {
        client.cache.invalidate_to(&[key], 3).await.unwrap();
        assert_eq!(raw.keys(&format!("cache:{key}")).await.len(), 1, "it is remembered");
        let write = client.cache.intend(&[key]).await.unwrap();
        assert_eq!(write.settle(Some(4)).await.unwrap(), Settled::Held);
        let write = client.cache.intend(&[key]).await.unwrap();
        assert_eq!(write.settle(None).await.unwrap(), Settled::Held);
    }
    assert_eq!(client.loaded().await, 2);
}

#[tokio::test]
async fn what_others_left_under_a_key_is_no_value() {
    let server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let database = Database::new();
    let builder =
        Cache::builder(Redis::connect(&url).await.unwrap()).namespace("cache").timeout(SHORT * 5);
    let mut client = Client::new(builder, &database);
    let raw = Raw::connect(server.address()).await;
    raw.ask("SET cache:1 junk").await;
    assert_eq!(client.loaded().await, 1);
    assert_eq!((client.hit().await, client.cache.stats().unreadable), (1, 1));
    raw.ask("DEL cache:1").await;
    raw.ask("LPUSH cache:1 junk").await;
    for _ in 0..5 {
        assert_eq!(client.loaded().await, 1, "from the database");
    }
    let others = client.cache.explain(&2).await.unwrap();
    assert_eq!(others.store, Phase::Closed, "the server is well");
    let refused = client.cache.invalidate(&[1]).await;
    assert!(matches!(refused, Err(Error::Store { .. })), "{refused:?}");
}

#[tokio::test]
async fn nothing_is_stored_without_an_end() {
    let server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let database = Database::new();
    let builder = Cache::builder(Redis::connect(&url).await.unwrap())
        .namespace("cache")
        .keep_last(SHORT * 100);
    let mut client = Client::new(builder, &database);
    let raw = Raw::connect(server.address()).await;
    assert_eq!(client.loaded().await, 1);
    client.cache.invalidate_to(&[1, 2], 5).await.unwrap();
    let write = client.cache.intend(&[3]).await.unwrap();
    let get = client.get();
    let load = client.load().await;
    assert_eq!(raw.immortal().await, Vec::<String>::new());
    assert_eq!(raw.keys("*").await.len(), 3);
    load.go();
    value(get).await;
    drop(write);
}

#[tokio::test]
async fn an_answer_that_is_lost_does_no_harm() {
    let server = server::redis(&[]).await;
    let proxy = Proxy::to(server.address()).await;
    let [near, far] =
        [server.address(), proxy.address()].map(|address| format!("redis://{address}"));
    let database = Database::new();
    let mut client = Client::new(
        Cache::builder(Redis::connect(&far).await.unwrap()).namespace("cache"),
        &database,
    );
    let mut other = Client::new(
        Cache::builder(Redis::connect(&near).await.unwrap()).namespace("cache"),
        &database,
    );
    // To a fill: it is sent again, and finds that it was done.
    let get = client.get();
    let load = client.load().await;
    proxy.lose_next_reply();
    load.go();
    assert_eq!(value(get).await, 1);
    assert_eq!((client.stats().await.fills, other.hit().await), (1, 1));
    assert!(proxy.lost_a_reply());
    // To an invalidation: the same.
    database.commit();
    proxy.lose_next_reply();
    client.cache.invalidate(&[1]).await.unwrap();
    assert!(proxy.lost_a_reply());
    assert_eq!(other.loaded().await, 2);
    // To a request for a lease: nobody has it then, until it ends or is given up.
    let store = Redis::connect(&far).await.unwrap();
    let ticket = Ticket::new();
    proxy.lose_next_reply();
    assert!(store.begin("k", ticket, LONG, None).await.is_err());
    let begun = store.begin("k", Ticket::new(), LONG, None).await.unwrap();
    assert!(matches!(begun, Begun::There(Entry::Gap(gap)) if gap.lease.ticket == ticket));
    store.give_up("k", ticket).await.unwrap();
    assert_eq!(store.get(&["k"]).await.unwrap(), [Seen::Nothing]);
}
