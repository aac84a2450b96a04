//! What happened, in the order in which it was seen to happen.
//!
//! Jepsen's vocabulary: an operation is invoked and then ends `Ok`, `Fail` (certainly not done) or
//! `Info` (not known). A holder records `Ok` of an acquire *after* it was granted and `Invoke` of the
//! release *before* it begins, so the time between the two lies inside the true hold: two of them
//! that overlap are proof, however the threads were scheduled.

use parking_lot::Mutex;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Getting the lock.
    Acquire,
    /// Giving it back.
    Release,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// About to be asked of the store.
    Invoke,
    /// Done, under this token.
    Ok(u64),
    /// Not done.
    Fail,
    /// Nobody knows.
    Info,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// Who.
    pub who: u32,
    /// What.
    pub op: Op,
    /// How far.
    pub stage: Stage,
}

/// A history under construction, shared by those who make it. Its order is the order of the calls.
#[derive(Debug, Default)]
pub struct History {
    events: Mutex<Vec<Event>>,
}

impl History {
    /// Takes down one event.
    pub fn record(&self, who: u32, op: Op, stage: Stage) {
        self.events.lock().push(Event { who, op, stage });
    }

    /// About to ask for the lock.
    pub fn asks(&self, who: u32) {
        self.record(who, Op::Acquire, Stage::Invoke);
    }

    /// Has it.
    pub fn has(&self, who: u32, token: u64) {
        self.record(who, Op::Acquire, Stage::Ok(token));
    }

    /// Is about to give it back.
    pub fn gives(&self, who: u32) {
        self.record(who, Op::Release, Stage::Invoke);
    }

    /// All events so far.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }
}
