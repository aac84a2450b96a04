//! Delete, commit, and delete once more after a while.
//!
//! # How it works
//!
//! - Read: `GET`; on a miss load from the database and `SET`.
//! - Write: delete the entry, and put the second delete into a queue at the store; commit to the database; move the
//!   second delete to [`second_delete`](crate::Builder::second_delete) from now, and return. Nobody sleeps.
//! - Every process that has such a table looks for what is due, deletes it, and then takes it out of the queue, unless it
//!   was moved meanwhile. A delete that was put there before a commit that then hung or died is due after
//!   [`intent`](crate::Builder::intent) and that time.
//!
//! # What it promises
//!
//! What was set by a reader no later than `second_delete` after the commit is gone by then, or a moment later. A writer that
//! dies anywhere does not change that, as long as another process has the same table, or comes back.
//!
//! # Known anomalies
//!
//! *Stale until the second delete*, also after the write has returned.
//!
//! 1. A writer deletes the entry.
//! 2. A reader misses, loads the old value and sets it, before the commit or after it.
//! 3. The writer commits and returns. Readers get the old value until the second delete.
//!
//! *A reader slower than that*: one that loaded before the commit and sets after the second delete leaves the old
//! value there until it ends. No time is long enough for a reader that is paused.
//!
//! A store that forgets everything forgets the queue; a replica that takes over may not have it.
//!
//! # When to use it
//!
//! Where it is asked for by its name. [`fill_lease`](super::fill_lease) costs less and promises more.
//!
//! # Cost
//!
//! A hit is one round trip, a miss two and a load; concurrent misses all load. A write is one round trip before the
//! commit and one after it; its second delete two more, behind it. Each process asks the store about once a
//! second, or as often as `second_delete` if that is shorter.

use std::fmt::Display;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::base::{Base, Commit, Protocol, outcome};
use super::naive::DELETE;
use super::table::Written;
use crate::cache::{Inner, Read};
use crate::entry::Ticket;
use crate::error::{Error, Result};
use crate::store::{self, Deletes};

/// So many are done at a time.
const BATCH: usize = 100;

pub(super) struct DoubleDelete {
    queue: Arc<str>,
    after: Duration,
    /// Tells the one who looks for what is due that there is something new.
    wake: Arc<Notify>,
}

impl DoubleDelete {
    pub(super) fn new<K, V>(base: &Base<K, V>, after: Duration) -> Result<Self>
    where
        K: Clone + Send + Sync + 'static,
        V: Send + Sync + 'static,
    {
        let inner = base.inner();
        if inner.store.deletes().is_none() {
            return Err(Error::Config("double-delete needs a store that keeps deletes that are due: Redis, Memory, and not Grouped".into()));
        }
        let runtime = Handle::try_current()
            .map_err(|_| Error::Config("double-delete needs a tokio runtime".into()))?;
        let queue: Arc<str> = format!("{}!deletes", inner.settings.namespace).into();
        let wake = Arc::new(Notify::new());
        let pause = after.clamp(Duration::from_millis(10), Duration::from_secs(1));
        runtime.spawn(run(Arc::downgrade(inner), Arc::clone(&queue), Arc::clone(&wake), pause));
        Ok(Self { queue, after, wake })
    }

    /// Puts the second delete into the queue, or moves it there.
    async fn schedule<K, V>(
        &self,
        inner: &Inner<K, V>,
        ticket: Ticket,
        name: &str,
        after: Duration,
    ) -> Result<()>
    where
        K: Clone + Send + Sync + 'static,
        V: Send + Sync + 'static,
    {
        let Some(deletes) = inner.store.deletes() else { return Ok(()) };
        // By then all that was set before it has ended.
        let keep = after + inner.settings.intent + inner.settings.ttl.max(inner.settings.null_ttl);
        let attempt = || deletes.schedule(&self.queue, ticket, name, after, keep);
        inner.insist("scheduling a delete", attempt).await
    }
}

/// Deletes what is due, for as long as there is a cache.
async fn run<K, V>(inner: Weak<Inner<K, V>>, queue: Arc<str>, wake: Arc<Notify>, pause: Duration)
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    loop {
        let next = {
            let Some(inner) = inner.upgrade() else { return };
            let Some(deletes) = inner.store.deletes() else { return };
            let done = delete_due(&inner, deletes, &queue).await;
            done.inspect_err(|error| inner.store_failed("a second delete", error))
        };
        let next = next.ok().flatten().map_or(pause, |next| next.min(pause));
        tokio::select! {
            () = sleep(next) => {}
            () = wake.notified() => {}
        }
    }
}

/// When to look again, if that is known.
async fn delete_due<K, V>(
    inner: &Inner<K, V>,
    deletes: &dyn Deletes,
    queue: &str,
) -> store::Result<Option<Duration>>
where
    K: Send + Sync,
    V: Send + Sync,
{
    loop {
        let due = deletes.due(queue, BATCH).await?;
        if due.deletes.is_empty() {
            return Ok(due.next);
        }
        let keys: Vec<&str> = due.deletes.iter().map(|delete| &*delete.key).collect();
        inner.changing(&keys, inner.store.invalidate(&keys, DELETE)).await?;
        deletes.done(queue, &due.deletes).await?;
        keys.iter().for_each(|_| inner.stats.invalidations.add());
    }
}

#[async_trait]
impl<K, V> Protocol<K, V> for DoubleDelete
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    async fn read(&self, base: &Base<K, V>, key: &K, name: &str) -> Result<Read<V>> {
        base.inner().plain_read(key, name).await
    }

    async fn write(
        &self,
        base: &Base<K, V>,
        _key: &K,
        name: &str,
        commit: Commit<'_, V>,
    ) -> Result<Written> {
        let (inner, ticket) = (base.inner(), Ticket::new());
        let healing = inner.settings.intent + self.after;
        let scheduled = self.schedule(inner, ticket, name, healing);
        try_join(inner.plain_delete(name), scheduled).await?;
        let committed = commit.await;
        let moved = self.schedule(inner, ticket, name, self.after).await;
        let moved = moved.inspect_err(|_| inner.owe(&[name.to_owned()], 0));
        self.wake.notify_one();
        outcome(committed, moved)
    }
}
