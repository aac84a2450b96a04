//! What Lockkeeper costs at an etcd server: against the same calls through the same client, and
//! against etcd's own locks, in one run at one server.
//!
//! `./dev bench etcd`, with the options of `./dev bench redis`. `docs/BENCHMARKS.md` says what the
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
// What the library itself speaks, so that both sides have the same code between them and the wire.
#[path = "../../src/backend/etcd/proto.rs"]
mod proto;
mod raw;
mod stats;

use std::sync::Arc;

use crate::contenders::{BENCH, targets};
use crate::harness::server::Server;
use crate::harness::{begin, report, rows, runtime};
use crate::stats::Stats;

/// What is compacted is not given back to the disk, so the usual 2 GiB may not do.
const QUOTA: [&str; 2] = ["--quota-backend-bytes", "8589934592"];

fn main() {
    let Some(plan) = begin::<raw::Raw>(&BENCH) else { return };
    let report = runtime().block_on(async {
        let server = testkit::server::etcd(&QUOTA).await;
        let url = format!("etcd://{}", server.address());
        let stats = Arc::new(Stats::connect(&url, &server));
        let mut book = plan.book(Arc::<Stats>::clone(&stats), server.pid());
        rows::measure(&plan, &url, &mut book).await;
        let about = format!("etcd {}", stats.version().await);
        report::write(&plan, &book, &about, server.dir(), &targets(&book))
    });
    println!("{report}");
}
