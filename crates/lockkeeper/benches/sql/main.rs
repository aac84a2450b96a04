//! What Lockkeeper costs at a database: against the same work by single statements through the same
//! driver, and against the locks that people make by hand, in one run at one server of each kind.
//!
//! `./dev bench sql`, with the options of `./dev bench redis`, and `--system postgres` or `--system
//! mysql` for one of the two. `docs/BENCHMARKS.md` says what the rows mean, and [`harness`] how it works.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss,
    reason = "a program that prints figures"
)]

mod client;
mod contenders;
#[path = "../harness/mod.rs"]
mod harness;
mod raw;
mod stats;
mod waiting;

use std::sync::Arc;

use lockkeeper::Locks;
use testkit::database::System;

use crate::contenders::{BENCH, targets};
use crate::harness::server::Server;
use crate::harness::{Plan, begin, report, rows, runtime};
use crate::stats::Stats;

/// A client of ours has up to five connections, and a lock by hand has one for each task.
const POSTGRES: &[&str] = &[
    "-cmax_connections=500",
    // Counts statements at once; the counters of the server itself are up to a second late.
    "-cshared_preload_libraries=pg_stat_statements",
];
const MARIADB: &[&str] = &["--max-connections=500", "--innodb-buffer-pool-size=128M"];

async fn measure(plan: &Plan, system: System) -> String {
    let arguments = if system == System::Postgres { POSTGRES } else { MARIADB };
    let database = system.start(arguments).await;
    let url = database.url("here");
    Locks::init(&url).await.unwrap();
    let stats = Arc::new(Stats::connect(&url, &database).await);
    let mut book = plan.book(Arc::<Stats>::clone(&stats), database.server.pid());
    rows::measure(plan, &url, &mut book).await;
    waiting::measure(plan, &url, &mut book, &stats).await;
    let about = stats.version().await;
    report::write(plan, &book, &about, database.server.dir(), &targets(&book, system))
}

fn main() {
    let Some(plan) = begin::<raw::Raw>(&BENCH) else { return };
    let words: Vec<String> = std::env::args().collect();
    let only = words.iter().position(|word| word == "--system").map(|at| words[at + 1].clone());
    let mut systems = vec![System::Postgres, System::MariaDb];
    systems.retain(|system| only.as_ref().is_none_or(|only| only == system.scheme()));
    let runtime = runtime();
    for system in systems {
        println!("{}", runtime.block_on(measure(&plan, system)));
    }
}
