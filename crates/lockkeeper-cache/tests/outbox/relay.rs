//! What is left over is found and done.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper_cache::outbox::{Builder, Relay};
use lockkeeper_cache::{Cache, Redis, Touched, Transaction};
use testkit::database::System;
use testkit::server::{self, Server};
use testkit::wait::{LONG, eventually, soon};

use crate::sql::{Sql, write_and_die};

macro_rules! on_each_database {
    ($($case:ident)+) => {
        mod postgres {
            $(#[tokio::test]
            async fn $case() {
                super::$case(testkit::database::System::Postgres).await;
            })+
        }
        mod mariadb {
            $(#[tokio::test]
            async fn $case() {
                super::$case(testkit::database::System::MariaDb).await;
            })+
        }
    };
}

on_each_database! {
    a_writer_that_dies_after_its_commit_is_healed
    what_is_rolled_back_leaves_nothing
    a_commit_through_a_relay_deletes_its_row
    a_commit_that_was_said_to_fail_is_healed
    a_store_that_is_down_keeps_the_row
    what_is_not_for_us_is_left_alone
}

const WRITER: &str = "LOCKKEEPER_TEST_WRITER";
const NOW: Duration = Duration::ZERO;

/// Not a test: what this binary does when it is started as a writer.
#[tokio::test]
async fn writer_main() {
    if let Ok(urls) = std::env::var(WRITER) {
        let (redis, sql) = urls.split_once(' ').unwrap();
        write_and_die(redis, sql).await;
    }
}

async fn redis() -> (Server, String) {
    let server = server::redis(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let url = format!("redis://{}", server.address());
    (server, url)
}

/// A cache with item 1 in it.
async fn warm(sql: &Sql, redis: &str) -> Cache<i32, i64> {
    let builder = Cache::builder(Redis::connect(redis).await.unwrap()).namespace("cache");
    let cache = sql.cache(builder.timeout(Duration::from_millis(500)));
    assert_eq!(number(&cache).await, 1);
    eventually("it is cached", async || cache.stats().fills == 1).await;
    cache
}

async fn number(cache: &Cache<i32, i64>) -> i64 {
    *soon("a number", cache.get(&1)).await.unwrap().unwrap()
}

/// One that does nothing more by itself.
async fn still(builder: Builder) -> Relay {
    let relay = builder.every(LONG * 100).start();
    eventually("its first look is over", async || relay.stats().looks == 1).await;
    relay
}

fn touching(cache: &Cache<i32, i64>) -> Transaction<i32, i64> {
    let mut tx = cache.transaction();
    tx.touch(&1).unwrap();
    tx
}

async fn a_writer_that_dies_after_its_commit_is_healed(system: System) {
    let sql = Sql::new(system).await;
    let (_server, url) = redis().await;
    let cache = warm(&sql, &url).await;
    let early = still(sql.relay().cache(&cache).grace(LONG * 100)).await;
    let mut writer = tokio::process::Command::new("/proc/self/exe");
    writer.args(["relay::writer_main", "--exact", "--nocapture"]).env_remove("RUST_TEST_THREADS");
    writer.env(WRITER, format!("{url} {}", sql.url())).stdout(Stdio::null()).stderr(Stdio::null());
    let died = soon("the writer dies", writer.status()).await.unwrap();
    assert_eq!(died.signal(), Some(6), "{died}");
    assert_eq!(sql.operator("SELECT number FROM items WHERE id = 1"), "2");
    // Too young, for this one.
    assert_eq!((early.sweep().await.unwrap(), sql.rows()), (0, 1));
    assert_eq!(number(&cache).await, 1, "nobody has told the cache");
    // At once when it starts; and two do no harm to each other.
    let relay = || sql.relay().cache(&cache).grace(NOW).every(LONG * 100).start();
    let relays = [relay(), relay()];
    eventually("it is healed", async || number(&cache).await == 2).await;
    eventually("the row is gone", async || sql.rows() == 0).await;
    let relayed: u64 = relays.iter().map(|relay| relay.stats().relayed).sum();
    assert!((1..=2).contains(&relayed), "{relayed}");
    let [relay, _] = relays;
    assert_eq!(relay.sweep().await.unwrap(), 0);
    assert_eq!(relay.stats().lag, Duration::ZERO);
}

async fn what_is_rolled_back_leaves_nothing(system: System) {
    let sql = Sql::new(system).await;
    let (_server, url) = redis().await;
    let cache = warm(&sql, &url).await;
    let relay = still(sql.relay().cache(&cache).grace(NOW)).await;
    let mut tx = touching(&cache);
    let open = sql.begin(&tx.row()).await;
    // Not yet committed: not to be seen.
    assert_eq!(relay.sweep().await.unwrap(), 0);
    open.rollback().await;
    drop(tx);
    assert_eq!((relay.sweep().await.unwrap(), sql.rows()), (0, 0));
    let stats = cache.stats();
    assert_eq!((stats.invalidations, number(&cache).await), (0, 1));
}

async fn a_commit_through_a_relay_deletes_its_row(system: System) {
    let sql = Sql::new(system).await;
    let (_server, url) = redis().await;
    let cache = warm(&sql, &url).await;
    let relay = still(sql.relay().cache(&cache).grace(LONG * 100)).await;
    let mut tx = touching(&cache);
    let open = sql.begin(&tx.row()).await;
    assert!(tx.touch(&2).is_err(), "the row does not have it");
    relay.commit(tx, open.commit()).await.unwrap().cache.unwrap();
    assert_eq!(number(&cache).await, 2, "at once, and not when it is relayed");
    assert_eq!(sql.rows(), 1);
    assert_eq!((relay.sweep().await.unwrap(), sql.rows()), (0, 0));
}

async fn a_commit_that_was_said_to_fail_is_healed(system: System) {
    let sql = Sql::new(system).await;
    let (_server, url) = redis().await;
    let cache = warm(&sql, &url).await;
    let relay = still(sql.relay().cache(&cache).grace(NOW)).await;
    let mut tx = touching(&cache);
    let open = sql.begin(&tx.row()).await;
    let lost = async { Err::<(), _>("the connection is lost") };
    assert!(relay.commit(tx, lost).await.is_err());
    // Invalidated, and loaded again before it takes effect.
    assert_eq!(number(&cache).await, 1);
    open.commit().await.unwrap();
    assert_eq!(number(&cache).await, 1, "nobody knows");
    assert_eq!((relay.sweep().await.unwrap(), sql.rows()), (1, 0));
    assert_eq!(number(&cache).await, 2);
}

async fn a_store_that_is_down_keeps_the_row(system: System) {
    let sql = Sql::new(system).await;
    let (mut server, url) = redis().await;
    let cache = warm(&sql, &url).await;
    let relay = still(sql.relay().cache(&cache).grace(NOW)).await;
    let mut tx = touching(&cache);
    sql.begin(&tx.row()).await.commit().await.unwrap();
    server.kill();
    let refused = soon("an end", relay.sweep()).await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!((sql.rows(), relay.stats().relayed), (1, 0));
    assert!(relay.stats().failures >= 1);
    // It comes back with the old value.
    server.start_again().await;
    eventually("it is relayed", async || relay.sweep().await.is_ok_and(|relayed| relayed == 1))
        .await;
    assert_eq!((sql.rows(), number(&cache).await), (0, 2));
    drop(tx);
}

async fn what_is_not_for_us_is_left_alone(system: System) {
    let sql = Sql::new(system).await;
    let (_server, url) = redis().await;
    let cache = warm(&sql, &url).await;
    let other = sql.cache(Cache::builder(Redis::connect(&url).await.unwrap()).namespace("other"));
    let relay = still(sql.relay().cache(&cache).grace(NOW)).await;
    // More than a page, before those that are good.
    let rows = match system {
        System::Postgres => "generate_series(1, 600) AS rows (number)",
        System::MariaDb => "(SELECT seq AS number FROM seq_1_to_600) AS rows_",
    };
    let bad = "INSERT INTO lockkeeper_outbox (id, touched) SELECT CONCAT('''', number), 'bad' FROM";
    sql.operator(&format!("{bad} {rows}"));
    let mut both = touching(&cache);
    both.touch_in(&other, &1, 0).unwrap();
    sql.begin(&both.row()).await.commit().await.unwrap();
    let mut one = touching(&cache);
    sql.begin(&one.row()).await.commit().await.unwrap();
    assert_eq!((relay.sweep().await.unwrap(), sql.rows()), (1, 601));
    assert_eq!((relay.stats().bad, number(&cache).await), (601, 3));
    // Whoever has both caches does that one.
    let able = sql.relay().cache(&cache).cache(&other).grace(NOW).every(LONG * 100).start();
    eventually("it is done", async || {
        able.sweep().await.unwrap();
        sql.rows() == 600
    })
    .await;
    eventually("time passes", async || {
        able.sweep().await.unwrap();
        able.stats().lag > Duration::ZERO
    })
    .await;
    // Keys that a cache would not have are no reason to keep a row.
    let touched = Touched { key: "x".repeat(1000), version: 0 };
    assert!(lockkeeper_cache::Invalidate::invalidate_touched(&cache, &[touched]).await.is_ok());
    drop((one, both));
}
