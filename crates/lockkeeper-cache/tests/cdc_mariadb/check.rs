//! What is found at servers that are not as they should be.

use std::sync::Arc;

use lockkeeper_cache::cdc::{Finding, LogError, MariaDb, Severity, Source, TableName};
use testkit::database::System;

use crate::reader::{Place, start};

const T: &str = "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20))";

async fn found(place: &Place) -> Vec<Finding> {
    place.source().check(&place.wanted).await.unwrap()
}

fn errors(found: &[Finding]) -> Vec<&str> {
    let errors = found.iter().filter(|finding| finding.severity == Severity::Error);
    errors.map(|finding| finding.what.as_str()).collect()
}

fn has(found: &[Finding], severity: Severity, what: &str) -> bool {
    found.iter().any(|finding| finding.severity == severity && finding.what.contains(what))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_well_set_up_is_found_so() {
    let well = ["--sync-binlog=1", "--gtid-strict-mode=1"];
    let place = Place::new(Arc::new(start(&well).await), &["t id,name"], T);
    assert_eq!(found(&place).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_log_is_refused() {
    let place = Place::new(Arc::new(System::MariaDb.start(&[]).await), &["t id"], T);
    let all = found(&place).await;
    assert_eq!(errors(&all), ["the server writes no binary log"]);
    assert!(all[0].fix.as_ref().unwrap().contains("log_bin"));
    let error = place.try_open(None).await.err().unwrap();
    assert!(matches!(error, LogError::Refused(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_lose_changes_are_errors_with_what_to_do() {
    let database = start(&["--binlog-ignore-db=hidden"]).await;
    let mut place = Place::new(
        Arc::new(database),
        &["t id,name", "gone id", "v id", "m id", "c id,t,f", "k id"],
        &format!(
            "{T}; CREATE VIEW v AS SELECT * FROM t; CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM; \
             CREATE TABLE c (id INT PRIMARY KEY, t BIGINT, f FLOAT, FOREIGN KEY (t) REFERENCES t (id) ON DELETE CASCADE); \
             CREATE TABLE k (other INT)"
        ),
    );
    let hidden = TableName::new("hidden", "t");
    place.sql("CREATE DATABASE hidden; CREATE TABLE hidden.t (id INT PRIMARY KEY)");
    place.wanted.insert(hidden, ["id".to_owned()].into());
    place.sql(
        "SET GLOBAL binlog_format = MIXED, binlog_row_metadata = NO_LOG, binlog_row_image = MINIMAL, \
         binlog_expire_logs_seconds = 3600",
    );
    let all = found(&place).await;
    for what in [
        "binlog_format is MIXED",
        "binlog_row_metadata is NO_LOG",
        "binlog_row_image is MINIMAL",
        "there is no table",
        "is no table but a view",
        "has no column id",
        "leaves hidden out",
    ] {
        assert!(has(&all, Severity::Error, what), "{what}: {all:#?}");
    }
    for what in
        ["kept for 3600", "sync_binlog", "gtid_strict_mode", "MyISAM", "is float", "deletes from t"]
    {
        assert!(has(&all, Severity::Warning, what), "{what}: {all:#?}");
    }
    // What is to be done is what helps.
    for finding in all.iter().filter(|finding| finding.what.starts_with("binlog_")) {
        let statement = finding.fix.as_ref().unwrap().lines().next().unwrap();
        place.sql(statement);
    }
    assert!(!found(&place).await.iter().any(|finding| finding.what.starts_with("binlog_")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_needs_no_more_than_what_is_said() {
    let place = Place::new(Arc::new(start(&[]).await), &["t id"], T);
    place.sql("CREATE USER app@'%' IDENTIFIED BY 'x'");
    let source = MariaDb::new(&place.database.url_of("app:x", "")).unwrap();
    let all = source.check(&place.wanted).await.unwrap();
    for what in ["REPLICATION SLAVE is missing", "BINLOG MONITOR is missing", "there is no table"] {
        assert!(has(&all, Severity::Error, what), "{what}: {all:#?}");
    }
    let error = source.open(None, &place.wanted).await.err().unwrap();
    assert!(matches!(error, LogError::Refused(_)), "{error}");
    let rights = all.iter().filter(|finding| finding.what.contains("is missing"));
    for statement in rights.map(|finding| finding.fix.clone().unwrap()) {
        place.sql(&statement);
    }
    place.sql("GRANT SELECT ON t TO app@'%'; GRANT SELECT ON done TO app@'%'");
    let all = source.check(&place.wanted).await.unwrap();
    assert!(errors(&all).is_empty(), "{all:#?}");
    let mut log = source.open(None, &place.wanted).await.unwrap();
    let position = log.next().await.unwrap().position;
    place.sql("INSERT INTO t VALUES (1, '')");
    while log.next().await.unwrap().changes.is_empty() {}
    place.sql(
        "XA START 'x'; INSERT INTO t VALUES (2, ''); XA END 'x'; XA PREPARE 'x'; XA COMMIT 'x'",
    );
    while log.next().await.unwrap().changes.is_empty() {}
    source.open(position.as_ref(), &place.wanted).await.unwrap();
}
