//! What was measured: for each figure and contender the values of all rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::clock;
use super::contender::{Contender, Role};
use super::figure::Figure;
use super::server::Server;
use super::warm_up::WarmUp;
use super::weather::Weather;

/// A ratio, and to what.
pub(crate) type Ratio = Option<(f64, String)>;

pub(crate) struct Book {
    begun: u64,
    /// Everybody, in the order of the columns; Lockkeeper first.
    pub(crate) contenders: &'static [Contender],
    pub(crate) server: Arc<dyn Server>,
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
    pub(crate) fn new(
        contenders: &'static [Contender],
        server: Arc<dyn Server>,
        weather: Weather,
    ) -> Self {
        let (values, versions, faults, cold) = Default::default();
        let begun = clock::now();
        Self { begun, contenders, server, weather, values, versions, faults, cold }
    }

    /// Says what is going on.
    pub(crate) fn say(&self, what: &str) {
        let seconds = (clock::now() - self.begun) / 1_000_000_000;
        eprintln!("{seconds:4} s  {what}");
    }

    /// The place of a contender in the table.
    fn column(&self, id: &str) -> usize {
        self.contenders.iter().position(|other| other.id == id).unwrap()
    }

    pub(crate) fn note(&mut self, figure: Figure, one: &Contender, value: f64) {
        let column = self.column(one.id);
        self.values.entry((figure, column)).or_default().push(value);
    }

    /// What a contender said it is.
    pub(crate) fn is(&mut self, one: &Contender, version: &str) {
        self.versions.insert(self.column(one.id), version.to_owned());
    }

    pub(crate) fn fault(&mut self, one: &Contender, row: u8, what: &str) {
        self.say(&format!("{}: {what}", one.name));
        let column = self.column(one.id);
        self.faults.entry((column, row)).or_insert_with(|| what.to_owned());
    }

    /// How the warm-up for a row ended.
    pub(crate) fn warmed_up(&mut self, one: &Contender, row: u8, warm_up: &WarmUp) {
        if !warm_up.is_warm() {
            self.cold.insert((self.column(one.id), row));
        }
    }

    /// Whether it could be started, as far as is known.
    pub(crate) fn runs(&self, one: &Contender) -> bool {
        !self.faults.contains_key(&(self.column(one.id), 0))
    }

    /// Every figure that anybody has.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let mut figures: Vec<_> = self.values.keys().map(|(figure, _)| *figure).collect();
        figures.dedup();
        figures
    }

    /// The median of the rounds, or the largest.
    pub(crate) fn value(&self, figure: Figure, column: usize) -> Option<f64> {
        let mut values = self.values.get(&(figure, column))?.clone();
        values.sort_by(f64::total_cmp);
        let at = if figure.is_largest { values.len() - 1 } else { values.len() / 2 };
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
        let all = self.contenders.iter().enumerate().filter_map(of);
        if highest {
            all.max_by(|a, b| a.0.total_cmp(&b.0))
        } else {
            all.min_by(|a, b| a.0.total_cmp(&b.0))
        }
    }

    /// Ours to the best of the contenders in these roles.
    pub(crate) fn to_best(&self, figure: Figure, roles: &[Role], highest: bool) -> Ratio {
        let ((theirs, name), ours) = self.best(figure, roles, highest).zip(self.ours(figure))?;
        Some((ours / theirs, format!("× {name}")))
    }

    /// Ours to one contender.
    pub(crate) fn to(&self, figure: Figure, id: &str) -> Ratio {
        let column = self.column(id);
        let (theirs, ours) = self.value(figure, column).zip(self.ours(figure))?;
        Some((ours / theirs, format!("× {}", self.contenders[column].name)))
    }
}
