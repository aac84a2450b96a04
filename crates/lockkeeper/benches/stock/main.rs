//! How many processes can take from a stock at a time: with 1, 4 and 16 segments, against a lock for each
//! segment around a counter, and against a counter that the server decrements.
//!
//! `./dev bench stock`, with the options of `./dev bench redis`; there is only row 4.

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
#[path = "../redis/stats.rs"]
#[allow(dead_code, reason = "row 5 is not measured")]
mod stats;
mod worker;

use std::sync::Arc;

use crate::contenders::{BENCH, targets};
use crate::harness::server::Server;
use crate::harness::{begin, report, rows, runtime};
use crate::stats::Stats;

fn main() {
    let Some(plan) = begin::<worker::Way>(&BENCH) else { return };
    let report = runtime().block_on(async {
        let server = testkit::server::redis(&[]).await;
        let url = format!("redis://{}", server.address());
        let stats = Arc::new(Stats::connect(&url, server.address()).await);
        let mut book = plan.book(Arc::<Stats>::clone(&stats), server.pid());
        rows::measure(&plan, &url, &mut book).await;
        let about = format!("Stock, Redis {}", stats.version().await);
        report::write(&plan, &book, &about, server.dir(), &targets(&book))
    });
    println!("{report}");
}
