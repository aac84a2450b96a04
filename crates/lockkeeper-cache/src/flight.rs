//! One load for all tasks of this process that may share it.
//!
//! A read may take the outcome of a load only if that load cannot be older than what the read must see: it began after
//! the read did, or the store showed the read, when it looked, that the lease of that load is still there. An
//! invalidation that was done before the read began would have taken that lease away.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::entry::Ticket;

/// All that are under way.
#[derive(Debug)]
pub(crate) struct Flights<T> {
    /// Counts what begins.
    order: AtomicU64,
    under_way: Mutex<HashMap<Box<str>, Arc<Flight<T>>>>,
}

/// When a read began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn(u64);

/// One that is under way.
#[derive(Debug)]
pub(crate) struct Flight<T> {
    key: Box<str>,
    began: u64,
    /// Under which it loads, or has asked to.
    ticket: Mutex<Ticket>,
    outcome: watch::Sender<Option<T>>,
}

/// What a read has to do with a flight.
pub(crate) enum Role<T> {
    /// It may wait for this one.
    Joined(Arc<Flight<T>>),
    /// This one is new: somebody has to do it.
    First(Arc<Flight<T>>),
}

impl<T: Clone> Flights<T> {
    pub(crate) fn new() -> Self {
        Self { order: AtomicU64::new(0), under_way: Mutex::default() }
    }

    /// To be taken before a read looks at anything.
    pub(crate) fn turn(&self) -> Turn {
        Turn(self.order.fetch_add(1, Ordering::SeqCst))
    }

    /// The flight for a read that began then, and saw the lease of that ticket.
    pub(crate) fn join(&self, key: &str, turn: Turn, shown: Option<Ticket>) -> Role<T> {
        let mut under_way = self.under_way.lock();
        if let Some(flight) = under_way.get(key)
            && (flight.began > turn.0 || shown == Some(*flight.ticket.lock()))
        {
            return Role::Joined(Arc::clone(flight));
        }
        let began = self.order.fetch_add(1, Ordering::SeqCst);
        let (ticket, outcome) = (Mutex::new(Ticket::NONE), watch::Sender::new(None));
        let flight = Arc::new(Flight { key: key.into(), began, ticket, outcome });
        under_way.insert(key.into(), Arc::clone(&flight));
        Role::First(flight)
    }

    /// It is over. Who joined it has this.
    pub(crate) fn land(&self, flight: &Arc<Flight<T>>, outcome: T) {
        {
            let mut under_way = self.under_way.lock();
            // A later one may be in its place.
            if under_way.get(&flight.key).is_some_and(|there| Arc::ptr_eq(there, flight)) {
                under_way.remove(&flight.key);
            }
        }
        flight.outcome.send_replace(Some(outcome));
    }
}

impl<T: Clone + Send + Sync> Flight<T> {
    pub(crate) fn set_ticket(&self, ticket: Ticket) {
        *self.ticket.lock() = ticket;
    }

    /// What came of it. Cancel safe.
    pub(crate) async fn outcome(&self) -> Option<T> {
        let mut outcome = self.outcome.subscribe();
        // Fails only when nobody can land it any more, and we hold it.
        let landed = outcome.wait_for(Option::is_some).await.ok()?;
        landed.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(role: Role<u8>) -> Arc<Flight<u8>> {
        match role {
            Role::First(flight) => flight,
            Role::Joined(_) => panic!("joined"),
        }
    }

    fn joined(role: Role<u8>) -> Arc<Flight<u8>> {
        match role {
            Role::Joined(flight) => flight,
            Role::First(_) => panic!("not joined"),
        }
    }

    #[tokio::test]
    async fn only_a_younger_one_or_one_that_the_store_shows_is_joined() {
        let flights = Flights::new();
        let [early, turn] = [flights.turn(), flights.turn()];
        let flight = first(flights.join("k", turn, None));
        let ticket = Ticket::new();
        flight.set_ticket(ticket);
        joined(flights.join("k", early, None));
        first(flights.join("other", early, None));
        let late = flights.turn();
        joined(flights.join("k", late, Some(ticket)));
        let second = first(flights.join("k", late, Some(Ticket::new())));
        // The first one lands, and leaves the second alone.
        flights.land(&flight, 1);
        let found = joined(flights.join("k", late, None));
        flights.land(&second, 2);
        assert_eq!((flight.outcome().await, found.outcome().await), (Some(1), Some(2)));
        first(flights.join("k", early, None));
    }
}
