//! Who invalidates what is left over.

use std::collections::HashSet;
use std::fmt::{self, Debug, Display};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::time::sleep;

use super::{Outbox, Row};
use crate::cache::Cache;
use crate::error::{BoxError, Error, Result};
use crate::store::millis;
use crate::transaction::{Committed, Invalidate, Touched, Transaction};

/// Rows in one page, and ids in one deletion.
const PAGE: usize = 500;

/// So many ids of rows that are done wait to be deleted. What is more is found and done again.
const MOST_DONE: usize = 100_000;

/// So many bad rows are known apart.
const MOST_BAD: usize = 10_000;

/// Makes a [`Relay`].
#[derive(Debug)]
#[must_use = "nothing runs before start"]
pub struct Builder {
    outbox: Box<dyn Outbox>,
    caches: Vec<Arc<dyn Invalidate>>,
    grace: Duration,
    every: Duration,
}

/// Invalidates what rows of an [`Outbox`] name, in a task of its own, until the last clone of it is dropped.
///
/// Any number of them may run at once, in any processes.
#[derive(Clone)]
pub struct Relay {
    shared: Arc<Shared>,
}

struct Shared {
    outbox: Box<dyn Outbox>,
    caches: Vec<Arc<dyn Invalidate>>,
    grace: Duration,
    /// Ids of rows whose keys are invalidated.
    done: Mutex<Vec<String>>,
    /// Ids of rows that are left alone.
    bad: Mutex<HashSet<String>>,
    looks: AtomicU64,
    relayed: AtomicU64,
    failures: AtomicU64,
    lag: AtomicU64,
}

/// What a [`Relay`] did, and what there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStats {
    /// How often it has looked, failures included.
    pub looks: u64,
    /// Rows that others had left over.
    pub relayed: u64,
    /// Rows that are left alone: not readable, or with keys of a cache that this relay does not have. They are there until
    /// somebody deletes them.
    pub bad: u64,
    /// Times that the database or the store failed, or something panicked.
    pub failures: u64,
    /// How long ago the oldest row was inserted, at the last look. More than the grace time and a little: what is committed is not
    /// invalidated, or there are bad rows.
    pub lag: Duration,
}

impl Builder {
    /// Rows with keys of this cache are for this relay. A row that also has others is left alone: give each relay
    /// all caches that are touched in one transaction.
    pub fn cache<K, V>(mut self, cache: &Cache<K, V>) -> Self
    where
        K: Clone + Display + Send + Sync + 'static,
        V: Send + Sync + 'static,
    {
        self.caches.push(Arc::new(cache.clone()));
        self
    }

    /// How old a row must be. Default 5 s. Shorter than a transaction and its invalidation usually take: many rows
    /// are invalidated twice, which costs loads. Longer: what is left over heals later.
    pub fn grace(mut self, time: Duration) -> Self {
        self.grace = time;
        self
    }

    /// How often to look. Default every second.
    pub fn every(mut self, time: Duration) -> Self {
        self.every = time;
        self
    }

    /// Begins, with a first look at once. Must be called inside a tokio runtime.
    pub fn start(self) -> Relay {
        let Self { outbox, caches, grace, every } = self;
        let (done, bad) = (Mutex::default(), Mutex::default());
        let [looks, relayed, failures, lag] = [0; 4].map(AtomicU64::new);
        let shared = Shared { outbox, caches, grace, done, bad, looks, relayed, failures, lag };
        let relay = Relay { shared: Arc::new(shared) };
        tokio::spawn(run(Arc::downgrade(&relay.shared), every));
        relay
    }
}

impl Relay {
    /// A builder for a relay of this outbox.
    pub fn builder(outbox: impl Outbox + 'static) -> Builder {
        let (grace, every) = (Duration::from_secs(5), Duration::from_secs(1));
        Builder { outbox: Box::new(outbox), caches: Vec::new(), grace, every }
    }

    /// Commits a transaction in which its [row](Transaction::row) was inserted, and invalidates. The row is
    /// deleted at the next look.
    ///
    /// # Errors
    ///
    /// That of `commit`; if it took effect nevertheless, a relay finds the row.
    ///
    /// # Cancel safety
    ///
    /// As for [`Transaction::commit`]; and what is missed then, a relay finds.
    pub async fn commit<K, V, T, E>(
        &self,
        transaction: Transaction<K, V>,
        commit: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<Committed<T>, E>
    where
        K: Clone + Display + Send + Sync + 'static,
        V: Send + Sync + 'static,
        T: Send,
        E: Send,
    {
        let row = transaction.row_id();
        if row.is_none() {
            tracing::warn!("a transaction without a row: nobody heals it after a crash");
        }
        let committed = transaction.commit(commit).await?;
        if committed.cache.is_ok() {
            let done = &mut *self.shared.done.lock();
            done.extend(row.filter(|_| done.len() < MOST_DONE));
        }
        Ok(committed)
    }

    /// Looks now: deletes the rows that are done, and invalidates what others have left over. How many rows those were.
    ///
    /// # Errors
    ///
    /// When the database or the store fails, or panics: the rows stay, and are tried again at the next look.
    pub async fn sweep(&self) -> Result<u64, BoxError> {
        self.shared.sweep().await
    }

    /// What it did.
    pub fn stats(&self) -> RelayStats {
        let Shared { looks, relayed, failures, lag, bad, .. } = &*self.shared;
        let [looks, relayed, failures, lag] =
            [looks, relayed, failures, lag].map(|number| number.load(Ordering::Relaxed));
        let bad = bad.lock().len() as u64;
        RelayStats { looks, relayed, bad, failures, lag: Duration::from_millis(lag) }
    }
}

async fn run(shared: Weak<Shared>, every: Duration) {
    let mut failing = false;
    while let Some(shared) = shared.upgrade() {
        let swept = shared.sweep().await;
        match &swept {
            Err(error) if !failing => tracing::warn!(error, "an outbox cannot be relayed"),
            Ok(_) if failing => tracing::info!("an outbox is relayed again"),
            _ => {}
        }
        failing = swept.is_err();
        drop(shared);
        sleep(every).await;
    }
}

impl Shared {
    async fn sweep(&self) -> Result<u64, BoxError> {
        let swept = async {
            self.delete_done().await?;
            let relayed = self.relay().await?;
            let lag = self.outbox.oldest().await?.map_or(0, millis);
            self.lag.store(lag, Ordering::Relaxed);
            Ok(relayed)
        };
        // Else the task would end, and nobody would know.
        let swept = AssertUnwindSafe(swept).catch_unwind().await;
        let swept = swept.unwrap_or_else(|_| Err("it panicked".into()));
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.failures.fetch_add(u64::from(swept.is_err()), Ordering::Relaxed);
        swept
    }

    async fn delete_done(&self) -> Result<(), BoxError> {
        loop {
            let page: Vec<String> = {
                let mut done = self.done.lock();
                let count = done.len().min(PAGE);
                done.drain(..count).collect()
            };
            if page.is_empty() {
                return Ok(());
            }
            // If that fails they are found again when they are old enough.
            self.outbox.delete(&page).await?;
        }
    }

    async fn relay(&self) -> Result<u64, BoxError> {
        let (mut after, mut relayed, mut bad) = (String::new(), 0, HashSet::new());
        // What each cache failed of: it is not asked again for now, and the rows of others do not wait for it.
        let mut failed: Vec<Option<Error>> = vec![None; self.caches.len()];
        loop {
            let rows = self.outbox.read(self.grace, &after, PAGE).await?;
            let Some(last) = rows.last() else { break };
            after.clone_from(&last.id);
            let full = rows.len() >= PAGE;
            let mut ids = Vec::with_capacity(rows.len());
            let mut touched = vec![Vec::new(); self.caches.len()];
            for row in rows {
                match self.assign(&row, &mut touched) {
                    Some(caches) => ids.push((row.id, caches)),
                    None if bad.len() < MOST_BAD => drop(bad.insert(row.id)),
                    None => {}
                }
            }
            let each = self.caches.iter().zip(&touched).enumerate();
            let asked =
                each.filter(|(at, (_, touched))| failed[*at].is_none() && !touched.is_empty());
            let done = asked
                .map(async |(at, (cache, touched))| (at, cache.invalidate_touched(touched).await));
            // All of them before a row is deleted.
            for (at, done) in join_all(done).await {
                failed[at] = done.err();
            }
            let is_done = |caches: &[usize]| caches.iter().all(|at| failed[*at].is_none());
            let done = ids.into_iter().filter(|(_, caches)| is_done(caches));
            let ids: Vec<String> = done.map(|(id, _)| id).collect();
            if !ids.is_empty() {
                relayed += ids.len() as u64;
                self.relayed.fetch_add(ids.len() as u64, Ordering::Relaxed);
                self.outbox.delete(&ids).await?;
            }
            if !full {
                break;
            }
        }
        let known = std::mem::replace(&mut *self.bad.lock(), bad.clone());
        for id in bad.difference(&known) {
            tracing::warn!(id, "a row of an outbox is not for this relay, and is left alone");
        }
        failed.into_iter().flatten().next().map_or(Ok(relayed), |error| Err(error.into()))
    }

    /// Adds what a row has to what is touched in each cache, and says in which; not if there is no cache for some of it.
    fn assign(&self, row: &Row, touched: &mut [Vec<Touched>]) -> Option<Vec<usize>> {
        let keys = row.decode()?;
        let has = |namespace: &str| self.caches.iter().any(|cache| cache.namespace() == namespace);
        if !keys.iter().all(|(namespace, _)| has(namespace)) {
            return None;
        }
        let mut caches = Vec::new();
        for (namespace, key) in keys {
            // Two may be in one namespace, at two stores.
            for (at, (cache, touched)) in self.caches.iter().zip(&mut *touched).enumerate() {
                if cache.namespace() == namespace {
                    touched.push(key.clone());
                    caches.push(at);
                }
            }
        }
        Some(caches)
    }
}

impl Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { outbox, caches, .. } = &*self.shared;
        f.debug_struct("Relay").field("outbox", outbox).field("caches", caches).finish()
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;
    use crate::entry::Ticket;

    /// Rows in memory.
    #[derive(Clone, Debug, Default)]
    struct Rows(Arc<Mutex<Vec<Row>>>);

    #[async_trait]
    impl Outbox for Rows {
        async fn read(&self, _: Duration, after: &str, limit: usize) -> Result<Vec<Row>, BoxError> {
            let mut rows = self.0.lock().clone();
            rows.retain(|row| row.id.as_str() > after);
            rows.sort_by(|one, other| one.id.cmp(&other.id));
            rows.truncate(limit);
            Ok(rows)
        }

        async fn delete(&self, ids: &[String]) -> Result<(), BoxError> {
            self.0.lock().retain(|row| !ids.contains(&row.id));
            Ok(())
        }

        async fn oldest(&self) -> Result<Option<Duration>, BoxError> {
            Ok(None)
        }
    }

    /// A cache that counts, or cannot be reached.
    #[derive(Debug)]
    struct Named(&'static str, bool, Arc<AtomicU64>);

    #[async_trait]
    impl Invalidate for Named {
        fn namespace(&self) -> &str {
            self.0
        }

        async fn invalidate_touched(&self, touched: &[Touched]) -> Result<()> {
            self.2.fetch_add(touched.len() as u64, Ordering::SeqCst);
            if self.1 { Ok(()) } else { Err(Error::Config("told to fail".into())) }
        }

        async fn announce_touched(&self, _: &[Touched]) -> Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_store_that_is_down_holds_up_only_its_own_rows() {
        let rows = Rows::default();
        let row = |namespaces: &[&str]| {
            let touched = Touched { key: "1".into(), version: 0 };
            Row::new(Ticket::new(), namespaces.iter().map(|namespace| (*namespace, &touched)))
        };
        // More than a page of those that cannot be done.
        rows.0.lock().extend((0..PAGE * 2).map(|_| row(&["down"])));
        rows.0.lock().extend((0..PAGE).map(|_| row(&["up"])));
        rows.0.lock().push(row(&["up", "down"]));
        let counts = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let caches: [Arc<dyn Invalidate>; 2] = [
            Arc::new(Named("up", true, Arc::clone(&counts[0]))),
            Arc::new(Named("down", false, Arc::clone(&counts[1]))),
        ];
        let mut builder = Relay::builder(rows.clone());
        builder.caches.extend(caches);
        let every = Duration::from_secs(3600);
        let relay = builder.every(every).start();
        assert!(relay.sweep().await.is_err());
        assert!(rows.0.lock().iter().all(|row| row.touched.contains("down")));
        assert_eq!(rows.0.lock().len(), PAGE * 2 + 1);
        assert!(counts[0].load(Ordering::SeqCst) > PAGE as u64);
        assert!(counts[1].load(Ordering::SeqCst) <= PAGE as u64 + 1, "it is asked once");
    }
}
