//! Pure functions that say whether a history may happen.
//!
//! Each is itself tested with histories that must be refused: a checker that accepts everything
//! would make every other test worthless.

use std::collections::HashMap;

use crate::history::{Event, Op, Stage};

/// What is wrong with a history, and at which event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The event at which it shows.
    pub at: usize,
    /// What.
    pub what: String,
}

/// The verdict.
pub type Verdict = Result<(), Violation>;

/// Never two holders.
///
/// # Errors
///
/// The first violation.
pub fn mutual_exclusion(events: &[Event]) -> Verdict {
    at_most(events, 1)
}

/// Never more holders than permits.
///
/// # Errors
///
/// The first violation.
pub fn at_most(events: &[Event], permits: usize) -> Verdict {
    let mut holders: Vec<u32> = Vec::new();
    for (at, event) in events.iter().enumerate() {
        match (event.op, event.stage) {
            (Op::Acquire, Stage::Ok(_)) => holders.push(event.who),
            (Op::Release, Stage::Invoke) => {
                let Some(place) = holders.iter().position(|who| *who == event.who) else {
                    let what = format!("{} releases what it does not hold", event.who);
                    return Err(Violation { at, what });
                };
                holders.remove(place);
            }
            _ => {}
        }
        if holders.len() > permits {
            let what = format!("{holders:?} hold at once; at most {permits} may");
            return Err(Violation { at, what });
        }
    }
    Ok(())
}

/// Any number of readers, or one writer. A party that reads and writes takes part as two, which are
/// told apart by `writes`, and may do both at once; `party` says who belongs together.
///
/// # Errors
///
/// The first violation.
pub fn readers_or_one_writer(
    events: &[Event],
    writes: impl Fn(u32) -> bool,
    party: impl Fn(u32) -> u32,
) -> Verdict {
    let mut holders: Vec<u32> = Vec::new();
    for (at, event) in events.iter().enumerate() {
        match (event.op, event.stage) {
            (Op::Acquire, Stage::Ok(_)) => holders.push(event.who),
            (Op::Release, Stage::Invoke) => {
                let Some(place) = holders.iter().position(|who| *who == event.who) else {
                    let what = format!("{} releases what it does not hold", event.who);
                    return Err(Violation { at, what });
                };
                holders.remove(place);
            }
            _ => {}
        }
        for (place, writer) in holders.iter().enumerate().filter(|(_, who)| writes(**who)) {
            let alone = holders.iter().enumerate().all(|(other, who)| {
                let same = party(*who) == party(*writer);
                other == place || (same && !writes(*who))
            });
            if !alone {
                return Err(Violation { at, what: format!("{writer} writes among {holders:?}") });
            }
        }
    }
    Ok(())
}

/// Every grant has a larger token than all before it. Only for locks with one holder at a time: the
/// grants of shared ones are not seen in the order in which they were made.
///
/// # Errors
///
/// The first violation.
pub fn tokens_grow(events: &[Event]) -> Verdict {
    let mut largest = 0;
    for (at, event) in events.iter().enumerate() {
        if let (Op::Acquire, Stage::Ok(token)) = (event.op, event.stage) {
            if token <= largest {
                let what = format!("{} got token {token} after {largest}", event.who);
                return Err(Violation { at, what });
            }
            largest = token;
        }
    }
    Ok(())
}

/// No token is given twice: what is left of [`tokens_grow`] for shared locks.
///
/// # Errors
///
/// The first violation.
pub fn tokens_are_unique(events: &[Event]) -> Verdict {
    let mut seen = HashMap::new();
    for (at, event) in events.iter().enumerate() {
        if let (Op::Acquire, Stage::Ok(token)) = (event.op, event.stage)
            && let Some(other) = seen.insert(token, event.who)
        {
            let what = format!("{} and {other} both got token {token}", event.who);
            return Err(Violation { at, what });
        }
    }
    Ok(())
}

/// Grants come in the order of arrival; those who gave up are left out. The history must record
/// `Invoke` in the true order of arrival: ask the store that one is in line before the next asks.
///
/// # Errors
///
/// The first violation.
pub fn first_come_first_served(events: &[Event]) -> Verdict {
    let gave_up = |who, after: usize| {
        let ends = events[after..].iter().find(|event| {
            event.who == who && event.op == Op::Acquire && event.stage != Stage::Invoke
        });
        ends.is_none_or(|end| !matches!(end.stage, Stage::Ok(_)))
    };
    let mut line: Vec<u32> = Vec::new();
    for (at, event) in events.iter().enumerate() {
        match (event.op, event.stage) {
            (Op::Acquire, Stage::Invoke) if !gave_up(event.who, at) => line.push(event.who),
            (Op::Acquire, Stage::Ok(_)) => match line.iter().position(|who| *who == event.who) {
                Some(0) => drop(line.remove(0)),
                Some(_) => {
                    let what = format!("{} was served before {}", event.who, line[0]);
                    return Err(Violation { at, what });
                }
                None => {
                    let what = format!("{} was served and never asked", event.who);
                    return Err(Violation { at, what });
                }
            },
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(who: u32) -> Event {
        Event { who, op: Op::Acquire, stage: Stage::Invoke }
    }
    fn has(who: u32, token: u64) -> Event {
        Event { who, op: Op::Acquire, stage: Stage::Ok(token) }
    }
    fn fails(who: u32) -> Event {
        Event { who, op: Op::Acquire, stage: Stage::Fail }
    }
    fn unknown(who: u32) -> Event {
        Event { who, op: Op::Acquire, stage: Stage::Info }
    }
    fn gives(who: u32) -> Event {
        Event { who, op: Op::Release, stage: Stage::Invoke }
    }

    #[test]
    fn good_histories_pass_every_checker() {
        let good = [
            vec![],
            vec![asks(1), has(1, 1), gives(1)],
            vec![asks(1), asks(2), has(1, 1), gives(1), has(2, 5), gives(2), asks(1), has(1, 6)],
            vec![asks(1), asks(2), asks(3), has(1, 1), fails(2), gives(1), has(3, 2)],
            vec![asks(1), asks(2), unknown(1), has(2, 2)],
            vec![asks(1), asks(2), has(2, 2)],
        ];
        for history in good {
            for check in [mutual_exclusion, tokens_grow, tokens_are_unique, first_come_first_served]
            {
                assert_eq!(check(&history), Ok(()), "{history:?}");
            }
        }
    }

    #[test]
    fn two_holders_are_seen() {
        let bad = [asks(1), asks(2), has(1, 1), has(2, 2), gives(1), gives(2)];
        assert_eq!(mutual_exclusion(&bad).unwrap_err().at, 3);
        let twice = [has(1, 1), has(1, 2)];
        assert!(mutual_exclusion(&twice).is_err(), "the same one twice is two holders too");
        let never = [has(1, 1), gives(1), gives(1)];
        assert_eq!(mutual_exclusion(&never).unwrap_err().at, 2);
        let never_released = [has(1, 1), has(2, 2)];
        assert!(mutual_exclusion(&never_released).is_err());
    }

    #[test]
    fn one_permit_too_many_is_seen() {
        let three = [has(1, 1), has(2, 2), gives(1), has(3, 3), has(4, 4)];
        assert_eq!(at_most(&three, 2).unwrap_err().at, 4);
        assert_eq!(at_most(&three, 3), Ok(()));
        assert!(at_most(&[has(1, 1)], 0).is_err());
    }

    #[test]
    fn a_writer_in_company_is_seen() {
        // Even: reads. Odd: writes. 0 and 1 are one party, 2 and 3 another.
        let check =
            |events: &[Event]| readers_or_one_writer(events, |who| who % 2 == 1, |who| who / 2);
        let good =
            [has(0, 1), has(2, 2), gives(0), gives(2), has(1, 3), has(0, 4), gives(1), has(2, 5)];
        assert_eq!(check(&good), Ok(()));
        assert_eq!(check(&[has(0, 1), has(3, 2)]).unwrap_err().at, 1);
        assert_eq!(check(&[has(3, 1), has(0, 2)]).unwrap_err().at, 1);
        assert_eq!(check(&[has(1, 1), has(3, 2)]).unwrap_err().at, 1);
        assert_eq!(check(&[has(1, 1), has(1, 2)]).unwrap_err().at, 1, "twice");
        assert_eq!(check(&[has(1, 1), has(0, 2), has(2, 3)]).unwrap_err().at, 2);
        assert_eq!(check(&[has(1, 1), gives(0)]).unwrap_err().at, 1);
    }

    #[test]
    fn tokens_that_stand_still_or_go_back_are_seen() {
        assert_eq!(tokens_grow(&[has(1, 2), gives(1), has(2, 2)]).unwrap_err().at, 2);
        assert_eq!(tokens_grow(&[has(1, 2), gives(1), has(2, 1)]).unwrap_err().at, 2);
        assert!(tokens_grow(&[has(1, 0)]).is_err(), "no grant has token zero");
        assert_eq!(tokens_are_unique(&[has(1, 2), has(2, 1), has(3, 2)]).unwrap_err().at, 2);
    }

    #[test]
    fn overtaking_is_seen() {
        let bad = [asks(1), asks(2), has(2, 1), gives(2), has(1, 2)];
        assert_eq!(first_come_first_served(&bad).unwrap_err().at, 2);
        assert!(first_come_first_served(&[has(1, 1)]).is_err());
        let again = [asks(1), has(1, 1), gives(1), asks(2), asks(1), has(1, 2), has(2, 3)];
        assert_eq!(first_come_first_served(&again).unwrap_err().at, 5);
    }
}
