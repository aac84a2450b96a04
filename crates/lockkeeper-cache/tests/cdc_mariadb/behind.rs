//! Readers that are far behind.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::cdc::Position;

use crate::reader::{Place, start};

const T: &str = "CREATE TABLE t (id INT PRIMARY KEY)";

/// A server that takes its time to flush, so that checkpoints come late.
async fn place() -> Place {
    let database = start(&["--sync-binlog=0", "--innodb-flush-log-at-trx-commit=0"]).await;
    Place::new(Arc::new(database), &["t id"], T)
}

/// Each row in a transaction of its own.
fn rows(from: i32, to: i32) -> String {
    format!("BEGIN NOT ATOMIC FOR i IN {from}..{to} DO INSERT INTO t VALUES (i); END FOR; END")
}

/// From there on so many rows are told, soon.
async fn catches_up(place: &Place, from: &Position, count: usize) {
    let (mut reader, since) = (place.open(Some(from)).await, Instant::now());
    let told = reader.told(place).await;
    let took = Instant::now().since(since);
    eprintln!("{count} in {took:?}");
    assert_eq!(told.len(), count);
    assert!(told.iter().zip(0..).all(|(change, id)| *change == format!("t +{id}")), "in order");
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_far_behind_in_an_old_file_catches_up() {
    let place = place().await;
    let position = place.open(None).await.position.unwrap();
    place.sql(&rows(0, 4_999));
    place.sql("FLUSH BINARY LOGS; INSERT INTO t VALUES (5000)");
    catches_up(&place, &position, 5_001).await;
    // And where several files are in between, the last of which are empty.
    place.sql(
        "FLUSH BINARY LOGS; INSERT INTO t VALUES (5001); FLUSH BINARY LOGS; FLUSH BINARY LOGS",
    );
    catches_up(&place, &position, 5_002).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_far_into_the_newest_file_is_found() {
    let place = place().await;
    for round in 1..=5 {
        place.sql("TRUNCATE t");
        let position = place.open(None).await.position.unwrap();
        place.sql(&rows(0, 4_999));
        let more = rows(5_000, 5_999);
        place.sql(&format!("FLUSH BINARY LOGS; {more}"));
        let own = format!("bin.{:06}", round + 1);
        let events = || place.sql(&format!("SHOW BINLOG EVENTS IN '{own}'"));
        let at = || {
            let checkpoint =
                |line: &str| line.contains("|Binlog_checkpoint|") && line.ends_with(&own);
            events().lines().position(checkpoint)
        };
        testkit::wait::eventually("the checkpoint is written", || async { at().is_some() }).await;
        let events_before = at().unwrap();
        eprintln!("{events_before} events are before it");
        catches_up(&place, &position, 6_000).await;
        // If the checkpoint was quicker there is nothing to see.
        if events_before > 1_000 {
            return;
        }
    }
    panic!("the checkpoint was always quicker");
}
