//! What came out of a variant, and the counting that leads to it.

use std::time::Duration;

use lockkeeper::clock::Instant;
use serde::Serialize;

use crate::scene::Scene;
use crate::timeline::Timeline;

/// What came out of a variant.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// How often the program was run.
    pub runs: u64,
    /// What the checkers saw that must not be, in all of them.
    pub violations: u64,
    /// What was done in all of them: sales, critical sections, reads.
    pub operations: u64,
    /// Operations in a second; none were counted if nothing.
    pub throughput: Option<f64>,
    /// So long did all but one of a hundred operations take at most; none were timed if nothing.
    pub p99_us: Option<u64>,
    /// Other figures, such as commands per grant.
    pub figures: Vec<Figure>,
    /// What happened on this run, for a reader.
    pub story: String,
    /// The first run with a violation, or the first.
    pub timeline: Timeline,
}

/// A figure that only some experiments have.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What it counts.
    pub name: &'static str,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
}

/// Counts the runs of a variant.
#[derive(Debug)]
pub struct Tally {
    start: Instant,
    busy: Option<Duration>,
    runs: u64,
    violations: u64,
    latencies: Vec<Duration>,
    figures: Vec<Figure>,
    shown: Option<(bool, Timeline)>,
}

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

impl Tally {
    /// The clock of the throughput runs from now on.
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            busy: None,
            runs: 0,
            violations: 0,
            latencies: Vec::new(),
            figures: Vec::new(),
            shown: None,
        }
    }

    /// A run is over.
    pub fn run(&mut self, scene: &Scene) {
        self.run_of(scene.violations(), || scene.end());
    }

    /// The same where so much happened that what is shown is chosen from it afterwards.
    pub fn run_of(&mut self, violations: u64, line: impl FnOnce() -> Timeline) {
        self.runs += 1;
        self.violations += violations;
        let broken = violations > 0;
        if self.shown.as_ref().is_none_or(|(shown, _)| broken && !shown) {
            self.shown = Some((broken, line().window()));
        }
    }

    /// An operation took so long.
    pub fn operation(&mut self, took: Duration) {
        self.latencies.push(took);
    }

    /// So did these.
    pub fn operations(&mut self, took: impl IntoIterator<Item = Duration>) {
        self.latencies.extend(took);
    }

    /// The throughput counts over this time, and not over all since the start.
    pub fn within(&mut self, busy: Duration) {
        self.busy = Some(busy);
    }

    /// A figure besides.
    pub fn figure(&mut self, name: &'static str, value: f64, unit: &'static str) {
        self.figures.push(Figure { name, value, unit });
    }

    /// How many runs so far.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// How many violations so far.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// What came out. The story is told of the run that is shown, with its times ([`Timeline::when`]): two or
    /// three sentences. Each step is shown besides, in a diagram or by [`Timeline::tell`].
    pub fn end(mut self, story: impl FnOnce(&Timeline) -> String) -> Outcome {
        let busy = self.busy.unwrap_or_else(|| Instant::now().since(self.start));
        let timeline = self.shown.map(|(_, line)| line).unwrap_or_default();
        let operations = u64::try_from(self.latencies.len()).unwrap_or(u64::MAX);
        Outcome {
            runs: self.runs,
            violations: self.violations,
            operations,
            throughput: rate(operations, busy),
            p99_us: p99(&mut self.latencies),
            figures: self.figures,
            story: story(&timeline),
            timeline,
        }
    }
}

fn rate(operations: u64, busy: Duration) -> Option<f64> {
    let operations = u32::try_from(operations).unwrap_or(u32::MAX);
    (operations > 0 && !busy.is_zero()).then(|| f64::from(operations) / busy.as_secs_f64())
}

fn p99(latencies: &mut [Duration]) -> Option<u64> {
    latencies.sort_unstable();
    let last = latencies.len().checked_sub(1)?;
    let at = (latencies.len() * 99).div_ceil(100).saturating_sub(1).min(last);
    Some(u64::try_from(latencies[at].as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_violation_is_shown_and_not_the_first_run() {
        let mut tally = Tally::new();
        let quiet = Scene::new();
        quiet.actor("quiet").did(crate::timeline::Kind::Wrote, "1");
        tally.run(&quiet);
        let wrong = Scene::new();
        wrong.violation(&wrong.actor("wrong"), "it is wrong");
        tally.run(&wrong);
        tally.run(&quiet);
        let outcome = tally.end(Timeline::tell);
        assert_eq!((outcome.runs, outcome.violations), (3, 1));
        assert_eq!(outcome.timeline.actors, ["wrong"]);
        assert_eq!(outcome.p99_us, None);
    }

    #[test]
    fn one_of_a_hundred_is_left_out() {
        let mut times: Vec<_> = (1..=200).map(Duration::from_micros).collect();
        assert_eq!(p99(&mut times), Some(198));
        assert_eq!(p99(&mut [Duration::from_micros(7)]), Some(7));
        assert_eq!(p99(&mut []), None);
    }
}
