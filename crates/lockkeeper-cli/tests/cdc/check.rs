//! `cdc check`: what is missing is said, with what to do about it, and what was done is not missing any more.

use serde_json::Value;
use testkit::database::System;
use testkit::resp::Raw;
use testkit::server;

use super::harness::{Output, Running};
use super::world::{Shop, command, database, output};

fn json(output: &Output) -> Value {
    serde_json::from_str(&output.out).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn check(url: &str, table: &str, more: &[&str]) -> Output {
    output(&[&["check", "--url", url, "--table", table, "--key", "{id}"], more].concat())
}

/// The statements of all findings: configuration is not SQL in MariaDB.
fn fixes(found: &Value) -> Vec<String> {
    let findings = found["database"]["findings"].as_array().expect("findings");
    findings.iter().filter_map(|finding| Some(finding["fix"].as_str()?.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_statements_that_are_printed_make_a_postgres_good() {
    let mut database = System::Postgres.start(&[]).await;
    database.operator("here", "CREATE TABLE users (id bigint PRIMARY KEY, name varchar(50))");
    let url = database.url("here");
    let said = check(&url, "public.users", &[]);
    assert_eq!(said.code, 78, "{said:?}");
    assert!(said.out.contains("  error: wal_level is replica"), "{}", said.out);
    assert!(said.out.contains("\n    ALTER SYSTEM SET wal_level = 'logical';\n"), "{}", said.out);
    for _ in 0..2 {
        let found = check(&url, "public.users", &["--json"]);
        assert_eq!(json(&found)["exit_code"], found.code);
        for fix in fixes(&json(&found)) {
            // Not one transaction for all: ALTER SYSTEM wants its own.
            for statement in fix.lines().filter(|line| !line.starts_with("--")) {
                database.operator("here", statement);
            }
        }
        database.server.restart().await;
    }
    let good = check(&url, "public.users", &[]);
    assert_eq!((good.code, good.out.as_str()), (0, "database: nothing is wrong\n"), "{good:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_mariadb_lacks_is_said_and_one_that_lacks_nothing_is_good() {
    let bad = System::MariaDb.start(&[]).await;
    bad.operator("here", "CREATE TABLE users (id bigint PRIMARY KEY, name varchar(50))");
    let said = check(&bad.url("here"), "here.users", &[]);
    assert_eq!(said.code, 78, "{said:?}");
    assert!(said.out.contains("error: the server writes no binary log"), "{}", said.out);
    let found = check(&bad.url("here"), "here.users", &["--json"]);
    assert_eq!(found.code, 78);
    assert_eq!(json(&found)["database"]["findings"][0]["severity"], "error");
    let good = database(System::MariaDb).await;
    let said = check(&good.url("here"), "here.users", &[]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(!said.out.contains("error:"), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warnings_alone_are_no_failure() {
    let database = System::Postgres.start(&["-cwal_level=logical"]).await;
    database.operator("here", "CREATE TABLE users (id bigint PRIMARY KEY)");
    database.operator("here", "CREATE PUBLICATION lockkeeper FOR TABLE users");
    let said = check(&database.url("here"), "public.users", &[]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.contains("  warning: max_slot_wal_keep_size is -1"), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_file_the_cache_and_the_locks_are_tried_as_well() {
    let mut shop = Shop::open(System::Postgres).await;
    let file = shop.file("");
    let words = ["check", "--json", "--config", file.to_str().expect("UTF-8")];
    let good = output(&words);
    assert_eq!(good.code, 0, "{good:?}");
    let found = json(&good);
    for part in ["database", "cache", "locks"] {
        assert_eq!(found[part]["error"], Value::Null, "{found}");
    }
    // It leaves nothing behind.
    let raw = Raw::connect(shop.redis.address()).await;
    let left = raw.ask("KEYS *").await;
    let left = format!("{left:?}");
    assert!(!left.contains("user:") && !left.contains("cdc:shop"), "{left}");

    // Somebody who may look, and no more.
    raw.ask("ACL SETUSER default resetkeys ~nothing").await;
    let refused = output(&words);
    assert_eq!(refused.code, 69, "{refused:?}");
    let found = json(&refused);
    assert!(found["cache"]["error"].is_string() && found["locks"]["error"].is_string(), "{found}");
    assert_eq!(found["database"]["error"], Value::Null, "{found}");

    shop.redis.kill();
    let gone = output(&words[..2].iter().chain(&words[2..]).copied().collect::<Vec<_>>());
    assert_eq!((gone.code, json(&gone)["exit_code"].as_u64()), (69, Some(69)), "{gone:?}");
    assert!(json(&gone)["cache"]["error"].is_string(), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_cannot_be_reached_is_69() {
    let redis = server::redis(&[]).await;
    // Nobody there, and somebody who is no database.
    for address in ["127.0.0.1:1".to_owned(), redis.address().to_string()] {
        for (scheme, table) in [("postgres", "public.users"), ("mysql", "here.users")] {
            let said = check(&format!("{scheme}://cdc:s3cret@{address}/here"), table, &[]);
            assert_eq!(said.code, 69, "{said:?}");
            assert!(said.out.starts_with("database: cannot be used: "), "{said:?}");
            assert!(!format!("{said:?}").contains("s3cret"), "{said:?}");
        }
    }
}

#[test]
fn options_that_make_no_sense_are_64() {
    let url = ["--url", "postgres://a@127.0.0.1/b"];
    let table = ["--table", "public.users"];
    let key = ["--key", "{id}"];
    let cases: [&[&[&str]]; 8] = [
        &[],
        &[&url],
        &[&url, &table],
        &[&url, &table, &key, &key],
        &[&url, &["--table", "users"], &key],
        &[&url, &table, &["--key", "{id"]],
        &[&["--url", "redis://x"], &table, &key],
        &[&url, &table, &key, &["--config", "x"]],
    ];
    for words in cases {
        let said = output(&[&["check"][..], &words.concat()].concat());
        assert_eq!(said.code, 64, "{words:?}: {said:?}");
        assert!(!said.err.is_empty());
    }
    // No URL at all, and one that is for locks.
    let said = output(&[&["check"][..], &table, &key].concat());
    assert_eq!(said.code, 64, "{said:?}");
    assert!(said.err.contains("postgres://"), "{said:?}");
    let mut with_locks = command(&[&["check"][..], &table, &key].concat());
    let said = Running::new(with_locks.env("LOCKKEEPER_URL", "redis://:s3cret@x")).output();
    assert_eq!(said.code, 64, "{said:?}");
    assert!(!said.err.contains("s3cret"), "{said:?}");
}
