//! Large transactions, and how fast it goes.

use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::cdc::Log;

use crate::harness::Place;

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, body text)";

/// What this process has in memory, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Reads so many changes; the most that was in memory more than at first, and the largest batch.
async fn read(log: &mut dyn Log, count: usize) -> (u64, usize) {
    let (before, mut most, mut largest, mut seen) = (resident(), 0, 0, 0);
    while seen < count {
        let batch = log.next().await.unwrap();
        seen += batch.changes.len();
        largest = largest.max(batch.changes.len());
        most = most.max(resident().saturating_sub(before));
        if let Some(position) = &batch.position {
            log.confirm(position).await.unwrap();
        }
    }
    (most, largest)
}

async fn one_transaction(rows: usize, limit: Duration) {
    let place = Place::alone(&["-clogical_decoding_work_mem=1MB"], &[ITEMS], &["items id"]).await;
    let (mut log, _) = place.begin().await;
    let body = "repeat('x', 300)";
    let insert = format!("INSERT INTO items SELECT i, {body} FROM generate_series(1, {rows}) i");
    place.sql(&insert);
    let since = Instant::now();
    let (most, largest) = tokio::time::timeout(limit, read(&mut *log, rows)).await.unwrap();
    let took = Instant::now().since(since);
    eprintln!("{rows} rows in one transaction: {took:?}, {most} bytes more in memory");
    assert!(most < 32 << 20, "{most}");
    assert!(largest < 4000, "{largest}");
}

#[tokio::test]
async fn a_transaction_of_many_rows_comes_in_pieces() {
    one_transaction(100_000, Duration::from_secs(60)).await;
}

#[tokio::test]
#[ignore = "takes a minute"]
async fn a_transaction_of_a_million_rows_comes_in_pieces() {
    one_transaction(1_000_000, Duration::from_secs(300)).await;
}

#[tokio::test]
async fn many_small_transactions_are_read_in_large_batches() {
    const COUNT: usize = 100_000;
    let place = Place::alone(&[], &[ITEMS], &["items id"]).await;
    let (mut log, _) = place.begin().await;
    place.sql(&format!(
        "DO $$ BEGIN FOR i IN 1..{COUNT} LOOP INSERT INTO items VALUES (i, 'x'); COMMIT; \
         END LOOP; END $$"
    ));
    let since = Instant::now();
    let reading = tokio::time::timeout(Duration::from_secs(100), read(&mut *log, COUNT));
    let (most, largest) = reading.await.unwrap();
    let took = Instant::now().since(since);
    eprintln!("{COUNT} transactions: {took:?}, batches of {largest}, {most} bytes more in memory");
    assert!(most < 32 << 20, "{most}");
}

/// A message of megabytes is not kept.
#[tokio::test]
async fn large_values_that_are_not_wanted_do_not_stay_in_memory() {
    let place = Place::new(&[ITEMS], &["items id"]).await;
    let (mut log, _) = place.begin().await;
    for id in 0..20 {
        place.sql(&format!("INSERT INTO items VALUES ({id}, repeat('x', 8 << 20))"));
    }
    let (most, _) =
        tokio::time::timeout(Duration::from_secs(60), read(&mut *log, 20)).await.unwrap();
    assert!(most < 64 << 20, "{most}");
}
