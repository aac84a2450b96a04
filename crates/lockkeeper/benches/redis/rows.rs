//! The measurements, row by row.

mod held;
mod many_clients;
mod many_processes;
mod one_process;

use std::time::Duration;

use crate::book::Book;
use crate::contender::{Contender, column};
use crate::process::Process;
use crate::processors::Processors;
use crate::{Plan, clock};

/// What went wrong, in words.
type Result<T> = std::result::Result<T, String>;

/// Measures every row of the plan.
pub(crate) async fn measure(plan: &Plan, url: &str, book: &mut Book) {
    one_process::measure(plan, url, book).await;
    many_processes::measure(plan, url, book).await;
    many_clients::measure(plan, url, book).await;
    held::measure(plan, url, book).await;
}

/// Starts a contender; `None`: it cannot be, which is noted.
async fn start(
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
            book.versions.insert(column(one), process.version.clone());
            Some(process)
        }
        Err(what) => {
            book.fault(one, 0, &what);
            None
        }
    }
}

/// Forgets what the last measurement left behind, and waits for a quiet moment.
async fn prepare(book: &mut Book) {
    book.stats.clear().await;
    book.weather.settle().await;
}

async fn sleep_until(at: u64) {
    tokio::time::sleep(Duration::from_nanos(at.saturating_sub(clock::now()))).await;
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

/// A percentile of times in ns, in µs; zero of nothing.
fn percentile(times: &mut [u64], percent: usize) -> f64 {
    times.sort_unstable();
    times.get(times.len() * percent / 100).map_or(0.0, |time| *time as f64 / 1e3)
}
