//! The counts of a run, and the table of many.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use lockkeeper::clock::Instant;

use super::judge::Finding;
use super::{Kind, Operation, Outcome, Source};

/// So many examples of each fault are kept.
const EXAMPLES: usize = 3;

/// The ends of the classes of [`Report::ages`] but the last, which has no end.
pub const AGES: [Duration; 5] = [
    Duration::from_millis(1),
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(10),
];

/// What was counted. The words are those of [`super`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Answers of the cache.
    pub reads: u64,
    /// Where they came from, as far as it was written down.
    pub from: BTreeMap<Source, u64>,
    /// Reads without an answer.
    pub refused: u64,
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Writes that certainly were not done.
    pub failed: u64,
    /// Writes of which nobody knows.
    pub unknown: u64,
    /// Reads that began after something had been acknowledged: only they can be stale. A run with few
    /// of them proves little.
    pub tried: u64,
    /// Reads that missed an acknowledged write: the headline.
    pub stale: u64,
    /// Stale reads that found nothing where there was something.
    pub absent: u64,
    /// Where the stale reads came from, as far as it was written down.
    pub stale_from: BTreeMap<Source, u64>,
    /// The most acknowledged versions that one read missed.
    pub missed: u64,
    /// The age that one stale read in a hundred exceeds.
    pub age_p99: Duration,
    /// The greatest age.
    pub age: Duration,
    /// How many stale reads were younger than each of [`AGES`], and how many older than all.
    pub ages: [u64; AGES.len() + 1],
    /// Reads without the session's own write.
    pub own: u64,
    /// Reads that went back behind what the session had read.
    pub back: u64,
    /// Reads that went back behind what anybody had read.
    pub inverted: u64,
    /// Reads of what nobody wrote.
    pub dirty: u64,
    /// Reads of what was not yet written.
    pub future: u64,
    /// Final reads.
    pub finals: u64,
    /// Final reads that were behind the database.
    pub stuck: u64,
    /// Reads of the database that were behind an acknowledged write.
    pub lost: u64,
    /// Calls of the loader.
    pub loads: u64,
    /// The most calls of the loader at once for one key.
    pub loads_at_once: u64,
    /// The first few of each fault, in words.
    pub examples: Vec<String>,
}

impl Report {
    pub(super) fn of(history: &[Operation], findings: &[Finding]) -> Self {
        let mut report = Self::default();
        let mut ages = Vec::new();
        let mut order: Vec<_> = history.iter().zip(findings).collect();
        order.sort_by_key(|(operation, _)| operation.inv);
        for (operation, finding) in order {
            match (operation.kind, operation.outcome) {
                (Kind::Write | Kind::Delete, Outcome::Ok) => report.writes += 1,
                (Kind::Write | Kind::Delete, Outcome::Fail) => report.failed += 1,
                (Kind::Write | Kind::Delete, Outcome::Unknown) => report.unknown += 1,
                (Kind::Load, _) => report.loads += 1,
                (Kind::Truth, _) => report.faults(operation, finding),
                (Kind::Read | Kind::Final, Outcome::Fail | Outcome::Unknown) => report.refused += 1,
                (Kind::Read | Kind::Final, Outcome::Ok) => {
                    report.reads += 1;
                    if let Some(source) = operation.source {
                        *report.from.entry(source).or_default() += 1;
                    }
                    report.finals += u64::from(operation.kind == Kind::Final);
                    report.tried += u64::from(finding.tried);
                    report.faults(operation, finding);
                    if finding.stale() {
                        ages.push(finding.age);
                    }
                }
            }
        }
        ages.sort_unstable();
        report.age = ages.last().copied().unwrap_or_default();
        // The smallest age that at least 99 of 100 do not exceed.
        report.age_p99 = ages
            .get((ages.len() * 99).div_ceil(100).saturating_sub(1))
            .copied()
            .unwrap_or_default();
        report.loads_at_once = at_once(history);
        report
    }

    fn faults(&mut self, operation: &Operation, finding: &Finding) {
        if finding.stale() {
            self.absent += u64::from(operation.version.is_none());
            self.missed = self.missed.max(finding.missed);
            let class = AGES.iter().position(|end| finding.age < *end).unwrap_or(AGES.len());
            self.ages[class] += 1;
            if let Some(source) = operation.source {
                *self.stale_from.entry(source).or_default() += 1;
            }
        }
        let faults = [
            (finding.stale(), &mut self.stale, "stale"),
            (finding.own, &mut self.own, "without its own write"),
            (finding.back, &mut self.back, "back behind itself"),
            (finding.inverted, &mut self.inverted, "back behind another"),
            (finding.dirty, &mut self.dirty, "dirty"),
            (finding.future, &mut self.future, "of the future"),
            (finding.stuck, &mut self.stuck, "stuck"),
            (finding.lost, &mut self.lost, "lost by the database"),
        ];
        for (found, count, what) in faults {
            if found {
                *count += 1;
                if *count <= EXAMPLES as u64 {
                    self.examples.push(example(operation, finding, what));
                }
            }
        }
    }

    /// Answers of the cache in the process.
    pub fn near(&self) -> u64 {
        self.from.get(&Source::L1).copied().unwrap_or(0)
    }

    /// Whether every key behaved as if there were no cache.
    pub const fn is_linearizable(&self) -> bool {
        self.stale + self.inverted + self.dirty + self.future == 0
    }

    /// Whether nothing at all is wrong, and there was something that could have been.
    pub const fn is_clean(&self) -> bool {
        self.tried > 0
            && self.is_linearizable()
            && self.own + self.back + self.stuck + self.lost == 0
    }
}

fn example(operation: &Operation, finding: &Finding, what: &str) -> String {
    let Operation { process, session, key, kind, version, source, inv, res, .. } = operation;
    let version = version.map_or("nothing".to_owned(), |version| format!("version {version}"));
    let mut text =
        format!("{what}: {kind:?} of {key:?} by session {session} of process {process} ");
    let _ = write!(text, "from {} to {} returned {version}", inv.as_nanos(), res.as_nanos());
    if let Some(source) = source {
        let _ = write!(text, " from {source:?}");
    }
    if finding.stale() {
        let _ = write!(text, ", {} behind for {:?}", finding.missed, finding.age);
    }
    text
}

/// The most loads of one key at the same time. One that ends when another begins is not with it.
fn at_once(history: &[Operation]) -> u64 {
    let mut keys: BTreeMap<&str, Vec<(Instant, bool)>> = BTreeMap::new();
    for load in history.iter().filter(|load| load.kind == Kind::Load) {
        keys.entry(&load.key).or_default().extend([(load.inv, true), (load.res, false)]);
    }
    let mut most = 0;
    for mut times in keys.into_values() {
        times.sort_unstable();
        let mut now: u64 = 0;
        for (_, begins) in times {
            now = if begins { now + 1 } else { now.saturating_sub(1) };
            most = most.max(now);
        }
    }
    most
}

/// One line of a table.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured.
    pub strategy: String,
    /// What was done to it meanwhile.
    pub fault: String,
    /// What came out.
    pub report: Report,
}

/// A Markdown table of many runs, for `docs/CACHE-CONSISTENCY.md`.
pub fn table(rows: &[Row]) -> String {
    let heads = [
        "strategy",
        "fault",
        "reads",
        "near",
        "writes",
        "unknown",
        "stale",
        "age max",
        "own write",
        "inverted",
        "dirty",
        "stuck",
        "lost",
        "loads",
    ];
    let mut text = format!("| {} |\n|{}\n", heads.join(" | "), " --- |".repeat(heads.len()));
    for Row { strategy, fault, report } in rows {
        let counts = [
            strategy.clone(),
            fault.clone(),
            report.reads.to_string(),
            report.near().to_string(),
            report.writes.to_string(),
            report.unknown.to_string(),
            report.stale.to_string(),
            millis(report.age),
            report.own.to_string(),
            report.inverted.to_string(),
            (report.dirty + report.future).to_string(),
            format!("{} of {}", report.stuck, report.finals),
            report.lost.to_string(),
            report.loads.to_string(),
        ];
        let _ = writeln!(text, "| {} |", counts.join(" | "));
    }
    text
}

fn millis(time: Duration) -> String {
    if time.is_zero() { "–".to_owned() } else { format!("{} ms", time.as_millis().max(1)) }
}

/// Puts a table into a document, between the lines `<!-- table NAME -->` and `<!-- end -->`; `None`
/// if the document has no such place.
pub fn splice(document: &str, name: &str, table: &str) -> Option<String> {
    let begin = format!("<!-- table {name} -->\n");
    let from = document.find(&begin)? + begin.len();
    let to = from + document[from..].find("<!-- end -->")?;
    Some(format!("{}{table}{}", &document[..from], &document[to..]))
}
