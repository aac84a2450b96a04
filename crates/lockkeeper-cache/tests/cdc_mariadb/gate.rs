//! What is told can be read.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::reader::{Place, start, text};

const T: &str = "CREATE TABLE t (id INT PRIMARY KEY, v INT); INSERT INTO t VALUES (1, 0)";

/// A server that waits for a replica that never comes, between the log and the commit.
async fn place() -> Place {
    let database = start(&[
        "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
        "--rpl-semi-sync-master-timeout=4000",
    ])
    .await;
    Place::new(Arc::new(database), &["t id"], T)
}

fn hold(place: &Place) {
    place.sql("SET GLOBAL rpl_semi_sync_master_enabled = 1");
}

fn spawn(place: &Place, sql: &str) -> JoinHandle<String> {
    let sql = sql.to_owned();
    let (database, schema) = (Arc::clone(&place.database), place.schema.clone());
    spawn_blocking(move || database.operator(&schema, &sql))
}

/// Until the log has grown behind this.
async fn is_written(place: &Place, before: &str) {
    testkit::wait::eventually("it is in the log", || async {
        place.sql("SELECT @@gtid_binlog_pos") != before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_in_the_log_is_not_told_before_it_is_committed() {
    let place = place().await;
    let mut reader = place.open(None).await;
    let before = place.sql("SELECT @@gtid_binlog_pos");
    hold(&place);
    let commit = spawn(&place, "UPDATE t SET v = 1");
    is_written(&place, &before).await;
    assert_eq!(place.sql("SELECT v FROM t"), "0", "it is held up");
    let mut changes = Vec::new();
    while changes.is_empty() {
        changes = reader.next().await.changes;
    }
    assert_eq!(place.sql("SELECT v FROM t"), "1");
    assert_eq!(changes.iter().map(text).collect::<Vec<_>>(), ["t +1"]);
    commit.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_does_not_let_it_through() {
    let place = place().await;
    let mut reader = place.open(None).await;
    let before = place.sql("SELECT @@gtid_binlog_pos");
    hold(&place);
    let commit = spawn(&place, "UPDATE t SET v = 1");
    is_written(&place, &before).await;
    let flush = spawn(&place, "FLUSH BINARY LOGS");
    testkit::wait::eventually("the file is begun", || async {
        place.sql("SHOW STATUS LIKE 'Binlog_snapshot_file'").ends_with("2")
    })
    .await;
    assert_eq!(place.sql("SELECT v FROM t"), "0", "the server says more than it has done");
    let mut changes = Vec::new();
    while changes.is_empty() {
        changes = reader.next().await.changes;
    }
    assert_eq!(place.sql("SELECT v FROM t"), "1");
    for task in [commit, flush] {
        task.await.unwrap();
    }
    // Now it gives an offset of the old file for the new one.
    let before = place.sql("SELECT @@gtid_binlog_pos");
    place.sql("SET GLOBAL rpl_semi_sync_master_enabled = 0");
    hold(&place);
    let commit = spawn(&place, "UPDATE t SET v = 2");
    is_written(&place, &before).await;
    assert_eq!(place.sql("SELECT v FROM t"), "1", "it is held up");
    let mut changes = Vec::new();
    while changes.is_empty() {
        changes = reader.next().await.changes;
    }
    assert_eq!(place.sql("SELECT v FROM t"), "2");
    commit.await.unwrap();
}

/// The server takes the end of a checkpoint for that of a commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_does_not_let_it_through() {
    let place = place().await;
    let mut reader = place.open(None).await;
    for round in 1..=5 {
        let (odd, even) = (2 * round - 1, 2 * round);
        place.sql("SET GLOBAL rpl_semi_sync_master_enabled = 0");
        let commit = spawn(
            &place,
            &format!(
                "UPDATE t SET v = {odd}; FLUSH BINARY LOGS; \
                 SET GLOBAL rpl_semi_sync_master_enabled = 1; UPDATE t SET v = {even}"
            ),
        );
        let file = format!("bin.{:06}", round + 1);
        let events = || {
            let names = place.sql("SHOW BINARY LOGS");
            if names.contains(&file) {
                place.sql(&format!("SHOW BINLOG EVENTS IN '{file}'"))
            } else {
                names
            }
        };
        let at = |what: &str| {
            let (events, file) = (events(), format!("|{file}"));
            events
                .lines()
                .position(|line| line.contains(what) && (what == "Gtid|" || line.ends_with(&file)))
        };
        testkit::wait::eventually("both are in the log", || async {
            at("Gtid|").is_some() && at("Binlog_checkpoint|").is_some()
        })
        .await;
        // If the checkpoint was quicker there is nothing to see.
        let met = at("Gtid|") < at("Binlog_checkpoint|")
            && place.sql("SELECT v FROM t") == odd.to_string();
        let mut count = 0;
        while count < 2 {
            count += reader.next().await.changes.len();
        }
        assert_eq!(place.sql("SELECT v FROM t"), even.to_string(), "round {round}, {met}");
        commit.await.unwrap();
        if met {
            return;
        }
    }
    panic!("the checkpoint was always quicker");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_phase_is_waited_for() {
    let place = place().await;
    let mut reader = place.open(None).await;
    place.sql("XA START 'x'; UPDATE t SET v = 1; XA END 'x'; XA PREPARE 'x'");
    let before = place.sql("SELECT @@gtid_binlog_pos");
    hold(&place);
    let commit = spawn(&place, "XA COMMIT 'x'");
    is_written(&place, &before).await;
    assert_eq!(place.sql("SELECT v FROM t"), "0", "it is held up");
    while reader.next().await.changes.is_empty() {}
    assert_eq!(place.sql("SELECT v FROM t"), "1");
    commit.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_opens_the_log_can_read_what_is_before() {
    let place = place().await;
    let before = place.sql("SELECT @@gtid_binlog_pos");
    hold(&place);
    let commit = spawn(&place, "UPDATE t SET v = 1");
    is_written(&place, &before).await;
    let flush = spawn(&place, "FLUSH BINARY LOGS");
    testkit::wait::eventually("the file is begun", || async {
        place.sql("SHOW STATUS LIKE 'Binlog_snapshot_file'").ends_with("2")
    })
    .await;
    let mut reader = place.open(None).await;
    // It is either before the position, or it will be told.
    let seen = place.sql("SELECT v FROM t");
    for task in [commit, flush] {
        task.await.unwrap();
    }
    place.sql("SET GLOBAL rpl_semi_sync_master_enabled = 0");
    let told = reader.told(&place).await;
    assert!(seen == "1" || told == ["t +1"], "{seen} {told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_may_end_anywhere() {
    let place = Place::new(Arc::new(start(&["--max-binlog-size=4096"]).await), &["t id"], T);
    let mut reader = place.open(None).await;
    let writer = spawn(
        &place,
        "BEGIN NOT ATOMIC FOR i IN 2..400 DO INSERT INTO t VALUES (i, i); END FOR; END",
    );
    let mut next = 2;
    while next <= 400 {
        let batch = timeout(Duration::from_secs(60), reader.log.next()).await.unwrap().unwrap();
        if batch.changes.is_empty() {
            continue;
        }
        for change in &batch.changes {
            assert_eq!(text(change), format!("t +{next}"));
            next += 1;
        }
        let most: i32 = place.sql("SELECT MAX(id) FROM t").parse().unwrap();
        assert!(most >= next - 1, "{most} < {}", next - 1);
    }
    writer.await.unwrap();
    assert!(place.sql("SHOW BINARY LOGS").lines().count() > 10);
}
