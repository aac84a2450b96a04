//! A hot key that is gone, and everybody wants it.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::join_all;
use lockkeeper_cache::{Cache, Error, Loaded, Redis};
use testkit::server;
use testkit::wait::{CASE, soon, within};
use tokio::sync::watch;

use crate::broken::Breaking;
use crate::harness::Database;
use crate::processes::{self, PROCESSES, say, told};

const TABLES: [&str; 3] = [
    "CREATE TABLE herd_rows (id INT PRIMARY KEY, val TEXT NOT NULL)",
    "CREATE TABLE herd_loads (number BIGSERIAL PRIMARY KEY, id INT NOT NULL)",
    "INSERT INTO herd_rows SELECT id, 'row ' || id FROM generate_series(0, 9) id",
];

/// Reads the row, and leaves a row of its own: the database counts its readers.
const LOAD: &str = "WITH load AS (INSERT INTO herd_loads (id) VALUES ($1) RETURNING number) \
                    SELECT number, val FROM load, herd_rows WHERE herd_rows.id = $1";

/// So many looks are sent one by one.
const FEW: usize = 8;

/// In each process.
const HERD: u64 = 2500;

/// All want the same key, at once; each time they are told, the next one.
pub(crate) async fn child(server: &str, database: &str) {
    let store = Redis::connect(server).await.unwrap();
    let pool = processes::connect(database).await;
    let (open, gate) = watch::channel(0);
    let loader = move |key: u32| {
        let (pool, mut gate) = (pool.clone(), gate.clone());
        async move {
            let row = sqlx::query_as(LOAD).bind(key.cast_signed()).fetch_one(&pool).await;
            // Nobody has it before all have missed it.
            gate.wait_for(|open| *open > key).await.unwrap();
            row.map(Loaded::<(i64, String)>::found)
        }
    };
    let builder = Cache::builder(store)
        .namespace("cache")
        .max_loads(64, CASE)
        .timeout(CASE)
        .lease(CASE)
        .ttl(CASE);
    let cache = builder.build(loader).unwrap();
    say("ready");
    for key in 0.. {
        told().await;
        let before = cache.stats();
        let gets = (0..HERD).map(|_| {
            let cache = cache.clone();
            tokio::spawn(async move { cache.get(&key).await.unwrap().unwrap() })
        });
        let gets: Vec<_> = gets.collect();
        let missed = before.misses + HERD;
        within(CASE, "all miss it", async || cache.stats().misses == missed).await;
        say("missed");
        told().await;
        open.send_replace(key + 1);
        let found = join_all(gets).await;
        let found: Vec<Arc<(i64, String)>> = found.into_iter().map(Result::unwrap).collect();
        assert!(found.iter().all(|found| found.1 == format!("row {key}")));
        cache.idle().await;
        let stats = cache.stats();
        let failed =
            stats.store_errors + stats.down_reads - before.store_errors - before.down_reads;
        let numbers = || found.iter().map(|found| found.0);
        let [first, last] = [numbers().min().unwrap(), numbers().max().unwrap()];
        say(format!("{} {failed} {first} {last}", stats.loads - before.loads));
    }
}

/// Reads of a key in a database, each in a task of its own.
fn reads(store: &Breaking, database: &Database) -> (Cache<u32, u64>, impl Fn(u32) -> Reading) {
    let source = database.clone();
    let loader = move |_: u32| {
        let read = source.read();
        async move { Ok::<_, Error>(Loaded::found(read)) }
    };
    let builder =
        Cache::builder(store.clone()).namespace("cache").max_loads(64, CASE).timeout(CASE);
    let cache = builder.build(loader).unwrap();
    let reads = cache.clone();
    let get = move |key: u32| {
        let cache = reads.clone();
        tokio::spawn(async move { cache.get(&key).await.unwrap().map(|value| *value) })
    };
    (cache, get)
}

type Reading = tokio::task::JoinHandle<Option<u64>>;

/// A read that begins after an invalidation was acknowledged gets nothing that was looked for before it, however many look.
#[tokio::test]
async fn a_crowd_shares_looks_and_nobody_gets_one_that_is_older_than_he_is() {
    let (store, database) = (Breaking::default(), Database::new());
    let (cache, get) = reads(&store, &database);
    let looks = async |count: usize| {
        within(CASE, "they look", async || store.looks() == count).await;
    };
    assert_eq!(get(1).await.unwrap(), Some(1));
    store.tell(Some(1));
    // A few look alone, all others together.
    let mut early: Vec<_> = (0..100).map(|_| get(1)).collect();
    looks(1 + FEW + 1).await;
    // Who was the first of them goes away, and they do not care.
    let first = early.remove(FEW);
    first.abort();
    first.await.unwrap_err();
    database.commit();
    cache.invalidate(&[1]).await.unwrap();
    let mut late: Vec<_> = (0..1000).map(|_| get(1)).collect();
    late.push(get(2));
    looks(1 + FEW + 2).await;
    store.tell(None);
    for read in early {
        assert_eq!(read.await.unwrap(), Some(1));
    }
    for read in late {
        assert_eq!(read.await.unwrap(), Some(2));
    }
    assert_eq!(store.looks(), 1 + FEW + 2);
}

/// As those in a stream that is buffered, whose consumer reads himself.
#[tokio::test]
async fn a_read_that_nobody_polls_holds_up_no_other() {
    let (store, database) = (Breaking::default(), Database::new());
    let (cache, get) = reads(&store, &database);
    assert_eq!(get(1).await.unwrap(), Some(1));
    store.tell(Some(1));
    let mut held: Vec<_> = (0..100).map(|_| Box::pin(cache.get(&1))).collect();
    for read in &mut held {
        assert!(read.now_or_never().is_none());
    }
    store.tell(None);
    assert_eq!(soon("read", get(1)).await.unwrap(), Some(1));
    for read in held {
        assert_eq!(read.await.unwrap().as_deref(), Some(&1));
    }
}

#[tokio::test]
async fn ten_thousand_misses_in_four_processes_are_one_load() {
    let server = server::redis(&[]).await;
    let (database, pool) = processes::database(&TABLES).await;
    let order = format!("herd redis://{} {}", server.address(), database.url("here"));
    let mut processes = processes::start(vec![order; PROCESSES]).await;
    for key in 0..3 {
        for word in ["miss", "go"] {
            processes.iter_mut().for_each(|process| process.tell(word));
            if word == "miss" {
                for process in &mut processes {
                    assert_eq!(process.says().await, "missed");
                }
            }
        }
        let (mut said, mut loaded) = ([0; 2], Vec::new());
        for process in &mut processes {
            let [loads, failed, first, last] = process.counts().await;
            said = [said[0] + loads, said[1] + failed];
            loaded.extend([first, last]);
        }
        let counted = sqlx::query_scalar("SELECT number FROM herd_loads WHERE id = $1").bind(key);
        let counted: Vec<i64> = counted.fetch_all(&pool).await.unwrap();
        assert_eq!((counted.len(), said), (1, [1, 0]), "loads, and what the store failed at");
        assert!(loaded.iter().all(|number| number.cast_signed() == counted[0]), "{loaded:?}");
    }
}
