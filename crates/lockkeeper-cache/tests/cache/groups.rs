//! The first level before several stores that know nothing of each other.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::breaker::Policy;
use lockkeeper_cache::group::Group;
use lockkeeper_cache::{
    Builder, Cache, Down, Error, FirstLevel, Freshness, Grouped, Memory, Redis, Source, Store,
};
use testkit::server::{self, Server};
use testkit::wait::{eventually, soon};

use crate::first::build;
use crate::harness::Database;

const BOUND: Duration = Duration::from_millis(400);
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Three servers.
struct Servers(Vec<Server>);

impl Servers {
    async fn start() -> Self {
        let mut servers = Vec::new();
        for _ in NAMES {
            servers.push(server::redis(&[]).await);
        }
        Self(servers)
    }

    async fn builder(&self) -> Builder {
        let mut nodes = Vec::new();
        for (name, server) in NAMES.into_iter().zip(&self.0) {
            let store = Redis::connect(&format!("redis://{}", server.address())).await.unwrap();
            nodes.push((name, Arc::new(store) as Arc<dyn Store>));
        }
        Cache::builder(Grouped::new(nodes).unwrap()).namespace("cache")
    }
}

/// Keys that belong to these, one each.
fn keys() -> [u32; 3] {
    let nodes = NAMES.map(|name| (name.to_owned(), ()));
    let group = Group::new(nodes, Policy::default()).unwrap();
    NAMES.map(|name| {
        (0..).find(|key| group.of(format!("cache:{key}").as_bytes()).0 == name).unwrap()
    })
}

fn with_first_level(cache: Cache<u32, u64>) -> Cache<u32, u64> {
    cache.with_first_level(FirstLevel::new(1000).bound(BOUND)).unwrap()
}

async fn read(cache: &Cache<u32, u64>, key: u32) -> (u64, Source) {
    // A hit here does not wait for anything, and those who listen must have their turn.
    tokio::task::yield_now().await;
    let read = soon("a value", cache.read(&key, Freshness::Any)).await.unwrap();
    (*read.value.unwrap(), read.source)
}

async fn all_are_first(cache: &Cache<u32, u64>, value: u64) {
    eventually("all come from the first level", async || {
        let mut first = true;
        for key in keys() {
            first &= read(cache, key).await == (value, Source::First);
        }
        first
    })
    .await;
}

#[tokio::test]
async fn a_group_tells_of_changes_at_each_of_its_stores() {
    let (servers, database) = (Servers::start().await, Database::new());
    let reader = with_first_level(build(servers.builder().await, &database));
    let writer = build(servers.builder().await, &database);
    for version in 1..=3 {
        all_are_first(&reader, version).await;
        database.commit();
        writer.invalidate(&keys()).await.unwrap();
    }
    for key in keys() {
        all_are_first(&reader, database.read()).await;
        let new = database.commit();
        writer.invalidate(&[key]).await.unwrap();
        eventually("it is heard", async || read(&reader, key).await.0 == new).await;
        writer.invalidate(&keys()).await.unwrap();
    }
}

/// That the others are heard says nothing of this one.
#[tokio::test]
async fn one_of_a_group_that_is_not_heard_ends_it_when_the_bound_is_over() {
    let (servers, database) = (Servers::start().await, Database::new());
    let cache = with_first_level(build(servers.builder().await, &database));
    all_are_first(&cache, 1).await;
    let [silent, other, _] = keys();
    servers.0[0].pause();
    let since = Instant::now();
    database.commit();
    soon("it is served no more", async {
        loop {
            let begun = Instant::now();
            let (value, source) = read(&cache, silent).await;
            if source != Source::First {
                assert_eq!((value, source), (2, Source::Loaded));
                return;
            }
            assert!(begun.since(since) <= BOUND, "{:?}", begun.since(since));
        }
    })
    .await;
    assert_eq!(read(&cache, other).await, (1, Source::Hit), "the others are asked, and answer");
    servers.0[0].resume();
    eventually("it is heard again", async || read(&cache, other).await.1 == Source::First).await;
}

#[tokio::test]
async fn copies_are_served_of_the_one_that_is_down_and_of_no_other() {
    let (mut servers, database) = (Servers::start().await, Database::new());
    let down = Down::Stale { bound: Duration::from_secs(600), otherwise: None };
    let cache = with_first_level(build(servers.builder().await.when_down(down), &database));
    all_are_first(&cache, 1).await;
    let [dead, others @ ..] = keys();
    servers.0[0].kill();
    database.commit();
    eventually("it is down", async || read(&cache, dead).await == (1, Source::Stale)).await;
    for key in others {
        assert_eq!(read(&cache, key).await, (1, Source::Hit), "it is asked, and answers");
        cache.invalidate(&[key]).await.unwrap();
        assert_eq!(read(&cache, key).await, (2, Source::Loaded));
    }
}

#[tokio::test]
async fn a_group_of_which_one_tells_nothing_has_no_first_level() {
    let (server, database) = (server::redis(&[]).await, Database::new());
    let redis = Redis::connect(&format!("redis://{}", server.address())).await.unwrap();
    let nodes: [(_, Arc<dyn Store>); 2] = [("a", Arc::new(redis)), ("b", Arc::new(Memory::new()))];
    let cache = build(Cache::builder(Grouped::new(nodes).unwrap()).namespace("cache"), &database);
    let refused = cache.with_first_level(FirstLevel::new(10));
    assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
}
