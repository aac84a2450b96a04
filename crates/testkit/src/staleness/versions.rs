//! The versions of one key: when each was begun, and from when on it counts as acknowledged.

use std::collections::BTreeMap;

use lockkeeper::clock::Instant;

use super::{Kind, Operation, Outcome};

/// One version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    pub(super) number: u64,
    /// A read that ended before this cannot have seen it.
    begun: Instant,
    /// `NEVER` if nobody knows that it happened.
    pub(super) acked: Instant,
    /// The writer itself was told.
    sure: bool,
}

/// What a read returned, seen from the order of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Fine,
    Dirty,
    Future,
}

/// All versions of one key, oldest first.
#[derive(Debug, Default)]
pub(super) struct Versions {
    pub(super) list: Vec<Version>,
    /// For each version, the soonest acknowledgement among it and all newer ones.
    soonest: Vec<Instant>,
    /// When deletes began, and the newest version among them until then.
    deletes: Vec<(Instant, u64)>,
    /// When the first delete began whose version nobody knows.
    vague_delete: Option<Instant>,
}

impl Versions {
    pub(super) fn of(operations: &[&Operation]) -> Result<Self, String> {
        let mut all = known(operations)?;
        in_order_of_time(&all)?;
        let first = first_seen(operations, &all);
        for (number, version) in &mut all {
            if let Some(seen) = first.get(number).filter(|_| !version.sure) {
                version.acked = version.acked.max(*seen);
            } else if !version.sure {
                version.acked = Instant::NEVER;
            }
        }
        for version in explained(operations, &all, &first) {
            all.insert(version.number, version);
        }
        let mut versions = Self { list: all.into_values().collect(), ..Self::default() };
        versions.soonest = soonest(versions.list.iter().map(|version| version.acked));
        versions.note_deletes(operations);
        Ok(versions)
    }

    fn note_deletes(&mut self, operations: &[&Operation]) {
        for delete in possible(operations).filter(|delete| delete.kind == Kind::Delete) {
            match delete.version {
                Some(version) => self.deletes.push((delete.inv, version)),
                None => {
                    let first = self.vague_delete.unwrap_or(Instant::NEVER);
                    self.vague_delete = Some(first.min(delete.inv));
                }
            }
        }
        self.deletes.sort_unstable();
        let mut newest = 0;
        for (_, version) in &mut self.deletes {
            newest = newest.max(*version);
            *version = newest;
        }
    }

    /// What a read that ended at `res` may be said to have seen.
    pub(super) fn seen(&self, number: u64, res: Instant) -> Seen {
        match self.list.binary_search_by_key(&number, |version| version.number) {
            _ if number == 0 => Seen::Fine,
            Err(_) => Seen::Dirty,
            Ok(rank) if self.list[rank].begun > res => Seen::Future,
            Ok(_) => Seen::Fine,
        }
    }

    /// The newest version as which a read that ended at `res` may have found the key absent: the
    /// reader is given the benefit of the doubt. `None` if it cannot be said.
    pub(super) fn absent(&self, res: Instant) -> Option<u64> {
        if self.vague_delete.is_some_and(|begun| begun <= res) {
            return None;
        }
        let until = self.deletes.partition_point(|(begun, _)| *begun <= res);
        Some(until.checked_sub(1).map_or(0, |last| self.deletes[last].1))
    }

    /// The place of the first version that is newer.
    pub(super) fn newer(&self, number: u64) -> usize {
        self.list.partition_point(|version| version.number <= number)
    }

    /// When a version newer than that was first acknowledged.
    pub(super) fn overtaken(&self, number: u64) -> Instant {
        self.soonest.get(self.newer(number)).copied().unwrap_or(Instant::NEVER)
    }

    /// The newest version that is known to have happened.
    pub(super) fn newest(&self) -> u64 {
        let happened = self.list.iter().rev().find(|version| version.acked < Instant::NEVER);
        happened.map_or(0, |version| version.number)
    }
}

/// Writes that may have happened.
fn possible<'a>(operations: &'a [&Operation]) -> impl Iterator<Item = &'a Operation> {
    let operations = operations.iter().copied();
    operations.filter(|write| write.kind.writes() && write.outcome != Outcome::Fail)
}

/// Answers of the cache and of the database that name a version.
fn answers(operations: &[&Operation]) -> impl Iterator<Item = (u64, Instant)> {
    let reads = operations.iter().filter(|read| {
        (read.kind.reads() || read.kind == Kind::Truth) && read.outcome == Outcome::Ok
    });
    reads.filter_map(|read| Some((read.version?, read.res)))
}

/// The versions that writers know of.
fn known(operations: &[&Operation]) -> Result<BTreeMap<u64, Version>, String> {
    let mut all = BTreeMap::new();
    for write in possible(operations) {
        let sure = write.outcome == Outcome::Ok;
        match write.version {
            None if sure => return Err("a write that was done has no version".to_owned()),
            Some(0) => return Err("version 0 was written; it is what was there before".to_owned()),
            None => {}
            Some(number) => {
                let version = Version { number, begun: write.inv, acked: write.res, sure };
                if all.insert(number, version).is_some() {
                    return Err(format!("version {number} was written twice"));
                }
            }
        }
    }
    Ok(all)
}

/// A write that began after another was done has the newer version, or there is no order.
fn in_order_of_time(all: &BTreeMap<u64, Version>) -> Result<(), String> {
    let mut last: Option<&Version> = None;
    for version in all.values() {
        if let Some(older) = last.filter(|older| version.sure && version.acked < older.begun) {
            let (older, newer) = (older.number, version.number);
            return Err(format!("version {older} was begun after {newer} was done"));
        }
        if last.is_none_or(|last| last.begun < version.begun) {
            last = Some(version);
        }
    }
    Ok(())
}

/// When each version was first returned by a read, not counting those that came too early.
fn first_seen(operations: &[&Operation], all: &BTreeMap<u64, Version>) -> BTreeMap<u64, Instant> {
    let mut first = BTreeMap::new();
    for (number, res) in answers(operations) {
        if all.get(&number).is_none_or(|version| version.begun <= res) {
            let seen = first.entry(number).or_insert(res);
            *seen = res.min(*seen);
        }
    }
    first
}

/// Versions that were read and that only a write that does not know its version can have written.
///
/// Such a write began before the version was first read, and before anything newer was surely done.
/// Both only say how late it may have begun, so those with the least choice choose first.
fn explained(
    operations: &[&Operation],
    all: &BTreeMap<u64, Version>,
    first: &BTreeMap<u64, Instant>,
) -> Vec<Version> {
    let vague = possible(operations).filter(|write| write.version.is_none());
    let mut vague: Vec<_> = vague.map(|write| (write.inv, write.res)).collect();
    vague.sort_unstable();
    let sure: Vec<_> = all.values().filter(|version| version.sure).collect();
    let done = soonest(sure.iter().map(|version| version.acked));
    let orphans = first.iter().filter(|(number, _)| **number > 0 && !all.contains_key(*number));
    let mut orphans: Vec<_> = orphans
        .map(|(number, seen)| {
            let newer = sure.partition_point(|version| version.number < *number);
            let latest = done.get(newer).copied().unwrap_or(Instant::NEVER).min(*seen);
            (latest, *number, *seen)
        })
        .collect();
    orphans.sort_unstable();
    let mut explained = Vec::new();
    let (mut begun, mut ended) = (0, Instant::from_nanos(0));
    for (latest, number, seen) in orphans {
        while let Some((_, res)) = vague.get(begun).filter(|(inv, _)| *inv <= latest) {
            ended = ended.max(*res);
            begun += 1;
        }
        if explained.len() < begun {
            // Any of them may be the one, so it counts as done when all of them have ended.
            let acked = seen.max(ended);
            explained.push(Version { number, begun: seen, acked, sure: false });
        }
    }
    explained
}

/// For each time, the soonest among it and all that follow.
fn soonest(times: impl DoubleEndedIterator<Item = Instant>) -> Vec<Instant> {
    let mut soonest = Instant::NEVER;
    let backwards = times.rev().map(|time| {
        soonest = soonest.min(time);
        soonest
    });
    let mut all: Vec<_> = backwards.collect();
    all.reverse();
    all
}
