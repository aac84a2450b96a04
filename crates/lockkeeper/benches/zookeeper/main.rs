//! What Lockkeeper costs at a ZooKeeper server: against the same calls through the same client, and
//! against Curator and kazoo, in one run at one server.
//!
//! `./dev bench zookeeper`, with the options of `./dev bench redis`. `docs/BENCHMARKS.md` says what the
//! rows mean, and [`harness`] how it works.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss,
    reason = "a program that prints figures"
)]

mod contenders;
#[path = "../harness/mod.rs"]
mod harness;
mod raw;
mod stats;

use std::sync::Arc;

use crate::contenders::{BENCH, targets};
use crate::harness::server::Server;
use crate::harness::{begin, report, rows, runtime};
use crate::stats::Stats;

fn main() {
    let Some(plan) = begin::<raw::Raw>(&BENCH) else { return };
    let report = runtime().block_on(async {
        let server = testkit::zookeeper::alone().await;
        let url = format!("zookeeper://{}", server.address());
        let stats = Arc::new(Stats::connect(&url, &server).await);
        let mut book = plan.book(Arc::<Stats>::clone(&stats), server.pid());
        rows::measure(&plan, &url, &mut book).await;
        let about = format!("ZooKeeper {}", stats.version().await);
        report::write(&plan, &book, &about, server.dir(), &targets(&book))
    });
    println!("{report}");
}
