//! A model of what one node does: the scripts in `lua`, without Redis. For tests.

use std::time::Duration;

use super::readmit::{Memory, View};
use super::votes::{Absence, Vote};

/// Time on the node's clock.
pub(super) type Time = Duration;

/// Who took the lock: the value of its key.
pub(super) type Value = u8;

/// One node, with one lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Node {
    /// Another one after each restart.
    pub(super) run: u8,
    pub(super) record: Option<Record>,
    pub(super) lock: Option<(Value, Time)>,
    /// Until when a lease may be alive that it voted for.
    pub(super) busy: Time,
}

/// That a node is one of us.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Record {
    pub(super) run: u8,
    pub(super) standing: Standing,
    pub(super) counter: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Standing {
    /// Waits since then until somebody says for how long.
    Marked(Time),
    /// Votes from then on.
    From(Time),
}

impl Node {
    /// One that votes.
    pub(super) fn voting() -> Self {
        let standing = Standing::From(Time::ZERO);
        let record = Some(Record { run: 0, standing, counter: 0 });
        Self { run: 0, record, lock: None, busy: Time::ZERO }
    }

    /// The record of a node that votes.
    fn present(&mut self, now: Time) -> Result<&mut Record, Absence> {
        let run = self.run;
        match &mut self.record {
            None => Err(Absence::Blank),
            Some(record) if record.run != run => Err(Absence::Restarted),
            Some(Record { standing: Standing::Marked(_), .. }) => Err(Absence::Waiting(None)),
            Some(Record { standing: Standing::From(at), .. }) if *at > now => {
                Err(Absence::Waiting(Some(at.saturating_sub(now))))
            }
            Some(record) => Ok(record),
        }
    }

    /// Who has the lock now.
    pub(super) fn held(&self, now: Time) -> Option<(Value, Time)> {
        self.lock.filter(|(_, until)| *until > now)
    }

    /// `take.lua`.
    pub(super) fn take(&mut self, now: Time, by: Value, ttl: Time, tokens: (u64, u64)) -> Vote {
        let held = self.held(now);
        let record = match self.present(now) {
            Ok(record) => record,
            Err(absence) => return Vote::Absent(absence),
        };
        if let Some((by, until)) = held {
            return Vote::Held { by: by.to_string(), left: until.saturating_sub(now) };
        }
        let (first, last) = tokens;
        let accepted = record.counter < first;
        if accepted {
            record.counter = last;
        }
        let counter = record.counter;
        self.lock = Some((by, now + ttl));
        self.busy = self.busy.max(now + ttl);
        Vote::Yes { counter, accepted }
    }

    /// `raise.lua`.
    pub(super) fn raise(&mut self, now: Time, by: Value, last: u64) -> bool {
        let ours = self.held(now).is_some_and(|(other, _)| other == by);
        match self.present(now) {
            Ok(record) if ours => {
                record.counter = record.counter.max(last);
                true
            }
            _ => false,
        }
    }

    /// `renew.lua`.
    pub(super) fn renew(&mut self, now: Time, by: Value, ttl: Time) -> bool {
        let ours = self.held(now).is_some_and(|(other, _)| other == by);
        let renewed = ours && self.present(now).is_ok();
        if renewed {
            self.lock = Some((by, now + ttl));
            self.busy = self.busy.max(now + ttl);
        }
        renewed
    }

    /// `release.lua`.
    pub(super) fn release(&mut self, now: Time, by: Value) -> bool {
        let ours = self.held(now).is_some_and(|(other, _)| other == by);
        if ours {
            self.lock = None;
        }
        ours
    }

    /// `look.lua`, which also marks.
    pub(super) fn look(&mut self, now: Time, mark: bool) -> View {
        let busy = self.busy.saturating_sub(now);
        let counter = self.record.as_ref().map_or(0, |record| record.counter);
        let memory = Memory { counter, busy };
        match self.present(now) {
            Ok(_) => View::Voting(memory),
            Err(Absence::Waiting(Some(_))) => View::Admitted,
            Err(Absence::Waiting(None)) => match &self.record {
                Some(Record { standing: Standing::Marked(since), .. }) => {
                    View::Marked { waited: now.saturating_sub(*since), memory }
                }
                _ => View::Unknown,
            },
            Err(_) if mark => {
                let standing = Standing::Marked(now);
                self.record = Some(Record { run: self.run, standing, counter });
                View::Marked { waited: Time::ZERO, memory }
            }
            Err(_) => View::Unmarked(memory),
        }
    }

    /// `admit.lua`.
    pub(super) fn admit(&mut self, now: Time, wait: Time, counter: u64) {
        if self.present(now) == Err(Absence::Waiting(None))
            && let Some(record) = &mut self.record
        {
            record.standing = Standing::From(now + wait);
            record.counter = record.counter.max(counter);
        }
    }

    /// FLUSHALL.
    pub(super) fn flush(&mut self) {
        (self.record, self.lock, self.busy) = (None, None, Time::ZERO);
    }

    /// A restart, with what is here or with what was there before.
    pub(super) fn restart(&mut self, data: Self) {
        *self = Self { run: self.run + 1, ..data };
    }
}
