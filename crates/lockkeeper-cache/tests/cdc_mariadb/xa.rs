//! Transactions in two phases.

use std::sync::Arc;

use crate::reader::{Place, start};

const T: &str = "CREATE TABLE t (id INT PRIMARY KEY)";

async fn place() -> Place {
    Place::new(Arc::new(start(&[]).await), &["t id"], T)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_is_told_when_it_is_committed() {
    let place = place().await;
    let mut reader = place.open(None).await;
    place.sql("XA START 'x'; INSERT INTO t VALUES (1), (2); XA END 'x'; XA PREPARE 'x'");
    place.sql("XA START 'y', 'b', 7; INSERT INTO t VALUES (3); XA END 'y', 'b', 7; XA PREPARE 'y', 'b', 7");
    assert_eq!(reader.told(&place).await, [""; 0]);
    place.sql("XA COMMIT 'x'");
    assert_eq!(reader.told(&place).await, ["t +1", "t +2"]);
    place.sql("XA ROLLBACK 'y', 'b', 7");
    assert_eq!(reader.told(&place).await, [""; 0]);
    place.sql("XA START 'z'; INSERT INTO t VALUES (4); XA END 'z'; XA COMMIT 'z' ONE PHASE");
    assert_eq!(reader.told(&place).await, ["t +4"]);
    place.sql("XA START 'z'; INSERT INTO t VALUES (5); XA END 'z'; XA PREPARE 'z'; XA COMMIT 'z'");
    assert_eq!(reader.told(&place).await, ["t +5"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_not_seen_it_prepared_is_told_of_everything() {
    let place = place().await;
    let mut reader = place.open(None).await;
    place.sql("XA START 'x'; INSERT INTO t VALUES (1); XA END 'x'; XA PREPARE 'x'");
    place.sql("XA START 'y'; INSERT INTO t VALUES (2); XA END 'y'; XA PREPARE 'y'");
    reader.told(&place).await;
    // Another reader goes on after it was prepared.
    let mut reader = place.open(reader.position.as_ref()).await;
    place.sql("XA COMMIT 'x'");
    assert_eq!(reader.told(&place).await, ["*"]);
    place.sql("XA ROLLBACK 'y'");
    assert_eq!(reader.told(&place).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_prepared_can_be_read_when_it_is_told() {
    let place = place().await;
    let mut reader = place.open(None).await;
    for round in 0..100 {
        place.sql(&format!(
            "XA START 'x'; INSERT INTO t VALUES ({round}); XA END 'x'; XA PREPARE 'x'"
        ));
        let (database, schema) = (Arc::clone(&place.database), place.schema.clone());
        let commit =
            tokio::task::spawn_blocking(move || database.operator(&schema, "XA COMMIT 'x'"));
        while reader.next().await.changes.is_empty() {}
        let count = place.sql("SELECT COUNT(*) FROM t");
        assert_eq!(count, (round + 1).to_string());
        commit.await.unwrap();
    }
}
