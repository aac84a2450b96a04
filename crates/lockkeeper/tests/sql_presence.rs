//! Places in line that a client of PostgreSQL keeps by listening.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Guard, Locks};
use testkit::database::{Database, System};
use testkit::taker::Taker;
use testkit::wait::{eventually, soon};
use tokio::task::JoinHandle;

/// How long a client that cannot be found may come back: the lease of a waiter.
const LEASE: Duration = Duration::from_secs(5);

async fn start() -> Database {
    let database = System::Postgres.start(&[]).await;
    Locks::init(&database.url("here")).await.unwrap();
    database
}

/// A client that listens.
async fn connect(database: &Database) -> Locks {
    let before = listening(database).len();
    let locks = Locks::connect(&database.url("here")).await.unwrap();
    eventually("it listens", async || listening(database).len() > before).await;
    locks
}

/// The connections that listen.
fn listening(database: &Database) -> Vec<String> {
    let sql = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'";
    database.operator("here", sql).lines().map(str::to_owned).collect()
}

/// So many wait, and keep their places by listening.
async fn in_line(database: &Database, waiters: usize) {
    let sql = "SELECT convert_from(state, 'UTF8') FROM lockkeeper_names";
    let there = async || database.operator("here", sql).matches("\"expires\":null").count();
    eventually("in line", async || there().await == waiters).await;
}

fn wait(locks: &Locks) -> JoinHandle<Guard> {
    let mutex = locks.mutex("x").fair();
    tokio::spawn(async move { mutex.lock().await.unwrap() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_away_for_a_moment_keeps_its_place() {
    let database = start().await;
    let (holder, second) = (connect(&database).await, connect(&database).await);
    let others = listening(&database);
    let first = connect(&database).await;
    let held = holder.mutex("x").lock().await.unwrap();
    let waiting = wait(&first);
    in_line(&database, 1).await;
    let behind = wait(&second);
    in_line(&database, 2).await;
    let its_own = listening(&database).into_iter().find(|pid| !others.contains(pid)).unwrap();
    database.operator("here", &format!("SELECT pg_terminate_backend({its_own})"));
    held.release().await.unwrap();
    let next = soon("the first is back", waiting).await.unwrap();
    assert!(!behind.is_finished());
    next.release().await.unwrap();
    soon("and then the second", behind).await.unwrap().release().await.unwrap();
}

/// Not one lease for each of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_died_in_line_they_cost_one_lease() {
    let database = start().await;
    let (holder, last) = (connect(&database).await, connect(&database).await);
    let held = holder.mutex("x").lock().await.unwrap();
    let mut dead = Vec::new();
    for before in 0..4 {
        let mut taker = Taker::spawn(&database.url("here")).await;
        eventually("it listens", async || listening(&database).len() == before + 3).await;
        taker.send("lock x ttl=60000");
        in_line(&database, before + 1).await;
        dead.push(taker);
    }
    let waiting = wait(&last);
    in_line(&database, 5).await;
    dead.iter_mut().for_each(Taker::kill);
    eventually("they are gone", async || listening(&database).len() == 2).await;
    let since = Instant::now();
    held.release().await.unwrap();
    let next = soon("the one that lives", waiting).await.unwrap();
    let passed = Instant::now().since(since);
    assert!(passed < 2 * LEASE, "{passed:?}");
    next.release().await.unwrap();
}

/// A stopped client keeps its connection: only that it does not take what it is given tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_stopped_in_line_is_passed_after_a_lease_and_comes_back_at_the_end() {
    let database = start().await;
    let (holder, last) = (connect(&database).await, connect(&database).await);
    let held = holder.mutex("x").lock().await.unwrap();
    let mut stopped = Taker::spawn(&database.url("here")).await;
    eventually("it listens", async || listening(&database).len() == 3).await;
    stopped.send("lock x ttl=60000");
    in_line(&database, 1).await;
    let waiting = wait(&last);
    in_line(&database, 2).await;
    stopped.stop();
    held.release().await.unwrap();
    let next = soon("the one that runs", waiting).await.unwrap();
    stopped.go_on();
    in_line(&database, 1).await;
    let token = next.token();
    next.release().await.unwrap();
    assert!(stopped.granted().await > token.get());
}

/// Who waits knows the lease of the holder that it found: this one is over sooner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_dies_is_noticed_although_the_one_before_had_a_longer_lease() {
    let database = start().await;
    let (holder, last) = (connect(&database).await, connect(&database).await);
    let held = holder.lease(Duration::from_secs(600)).mutex("x").lock().await.unwrap();
    let mut short = Taker::spawn(&database.url("here")).await;
    eventually("it listens", async || listening(&database).len() == 3).await;
    short.send("lock x ttl=7000");
    in_line(&database, 1).await;
    let waiting = wait(&last);
    in_line(&database, 2).await;
    held.release().await.unwrap();
    short.granted().await;
    short.kill();
    soon("the next", waiting).await.unwrap().release().await.unwrap();
}

/// Not a test: what this binary does when it is started as another process.
#[test]
fn taker_main() {
    testkit::taker::main();
}
