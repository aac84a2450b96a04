//! What a hit and a miss cost, as ratios to what they are made of, taken in one run.
//!
//! Every figure is the median of many short rounds, and the rounds of the two sides of a ratio take turns, so that a
//! noisy machine disturbs both alike, and most rounds not at all. `./dev bench cache`.
//!
//! Both sides do the same work: the map alone has the same keys, the same hasher (its own default) and the same `Arc`s
//! as values; the client alone has a connection of its own with the driver's defaults, among them a time-out for each
//! command, and decodes the same text into an `Arc`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program that prints figures")]

#[path = "cache/peers.rs"]
mod peers;

use std::fmt;
use std::hint::black_box;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::{Cache, Error, FirstLevel, Freshness, Loaded, Redis, Source};
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

const ROUNDS: usize = 501;
const KEYS: usize = 10_000;
/// So few that they stay in the caches of the processor, in the nearest or in the next: else the speed of the memory is
/// compared.
const NEAR: [usize; 2] = [100, 1_000];
const TASKS: usize = 32;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Article {
    id: usize,
    name: String,
    price: f64,
    tags: Vec<String>,
}

fn article(id: usize) -> Article {
    let tags = (0..6).map(|tag| format!("tag number {tag} of {id}")).collect();
    Article { id, name: format!("article {id}"), price: 12.5, tags }
}

/// A server that ends with the program.
struct Server(Child, u16);

impl Server {
    async fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut start = Command::new("redis-server");
        start.args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()]);
        let server = Self(start.stdout(Stdio::null()).spawn().unwrap(), port);
        while server.connect().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        server
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.1)
    }

    async fn connect(&self) -> redis::RedisResult<MultiplexedConnection> {
        redis::Client::open(self.url())?.get_multiplexed_async_connection().await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    println!("| what | figure | against | ratio | target |");
    println!("| --- | --- | --- | --- | --- |");
    let runtime = runtime();
    runtime.block_on(async {
        let server = Server::start().await;
        for near in NEAR {
            first_level(&server, near).await;
        }
        let hits = [redis_hit(&server, 1).await, redis_hit(&server, TASKS).await];
        let miss = miss(&server).await;
        peers::rows(&server.url(), hits, miss);
    });
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn row(what: &str, ours: Each, against: &str, theirs: Each, target: &str) {
    let ratio = ours.0 / theirs.0;
    println!("| {what} | {ours} | {against} {theirs} | {ratio:.2} | {target} |");
}

/// How many nanoseconds one of many takes: a duration has no parts of one.
#[derive(Clone, Copy)]
struct Each(f64);

impl Each {
    fn of(all: Duration, count: u32) -> Self {
        Self(all.as_secs_f64() * 1e9 / f64::from(count))
    }
}

impl fmt::Display for Each {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            nanos if nanos < 1e3 => write!(f, "{nanos:.1} ns"),
            nanos => write!(f, "{:.0} µs", nanos / 1e3),
        }
    }
}

/// Medians of rounds that take turns, per operation.
async fn versus(
    count: u32,
    ours: impl AsyncFn() -> Duration,
    theirs: impl AsyncFn() -> Duration,
) -> (Each, Each) {
    let (mut our, mut their) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        our.push(ours().await);
        their.push(theirs().await);
    }
    our.sort();
    their.sort();
    (Each::of(our[ROUNDS / 2], count), Each::of(their[ROUNDS / 2], count))
}

fn article_of(key: &str) -> Article {
    article(key.rsplit(':').next().and_then(|id| id.parse().ok()).unwrap_or(0))
}

async fn cache(server: &Server, namespace: &str) -> Cache<String, Article> {
    let store = Redis::connect(&server.url()).await.unwrap();
    let loader = async |key: String| Ok::<_, Error>(Loaded::found(article_of(&key)));
    Cache::builder(store).namespace(namespace).build(loader).unwrap()
}

fn keys() -> Vec<String> {
    (0..KEYS).map(|id| format!("article:{id}")).collect()
}

async fn first_level(server: &Server, near: usize) {
    let level = FirstLevel::new(2 * KEYS).ttl(Duration::from_secs(3600));
    let cache = cache(server, &format!("first{near}")).await.with_first_level(level).unwrap();
    let keys = &keys()[..near];
    let map = quick_cache::sync::Cache::<String, Arc<Article>>::new(2 * KEYS);
    for (id, key) in keys.iter().enumerate() {
        map.insert(key.clone(), Arc::new(article(id)));
        while cache.read(key, Freshness::Any).await.unwrap().source != Source::First {
            tokio::task::yield_now().await;
        }
    }
    let count = 10_000;
    let ours = async || {
        let since = Instant::now();
        for (at, key) in keys.iter().cycle().take(count as usize).enumerate() {
            black_box(cache.get(key).await.unwrap());
            if at % 1000 == 0 {
                tokio::task::yield_now().await;
            }
        }
        Instant::now().since(since)
    };
    let theirs = async || {
        let since = Instant::now();
        for (at, key) in keys.iter().cycle().take(count as usize).enumerate() {
            black_box(map.get(key));
            if at % 1000 == 0 {
                tokio::task::yield_now().await;
            }
        }
        Instant::now().since(since)
    };
    let before = cache.stats();
    let (our, their) = versus(count, ours, theirs).await;
    let missed = cache.stats().hits - before.hits;
    row(&format!("hit in the first level, {near} keys"), our, "quick_cache", their, "≤ 1.5");
    assert!(missed < 1000, "{missed} were not in the first level");
}

async fn redis_hit(server: &Server, tasks: usize) -> Each {
    let cache = cache(server, "hit").await;
    let raw = server.connect().await.unwrap();
    let keys: Arc<[String]> = keys().into();
    for part in keys.chunks(1000) {
        cache.get_many(part).await.unwrap();
    }
    let mut connection = raw.clone();
    for (id, key) in keys.iter().enumerate() {
        let text = serde_json::to_vec(&article(id)).unwrap();
        redis::cmd("SET").arg(key).arg(text).exec_async(&mut connection).await.unwrap();
    }
    let count = if tasks == 1 { 50 } else { 640 };
    let each = count as usize / tasks;
    let ours = async || {
        let since = Instant::now();
        let work = (0..tasks).map(|task| {
            let (cache, keys) = (cache.clone(), Arc::clone(&keys));
            tokio::spawn(async move {
                for at in 0..each {
                    let key = &keys[(task * each + at) % KEYS];
                    black_box(cache.get(key).await.unwrap().unwrap());
                }
            })
        });
        for task in work.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        Instant::now().since(since)
    };
    let theirs = async || {
        let since = Instant::now();
        let work = (0..tasks).map(|task| {
            let (mut raw, keys) = (raw.clone(), Arc::clone(&keys));
            tokio::spawn(async move {
                for at in 0..each {
                    let key = &keys[(task * each + at) % KEYS];
                    let get = redis::cmd("GET").arg(key).query_async::<Vec<u8>>(&mut raw).await;
                    let found: Article = serde_json::from_slice(&get.unwrap()).unwrap();
                    black_box(Arc::new(found));
                }
            })
        });
        for task in work.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        Instant::now().since(since)
    };
    let (our, their) = versus(count, ours, theirs).await;
    let stats = cache.stats();
    assert!(stats.hits >= u64::from(count) && stats.bypasses == 0, "{stats:?}");
    let what = format!("hit at Redis, {tasks} at a time");
    row(&what, our, "GET and serde_json", their, "≤ 1.1");
    our
}

/// Each key once, against cache-aside by hand: `GET`, and `SET` when there is nothing. Both wait for two answers, and the
/// loads are the same.
async fn miss(server: &Server) -> Each {
    let (cache, raw) = (cache(server, "miss").await, server.connect().await.unwrap());
    let (keys, count) = (keys(), 10);
    let (our_turn, their_turn) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let next = |turn: &AtomicUsize| {
        let from = turn.fetch_add(count as usize, Ordering::Relaxed);
        &keys[from..from + count as usize]
    };
    let ours = async || {
        let (keys, since) = (next(&our_turn), Instant::now());
        for key in keys {
            black_box(cache.get(key).await.unwrap().unwrap());
        }
        let took = Instant::now().since(since);
        // Not in the time of the others.
        cache.idle().await;
        took
    };
    let theirs = async || {
        let (keys, since, mut raw) = (next(&their_turn), Instant::now(), raw.clone());
        for key in keys {
            let key = format!("by hand:{key}");
            let get = redis::cmd("GET").arg(&key).query_async::<Option<Vec<u8>>>(&mut raw).await;
            assert!(get.unwrap().is_none());
            let found = Arc::new(article_of(&key));
            let text = serde_json::to_vec(&*found).unwrap();
            let mut set = redis::cmd("SET");
            set.arg(&key).arg(text).arg("EX").arg(600).exec_async(&mut raw).await.unwrap();
            black_box(found);
        }
        Instant::now().since(since)
    };
    let (our, their) = versus(count, ours, theirs).await;
    let stats = cache.stats();
    assert_eq!((stats.loads, stats.store_errors), (ROUNDS as u64 * u64::from(count), 0));
    row("miss, one at a time", our, "GET and SET by hand", their, "2 round trips each");
    our
}
