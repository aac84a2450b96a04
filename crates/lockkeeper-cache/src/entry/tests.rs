//! The steps one by one. That they do together what they should, `explore` shows.

use super::*;

const HOW: Invalidation = Invalidation { floor: 0, floor_ms: 1000, keep_ms: 0 };

fn ticket(number: u8) -> Ticket {
    Ticket::from_bytes([number; 16])
}

fn value(by: u8, version: u64) -> Value {
    let payload = Some(b"x"[..].into());
    let (lease, fill) = (Lease::NONE, ticket(by));
    Value { lease, fill, version, made: 0, soft: u64::MAX, cost: 0, schema: 0, payload }
}

/// A key, as a store has it.
#[derive(Default)]
struct Key(Option<Slot>);

impl Key {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Keep => {}
            Change::Put(slot) => self.0 = Some(slot),
            Change::Remove => self.0 = None,
        }
    }

    fn begin(&mut self, now: Millis, by: u8, except: Option<u8>) -> Begun {
        let (change, begun) = begin(self.0.as_ref(), now, ticket(by), 100, except.map(ticket));
        self.apply(change);
        begun
    }

    fn fill(&mut self, now: Millis, value: &Value) -> Filled {
        let (change, filled) = fill(self.0.as_ref(), now, value, 10_000);
        self.apply(change);
        filled
    }

    fn invalidate(&mut self, now: Millis, how: Invalidation) {
        self.apply(invalidate(self.0.as_ref(), now, how));
    }

    fn settle(&mut self, now: Millis, by: u8, how: Invalidation) -> Settled {
        let (change, settled) = settle(self.0.as_ref(), now, ticket(by), how);
        self.apply(change);
        settled
    }

    fn intend(&mut self, now: Millis, by: u8) {
        self.apply(intend(self.0.as_ref(), now, ticket(by), 100));
    }
}

fn granted(floor: u64, now: Millis) -> Begun {
    Begun::Granted { floor, now }
}

fn is_there(begun: &Begun) -> bool {
    matches!(begun, Begun::There(_))
}

#[test]
fn one_loads_and_the_others_wait() {
    let mut key = Key::default();
    assert_eq!(key.begin(5, 1, None), granted(0, 5));
    assert!(is_there(&key.begin(6, 2, None)));
    assert_eq!(key.fill(7, &value(2, 0)), Filled::Gone);
    assert_eq!(key.fill(7, &value(1, 0)), Filled::Done);
    assert_eq!(key.fill(8, &value(1, 0)), Filled::Done, "sent again");
    assert_eq!(key.begin(9, 2, None), Begun::There(Entry::Value(value(1, 0))));
}

#[test]
fn a_lease_ends() {
    let mut key = Key::default();
    key.begin(0, 1, None);
    assert_eq!(key.fill(101, &value(1, 0)), Filled::Gone);
    assert_eq!(key.begin(101, 2, None), granted(0, 101));
    // A floor keeps the key longer than the lease is.
    key.invalidate(102, Invalidation { floor: 3, ..HOW });
    assert_eq!(key.begin(103, 3, None), granted(3, 103));
    assert_eq!(key.fill(203, &value(3, 3)), Filled::Late);
    assert_eq!(key.begin(203, 4, None), granted(3, 203));
}

#[test]
fn an_invalidation_takes_the_lease_away_and_the_value() {
    let mut key = Key::default();
    key.begin(0, 1, None);
    key.invalidate(1, HOW);
    assert_eq!(key.0, None);
    assert_eq!(key.fill(2, &value(1, 0)), Filled::Gone);
    key.begin(3, 2, None);
    assert_eq!(key.fill(4, &value(2, 0)), Filled::Done);
    key.invalidate(5, HOW);
    assert_eq!(key.0, None);
}

#[test]
fn a_refresh_leaves_the_value_and_goes_with_it() {
    let mut key = Key::default();
    key.begin(0, 1, None);
    assert_eq!(key.fill(1, &value(1, 4)), Filled::Done);
    assert_eq!(key.begin(2, 2, Some(1)), granted(4, 2));
    let Some(Slot { entry: Entry::Value(there), expires: 10_001 }) = &key.0 else {
        panic!("{:?}", key.0)
    };
    assert_eq!(there.lease, Lease { ticket: ticket(2), until: 102 });
    assert!(is_there(&key.begin(3, 3, Some(1))), "one refreshes it already");
    assert_eq!(key.fill(4, &value(2, 3)), Filled::Older);
    assert_eq!(key.begin(5, 3, Some(1)), granted(4, 5), "and gave it back by that");
    key.invalidate(6, HOW);
    assert_eq!(key.fill(7, &value(3, 5)), Filled::Gone);
}

#[test]
fn a_floor_rises_and_keeps_what_is_new_enough() {
    let mut key = Key::default();
    key.begin(0, 1, None);
    assert_eq!(key.fill(1, &value(1, 7)), Filled::Done);
    key.invalidate(2, Invalidation { floor: 7, ..HOW });
    assert!(matches!(key.begin(3, 2, None), Begun::There(Entry::Value(_))));
    key.invalidate(4, Invalidation { floor: 9, ..HOW });
    key.invalidate(5, Invalidation { floor: 8, ..HOW });
    assert_eq!(key.begin(6, 3, None), granted(9, 6));
    assert_eq!(key.fill(7, &value(3, 8)), Filled::Older);
    assert_eq!(key.begin(8, 4, None), granted(9, 8));
    assert_eq!(key.fill(9, &value(4, 9)), Filled::Done);
}

#[test]
fn the_last_value_is_kept_for_those_who_want_it() {
    let mut key = Key::default();
    key.begin(0, 1, None);
    assert_eq!(key.fill(1, &value(1, 0)), Filled::Done);
    key.invalidate(2, Invalidation { keep_ms: 500, ..HOW });
    assert_eq!(key.begin(3, 2, None), granted(0, 3));
    key.invalidate(4, Invalidation { keep_ms: 500, ..HOW });
    assert_eq!(key.begin(5, 3, None), granted(0, 5));
    let Begun::There(Entry::Gap(gap)) = key.begin(6, 4, None) else { panic!("{:?}", key.0) };
    assert_eq!((gap.died, gap.last), (2, Some(value(1, 0))));
    key.apply(give_up(key.0.as_ref(), 7, ticket(3)));
    assert!(key.0.is_some());
    assert_eq!(key.begin(503, 5, None), granted(0, 503), "and is gone then");
    key.apply(give_up(key.0.as_ref(), 504, ticket(4)));
    assert!(is_there(&key.begin(505, 6, None)), "given up by somebody else");
    key.apply(give_up(key.0.as_ref(), 506, ticket(5)));
    assert_eq!(key.0, None);
}

#[test]
fn intents_keep_everybody_away_until_the_last_has_settled() {
    let mut key = Key::default();
    key.begin(0, 1, None);
    key.intend(1, 11);
    key.intend(2, 12);
    assert_eq!(key.fill(3, &value(1, 0)), Filled::Gone);
    assert!(matches!(key.begin(4, 2, None), Begun::There(Entry::Intents(_))));
    assert_eq!(key.settle(5, 11, Invalidation { floor: 3, ..HOW }), Settled::Held);
    assert!(is_there(&key.begin(6, 2, None)));
    assert_eq!(key.settle(7, 12, Invalidation { floor: 2, ..HOW }), Settled::Held);
    assert_eq!(key.begin(8, 3, None), granted(3, 8));
    assert_eq!(key.settle(9, 12, HOW), Settled::Lapsed, "again: costs the lease");
    assert_eq!(key.fill(10, &value(3, 3)), Filled::Gone);
}

#[test]
fn a_writer_that_is_gone_is_believed_for_so_long() {
    let mut key = Key::default();
    key.invalidate(0, Invalidation { floor: 3, ..HOW });
    key.intend(1, 11);
    key.intend(50, 12);
    assert!(is_there(&key.begin(120, 1, None)), "one lives");
    assert_eq!(key.begin(151, 1, None), granted(3, 151));
    assert_eq!(key.fill(152, &value(1, 3)), Filled::Done);
    assert_eq!(key.settle(153, 11, HOW), Settled::Lapsed);
    assert_eq!(key.0, None, "what was filled meanwhile is gone");
}
