//! Fill leases, with the write announced before the commit. The default.
//!
//! # How it works
//!
//! - Read: as [`fill_lease`](super::fill_lease); while a write is announced, from the database, and nothing is filled.
//! - Write: [announce](crate::Cache::intend) it, which takes away the value and the lease; commit;
//!   [settle](crate::Write::settle). When the commit failed it is not settled, because it may be under way: the key
//!   is not cached until the announcement [ends](crate::Builder::intent).
//!
//! # What it promises
//!
//! From the commit on, and not only from the return of the write, no read that begins gets an older value. A writer
//! that dies anywhere leaves nothing stale behind.
//!
//! # Known anomalies
//!
//! *Announcement too short*: a commit that takes longer than the announcement is believed.
//!
//! 1. A writer announces, and its commit takes longer than that lasts.
//! 2. A reader misses, loads the old value and fills it.
//! 3. The writer commits. Until it settles, readers get the old value.
//!
//! *A store that forgets the announcement*, because it is emptied, evicts, starts again, or a replica takes over: the same, until the
//! write returns. A writer that dies just then leaves the old value until it ends.
//!
//! *A replica that lacks the last invalidations*, after [`connect_warm`](crate::Redis::connect_warm) alone: what it has counts, also
//! after the write has returned.
//!
//! # When to use it
//!
//! Wherever there is no reason for another one; above all where a value that is one commit too old does harm: money, rights,
//! stock.
//!
//! # Cost
//!
//! A hit is one round trip; a miss is two, both before the load; a write is one before the commit and one after it. Reads
//! during a write go to the database. Without the store nothing is written: [`Error::Store`].

use std::fmt::Display;

use async_trait::async_trait;

use super::base::{Base, Commit, Protocol, outcome};
use super::table::Written;
use crate::cache::Read;
use crate::entry::Settled;
use crate::error::{Error, Result};
use crate::freshness::Freshness;

pub(super) struct Strong;

#[async_trait]
impl<K, V> Protocol<K, V> for Strong
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    async fn read(&self, base: &Base<K, V>, key: &K, _name: &str) -> Result<Read<V>> {
        base.cache.read(key, Freshness::Any).await
    }

    async fn write(
        &self,
        base: &Base<K, V>,
        key: &K,
        _name: &str,
        commit: Commit<'_, V>,
    ) -> Result<Written> {
        let write = base.cache.intend(std::slice::from_ref(key)).await?;
        let loaded = commit.await.map_err(|error| Error::Commit(error.into()))?;
        let version = (loaded.version > 0).then_some(loaded.version);
        let settled = write.settle(version).await;
        if matches!(settled, Ok(Settled::Lapsed)) {
            tracing::warn!("a write took longer than its announcement lasted");
        }
        outcome(Ok(loaded), settled.map(|_| ()))
    }
}
