//! Looks at the store. A few at a time are sent one by one; many go together.
//!
//! # How it works
//!
//! Who looks while a few others do puts his key into a list, and lets those run who are about to look as well. Then the
//! first who comes back asks for the whole list in one command, for each key once, and all wait for the answer. So
//! thousands that read one key in the same moment are one look, and what many keys cost the client and the server is
//! little more than what one does. Nobody waits for the answer of an earlier command before his own is sent.
//!
//! # What it promises
//!
//! Nobody gets what was looked for before he began: what had been invalidated by then he does not see. The look of a
//! list belongs to all who are in it: whoever is polled gets on with it, and who goes away, or is not polled for long,
//! holds up nobody.
//!
//! # When it breaks
//!
//! Keys that go together have one answer, and one time for it. Where 16 values together are so large that the network takes
//! the store's time for them, all of them count as not answered; one by one, the first would have been.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::cache::Inner;
use crate::store::{self, Seen};

/// Fewer than this at a time go alone: to arrange more costs more than it saves.
const FEW: usize = 8;

/// So many keys are in one list at most: while the next list is answered, those of the last one are read.
const MOST: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Looks {
    under_way: AtomicUsize,
    /// The list of those who go together next.
    next: Mutex<List>,
}

#[derive(Debug)]
struct List {
    /// Each once.
    names: Vec<Box<str>>,
    look: Arc<Look>,
}

/// The look for a list, once it is sent: what is under each of its names.
#[derive(Debug, Default)]
struct Look(OnceLock<Shared<BoxFuture<'static, Arc<Vec<Seen>>>>>);

impl Default for List {
    fn default() -> Self {
        Self { names: Vec::with_capacity(MOST), look: Arc::default() }
    }
}

impl List {
    /// The look for this name and others, and where in it.
    fn join(&mut self, name: &str) -> (Arc<Look>, usize) {
        let place = self.names.iter().position(|there| **there == *name);
        let place = place.unwrap_or_else(|| {
            self.names.push(name.into());
            self.names.len() - 1
        });
        (Arc::clone(&self.look), place)
    }

    fn is_full(&self) -> bool {
        self.names.len() >= MOST
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
        // Of several stores one may hang, and is not to hold up who waits for others.
        if one.before < FEW || self.store.leaves_alone() {
            return self.look_alone(name).await;
        }
        // Apart, because it is rare where there is time, and large.
        Ok(Box::pin(self.look_together(name)).await)
    }

    async fn look_together(self: &Arc<Self>, name: &str) -> Seen {
        let ((look, place), is_full) = {
            let mut list = self.looks.next.lock();
            (list.join(name), list.is_full())
        };
        if !is_full {
            yield_now().await;
        }
        self.send(&look);
        let Some(seen) = look.0.get().cloned() else { return Seen::Down };
        seen.await.get(place).cloned().unwrap_or(Seen::Down)
    }

    /// Sends the look of a list, if nobody has.
    fn send(self: &Arc<Self>, look: &Arc<Look>) {
        let mut list = self.looks.next.lock();
        // There is another list if it was sent.
        if !Arc::ptr_eq(&list.look, look) {
            return;
        }
        let List { names, .. } = std::mem::take(&mut *list);
        let inner = Arc::clone(self);
        let looking = async move {
            let names: Vec<&str> = names.iter().map(|name| &**name).collect();
            let looked = timeout(inner.settings.timeout, inner.look_many(&names)).await;
            Arc::new(looked.ok().and_then(Result::ok).unwrap_or_default())
        };
        // It is new.
        let _ = look.0.set(looking.boxed().shared());
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
