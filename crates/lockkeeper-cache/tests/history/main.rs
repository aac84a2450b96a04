//! Every strategy under the load of eight processes, in front of a real database and on a Redis that stops, dies, is
//! emptied and is failed over: what was stale, and what must not be.
//!
//! `LOCKKEEPER_CACHE_TABLE=1` makes the runs longer and writes what they counted into `docs/CACHE-CONSISTENCY.md`.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod faults;
mod rows;
mod run;
mod worker;

use std::path::Path;
use std::time::Duration;

use lockkeeper_cache::Strategy;
use testkit::database::System;
use testkit::staleness::{Row, splice, table as markdown};

use crate::faults::Fault;

/// What is between the look of a strategy at the time and ours.
const SLACK: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_in_a_process_of_its_own() {
    worker::main().await;
}

#[tokio::test]
async fn with_postgres() {
    all(System::Postgres, "postgres", &["-cmax_connections=400"]).await;
}

#[tokio::test]
async fn with_mariadb() {
    all(System::MariaDb, "mariadb", &["--max-connections=400"]).await;
}

/// One at a time: they measure times.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn all(system: System, name: &str, arguments: &[&str]) {
    let _alone = ALONE.lock().await;
    let written = std::env::var_os("LOCKKEEPER_CACHE_TABLE").is_some();
    let time = Duration::from_millis(if written { 10_000 } else { 1500 });
    let database = system.start(arguments).await;
    let mut rows = Vec::new();
    for fault in Fault::ALL {
        rows.extend(run::run(&database, fault, time).await);
    }
    rows.sort_by_key(|row| {
        Strategy::ALL.iter().position(|strategy| strategy.to_string() == row.strategy)
    });
    let text = markdown(&rows);
    eprintln!("{text}");
    for row in &rows {
        judge(row);
    }
    if written {
        write(name, &text);
    }
}

/// What must be, and what must not.
fn judge(row: &Row) {
    let Row { strategy, fault, report } = row;
    let what = format!("{strategy}, {fault}: {:#?}", report.examples);
    assert!(
        report.tried > 10,
        "{strategy}, {fault}: it had hardly a chance to be stale: {report:?}"
    );
    let fault = Fault::ALL.into_iter().find(|one| one.to_string() == *fault).unwrap();
    let keeps = matches!(fault, Fault::Nothing | Fault::Stopped);
    let strategy: Strategy = strategy.parse().unwrap();
    // What waits at a Redis that forgets is lost.
    if fault == Fault::Nothing || strategy != Strategy::WriteBehind {
        assert_eq!((report.dirty, report.future, report.lost), (0, 0, 0), "{what}");
    }
    match strategy {
        Strategy::Bypass => assert!(report.is_clean(), "{what}"),
        Strategy::Strong => {
            assert_eq!((report.stale, report.own, report.stuck), (0, 0, 0), "{what}");
            if keeps {
                assert!(report.is_clean(), "{what}");
            }
        }
        Strategy::WriteBehind if fault != Fault::Nothing => {}
        Strategy::FillLease | Strategy::WriteBehind => {
            assert_eq!((report.stale, report.own, report.stuck), (0, 0, 0), "{what}");
        }
        Strategy::BoundedStale => {
            assert_eq!(report.stuck, 0, "{what}");
            assert!(report.age < worker::BOUND + SLACK, "{what}");
        }
        // It ends so long after it was filled, and a fill may come so long after the load.
        Strategy::TtlOnly => {
            assert_eq!(report.stuck, 0, "{what}");
            assert!(report.age < worker::BOUND + worker::LEASE + SLACK, "{what}");
        }
        // Their locks are at the Redis that stops and dies.
        Strategy::WriteThrough | Strategy::ReadWriteLock => {
            let stale = (report.stale, report.own, report.stuck);
            assert!(stale == (0, 0, 0) || fault != Fault::Nothing, "{what}");
        }
        // Whoever finds nothing here is blind.
        _ => assert!(report.stale > 0 || fault != Fault::Nothing, "{strategy}: {report:?}"),
    }
}

fn write(name: &str, text: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CACHE-CONSISTENCY.md");
    let before = std::fs::read_to_string(&page).unwrap();
    let after = splice(&before, name, text).expect("the page has a place for it");
    std::fs::write(page, after).unwrap();
}
