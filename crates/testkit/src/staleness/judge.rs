//! One sweep over the time of each key: acknowledgements and answers go in, reads are held against
//! what went in before they began.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use lockkeeper::clock::Instant;

use super::versions::{Seen, Versions};
use super::{Broken, Kind, Operation, Outcome};

/// What is wrong with one operation. The words are those of [`super`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finding {
    /// Something had been acknowledged before it began, so it could have been stale.
    pub tried: bool,
    /// How many acknowledged versions it missed; more than none is stale.
    pub missed: u64,
    /// For how long it had been stale.
    pub age: Duration,
    /// The session's own write is not in it.
    pub own: bool,
    /// The session had read something newer.
    pub back: bool,
    /// Somebody had read something newer.
    pub inverted: bool,
    /// Nobody wrote it.
    pub dirty: bool,
    /// Nobody had begun to write it.
    pub future: bool,
    /// It is a final read, and the database holds something newer.
    pub stuck: bool,
    /// It is a read of the database, and what had been acknowledged is not there.
    pub lost: bool,
}

impl Finding {
    /// Whether a newer version had been acknowledged before it began.
    pub const fn stale(&self) -> bool {
        self.missed > 0
    }
}

/// What is wrong with each operation, in the order in which they are given.
///
/// # Errors
///
/// When the history contradicts itself.
pub fn judge(history: &[Operation]) -> Result<Vec<Finding>, Broken> {
    let mut keys: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, operation) in history.iter().enumerate() {
        keys.entry(&operation.key).or_default().push(at);
    }
    let mut findings = vec![Finding::default(); history.len()];
    for (key, places) in keys {
        let operations: Vec<_> = places.iter().map(|at| &history[*at]).collect();
        let found = of_key(&operations).map_err(|what| Broken { key: key.to_owned(), what })?;
        for (at, finding) in places.into_iter().zip(found) {
            findings[at] = finding;
        }
    }
    Ok(findings)
}

fn of_key(operations: &[&Operation]) -> Result<Vec<Finding>, String> {
    if let Some(wrong) = operations.iter().find(|operation| operation.res < operation.inv) {
        return Err(format!("{wrong:?} ended before it began"));
    }
    let versions = Versions::of(operations)?;
    let mut findings = vec![Finding::default(); operations.len()];
    let mut sweep = Sweep::new(&versions);
    for (now, event) in events(operations, &versions) {
        match event {
            Event::Begins(at) if operations[at].kind == Kind::Truth => {
                findings[at].lost = sweep.lost(operations[at]);
            }
            Event::Begins(at) => findings[at] = sweep.holds(operations[at], now),
            Event::Acked(rank) => sweep.acked(rank),
            Event::Ends(at) => sweep.ended(operations[at]),
        }
    }
    at_the_end(operations, &versions, &mut findings)?;
    Ok(findings)
}

/// At equal times a begin comes first, because nothing is then proved to have been before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A read begins.
    Begins(usize),
    /// A version is acknowledged.
    Acked(usize),
    /// An operation ends.
    Ends(usize),
}

fn events(operations: &[&Operation], versions: &Versions) -> Vec<(Instant, Event)> {
    let mut events = Vec::new();
    for (at, operation) in operations.iter().enumerate() {
        if operation.outcome == Outcome::Ok {
            if operation.kind.reads() || operation.kind == Kind::Truth {
                events.push((operation.inv, Event::Begins(at)));
            }
            events.push((operation.res, Event::Ends(at)));
        }
    }
    for (rank, version) in versions.list.iter().enumerate() {
        events.push((version.acked, Event::Acked(rank)));
    }
    events.sort_unstable();
    events
}

/// The newest versions a session has to do with.
#[derive(Clone, Copy, Debug, Default)]
struct Session {
    wrote: u64,
    read: u64,
}

#[derive(Debug)]
struct Sweep<'a> {
    versions: &'a Versions,
    acked: Tally,
    newest_read: u64,
    newest_done: u64,
    sessions: HashMap<u64, Session>,
}

impl<'a> Sweep<'a> {
    fn new(versions: &'a Versions) -> Self {
        let acked = Tally::new(versions.list.len());
        Self { versions, acked, newest_read: 0, newest_done: 0, sessions: HashMap::new() }
    }

    /// Whether the database does not hold what had been acknowledged before it was asked.
    fn lost(&self, truth: &Operation) -> bool {
        resolve(truth, self.versions).is_some_and(|number| number < self.newest_done)
    }

    /// Holds a read that begins now against all that was before.
    fn holds(&self, read: &Operation, now: Instant) -> Finding {
        let nothing = Finding { tried: self.acked.all() > 0, ..Finding::default() };
        let Some(number) = resolve(read, self.versions) else { return nothing };
        match self.versions.seen(number, read.res) {
            Seen::Dirty => return Finding { dirty: true, ..nothing },
            Seen::Future => return Finding { future: true, ..nothing },
            Seen::Fine => {}
        }
        let missed = self.acked.from(self.versions.newer(number));
        let overtaken = self.versions.overtaken(number);
        let session = self.sessions.get(&read.session).copied().unwrap_or_default();
        Finding {
            missed,
            age: if missed > 0 { now.since(overtaken) } else { Duration::ZERO },
            own: number < session.wrote,
            back: number < session.read,
            inverted: number < self.newest_read,
            ..nothing
        }
    }

    fn acked(&mut self, rank: usize) {
        self.acked.add(rank);
    }

    /// Takes in what ended. What was absent, dirty or of the future obliges nobody after it.
    fn ended(&mut self, operation: &Operation) {
        let Some(number) = operation.version else { return };
        let session = self.sessions.entry(operation.session).or_default();
        if operation.kind.writes() {
            session.wrote = session.wrote.max(number);
            self.newest_done = self.newest_done.max(number);
        } else if operation.kind.reads() && self.versions.seen(number, operation.res) == Seen::Fine
        {
            session.read = session.read.max(number);
            self.newest_read = self.newest_read.max(number);
        }
    }
}

/// The version that an answer stands for, if that can be said.
fn resolve(answer: &Operation, versions: &Versions) -> Option<u64> {
    answer.version.or_else(|| versions.absent(answer.res))
}

/// Holds the final reads against the database.
fn at_the_end(
    operations: &[&Operation],
    versions: &Versions,
    findings: &mut [Finding],
) -> Result<(), String> {
    let ended = |kind: Kind| {
        let operations = operations.iter().enumerate();
        let ended =
            operations.filter(move |(_, read)| read.kind == kind && read.outcome == Outcome::Ok);
        ended.filter_map(move |(at, read)| Some((at, read.res, resolve(read, versions)?)))
    };
    let mut truth: Option<u64> = None;
    for (_, res, number) in ended(Kind::Truth) {
        if versions.seen(number, res) != Seen::Fine {
            return Err(format!("the database holds version {number}, which nobody wrote"));
        }
        truth = truth.max(Some(number));
    }
    // Where nobody asked the database, it holds at least what is known to have happened.
    let truth = truth.unwrap_or_else(|| versions.newest());
    for (at, res, number) in ended(Kind::Final) {
        findings[at].stuck = number < truth && versions.seen(number, res) == Seen::Fine;
    }
    Ok(())
}

/// Counts what was added from a place on, in logarithmic time (a Fenwick tree).
#[derive(Debug)]
struct Tally {
    sums: Vec<u64>,
    all: u64,
}

impl Tally {
    fn new(places: usize) -> Self {
        Self { sums: vec![0; places + 1], all: 0 }
    }

    const fn all(&self) -> u64 {
        self.all
    }

    fn add(&mut self, place: usize) {
        self.all += 1;
        let mut at = place + 1;
        while at < self.sums.len() {
            self.sums[at] += 1;
            at += at & at.wrapping_neg();
        }
    }

    /// How many were added at this place and after it.
    fn from(&self, place: usize) -> u64 {
        let (mut at, mut before) = (place, 0);
        while at > 0 {
            before += self.sums[at];
            at -= at & at.wrapping_neg();
        }
        self.all - before
    }
}
