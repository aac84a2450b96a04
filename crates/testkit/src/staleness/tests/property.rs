//! The sweep against the definitions, on histories that are full of faults.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::staleness::slow::{self, BENDS, Bend};
use crate::staleness::{Finding, judge};

/// Short times, few keys and few sessions, so that everything meets everything.
fn operation() -> impl Strategy<Value = Operation> {
    let kind = prop_oneof![
        5 => Just(Kind::Write),
        1 => Just(Kind::Delete),
        8 => Just(Kind::Read),
        1 => Just(Kind::Final),
        1 => Just(Kind::Truth),
        1 => Just(Kind::Load),
    ];
    let outcome = prop_oneof![
        6 => Just(Outcome::Ok),
        1 => Just(Outcome::Fail),
        2 => Just(Outcome::Unknown),
    ];
    let version = prop_oneof![1 => Just(None), 5 => (0_u64..9).prop_map(Some)];
    (kind, outcome, version, 0_u64..3, 0_u64..40, 0_u64..12, 0_u8..8).prop_map(
        |(kind, outcome, version, session, inv, took, key)| {
            let key = if key == 0 { "rare" } else { "k" };
            with(outcome, on(key, did(kind, session, (inv, inv + took), version)))
        },
    )
}

/// Mostly with versions in the order in which the writes began, which is an order that may be.
fn history() -> impl Strategy<Value = Vec<Operation>> {
    (prop::collection::vec(operation(), 0..24), 0_u8..8).prop_map(|(mut all, wild)| {
        if wild > 0 {
            put_in_order(&mut all);
        }
        all
    })
}

fn put_in_order(all: &mut [Operation]) {
    for key in ["k", "rare"] {
        let mut writes: Vec<_> =
            all.iter_mut().filter(|write| write.kind.writes() && write.key == key).collect();
        writes.sort_by_key(|write| write.inv);
        for (number, write) in (1..).zip(writes) {
            if write.outcome == Outcome::Ok || write.version.is_some() {
                write.version = Some(number);
            }
        }
        // The database holds what somebody wrote.
        let newest = all.iter().filter(|write| {
            write.kind.writes() && write.key == key && write.outcome != Outcome::Fail
        });
        let newest: Vec<_> = newest.filter_map(|write| Some((write.version?, write.inv))).collect();
        for truth in all.iter_mut().filter(|read| read.kind == Kind::Truth && read.key == key) {
            let known = newest.iter().filter(|(_, inv)| *inv <= truth.res);
            let known: Vec<_> = known.map(|(version, _)| *version).collect();
            let chosen = usize::try_from(truth.version.unwrap_or(0)).unwrap() % (known.len() + 1);
            truth.version = Some(known.get(chosen).copied().unwrap_or(0));
        }
    }
}

proptest! {
    #![proptest_config(Config::with_cases(1500))]

    #[test]
    fn the_sweep_finds_what_the_definitions_say(history in history()) {
        prop_assert_eq!(judge(&history).ok(), slow::judge(&history, Bend::None));
    }

    #[test]
    fn the_order_in_which_it_is_written_down_does_not_matter(history in history()) {
        let mut backwards = history.clone();
        backwards.reverse();
        let findings = judge(&backwards).ok().map(|mut findings| {
            findings.reverse();
            findings
        });
        prop_assert_eq!(judge(&history).ok(), findings);
    }
}

/// The same histories each time.
fn some_histories() -> impl Iterator<Item = Vec<Operation>> {
    let mut runner = TestRunner::deterministic();
    let history = history();
    (0..4000).map(move |_| history.new_tree(&mut runner).unwrap().current())
}

#[test]
fn the_comparison_notices_every_bend() {
    let histories: Vec<_> = some_histories().collect();
    for bend in BENDS {
        let noticed = histories.iter().filter(|history| {
            let straight = judge(history).ok();
            straight.is_some() && straight != slow::judge(history, bend)
        });
        assert!(noticed.take(3).count() == 3, "{bend:?} makes no difference to these histories");
    }
}

#[test]
fn the_histories_of_the_comparison_have_every_fault_and_many_have_none() {
    let (mut broken, mut clean, mut seen) = (0, 0, [0; 9]);
    for history in some_histories() {
        let Ok(findings) = judge(&history) else {
            broken += 1;
            continue;
        };
        let fault = |found: &Finding| Finding { tried: false, ..*found } != Finding::default();
        clean += usize::from(!findings.iter().any(fault));
        for found in findings {
            let faults = [
                found.stale(),
                found.missed > 1,
                found.own,
                found.back,
                found.inverted,
                found.dirty,
                found.future,
                found.stuck,
                found.lost,
            ];
            for (count, fault) in seen.iter_mut().zip(faults) {
                *count += usize::from(fault);
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
    assert!(broken > 50 && clean > 50, "{broken} {clean}");
}
