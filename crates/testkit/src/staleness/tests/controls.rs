//! Histories of a store without a cache, in which nothing is wrong; and the same with one answer
//! bent, which must be found, and found there.

use super::*;
use crate::random::Random;
use crate::staleness::{Finding, check, judge};

const SEEDS: u64 = 200;

/// What sessions see of a store that does each thing at one moment between its begin and its end;
/// and at the end every key once through "the cache" and once from the database.
fn without_a_cache(random: &mut Random) -> Vec<Operation> {
    let mut now = [0_u64; 4];
    let mut moments = Vec::new();
    for _ in 0..60 {
        let session = usize::try_from(random.below(4)).unwrap();
        let inv = now[session] + 1 + random.below(20);
        let moment = inv + random.below(20);
        let res = moment + random.below(20);
        now[session] = res;
        let kind = if random.below(3) == 0 { Kind::Write } else { Kind::Read };
        let key = ["a", "b"][usize::from(random.below(4) == 0)];
        let mut done = on(key, did(kind, session as u64, (inv, res), None));
        if kind == Kind::Write && random.below(6) == 0 {
            done.outcome = [Outcome::Fail, Outcome::Unknown][usize::from(random.below(2) == 0)];
        }
        moments.push((moment, done));
    }
    let end = now.iter().max().unwrap() + 1;
    for key in ["a", "b"] {
        for kind in [Kind::Final, Kind::Truth] {
            moments.push((end, on(key, did(kind, 9, (end, end + 1), None))));
        }
    }
    moments.sort_by_key(|(moment, _)| *moment);
    let mut held = std::collections::HashMap::new();
    let mut history = Vec::new();
    for (_, mut done) in moments {
        let held = held.entry(done.key.clone()).or_insert(0);
        // Half of the unknown writes happen, and few of them know their version.
        let happens = match done.outcome {
            Outcome::Ok => true,
            Outcome::Fail => false,
            Outcome::Unknown => random.below(2) == 0,
        };
        *held += u64::from(done.kind.writes() && happens);
        let told = done.outcome == Outcome::Ok || (happens && random.below(4) == 0);
        done.version = told.then_some(*held);
        history.push(done);
    }
    history
}

#[test]
fn nothing_is_wrong_without_a_cache() {
    let mut random = Random::seeded();
    for _ in 0..SEEDS {
        let history = without_a_cache(&mut random);
        let report = check(&history).unwrap();
        assert!(report.is_clean(), "{:#?}", report.examples);
    }
}

/// Bends one operation of each of many good histories, chosen among those where `bend` says how, and
/// requires that it is found right there.
fn is_found(
    what: &str,
    bend: impl Fn(&[Operation], &Operation) -> Option<u64>,
    fault: fn(&Finding) -> bool,
) {
    let mut random = Random::seeded();
    let mut bent = 0;
    for _ in 0..SEEDS {
        let mut history = without_a_cache(&mut random);
        let places = (0..history.len()).filter_map(|at| Some((at, bend(&history, &history[at])?)));
        let places: Vec<_> = places.collect();
        if places.is_empty() {
            continue;
        }
        let chosen = usize::try_from(random.below(places.len() as u64)).unwrap();
        let (at, version) = places[chosen];
        assert!(!fault(&judge(&history).unwrap()[at]));
        history[at].version = Some(version);
        assert!(fault(&judge(&history).unwrap()[at]), "{what} is not seen at {at} of {history:#?}");
        bent += 1;
    }
    assert!(bent > SEEDS / 4, "{what}: only {bent} histories could be bent");
}

fn done_before<'a>(
    all: &'a [Operation],
    read: &'a Operation,
) -> impl Iterator<Item = &'a Operation> {
    let same = all.iter().filter(|other| other.key == read.key && other.outcome == Outcome::Ok);
    same.filter(|other| other.res < read.inv)
}

#[test]
fn one_stale_read_among_many_is_found() {
    let older = |all: &[Operation], read: &Operation| {
        let writes = done_before(all, read).filter(|write| write.kind == Kind::Write);
        let newest = writes.filter_map(|write| write.version).max()?;
        read.kind.reads().then_some(newest - 1)
    };
    // What is just below may be a version that nobody is known to have written: then it is dirty.
    is_found("a stale read", older, |found| found.stale() || found.dirty);
    let oldest = |all: &[Operation], read: &Operation| older(all, read).map(|_| 0);
    is_found("the oldest read", oldest, Finding::stale);
}

#[test]
fn one_read_behind_the_own_write_is_found() {
    let behind = |all: &[Operation], read: &Operation| {
        let mut own = done_before(all, read)
            .filter(|write| write.kind == Kind::Write && write.session == read.session);
        (read.kind.reads() && own.next().is_some()).then_some(0)
    };
    is_found("a forgotten write", behind, |found| found.own);
}

#[test]
fn one_read_behind_another_is_found() {
    let behind = |all: &[Operation], read: &Operation, session: Option<u64>| {
        let mut other = done_before(all, read)
            .filter(|other| other.kind == Kind::Read && other.version > Some(0))
            .filter(|other| session.is_none_or(|session| session == other.session));
        (read.kind.reads() && other.next().is_some()).then_some(0)
    };
    is_found("an inversion", |all, read| behind(all, read, None), |found| found.inverted);
    let own = |all: &[Operation], read: &Operation| behind(all, read, Some(read.session));
    is_found("a session that goes back", own, |found| found.back);
}

#[test]
fn one_read_of_the_unwritten_is_found() {
    // More versions than there are unknown writes, so that none explains it.
    let phantom = |all: &[Operation], read: &Operation| {
        let vague = |write: &Operation| write.key == read.key && write.outcome == Outcome::Unknown;
        (read.kind == Kind::Read && !all.iter().any(vague)).then_some(1_000_000)
    };
    is_found("a dirty read", phantom, |found| found.dirty);
    let early = |all: &[Operation], read: &Operation| {
        let mut later = all.iter().filter(|write| {
            let done = write.kind == Kind::Write && write.outcome == Outcome::Ok;
            done && write.key == read.key && write.inv > read.res
        });
        later.next().filter(|_| read.kind == Kind::Read)?.version
    };
    is_found("a read of the future", early, |found| found.future);
}

#[test]
fn one_key_that_stays_behind_is_found() {
    let behind = |kind: Kind| {
        move |all: &[Operation], read: &Operation| {
            let mut writes = done_before(all, read).filter(|write| write.kind == Kind::Write);
            (read.kind == kind && writes.next().is_some()).then_some(0)
        }
    };
    is_found("a stuck key", behind(Kind::Final), |found| found.stuck);
    is_found("a lost write", behind(Kind::Truth), |found| found.lost);
}
