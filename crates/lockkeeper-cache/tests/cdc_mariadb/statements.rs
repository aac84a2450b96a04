//! Statements that are in the log as text, and logs that say less than they should.

use std::sync::Arc;

use crate::reader::{Place, start};

const T: &str = "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20)); INSERT INTO t VALUES (1, 'a'), (2, 'b')";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_a_table_as_a_whole_is_told() {
    let place = Place::shared(&["t id"], T).await;
    for sql in [
        "TRUNCATE t",
        "ALTER TABLE t ADD COLUMN more INT",
        "ALTER TABLE t DROP COLUMN more",
        "ALTER TABLE t RENAME COLUMN name TO called",
        "CREATE OR REPLACE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20))",
        "DROP TABLE t",
        "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20))",
        "RENAME TABLE t TO u",
        "RENAME TABLE u TO t",
    ] {
        assert_eq!(place.says(sql).await, ["t *"], "{sql}");
    }
    assert_eq!(
        place.says("CREATE INDEX i ON t (name); GRANT SELECT ON t TO root@localhost").await,
        [""; 0]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_are_found_by_their_names_wherever_they_are() {
    let place = Place::shared(&["t id"], T).await;
    let says = place
        .says(
            "ALTER TABLE t ADD COLUMN x INT UNSIGNED FIRST; INSERT INTO t VALUES (9, 3, 'c'); \
             ALTER TABLE t RENAME COLUMN id TO number; INSERT INTO t VALUES (9, 4, 'c')",
        )
        .await;
    assert_eq!(says, ["t *", "t +3", "t *", "t +?"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_database_tells_of_its_tables() {
    let place = Place::shared(&["t id"], T).await;
    let mut reader = place.open(None).await;
    place.sql(&format!(
        "DROP DATABASE {0}; CREATE DATABASE {0}; USE {0}; CREATE TABLE done (n INT)",
        place.schema
    ));
    let mut says = reader.told(&place).await;
    says.sort();
    assert_eq!(says, ["done *", "done *", "t *"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_loaded_is_told_row_by_row() {
    let place = Place::shared(&["t id"], T).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "5\tx\n6\ty\n").unwrap();
    let path = file.path().display();
    std::process::Command::new("chmod").args(["a+r", &path.to_string()]).status().unwrap();
    assert_eq!(
        place.says(&format!("LOAD DATA INFILE '{path}' INTO TABLE t")).await,
        ["t +5", "t +6"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_were_changed_by_statements_tell_of_everything() {
    let place = Place::new(
        Arc::new(start(&[]).await),
        &["t id"],
        &format!("{T}; CREATE TABLE other (id INT)"),
    );
    for sql in [
        "UPDATE t SET name = 'z'",
        "INSERT INTO other VALUES (1)",
        "ANALYZE UPDATE t SET name = 'y'",
        "ANALYZE FORMAT=JSON DELETE FROM t",
    ] {
        assert_eq!(
            place.says(&format!("SET binlog_format = STATEMENT; {sql}")).await,
            ["*"],
            "{sql}"
        );
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "5\tx\n").unwrap();
    let path = file.path().display();
    std::process::Command::new("chmod").args(["a+r", &path.to_string()]).status().unwrap();
    let sql = format!("SET binlog_format = STATEMENT; LOAD DATA INFILE '{path}' INTO TABLE t");
    assert_eq!(place.says(&sql).await, ["*"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_events_are_read_as_others() {
    let database = start(&["--log-bin-compress=1", "--log-bin-compress-min-len=10"]).await;
    let sql = "CREATE TABLE t (id INT PRIMARY KEY, name TEXT)";
    let place = Place::new(Arc::new(database), &["t id"], sql);
    let says = place
        .says(
            "INSERT INTO t VALUES (1, REPEAT('a', 5000)), (2, REPEAT('b', 5000)); \
             UPDATE t SET name = REPEAT('c', 5000); DELETE FROM t; TRUNCATE TABLE t",
        )
        .await;
    assert_eq!(says, ["t +1", "t +2", "t +1", "t +2", "t -1", "t -2", "t *"]);
    let events = place.sql("SHOW BINLOG EVENTS");
    assert!(events.contains("compressed"), "{events}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_names_of_columns_the_table_is_told() {
    let place = Place::new(Arc::new(start(&[]).await), &["t id"], T);
    for less in ["MINIMAL", "NO_LOG"] {
        let mut reader = place.open(None).await;
        place.sql(&format!("SET GLOBAL binlog_row_metadata = {less}; UPDATE t SET name = '{less}'; SET GLOBAL binlog_row_metadata = FULL"));
        assert_eq!(reader.told(&place).await, ["t *"], "{less}");
    }
}
