//! Rows that are changed.

use crate::reader::Place;

const T: &str = "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20), other INT)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_rolled_back_is_not_told() {
    let place = Place::shared(&["t id"], T).await;
    let says = place
        .says(
            "BEGIN; INSERT INTO t VALUES (1, 'a', 1); ROLLBACK; \
             BEGIN; INSERT INTO t VALUES (2, 'b', 1); SAVEPOINT s; INSERT INTO t VALUES (3, 'c', 1); \
             ROLLBACK TO s; INSERT INTO t VALUES (4, 'd', 1); COMMIT",
        )
        .await;
    assert_eq!(says, ["t +2", "t +4"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inserts_updates_and_deletes_are_told_with_their_keys() {
    let place = Place::shared(&["t id"], T).await;
    let says = place
        .says(
            "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 1); UPDATE t SET other = 2 WHERE id = 1; \
             UPDATE t SET other = 2 WHERE id = 1; UPDATE t SET id = 3 WHERE id = 2; DELETE FROM t WHERE id = 1; \
             REPLACE INTO t VALUES (3, 'c', 1); INSERT INTO t VALUES (3, 'd', 1) ON DUPLICATE KEY UPDATE name = 'e'",
        )
        .await;
    assert_eq!(says, ["t +1", "t +2", "t +1", "t 2>3", "t -1", "t +3", "t +3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_may_have_several_columns_and_nulls() {
    let sql = "CREATE TABLE t (a INT, x INT, b VARCHAR(9), c INT, PRIMARY KEY (a, b))";
    let place = Place::shared(&["t a,b,c"], sql).await;
    let says = place
        .says("INSERT INTO t VALUES (1, 0, 'p', NULL); UPDATE t SET c = 5; UPDATE t SET b = 'q', x = 1; UPDATE t SET x = 2")
        .await;
    assert_eq!(says, ["t +1/p/NULL", "t 1/p/NULL>1/p/5", "t 1/p/5>1/q/5", "t +1/q/5"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_about_several_tables_tell_of_each() {
    let sql = format!(
        "{T}; CREATE TABLE u (id INT PRIMARY KEY, t INT); INSERT INTO t VALUES (1, 'a', 1); INSERT INTO u VALUES (7, 1)"
    );
    let place = Place::shared(&["t id", "u id"], &sql).await;
    let mut says = place.says("UPDATE t JOIN u ON u.t = t.id SET t.name = 'x', u.t = 2").await;
    says.sort();
    assert_eq!(says, ["t +1", "u +7"]);
    assert_eq!(place.says("CREATE TABLE v AS SELECT * FROM t; DELETE t FROM t").await, ["t -1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_are_not_wanted_are_not_told() {
    let place = Place::shared(
        &["t id"],
        &format!("{T}; CREATE TABLE u (id INT); CREATE DATABASE IF NOT EXISTS other"),
    )
    .await;
    let says = place
        .says("INSERT INTO u VALUES (1); CREATE OR REPLACE TABLE other.t (id INT); INSERT INTO other.t VALUES (1); TRUNCATE u; INSERT INTO t VALUES (2, '', 0)")
        .await;
    assert_eq!(says, ["t +2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_row_image_leaves_cells_missing() {
    let place = Place::shared(&["t id,name"], T).await;
    let says = place
        .says(
            "SET binlog_row_image = MINIMAL; INSERT INTO t VALUES (1, 'a', 1); UPDATE t SET other = 2; \
             UPDATE t SET name = 'b'; DELETE FROM t",
        )
        .await;
    assert_eq!(says, ["t +1/a", "t 1>?", "t 1>b", "t -1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_missed_wherever_a_reader_stops() {
    let place = Place::shared(&["t id"], T).await;
    let mut position = place.open(None).await.position;
    let mut all = Vec::new();
    for round in 0..20_i32 {
        let (a, b, c) = (3 * round, 3 * round + 1, 3 * round + 2);
        place.sql(&format!(
            "BEGIN; INSERT INTO t VALUES ({a}, '', 0); INSERT INTO t VALUES ({b}, '', 0); COMMIT; INSERT INTO t VALUES ({c}, '', 0)"
        ));
        // It may stop in the middle of anything.
        let mut reader = place.open(position.as_ref()).await;
        for _ in 0..round % 4 {
            all.extend(reader.next().await.changes.iter().map(crate::reader::text));
        }
        position = reader.position;
    }
    let mut reader = place.open(position.as_ref()).await;
    all.extend(reader.told(&place).await);
    let mut first: Vec<String> = Vec::new();
    all.into_iter().for_each(|change| {
        if !first.contains(&change) {
            first.push(change)
        }
    });
    assert_eq!(first, (0..60).map(|id| format!("t +{id}")).collect::<Vec<_>>());
}
