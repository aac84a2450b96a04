//! A miss takes a lease, a write takes it away.
//!
//! # How it works
//!
//! - Read: [`Cache::get`](crate::Cache::get). A miss takes the lease of the key, loads, and fills under it.
//! - Write: commit to the database, then invalidate to the version that it has now, which takes away the value and the
//!   lease. The same when the commit failed, without a version: it may have been done all the same.
//!
//! # What it promises
//!
//! After a write has returned, no read that begins gets an older value, in any process. One load for each key at a time.
//!
//! # Known anomalies
//!
//! *The window*: between the commit and the invalidation, readers get the old value. It is not acknowledged yet.
//!
//! *Lost invalidation*: a process that dies in that window leaves the old value there until it ends.
//!
//! 1. A reader fills the old value.
//! 2. A writer commits the new one, and is killed.
//! 3. Readers get the old value.
//!
//! A write that is only dropped, or panics, invalidates in the background. A commit whose outcome is unknown may also
//! come after the invalidation. [`strong`](super::strong) closes all of these.
//!
//! *A replica that lacks the last invalidations*, after [`connect_warm`](crate::Redis::connect_warm) alone: what it has counts.
//!
//! # When to use it
//!
//! Where a round trip less for each write, or writing while the store is down, counts for more than what [`strong`](super::strong)
//! promises besides.
//!
//! # Cost
//!
//! A hit is one round trip; a miss is two, both before the load. A write is one round trip after the commit.

use std::fmt::Display;

use async_trait::async_trait;

use super::base::{Base, Clean, Commit, Protocol, outcome, version};
use super::table::Written;
use crate::cache::Read;
use crate::error::Result;
use crate::freshness::Freshness;

pub(super) struct FillLease;

/// Commits, then invalidates.
pub(super) async fn write<K, V>(
    base: &Base<K, V>,
    key: &K,
    commit: Commit<'_, V>,
) -> Result<Written>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let clean = Clean::new(base, key, ());
    let committed = commit.await;
    let version = version(&committed);
    let invalidated = base.cache.invalidate_to(std::slice::from_ref(key), version).await;
    clean.done();
    outcome(committed, invalidated)
}

#[async_trait]
impl<K, V> Protocol<K, V> for FillLease
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
        write(base, key, commit).await
    }
}
