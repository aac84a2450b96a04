//! What Lockkeeper costs at a Redis server: against the server's own limit through the same driver,
//! and against other lock libraries, in one run at one server.
//!
//! `./dev bench redis`, or with `--quick` for a run that only shows that everything works; `--rows
//! 1,2` and `--only lockkeeper,raw-scripts` measure less, `--patience 300` waits longer for a quiet
//! machine than a minute. `docs/BENCHMARKS.md` says what the rows mean.
//!
//! # How it works
//!
//! 1. Every contender, Lockkeeper as well, is a process of its own that takes commands by lines
//!    ([`worker`] for Rust, `interop/*/bench.*` for the others). They take turns at the server, several
//!    rounds of a fixed time after a warm-up; a figure is the median of its rounds.
//! 2. All stamp their turns with the same clock of the machine, so turns of several processes can be
//!    merged.
//! 3. What the server does is read from `INFO`; what a process costs, from `/proc`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss,
    reason = "a program that prints figures"
)]

mod book;
mod contender;
mod process;
mod processors;
mod report;
mod rows;
mod stats;
mod warm_up;
mod weather;
mod worker;

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::book::Book;
use crate::contender::{ALL, Contender};
use crate::processors::Processors;

/// The clock that all processes of this machine share, and all languages have.
mod clock {
    use rustix::time::{ClockId, clock_gettime};

    /// Nanoseconds.
    pub(crate) fn now() -> u64 {
        let now = clock_gettime(ClockId::Monotonic);
        u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
    }
}

/// How long everything takes.
pub(crate) struct Plan {
    pub(crate) quick: bool,
    rows: Vec<u8>,
    only: Vec<String>,
    /// How often each contender gets its turn in a row.
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
    /// For processes that compete: long waits are to be seen.
    pub(crate) long_window: Duration,
    pub(crate) lease: Duration,
    /// How many locks are held.
    pub(crate) held: &'static [u32],
    /// How long to wait for a quiet machine, in all.
    patience: Duration,
    pub(crate) processors: Option<Processors>,
}

impl Plan {
    fn read(words: &[String]) -> Self {
        let list = |option: &str| -> Vec<String> {
            let at = words.iter().position(|word| word == option);
            let list = at.and_then(|at| words.get(at + 1));
            list.map(|list| list.split(',').map(str::to_owned).collect()).unwrap_or_default()
        };
        let rows = list("--rows").iter().map(|row| row.parse().unwrap()).collect();
        let only = list("--only");
        let millis = Duration::from_millis;
        let quick = words.iter().any(|word| word == "--quick");
        let patience = list("--patience").first().map(|seconds| seconds.parse().unwrap());
        let patience = Duration::from_secs(patience.unwrap_or(if quick { 0 } else { 60 }));
        let processors = Processors::find();
        if quick {
            return Self {
                quick: true,
                rows,
                only,
                rounds: 1,
                warm_up: millis(100),
                window: millis(250),
                long_window: millis(500),
                lease: millis(6000),
                held: &[10_000],
                patience,
                processors,
            };
        }
        Self {
            quick: false,
            rows,
            only,
            rounds: 3,
            warm_up: millis(200),
            window: millis(800),
            long_window: millis(2000),
            lease: millis(30_000),
            held: &[10_000, 100_000],
            patience,
            processors,
        }
    }

    pub(crate) fn has(&self, row: u8) -> bool {
        self.rows.is_empty() || self.rows.contains(&row)
    }

    /// Who takes part in a row that is measured.
    pub(crate) fn contenders(&self, row: u8) -> Vec<&'static Contender> {
        let wanted =
            |one: &&Contender| self.only.is_empty() || self.only.iter().any(|id| id == one.id);
        ALL.iter().filter(|one| self.has(row) && one.rows.contains(&row)).filter(wanted).collect()
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, url, library, lease] = words.as_slice()
        && mode == "worker"
    {
        worker::run(url, library, lease);
        return;
    }
    let plan = Plan::read(&words);
    allow_many_connections();
    let report = runtime().block_on(async {
        let server = testkit::server::redis(&[]).await;
        if let Some(processors) = &plan.processors {
            processors.keep(server.pid());
        }
        let url = format!("redis://{}", server.address());
        let stats = stats::Stats::connect(&url, server.address()).await;
        let mut book = Book::new(stats, weather::Weather::new(plan.patience));
        rows::measure(&plan, &url, &mut book).await;
        report::write(&plan, &book, &book.stats.version().await)
    });
    println!("{report}");
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A thousand clients have two thousand connections; the processes that are started inherit it.
fn allow_many_connections() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if setrlimit(Resource::Nofile, limit).is_err() {
        eprintln!("the number of open files stays as it is");
    }
}
