//! A store that stops before each step but looks, which are how the other steps wait for each other.

use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_cache::entry::{Begun, Entry, Filled, Invalidation, Millis, Settled, Ticket, Value};
use lockkeeper_cache::store::{Delete, Deletes, Due, Result};
use lockkeeper_cache::{Memory, Seen, Store};
use testkit::staleness::lab::At;

use crate::world::{SECOND_DELETE, stop};

/// What is left out, to see whether anybody notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A fill is done whatever has become of its lease.
    FillsWithoutLease,
    /// Invalidations are acknowledged and not done.
    LosesInvalidations,
    /// Writers are not announced.
    HidesWriters,
    /// The value is taken away and the lease is not.
    LeavesLeases,
}

#[derive(Debug)]
pub(crate) struct Gate {
    store: Memory,
    at: Option<At>,
    mutant: Option<Mutant>,
}

impl Gate {
    pub(crate) fn new(store: Memory, at: Option<At>, mutant: Option<Mutant>) -> Self {
        Self { store, at, mutant }
    }

    async fn stop(&self, place: &'static str) {
        stop(self.at.as_ref(), place).await;
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

#[async_trait]
impl Store for Gate {
    fn now(&self) -> Millis {
        self.store.now()
    }

    async fn get(&self, keys: &[&str]) -> Result<Vec<Seen>> {
        self.store.get(keys).await
    }

    async fn begin(
        &self,
        key: &str,
        ticket: Ticket,
        lease: Duration,
        except: Option<Ticket>,
    ) -> Result<Begun> {
        self.stop("begin").await;
        self.store.begin(key, ticket, lease, except).await
    }

    async fn fill(&self, key: &str, value: &Value, ttl: Duration) -> Result<Filled> {
        self.stop("fill").await;
        if self.is(Mutant::FillsWithoutLease) {
            self.store.put(key, value, ttl).await?;
            return Ok(Filled::Done);
        }
        self.store.fill(key, value, ttl).await
    }

    async fn put(&self, key: &str, value: &Value, ttl: Duration) -> Result<()> {
        self.stop("put").await;
        self.store.put(key, value, ttl).await
    }

    async fn give_up(&self, key: &str, ticket: Ticket) -> Result<()> {
        self.stop("give up").await;
        self.store.give_up(key, ticket).await
    }

    async fn invalidate(&self, keys: &[&str], how: Invalidation) -> Result<()> {
        self.stop("invalidate").await;
        if self.is(Mutant::LosesInvalidations) {
            return Ok(());
        }
        if self.is(Mutant::LeavesLeases) {
            let there = self.store.get(keys).await?;
            let gap = |seen: &Seen| matches!(seen, Seen::Entry(Entry::Gap(_)));
            if there.iter().any(gap) {
                return Ok(());
            }
        }
        self.store.invalidate(keys, how).await
    }

    async fn intend(&self, keys: &[&str], writer: Ticket, ttl: Duration) -> Result<()> {
        self.stop("intend").await;
        match self.is(Mutant::HidesWriters) {
            true => Ok(()),
            false => self.store.intend(keys, writer, ttl).await,
        }
    }

    async fn settle(&self, keys: &[&str], writer: Ticket, how: Invalidation) -> Result<Settled> {
        self.stop("settle").await;
        self.store.settle(keys, writer, how).await
    }

    fn deletes(&self) -> Option<&dyn Deletes> {
        Some(self)
    }
}

/// An actor leaves what is due later to others, as one does that ends.
#[async_trait]
impl Deletes for Gate {
    async fn schedule(
        &self,
        queue: &str,
        ticket: Ticket,
        key: &str,
        after: Duration,
        keep: Duration,
    ) -> Result<()> {
        // The first time it comes together with a delete, and an actor is at one place only.
        if after == SECOND_DELETE {
            self.stop("schedule").await;
        }
        self.store.schedule(queue, ticket, key, after, keep).await
    }

    async fn due(&self, queue: &str, most: usize) -> Result<Due> {
        match self.at {
            Some(_) => Ok(Due { deletes: Vec::new(), next: None }),
            None => self.store.due(queue, most).await,
        }
    }

    async fn done(&self, queue: &str, deletes: &[Delete]) -> Result<()> {
        self.store.done(queue, deletes).await
    }
}
