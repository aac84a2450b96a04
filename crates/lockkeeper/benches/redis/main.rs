//! What Lockkeeper costs at a Redis server: against the server's own limit through the same driver,
//! and against other lock libraries, in one run at one server.
//!
//! `./dev bench redis`, or with `--quick` for a run that only shows that everything works; `--rows
//! 1,2` and `--only lockkeeper,raw-scripts` measure less, `--patience 300` waits longer for a quiet
//! machine than a minute. `docs/BENCHMARKS.md` says what the rows mean, and [`harness`] how it works.

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
mod held;
mod stats;
mod worker;

use std::sync::Arc;

use crate::contenders::{BENCH, targets};
use crate::harness::server::Server;
use crate::harness::{begin, report, rows, runtime};
use crate::stats::Stats;

fn main() {
    let Some(plan) = begin::<worker::Other>(&BENCH) else { return };
    let report = runtime().block_on(async {
        let server = testkit::server::redis(&[]).await;
        let url = format!("redis://{}", server.address());
        let stats = Arc::new(Stats::connect(&url, server.address()).await);
        let mut book = plan.book(Arc::<Stats>::clone(&stats), server.pid());
        rows::measure(&plan, &url, &mut book).await;
        held::measure(&plan, &url, &mut book, &stats).await;
        let about = format!("Redis {}", stats.version().await);
        report::write(&plan, &book, &about, server.dir(), &targets(&book))
    });
    println!("{report}");
}
