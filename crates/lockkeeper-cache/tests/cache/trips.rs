//! How many commands many keys take, as the server counts them, and how many answers a miss waits for.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use lockkeeper::clock::Instant;
use lockkeeper_cache::{Cache, Error, Loaded, Redis};
use testkit::nodes::ask;
use testkit::relay::Relay;
use testkit::server::{self, Server};
use testkit::wait::{LONG, eventually, soon};
use tokio::runtime::Builder as Runtime;
use tokio::task::spawn_blocking;

use crate::harness::{Client, Database, value};

/// What clients send to read and to change entries. Others are not counted: the client asks for `INFO` from time to time, and
/// scripts use commands of their own.
const COUNTED: [&str; 5] = ["mget", "evalsha", "eval", "script|load", "exec"];

/// Counted apart: the scripts use it, too, each once for a key.
const LOOK: &str = "get";

/// The same: this asks, too.
const ASK: &str = "info";

/// How often each of these was sent.
async fn sent(server: &Server) -> BTreeMap<String, u64> {
    let stats = ask(server.address(), "INFO commandstats").await;
    let line = |line: &str| {
        let (name, rest) = line.trim().strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = rest.split(',').next()?.parse().ok()?;
        ([LOOK, ASK].contains(&name) || COUNTED.contains(&name)).then(|| (name.to_owned(), calls))
    };
    stats.lines().filter_map(line).collect()
}

/// What has been sent since.
async fn since(server: &Server, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    since_and_looks(server, before).await.0
}

/// The same, and how often a key was looked at, also by scripts.
async fn since_and_looks(
    server: &Server,
    before: &BTreeMap<String, u64>,
) -> (BTreeMap<String, u64>, u64) {
    let mut sent = sent(server).await;
    for (name, calls) in before {
        *sent.entry(name.clone()).or_default() -= calls;
    }
    let looks = sent.remove(LOOK).unwrap_or_default();
    sent.remove(ASK);
    sent.retain(|_, calls| *calls > 0);
    (sent, looks)
}

fn one(command: &str) -> BTreeMap<String, u64> {
    BTreeMap::from([(command.to_owned(), 1)])
}

#[tokio::test]
async fn many_keys_are_one_command() {
    let server = server::redis(&[]).await;
    let store = Redis::connect(&format!("redis://{}", server.address())).await.unwrap();
    let loader = async |key: u32| Ok::<_, Error>(Loaded::found(key).version(1));
    let cache = Cache::builder(store).namespace("cache").build(loader).unwrap();
    let keys: Vec<u32> = (0..100).collect();
    let rows = |version| -> Vec<_> {
        keys.iter().map(|key| (*key, Loaded::found(*key).version(version))).collect()
    };
    // The server knows all scripts afterwards.
    cache.get_many(&keys).await.unwrap();
    cache.set_many(&rows(2)[..1]).await.unwrap();
    cache.invalidate(&keys[..1]).await.unwrap();
    cache.intend(&keys[..1]).await.unwrap().settle(None).await.unwrap();
    cache.get_many(&keys).await.unwrap();
    cache.idle().await;

    let before = sent(&server).await;
    assert_eq!(cache.get_many(&keys).await.unwrap().len(), 100);
    assert_eq!(since(&server, &before).await, one("mget"), "get_many");

    let before = sent(&server).await;
    assert_eq!(cache.set_many(&rows(3)).await.unwrap(), vec![true; 100]);
    assert_eq!(since(&server, &before).await, one("evalsha"), "set_many");

    let before = sent(&server).await;
    let write = cache.intend(&keys).await.unwrap();
    assert_eq!(since(&server, &before).await, one("evalsha"), "intend");

    let before = sent(&server).await;
    write.settle(None).await.unwrap();
    assert_eq!(since(&server, &before).await, one("evalsha"), "settle");

    let before = sent(&server).await;
    cache.invalidate(&keys).await.unwrap();
    assert_eq!(since(&server, &before).await, one("evalsha"), "invalidate");
    let loads = cache.stats().loads;
    cache.get_many(&keys).await.unwrap();
    assert_eq!(cache.stats().loads, loads + 100, "all of them were invalidated");
}

/// The look, which is all that a hit is, and the request for the lease. What is sent after the load has not even arrived;
/// and it is one command, also at a server that knew no scripts before.
#[tokio::test]
async fn a_miss_waits_for_two_answers() {
    let server = server::redis(&[]).await;
    let relay = Relay::to(server.address()).await;
    let store = Redis::connect(&format!("redis://{}", relay.address())).await.unwrap();
    let mut client = Client::new(Cache::builder(store).namespace("cache"), &Database::new());
    let get = client.get();
    let load = client.load().await;
    let before = sent(&server).await;
    relay.hold_commands();
    load.go();
    assert_eq!(value(get).await, 1);
    let arrived = since(&server, &before).await;
    let stats = client.cache.stats();
    let idle = poll!(pin!(client.cache.idle()));
    relay.let_go();
    assert_eq!(arrived, BTreeMap::new());
    assert_eq!((stats.fills, stats.store_errors, idle), (0, 0, Poll::Pending));
    assert_eq!(client.stats().await.fills, 1);
    assert_eq!(since(&server, &before).await, one("evalsha"));
    // Nor does it before the load.
    client.cache.invalidate(&[1]).await.unwrap();
    let before = sent(&server).await;
    let get = client.get();
    let load = client.load().await;
    // By itself once, and once in the script.
    assert_eq!(since_and_looks(&server, &before).await, (one("evalsha"), 2));
    load.go();
    assert_eq!(value(get).await, 1);
    client.idle().await;
    let before = sent(&server).await;
    assert_eq!(client.hit().await, 1);
    assert_eq!(since_and_looks(&server, &before).await, (BTreeMap::new(), 1), "a hit is a look");
}

/// Although the client forgets meanwhile who the server is, and would have to ask.
#[tokio::test]
async fn a_fill_is_one_command_after_a_long_load_too() {
    let server = server::redis(&[]).await;
    let store = Redis::connect(&format!("redis://{}", server.address())).await.unwrap();
    let builder = Cache::builder(store).namespace("cache").timeout(LONG).lease(LONG);
    let mut client = Client::new(builder, &Database::new());
    let get = client.get();
    let load = client.load().await;
    let begun = Instant::now();
    eventually("it takes long", async || Instant::now().since(begun) > Duration::from_millis(5100))
        .await;
    let before = sent(&server).await;
    load.go();
    assert_eq!(value(get).await, 1);
    client.idle().await;
    assert_eq!(since(&server, &before).await, one("evalsha"));
    // The one with which this was asked before.
    assert_eq!(sent(&server).await["info"] - before["info"], 2);
    assert_eq!(client.stats().await.fills, 1);
}

/// Nor for the lease to be given back.
#[tokio::test]
async fn a_load_that_fails_waits_for_nobody() {
    let server = server::redis(&[]).await;
    let relay = Relay::to(server.address()).await;
    let store = Redis::connect(&format!("redis://{}", relay.address())).await.unwrap();
    let mut client = Client::new(Cache::builder(store).namespace("cache"), &Database::new());
    let get = client.get();
    let load = client.load().await;
    let before = sent(&server).await;
    relay.hold_commands();
    load.fail();
    let failed = soon("it is told", get).await.unwrap();
    let idle = poll!(pin!(client.cache.idle()));
    relay.let_go();
    assert!(matches!(failed, Err(Error::Load(_))), "{failed:?}");
    assert_eq!(idle, Poll::Pending, "the lease is still to be given back");
    client.idle().await;
    // Had anybody waited for it until it was too late, it would be given back once more.
    assert_eq!(since(&server, &before).await, one("evalsha"));
    assert_eq!(client.loaded().await, 1);
    assert_eq!(client.cache.stats().waits, 0);
}

/// The connection is in another one, and goes on.
#[tokio::test]
async fn what_was_loaded_in_a_runtime_that_ends_is_cached() {
    let server = server::redis(&[]).await;
    let store = Redis::connect(&format!("redis://{}", server.address())).await.unwrap();
    let loader = async |key: usize| Ok::<_, Error>(Loaded::found(key));
    let cache = Cache::builder(store).namespace("cache").timeout(LONG).build(loader).unwrap();
    let keys: Vec<usize> = (0..20).collect();
    for key in keys.clone() {
        let cache = cache.clone();
        let read = move || {
            let runtime = Runtime::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(cache.get(&key)).unwrap();
        };
        spawn_blocking(read).await.unwrap();
    }
    cache.get_many(&keys).await.unwrap();
    let stats = cache.stats();
    assert_eq!((stats.fills, stats.hits, stats.waits), (20, 20, 0));
}

/// Nobody has to wait for the end of a lease that is left behind.
#[tokio::test]
async fn who_is_idle_may_end() {
    let server = server::redis(&[]).await;
    // In this runtime, which goes on.
    let relay = Arc::new(Relay::to(server.address()).await);
    for (key, mut runtime) in
        [Runtime::new_current_thread(), Runtime::new_multi_thread()].into_iter().enumerate()
    {
        let (runtime, relay) = (runtime.enable_all().build().unwrap(), Arc::clone(&relay));
        let reads = move || {
            runtime.block_on(async {
                let holds = Arc::clone(&relay);
                let loader = move |key: usize| {
                    // All that is sent from now on: the fill.
                    holds.hold_commands();
                    async move { Ok::<_, Error>(Loaded::found(key)) }
                };
                let url = format!("redis://{}", relay.address());
                let store = Redis::connect(&url).await.unwrap();
                let cache = Cache::builder(store).namespace("cache").build(loader).unwrap();
                cache.get(&key).await.unwrap();
                let mut idle = pin!(cache.idle());
                let held = poll!(idle.as_mut());
                relay.let_go();
                assert_eq!(held, Poll::Pending, "the fill has no answer");
                soon("nothing is under way", idle).await;
            });
        };
        spawn_blocking(reads).await.unwrap();
    }
    let loader = async |key: usize| Err::<Loaded<usize>, _>(format!("{key} is not cached"));
    let store = Redis::connect(&format!("redis://{}", server.address())).await.unwrap();
    let cache = Cache::builder(store).namespace("cache").build(loader).unwrap();
    let found = cache.get_many(&[0, 1]).await.unwrap();
    assert_eq!(found, [Some(0.into()), Some(1.into())]);
    assert_eq!(cache.stats().waits, 0);
}
