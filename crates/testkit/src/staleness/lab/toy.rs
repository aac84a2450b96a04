//! A database of one key, a cache in front of it and the ways to keep the two together that are
//! taught, each with the place in it where it goes wrong.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use lockkeeper::clock::Instant;
use parking_lot::Mutex;

use super::At;
use crate::staleness::{Kind, Operation, Outcome, Source};

/// What a writer does besides writing, and what a reader may put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    UpdateThenDelete,
    DeleteThenUpdate,
    UpdateThenSet,
    /// The second delete comes after the writer returned, at any time.
    DoubleDelete,
    /// The same with a delay longer than any fill.
    LateDoubleDelete,
    /// A fill needs the lease of its miss, and a delete kills it.
    Lease,
    /// The mutant of it that forgets to look at the lease.
    LeaseUnchecked,
    /// The mutant that returns before it deletes.
    LeaseAckFirst,
    /// The lease with the delete inside the transaction.
    LeaseDeleteThenUpdate,
    /// The key is marked before the commit; until the mark goes, readers ask the database.
    Intent,
}

impl Strategy {
    const fn leases(self) -> bool {
        matches!(
            self,
            Self::Lease
                | Self::LeaseUnchecked
                | Self::LeaseAckFirst
                | Self::LeaseDeleteThenUpdate
                | Self::Intent
        )
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Entry {
    #[default]
    Nothing,
    Value(u64),
    Lease(u64),
    Intent,
}

#[derive(Debug, Default)]
struct State {
    database: u64,
    entry: Entry,
    leases: u64,
    filling: u64,
    clock: u64,
    history: Vec<Operation>,
}

/// The toy. Its clock ticks with every look at it.
#[derive(Clone, Debug)]
pub(super) struct World {
    strategy: Strategy,
    state: Arc<Mutex<State>>,
}

impl World {
    /// A database at version 1, and a cache that has it or not.
    pub(super) fn new(strategy: Strategy, warm: bool) -> Self {
        let world = Self { strategy, state: Arc::default() };
        let inv = world.now();
        world.state.lock().database = 1;
        world.record(0, Kind::Write, inv, 1, None);
        if warm {
            world.put(Entry::Value(1));
        }
        world
    }

    fn now(&self) -> Instant {
        let mut state = self.state.lock();
        state.clock += 1;
        Instant::from_nanos(state.clock)
    }

    fn record(&self, session: u64, kind: Kind, inv: Instant, version: u64, source: Option<Source>) {
        let res = self.now();
        let mut state = self.state.lock();
        let number = state.history.len() as u64;
        state.history.push(Operation {
            process: 0,
            number,
            session,
            key: "k".to_owned(),
            kind,
            inv,
            res,
            outcome: Outcome::Ok,
            version: Some(version),
            source,
        });
    }

    /// What happened, with a last look through the cache and at the database. A mark that its writer
    /// left behind has run out by then.
    pub(super) fn history(&self) -> Vec<Operation> {
        let inv = self.now();
        let state = self.state.lock();
        let database = state.database;
        let cached = match state.entry {
            Entry::Value(version) => version,
            _ => database,
        };
        drop(state);
        self.record(8, Kind::Final, inv, cached, Some(Source::L2));
        let inv = self.now();
        self.record(9, Kind::Truth, inv, database, None);
        self.state.lock().history.clone()
    }

    /// Reads through the cache, and fills it.
    pub(super) async fn read(&self, at: &At, session: u64) {
        let inv = self.now();
        let (found, lease) = self.look();
        if let Some(version) = found {
            return self.record(session, Kind::Read, inv, version, Some(Source::L2));
        }
        at.step("missed").await;
        let version = self.state.lock().database;
        at.step("has-read").await;
        self.fill(version, lease);
        self.record(session, Kind::Read, inv, version, Some(Source::Fill));
    }

    /// Reads through the cache or from the database, and fills nothing.
    pub(super) fn peek(&self, session: u64) {
        let inv = self.now();
        let state = self.state.lock();
        let (version, source) = match state.entry {
            Entry::Value(version) => (version, Source::L2),
            _ => (state.database, Source::Db),
        };
        drop(state);
        self.record(session, Kind::Read, inv, version, Some(source));
    }

    /// The value, or what allows to fill it.
    fn look(&self) -> (Option<u64>, Option<u64>) {
        let mut state = self.state.lock();
        match state.entry {
            Entry::Value(version) => (Some(version), None),
            Entry::Lease(_) | Entry::Intent => (None, None),
            Entry::Nothing => {
                state.leases += 1;
                state.filling += 1;
                if self.strategy.leases() {
                    state.entry = Entry::Lease(state.leases);
                }
                (None, Some(state.leases))
            }
        }
    }

    fn fill(&self, version: u64, lease: Option<u64>) {
        let Some(lease) = lease else { return };
        let mut state = self.state.lock();
        state.filling -= 1;
        let checked = self.strategy.leases() && self.strategy != Strategy::LeaseUnchecked;
        if !checked || state.entry == Entry::Lease(lease) {
            state.entry = Entry::Value(version);
        }
    }

    fn commit(&self) -> u64 {
        let mut state = self.state.lock();
        state.database += 1;
        state.database
    }

    fn put(&self, entry: Entry) {
        self.state.lock().entry = entry;
    }

    /// Waits until nobody fills.
    async fn outlasts_all_fills(&self) {
        poll_fn(|_| match self.state.lock().filling {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        })
        .await;
    }

    /// Writes the next version.
    pub(super) async fn write(&self, at: &At, session: u64) {
        let inv = self.now();
        let acked = |version| self.record(session, Kind::Write, inv, version, None);
        match self.strategy {
            Strategy::UpdateThenDelete | Strategy::Lease | Strategy::LeaseUnchecked => {
                let version = self.commit();
                at.step("committed").await;
                self.put(Entry::Nothing);
                acked(version);
            }
            Strategy::DeleteThenUpdate | Strategy::LeaseDeleteThenUpdate => {
                self.put(Entry::Nothing);
                at.step("deleted").await;
                acked(self.commit());
            }
            Strategy::UpdateThenSet => {
                let version = self.commit();
                at.step("committed").await;
                self.put(Entry::Value(version));
                acked(version);
            }
            Strategy::DoubleDelete | Strategy::LateDoubleDelete => {
                self.put(Entry::Nothing);
                at.step("deleted").await;
                acked(self.commit());
                at.step("delay").await;
                if self.strategy == Strategy::LateDoubleDelete {
                    self.outlasts_all_fills().await;
                }
                self.put(Entry::Nothing);
            }
            Strategy::LeaseAckFirst => {
                acked(self.commit());
                at.step("committed").await;
                self.put(Entry::Nothing);
            }
            Strategy::Intent => {
                self.put(Entry::Intent);
                at.step("marked").await;
                let version = self.commit();
                at.step("committed").await;
                self.put(Entry::Nothing);
                acked(version);
            }
        }
    }

    /// The writer was killed: unless it had returned, there is a write that nobody knows of, which
    /// may have happened at any time until now.
    pub(super) fn died(&self, session: u64) {
        let res = self.now();
        let mut state = self.state.lock();
        let mut write = state.history[0].clone();
        (write.session, write.outcome, write.version) = (session, Outcome::Unknown, None);
        (write.inv, write.res) = (write.res, res);
        state.history.push(write);
    }
}
