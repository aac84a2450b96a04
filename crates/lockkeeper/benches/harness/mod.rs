//! What the benches of servers have in common.
//!
//! 1. Every contender, Lockkeeper as well, is a process of its own that takes commands by lines
//!    ([`worker`] for Rust, `interop/*/bench.*` for the others). They take turns at the server, several
//!    rounds of a fixed time after a warm-up; a figure is the median of its rounds.
//! 2. All stamp their turns with the same clock of the machine, so turns of several processes can be
//!    merged.
//! 3. What the server does is read from its own counters ([`server`]); what a process costs, from
//!    `/proc`.

#![allow(dead_code, reason = "each bench uses a part of it")]

pub(crate) mod book;
pub(crate) mod contender;
pub(crate) mod figure;
pub(crate) mod process;
pub(crate) mod processors;
pub(crate) mod report;
pub(crate) mod rows;
pub(crate) mod server;
mod warm_up;
mod weather;
pub(crate) mod worker;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use self::book::Book;
use self::contender::Contender;
use self::processors::Processors;
use self::server::Server;
use self::weather::Weather;
use self::worker::Library;

/// The clock that all processes of this machine share, and all languages have.
pub(crate) mod clock {
    use rustix::time::{ClockId, clock_gettime};

    /// Nanoseconds.
    pub(crate) fn now() -> u64 {
        let now = clock_gettime(ClockId::Monotonic);
        u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
    }
}

/// What one bench measures.
#[derive(Debug)]
pub(crate) struct Bench {
    /// Everybody, in the order of the columns; Lockkeeper first.
    pub(crate) contenders: &'static [Contender],
    /// The server compiles what it has run often.
    pub(crate) server_compiles: bool,
    /// With how many clients row 5 is measured.
    pub(crate) crowds: &'static [u32],
}

/// How long everything takes.
pub(crate) struct Plan {
    pub(crate) bench: &'static Bench,
    pub(crate) quick: bool,
    rows: Vec<u8>,
    only: Vec<String>,
    /// How often each contender gets its turn in a row.
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    window: Duration,
    /// For processes that compete: long waits are to be seen.
    long_window: Duration,
    pub(crate) lease: Duration,
    /// How long to wait for a quiet machine, in all.
    patience: Duration,
    processors: Option<Processors>,
}

impl Plan {
    fn read(bench: &'static Bench, words: &[String]) -> Self {
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
        let (rounds, [warm_up, window, long_window, lease]) = if quick {
            (1, [100, 250, 500, 6000].map(millis))
        } else {
            (3, [200, 800, 2000, 30_000].map(millis))
        };
        Self {
            bench,
            quick,
            rows,
            only,
            rounds,
            warm_up,
            window,
            long_window,
            lease,
            patience,
            processors,
        }
    }

    /// Who takes part in a row that is measured.
    pub(crate) fn contenders(&self, row: u8) -> Vec<&'static Contender> {
        let is_measured = self.rows.is_empty() || self.rows.contains(&row);
        let wanted =
            |one: &&Contender| self.only.is_empty() || self.only.iter().any(|id| id == one.id);
        let all = self.bench.contenders.iter();
        all.filter(|one| is_measured && one.rows.contains(&row)).filter(wanted).collect()
    }

    /// Lets a server that runs as this process have the first processor and no other.
    pub(crate) fn keep(&self, pid: u32) {
        if let Some(processors) = &self.processors {
            processors.keep(pid);
        }
    }

    /// A book to write into, for a server that runs as this process.
    pub(crate) fn book(&self, server: Arc<dyn Server>, pid: u32) -> Book {
        self.keep(pid);
        Book::new(self.bench.contenders, server, Weather::new(self.patience))
    }
}

/// What is to be measured. `None`: this was the process of a contender, and is over.
pub(crate) fn begin<L: Library>(bench: &'static Bench) -> Option<Plan> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, url, library, lease] = words.as_slice()
        && mode == "worker"
    {
        worker::run::<L>(url, library, lease);
        return None;
    }
    allow_many_connections();
    Some(Plan::read(bench, &words))
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
