//! Reads under the shared lock, writes under the exclusive one.
//!
//! # How it works
//!
//! - Read: take the lock of the key shared; `GET`; on a miss load from the database and `SET`.
//! - Write: take the lock of the key exclusively; commit to the database; delete the entry.
//!
//! The lock is a fair [read-write lock](lockkeeper::Locks::rw_lock) `lock:<namespace>:<key>` of the
//! [`Locks`] given to [`locks`](crate::Builder::locks). All who read or write the table must use the
//! same ones.
//!
//! # What it promises
//!
//! As long as no lock is lost, there is no window at all: nobody reads between a commit and its delete, and nobody sets
//! what is older than a commit.
//!
//! # Known anomalies
//!
//! *The lock ends while its holder is paused*: the value stays stale until it ends.
//!
//! 1. A reader has the lock, misses, loads the old value, and is paused before the set.
//! 2. Its lock ends. A writer takes it, commits, deletes the entry and returns.
//! 3. The reader wakes up and sets the old value.
//!
//! *Lost delete*: a writer that dies between the commit and the delete leaves the old value there until it ends. A
//! write that is only dropped, or panics, deletes in the background before it lets go of the lock.
//!
//! # When to use it
//!
//! Where not even the window between the commit and the invalidation may be seen, and reads may cost as much as a lock:
//! [`strong`](super::strong) has cheaper reads.
//!
//! # Cost
//!
//! Every read takes a lock: a hit is two round trips, and a third behind the caller; a miss is one more and a load. The
//! lock must be around the `GET` as well: a reader that looked without it may get, between commit and delete, what is no
//! longer true. A write is one round trip after the commit and a lock, and waits for the readers of the key. Where the locks
//! cannot be reached, reads go to the database, and writes are refused: [`Error::Lock`](crate::Error::Lock).

use std::fmt::Display;

use async_trait::async_trait;
use lockkeeper::{Locks, RwLock};

use super::Strategy;
use super::base::{Base, Clean, Commit, Protocol, outcome};
use super::locked::{self, held, lock_name, refused};
use super::table::Written;
use crate::cache::Read;
use crate::error::Result;

pub(super) struct ReadWriteLock {
    locks: Locks,
}

impl ReadWriteLock {
    pub(super) fn new(locks: Option<Locks>) -> Result<Self> {
        Ok(Self { locks: locked::given(locks, Strategy::ReadWriteLock)? })
    }

    /// Fair, because a stream of readers would keep a writer out.
    fn lock(&self, name: &str) -> RwLock {
        self.locks.rw_lock(lock_name(name)).fair()
    }
}

#[async_trait]
impl<K, V> Protocol<K, V> for ReadWriteLock
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    async fn read(&self, base: &Base<K, V>, key: &K, name: &str) -> Result<Read<V>> {
        let reading = async {
            match self.lock(name).read().await {
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
        let guard = self.lock(name).write_timeout(time).await.map_err(refused)?;
        let clean = Clean::new(base, key, guard);
        let committed = commit.await;
        let deleted = base.inner().plain_delete(name).await;
        let deleted = held(&clean, name, deleted).await;
        if let Some(guard) = clean.done() {
            let _ = guard.release().await;
        }
        outcome(committed, deleted)
    }
}
