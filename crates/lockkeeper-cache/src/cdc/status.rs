//! What a follower does.

use std::collections::HashSet;
use std::error::Error as StdError;

use lockkeeper::clock::Instant;
use parking_lot::Mutex;

use super::{Lag, Position};

/// So many texts are known apart, to say each once.
const MOST_SAID: usize = 1000;

/// What a follower does now, and what it did since it was started. Of this process alone: one on standby has done nothing.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// What it is doing.
    pub state: State,
    /// Where it is in the log: all before that is invalidated, and that is saved.
    pub position: Option<Position>,
    /// How far it is behind, as of the last thing that the log said.
    pub lag: Lag,
    /// How often it got its turn.
    pub tenures: u64,
    /// Changes that the log told of.
    pub changes: u64,
    /// Keys that were invalidated.
    pub keys: u64,
    /// Keys that were read again.
    pub refreshed: u64,
    /// Keys that were to be read again and are not cached: they are none of that cache, the loader failed, somebody was about to write
    /// them, they are too large, or there were too many. Who reads one next loads it.
    pub not_refreshed: u64,
    /// Namespaces that were cleared, for whatever reason.
    pub cleared: u64,
    /// New beginnings, each of which clears every namespace: history was lost, or nobody knew where it had been left.
    pub resets: u64,
    /// Rows whose keys the log did not have: the namespace was cleared.
    pub unknown: u64,
    /// Keys that writers named in a namespace that this follower does not have. Nobody has invalidated them.
    pub foreign: u64,
    /// Times that something failed: the database, the store, the locks.
    pub failures: u64,
    /// Times that the position was saved.
    pub saves: u64,
    /// What failed last.
    pub last_error: Option<Failure>,
}

/// What a follower is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Waiting for its turn: another one follows, or nobody has asked yet.
    #[default]
    Standby,
    /// It is its turn, and it looks at the database and at where it was left.
    Starting,
    /// Beginning anew: it clears every namespace.
    Resetting,
    /// Following the log.
    Following,
    /// Something is in the way. It is tried again, all the time or every few seconds.
    Waiting {
        /// What.
        why: String,
    },
    /// Ended.
    Stopped,
}

/// Something that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What.
    pub what: String,
    /// When.
    pub at: Instant,
}

/// Where a follower writes down what it does.
#[derive(Debug)]
pub(super) struct Board {
    status: Mutex<Status>,
    said: Mutex<HashSet<String>>,
}

impl Board {
    pub(super) fn new() -> Self {
        let status = Status {
            state: State::Standby,
            position: None,
            lag: Lag::default(),
            tenures: 0,
            changes: 0,
            keys: 0,
            refreshed: 0,
            not_refreshed: 0,
            cleared: 0,
            resets: 0,
            unknown: 0,
            foreign: 0,
            failures: 0,
            saves: 0,
            last_error: None,
        };
        Self { status: Mutex::new(status), said: Mutex::default() }
    }

    pub(super) fn read(&self) -> Status {
        self.status.lock().clone()
    }

    pub(super) fn saves(&self) -> u64 {
        self.status.lock().saves
    }

    pub(super) fn note(&self, note: impl FnOnce(&mut Status)) {
        note(&mut self.status.lock());
    }

    pub(super) fn state(&self, state: State) {
        self.note(|status| status.state = state);
    }

    pub(super) fn failed(&self, what: impl Into<String>) {
        let failure = Failure { what: what.into(), at: Instant::now() };
        self.note(|status| {
            status.failures += 1;
            status.last_error = Some(failure);
        });
    }

    /// Whether this is to be said: for the first time, and not after very much else.
    pub(super) fn is_news(&self, text: &str) -> bool {
        let mut said = self.said.lock();
        said.len() < MOST_SAID && !said.contains(text) && said.insert(text.to_owned())
    }
}

/// An error and all that is behind it.
pub(super) fn told(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut behind = error.source();
    while let Some(error) = behind {
        text = format!("{text}: {error}");
        behind = error.source();
    }
    text
}
