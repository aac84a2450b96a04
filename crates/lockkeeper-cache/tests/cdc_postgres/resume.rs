//! Going on where it was left.

use std::collections::BTreeSet;
use std::time::Duration;

use testkit::random::Random;
use testkit::wait::{eventually, soon};

use crate::harness::{Place, until_error};

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY)";

#[tokio::test]
async fn what_was_not_confirmed_comes_again_and_nothing_is_missed() {
    let place = Place::new(&[ITEMS], &["items id"]).await;
    let (log, position) = place.begin().await;
    drop(log);
    place.sql("INSERT INTO items VALUES (1)");
    let mut log = place.open(&position).await.unwrap();
    place.sql("INSERT INTO items VALUES (2)");
    let (told, after) = place.told_to(&mut *log).await;
    assert_eq!(told, ["items +1", "items +2"]);
    drop(log);
    // Again from the old place, and then from the new one.
    let mut log = place.open(&position).await.unwrap();
    assert_eq!(place.told(&mut *log).await, ["items +1", "items +2"]);
    drop(log);
    let after = after.unwrap();
    let mut log = place.open(&after).await.unwrap();
    place.sql("INSERT INTO items VALUES (3)");
    assert_eq!(place.told(&mut *log).await, ["items +3"]);
}

#[tokio::test]
async fn a_reader_that_is_dropped_anywhere_misses_nothing() {
    let place = Place::new(&[ITEMS], &["items id"]).await;
    let mut random = Random::seeded();
    let (log, mut position) = place.begin().await;
    drop(log);
    let (mut from, mut seen) = (0, BTreeSet::new());
    for round in 0..15 {
        let count = 1 + random.below(4000);
        // In one transaction, and in many.
        let insert = match round % 2 {
            0 => format!("INSERT INTO items SELECT generate_series({from}, {})", from + count - 1),
            _ => format!(
                "DO $$ BEGIN FOR i IN {from}..{} LOOP INSERT INTO items VALUES (i); \
                 IF i % 7 = 0 THEN COMMIT; END IF; END LOOP; END $$",
                from + count - 1
            ),
        };
        place.sql(&insert);
        from += count;
        let mut log = place.open(&position).await.unwrap();
        for _ in 0..random.below(4) {
            // Dropped in the middle, with what it has read.
            let next =
                tokio::time::timeout(random.duration(Duration::from_millis(300)), log.next());
            let Ok(batch) = next.await else { break };
            let batch = batch.unwrap();
            seen.extend(place.lines(&batch));
            if let Some(next) = batch.position {
                position = next;
                if random.below(2) == 0 {
                    log.confirm(&position).await.unwrap();
                }
            }
        }
    }
    let mut log = place.open(&position).await.unwrap();
    seen.extend(place.told(&mut *log).await);
    let missed: Vec<u64> = (0..from).filter(|id| !seen.contains(&format!("items +{id}"))).collect();
    assert_eq!(missed, [0; 0]);
}

#[tokio::test]
async fn a_second_reader_takes_the_slot_over() {
    let place = Place::new(&[ITEMS], &["items id"]).await;
    let (mut first, position) = place.begin().await;
    place.sql("INSERT INTO items VALUES (1)");
    assert_eq!(place.told(&mut *first).await, ["items +1"]);
    let mut second = place.open(&position).await.unwrap();
    assert_eq!(place.told(&mut *second).await, ["items +1"]);
    let error = until_error(&mut *first).await.to_string();
    assert!(error.contains("terminating connection"), "{error}");
    // And by a new beginning.
    let (mut third, _) = place.begin().await;
    place.sql("INSERT INTO items VALUES (2)");
    assert_eq!(place.told(&mut *third).await, ["items +2"]);
    until_error(&mut *second).await;
}

#[tokio::test]
async fn a_new_beginning_does_not_tell_what_was_before() {
    let place = Place::new(&[ITEMS], &["items id"]).await;
    let (log, old) = place.begin().await;
    drop(log);
    place.sql("INSERT INTO items VALUES (1)");
    let (mut log, _) = place.begin().await;
    place.sql("INSERT INTO items VALUES (2)");
    assert_eq!(place.told(&mut *log).await, ["items +2"]);
    drop(log);
    let why = place.lost(&old).await;
    assert!(why.contains("already, after"), "{why}");
}

#[tokio::test]
async fn an_idle_log_goes_on_while_others_write() {
    let place = Place::new(&[ITEMS], &["items id"]).await;
    let (mut log, first) = place.begin().await;
    let before = place.slot("confirmed_flush_lsn");
    place.server.operator("elsewhere", "CREATE TABLE IF NOT EXISTS noise (x text)");
    let noise = "INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 1000)";
    place.server.operator("elsewhere", noise);
    let written = place.sql("SELECT pg_current_wal_lsn()");
    let mut position = first;
    let on = async {
        loop {
            let batch = log.next().await.unwrap();
            assert!(batch.changes.is_empty() && batch.lag.time.is_none());
            assert!(batch.lag.bytes.is_some());
            position = batch.position.unwrap_or(position.clone());
            log.confirm(&position).await.unwrap();
            let passed = format!("confirmed_flush_lsn >= '{written}' AND '{before}' < '{written}'");
            if place.slot(&passed) == "t" {
                break;
            }
        }
    };
    soon("confirmed", on).await;
    drop(log);
    let mut log = place.open(&position).await.unwrap();
    place.sql("INSERT INTO items VALUES (1)");
    assert_eq!(place.told(&mut *log).await, ["items +1"]);
}

#[tokio::test]
async fn a_server_that_restarts_loses_nothing() {
    let mut place = Place::alone(&[], &[ITEMS], &["items id"]).await;
    let (mut log, _) = place.begin().await;
    place.sql("INSERT INTO items VALUES (1)");
    let (told, position) = place.told_to(&mut *log).await;
    assert_eq!(told, ["items +1"]);
    let position = position.unwrap();
    log.confirm(&position).await.unwrap();
    place.sql("INSERT INTO items VALUES (2)");
    let server = std::sync::Arc::get_mut(&mut place.server).unwrap();
    server.server.restart().await;
    let error = until_error(&mut *log).await;
    assert!(matches!(error, lockkeeper_cache::cdc::LogError::Failed(_)), "{error}");
    drop(log);
    let mut log = place.open(&position).await.unwrap();
    place.sql("INSERT INTO items VALUES (3)");
    assert_eq!(place.told(&mut *log).await, ["items +2", "items +3"]);
}

#[tokio::test]
async fn a_log_that_is_dropped_lets_go_of_the_slot() {
    let place = Place::new(&[ITEMS], &["items id"]).await;
    let (log, _) = place.begin().await;
    assert_eq!(place.slot("active"), "t");
    let kept = place.source().retention().await.unwrap().unwrap();
    assert_eq!((kept.status.as_str(), kept.left), ("reserved", None));
    drop(log);
    eventually("let go", async || place.slot("active") == "f").await;
    assert_eq!(place.source().slot("none").retention().await.unwrap(), None);
}
