//! The cache is killed under load, and the database must not be.
//!
//! A load may *arrive* late where the machine is busy; it may not *begin* too early. So each is stamped where it begins, on
//! the clock that all processes of a machine share. Between the token that admits it and that stamp nothing is waited
//! for, so no thread has more than one load there, however long it is held up: a process of one thread is at most one
//! load over in any window of time, and that is all that is allowed for.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::clock::Instant;
use lockkeeper_cache::limit::Limit;
use lockkeeper_cache::{Cache, Error, Loaded, Redis};
use parking_lot::Mutex;
use sqlx::postgres::PgPool;
use testkit::random::Random;
use testkit::server;
use testkit::wait::{CASE, within};

use crate::bucket::excess;
use crate::processes::{self, PROCESSES, Process, say, told};

const TABLES: [&str; 3] = [
    "CREATE TABLE traffic_rows (id BIGINT PRIMARY KEY, val BIGINT NOT NULL)",
    "CREATE TABLE traffic_loads (process INT NOT NULL, began BIGINT NOT NULL)",
    "INSERT INTO traffic_rows SELECT id, 3 * id FROM generate_series(0, 9999) id",
];

/// Reads the row, and writes down that it was read.
const LOAD: &str = "WITH load AS (INSERT INTO traffic_loads VALUES ($2, $3)) \
                    SELECT val FROM traffic_rows WHERE id = $1";

/// Of each process.
const RATE: u32 = 50;
const BURST: u32 = 10;

/// Reads all the time, of ten thousand keys.
pub(crate) async fn child(server: &str, database: &str, number: i32, limited: bool) {
    let (store, pool) = (Redis::connect(server).await.unwrap(), processes::connect(database).await);
    let done = Arc::new(AtomicU64::new(0));
    let loaded = Arc::clone(&done);
    let loader = move |key: i64| {
        // First of all.
        let began = Instant::now().as_nanos().cast_signed();
        let (pool, loaded) = (pool.clone(), Arc::clone(&loaded));
        async move {
            let load = sqlx::query_scalar(LOAD).bind(key).bind(number).bind(began);
            let row: i64 = load.fetch_one(&pool).await?;
            loaded.fetch_add(1, Ordering::SeqCst);
            Ok::<_, sqlx::Error>(Loaded::found(row))
        }
    };
    let builder = Cache::builder(store).namespace("cache").timeout(CASE);
    let mut builder = builder.max_loads(64, Duration::from_millis(200));
    if limited {
        let number = |number| NonZeroU32::new(number).unwrap();
        builder = builder.limit(Limit::per_second(number(RATE)).burst(number(BURST)));
    }
    let cache = builder.build(loader).unwrap();
    let stop = Arc::new(Mutex::new(false));
    let mut random = Random::seeded();
    let tasks = (0..64).map(|_| {
        let (cache, stop, mut random) = (cache.clone(), Arc::clone(&stop), random.fork());
        tokio::spawn(async move {
            while !*stop.lock() {
                let key = random.below(10_000).cast_signed();
                match cache.get(&key).await {
                    Ok(found) => assert_eq!(found.as_deref(), Some(&(3 * key))),
                    Err(Error::Busy { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    say("ready");
    while told().await == "count" {
        let stats = cache.stats();
        say(format!("{} {} {}", stats.loads, stats.refused_loads, stats.down_reads));
    }
    *stop.lock() = true;
    join_all(tasks).await.into_iter().for_each(|task| task.unwrap());
    within(CASE, "the last loads", async || cache.stats().loads == done.load(Ordering::SeqCst))
        .await;
    say(cache.stats().loads);
}

/// Loads that were begun, loads that were refused, and reads without the store, so far in all processes.
async fn counts(processes: &mut [Process]) -> [u64; 3] {
    let mut all = [0; 3];
    for process in processes {
        process.tell("count");
        let some: [u64; 3] = process.counts().await;
        all.iter_mut().zip(some).for_each(|(all, some)| *all += some);
    }
    all
}

/// Waits until there are so many more of each.
async fn more(processes: &mut [Process], what: &str, more: [u64; 3]) {
    let before = counts(processes).await;
    let processes = tokio::sync::Mutex::new(processes);
    within(CASE, what, async || {
        let now = counts(&mut processes.lock().await[..]).await;
        (0..3).all(|at| now[at] >= before[at] + more[at])
    })
    .await;
}

/// When the loads of this process began, since that moment.
async fn begins(pool: &PgPool, process: usize, since: Instant) -> Vec<u64> {
    let sql = "SELECT began FROM traffic_loads WHERE process = $1 AND began >= $2 ORDER BY began";
    let (process, since) = (i32::try_from(process).unwrap(), since.as_nanos().cast_signed());
    let begins: Vec<i64> =
        sqlx::query_scalar(sql).bind(process).bind(since).fetch_all(pool).await.unwrap();
    begins.into_iter().map(i64::cast_unsigned).collect()
}

#[tokio::test]
async fn a_cache_that_is_killed_does_not_kill_the_database() {
    let started = Instant::now();
    let mut server = server::redis(&["--save", ""]).await;
    let (database, pool) = processes::database(&TABLES).await;
    let (address, url) = (server.address(), database.url("here"));
    let order = |number, limit: &str| format!("traffic redis://{address} {url} {number} {limit}");
    let orders = (0..PROCESSES).map(|number| order(number, "limited"));
    let mut processes = processes::start(orders).await;
    more(&mut processes, "it fills", [100, 0, 0]).await;
    server.kill();
    more(&mut processes, "more is wanted than is let", [200, 50, 50]).await;
    server.start_again().await;
    more(&mut processes, "it goes on with the cache", [50, 0, 0]).await;
    let mut all = Vec::new();
    for (number, process) in processes.iter_mut().enumerate() {
        process.tell("stop");
        let [loads] = process.counts().await;
        let begins = begins(&pool, number, started).await;
        assert_eq!(begins.len() as u64, loads, "the database was asked for each");
        assert!(excess(&begins, RATE, BURST) <= 1, "process {number}: {begins:?}");
        all.extend(begins);
    }
    // All together: so many times as much.
    all.sort_unstable();
    let number = u32::try_from(PROCESSES).unwrap();
    assert!(excess(&all, number * RATE, number * BURST) <= number.into(), "all: {all:?}");
    // Would it be seen?
    let mut free = processes::start([order(PROCESSES, "free")]).await;
    more(&mut free, "it fills", [1, 0, 0]).await;
    server.kill();
    let killed = Instant::now();
    within(CASE, "nothing holds it back, and that is seen", async || {
        excess(&begins(&pool, PROCESSES, killed).await, RATE, BURST) > 1
    })
    .await;
}
