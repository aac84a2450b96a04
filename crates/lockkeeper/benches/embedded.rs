//! What the embedded backends cost, as ratios to what they are made of, taken in one run.
//!
//! Every figure is the median of several rounds, and the rounds of the two sides of a ratio take
//! turns, so that a noisy machine disturbs both alike. `cargo bench --bench embedded`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program that prints figures")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper::clock::Instant;
use rusqlite::{Connection, TransactionBehavior};
use tokio::runtime::{Builder, Runtime};

const ROUNDS: usize = 9;
/// Set in the second process of the hand-over measurement: the directory.
const SECOND: &str = "LOCKKEEPER_BENCH_SECOND";
const HANDOVERS: usize = 2000;

fn main() {
    if let Ok(directory) = std::env::var(SECOND) {
        println!("{}", runtime().block_on(take_turns(&format!("file:{directory}"))));
        return;
    }
    println!("| what | figure | against | ratio | target |");
    println!("| --- | --- | --- | --- | --- |");
    let runtime = runtime();
    runtime.block_on(uncontended());
    runtime.block_on(contended());
    runtime.block_on(file_pairs());
    runtime.block_on(hand_over());
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn row(what: &str, figure: &str, against: &str, ratio: f64, target: &str) {
    println!("| {what} | {figure} | {against} | {ratio:.2} | {target} |");
}

/// Medians of rounds that take turns, per operation.
async fn versus(
    count: u32,
    ours: impl AsyncFn(u32) -> Duration,
    theirs: impl AsyncFn(u32) -> Duration,
) -> (Duration, Duration) {
    let (mut our, mut their) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        our.push(ours(count).await);
        their.push(theirs(count).await);
    }
    our.sort();
    their.sort();
    (our[ROUNDS / 2] / count, their[ROUNDS / 2] / count)
}

async fn uncontended() {
    let locks = Locks::memory();
    let mutex = locks.mutex("bench");
    let plain = tokio::sync::Mutex::new(0_u64);
    let (ours, theirs) = versus(
        200_000,
        async |count| {
            let start = Instant::now();
            for _ in 0..count {
                drop(mutex.lock().await.unwrap());
            }
            Instant::now().since(start)
        },
        async |count| {
            let start = Instant::now();
            for _ in 0..count {
                *plain.lock().await += 1;
            }
            Instant::now().since(start)
        },
    )
    .await;
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    let against = format!("tokio::sync::Mutex {theirs:?}");
    row("memory: lock + release, uncontended", &format!("{ours:?}"), &against, ratio, "≤ 5");
}

async fn contended() {
    const TASKS: u32 = 64;
    let locks = Locks::memory();
    let plain = Arc::new(tokio::sync::Mutex::new(0_u64));
    let (ours, theirs) = versus(
        TASKS * 2000,
        async |count| {
            let start = Instant::now();
            let tasks: Vec<_> = (0..TASKS)
                .map(|_| {
                    let mutex = locks.mutex("bench");
                    tokio::spawn(async move {
                        for _ in 0..count / TASKS {
                            let guard = mutex.lock().await.unwrap();
                            tokio::task::yield_now().await;
                            drop(guard);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            Instant::now().since(start)
        },
        async |count| {
            let start = Instant::now();
            let tasks: Vec<_> = (0..TASKS)
                .map(|_| {
                    let plain = Arc::clone(&plain);
                    tokio::spawn(async move {
                        for _ in 0..count / TASKS {
                            let guard = plain.lock().await;
                            tokio::task::yield_now().await;
                            drop(guard);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            Instant::now().since(start)
        },
    )
    .await;
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    let against = format!("tokio::sync::Mutex {theirs:?}");
    row("memory: 64 tasks on one name", &format!("{ours:?} per turn"), &against, ratio, "≤ 3");
}

async fn file_pairs() {
    let directory = tempfile::tempdir().unwrap();
    let locks = Locks::connect(&format!("file:{}", directory.path().display())).await.unwrap();
    let mutex = locks.mutex("bench");
    let raw = directory.path().join("raw.db");
    let raw = parking_lot::Mutex::new(raw_database(&raw));
    let (ours, theirs) = versus(
        2000,
        async |count| {
            let start = Instant::now();
            for _ in 0..count {
                mutex.lock().await.unwrap().release().await.unwrap();
            }
            Instant::now().since(start)
        },
        async |count| {
            let mut raw = raw.lock();
            let start = Instant::now();
            for _ in 0..count {
                raw_pair(&mut raw);
            }
            Instant::now().since(start)
        },
    )
    .await;
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    let figure = format!("{:.0} pairs/s", 1.0 / ours.as_secs_f64());
    let against = format!("the same SQLite steps, bare: {:.0} pairs/s", 1.0 / theirs.as_secs_f64());
    row("file: lock + release, one task", &figure, &against, ratio, "≥ 2,000 pairs/s");
}

fn raw_database(path: &std::path::Path) -> Connection {
    let raw = Connection::open(path).unwrap();
    raw.pragma_update(None, "journal_mode", "WAL").unwrap();
    raw.pragma_update(None, "synchronous", "NORMAL").unwrap();
    raw.execute_batch(
        "CREATE TABLE names (name TEXT PRIMARY KEY, state BLOB) WITHOUT ROWID;
         CREATE TABLE meta (token INTEGER); INSERT INTO meta VALUES (0);",
    )
    .unwrap();
    raw
}

fn raw_pair(raw: &mut Connection) {
    for step in ["INSERT INTO names VALUES ('bench', 'x')", "DELETE FROM names"] {
        let transaction = raw.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        transaction
            .prepare_cached("UPDATE meta SET token = token + 1")
            .unwrap()
            .execute([])
            .unwrap();
        transaction.prepare_cached(step).unwrap().execute([]).unwrap();
        transaction.commit().unwrap();
    }
}

/// Two processes that want the same fair mutex all the time: from the call of `release` in the one to
/// the grant in the other.
async fn hand_over() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file:{}", directory.path().display());
    let mut second = Command::new(std::env::current_exe().unwrap())
        .env(SECOND, directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut turns: Vec<(u64, u64, bool)> = parse(&take_turns(&url).await, true);
    let output = second.stdout.take().unwrap();
    for line in BufReader::new(output).lines() {
        turns.extend(parse(&line.unwrap(), false));
    }
    second.wait().unwrap();
    turns.sort_unstable();
    let mut latencies: Vec<u64> = turns
        .windows(2)
        .filter(|pair| pair[0].2 != pair[1].2)
        .map(|pair| pair[1].0.saturating_sub(pair[0].1))
        .collect();
    latencies.sort_unstable();
    assert!(latencies.len() > HANDOVERS / 4, "only {} hand-overs seen", latencies.len());
    let at = |part: usize| Duration::from_nanos(latencies[latencies.len() * part / 100]);
    let (p50, p99) = (at(50), at(99));
    let wake = pipe_round_trip() / 2;
    let ratio = p50.as_secs_f64() / wake.as_secs_f64();
    let against = format!("waking a process through a pipe {wake:?}");
    let figure = format!("p50 {p50:?}, p99 {p99:?}");
    row("file: hand-over between two processes", &figure, &against, ratio, "p50 < 2 ms");
}

/// Takes the mutex many times; for each turn when it was granted and when it was let go.
async fn take_turns(url: &str) -> String {
    let locks = Locks::connect(url).await.unwrap();
    let mutex = locks.mutex("bench").fair();
    let mut log = String::new();
    for _ in 0..HANDOVERS {
        let guard = mutex.lock().await.unwrap();
        let granted = Instant::now();
        let released = Instant::now();
        guard.release().await.unwrap();
        log += &format!("{} {},", granted.as_nanos(), released.as_nanos());
    }
    log
}

fn parse(log: &str, first: bool) -> Vec<(u64, u64, bool)> {
    let number = |text: &str| text.parse::<u64>().unwrap();
    let turns = log.split(',').filter_map(|turn| turn.split_once(' '));
    turns.map(|(granted, released)| (number(granted), number(released), first)).collect()
}

/// What it costs to wake another process up and be woken by it.
fn pipe_round_trip() -> Duration {
    const ROUND_TRIPS: u32 = 2000;
    let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut write = cat.stdin.take().unwrap();
    let mut read = BufReader::new(cat.stdout.take().unwrap());
    let mut line = String::new();
    let start = Instant::now();
    for _ in 0..ROUND_TRIPS {
        write.write_all(b"x\n").unwrap();
        read.read_line(&mut line).unwrap();
    }
    let took = Instant::now().since(start);
    drop(write);
    cat.wait().unwrap();
    took / ROUND_TRIPS
}
