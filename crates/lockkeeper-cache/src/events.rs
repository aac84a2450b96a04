//! The last things of note, by key.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use lockkeeper::clock::Instant;
use parking_lot::Mutex;
use serde::Serialize;

/// So many are remembered, of all keys together.
const KEPT: usize = 512;

/// What happened to a key in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Event {
    /// A value was loaded and not cached: its lease was gone, by an invalidation, a writer, or because the store forgot it.
    FillGone,
    /// The same, because its load took longer than the lease.
    FillLate,
    /// The same, because it was older than what the store knows of.
    FillOlder,
    /// The same, because the store did not take it.
    FillFailed,
    /// The same, because it was too large or could not be encoded.
    FillUnfit,
    /// What was cached could not be read, and was loaded anew.
    Unreadable,
    /// What was cached is of a newer program, and was left alone.
    Newer,
    /// A value that had been invalidated was served, because the read would rather have that than wait.
    ServedStale,
    /// The loader failed.
    LoadFailed,
    /// The loader panicked.
    LoadPanicked,
    /// A load was not done in time.
    LoadTimeout,
    /// A load was not begun, to spare the database.
    Busy,
    /// The store did not answer, or was left alone because of that.
    StoreDown,
    /// It was loaded anew before it ended, because it is read much.
    Refreshed,
    /// The audit found something else in the database, and took it away: from the store, or from the first level if only that had it.
    AuditStale,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FillGone => {
                "a load was not cached: its lease was gone (invalidated, written, or forgotten by the store)"
            }
            Self::FillLate => "a load was not cached: it took longer than its lease",
            Self::FillOlder => "a load was not cached: it was older than what the store knows of",
            Self::FillFailed => "a load was not cached: the store did not take it",
            Self::FillUnfit => {
                "a load was not cached: it was too large or could not be encoded"
            }
            Self::Unreadable => "what was cached could not be read, and was loaded anew",
            Self::Newer => "what was cached is of a newer program, and was left alone",
            Self::ServedStale => "an invalidated value was served to a read that takes one",
            Self::LoadFailed => "the loader failed",
            Self::LoadPanicked => "the loader panicked",
            Self::LoadTimeout => "a load was not done in time",
            Self::Busy => "not loaded, to spare the database",
            Self::StoreDown => "the store did not answer, or was left alone",
            Self::Refreshed => "loaded anew before it ended, because it is read much",
            Self::AuditStale => "the audit found something else in the database, and took it away",
        })
    }
}

/// A ring of them.
#[derive(Debug, Default)]
pub(crate) struct Events(Mutex<VecDeque<(Instant, Box<str>, Event)>>);

impl Events {
    pub(crate) fn note(&self, name: &str, event: Event) {
        let now = Instant::now();
        let mut ring = self.0.lock();
        // Many of the same would drive out the others.
        if let Some((at, of, last)) = ring.back_mut()
            && *last == event
            && **of == *name
        {
            *at = now;
            return;
        }
        if ring.len() == KEPT {
            ring.pop_front();
        }
        ring.push_back((now, name.into(), event));
    }

    /// Those of a key with their age, the youngest first.
    pub(crate) fn of(&self, name: &str) -> Vec<(Duration, Event)> {
        let now = Instant::now();
        let ring = self.0.lock();
        let its = ring.iter().rev().filter(|(_, of, _)| **of == *name);
        its.map(|(at, _, event)| (now.since(*at), *event)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept() {
        let events = Events::default();
        events.note("a", Event::Busy);
        events.note("a", Event::FillLate);
        let kinds = |name| events.of(name).into_iter().map(|(_, event)| event).collect::<Vec<_>>();
        assert_eq!(kinds("a"), [Event::FillLate, Event::Busy]);
        for _ in 0..KEPT {
            events.note("b", Event::Busy);
        }
        assert_eq!((kinds("a").len(), kinds("b").len()), (2, 1), "many of the same are one");
        for number in 0..KEPT - 2 {
            events.note(&format!("c{number}"), Event::Busy);
        }
        assert_eq!((kinds("a"), kinds("b").len()), (vec![Event::FillLate], 1), "the oldest goes");
    }
}
