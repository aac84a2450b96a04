//! What must be, and what must not.

use lockkeeper_cache::Strategy;
use testkit::staleness::{Report, Source};

use crate::cases::{BOUND, Case, LEASE};
use crate::faults::Fault;
use crate::{Ran, SLACK};

/// The first level must have answered so many of a hundred reads under each fault, and so many under all of them: else it
/// was not tried.
const NEAR: [u64; 2] = [5, 33];

/// Of those that promise most so many of a hundred reads must have come from Redis, whatever happens to it: who caches nothing
/// is never stale.
const CACHED: u64 = 10;

/// Both keys of each case are read once more in the end.
const FINALS: u64 = 2;

/// Holds one case under one fault to what it promises.
pub(crate) fn judge(ran: &Ran) {
    let Ran { case, fault, report } = ran;
    let (strategy, fault) = (case.strategy, *fault);
    let what = format!("{case}, {fault}: {:#?}", report.examples);
    assert!(report.tried > 10, "{case}, {fault}: it had hardly a chance to be stale: {report:?}");
    assert_eq!(report.finals, FINALS, "{case}, {fault}: {report:?}");
    // What waits at a Redis that forgets is lost.
    let loses = strategy == Strategy::WriteBehind && !fault.keeps();
    if !loses {
        assert_eq!((report.dirty, report.future, report.lost), (0, 0, 0), "{what}");
    }
    let stale = (report.stale, report.own, report.stuck);
    match strategy {
        Strategy::Bypass => assert!(report.is_clean(), "{what}"),
        Strategy::Strong if case.first.is_some() => first_level(*case, fault, report),
        Strategy::Strong => {
            assert_eq!(stale, (0, 0, 0), "{what}");
            if fault.keeps() {
                assert!(report.is_clean(), "{what}");
            }
        }
        _ if loses => {}
        // Who dies between the commit and the invalidation leaves the old value there; but who is alive has done both.
        Strategy::FillLease if fault == Fault::WorkerKilled => assert_eq!(report.own, 0, "{what}"),
        Strategy::FillLease | Strategy::WriteBehind => assert_eq!(stale, (0, 0, 0), "{what}"),
        // The same.
        Strategy::BoundedStale if fault == Fault::WorkerKilled => {}
        Strategy::BoundedStale => {
            assert_eq!(report.stuck, 0, "{what}");
            assert!(report.age < BOUND + SLACK, "{what}");
        }
        // It ends so long after it was filled, and a fill may come so long after the load.
        Strategy::TtlOnly => {
            assert_eq!(report.stuck, 0, "{what}");
            assert!(report.age < BOUND + LEASE + SLACK, "{what}");
        }
        // Their locks are at the Redis that stops and dies, and end with who held them.
        Strategy::WriteThrough | Strategy::ReadWriteLock => {
            assert!(stale == (0, 0, 0) || fault != Fault::Nothing, "{what}");
        }
        // Whoever finds nothing here is blind.
        _ => assert!(report.stale > 0 || fault != Fault::Nothing, "{case}: {report:?}"),
    }
}

/// What must be of all together: those that are naive are found out under the faults as well; the first level was used;
/// and of some write of those who were killed nobody knows, or they died in the middle of nothing.
pub(crate) fn judge_all(all: &[Ran]) {
    let stale = |strategy| {
        let ran = all.iter().filter(|ran| ran.case.strategy == strategy);
        ran.filter(|ran| ran.fault != Fault::Nothing).map(|ran| ran.report.stale).sum::<u64>()
    };
    for strategy in [
        Strategy::UpdateThenDelete,
        Strategy::DeleteThenUpdate,
        Strategy::DoubleDelete,
        Strategy::BoundedStale,
        Strategy::TtlOnly,
    ] {
        assert!(stale(strategy) > 0, "{strategy} was never found stale");
    }
    let ran = all.iter().filter(|ran| ran.case == Case::FIRST);
    let (near, reads) =
        ran.fold((0, 0), |(near, reads), ran| (near + ran.report.near(), reads + ran.report.reads));
    assert!(near * 100 > reads * NEAR[1], "{near} of {reads} reads came from the first level");
    for strategy in [Strategy::Strong, Strategy::FillLease] {
        let ran =
            all.iter().filter(|ran| ran.case.strategy == strategy && ran.case.first.is_none());
        let (cached, reads) = ran.fold((0, 0), |(cached, reads), Ran { report, .. }| {
            (cached + report.from.get(&Source::L2).unwrap_or(&0), reads + report.reads)
        });
        assert!(cached * 100 > reads * CACHED, "{strategy}: {cached} of {reads} reads were cached");
    }
    let killed = all.iter().filter(|ran| ran.fault == Fault::WorkerKilled);
    assert!(killed.map(|ran| ran.report.unknown).sum::<u64>() > 0, "nobody was in a write");
}

/// What a first level promises: its process reads nothing older than what it has written itself, and nobody anything that
/// was replaced longer ago than the bound. That is measured by who serves, so it has no slack. What did not come from there
/// is as strong as without it.
///
/// Redis has one master at a time here, also after a fail-over; for one that was replaced and still answers the bound would be
/// longer.
fn first_level(case: Case, fault: Fault, report: &Report) {
    let what = format!("{case}, {fault}: {:#?}", report.examples);
    let (near, reads) = (report.near(), report.reads);
    assert!(near * 100 > reads * NEAR[0], "{case}, {fault}: {near} of {reads} came from there");
    let stale = report.stale_from.get(&Source::L1).copied().unwrap_or(0);
    assert_eq!((report.stale - stale, report.own, report.stuck), (0, 0, 0), "{what}");
    match case {
        // Whoever finds this within a bound that is not its own is blind.
        Case::LOOSE => assert!(report.age > BOUND, "{case}, {fault}: {report:?}"),
        _ => assert!(report.age <= BOUND, "{what}"),
    }
}
