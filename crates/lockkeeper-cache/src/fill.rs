//! The end of a load: its value is sent to the store, under its lease.
//!
//! A read has its value as soon as the fill is on its way. The answer says whether the store has taken it, which is nothing
//! to a reader: the value is as good as the load, whether it is cached or not. So a miss waits for the store twice, for the
//! look and for the lease, and not a third time; and a store that stops in between holds up nobody.
//!
//! Who reads the key next most often finds the value. If not, because he asks in another process, or because the connection
//! was lost meanwhile, he sees the lease, and looks again after a moment. Who reads in another runtime than the one in which the
//! cache was built does wait for the answer: it is not the connection's turn next there, as a rule, and a runtime that ends with
//! the read would take along what is not sent yet.
//!
//! Whose work is not done before the value is there waits for the flight of the load, which knows ([`Fill`]).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, poll};
use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::cache::Inner;
use crate::entry::{Filled, Ticket, Value};
use crate::error::StoreError;
use crate::events::Event;
use crate::flight::{Fill, Flight};
use crate::load::Outcome;

/// A second time when the answer to the first is lost: a fill may be sent twice.
const ATTEMPTS: usize = 2;

/// A lease that is given back, whatever becomes of the load, so that others need not wait for its end.
pub(crate) struct Held<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    inner: Arc<Inner<K, V>>,
    flight: Arc<Flight<Outcome<V>>>,
    name: String,
    ticket: Ticket,
    armed: bool,
}

impl<K, V> Held<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// That may be held from now on, because it is asked for.
    pub(crate) fn new(
        inner: &Arc<Inner<K, V>>,
        flight: &Arc<Flight<Outcome<V>>>,
        name: &str,
        ticket: Ticket,
    ) -> Self {
        flight.set_ticket(ticket);
        let (inner, flight) = (Arc::clone(inner), Arc::clone(flight));
        Self { inner, flight, name: name.to_owned(), ticket, armed: true }
    }

    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// There is nothing to give back.
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
    }

    /// Gives it back, because there is nothing to fill.
    pub(crate) async fn give_up(self) {
        let inner = Arc::clone(&self.inner);
        inner.end(self.give_back().boxed()).await;
    }

    async fn give_back(mut self) {
        let (inner, time) = (Arc::clone(&self.inner), self.inner.settings.timeout);
        let giving_up = timeout(time, inner.store.give_up(&self.name, self.ticket));
        self.armed = !matches!(giving_up.await, Ok(Ok(())));
    }

    /// Gives it back, because what was loaded is not for the store.
    pub(crate) fn unfit(self) {
        self.flight.set_fill(Fill::Unfit);
        self.inner.note(&self.name, Event::FillUnfit);
    }

    /// Sends the value. The rest is done in a task of its own, unless the store has answered by then.
    pub(crate) async fn fill(self, value: Value, ttl: Duration) {
        let inner = Arc::clone(&self.inner);
        self.flight.set_fill(Fill::UnderWay);
        inner.end(self.fill_and_wait(value, ttl).boxed()).await;
    }

    async fn fill_and_wait(mut self, value: Value, ttl: Duration) {
        let inner = Arc::clone(&self.inner);
        let filling = async {
            for _ in 0..ATTEMPTS {
                match inner.store.fill(&self.name, &value, ttl).await {
                    Ok(filled) => return Some(filled),
                    Err(error) => inner.store_failed("filling", &error),
                }
            }
            None
        };
        let filled = timeout(inner.settings.timeout, filling).await.unwrap_or_else(|late| {
            inner.store_failed("filling", &StoreError::new("store", late));
            None
        });
        let Some(filled) = filled else { return inner.note(&self.name, Event::FillFailed) };
        inner.filled(&self.name, filled);
        self.disarm();
        self.flight.fill_ends(match filled {
            Filled::Done => Fill::Done,
            Filled::Gone | Filled::Late | Filled::Older => Fill::Other,
        });
    }
}

impl<K, V> Inner<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Begins the end of a load, and goes on with it in a task of its own.
    async fn end(&self, mut ending: BoxFuture<'static, ()>) {
        if poll!(&mut ending).is_pending() {
            self.tasks.spawn(ending);
            // Now the connection has its turn, and writes: who ends when he has his value would else leave the
            // lease behind, and others would wait for its end.
            yield_now().await;
        }
    }
}

impl<K, V> Drop for Held<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn drop(&mut self) {
        // Also when the store panicked, or the runtime ends.
        self.flight.fill_ends(Fill::Failed);
        let (true, Ok(runtime)) = (self.armed, Handle::try_current()) else { return };
        let (inner, name, ticket) =
            (Arc::clone(&self.inner), std::mem::take(&mut self.name), self.ticket);
        let giving_up = async move {
            // Else it ends by itself.
            let _ = timeout(inner.settings.timeout, inner.store.give_up(&name, ticket)).await;
        };
        self.inner.tasks.spawn_on(giving_up, &runtime);
    }
}
