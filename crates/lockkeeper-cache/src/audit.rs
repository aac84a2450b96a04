//! Whether what is cached is what the database has.
//!
//! # How it works
//!
//! Some hits are picked, not more than the rate. After the delay:
//!
//! 1. Look at the store. No value, or one that [waits](crate::strategy::write_behind) for the database: it is *gone*,
//!    and nothing is to be said.
//! 2. Load from the database, through the limits of all loads.
//! 3. If the database has something else (a larger version; without versions, other bytes), wait for the delay once
//!    more, so that a writer who has just committed can invalidate, and look again. If it is still the same fill, it is
//!    *stale*: nobody has invalidated it, and nobody will. It is invalidated, counted, and noted.
//!
//! # The first level
//!
//! A hit there is a few nanoseconds, and nothing picks it. Instead, whenever a key has its turn, what the first level would
//! serve is compared as well. If the database has something else, it is looked at again after the delay and the bound:
//! by then whoever wrote has invalidated it, and this process has heard of it. If it is served still, and the store has
//! it no more, the message was lost. It is forgotten, counted, and noted. What the first level serves the store does not
//! see, so those keys have another turn after each delay, as far as the rate lets.

mod compare;

use std::collections::HashSet;
use std::fmt::{self, Display};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lockkeeper::clock::Instant;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::cache::{Cache, Source};
use crate::group::mix;
use crate::limit::Limit;

/// So many hits that were picked may wait for their time.
const PENDING: usize = 1024;

/// One of so many hits is picked, when the rate lets.
const APART: u64 = 32;

/// Where hits go to be audited.
pub(crate) struct Audits<K> {
    /// Every hit looks at this, and only at this where nobody audits.
    on: AtomicBool,
    running: Mutex<Option<Running<K>>>,
}

struct Running<K> {
    limit: Limit,
    /// So many hits go by before one is picked: reads come in rounds, and the first of a round is always the same.
    wait: Option<u64>,
    count: u64,
    picked: mpsc::Sender<Picked<K>>,
    /// Whose turn is to come or to come again: a key that is read much is not to take the places of others.
    going: HashSet<String>,
}

struct Picked<K> {
    key: K,
    name: String,
    at: Instant,
}

impl<K> Default for Audits<K> {
    fn default() -> Self {
        Self { on: AtomicBool::new(false), running: Mutex::new(None) }
    }
}

impl<K: Clone> Audits<K> {
    /// Picks a hit, perhaps.
    pub(crate) fn sample(&self, key: &K, name: &str, source: Source) {
        if !self.on.load(Ordering::Relaxed) || source != Source::Hit {
            return;
        }
        let mut running = self.running.lock();
        if let Some(running) = &mut *running
            && !running.going.contains(name)
            && running.picks()
        {
            running.send(key, name);
        }
    }

    /// Another turn for a key. `false`: the rate does not let for now.
    fn again(&self, Picked { key, name, .. }: &Picked<K>) -> bool {
        let mut running = self.running.lock();
        let Some(running) = &mut *running else { return true };
        if running.limit.check().is_err() {
            return false;
        }
        running.send(key, name);
        true
    }

    /// It has no other turn.
    fn is_over(&self, name: &str) {
        if let Some(running) = &mut *self.running.lock() {
            running.going.remove(name);
        }
    }
}

impl<K: Clone> Running<K> {
    fn new(rate: NonZeroU32, picked: mpsc::Sender<Picked<K>>) -> Self {
        let limit = Limit::per_second(rate).burst(NonZeroU32::MIN);
        Self { limit, wait: None, count: 0, picked, going: HashSet::new() }
    }

    fn send(&mut self, key: &K, name: &str) {
        let picked = Picked { key: key.clone(), name: name.to_owned(), at: Instant::now() };
        // Where it is full, it is audited another time.
        match self.picked.try_send(picked) {
            Ok(()) => self.going.insert(name.to_owned()),
            Err(_) => self.going.remove(name),
        };
    }

    /// Whether this hit is the one.
    fn picks(&mut self) -> bool {
        match self.wait {
            None if self.limit.check().is_ok() => {
                self.count += 1;
                self.wait = Some(mix(self.count) % APART);
            }
            None => return false,
            Some(_) => {}
        }
        self.wait = self.wait.and_then(|wait| wait.checked_sub(1));
        self.wait.is_none()
    }
}

/// An audit that goes on until this is dropped; from [`Cache::audit`].
#[must_use = "it ends when it is dropped"]
pub struct Audit {
    task: AbortHandle,
    off: Box<dyn Fn() + Send + Sync>,
}

impl Drop for Audit {
    fn drop(&mut self) {
        (self.off)();
        self.task.abort();
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit").finish_non_exhaustive()
    }
}

impl<K, V> Cache<K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Compares some of the hits with the database, for as long as what it returns is kept: up to `rate` a second, each
    /// after the `delay`. It counts in [`Stats`](crate::Stats): `audited`, `audit_stale`, `audit_first_stale`,
    /// `audit_gone`. What is stale is invalidated.
    ///
    /// Hits of the [first level](crate::FirstLevel) are not picked, only those at the store. But of each key that is picked,
    /// what the first level of this process serves is compared as well, and again after each delay for as long as
    /// it serves something and the rate lets.
    ///
    /// # What it promises
    ///
    /// A value that is counted as stale was: the database had something else for longer than the delay, and nobody
    /// had invalidated the value. Nothing is counted because of a write that is under way, as long as writes take less
    /// than the delay from the commit to the end of the invalidation. Nor is anything because the first level is behind
    /// by no more than its [bound](crate::FirstLevel::bound): what it serves is stale when the database had something
    /// else for longer than the delay and the bound, and is counted there if the store has it no more.
    ///
    /// # When it breaks
    ///
    /// Values without versions whose encoding differs from time to time (a `HashMap`) look stale. A loader that reads a
    /// replica which lags by more than the delay hides what is stale, or makes it up. With more keys in the first level
    /// than the rate lets be compared, not all of them are.
    ///
    /// # Cost
    ///
    /// A load for each that is compared, within the limits of all loads, and two or three looks at the store. A
    /// second audit takes the place of the first.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn audit(&self, rate: NonZeroU32, delay: Duration) -> Audit {
        let inner = Arc::clone(&self.inner);
        let (picked, receiver) = mpsc::channel(PENDING);
        let token = picked.downgrade();
        *inner.audits.running.lock() = Some(Running::new(rate, picked));
        inner.audits.on.store(true, Ordering::Relaxed);
        let auditor = Arc::clone(&inner);
        let task = tokio::spawn(async move {
            let picked = stream::unfold(receiver, async |mut picked| {
                picked.recv().await.map(|next| (next, picked))
            });
            picked.for_each_concurrent(PENDING, |next| auditor.audit_one(next, delay)).await;
        });
        let off = Box::new(move || {
            let mut running = inner.audits.running.lock();
            // Another may have taken its place.
            let ours = token.upgrade().is_some_and(|ours| {
                running.as_ref().is_some_and(|running| running.picked.same_channel(&ours))
            });
            if ours {
                inner.audits.on.store(false, Ordering::Relaxed);
                *running = None;
            }
        });
        Audit { task: task.abort_handle(), off }
    }
}
