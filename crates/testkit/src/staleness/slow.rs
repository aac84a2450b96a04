//! The definitions again, word by word and without any thought of speed, to hold the sweep against;
//! and bent in one place each, to see that the comparison would notice.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper::clock::Instant;

use super::{Finding, Kind, Operation, Outcome};

/// One thing that a checker may get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bend {
    None,
    /// A write counts from its begin on.
    AckedAtBegin,
    /// A write of unknown outcome counts as done.
    UnknownIsDone,
    /// A write of unknown outcome never counts, though it was read.
    NeverPromoted,
    /// It counts when it was read, though its writer had not returned.
    PromotedEarly,
    /// A write that failed counts as one that may have happened.
    FailedIsPossible,
    /// Of two equal times one is before the other.
    TiesProve,
    /// All sessions are one.
    OneSession,
    /// All keys are one.
    OneKey,
    /// What is absent was never there.
    AbsentIsFirst,
    /// A dirty read obliges those after it.
    DirtyObliges,
    /// A write without a version explains any number of versions.
    OneExplainsAll,
    /// A write without a version explains nothing.
    NothingExplained,
    /// The age counts from the newest version instead of the first that was missed.
    AgeOfNewest,
    /// A final read is held against the acknowledgements only.
    NoTruth,
}

pub(super) const BENDS: [Bend; 14] = [
    Bend::AckedAtBegin,
    Bend::UnknownIsDone,
    Bend::NeverPromoted,
    Bend::PromotedEarly,
    Bend::FailedIsPossible,
    Bend::TiesProve,
    Bend::OneSession,
    Bend::OneKey,
    Bend::AbsentIsFirst,
    Bend::DirtyObliges,
    Bend::OneExplainsAll,
    Bend::NothingExplained,
    Bend::AgeOfNewest,
    Bend::NoTruth,
];

struct Version {
    number: u64,
    begun: Instant,
    acked: Instant,
}

struct Slow<'a> {
    all: Vec<&'a Operation>,
    bend: Bend,
}

/// `None` where the history contradicts itself.
pub(super) fn judge(history: &[Operation], bend: Bend) -> Option<Vec<Finding>> {
    let of = |operation: &Operation| {
        let same = |other: &&Operation| bend == Bend::OneKey || other.key == operation.key;
        Slow { all: history.iter().filter(same).collect(), bend }.judge(operation)
    };
    history.iter().map(of).collect()
}

impl Slow<'_> {
    fn before(&self, a: Instant, b: Instant) -> bool {
        a < b || (self.bend == Bend::TiesProve && a == b)
    }

    fn possible(&self) -> impl Iterator<Item = &Operation> {
        let possible = move |write: &&Operation| {
            let may = write.outcome != Outcome::Fail || self.bend == Bend::FailedIsPossible;
            write.kind.writes() && may
        };
        self.all.iter().copied().filter(possible)
    }

    fn done(&self) -> impl Iterator<Item = &Operation> {
        self.possible().filter(|write| write.outcome == Outcome::Ok)
    }

    /// Reads of that version, of the cache or the database.
    fn reads_of(&self, number: u64) -> impl Iterator<Item = &Operation> {
        let named = move |read: &&Operation| {
            let kind = [Kind::Read, Kind::Final, Kind::Truth].contains(&read.kind);
            kind && read.outcome == Outcome::Ok && read.version == Some(number)
        };
        self.all.iter().copied().filter(named)
    }

    fn contradicts_itself(&self) -> bool {
        let numbers: Vec<_> = self.possible().filter_map(|write| write.version).collect();
        let distinct: BTreeSet<_> = numbers.iter().collect();
        let unordered = self.done().any(|first| {
            let later = |write: &Operation| first.res < write.inv && write.version.is_some();
            self.possible().any(|write| later(write) && write.version < first.version)
        });
        self.all.iter().any(|operation| operation.res < operation.inv)
            || distinct.len() < numbers.len()
            || distinct.contains(&0)
            || self.done().any(|write| write.version.is_none())
            || unordered
    }

    fn versions(&self) -> Vec<Version> {
        let named = |write: &Operation| {
            let (number, begun) = (write.version?, write.inv);
            let seen = self.reads_of(number).map(|read| read.res).filter(|res| *res >= begun).min();
            let acked = match (write.outcome, self.bend) {
                (Outcome::Ok, Bend::AckedAtBegin) => write.inv,
                (Outcome::Ok, _) | (Outcome::Unknown, Bend::UnknownIsDone) => write.res,
                (_, Bend::NeverPromoted) => Instant::NEVER,
                (_, Bend::PromotedEarly) => seen.unwrap_or(Instant::NEVER),
                _ => seen.map_or(Instant::NEVER, |seen| seen.max(write.res)),
            };
            Some(Version { number, begun, acked })
        };
        let mut versions: Vec<_> = self.possible().filter_map(named).collect();
        let explained = self.explained();
        versions.extend(explained);
        versions
    }

    /// How late a write may have begun to be the one of this version, which has no known writer.
    fn latest(&self, number: u64) -> (Instant, Instant) {
        let seen = self.reads_of(number).map(|read| read.res).min().unwrap_or(Instant::NEVER);
        let newer = self.done().filter(|write| write.version > Some(number));
        (newer.map(|write| write.res).min().unwrap_or(Instant::NEVER).min(seen), seen)
    }

    /// Gives versions of unknown writers to writes of unknown version, by the textbook's augmenting
    /// paths.
    fn explained(&self) -> Vec<Version> {
        let vague: Vec<_> = self.possible().filter(|write| write.version.is_none()).collect();
        let mut orphans: Vec<u64> = Vec::new();
        for number in self.all.iter().filter_map(|read| read.version) {
            let written = self.possible().any(|write| write.version == Some(number));
            let read = self.reads_of(number).next().is_some();
            if number > 0 && read && !written && !orphans.contains(&number) {
                orphans.push(number);
            }
        }
        orphans.sort_by_key(|number| (self.latest(*number).0, *number));
        let fits = |number: u64, write: usize| vague[write].inv <= self.latest(number).0;
        let mut owner: Vec<Option<u64>> = vec![None; vague.len()];
        let mut explained = Vec::new();
        for number in orphans {
            let any = (0..vague.len()).any(|write| fits(number, write));
            let found = match self.bend {
                Bend::OneExplainsAll => any,
                Bend::NothingExplained => false,
                _ => augment(number, &fits, &mut owner, &mut BTreeSet::new()),
            };
            if found {
                let seen = self.latest(number).1;
                let fitting = (0..vague.len()).filter(|write| fits(number, *write));
                let ended = fitting.map(|write| vague[write].res).max().unwrap_or(seen);
                let acked = match self.bend {
                    Bend::NeverPromoted => Instant::NEVER,
                    Bend::PromotedEarly => seen,
                    _ => ended.max(seen),
                };
                explained.push(Version { number, begun: seen, acked });
            }
        }
        explained
    }

    /// The version an answer stands for.
    fn resolve(&self, read: &Operation) -> Option<u64> {
        let deletes = self.possible().filter(|delete| delete.kind == Kind::Delete);
        let deletes: Vec<_> = deletes.filter(|delete| delete.inv <= read.res).collect();
        match read.version {
            None if self.bend == Bend::AbsentIsFirst => Some(0),
            None if deletes.iter().any(|delete| delete.version.is_none()) => None,
            None => Some(deletes.iter().filter_map(|delete| delete.version).max().unwrap_or(0)),
            number => number,
        }
    }

    fn judge(&self, read: &Operation) -> Option<Finding> {
        let versions = self.versions();
        let dirty = |number: u64| number > 0 && !versions.iter().any(|v| v.number == number);
        let future = |number: u64, res: Instant| {
            versions.iter().any(|v| v.number == number && v.begun > res)
        };
        let fine = |number: u64, res: Instant| !dirty(number) && !future(number, res);
        let ok = |kind: Kind| {
            let all = self.all.iter().copied();
            all.filter(move |read| read.kind == kind && read.outcome == Outcome::Ok)
        };
        let held: Vec<_> =
            ok(Kind::Truth).filter_map(|truth| Some((self.resolve(truth)?, truth.res))).collect();
        if self.contradicts_itself() || held.iter().any(|(number, res)| !fine(*number, *res)) {
            return None;
        }
        let mut finding = Finding::default();
        let answers = read.kind.reads() || read.kind == Kind::Truth;
        if !answers || read.outcome != Outcome::Ok {
            return Some(finding);
        }
        let acked: Vec<_> = versions.iter().filter(|v| self.before(v.acked, read.inv)).collect();
        finding.tried = read.kind.reads() && !acked.is_empty();
        let Some(number) = self.resolve(read) else { return Some(finding) };
        if read.kind == Kind::Truth {
            finding.lost = self
                .done()
                .any(|write| self.before(write.res, read.inv) && write.version > Some(number));
            return Some(finding);
        }
        finding.dirty = dirty(number);
        finding.future = future(number, read.res);
        if finding.dirty || finding.future {
            return Some(finding);
        }
        let missed: Vec<_> = acked.iter().filter(|v| v.number > number).collect();
        finding.missed = missed.len() as u64;
        let since = match self.bend {
            Bend::AgeOfNewest => missed.iter().max_by_key(|v| v.number).map(|v| v.acked),
            _ => missed.iter().map(|v| v.acked).min(),
        };
        finding.age = since.map_or(Duration::ZERO, |since| read.inv.since(since));
        let mine =
            |other: &&Operation| self.bend == Bend::OneSession || other.session == read.session;
        finding.own = self
            .done()
            .filter(mine)
            .any(|write| self.before(write.res, read.inv) && write.version > Some(number));
        let newer = |other: &&Operation| {
            let counts = other.version.is_some_and(|number| {
                fine(number, other.res) || (self.bend == Bend::DirtyObliges && dirty(number))
            });
            counts && other.version > Some(number) && self.before(other.res, read.inv)
        };
        let reads = || ok(Kind::Read).chain(ok(Kind::Final));
        finding.back = reads().filter(mine).any(|other| newer(&other));
        finding.inverted = reads().any(|other| newer(&other));
        let truth = held.iter().map(|(number, _)| *number).max();
        let truth = truth.filter(|_| self.bend != Bend::NoTruth).or_else(|| {
            let happened = versions.iter().filter(|v| v.acked < Instant::NEVER);
            happened.map(|v| v.number).max()
        });
        finding.stuck = read.kind == Kind::Final && Some(number) < truth;
        Some(finding)
    }
}

/// Finds a write for this version, if need be by finding another one for the version that has it.
fn augment(
    number: u64,
    fits: &dyn Fn(u64, usize) -> bool,
    owner: &mut [Option<u64>],
    tried: &mut BTreeSet<usize>,
) -> bool {
    for write in 0..owner.len() {
        if fits(number, write) && tried.insert(write) {
            let free = match owner[write] {
                None => true,
                Some(other) => augment(other, fits, owner, tried),
            };
            if free {
                owner[write] = Some(number);
                return true;
            }
        }
    }
    false
}
