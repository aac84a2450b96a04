//! Row 4: several processes, all on one name.

use std::time::Duration;

use futures_util::future::join_all;

use super::{Result, nanos, percentile, prepare, start};
use crate::harness::book::Book;
use crate::harness::contender::Contender;
use crate::harness::figure::Figure;
use crate::harness::process::{Ask, Process, Turn};
use crate::harness::warm_up::WarmUp;
use crate::harness::{Plan, clock};

pub(crate) const RATE: Figure = Figure::new(4, 0, "8 processes on one name", "pairs/s");
pub(crate) const HAND_OVER_P50: Figure =
    Figure::new(4, 1, "hand-over between processes, p50", "µs");
const HAND_OVER_P99: Figure = Figure::new(4, 2, "the same, p99", "µs");
/// Where a server hands over in bursts, with pauses between them, the median knows only the bursts.
pub(crate) const HAND_OVER_MEAN: Figure = Figure::new(4, 3, "the same, mean", "µs");
pub(crate) const LONGEST_WAIT: Figure = Figure::new(4, 4, "longest wait of any", "ms").largest();
const JAIN: Figure = Figure::new(4, 5, "fairness: Jain's index, 1 is fair", "").alone();
const MOST_TO_LEAST: Figure = Figure::new(4, 6, "fairness: most to least grants", "").alone();
const FAILED: Figure = Figure::new(4, 7, "calls that gave up or failed", "1/s").alone();

const PROCESSES: usize = 8;
/// Of three seconds each, at most.
const WARM_UPS: usize = 24;

pub(super) async fn measure(plan: &Plan, url: &str, book: &mut Book) {
    let mut fleets = Vec::new();
    for one in plan.contenders(4) {
        book.say(&format!("row 4: starting {PROCESSES} of {}", one.name));
        match fleet(plan, url, one, book).await {
            Ok(Some(fleet)) => fleets.push((one, fleet)),
            Ok(None) => {}
            Err(what) => book.fault(one, 4, &what),
        }
    }
    for round in 1..=plan.rounds {
        for (one, fleet) in &mut fleets {
            // One that failed may still be busy with what it was asked before.
            if fleet.is_empty() {
                continue;
            }
            book.say(&format!("row 4, round {round}: {}", one.name));
            match compete(fleet, book, (plan.warm_up, plan.long_window)).await {
                Ok(competition) => competition.note(one, book),
                Err(what) => {
                    fleet.clear();
                    book.fault(one, 4, &what);
                }
            }
        }
    }
}

/// The processes of one contender; `None`: it cannot be started.
async fn fleet(
    plan: &Plan,
    url: &str,
    one: &Contender,
    book: &mut Book,
) -> Result<Option<Vec<Process>>> {
    let Some(first) = start(plan, url, one, None, book).await else { return Ok(None) };
    let others = (1..PROCESSES).map(|_| Process::start(one, url, plan.lease, None));
    let mut fleet = vec![first];
    for other in join_all(others).await {
        fleet.push(other?);
    }
    if one.compiles() {
        let mut warm_up = WarmUp::new(plan, WARM_UPS);
        while warm_up.goes_on() {
            let alone = take_turns_alone(&mut fleet, plan.long_window).await?;
            let together = take_turns_together(&mut fleet, (plan.warm_up, plan.window)).await?;
            book.say(&format!("row 4: {alone} alone, {} together", together.turns.len()));
            warm_up.tried(together.turns.len() as f64);
        }
        book.warmed_up(one, 4, &warm_up);
    }
    take_turns_together(&mut fleet, (plan.warm_up, plan.window)).await?;
    Ok(Some(fleet))
}

/// Each on a name of its own, with a few tasks that compete for it: many more turns, for those that
/// compile while they run, than the processes get against each other.
async fn take_turns_alone(fleet: &mut [Process], time: Duration) -> Result<u64> {
    let from = clock::now();
    let ask = Ask { tasks: 4, names: 1, from, until: from + nanos(time), log: false };
    for (number, process) in fleet.iter_mut().enumerate() {
        process.begin(&format!("alone{number}-"), ask).await?;
    }
    let mut turns = 0;
    for process in fleet {
        turns += process.end().await?.count;
    }
    Ok(turns)
}

/// The turns of several processes, in the order of their grants.
struct Competition {
    from: u64,
    until: u64,
    failed: u64,
    turns: Vec<Turn>,
}

/// All processes of a fleet want one name; again if others spoilt it.
async fn compete(
    fleet: &mut [Process],
    book: &mut Book,
    times: (Duration, Duration),
) -> Result<Competition> {
    loop {
        prepare(book).await;
        let cpu = |fleet: &[Process]| fleet.iter().map(Process::cpu).sum::<Duration>();
        let (sky, before, own) = (book.weather.look(), book.server.sample().await, cpu(fleet));
        let competition = take_turns_together(fleet, times).await?;
        let server = book.server.sample().await.cpu - before.cpu;
        if !book.weather.spoilt(sky, (cpu(fleet) - own).as_secs_f64() + server) {
            return Ok(competition);
        }
    }
}

async fn take_turns_together(
    fleet: &mut [Process],
    (warm_up, window): (Duration, Duration),
) -> Result<Competition> {
    let from = clock::now() + nanos(warm_up);
    let until = from + nanos(window);
    for process in &mut *fleet {
        process.begin("bench", Ask { tasks: 1, names: 1, from, until, log: true }).await?;
    }
    let (mut turns, mut failed) = (Vec::new(), 0);
    for (who, process) in fleet.iter_mut().enumerate() {
        let ended = process.end().await?;
        failed += ended.failed;
        turns.extend(ended.turns.into_iter().map(|turn| Turn { who, ..turn }));
    }
    turns.sort_unstable_by_key(|turn| turn.granted);
    Ok(Competition { from, until, failed, turns })
}

impl Competition {
    fn note(&self, one: &Contender, book: &mut Book) {
        let in_time = self.from..self.until;
        let within: Vec<&Turn> =
            self.turns.iter().filter(|turn| in_time.contains(&turn.granted)).collect();
        let seconds = (self.until - self.from) as f64 / 1e9;
        book.note(RATE, one, within.len() as f64 / seconds);
        // The release is called when the grant is in hand: nothing is done in between.
        let passes = within.windows(2).filter(|pair| pair[0].who != pair[1].who);
        let mut times: Vec<u64> = passes.map(|pair| pair[1].granted - pair[0].granted).collect();
        if !times.is_empty() {
            book.note(HAND_OVER_P50, one, percentile(&mut times, 50));
            book.note(HAND_OVER_P99, one, percentile(&mut times, 99));
            let mean = times.iter().sum::<u64>() as f64 / times.len() as f64;
            book.note(HAND_OVER_MEAN, one, mean / 1e3);
        }
        // Also of those who got it only when the others had stopped.
        let late = self.turns.iter().filter(|turn| turn.granted >= self.from);
        let longest = late.map(|turn| turn.granted - turn.asked).max().unwrap_or(0);
        book.note(LONGEST_WAIT, one, longest as f64 / 1e6);
        let mut grants = [0.0_f64; PROCESSES];
        within.iter().for_each(|turn| grants[turn.who] += 1.0);
        let (sum, squares) = grants.iter().fold((0.0, 0.0), |(s, q), n| (s + n, q + n * n));
        book.note(JAIN, one, sum * sum / (PROCESSES as f64 * squares).max(1.0));
        let least = grants.iter().copied().fold(f64::INFINITY, f64::min);
        let most = grants.iter().copied().fold(0.0, f64::max);
        book.note(MOST_TO_LEAST, one, most / least);
        book.note(FAILED, one, self.failed as f64 / seconds);
    }
}
