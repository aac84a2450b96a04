//! The measurements, row by row.

pub(crate) mod many_clients;
pub(crate) mod many_processes;
pub(crate) mod one_process;

use std::time::Duration;

use super::book::Book;
use super::contender::Contender;
use super::process::Process;
use super::processors::Processors;
use super::{Plan, clock};

/// What went wrong, in words.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// Measures the rows of the plan that all servers have.
pub(crate) async fn measure(plan: &Plan, url: &str, book: &mut Book) {
    if plan.bench.server_compiles {
        one_process::warm_up_server(plan, url, book).await;
    }
    one_process::measure(plan, url, book).await;
    many_processes::measure(plan, url, book).await;
    many_clients::measure(plan, url, book).await;
}

/// Starts a contender; `None`: it cannot be, which is noted.
pub(crate) async fn start(
    plan: &Plan,
    url: &str,
    one: &Contender,
    apart: Option<&Processors>,
    book: &mut Book,
) -> Option<Process> {
    if !book.runs(one) {
        return None;
    }
    match Process::start(one, url, plan.lease, apart).await {
        Ok(process) => {
            book.is(one, &process.version);
            Some(process)
        }
        Err(what) => {
            book.fault(one, 0, &what);
            None
        }
    }
}

/// Forgets what the last measurement left behind, and waits for a quiet moment.
pub(crate) async fn prepare(book: &mut Book) {
    book.server.clear().await;
    book.weather.settle().await;
}

pub(crate) async fn sleep_until(at: u64) {
    tokio::time::sleep(Duration::from_nanos(at.saturating_sub(clock::now()))).await;
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

/// A percentile of times in ns, in µs; zero of nothing.
fn percentile(times: &mut [u64], percent: usize) -> f64 {
    times.sort_unstable();
    times.get(times.len() * percent / 100).map_or(0.0, |time| *time as f64 / 1e3)
}
