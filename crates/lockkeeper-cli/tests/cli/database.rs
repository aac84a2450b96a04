//! The same command on a database.

use std::process::Command;

use testkit::database::System;
use tokio::runtime::Runtime;

use super::harness::BINARY;

fn lockkeeper(url: &str, words: &[&str]) -> (i32, String, String) {
    let output = Command::new(BINARY).args(["--url", url]).args(words).output().expect("starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

#[test]
fn tables_are_made_on_request_and_a_command_runs_under_a_lock() {
    let runtime = Runtime::new().expect("a runtime");
    for system in [System::Postgres, System::MariaDb] {
        let database = runtime.block_on(system.start(&[]));
        let url = database.url_of(&format!("{}:s3cret", system.superuser()), "here");
        // Whatever its password: PostgreSQL trusts it, MariaDB knows it by this one.
        if system == System::MariaDb {
            database.operator("", "CREATE USER app IDENTIFIED BY 's3cret'");
            database.operator("", "GRANT ALL ON here.* TO app");
        }
        let url = url.replace("root:", "app:");
        let (code, _, err) = lockkeeper(&url, &["run", "x", "true"]);
        assert_eq!(code, 69, "{err}");
        assert!(err.contains("lockkeeper init --url") && !err.contains("s3cret"), "{err}");
        for _ in 0..2 {
            let (code, out, err) = lockkeeper(&url, &["init"]);
            assert_eq!(code, 0, "{err}");
            assert!(out.contains("is ready") && !out.contains("s3cret"), "{out}");
        }
        let script = format!("{BINARY} --url {url} run -n x true");
        let (code, _, err) = lockkeeper(&url, &["run", "x", "sh", "-c", &script]);
        assert_eq!(code, 75, "the inner one is refused: {err}");
        let (code, out, _) = lockkeeper(&url, &["ls", "--json"]);
        assert_eq!((code, out.trim()), (0, "[]"), "released");
        // A lock that lives with a connection would be free before the command of a killed run is dead.
        let session = format!("{url}?mode=session");
        let (code, _, err) = lockkeeper(&session, &["run", "x", "true"]);
        assert!(code != 0 && err.contains("mode=lease"), "{code}: {err}");
        let (code, out, err) = lockkeeper(&session, &["ls", "--json"]);
        assert_eq!((code, out.trim()), (0, "[]"), "{err}");
    }
}

#[test]
fn a_table_is_fenced_on_request() {
    let runtime = Runtime::new().expect("a runtime");
    for system in [System::Postgres, System::MariaDb] {
        let database = runtime.block_on(system.start(&[]));
        let url = database.url("here");
        database.operator("here", "CREATE TABLE stock (id bigint PRIMARY KEY, units bigint)");
        database.operator("here", "INSERT INTO stock VALUES (1, 5)");
        for _ in 0..2 {
            let (code, out, err) = lockkeeper(&url, &["init", "--fence", "stock"]);
            assert_eq!((code, out.trim()), (0, "stock is fenced"), "{err}");
        }
        database.operator("here", "UPDATE stock SET fence_by = 7");
        database.operator("here", "UPDATE stock SET units = 4, fence_by = 7");
        assert_eq!(database.operator("here", "SELECT units, fence FROM stock"), "4|7");
        let (code, out, err) = lockkeeper(&url, &["init", "--unfence", "stock"]);
        assert_eq!((code, out.trim()), (0, "stock is not fenced any more"), "{err}");
        database.operator("here", "UPDATE stock SET units = 3");
        for odd in ["nowhere", "stock; DROP TABLE stock"] {
            let (code, _, err) = lockkeeper(&url, &["init", "--fence", odd]);
            assert_ne!(code, 0);
            assert!(
                err.contains("no table nowhere") || err.contains("cannot be the name"),
                "{err}"
            );
        }
    }
    let (code, _, err) = lockkeeper("memory:", &["init", "--fence", "stock"]);
    assert_ne!(code, 0);
    assert!(err.contains("does not support fences of tables"), "{err}");
}

#[test]
fn other_stores_have_nothing_to_make() {
    let (code, out, err) = lockkeeper("memory:", &["init"]);
    assert_eq!((code, out.trim()), (0, "memory: is ready"), "{err}");
}
