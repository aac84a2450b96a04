//! Rows 1 to 3: one process, with one task, with many tasks on a name each, and with many on one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Result, nanos, percentile, prepare, sleep_until, start};
use crate::harness::book::Book;
use crate::harness::contender::Contender;
use crate::harness::figure::Figure;
use crate::harness::process::{Ask, Ended, Process};
use crate::harness::server::Sample;
use crate::harness::warm_up::WarmUp;
use crate::harness::{Plan, clock};

pub(crate) const PAIR_P50: Figure = Figure::new(1, 0, "lock + release, one task, p50", "µs");
const PAIR_P99: Figure = Figure::new(1, 1, "the same, p99", "µs");
pub(crate) const OWN_RATE: Figure = Figure::new(2, 0, "64 tasks on 64 names", "pairs/s");
const OWN_CLIENT: Figure = Figure::new(2, 1, "client CPU per pair", "µs");
const OWN_SERVER: Figure = Figure::new(2, 2, "server CPU per pair", "µs");
pub(crate) const ONE_RATE: Figure =
    Figure::new(3, 0, "64 tasks of one process on one name", "pairs/s");

const TASKS: u32 = 64;
/// Of a second each, at most.
const WARM_UPS: usize = 25;

/// What was seen between two moments.
struct Seen {
    seconds: f64,
    ended: Ended,
    client_cpu: Duration,
    before: Sample,
    after: Sample,
}

impl Seen {
    /// Microseconds for each turn, of so many seconds for all.
    fn per_turn(&self, seconds: f64) -> f64 {
        seconds * 1e6 / self.ended.count.max(1) as f64
    }

    /// How long each turn took, in ns.
    fn times(&self) -> Vec<u64> {
        self.ended.turns.iter().map(|turn| turn.done - turn.asked).collect()
    }
}

pub(super) async fn measure(plan: &Plan, url: &str, book: &mut Book) {
    let mut processes: HashMap<&str, Process> = HashMap::new();
    for row in 1..=3 {
        let contenders = plan.contenders(row);
        // A round trip is between two processors; whoever has more to do may use all.
        let apart = plan.processors.as_ref().filter(|_| row == 1);
        if row == 2 {
            processes.clear();
        }
        for one in &contenders {
            if processes.contains_key(one.id) {
                continue;
            }
            if let Some(process) = start(plan, url, one, apart, book).await {
                processes.insert(one.id, process);
            }
        }
        for one in contenders.iter().filter(|one| one.compiles()) {
            let Some(process) = processes.get_mut(one.id) else { continue };
            book.say(&format!("row {row}: {} warms up", one.name));
            let warm_up = warm(process, row, WarmUp::new(plan, WARM_UPS)).await;
            book.warmed_up(one, row, &warm_up);
        }
        for round in 1..=plan.rounds {
            for one in &contenders {
                let Some(process) = processes.get_mut(one.id) else { continue };
                book.say(&format!("row {row}, round {round}: {}", one.name));
                match see(process, book, shape(row), (plan.warm_up, plan.window)).await {
                    Ok(seen) => note(row, one, &seen, book),
                    Err(what) => {
                        processes.remove(one.id);
                        book.fault(one, row, &what);
                    }
                }
            }
        }
    }
}

/// Starts a contender as for row 1, as fast as it gets; `None`: it cannot be.
pub(crate) async fn start_alone(
    plan: &Plan,
    url: &str,
    (one, row): (&Contender, u8),
    book: &mut Book,
) -> Option<Process> {
    let mut process = start(plan, url, one, plan.processors.as_ref(), book).await?;
    if one.compiles() {
        book.say(&format!("row {row}: {} warms up", one.name));
        let warm_up = warm(&mut process, 1, WarmUp::new(plan, WARM_UPS)).await;
        book.warmed_up(one, row, &warm_up);
    }
    Some(process)
}

/// How long a pair takes that one task has for itself, in µs: the median.
pub(crate) async fn pair(plan: &Plan, process: &mut Process, book: &mut Book) -> Result<f64> {
    let seen = see(process, book, shape(1), (plan.warm_up, plan.window)).await?;
    match seen.times().as_mut_slice() {
        [] => Err(format!("no turn was done, {} calls failed", seen.ended.failed)),
        times => Ok(percentile(times, 50)),
    }
}

/// Lets a server that compiles while it runs become as fast as it gets: else whoever comes first is
/// measured at a slower one.
pub(super) async fn warm_up_server(plan: &Plan, url: &str, book: &mut Book) {
    let one = &plan.bench.contenders[0];
    let Some(mut process) = start(plan, url, one, None, book).await else { return };
    book.say("the server warms up");
    let tries = if plan.quick { 3 } else { WARM_UPS };
    let warm_up = warm(&mut process, 2, WarmUp::of(tries)).await;
    if !warm_up.is_warm() {
        book.say("the server may still be getting faster");
    }
}

/// Takes turns as in a row until that is as fast as it gets.
async fn warm(process: &mut Process, row: u8, mut warm_up: WarmUp) -> WarmUp {
    while warm_up.goes_on() {
        let from = clock::now();
        let until = from + nanos(Duration::from_secs(1));
        let (tasks, names, _) = shape(row);
        let ask = Ask { tasks, names, from, until, log: false };
        let turns = match process.begin("warm", ask).await {
            Ok(()) => process.end().await,
            Err(what) => Err(what),
        };
        // What is wrong with it shows again when it is measured.
        warm_up.tried(turns.map_or(0.0, |ended| ended.count as f64));
    }
    warm_up
}

/// Tasks, names, and whether every turn is of interest.
fn shape(row: u8) -> (u32, u32, bool) {
    match row {
        1 => (1, 1, true),
        2 => (TASKS, TASKS, false),
        _ => (TASKS, 1, false),
    }
}

/// Lets a process take turns for a while, after a warm-up.
async fn see(
    process: &mut Process,
    book: &mut Book,
    (tasks, names, log): (u32, u32, bool),
    (warm_up, window): (Duration, Duration),
) -> Result<Seen> {
    loop {
        prepare(book).await;
        let from = clock::now() + nanos(warm_up);
        let until = from + nanos(window);
        process.begin("bench", Ask { tasks, names, from, until, log }).await?;
        sleep_until(from).await;
        let (sky, before, cpu) = (book.weather.look(), book.server.sample().await, process.cpu());
        sleep_until(until).await;
        let (after, client_cpu) = (book.server.sample().await, process.cpu() - cpu);
        let own = client_cpu.as_secs_f64() + after.cpu - before.cpu;
        let spoilt = book.weather.spoilt(sky, own);
        let ended = process.end().await?;
        if !spoilt {
            return Ok(Seen { seconds: window.as_secs_f64(), ended, client_cpu, before, after });
        }
    }
}

fn note(row: u8, one: &Contender, seen: &Seen, book: &mut Book) {
    let rate = seen.ended.count as f64 / seen.seconds;
    match row {
        1 => {
            let mut times = seen.times();
            book.note(PAIR_P50, one, percentile(&mut times, 50));
            book.note(PAIR_P99, one, percentile(&mut times, 99));
        }
        2 => {
            book.note(OWN_RATE, one, rate);
            book.note(OWN_CLIENT, one, seen.per_turn(seen.client_cpu.as_secs_f64()));
            book.note(OWN_SERVER, one, seen.per_turn(seen.after.cpu - seen.before.cpu));
            let (counts, pairs) = (seen.after.since(&seen.before), seen.ended.count as f64);
            let server = Arc::clone(&book.server);
            server
                .pairs(counts, pairs.max(1.0), &mut |figure, value| book.note(figure, one, value));
        }
        _ => book.note(ONE_RATE, one, rate),
    }
}
