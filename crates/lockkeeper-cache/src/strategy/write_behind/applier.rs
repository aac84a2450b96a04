//! Who writes the changes to the database.

use std::panic::AssertUnwindSafe;
use std::str::FromStr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};
use indexmap::IndexMap;
use lockkeeper::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::LOOK;
use crate::cache::Inner;
use crate::database::Database;
use crate::entry::Ticket;
use crate::error::BoxError;
use crate::store::{Change, Changes, Store};
use crate::turn::{Right, in_turn};

/// So many are taken from the log at a time.
const BATCH: usize = 100;

/// So many keys are written at a time.
const KEYS: usize = 8;

/// Between two attempts after a failure: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Applies the changes of one table, when it is its turn.
pub(super) struct Applier<K, V> {
    pub(super) cache: Weak<Inner<K, V>>,
    pub(super) store: Arc<dyn Store>,
    pub(super) database: Arc<dyn Database<K, V>>,
    pub(super) log: Arc<str>,
    pub(super) wake: Arc<Notify>,
    pub(super) lock: Option<Mutex>,
    /// How long the right to apply lasts, where there is no lock.
    pub(super) lease: Duration,
}

#[async_trait]
impl<K: Send + Sync + Clone + 'static, V: Send + Sync + 'static> Right for Applier<K, V> {
    async fn take(&self, ticket: Ticket, time: Duration) -> Option<bool> {
        let inner = self.cache.upgrade()?;
        let taken = inner.store.changes()?.lead(&self.log, ticket, time).await;
        taken.inspect_err(|error| inner.store_failed("the right to write behind", error)).ok()
    }

    async fn give_back(&self, ticket: Ticket) {
        if let Some(changes) = self.store.changes() {
            let _ = changes.resign(&self.log, ticket).await;
        }
    }
}

/// What came of a look at the log.
enum Step {
    /// There was nothing to do.
    Nothing,
    Applied,
    /// To be tried again.
    Failed,
    /// This program cannot do it; perhaps another one can.
    Foreign,
}

impl<K, V> Applier<K, V>
where
    K: FromStr + Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// For as long as there is a cache.
    pub(super) async fn run(self) {
        let mut pause = PAUSES.0;
        while self.cache.strong_count() > 0 {
            in_turn(self.lock.as_ref(), &self, self.lease, self.lead(&mut pause)).await;
            sleep(pause).await;
        }
    }

    /// Applies, until there is no cache any more or another program has to.
    async fn lead(&self, pause: &mut Duration) {
        loop {
            let step = {
                let Some(inner) = self.cache.upgrade() else { return };
                let Some(changes) = inner.store.changes() else { return };
                self.step(&inner, changes).await
            };
            match step {
                Step::Applied => *pause = PAUSES.0,
                Step::Nothing => {
                    *pause = PAUSES.0;
                    tokio::select! {
                        () = sleep(LOOK) => {}
                        () = self.wake.notified() => {}
                    }
                }
                Step::Failed => {
                    sleep(*pause).await;
                    *pause = (*pause * 2).min(PAUSES.1);
                }
                Step::Foreign => {
                    *pause = (*pause * 2).min(PAUSES.1);
                    return;
                }
            }
        }
    }

    /// The first changes that are left: those of a key one after the other, several keys at a time.
    async fn step(&self, inner: &Inner<K, V>, changes: &dyn Changes) -> Step {
        let first = match changes.first(&self.log, BATCH).await {
            Ok(first) if first.is_empty() => return Step::Nothing,
            Ok(first) => first,
            Err(error) => {
                inner.store_failed("looking for changes", &error);
                return Step::Failed;
            }
        };
        let mut keys: IndexMap<String, Vec<Change>> = IndexMap::new();
        for change in first {
            keys.entry(change.key.clone()).or_default().push(change);
        }
        let applied = stream::iter(keys.into_values()).map(async |of_one_key| {
            for change in &of_one_key {
                match self.apply(inner, changes, change).await {
                    Step::Applied => {}
                    other => return other,
                }
            }
            Step::Applied
        });
        let steps: Vec<Step> = applied.buffer_unordered(KEYS).collect().await;
        let worst = steps.into_iter().max_by_key(|step| match step {
            Step::Nothing | Step::Applied => 0,
            Step::Failed => 1,
            Step::Foreign => 2,
        });
        worst.unwrap_or(Step::Nothing)
    }

    async fn apply(&self, inner: &Inner<K, V>, changes: &dyn Changes, change: &Change) -> Step {
        let Some((key, value)) = self.read(inner, change) else {
            let (order, key) = (change.order, &change.key);
            tracing::error!(%order, key, "a change cannot be read by this program: it waits for another");
            return Step::Foreign;
        };
        let ttl = inner.lifetime(value.is_none(), change.fill());
        // Before the commit, so that no crash leaves a row that the filter does not know of; and after it, because
        // a filter that was begun meanwhile does not have it. It has said so itself if it failed.
        let key_name = std::slice::from_ref(&change.key);
        if inner.announce(key_name).await.is_err() {
            return Step::Failed;
        }
        let version = match self.store(inner, &key, value.as_ref(), change).await {
            Ok(version) if inner.announce(key_name).await.is_ok() => version,
            Ok(_) => return Step::Failed,
            Err(error) => {
                inner.stats.apply_errors.add();
                tracing::warn!(%error, "a change was not written to the database, and is tried again");
                return Step::Failed;
            }
        };
        match changes.applied(&self.log, change, version, ttl).await {
            Ok(()) => {
                inner.stats.applied.add();
                Step::Applied
            }
            Err(error) => {
                // It is done again, which changes nothing.
                inner.store_failed("a change that was written", &error);
                Step::Failed
            }
        }
    }

    /// A panic there is a failure as well, and so is no answer: if it is done late, its order tells.
    async fn store(
        &self,
        inner: &Inner<K, V>,
        key: &K,
        value: Option<&V>,
        change: &Change,
    ) -> Result<u64, BoxError> {
        let storing = self.database.store(key, value, Some(change.order));
        let storing = timeout(inner.settings.timeout, AssertUnwindSafe(storing).catch_unwind());
        match storing.await {
            Ok(Ok(stored)) => stored,
            Ok(Err(_)) => Err("it panicked".into()),
            Err(late) => Err(late.into()),
        }
    }

    /// The key and the value of a change, if they are of this program.
    fn read(&self, inner: &Inner<K, V>, change: &Change) -> Option<(K, Option<V>)> {
        let text = change.key.strip_prefix(&inner.settings.namespace)?.strip_prefix(':')?;
        let value = change.value.as_ref()?;
        if value.schema != inner.settings.schema {
            return None;
        }
        let decoded = value.payload.as_deref().map(|bytes| inner.codec.decode(bytes)).transpose();
        Some((text.parse().ok()?, decoded.ok()?))
    }
}
