//! Much at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{interval, timeout};

use crate::reader::{Place, start, text};

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_twenty_megabytes_is_read() {
    let database = start(&["--max-allowed-packet=64M", "--innodb-log-file-size=256M"]).await;
    let place = Place::new(
        Arc::new(database),
        &["t id"],
        "CREATE TABLE t (id INT PRIMARY KEY, b LONGBLOB)",
    );
    let says = place
        .says("INSERT INTO t VALUES (1, REPEAT('x', 20000000)); INSERT INTO t VALUES (2, '')")
        .await;
    assert_eq!(says, ["t +1", "t +2"]);
}

/// How many rows: `LOCKKEEPER_TEST_ROWS`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_transaction_comes_in_pieces() {
    let rows: usize =
        std::env::var("LOCKKEEPER_TEST_ROWS").map_or(100_000, |rows| rows.parse().unwrap());
    let sql = "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(100), v INT)";
    let place = Place::new(Arc::new(start(&[]).await), &["t id"], sql);
    let mut reader = place.open(None).await;
    place.sql(&format!("INSERT INTO t SELECT seq, REPEAT('n', 50), seq FROM seq_1_to_{rows}"));
    let before = resident();
    let since = lockkeeper::clock::Instant::now();
    let (mut next, mut most, mut largest, mut ended) = (1, 0, 0, None);
    while next <= rows {
        let batch = reader.next().await;
        assert!(
            batch.position.is_none() || next + batch.changes.len() > rows,
            "a position in the middle"
        );
        for change in &batch.changes {
            assert_eq!(text(change), format!("t +{next}"));
            next += 1;
        }
        largest = largest.max(batch.changes.len());
        most = most.max(resident().saturating_sub(before));
        ended = batch.position;
    }
    let took = lockkeeper::clock::Instant::now().since(since);
    while ended.is_none() {
        ended = reader.next().await.position;
    }
    let rate = f64::from(u32::try_from(rows).unwrap()) / took.as_secs_f64();
    eprintln!("{rows} rows in {took:?}: {rate:.0}/s, {most} bytes more, {largest} in a batch");
    assert!(largest < 5_000, "{largest}");
    assert!(most < 64 << 20, "{most}");
    assert!(took < Duration::from_secs(120));
}

/// It waits for a replica that never comes, with much of it still to be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_does_not_grow_while_a_commit_is_waited_for() {
    let database = start(&[
        "--innodb-log-file-size=256M",
        "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
        "--rpl-semi-sync-master-timeout=4000",
    ])
    .await;
    let sql = "CREATE TABLE t (id INT PRIMARY KEY, b LONGBLOB)";
    let place = Place::new(Arc::new(database), &["t id"], sql);
    let mut reader = place.open(None).await;
    place.sql("SET GLOBAL rpl_semi_sync_master_enabled = 1");
    let (database, schema) = (Arc::clone(&place.database), place.schema.clone());
    let writer = spawn_blocking(move || {
        database
            .operator(&schema, "INSERT INTO t SELECT seq, REPEAT('x', 1000000) FROM seq_1_to_200");
    });
    let (mut count, mut most, mut held) = (0, 0, false);
    let before = resident();
    let mut look = interval(Duration::from_millis(20));
    while count < 200 {
        let next = reader.next();
        tokio::pin!(next);
        let batch = loop {
            tokio::select! {
                batch = &mut next => break batch,
                _ = look.tick() => {
                    most = most.max(resident().saturating_sub(before));
                    held |= !writer.is_finished();
                }
            }
        };
        count += batch.changes.len();
    }
    timeout(Duration::from_secs(60), writer).await.unwrap().unwrap();
    eprintln!("{most} bytes more");
    assert!(held, "nothing was waited for");
    assert!(most < 64 << 20, "{most}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lag_grows_and_goes() {
    let sql = "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(100))";
    let place = Place::new(Arc::new(start(&[]).await), &["t id"], sql);
    let mut reader = place.open(None).await;
    place.sql("INSERT INTO t SELECT seq, REPEAT('n', 50) FROM seq_1_to_50000");
    let first = reader.next().await;
    assert!(first.lag.bytes.unwrap() > 1_000_000, "{:?}", first.lag);
    reader.told(&place).await;
    for _ in 0..20 {
        let lag = reader.next().await.lag;
        if lag.bytes == Some(0) {
            assert_eq!(lag.time, Some(Duration::ZERO));
            return;
        }
    }
    panic!("there is still something to read");
}
