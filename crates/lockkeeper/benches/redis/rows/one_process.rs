//! Rows 1 to 3: one process, with one task, with many tasks on a name each, and with many on one.

use std::collections::HashMap;
use std::time::Duration;

use super::{Result, nanos, percentile, prepare, sleep_until, start};
use crate::book::{Book, Figure};
use crate::contender::Contender;
use crate::process::{Ask, Ended, Process};
use crate::stats::Sample;
use crate::warm_up::WarmUp;
use crate::{Plan, clock};

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
            let mut warm_up = WarmUp::new(plan, WARM_UPS);
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
            book.warmed_up(one, row, &warm_up);
        }
        for round in 1..=plan.rounds {
            for one in &contenders {
                let Some(process) = processes.get_mut(one.id) else { continue };
                book.say(&format!("row {row}, round {round}: {}", one.name));
                match see(process, book, shape(row), (plan.warm_up, plan.window)).await {
                    Ok(seen) => note(row, one, seen, book),
                    Err(what) => {
                        processes.remove(one.id);
                        book.fault(one, row, &what);
                    }
                }
            }
        }
    }
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
        let (sky, before, cpu) = (book.weather.look(), book.stats.sample().await, process.cpu());
        sleep_until(until).await;
        let (after, client_cpu) = (book.stats.sample().await, process.cpu() - cpu);
        let own = client_cpu.as_secs_f64() + after.cpu - before.cpu;
        let spoilt = book.weather.spoilt(sky, own);
        let ended = process.end().await?;
        if !spoilt {
            return Ok(Seen { seconds: window.as_secs_f64(), ended, client_cpu, before, after });
        }
    }
}

fn note(row: u8, one: &Contender, mut seen: Seen, book: &mut Book) {
    let rate = seen.ended.count as f64 / seen.seconds;
    match row {
        1 => {
            let turns = seen.ended.turns.drain(..);
            let mut times: Vec<u64> = turns.map(|turn| turn.done - turn.asked).collect();
            book.note(Figure::PairP50, one, percentile(&mut times, 50));
            book.note(Figure::PairP99, one, percentile(&mut times, 99));
        }
        2 => {
            book.note(Figure::OwnRate, one, rate);
            book.note(Figure::OwnClient, one, seen.per_turn(seen.client_cpu.as_secs_f64()));
            book.note(Figure::OwnServer, one, seen.per_turn(seen.after.cpu - seen.before.cpu));
            let scripts = seen.after.scripts - seen.before.scripts;
            let time = seen.after.script_time - seen.before.script_time;
            book.note(Figure::OwnScript, one, time as f64 / scripts.max(1) as f64);
        }
        _ => book.note(Figure::OneRate, one, rate),
    }
}
