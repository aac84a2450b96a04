//! Looks at the store, shared by those who want the same key while there are many.
//!
//! When thousands of tasks read one key in the same moment, their looks stand in line inside this process, and those at
//! its end are given up before the store has even heard of them: it would be taken for dead because we are many. So where
//! there are more than a few looks under way, one look for each key is, and who comes meanwhile waits for the next one,
//! together with all others who do. Nobody gets what was looked for before he began: what had been invalidated by then he
//! does not see.
//!
//! A look that is shared is made in a task of its own: who asked for it may go away, or may not be polled for long, and the
//! others would wait for him.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::timeout;

use crate::cache::Inner;
use crate::flight::{Flight, Flights, Role};
use crate::store::{self, Seen};

/// Fewer than this at a time are not shared: to arrange that costs more than it saves.
const FEW: usize = 64;

#[derive(Debug)]
pub(crate) struct Looks {
    under_way: AtomicUsize,
    shared: Flights<Seen>,
}

impl Looks {
    pub(crate) fn new() -> Self {
        Self { under_way: AtomicUsize::new(0), shared: Flights::new() }
    }
}

impl<K, V> Inner<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// What the store has under a key, as of now or later.
    pub(crate) async fn look(self: &Arc<Self>, name: &str) -> store::Result<Seen> {
        let one = OneMore::of(&self.looks.under_way);
        if one.before < FEW {
            return self.look_alone(name).await;
        }
        // Apart, because it is rare, and large.
        Ok(Box::pin(self.look_together(name)).await)
    }

    async fn look_together(self: &Arc<Self>, name: &str) -> Seen {
        let shared = &self.looks.shared;
        let flight = match shared.join_direct(name, shared.turn()) {
            Role::Joined(flight) => flight,
            Role::First(flight) => {
                self.look_for_all(name, Arc::clone(&flight));
                flight
            }
        };
        // One look may have to wait for another, so the store's own time says nothing about both. Half of the time of a read is
        // for the database.
        let seen = timeout(self.settings.timeout / 2, flight.outcome()).await;
        seen.ok().flatten().unwrap_or(Seen::Down)
    }

    fn look_for_all(self: &Arc<Self>, name: &str, flight: Arc<Flight<Seen>>) {
        let (inner, name) = (Arc::clone(self), name.to_owned());
        let mut landing = Landing { inner: Arc::clone(self), flight, seen: Seen::Down };
        tokio::spawn(async move {
            let time = inner.settings.timeout;
            inner.looks.shared.take_off(&landing.flight, time).await;
            let looked = timeout(time, inner.look_alone(&name)).await;
            landing.seen = looked.unwrap_or(Ok(Seen::Down)).unwrap_or(Seen::Down);
            drop(landing);
        });
    }
}

/// Counts as one of those under way.
struct OneMore<'a> {
    before: usize,
    all: &'a AtomicUsize,
}

impl<'a> OneMore<'a> {
    fn of(all: &'a AtomicUsize) -> Self {
        Self { before: all.fetch_add(1, Ordering::Relaxed), all }
    }
}

impl Drop for OneMore<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells those who wait what was seen, also when the task is dropped with its runtime.
struct Landing<K, V> {
    inner: Arc<Inner<K, V>>,
    flight: Arc<Flight<Seen>>,
    seen: Seen,
}

impl<K, V> Drop for Landing<K, V> {
    fn drop(&mut self) {
        let seen = std::mem::replace(&mut self.seen, Seen::Down);
        self.inner.looks.shared.land(&self.flight, seen);
    }
}
