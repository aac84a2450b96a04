//! The steps.

use super::{Entry, Gap, Intents, Lease, Millis, Slot, Ticket, Value};

/// What a step does to the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Keep,
    /// This is there now.
    Put(Slot),
    /// Nothing is there now.
    Remove,
}

/// The answer to [`begin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Load it. The lease counts from now.
    Granted {
        /// The smallest version that may be filled.
        floor: u64,
        /// When.
        now: Millis,
    },
    /// No: this is there. A value that was not excepted is to be taken; else somebody else loads one, or writes.
    There(Entry),
}

/// The answer to [`fill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a fill may be refused"]
pub enum Filled {
    /// It is there.
    Done,
    /// The lease was taken away: by an invalidation, by a writer, or with all that the store had.
    Gone,
    /// The lease has ended.
    Late,
    /// It is older than what the store knows of.
    Older,
}

/// The answer to [`settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The intent lasted until now: no reader filled anything meanwhile.
    Held,
    /// It did not. What was filled meanwhile is gone now, and may have been served.
    Lapsed,
}

/// How to invalidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalidation {
    /// The version that the database has now; a value of that version or a later one stays. 0: not known.
    pub floor: u64,
    /// How long a floor is remembered.
    pub floor_ms: Millis,
    /// How long the value is kept for those who take one that is gone; 0: not at all.
    pub keep_ms: Millis,
}

fn live(slot: Option<&Slot>, now: Millis) -> Option<&Slot> {
    slot.filter(|slot| slot.expires > now)
}

fn put(entry: Entry, expires: Millis) -> Change {
    Change::Put(Slot { entry, expires })
}

/// A gap that nobody has to do with any more is nothing.
fn put_gap(gap: Gap, expires: Millis) -> Change {
    match gap {
        Gap { lease: Lease::NONE, floor: 0, last: None, .. } => Change::Remove,
        gap => put(Entry::Gap(gap), expires),
    }
}

/// Asks for the right to fill. `except`: the fill of a value that is there and does not do.
pub fn begin(
    slot: Option<&Slot>,
    now: Millis,
    ticket: Ticket,
    lease_ms: Millis,
    except: Option<Ticket>,
) -> (Change, Begun) {
    let lease = Lease { ticket, until: now + lease_ms };
    let granted = |floor| Begun::Granted { floor, now };
    let Some(Slot { entry, expires }) = live(slot, now) else {
        let gap = Gap { lease, floor: 0, died: 0, last: None };
        return (put(Entry::Gap(gap), lease.until), granted(0));
    };
    let there = || (Change::Keep, Begun::There(entry.clone()));
    match entry {
        Entry::Value(value) if except != Some(value.fill) => there(),
        Entry::Value(value) if value.lease.is_live(now) => there(),
        Entry::Value(value) => {
            // It stays what it is to everybody else, and for as long.
            let value = Value { lease, ..value.clone() };
            let floor = value.version;
            (put(Entry::Value(value), *expires), granted(floor))
        }
        Entry::Gap(gap) if gap.lease.is_live(now) => there(),
        Entry::Gap(gap) => {
            let gap = Gap { lease, ..gap.clone() };
            let floor = gap.floor;
            (put(Entry::Gap(gap), lease.until.max(*expires)), granted(floor))
        }
        Entry::Intents(intents) if intents.writers.iter().any(|by| by.is_live(now)) => there(),
        Entry::Intents(Intents { floor, .. }) => {
            let gap = Gap { lease, floor: *floor, died: 0, last: None };
            (put(Entry::Gap(gap), lease.until.max(*expires)), granted(*floor))
        }
    }
}

/// Fills, if the lease of the value's own ticket is there. May be sent again.
pub fn fill(slot: Option<&Slot>, now: Millis, value: &Value, ttl_ms: Millis) -> (Change, Filled) {
    let Some(Slot { entry, expires }) = live(slot, now) else {
        return (Change::Keep, Filled::Gone);
    };
    let (lease, floor) = match entry {
        Entry::Value(there) if there.fill == value.fill => return (Change::Keep, Filled::Done),
        Entry::Value(there) => (there.lease, there.version),
        Entry::Gap(gap) => (gap.lease, gap.floor),
        Entry::Intents(_) => return (Change::Keep, Filled::Gone),
    };
    if lease.ticket != value.fill {
        (Change::Keep, Filled::Gone)
    } else if lease.until <= now {
        (Change::Keep, Filled::Late)
    } else if value.version < floor {
        (without_lease(entry, *expires), Filled::Older)
    } else {
        let value = Value { lease: Lease::NONE, ..value.clone() };
        (put(Entry::Value(value), now + ttl_ms), Filled::Done)
    }
}

/// Sets a value, whatever is there: a value, a lease or a writer.
pub fn set(now: Millis, value: &Value, ttl_ms: Millis) -> Change {
    put(Entry::Value(Value { lease: Lease::NONE, ..value.clone() }), now + ttl_ms)
}

fn without_lease(entry: &Entry, expires: Millis) -> Change {
    match entry {
        Entry::Value(there) => {
            put(Entry::Value(Value { lease: Lease::NONE, ..there.clone() }), expires)
        }
        Entry::Gap(gap) => put_gap(Gap { lease: Lease::NONE, ..gap.clone() }, expires),
        Entry::Intents(_) => Change::Keep,
    }
}

/// Gives a lease back: nothing will be filled under that ticket. May be sent again.
pub fn give_up(slot: Option<&Slot>, now: Millis, ticket: Ticket) -> Change {
    match live(slot, now) {
        Some(Slot {
            entry: entry @ (Entry::Value(Value { lease, .. }) | Entry::Gap(Gap { lease, .. })),
            expires,
        }) if lease.ticket == ticket => without_lease(entry, *expires),
        _ => Change::Keep,
    }
}

/// The database has changed. May be sent again, and may come late: that costs a load.
pub fn invalidate(slot: Option<&Slot>, now: Millis, how: Invalidation) -> Change {
    let Invalidation { floor, floor_ms, keep_ms } = how;
    let floor_ends = if floor > 0 { now + floor_ms } else { 0 };
    let lease = Lease::NONE;
    let Some(Slot { entry, expires }) = live(slot, now) else {
        return put_gap(Gap { lease, floor, died: 0, last: None }, floor_ends);
    };
    match entry {
        Entry::Value(value) if floor > 0 && value.version >= floor => Change::Keep,
        Entry::Value(value) => {
            let last = (keep_ms > 0).then(|| Value { lease, ..value.clone() });
            let kept = if keep_ms > 0 { now + keep_ms } else { 0 };
            put_gap(Gap { lease, floor, died: now, last }, floor_ends.max(kept))
        }
        Entry::Gap(gap) => {
            let gap = Gap { lease, floor: floor.max(gap.floor), ..gap.clone() };
            put_gap(gap, floor_ends.max(*expires))
        }
        Entry::Intents(intents) => {
            let intents = Intents { floor: floor.max(intents.floor), ..intents.clone() };
            put(Entry::Intents(intents), floor_ends.max(*expires))
        }
    }
}

/// A writer has committed this value, in a version from 1 on. Whether it is there now, in that version. May be sent again,
/// and may come late. `how`: as for [`invalidate`]; its floor is the version.
///
/// It only ever replaces an older value. Where there is none nobody knows what was committed since: the store may have
/// forgotten that a later version was invalidated, and then a late writer would bring its own back for good. So
/// there, and over a value whose version is not known, it is an invalidation to that version.
pub fn update(
    slot: Option<&Slot>,
    now: Millis,
    value: &Value,
    ttl_ms: Millis,
    how: Invalidation,
) -> (Change, bool) {
    match live(slot, now).map(|slot| &slot.entry) {
        Some(Entry::Value(there)) if there.version > 0 && there.version == value.version => {
            (Change::Keep, true)
        }
        Some(Entry::Value(there))
            if there.version > 0
                && there.version < value.version
                && there.schema <= value.schema =>
        {
            // The database has had it since some time after the load of what was there.
            let (lease, made, cost) = (Lease::NONE, there.made, there.cost);
            let value = Value { lease, made, cost, ..value.clone() };
            (put(Entry::Value(value), now + ttl_ms), true)
        }
        _ => (invalidate(slot, now, Invalidation { floor: value.version, ..how }), false),
    }
}

/// A writer is about to change the database: nothing is served or filled until it has settled, or for `ttl_ms`.
/// May be sent again before that.
pub fn intend(slot: Option<&Slot>, now: Millis, writer: Ticket, ttl_ms: Millis) -> Change {
    let this = Lease { ticket: writer, until: now + ttl_ms };
    let (mut writers, floor, expires) = match live(slot, now) {
        Some(Slot { entry: Entry::Intents(intents), expires }) => {
            (others(intents, now, writer), intents.floor, *expires)
        }
        Some(Slot { entry: Entry::Gap(gap), expires }) => (Vec::new(), gap.floor, *expires),
        Some(Slot { entry: Entry::Value(_), .. }) | None => (Vec::new(), 0, 0),
    };
    writers.push(this);
    put(Entry::Intents(Intents { floor, writers }), this.until.max(expires))
}

/// A writer is done, whether it has changed anything or not. May be sent again, and may come late.
pub fn settle(
    slot: Option<&Slot>,
    now: Millis,
    writer: Ticket,
    how: Invalidation,
) -> (Change, Settled) {
    let Some(Slot { entry: Entry::Intents(intents), expires }) = live(slot, now) else {
        return (invalidate(slot, now, how), Settled::Lapsed);
    };
    let held = intents.writers.iter().any(|by| by.ticket == writer && by.is_live(now));
    let settled = if held { Settled::Held } else { Settled::Lapsed };
    let (writers, floor) = (others(intents, now, writer), how.floor.max(intents.floor));
    let expires = if how.floor > 0 { (now + how.floor_ms).max(*expires) } else { *expires };
    let change = match writers.is_empty() {
        true => put_gap(Gap { lease: Lease::NONE, floor, died: 0, last: None }, expires),
        false => put(Entry::Intents(Intents { floor, writers }), expires),
    };
    (change, settled)
}

/// The writers that are still believed, except one.
fn others(intents: &Intents, now: Millis, except: Ticket) -> Vec<Lease> {
    let others = intents.writers.iter().copied();
    others.filter(|by| by.is_live(now) && by.ticket != except).collect()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
