//! One load for all tasks of this process that may share it.
//!
//! A read may take the outcome of a load only if that load cannot be older than what the read must see: it began after
//! the read did, or the store showed the read, when it looked, that the lease of that load is still there. An
//! invalidation that was done before the read began would have taken that lease away.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::entry::Ticket;

/// All that are under way.
#[derive(Debug)]
pub(crate) struct Flights<T> {
    /// Counts flights that begin.
    order: AtomicU64,
    under_way: Mutex<HashMap<Box<str>, Arc<Flight<T>>>>,
}

/// When a read began: after so many flights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn(u64);

/// One that is under way.
#[derive(Debug)]
pub(crate) struct Flight<T> {
    key: Box<str>,
    /// When; not yet while it waits for one before it.
    began: AtomicU64,
    /// For those who cannot share a lease.
    direct: bool,
    before: Mutex<Option<Arc<Self>>>,
    /// Under which it loads, or has asked to.
    ticket: Mutex<Ticket>,
    progress: watch::Sender<Progress<T>>,
}

/// How far one is.
#[derive(Debug)]
struct Progress<T> {
    outcome: Option<T>,
    fill: Fill,
}

/// What became of the value at the store. Begun, if at all, before the flight lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// This flight has put nothing there: somebody else did, or does.
    Other,
    /// The answer is still to come.
    UnderWay,
    /// It is there.
    Done,
    /// It is not for the store.
    Unfit,
    /// The store does not answer.
    Failed,
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
        // Not counted itself: hits would wait for each other.
        Turn(self.order.load(Ordering::SeqCst))
    }

    /// The flight for a read that began then, and saw the lease of that ticket.
    pub(crate) fn join(&self, key: &str, turn: Turn, shown: Option<Ticket>) -> Role<T> {
        let mut under_way = self.under_way.lock();
        if let Some(flight) = under_way.get(key)
            && (flight.is_after(turn) || shown == Some(*flight.ticket.lock()))
        {
            return Role::Joined(Arc::clone(flight));
        }
        let began = self.order.fetch_add(1, Ordering::SeqCst);
        let flight = Arc::new(Flight::new(key, began, false, None));
        under_way.insert(key.into(), Arc::clone(&flight));
        Role::First(flight)
    }

    /// The same for a read that goes to the database whatever others do. Only one of these loads at a time: who comes
    /// meanwhile waits for the next one, together with all others who do.
    pub(crate) fn join_direct(&self, key: &str, turn: Turn) -> Role<T> {
        let mut under_way = self.under_way.lock();
        let there = under_way.get(key);
        if let Some(flight) = there.filter(|flight| flight.is_after(turn)) {
            return Role::Joined(Arc::clone(flight));
        }
        let before = there.filter(|flight| flight.direct).map(Arc::clone);
        let began = match before {
            Some(_) => u64::MAX,
            None => self.order.fetch_add(1, Ordering::SeqCst),
        };
        let flight = Arc::new(Flight::new(key, began, true, before));
        under_way.insert(key.into(), Arc::clone(&flight));
        Role::First(flight)
    }

    /// To be done before a flight asks for anything: waits for the one before it, but not longer than that.
    pub(crate) async fn take_off(&self, flight: &Flight<T>, longest: Duration)
    where
        T: Send + Sync,
    {
        let Some(before) = flight.before.lock().take() else { return };
        let _ = timeout(longest, before.outcome()).await;
        // From now on nobody joins it who comes later.
        flight.began.store(self.order.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
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
        flight.progress.send_modify(|progress| progress.outcome = Some(outcome));
    }
}

impl<T> Flight<T> {
    fn new(key: &str, began: u64, direct: bool, before: Option<Arc<Self>>) -> Self {
        let (began, before) = (AtomicU64::new(began), Mutex::new(before));
        let progress = watch::Sender::new(Progress { outcome: None, fill: Fill::Other });
        let ticket = Mutex::new(Ticket::NONE);
        Self { key: key.into(), began, direct, before, ticket, progress }
    }

    /// Before it lands.
    pub(crate) fn set_fill(&self, fill: Fill) {
        self.progress.send_if_modified(|progress| {
            progress.fill = fill;
            // Everybody waits for the outcome, and a crowd is not to be woken for less.
            false
        });
    }

    /// The fill that is under way, if there is one, ends like that.
    pub(crate) fn fill_ends(&self, fill: Fill) {
        self.progress.send_if_modified(|progress| {
            let ends = progress.fill == Fill::UnderWay;
            if ends {
                progress.fill = fill;
            }
            ends
        });
    }

    /// Whether whatever it loads, it loads after that.
    pub(crate) fn is_after(&self, turn: Turn) -> bool {
        self.began.load(Ordering::SeqCst) >= turn.0
    }
}

impl<T: Clone + Send + Sync> Flight<T> {
    pub(crate) fn set_ticket(&self, ticket: Ticket) {
        *self.ticket.lock() = ticket;
    }

    /// What came of it. Cancel safe.
    pub(crate) async fn outcome(&self) -> Option<T> {
        let mut progress = self.progress.subscribe();
        // Fails only when nobody can land it any more, and we hold it.
        let landed = progress.wait_for(|progress| progress.outcome.is_some()).await.ok()?;
        landed.outcome.clone()
    }

    /// How the fill ended of a flight that has landed. Cancel safe.
    pub(crate) async fn filled(&self) -> Fill {
        let mut progress = self.progress.subscribe();
        let over = progress.wait_for(|progress| progress.fill != Fill::UnderWay).await;
        over.map_or(Fill::Failed, |progress| progress.fill)
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

    #[tokio::test]
    async fn direct_ones_wait_for_each_other_and_are_shared_until_they_begin() {
        const LONG: Duration = Duration::from_secs(600);
        let flights = Arc::new(Flights::new());
        let one = first(flights.join_direct("k", flights.turn()));
        flights.take_off(&one, LONG).await;
        // It has begun: who comes now may not share it, and those who do share the next one.
        let two = first(flights.join_direct("k", flights.turn()));
        let also = joined(flights.join_direct("k", flights.turn()));
        assert!(Arc::ptr_eq(&two, &also));
        let (waits, waiting) = (Arc::clone(&flights), Arc::clone(&two));
        let off = tokio::spawn(async move { waits.take_off(&waiting, LONG).await });
        tokio::task::yield_now().await;
        assert!(!off.is_finished());
        flights.land(&one, 1);
        off.await.unwrap();
        let three = first(flights.join_direct("k", flights.turn()));
        assert!(!Arc::ptr_eq(&two, &three), "it has begun");
        // Not for ever.
        flights.take_off(&three, Duration::from_millis(1)).await;
        flights.land(&two, 2);
        flights.land(&three, 3);
        assert_eq!((two.outcome().await, three.outcome().await), (Some(2), Some(3)));
        // One with a lease is not waited for: what it loads is of no use here, and it may take long.
        let filling = first(flights.join("k", flights.turn(), None));
        let direct = first(flights.join_direct("k", flights.turn()));
        flights.take_off(&direct, LONG).await;
        flights.land(&filling, 4);
        flights.land(&direct, 5);
    }
}
