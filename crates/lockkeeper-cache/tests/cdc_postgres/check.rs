//! What is found to be wrong, each made wrong at a real server.

use std::sync::Arc;

use lockkeeper_cache::cdc::postgres::Postgres;
use lockkeeper_cache::cdc::{Finding, LogError, Severity, Source};
use testkit::database::System;
use testkit::wait::eventually;

use crate::harness::{Place, until_error, wanted};

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, number int)";

/// The findings for a table, besides that of the disk.
async fn found(place: &Place, tables: &[&str]) -> Vec<Finding> {
    let findings = place.source().check(&wanted(tables)).await.unwrap();
    findings.into_iter().filter(|finding| !finding.what.contains("keep_size")).collect()
}

/// The one that there is; doing what it says makes it good.
async fn one(place: &Place, table: &str, what: &str, severity: Severity) -> String {
    let findings = found(place, &[table]).await;
    let [finding] = &findings[..] else { panic!("{findings:#?}") };
    assert!(finding.what.contains(what), "{finding}");
    assert_eq!(finding.severity, severity, "{finding}");
    finding.fix.clone().unwrap()
}

async fn fixed(place: &Place, table: &str, what: &str) {
    let fix = one(place, table, what, Severity::Error).await;
    let fix = fix.lines().filter(|line| !line.starts_with("--"));
    for statement in fix.take_while(|line| !line.contains('…')) {
        place.sql(statement);
    }
    let left = found(place, &[table]).await;
    assert!(left.is_empty(), "{left:#?}");
}

#[tokio::test]
async fn nothing_is_found_where_all_is_well() {
    let place = Place::new(&[ITEMS], &["items id"]).await;
    let findings = place.source().check(place.wanted()).await.unwrap();
    let [disk] = &findings[..] else { panic!("{findings:#?}") };
    assert_eq!(disk.severity, Severity::Warning);
    assert!(disk.what.contains("disk is full"), "{disk}");
    assert!(disk.fix.as_ref().unwrap().starts_with("ALTER SYSTEM SET max_slot_wal_keep_size"));
    assert!(place.source().set_up(place.wanted()).await.unwrap().is_empty(), "nothing to do");
}

#[tokio::test]
async fn tables_that_cannot_be_followed() {
    let tables = [
        ITEMS,
        "CREATE VIEW seen AS SELECT * FROM items",
        "CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)",
        "CREATE TABLE bare (id int)",
        "CREATE TABLE users (id int PRIMARY KEY, mail text)",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "CREATE TABLE parts (id int PRIMARY KEY, x int) PARTITION BY RANGE (id)",
        "CREATE TABLE part1 PARTITION OF parts FOR VALUES FROM (1) TO (2)",
        "CREATE TABLE \"We ird\" (\"I d\" int PRIMARY KEY)",
    ];
    let place = Place::new(&tables, &["items id"]).await;
    for (table, what) in [
        ("gone id", "no table public.gone"),
        ("elsewhere.items id", "no table elsewhere.items"),
        ("items nope", "no column nope"),
        ("seen id", "no plain table"),
        ("part1 id", "is a partition"),
    ] {
        one(&place, table, what, Severity::Error).await;
    }
    for (table, what) in [("bare id", "UPDATE and DELETE fail"), ("nothing id", "DELETE fail")] {
        let fix = one(&place, table, what, Severity::Error).await;
        assert!(fix.contains("REPLICA IDENTITY FULL"), "{fix}");
        // It is not published by us either.
        place.source().set_up(&wanted(&[table])).await.unwrap();
        assert!(one(&place, table, what, Severity::Error).await.contains("FULL"));
    }
    let all = ["fast id", "users mail", "parts x"];
    for (table, first, then) in [
        (all[0], "is unlogged", "not in the publication"),
        (all[1], "lacks mail", "not in the publication"),
    ] {
        let fix = one(&place, table, first, Severity::Error).await;
        place.sql(fix.lines().next().unwrap());
        fixed(&place, table, then).await;
    }
    // Of the table, and of each partition.
    let findings = found(&place, &[all[2]]).await;
    assert_eq!(findings.len(), 2, "{findings:#?}");
    let ran = place.source().set_up(&wanted(&["public.items id", "users mail"])).await.unwrap();
    assert!(ran.is_empty(), "{ran:?}");
}

/// What is done to their rows by statements that name the parent is in the log in their own names.
#[tokio::test]
async fn a_table_with_children_is_refused() {
    let tables = [
        ITEMS,
        "CREATE TABLE \"We ird\" (extra int, PRIMARY KEY (id)) INHERITS (items)",
        "CREATE TABLE second (PRIMARY KEY (id)) INHERITS (items)",
    ];
    let place = Place::new(&tables, &["second id"]).await;
    place.sql("ALTER PUBLICATION lockkeeper ADD TABLE ONLY items");
    let refused = place.source().open(None, &wanted(&["items id"])).await.unwrap_err();
    let said = refused.to_string();
    assert!(matches!(refused, LogError::Refused(_)), "{said}");
    assert!(said.contains("public.items has children") && said.contains("NO INHERIT"), "{said}");
    // It is not published by us either.
    place.sql("ALTER PUBLICATION lockkeeper DROP TABLE ONLY items");
    let ran = place.source().set_up(&wanted(&["items id"])).await.unwrap();
    assert!(ran.is_empty(), "{ran:?}");
    place.sql("ALTER PUBLICATION lockkeeper ADD TABLE ONLY items");
    // A child by itself is a table as any other.
    assert!(found(&place, &["second id"]).await.is_empty());
    fixed(&place, "items id", "has children").await;
    // And when one comes while it is followed.
    let items = wanted(&["items id"]);
    let mut log = place.source().open(None, &items).await.unwrap();
    place.sql("ALTER TABLE second INHERIT items");
    let error = until_error(&mut *log).await;
    assert!(matches!(&error, LogError::Lost(why) if why.contains("has children")), "{error}");
}

#[tokio::test]
async fn publications_that_hide_something() {
    let tables = [
        ITEMS,
        "CREATE TABLE users (id int PRIMARY KEY, mail text, UNIQUE (id, mail))",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    ];
    let place = Place::new(&tables, &[]).await;
    fixed(&place, "items id", "not in the publication").await;
    place.sql("ALTER PUBLICATION lockkeeper SET (publish = 'insert')");
    fixed(&place, "items id", "every kind of change").await;
    place.sql("ALTER PUBLICATION lockkeeper SET TABLE items WHERE (id > 5)");
    fixed(&place, "items id", "some of the rows").await;
    place.sql("ALTER TABLE users REPLICA IDENTITY FULL");
    place.sql("ALTER PUBLICATION lockkeeper SET TABLE items, users (id)");
    fixed(&place, "users mail", "list of columns").await;
    place.sql("ALTER PUBLICATION lockkeeper SET (publish_via_partition_root = false)");
    place.sql("ALTER PUBLICATION lockkeeper ADD TABLE parts");
    fixed(&place, "parts id", "names of its partitions").await;
    place.sql("DROP PUBLICATION lockkeeper");
    fixed(&place, "items id", "no publication").await;
    place.sql("DROP PUBLICATION lockkeeper");
    place.sql("CREATE PUBLICATION lockkeeper FOR ALL TABLES WITH (publish_via_partition_root)");
    one(&place, "items id", "is for all tables", Severity::Warning).await;
}

#[tokio::test]
async fn servers_that_are_not_set_up() {
    let server = System::Postgres.start(&["-cmax_slot_wal_keep_size=1GB"]).await;
    let place = Place::at(Arc::new(server), &[ITEMS], &["items id"]).await;
    let fix = one(&place, "done id", "wal_level is replica", Severity::Error).await;
    assert!(fix.contains("ALTER SYSTEM SET wal_level = 'logical'"), "{fix}");
    let refused = place.source().open(None, place.wanted()).await.unwrap_err();
    let said = refused.to_string();
    assert!(matches!(refused, LogError::Refused(_)) && said.contains("wal_level"), "{said}");

    let few = ["-cmax_replication_slots=1", "-cmax_wal_senders=1"];
    let place = Place::alone(&few, &[ITEMS], &["items id"]).await;
    place.sql("SELECT pg_create_logical_replication_slot('other', 'pgoutput')");
    one(&place, "done id", "all 1 replication slots", Severity::Error).await;
    place.sql("SELECT pg_drop_replication_slot('other')");
    let (_log, _) = place.begin().await;
    let other = place.source().slot("second");
    let findings = other.check(place.wanted()).await.unwrap();
    let text = findings.iter().map(|finding| finding.what.as_str()).collect::<String>();
    assert!(text.contains("1 replication slots") && text.contains("1 connections"), "{text}");
}

#[tokio::test]
async fn roles_and_slots_of_others() {
    let place = Place::new(&[ITEMS], &["items id"]).await;
    let name = &place.name;
    place.sql(&format!("CREATE ROLE app_{name} LOGIN"));
    let url = place.server.url_of(&format!("app_{name}"), name);
    let source = Postgres::new(&url).unwrap().slot(name.as_str());
    let findings = source.check(place.wanted()).await.unwrap();
    let role = findings.iter().find(|finding| finding.what.contains("must not read the log"));
    place.sql(role.unwrap().fix.as_ref().unwrap());
    // It needs no other right.
    let mut log = source.open(None, place.wanted()).await.unwrap();
    log.next().await.unwrap();
    place.sql("INSERT INTO items VALUES (1)");
    assert_eq!(place.told(&mut *log).await, ["items +1"]);
    drop(log);
    place.sql(&format!("SELECT pg_create_physical_replication_slot('physical_{name}')"));
    let refused = place.source().slot(format!("physical_{name}"));
    let refused = refused.open(None, place.wanted()).await.unwrap_err().to_string();
    assert!(refused.contains("somebody else's"), "{refused}");
    let refused = place.source().slot("A-b").open(None, place.wanted()).await.unwrap_err();
    assert!(refused.to_string().contains("name of a slot"), "{refused}");
}

#[tokio::test]
async fn a_standby_is_refused() {
    let mut place = Place::alone(&[], &[ITEMS], &["items id"]).await;
    let folder = place.server.server.dir().join("data/standby.signal");
    let server = Arc::get_mut(&mut place.server).unwrap();
    server.server.kill();
    std::fs::write(&folder, "").unwrap();
    server.server.start_again().await;
    eventually("it is a standby", async || place.sql("SELECT pg_is_in_recovery()") == "t").await;
    one(&place, "done id", "is a standby", Severity::Error).await;
}
