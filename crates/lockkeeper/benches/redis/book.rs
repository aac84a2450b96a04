//! What was measured: for each figure and contender the values of all rounds.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock;
use crate::contender::{ALL, Contender, Role, column};
use crate::stats::Stats;
use crate::warm_up::WarmUp;
use crate::weather::Weather;

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Figure {
    PairP50,
    PairP99,
    OwnRate,
    OwnClient,
    OwnServer,
    OwnScript,
    OneRate,
    ManyRate,
    HandOverP50,
    HandOverP99,
    LongestWait,
    Jain,
    MostToLeast,
    Failed,
    /// With so many clients.
    Sent(u32),
    InAll(u32),
    SentPerGrant(u32),
    Grants(u32),
    CrowdFailed(u32),
    /// With so many locks.
    HeldScripts(u32),
    HeldInAll(u32),
    HeldCpu(u32),
    HeldMemory(u32),
    HeldThere(u32),
}

impl Figure {
    /// The row, what it is, and its unit.
    pub(crate) fn about(self) -> (u8, String, &'static str) {
        let text = |text: &str| text.to_owned();
        match self {
            Self::PairP50 => (1, text("lock + release, one task, p50"), "µs"),
            Self::PairP99 => (1, text("the same, p99"), "µs"),
            Self::OwnRate => (2, text("64 tasks on 64 names"), "pairs/s"),
            Self::OwnClient => (2, text("client CPU per pair"), "µs"),
            Self::OwnServer => (2, text("server CPU per pair"), "µs"),
            Self::OwnScript => (2, text("server time per script"), "µs"),
            Self::OneRate => (3, text("64 tasks of one process on one name"), "pairs/s"),
            Self::ManyRate => (4, text("8 processes on one name"), "pairs/s"),
            Self::HandOverP50 => (4, text("hand-over between processes, p50"), "µs"),
            Self::HandOverP99 => (4, text("the same, p99"), "µs"),
            Self::LongestWait => (4, text("longest wait of any"), "ms"),
            Self::Jain => (4, text("fairness: Jain's index, 1 is fair"), ""),
            Self::MostToLeast => (4, text("fairness: most to least grants"), ""),
            Self::Failed => (4, text("calls that gave up or failed"), "1/s"),
            Self::Sent(n) => (5, format!("commands per hand-over, {n} clients"), ""),
            Self::InAll(n) => (5, format!("the same and inside scripts, {n} clients"), ""),
            Self::SentPerGrant(n) => (5, format!("commands per grant, {n} clients"), ""),
            Self::Grants(n) => (5, format!("grants, {n} clients"), "1/s"),
            Self::CrowdFailed(n) => {
                (5, format!("calls that gave up or failed, {n} clients"), "1/s")
            }
            Self::HeldScripts(n) => (6, format!("scripts run, {n} locks held"), "1/s"),
            Self::HeldInAll(n) => (6, format!("commands, also inside scripts, {n} held"), "1/s"),
            Self::HeldCpu(n) => (6, format!("client CPU, {n} held"), "ms/s"),
            Self::HeldMemory(n) => (6, format!("client memory per lock, {n} held"), "bytes"),
            Self::HeldThere(n) => (6, format!("still there after the time, {n} held"), "%"),
        }
    }

    /// Whether a ratio of two contenders says anything.
    pub(crate) fn compares(self) -> bool {
        !matches!(
            self,
            Self::Jain
                | Self::MostToLeast
                | Self::Failed
                | Self::CrowdFailed(_)
                | Self::HeldThere(_)
        )
    }
}

pub(crate) struct Book {
    begun: u64,
    pub(crate) stats: Stats,
    pub(crate) weather: Weather,
    values: BTreeMap<(Figure, usize), Vec<f64>>,
    /// What each contender said it is.
    pub(crate) versions: BTreeMap<usize, String>,
    /// What went wrong, and in which row; row 0: it could not be started.
    pub(crate) faults: BTreeMap<(usize, u8), String>,
    /// Who was still getting faster when it was measured, and in which row.
    pub(crate) cold: BTreeSet<(usize, u8)>,
}

impl Book {
    pub(crate) fn new(stats: Stats, weather: Weather) -> Self {
        let (values, versions, faults, cold) = Default::default();
        Self { begun: clock::now(), stats, weather, values, versions, faults, cold }
    }

    /// Says what is going on.
    pub(crate) fn say(&self, what: &str) {
        let seconds = (clock::now() - self.begun) / 1_000_000_000;
        eprintln!("{seconds:4} s  {what}");
    }

    pub(crate) fn note(&mut self, figure: Figure, one: &Contender, value: f64) {
        self.values.entry((figure, column(one))).or_default().push(value);
    }

    pub(crate) fn fault(&mut self, one: &Contender, row: u8, what: &str) {
        self.say(&format!("{}: {what}", one.name));
        self.faults.entry((column(one), row)).or_insert_with(|| what.to_owned());
    }

    /// How the warm-up for a row ended.
    pub(crate) fn warmed_up(&mut self, one: &Contender, row: u8, warm_up: &WarmUp) {
        if !warm_up.is_warm() {
            self.cold.insert((column(one), row));
        }
    }

    /// Whether it could be started, as far as is known.
    pub(crate) fn runs(&self, one: &Contender) -> bool {
        !self.faults.contains_key(&(column(one), 0))
    }

    /// Every figure that anybody has.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let mut figures: Vec<_> = self.values.keys().map(|(figure, _)| *figure).collect();
        figures.dedup();
        figures.sort_by_key(|figure| figure.about().0);
        figures
    }

    /// The median of the rounds; of waits the longest.
    pub(crate) fn value(&self, figure: Figure, column: usize) -> Option<f64> {
        let mut values = self.values.get(&(figure, column))?.clone();
        values.sort_by(f64::total_cmp);
        let at = if figure == Figure::LongestWait { values.len() - 1 } else { values.len() / 2 };
        values.get(at).copied()
    }

    pub(crate) fn ours(&self, figure: Figure) -> Option<f64> {
        self.value(figure, 0)
    }

    /// The best of the contenders in these roles, and its name.
    pub(crate) fn best(
        &self,
        figure: Figure,
        roles: &[Role],
        highest: bool,
    ) -> Option<(f64, &'static str)> {
        let of = |(column, one): (usize, &'static Contender)| {
            let value = self.value(figure, column)?;
            roles.contains(&one.role).then_some((value, one.name))
        };
        let all = ALL.iter().enumerate().filter_map(of);
        if highest {
            all.max_by(|a, b| a.0.total_cmp(&b.0))
        } else {
            all.min_by(|a, b| a.0.total_cmp(&b.0))
        }
    }
}
