//! Why an answer was what it was.

use std::time::Duration;

use futures_util::stream;
use lockkeeper_cache::breaker::{Phase, Policy};
use lockkeeper_cache::explain::{Near, Outlook, There};
use lockkeeper_cache::filter::{LocalFilter, Plan, Shape, Verdict};
use lockkeeper_cache::{
    Cache, Down, Error, Event, FirstLevel, Freshness, Loaded, Memory, Redis, Source, Store,
};
use testkit::resp::Raw;
use testkit::server;
use testkit::wait::eventually;

use crate::broken::Breaking;
use crate::harness::{Client, Database, Place, on_each_store, value};

on_each_store! { every_state_is_told }

fn kinds(explained: &lockkeeper_cache::Explanation) -> Vec<Event> {
    explained.events.iter().map(|past| past.event).collect()
}

async fn every_state_is_told(place: &Place) {
    let minute = Duration::from_secs(60);
    let database = Database::new();
    let builder = place.builder().await.keep_last(minute).refresh_after(minute);
    let mut client = Client::with_versions(builder, &database, true);
    let cache = client.cache.clone();
    let nothing = cache.explain(&1).await.unwrap();
    assert_eq!((nothing.there, nothing.read), (There::Nothing, Outlook::Load));
    let get = client.get();
    let load = client.load().await;
    let loading = cache.explain(&1).await.unwrap();
    assert_eq!(loading.read, Outlook::Wait);
    let There::Gap { lease: Some(lease), floor: 0, last_ms: None } = loading.there else {
        panic!("{loading}")
    };
    assert!(lease.ours && lease.left_ms > 0 && lease.left_ms <= 10_000, "{lease:?}");
    // Overtaken.
    cache.invalidate_to(&[1], 2).await.unwrap();
    database.commit();
    load.go();
    value(get).await;
    client.idle().await;
    let dropped = cache.explain(&1).await.unwrap();
    assert_eq!(kinds(&dropped), [Event::FillGone]);
    assert!(matches!(dropped.there, There::Gap { lease: None, floor: 2, .. }), "{dropped}");
    client.loaded().await;
    let there = cache.explain(&1).await.unwrap();
    assert_eq!(there.read, Outlook::Hit);
    let There::Value { bytes: Some(1), version: 2, readable: true, refresh_ms, .. } = there.there
    else {
        panic!("{there}")
    };
    assert!(refresh_ms.unwrap() <= 60_000);
    cache.invalidate(&[1]).await.unwrap();
    cache.read(&1, Freshness::Stale(minute)).await.unwrap();
    client.load().await.fail();
    eventually("it has failed", async || {
        kinds(&cache.explain(&1).await.unwrap()).first() == Some(&Event::LoadFailed)
    })
    .await;
    let failed = cache.explain(&1).await.unwrap();
    assert_eq!(kinds(&failed), [Event::LoadFailed, Event::ServedStale, Event::FillGone]);
    assert!(matches!(failed.there, There::Gap { last_ms: Some(_), .. }), "{failed}");
    let write = cache.intend(&[1]).await.unwrap();
    let written = cache.explain(&1).await.unwrap();
    assert_eq!(written.read, Outlook::Written);
    assert!(written.to_string().contains("about to be written; by this process"), "{written}");
    write.settle(None).await.unwrap();
    assert!(cache.explain(&2).await.unwrap().events.is_empty(), "of another key");
}

#[tokio::test]
async fn no_value_is_shown_and_nothing_is_counted() {
    let cache = Cache::builder(Memory::new())
        .namespace("cache")
        .build(async |_: String| Ok::<_, Error>(Loaded::found("the secret".to_owned())));
    let cache = cache.unwrap();
    let key = "line\nbreak".to_owned();
    cache.get(&key).await.unwrap();
    let before = cache.stats();
    let explained = cache.explain(&key).await.unwrap();
    assert_eq!(cache.stats(), before);
    let json = serde_json::to_string(&explained).unwrap();
    assert!(!json.contains("secret") && !explained.to_string().contains("secret"));
    assert!(json.contains(r#""kind":"value""#) && json.contains(r#""read":"hit""#), "{json}");
    assert!(explained.to_string().starts_with("cache:line\\nbreak\n"), "{explained}");
}

#[tokio::test]
async fn what_guards_it_is_told() {
    let (filter, store) = (LocalFilter::new(), Breaking::default());
    let policy = Policy { calls: 1, open: Duration::from_secs(600), ..Policy::default() };
    let builder =
        Cache::builder(store.clone()).namespace("cache").filter(filter.clone()).breaker(policy);
    let cache = builder
        .when_down(Down::Busy)
        .build(async |_: u32| Err::<Loaded<u32>, _>("no database"))
        .unwrap();
    let plan = Plan::new(Shape::for_keys(100, 0.01).unwrap()).settle(Duration::ZERO);
    let one = || stream::iter([Ok::<_, Error>(1)]);
    cache.load_filter(plan, one, |_| {}).await.unwrap();
    let absent = cache.explain(&77).await.unwrap();
    assert_eq!((absent.filter, absent.read), (Some(Verdict::Absent), Outlook::Filtered));
    let open = cache.explain(&1).await.unwrap();
    assert_eq!((open.database, open.read), (Some(Phase::Closed), Outlook::Load));
    cache.get(&1).await.unwrap_err();
    let shut = cache.explain(&1).await.unwrap();
    assert_eq!((shut.database, shut.read), (Some(Phase::Open), Outlook::BusyDatabase));
    store.set_down(true);
    for _ in 0..4 {
        cache.get(&1).await.unwrap_err();
    }
    let down = cache.explain(&1).await.unwrap();
    assert_eq!((down.store, down.read), (Phase::Open, Outlook::BusyStore));
    assert_eq!(down.there, There::Unknown);
    assert_eq!(kinds(&down)[..2], [Event::Busy, Event::StoreDown]);
}

#[tokio::test]
async fn what_is_owed_is_told() {
    let store = Breaking::default();
    let builder =
        Cache::builder(store.clone()).namespace("cache").timeout(Duration::from_millis(50));
    let cache = builder.build(async |key: u32| Ok::<_, Error>(Loaded::found(key))).unwrap();
    cache.get(&1).await.unwrap();
    store.set_down(true);
    cache.invalidate(&[1]).await.unwrap_err();
    assert_eq!(cache.explain(&1).await.unwrap().read, Outlook::Owed);
    store.set_down(false);
    eventually("it is done", async || cache.explain(&1).await.unwrap().read == Outlook::Load).await;
}

#[tokio::test]
async fn what_cannot_be_read_is_told() {
    let server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let store = lockkeeper_cache::Redis::connect(&url).await.unwrap();
    let text = Cache::builder(store)
        .namespace("cache")
        .schema(3)
        .build(async |_: u32| Ok::<_, Error>(Loaded::found("x".to_owned())))
        .unwrap();
    text.get(&1).await.unwrap();
    text.idle().await;
    let connect = async || lockkeeper_cache::Redis::connect(&url).await.unwrap();
    for (schema, read) in [(2, Outlook::Newer), (3, Outlook::Load), (4, Outlook::Load)] {
        let numbers = Cache::builder(connect().await)
            .namespace("cache")
            .schema(schema)
            .build(async |_: u32| Ok::<_, Error>(Loaded::found(5_u32)))
            .unwrap();
        let explained = numbers.explain(&1).await.unwrap();
        assert!(matches!(explained.there, There::Value { readable: false, schema: 3, .. }));
        assert_eq!(explained.read, read);
    }
    Raw::connect(server.address()).await.ask("SET cache:2 junk").await;
    let junk = text.explain(&2).await.unwrap();
    assert_eq!((junk.there, junk.read), (There::Unreadable, Outlook::Load));
    let found = connect().await.get(&["cache:1"]).await.unwrap();
    assert_eq!(found.len(), 1);
}

#[tokio::test]
async fn what_the_first_level_has_is_told() {
    let server = server::redis(&[]).await;
    let database = Database::new();
    let store = Redis::connect(&format!("redis://{}", server.address())).await.unwrap();
    let loader = move |_: u32| {
        let read = database.read();
        async move { Ok::<_, Error>(Loaded::found(read).version(read)) }
    };
    let plain = Cache::builder(store).namespace("cache").build(loader).unwrap();
    assert_eq!(plain.explain(&1).await.unwrap().first, None, "there is none");
    let cache = plain.with_first_level(FirstLevel::new(10).ttl(Duration::from_secs(5))).unwrap();
    let explained = cache.explain(&1).await.unwrap();
    assert_eq!((explained.first, explained.read), (Some(Near::Nothing), Outlook::Load));
    eventually("it is in the first level", async || {
        cache.read(&1, Freshness::Any).await.unwrap().source == Source::First
    })
    .await;
    let before = cache.stats();
    let explained = cache.explain(&1).await.unwrap();
    let Some(Near::Copy { serves: true, left_ms: 1..=5000, version: 1, .. }) = explained.first
    else {
        panic!("{explained}")
    };
    assert_eq!(explained.read, Outlook::First);
    assert!(matches!(explained.there, There::Value { version: 1, .. }), "{explained}");
    let text = explained.to_string();
    assert!(text.contains("\n  in this process: a copy, version 1, loaded "), "{text}");
    assert!(text.contains("\n  a read now: takes the copy in this process\n"), "{text}");
    assert_eq!(cache.stats(), before, "to explain it counts for nothing");
    // A copy that is not served any more.
    cache.invalidate(&[1]).await.unwrap();
    let explained = cache.explain(&1).await.unwrap();
    assert!(matches!(explained.first, Some(Near::Copy { serves: false, .. })), "{explained}");
    assert_eq!(explained.read, Outlook::Load);
    assert!(explained.to_string().contains("; not served\n"), "{explained}");
}
