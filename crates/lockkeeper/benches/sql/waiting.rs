//! Row 6: many tasks of one process wait for one name, and nothing happens.

use std::time::Duration;

use crate::harness::book::Book;
use crate::harness::contender::Contender;
use crate::harness::figure::Figure;
use crate::harness::process::Ask;
use crate::harness::rows::{Result, nanos, prepare, sleep_until, start};
use crate::harness::server::Server;
use crate::harness::{Plan, clock};
use crate::stats::Stats;

pub(crate) const IDLE: Figure = Figure::new(6, 0, "statements of 64 tasks that wait", "1/s");
const HOLDER: Figure = Figure::new(6, 1, "statements of one that holds", "1/s");

const TASKS: u32 = 64;
/// Until the pauses between two looks are as long as they get.
const SETTLE: Duration = Duration::from_secs(5);

pub(crate) async fn measure(plan: &Plan, url: &str, book: &mut Book, stats: &Stats) {
    for one in plan.contenders(6) {
        book.say(&format!("row 6: {}, {TASKS} tasks wait", one.name));
        if let Err(what) = see(plan, url, one, book, stats).await {
            book.fault(one, 6, &what);
        }
    }
}

async fn see(
    plan: &Plan,
    url: &str,
    one: &Contender,
    book: &mut Book,
    stats: &Stats,
) -> Result<()> {
    let Some(mut holder) = start(plan, url, one, None, book).await else { return Ok(()) };
    let Some(mut waiter) = start(plan, url, one, None, book).await else { return Ok(()) };
    prepare(book).await;
    holder.ask("hold held 1").await?;
    // Whole thirds of the lease, so that each window has as many renewals.
    let window = if plan.quick { plan.lease } else { plan.lease / 3 };
    let alone = rate(stats, window).await;
    let until = clock::now() + nanos(plan.lease * 100);
    waiter.begin("held", Ask { tasks: TASKS, names: 1, from: until, until, log: false }).await?;
    let together = rate(stats, window).await;
    book.note(HOLDER, one, alone);
    book.note(IDLE, one, (together - alone).max(0.0));
    Ok(())
}

/// Statements in a second, when everything has settled.
async fn rate(stats: &Stats, window: Duration) -> f64 {
    sleep_until(clock::now() + nanos(SETTLE)).await;
    let (before, from) = (stats.sample().await, clock::now());
    sleep_until(from + nanos(window)).await;
    let counts = stats.sample().await.since(&before);
    counts[0] as f64 / ((clock::now() - from) as f64 / 1e9)
}
