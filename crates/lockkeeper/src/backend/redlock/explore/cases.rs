//! Which cases are gone through.

use super::{Case, Fault, Part, Wrong, explore};

/// Three nodes and two attempts, nothing goes wrong but time.
const SMALL: Case = Case {
    nodes: 3,
    attempts: 2,
    faults: 0,
    fault: Fault::Emptied,
    losses: 0,
    renewals: false,
    without: None,
};

/// More answers than there are.
const ANY: u8 = 99;

fn fine(case: Case) -> usize {
    let states =
        explore(case, &[Wrong::TwoHolders, Wrong::TokenNotLarger]).expect("nothing goes wrong");
    assert!(states > 1000, "{states} states: that is not everything");
    states
}

#[test]
fn three_nodes_any_request_and_any_answer_lost() {
    fine(Case { losses: ANY, ..SMALL });
}

#[test]
fn three_nodes_three_attempts() {
    fine(Case { attempts: 3, ..SMALL });
}

#[test]
fn three_nodes_and_renewals() {
    fine(Case { renewals: true, losses: 2, ..SMALL });
}

#[test]
fn three_nodes_one_is_emptied() {
    fine(Case { faults: 1, ..SMALL });
}

#[test]
fn three_nodes_one_is_restarted_with_its_data_or_older_data() {
    fine(Case { faults: 1, fault: Fault::Restarted, ..SMALL });
}

#[test]
fn five_nodes_and_an_answer_lost() {
    fine(Case { nodes: 5, losses: 1, ..SMALL });
}

/// The larger cases, for minutes: `cargo test --release -- --ignored larger_cases`.
#[test]
#[ignore = "takes minutes"]
fn larger_cases() {
    let one = Case { faults: 1, ..SMALL };
    let cases = [
        Case { losses: 1, ..one },
        Case { attempts: 3, losses: 1, ..SMALL },
        Case { renewals: true, ..one },
        Case { nodes: 4, losses: 2, ..SMALL },
        Case { nodes: 5, losses: 2, ..SMALL },
        Case { nodes: 4, ..one },
        Case { faults: 2, ..SMALL },
        Case { nodes: 5, ..one },
    ];
    for case in cases {
        let states = fine(case);
        eprintln!("{states} states: {case:?}");
    }
}

/// Every part is needed: without it, something goes wrong that is found.
#[test]
fn no_part_can_be_left_out() {
    let (one, restarted) = (Case { faults: 1, ..SMALL }, Fault::Restarted);
    let cases = [
        (Case { without: Some(Part::SecondPhase), attempts: 3, ..SMALL }, Wrong::TokenNotLarger),
        (Case { without: Some(Part::Waiting), ..one }, Wrong::TwoHolders),
        (Case { without: Some(Part::Restoring), ..one }, Wrong::TokenNotLarger),
        (Case { without: Some(Part::Quiet), ..one }, Wrong::TokenNotLarger),
        (Case { without: Some(Part::Restarts), fault: restarted, ..one }, Wrong::TwoHolders),
    ];
    for (case, wrong) in cases {
        assert_eq!(explore(case, &[wrong]), Err(wrong), "without {:?}", case.without);
    }
}
