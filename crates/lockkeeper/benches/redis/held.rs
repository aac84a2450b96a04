//! Row 6: many locks of one process that are kept alive.

use crate::harness::book::Book;
use crate::harness::contender::{Contender, Role};
use crate::harness::figure::Figure;
use crate::harness::process::{Ask, memory};
use crate::harness::rows::{Result, nanos, prepare, sleep_until, start};
use crate::harness::server::Server;
use crate::harness::{Plan, clock};
use crate::stats::{COMMANDS, SCRIPTS, Stats};

const HELD_SCRIPTS: Figure = Figure::new(6, 0, "scripts run, {n} locks held", "1/s");
const HELD_COMMANDS: Figure = Figure::new(6, 1, "commands, also inside scripts, {n} held", "1/s");
const HELD_CPU: Figure = Figure::new(6, 2, "client CPU, {n} held", "ms/s");
pub(crate) const MEMORY: Figure = Figure::new(6, 3, "client memory per lock, {n} held", "bytes");
const THERE: Figure = Figure::new(6, 4, "still there after the time, {n} held", "%").alone();

/// How many locks are held; with `--quick`, only the first.
pub(crate) const MANY: [u32; 2] = [10_000, 100_000];

/// Locks that are taken and released before, because what the first use costs is not what a lock
/// costs.
const FIRST: u32 = 64;

/// How a contender keeps its locks alive.
struct Habit {
    /// How many it is asked to hold at the most.
    most: u32,
    /// It renews when so many thirds of the lease are over.
    renews_after: u32,
    /// Where its key for a name begins.
    prefix: &'static str,
}

fn habit(one: &Contender) -> Habit {
    match one.id {
        // A thread for each.
        "python-redis-lock" => Habit { most: 500, renews_after: 2, prefix: "lock:" },
        "redisson" => Habit { most: 10_000, renews_after: 1, prefix: "" },
        _ => Habit { most: 100_000, renews_after: 1, prefix: "" },
    }
}

pub(crate) async fn measure(plan: &Plan, url: &str, book: &mut Book, stats: &Stats) {
    let held = if plan.quick { &MANY[..1] } else { &MANY };
    for one in plan.contenders(6) {
        let mut counts: Vec<u32> = held.iter().map(|count| habit(one).most.min(*count)).collect();
        counts.dedup();
        for count in counts {
            book.say(&format!("row 6: {}, {count} locks", one.name));
            if let Err(what) = see(plan, url, (one, count), book, stats).await {
                book.fault(one, 6, &format!("{count} locks: {what}"));
            }
        }
    }
}

async fn see(
    plan: &Plan,
    url: &str,
    (one, count): (&Contender, u32),
    book: &mut Book,
    stats: &Stats,
) -> Result<()> {
    let habit = habit(one);
    let Some(mut process) = start(plan, url, one, None, book).await else { return Ok(()) };
    let soon = clock::now() + nanos(plan.warm_up);
    let first = Ask { tasks: FIRST, names: FIRST, from: soon, until: soon, log: false };
    process.begin("first", first).await?;
    process.end().await?;
    prepare(book).await;
    let without = memory(process.pid());
    process.ask(&format!("hold held {count}")).await?;
    // One period, in which every lock is renewed once. Locks that were taken at once are renewed at
    // once: from the middle between two such bursts to the next, so that none is cut.
    let period = plan.lease / 3 * habit.renews_after;
    sleep_until(clock::now() + nanos(period / 2)).await;
    let (before, cpu, from) = (stats.sample().await, process.cpu(), clock::now());
    sleep_until(from + nanos(period)).await;
    let (after, cpu) = (stats.sample().await, process.cpu() - cpu);
    let seconds = (clock::now() - from) as f64 / 1e9;
    let with = memory(process.pid());
    let each = with.saturating_sub(without) as f64 / f64::from(count);
    let counts = after.since(&before);
    book.note(HELD_SCRIPTS.of(count), one, counts[SCRIPTS] as f64 / seconds);
    book.note(HELD_COMMANDS.of(count), one, counts[COMMANDS] as f64 / seconds);
    book.note(HELD_CPU.of(count), one, cpu.as_secs_f64() * 1e3 / seconds);
    book.note(MEMORY.of(count), one, each);
    let keys: Vec<String> = (0..count).map(|n| format!("{}held{n}", habit.prefix)).collect();
    let there = stats.exist(&keys).await as f64;
    book.note(THERE.of(count), one, there * 100.0 / f64::from(count));
    if one.role == Role::Ours {
        let lost = process.ask("lost").await?;
        if lost != "0" {
            return Err(format!("{lost} were lost"));
        }
    }
    Ok(())
}
