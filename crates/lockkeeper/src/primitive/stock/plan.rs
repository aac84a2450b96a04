//! From which segments to take, and to which to add: pure.
//!
//! The last of the amounts is the spare segment. It is nobody's home: there large requests gather what they
//! need, bit by bit, when they cannot have all of it at once. What is in it can be had by everybody.

/// Which segments get which amounts. Nothing else changes.
pub(super) type Plan = Vec<(usize, u64)>;

/// Takes `wanted`; `None`: there is not so much. From `home` if that has enough, else from the next
/// one that has, else from as few as possible; from the spare one only if the others have too little.
pub(super) fn take(amounts: &[u64], wanted: u64, home: usize) -> Option<Plan> {
    let (_spare, segments) = amounts.split_last()?;
    take_from(segments, wanted, home).or_else(|| take_from(amounts, wanted, home))
}

/// A step towards `wanted` that changes no more than two, and whether it is the last one; `None`: there is
/// not so much. Moves what the richest has to the spare one until both together have enough.
pub(super) fn gather(amounts: &[u64], wanted: u64, home: usize) -> Option<(Plan, bool)> {
    let (spare, segments) = amounts.split_last()?;
    if *spare >= wanted {
        return Some((vec![(segments.len(), spare - wanted)], true));
    }
    let plan = take(amounts, wanted, home)?;
    let richest = (0..segments.len()).max_by_key(|at| segments[*at])?;
    let missing = wanted - spare;
    match segments[richest] {
        _ if plan.len() < 2 => Some((plan, true)),
        has if has >= missing => Some((vec![(richest, has - missing), (segments.len(), 0)], true)),
        has => Some((vec![(richest, 0), (segments.len(), spare + has)], false)),
    }
}

/// A home that has run dry gets half of what the richest has left, so that those who have it for a home go
/// on beside each other.
fn take_from(amounts: &[u64], wanted: u64, home: usize) -> Option<Plan> {
    let has = |at: &usize| amounts[*at] >= wanted;
    let around = || (home..amounts.len()).chain(0..home);
    if has(&home) {
        return Some(vec![(home, amounts[home] - wanted)]);
    }
    let richest = around().max_by_key(|at| amounts[*at])?;
    if amounts[home] == 0 && has(&richest) {
        let left = amounts[richest] - wanted;
        let moved = left / 2;
        if moved >= wanted {
            return Some(vec![(home, moved), (richest, left - moved)]);
        }
    }
    if let Some(at) = around().find(has) {
        return Some(vec![(at, amounts[at] - wanted)]);
    }
    let mut by_amount: Vec<usize> = around().collect();
    by_amount.sort_by_key(|at| std::cmp::Reverse(amounts[*at]));
    let (mut plan, mut missing) = (Plan::new(), wanted);
    for at in by_amount {
        let part = amounts[at].min(missing);
        plan.push((at, amounts[at] - part));
        missing -= part;
        if missing == 0 {
            return Some(plan);
        }
    }
    None
}

/// Adds `more`, to the poorest first, so that all end up as even as possible. `None`: more than there
/// are numbers for.
pub(super) fn spread(amounts: &[u64], more: u64) -> Option<Plan> {
    total(amounts)?.checked_add(more)?;
    let (_spare, amounts) = amounts.split_last()?;
    let mut order: Vec<usize> = (0..amounts.len()).collect();
    order.sort_by_key(|at| amounts[*at]);
    // How many of the poorest are raised, and up to which level.
    let (mut below, mut level) = (u128::from(more), 0);
    let mut raised = 0;
    for at in &order {
        let amount = u128::from(amounts[*at]);
        if raised > 0 && level <= amount {
            break;
        }
        (below, raised) = (below + amount, raised + 1);
        level = below / raised;
    }
    let count = usize::try_from(raised).unwrap_or(amounts.len());
    let mut over = usize::try_from(below - level * raised).unwrap_or(0);
    let mut plan = Plan::new();
    for at in order.into_iter().take(count) {
        let one = u64::from(over > 0);
        over = over.saturating_sub(1);
        let amount = u64::try_from(level).ok()?.checked_add(one)?;
        if amount != amounts[at] {
            plan.push((at, amount));
        }
    }
    Some(plan)
}

/// Adds `more` to one. `None`: more than there are numbers for; or nothing is known of it.
pub(super) fn put(amounts: &[u64], more: u64, at: usize) -> Option<Plan> {
    total(amounts)?.checked_add(more)?;
    Some(vec![(at, amounts.get(at)? + more)])
}

/// All together.
pub(super) fn total(amounts: &[u64]) -> Option<u64> {
    amounts.iter().try_fold(0_u64, |sum, amount| sum.checked_add(*amount))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(amounts: &[u64], plan: &Plan) -> Vec<u64> {
        let mut after = amounts.to_vec();
        for (at, amount) in plan {
            after[*at] = *amount;
        }
        after
    }

    #[test]
    fn twenty_each_in_ten() {
        let mut ten = [20; 11];
        ten[10] = 0;
        assert_eq!(after(&[0; 11], &spread(&[0; 11], 200).unwrap()), ten);
        assert_eq!(after(&[0; 4], &spread(&[0; 4], 5).unwrap()), [2, 2, 1, 0]);
        assert_eq!(after(&[9, 0, 1, 0], &spread(&[9, 0, 1, 0], 3).unwrap()), [9, 2, 2, 0]);
        assert_eq!(spread(&[u64::MAX, 0, 0], 1), None);
        assert_eq!(spread(&[0, 0, u64::MAX], 1), None);
    }

    /// Another task of the process may have found that what was known is out of date.
    #[test]
    fn where_nothing_is_known_nothing_is_planned() {
        assert_eq!((take(&[], 1, 0), spread(&[], 1), put(&[], 1, 0)), (None, None, None));
        assert_eq!(gather(&[], 1, 0), None);
    }

    #[test]
    fn five_are_taken_from_one_where_that_is_possible() {
        assert_eq!(take(&[20, 20, 20, 0], 5, 1), Some(vec![(1, 15)]));
        assert_eq!(take(&[20, 4, 20, 0], 5, 1), Some(vec![(2, 15)]));
        assert_eq!(take(&[2, 4, 2, 0], 5, 0), Some(vec![(1, 0), (0, 1)]));
        assert_eq!(take(&[2, 1, 1, 0], 5, 0), None);
    }

    #[test]
    fn a_segment_that_ran_dry_is_filled_from_the_richest() {
        assert_eq!(take(&[0, 7, 21, 0], 1, 0), Some(vec![(0, 10), (2, 10)]));
        assert_eq!(take(&[0, 2, 1, 0], 1, 0), Some(vec![(1, 1)]), "not for so little");
    }

    #[test]
    fn what_was_gathered_is_taken_last() {
        assert_eq!(take(&[3, 4, 90], 5, 0), Some(vec![(1, 0), (0, 2)]));
        assert_eq!(take(&[0, 0, 90], 5, 0), Some(vec![(0, 42), (2, 43)]), "and comes back");
        assert_eq!(gather(&[3, 4, 90], 5, 0), Some((vec![(2, 85)], true)));
    }

    proptest! {
        #[test]
        fn exactly_so_much_is_taken_or_there_is_not_so_much(
            amounts in prop::collection::vec(0_u64..30, 2..13),
            wanted in 1_u64..60,
            home: prop::sample::Index,
        ) {
            let sum = total(&amounts).unwrap();
            let home = home.index(amounts.len() - 1);
            match take(&amounts, wanted, home) {
                None => prop_assert!(sum < wanted),
                Some(plan) => {
                    let left = total(&after(&amounts, &plan)).unwrap();
                    prop_assert_eq!(left + wanted, sum);
                    let mut touched: Vec<_> = plan.iter().map(|(at, _)| at).collect();
                    touched.sort();
                    touched.dedup();
                    prop_assert_eq!(touched.len(), plan.len(), "each once");
                    let mut segments = amounts[..amounts.len() - 1].iter();
                    let enough = segments.any(|amount| *amount >= wanted);
                    prop_assert!(!enough || plan.len() <= 2);
                }
            }
        }

        #[test]
        fn bit_by_bit_exactly_so_much_is_gathered_and_taken(
            amounts in prop::collection::vec(0_u64..30, 2..13),
            wanted in 1_u64..200,
            home: prop::sample::Index,
        ) {
            let (sum, home) = (total(&amounts).unwrap(), home.index(amounts.len() - 1));
            let (mut now, mut steps) = (amounts.clone(), 0);
            loop {
                let Some((plan, last)) = gather(&now, wanted, home) else {
                    prop_assert!(sum < wanted);
                    prop_assert_eq!(steps, 0);
                    break;
                };
                prop_assert!(plan.len() <= 2);
                (now, steps) = (after(&now, &plan), steps + 1);
                let left = total(&now).unwrap();
                prop_assert_eq!(left, if last { sum - wanted } else { sum });
                if last {
                    break;
                }
                prop_assert!(steps < amounts.len());
            }
        }

        #[test]
        fn exactly_so_much_is_added_and_evenly(
            amounts in prop::collection::vec(0_u64..30, 2..13),
            more in 1_u64..200,
        ) {
            let plan = spread(&amounts, more).unwrap();
            let after = after(&amounts, &plan);
            prop_assert_eq!(total(&after).unwrap(), total(&amounts).unwrap() + more);
            prop_assert!(amounts.iter().zip(&after).all(|(was, is)| was <= is));
            let highest = plan.iter().map(|(_, amount)| *amount).max().unwrap();
            let lowest = *after[..after.len() - 1].iter().min().unwrap();
            prop_assert!(highest - lowest <= 1, "{amounts:?} {after:?}");
        }
    }
}
