//! Commit and set, under a lock.
//!
//! # How it works
//!
//! - Read: `GET`. On a miss take the lock of the key, look again, load from the database and `SET`.
//! - Write: take the lock of the key, commit to the database, then `SET` what it has now. When the commit failed, when the
//!   value cannot be set or when the lock was lost meanwhile, delete the entry instead.
//!
//! The lock is a [mutex](lockkeeper::Locks::mutex) `lock:<namespace>:<key>` of the [`Locks`] given to
//! [`locks`](crate::Builder::locks). All who write the table must use the same ones.
//!
//! # What it promises
//!
//! As long as no lock is lost, cache and database never differ after a write has returned, whoever writes at the same
//! time. A value that was just written is a hit.
//!
//! # Known anomalies
//!
//! *The lock ends while its holder is paused*: the value stays stale until it ends.
//!
//! 1. A writer has the lock, commits, finds the lock still there, and is paused before the set.
//! 2. The lock ends. Another writer takes it, commits, sets and returns.
//! 3. The first one wakes up and sets its older value.
//!
//! It then notices, deletes the entry and returns an error; if it dies first, the value stays. The same when an answer to
//! a set is lost, and the set is done later.
//!
//! *Lost set*: a writer that dies between the commit and the set leaves the old value there until it ends. Between
//! them, readers get the old value in any case.
//!
//! # When to use it
//!
//! For keys that are read right after they are written, where a miss is expensive.
//!
//! # Cost
//!
//! A hit is one round trip. A miss is three, a load and a lock; a write is one after the commit and a lock. A
//! key is written by one at a time; who waits longer than [`timeout`](crate::Builder::timeout) gets
//! [`Error::Lock`](crate::Error::Lock). What is written and never read takes memory.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::{Guard, Locks};

use super::Strategy;
use super::base::{Base, Clean, Commit, Protocol, outcome};
use super::locked::{self, held, lock_name, refused};
use super::table::Written;
use crate::cache::{Read, Source};
use crate::error::Result;
use crate::loader::Loaded;

pub(super) struct WriteThrough {
    locks: Locks,
}

impl WriteThrough {
    pub(super) fn new(locks: Option<Locks>) -> Result<Self> {
        Ok(Self { locks: locked::given(locks, Strategy::WriteThrough)? })
    }

    async fn lock(&self, name: &str, time: Duration) -> lockkeeper::Result<Guard> {
        self.locks.mutex(lock_name(name)).lock_timeout(time).await
    }
}

/// Sets what was committed; deletes what is there if that cannot be.
async fn set<K, V>(
    base: &Base<K, V>,
    key: &K,
    name: &str,
    made: u64,
    now: &Loaded<Arc<V>>,
) -> Result<()>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let Loaded { value, version } = now.clone();
    let read = Read { value, version, made, source: Source::Loaded };
    match base.inner().plain_set(key, name, &read).await {
        Ok(true) => Ok(()),
        Ok(false) | Err(_) => base.inner().plain_delete(name).await,
    }
}

#[async_trait]
impl<K, V> Protocol<K, V> for WriteThrough
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    async fn read(&self, base: &Base<K, V>, key: &K, name: &str) -> Result<Read<V>> {
        let reading = async {
            if let Some(read) = base.inner().plain_get(key, name).await? {
                return Ok(read);
            }
            match self.lock(name, base.inner().settings.timeout).await {
                Ok(guard) => locked::read(base, key, name, &guard).await,
                Err(error) => locked::without(base, key, error).await,
            }
        };
        base.inner().in_time(reading).await
    }

    async fn write(
        &self,
        base: &Base<K, V>,
        key: &K,
        name: &str,
        commit: Commit<'_, V>,
    ) -> Result<Written> {
        let time = base.inner().settings.timeout;
        let clean = Clean::new(base, key, self.lock(name, time).await.map_err(refused)?);
        let made = base.inner().store.now();
        let committed = commit
            .await
            .map(|Loaded { value, version }| Loaded { value: value.map(Arc::new), version });
        let after = match &committed {
            Ok(now) if clean.holds().is_some_and(|guard| guard.check().is_ok()) => {
                set(base, key, name, made, now).await
            }
            _ => base.inner().plain_delete(name).await,
        };
        let after = held(&clean, name, after).await;
        if let Some(guard) = clean.done() {
            // Lost or not until now is what counts; it ends by itself if nobody hears of this.
            let _ = guard.release().await;
        }
        outcome(committed, after)
    }
}
