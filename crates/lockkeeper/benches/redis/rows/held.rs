//! Row 6: many locks of one process that are kept alive.

use super::{Result, nanos, prepare, sleep_until, start};
use crate::book::{Book, Figure};
use crate::contender::{Contender, Role};
use crate::process::Ask;
use crate::{Plan, clock};

/// Locks that are taken and released before, because what the first use costs is not what a lock
/// costs.
const FIRST: u32 = 64;

pub(super) async fn measure(plan: &Plan, url: &str, book: &mut Book) {
    for one in plan.contenders(6) {
        let mut counts: Vec<u32> = plan.held.iter().map(|count| one.held_max.min(*count)).collect();
        counts.dedup();
        for count in counts {
            book.say(&format!("row 6: {}, {count} locks", one.name));
            if let Err(what) = see(plan, url, one, count, book).await {
                book.fault(one, 6, &format!("{count} locks: {what}"));
            }
        }
    }
}

async fn see(plan: &Plan, url: &str, one: &Contender, count: u32, book: &mut Book) -> Result<()> {
    let Some(mut process) = start(plan, url, one, None, book).await else { return Ok(()) };
    let soon = clock::now() + nanos(plan.warm_up);
    let first = Ask { tasks: FIRST, names: FIRST, from: soon, until: soon, log: false };
    process.begin("first", first).await?;
    process.end().await?;
    prepare(book).await;
    let memory = process.memory();
    process.ask(&format!("hold held {count}")).await?;
    // One period, in which every lock is renewed once. Locks that were taken at once are renewed at
    // once: from the middle between two such bursts to the next, so that none is cut.
    let period = plan.lease / 3 * one.renews_after;
    sleep_until(clock::now() + nanos(period / 2)).await;
    let (before, cpu, from) = (book.stats.sample().await, process.cpu(), clock::now());
    sleep_until(from + nanos(period)).await;
    let (after, cpu) = (book.stats.sample().await, process.cpu() - cpu);
    let seconds = (clock::now() - from) as f64 / 1e9;
    let memory = process.memory().saturating_sub(memory) as f64 / f64::from(count);
    let per_second = |before: u64, after: u64| (after - before) as f64 / seconds;
    book.note(Figure::HeldScripts(count), one, per_second(before.scripts, after.scripts));
    book.note(Figure::HeldInAll(count), one, per_second(before.commands, after.commands));
    book.note(Figure::HeldCpu(count), one, cpu.as_secs_f64() * 1e3 / seconds);
    book.note(Figure::HeldMemory(count), one, memory);
    let keys: Vec<String> = (0..count).map(|n| format!("{}held{n}", one.key_prefix)).collect();
    let there = book.stats.exist(&keys).await as f64;
    book.note(Figure::HeldThere(count), one, there * 100.0 / f64::from(count));
    if one.role == Role::Ours {
        let lost = process.ask("lost").await?;
        if lost != "0" {
            return Err(format!("{lost} were lost"));
        }
    }
    Ok(())
}
