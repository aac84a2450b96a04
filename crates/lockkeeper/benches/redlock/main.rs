//! What Lockkeeper costs at a majority of five Redis servers: against one of them, against the least
//! that such a lock can be made of, and against other libraries at the same five, in one run.
//!
//! `./dev bench redlock`, with the options of `./dev bench redis`. `docs/BENCHMARKS.md` says what the
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
#[path = "../redis/stats.rs"]
#[allow(dead_code, reason = "row 5 is not measured")]
mod node;
mod stats;
mod stopped;
mod worker;

use std::sync::Arc;

use testkit::redlock::Nodes;

use crate::contenders::{BENCH, targets};
use crate::harness::server::Server;
use crate::harness::{begin, report, rows, runtime};
use crate::stats::Stats;

const NODES: usize = 5;

fn main() {
    let Some(plan) = begin::<worker::Other>(&BENCH) else { return };
    let report = runtime().block_on(async {
        let nodes = Nodes::start(NODES).await;
        let urls: Vec<String> =
            nodes.servers.iter().map(|server| format!("redis://{}", server.address())).collect();
        let urls = urls.join(",");
        let stats = Arc::new(Stats::connect(&nodes).await);
        let (first, others) = nodes.servers.split_first().unwrap();
        let mut book = plan.book(Arc::<Stats>::clone(&stats), first.pid());
        others.iter().for_each(|server| plan.keep(server.pid()));
        rows::measure(&plan, &urls, &mut book).await;
        stopped::measure(&plan, &urls, &mut book, (&nodes, &stats)).await;
        let about = format!("five of Redis {}", stats.version().await);
        report::write(&plan, &book, &about, first.dir(), &targets(&book))
    });
    println!("{report}");
}
