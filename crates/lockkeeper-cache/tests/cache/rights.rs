//! As little as docs/OPERATIONS.md says is enough.

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_cache::entry::Ticket;
use lockkeeper_cache::store::Claim;
use lockkeeper_cache::through::{RedisQueue, Through};
use lockkeeper_cache::{
    Cache, Error, FirstLevel, Freshness, Loaded, Redis, Source, Store, Strategy,
};
use testkit::nodes::ask;
use testkit::server::{self, Server};
use testkit::wait::{LONG, eventually, soon};

use crate::tables::Names;

/// As in docs/OPERATIONS.md.
const RIGHTS: &str = "reset on >pw ~app:* resetchannels &lockkeeper_wake:* \
                      +@connection +@scripting +@read +@write +time -@dangerous +subscribe +info";

/// A server, and the URL of a user who may do no more than that there.
async fn start() -> (Server, String) {
    let server = server::redis(&[]).await;
    let words: Vec<&str> = RIGHTS.split_whitespace().collect();
    let told = ask(server.address(), &format!("ACL SETUSER app {}", words.join(" "))).await;
    assert_eq!(told, "OK");
    let url = format!("redis://app:pw@{}?prefix=app:", server.address());
    (server, url)
}

async fn cache(url: &str) -> Cache<u32, u32> {
    let builder = Cache::builder(Redis::connect(url).await.unwrap()).namespace("cache");
    let builder = builder.tags(|key: &u32| vec![format!("{}", key % 10)]);
    builder.build(async |key: u32| Ok::<_, Error>(Loaded::found(key).version(1))).unwrap()
}

#[tokio::test]
async fn few_rights_are_enough_for_the_cache() {
    let (server, url) = start().await;
    let level = FirstLevel::new(100);
    let reader = cache(&url).await.with_first_level(level).unwrap();
    let writer = cache(&url).await;
    let source = async || reader.read(&1, Freshness::Any).await.unwrap().source;
    let first = async || eventually("kept", async || source().await == Source::First).await;
    first().await;
    writer.invalidate(&[1]).await.unwrap();
    eventually("it is heard", async || source().await != Source::First).await;
    first().await;
    assert_eq!(writer.invalidate_tag("1").await.unwrap(), 1);
    eventually("it is heard", async || source().await != Source::First).await;
    assert_eq!(writer.get_many(&[2, 3]).await.unwrap().len(), 2);
    writer.idle().await;
    let new = [(2, Loaded::found(5).version(5)), (3, Loaded::found(6).version(6))];
    assert_eq!(writer.set_many(&new).await.unwrap(), [true, true]);
    writer.intend(&[1, 2]).await.unwrap().settle(None).await.unwrap();
    writer.explain(&1).await.unwrap();
    writer.clear().await.unwrap();
    reader.idle().await;
    for cache in [&reader, &writer] {
        assert_eq!(cache.stats().store_errors, 0, "{:?}", cache.stats());
    }
    // No user has done anything else than he may.
    assert_eq!(ask(server.address(), "ACL LOG").await, "");
}

#[tokio::test]
async fn few_rights_are_enough_for_each_strategy() {
    let (server, url) = start().await;
    // Second deletes are done as long as there is a table.
    let mut tables = Vec::new();
    for strategy in Strategy::ALL {
        let names = Names::default();
        let store = match strategy {
            Strategy::WriteBehind => Redis::connect_warm(&url).await.unwrap(),
            _ => Redis::connect(&url).await.unwrap(),
        };
        let builder = Cache::builder(store).namespace(strategy.name()).locks(Locks::memory());
        let time = Duration::from_millis(20);
        let builder = builder.second_delete(time).keep_last(time);
        let table = builder.table(strategy, names.clone()).unwrap();
        table.write(&1, Some("a".into())).await.unwrap();
        if strategy == Strategy::WriteBehind {
            soon("a flush", table.flush()).await.unwrap();
        }
        assert_eq!(names.get(1).as_deref(), Some("a"), "{strategy}");
        let read = table.read(&1).await.unwrap();
        assert_eq!(read.value.as_deref().map(String::as_str), Some("a"), "{strategy}");
        table.cache().idle().await;
        assert_eq!(table.cache().stats().store_errors, 0, "{strategy}");
        tables.push(table);
    }
    let deletes = "EXISTS app:double-delete!deletes";
    let done = async || ask(server.address(), deletes).await == "0";
    eventually("the second delete is done", done).await;
    assert_eq!(ask(server.address(), "ACL LOG").await, "");
}

#[tokio::test]
async fn few_rights_are_enough_for_followers_and_writes_through_the_cache() {
    let (server, url) = start().await;
    let store = Redis::connect(&url).await.unwrap();
    let (positions, ticket) = (store.positions().unwrap(), Ticket::new());
    let claimed = positions.claim("f", ticket, 1, LONG).await.unwrap();
    assert!(matches!(claimed, Claim::Granted { .. }));
    assert!(positions.save("f", ticket, "here").await.unwrap());
    positions.forget("f").await.unwrap();
    let names = Names::default();
    let queue = RedisQueue::connect(&url, "t").await.unwrap();
    let cache = Cache::builder(store).namespace("cache").build(names.clone()).unwrap();
    let through = Through::builder(queue, cache, names.clone()).build();
    let written = soon("a write", through.write(&1, Some("a".into()))).await.unwrap();
    let consumer = through.consume();
    soon("applied", through.applied(written.order, LONG)).await.unwrap();
    assert_eq!(names.get(1).as_deref(), Some("a"));
    assert_eq!(through.backlog().await.unwrap().pending, 0);
    consumer.stop().await;
    assert_eq!(ask(server.address(), "ACL LOG").await, "");
}

/// They are rights, after all.
#[tokio::test]
async fn without_its_prefix_the_cache_gets_nowhere() {
    let (_server, url) = start().await;
    let cache = cache(&url.replace("prefix=app:", "prefix=other:")).await;
    assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&1), "loaded");
    assert!(cache.stats().store_errors > 0);
    let refused = cache.invalidate(&[1]).await.unwrap_err();
    assert!(matches!(refused, Error::Store { .. }), "{refused:?}");
}
