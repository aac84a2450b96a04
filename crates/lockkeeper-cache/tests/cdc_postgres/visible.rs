//! What is told can be seen.

use std::time::Duration;

use lockkeeper_cache::cdc::{LogError, Source};
use sqlx::{Connection, PgConnection};
use testkit::wait::{eventually, soon};
use tokio::time::timeout;

use crate::harness::Place;

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, number int)";

/// The server sends a transaction as soon as it is on disk; others see it when a standby has it, too.
#[tokio::test]
async fn a_commit_that_waits_for_a_standby_is_not_told_before_it_can_be_seen() {
    let tables = [ITEMS, "INSERT INTO items VALUES (1, 1)"];
    let place = Place::alone(&[], &tables, &["items id"]).await;
    let (mut log, position) = place.begin().await;
    place.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    place.sql("SELECT pg_reload_conf()");
    eventually("a standby is waited for", async || {
        place.sql("SHOW synchronous_standby_names") == "nobody"
    })
    .await;
    let mut writer = PgConnection::connect(&place.url()).await.unwrap();
    let write = "UPDATE items SET number = 2";
    let waiting = tokio::spawn(async move { sqlx::query(write).execute(&mut writer).await });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    eventually("the writer waits", async || place.sql(waits) == "1").await;
    // It is in the log.
    let flushed = "SELECT pg_current_wal_flush_lsn() = pg_current_wal_lsn()";
    assert_eq!(place.sql(flushed), "t");
    for _ in 0..3 {
        let batch = soon("a batch", log.next()).await.unwrap();
        assert!(batch.changes.is_empty(), "{batch:?}");
        assert_eq!(batch.position, None);
        assert_eq!(place.sql("SELECT number FROM items"), "1");
    }
    assert!(batch_time(&mut *log).await, "it says that it is behind");
    place.sql("ALTER SYSTEM RESET synchronous_standby_names");
    place.sql("SELECT pg_reload_conf()");
    let batch = soon("told", async {
        loop {
            let batch = log.next().await.unwrap();
            if !batch.changes.is_empty() {
                return batch;
            }
        }
    })
    .await;
    assert_eq!(place.lines(&batch), ["items +1"]);
    assert!(batch.position.is_some_and(|next| next != position));
    assert_eq!(place.sql("SELECT number FROM items"), "2");
    waiting.await.unwrap().unwrap();
}

async fn batch_time(log: &mut dyn lockkeeper_cache::cdc::Log) -> bool {
    log.next().await.unwrap().lag.time.is_some_and(|time| time > Duration::from_secs(1))
}

/// With no room for luck: a reader asks for each change as soon as it is told.
#[tokio::test]
async fn each_change_can_be_read_when_it_is_told() {
    let full = "ALTER TABLE items REPLICA IDENTITY FULL";
    let tables = [ITEMS, full, "INSERT INTO items VALUES (1, 0)"];
    let place = Place::new(&tables, &["items id number"]).await;
    let (mut log, _) = place.begin().await;
    let url = place.url();
    let writer = tokio::spawn(async move {
        let mut writer = PgConnection::connect(&url).await.unwrap();
        for _ in 0..1000 {
            sqlx::query("UPDATE items SET number = number + 1").execute(&mut writer).await.unwrap();
        }
    });
    let mut reader = PgConnection::connect(&place.url()).await.unwrap();
    let mut told = 0;
    let all = async {
        while told < 1000 {
            let batch = log.next().await.unwrap();
            let read: i32 = sqlx::query_scalar("SELECT number FROM items")
                .fetch_one(&mut reader)
                .await
                .unwrap();
            if let Some(line) = place.lines(&batch).last() {
                told = line.rsplit('|').next().unwrap().parse().unwrap();
                assert!(read >= told, "{told} is told, and {read} is read");
            }
        }
    };
    soon("all", all).await;
    writer.await.unwrap();
}

/// What was committed before the beginning can be read; so a transaction that runs then is waited for.
#[tokio::test]
async fn a_beginning_waits_for_transactions_that_run() {
    let place = Place::alone(&[], &[ITEMS], &["items id"]).await;
    let mut open = PgConnection::connect(&place.url()).await.unwrap();
    sqlx::query("BEGIN").execute(&mut open).await.unwrap();
    sqlx::query("INSERT INTO items VALUES (1)").execute(&mut open).await.unwrap();
    let source = place.source();
    let mut opening = std::pin::pin!(source.open(None, place.wanted()));
    assert!(timeout(Duration::from_secs(1), &mut opening).await.is_err(), "it waits");
    sqlx::query("COMMIT").execute(&mut open).await.unwrap();
    let mut log = soon("opened", opening).await.unwrap();
    log.next().await.unwrap();
    assert_eq!(place.sql("SELECT count(*) FROM items"), "1");
    let told = place.told(&mut *log).await;
    assert!(told.is_empty() || told == ["items +1"], "{told:?}");
}

/// A follower gives a source a minute to open: what is in the way is said before that.
#[tokio::test]
async fn who_waits_too_long_for_a_transaction_says_for_which() {
    let place = Place::alone(&[], &[ITEMS], &["items id"]).await;
    let mut open = PgConnection::connect(&place.url()).await.unwrap();
    sqlx::query("BEGIN").execute(&mut open).await.unwrap();
    let xid: String =
        sqlx::query_scalar("SELECT pg_current_xact_id()::text").fetch_one(&mut open).await.unwrap();
    let source = place.source();
    let opening = timeout(Duration::from_secs(55), source.open(None, place.wanted()));
    let error = opening.await.expect("before a follower gives up").unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, LogError::Failed(_)), "{said}");
    assert!(said.contains("transactions that run") && said.contains("pg_stat_activity"), "{said}");
    assert!(said.contains(&format!("({xid} of process ")), "{said}");
    assert_eq!(place.slot("count(*)"), "0", "nothing is left behind");
    sqlx::query("COMMIT").execute(&mut open).await.unwrap();
    place.begin().await;
}

#[tokio::test]
async fn a_follower_that_would_be_a_standby_is_refused() {
    let place = Place::alone(&[], &[ITEMS], &["items id"]).await;
    // Where nobody commits, so that nobody waits.
    place.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
    place.sql("SELECT pg_reload_conf()");
    eventually("set", async || place.sql("SHOW synchronous_standby_names") == "*").await;
    let refused = place.source().open(None, place.wanted()).await.unwrap_err();
    let said = refused.to_string();
    assert!(matches!(refused, LogError::Refused(_)) && said.contains("as a standby"), "{said}");
}
