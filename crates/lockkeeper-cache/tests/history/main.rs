//! Every strategy under the load of eight processes, in front of a real database and on a Redis that stops, dies, is
//! emptied, is failed over and is cut off, and with processes that die: what was stale, and what must not be.
//!
//! `LOCKKEEPER_CACHE_TABLE=1` makes the runs longer and writes what they counted into `docs/CACHE-CONSISTENCY.md`.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod cases;
mod faults;
mod rows;
mod run;
mod verdict;
mod worker;
mod workers;

use std::path::Path;
use std::time::Duration;

use testkit::database::System;
use testkit::staleness::{Report, Row, splice, table as markdown};

use crate::cases::Case;
use crate::faults::Fault;

/// What is between the look of a strategy at the time and ours.
const SLACK: Duration = Duration::from_millis(20);

/// What one case did under one fault.
struct Ran {
    case: Case,
    fault: Fault,
    report: Report,
}

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
    let mut all = Vec::new();
    for fault in Fault::ALL {
        let ran = run::run(&database, fault, time).await.into_iter();
        all.extend(ran.map(|(case, report)| Ran { case, fault, report }));
    }
    all.sort_by_key(|ran| Case::ALL.iter().position(|case| *case == ran.case));
    let rows: Vec<_> = all.iter().map(Ran::row).collect();
    let text = markdown(&rows);
    eprintln!("{text}");
    all.iter().for_each(verdict::judge);
    verdict::judge_all(&all);
    if written {
        write(name, &text);
    }
}

impl Ran {
    fn row(&self) -> Row {
        let Self { case, fault, report } = self;
        Row { strategy: case.to_string(), fault: fault.to_string(), report: report.clone() }
    }
}

fn write(name: &str, text: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CACHE-CONSISTENCY.md");
    let before = std::fs::read_to_string(&page).unwrap();
    let after = splice(&before, name, text).expect("the page has a place for it");
    std::fs::write(page, after).unwrap();
}
