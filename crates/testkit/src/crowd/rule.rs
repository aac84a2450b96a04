//! What may and what must be, given who has the lock: pure functions.

use std::collections::HashMap;

use lockkeeper::clock::Instant;

use crate::checker::{self, Verdict};
use crate::history::{Event, Op, Stage};
use crate::party::Way;

/// How one party stands to the lock.
#[derive(Clone, Debug, Default)]
pub(super) struct Stand {
    /// Its holds; several where it is reentrant.
    pub(super) held: Vec<Way>,
    /// In which way it waits, and whether it may come back without the lock.
    pub(super) waits: Option<(Way, bool)>,
    /// A ghost: its holds last at least until the first moment and at most until the second.
    pub(super) dead: Option<(Instant, Instant)>,
    /// Stands in our line.
    pub(super) ours: bool,
}

/// Whether somebody else is in the way, for certain (`true`) or perhaps (`false`: a ghost whose end is
/// not known counts too).
pub(super) fn is_in_the_way(stands: &[Stand], who: usize, way: Way, certain: bool) -> bool {
    let now = Instant::now();
    let present = |stand: &&Stand| match stand.dead {
        None => true,
        Some((least, most)) => now < if certain { least } else { most },
    };
    if let Way::Permit(of) = way {
        let held: usize = stands.iter().filter(present).map(|stand| stand.held.len()).sum();
        return held >= of as usize;
    }
    stands.iter().enumerate().any(|(at, stand)| {
        let excludes = |held: &Way| !(way.is_read() && held.is_read());
        at != who && present(&stand) && stand.held.iter().any(excludes)
    })
}

/// Whether some hold may be over or not.
pub(super) fn has_ghosts(stands: &[Stand]) -> bool {
    let now = Instant::now();
    let lasts = |stand: &Stand| stand.dead.is_some_and(|(_, end)| now < end);
    stands.iter().any(|stand| !stand.held.is_empty() && lasts(stand))
}

/// In how many ways it may have the lock, as a store shows them.
pub(super) fn places(stand: &Stand) -> usize {
    if stand.held.iter().any(|way| way.is_permit()) {
        return stand.held.len();
    }
    let reads = stand.held.iter().any(|way| way.is_read());
    let writes = stand.held.iter().any(|way| !way.is_read());
    usize::from(reads) + usize::from(writes)
}

/// Somebody who waits and must be served now.
pub(super) fn owed(stands: &[Stand]) -> Option<usize> {
    // A fair reader of ours may stand behind a writer of ours that cannot be served yet.
    let writer = |stand: &Stand| stand.ours && stand.waits.is_some_and(|(way, _)| !way.is_read());
    let a_writer_waits = stands.iter().any(writer);
    (0..stands.len()).find(|who| match stands[*who].waits {
        None => false,
        Some((way, _)) => {
            let behind = way.is_fair() && way.is_read() && a_writer_waits;
            stands[*who].dead.is_none() && !behind && !is_in_the_way(stands, *who, way, false)
        }
    })
}

/// Who a party is in a history: one for reading, another for all else.
///
/// # Panics
///
/// When there are too many.
pub fn who(party: usize, way: Way) -> u32 {
    u32::try_from(party * 2 + usize::from(!way.is_read())).unwrap()
}

/// What the checkers say to a history of those that [`who`] names: that nobody had the lock against the
/// rule, and, where it has one holder at a time, that tokens grow. Token 0 is none.
///
/// # Errors
///
/// The first violation.
pub fn verdict(events: &[Event], permits: Option<u32>) -> Verdict {
    if let Some(permits) = permits {
        return checker::at_most(events, permits as usize);
    }
    let shared = events.iter().any(|event| event.who % 2 == 0);
    // One party may hold the lock several times: only its first and last hold count here.
    let outermost = outermost(events);
    checker::readers_or_one_writer(&outermost, |who| who % 2 == 1, |who| who / 2)?;
    if shared {
        return Ok(());
    }
    checker::mutual_exclusion(&outermost)?;
    let with_token = |event: &Event| event.stage != Stage::Ok(0);
    checker::tokens_grow(&outermost.into_iter().filter(with_token).collect::<Vec<_>>())
}

/// The events without those of holds inside of holds of the same party in the same mode.
fn outermost(events: &[Event]) -> Vec<Event> {
    let mut depth = HashMap::<u32, usize>::new();
    let mut left = Vec::new();
    for event in events {
        let depth = depth.entry(event.who).or_default();
        match (event.op, event.stage) {
            (Op::Acquire, Stage::Ok(_)) => {
                *depth += 1;
                if *depth == 1 {
                    left.push(*event);
                }
            }
            (Op::Release, _) => {
                *depth = depth.saturating_sub(1);
                if *depth == 0 {
                    left.push(*event);
                }
            }
            _ => left.push(*event),
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn holds(held: &[Way]) -> Stand {
        Stand { held: held.to_vec(), ..Stand::default() }
    }

    fn waits(way: Way) -> Stand {
        Stand { waits: Some((way, false)), ours: true, ..Stand::default() }
    }

    fn ghost(way: Way, least: Duration, most: Duration) -> Stand {
        let now = Instant::now();
        Stand { dead: Some((now + least, now + most)), ..holds(&[way]) }
    }

    #[test]
    fn readers_share_permits_are_counted_and_nobody_is_in_its_own_way() {
        let blocked =
            |held: &[Way], way| is_in_the_way(&[Stand::default(), holds(held)], 0, way, true);
        assert!(!blocked(&[], Way::Write));
        assert!(blocked(&[Way::Mutex], Way::Fair) && blocked(&[Way::Read], Way::Write));
        assert!(blocked(&[Way::Read, Way::Write], Way::Read));
        assert!(!blocked(&[Way::Read, Way::FairRead], Way::Read));
        let permits = [Way::Permit(2); 2];
        assert!(!blocked(&permits[..1], Way::Permit(2)) && blocked(&permits, Way::Permit(2)));
        assert!(!is_in_the_way(&[holds(&[Way::Write])], 0, Way::Read, true));
    }

    #[test]
    fn ghosts_are_in_the_way_for_certain_then_perhaps_then_not() {
        let (zero, long) = (Duration::ZERO, Duration::from_hours(1));
        for (least, most, certain, perhaps) in
            [(long, long, true, true), (zero, long, false, true), (zero, zero, false, false)]
        {
            let stands = [waits(Way::Mutex), ghost(Way::Mutex, least, most)];
            assert_eq!(is_in_the_way(&stands, 0, Way::Mutex, true), certain);
            assert_eq!(is_in_the_way(&stands, 0, Way::Mutex, false), perhaps);
            assert_eq!(owed(&stands), (!perhaps).then_some(0));
            assert_eq!(has_ghosts(&stands), perhaps);
        }
    }

    #[test]
    fn who_need_not_wait_is_owed_the_lock() {
        assert_eq!(owed(&[Stand::default()]), None);
        assert_eq!(owed(&[holds(&[Way::Read]), waits(Way::Write)]), None);
        assert_eq!(owed(&[holds(&[Way::Read]), waits(Way::Write), waits(Way::Read)]), Some(2));
        assert_eq!(owed(&[holds(&[Way::Read]), waits(Way::Write), waits(Way::FairRead)]), None);
        assert_eq!(owed(&[holds(&[Way::Read]), waits(Way::FairRead)]), Some(1));
        assert_eq!(owed(&[waits(Way::FairWrite), waits(Way::FairRead)]), Some(0));
    }

    #[test]
    fn holds_inside_of_holds_do_not_count_twice() {
        let event = |party, way, op, stage| Event { who: who(party, way), op, stage };
        let has = |party, way, token| event(party, way, Op::Acquire, Stage::Ok(token));
        let gives = |party, way| event(party, way, Op::Release, Stage::Invoke);
        let m = Way::Mutex;
        let good =
            [has(0, m, 3), has(0, m, 3), gives(0, m), gives(0, m), has(1, m, 0), gives(1, m)];
        assert_eq!(verdict(&good, None), Ok(()));
        let shared = [has(0, m, 3), has(0, m, 3), gives(0, m), has(1, m, 4)];
        assert_eq!(verdict(&shared, None).unwrap_err().what, "1 writes among [1, 3]");
        let old = [has(0, m, 3), gives(0, m), has(1, m, 0), gives(1, m), has(0, m, 3)];
        assert!(verdict(&old, None).is_err(), "tokens must grow");
        assert!(verdict(&[has(0, Way::Read, 1), has(1, Way::Write, 2)], None).is_err());
        let permits = [has(0, Way::Permit(2), 1), has(1, Way::Permit(2), 2)];
        assert_eq!(verdict(&permits, Some(2)), Ok(()));
        assert!(verdict(&permits, Some(1)).is_err());
    }
}
