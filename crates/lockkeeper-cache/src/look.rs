//! Looks at the store, shared by those who want the same key while there are many.
//!
//! When thousands of tasks read one key in the same moment, their looks stand in line inside this process, and those at
//! its end are given up before the store has even heard of them: it would be taken for dead because we are many. So where
//! there are more than a few looks under way, one look for each key is, and who comes meanwhile waits for the next one,
//! together with all others who do. Nobody gets what was looked for before he began: what had been invalidated by then he
//! does not see.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cache::Inner;
use crate::flight::{Flight, Flights, Role};
use crate::store::{self, Seen};

/// Fewer than this at a time are not shared: to arrange that costs more than it saves.
const FEW: usize = 64;

#[derive(Debug)]
pub(crate) struct Looks {
    under_way: AtomicUsize,
    /// With nothing as their outcome when who looked has gone away over it.
    shared: Flights<Option<Seen>>,
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
    pub(crate) async fn look(&self, name: &str) -> store::Result<Seen> {
        let one = OneMore::of(&self.looks.under_way);
        if one.before < FEW {
            return self.look_alone(name).await;
        }
        // One look may have to wait for another, so the store's own time says nothing about both.
        let looking = tokio::time::timeout(self.settings.timeout, self.look_together(name));
        Box::pin(looking).await.unwrap_or(Ok(Seen::Down))
    }

    async fn look_together(&self, name: &str) -> store::Result<Seen> {
        let shared = &self.looks.shared;
        let turn = shared.turn();
        loop {
            match shared.join_direct(name, turn) {
                Role::Joined(flight) => {
                    if let Some(seen) = flight.outcome().await.flatten() {
                        return Ok(seen);
                    }
                }
                Role::First(flight) => {
                    let mut landing = Landing { shared, flight, seen: None };
                    shared.take_off(&landing.flight, self.settings.timeout).await;
                    let looked = self.look_alone(name).await;
                    landing.seen = Some(looked.as_ref().map_or(Seen::Down, Seen::clone));
                    return looked;
                }
            }
        }
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

/// Tells those who wait what was seen, or that who looked has gone away.
struct Landing<'a> {
    shared: &'a Flights<Option<Seen>>,
    flight: Arc<Flight<Option<Seen>>>,
    seen: Option<Seen>,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.shared.land(&self.flight, self.seen.take());
    }
}
