//! Delete the entry, then commit.
//!
//! # How it works
//!
//! - Read: `GET`; on a miss load from the database and `SET`.
//! - Write: delete the entry, then commit to the database. Without the delete there is no commit.
//!
//! # What it promises
//!
//! No write is committed whose delete was not done: a writer that dies leaves nothing behind. Nothing else.
//!
//! # Known anomalies
//!
//! *Refill before the commit*: the value stays stale until it ends.
//!
//! 1. A writer deletes the entry.
//! 2. A reader misses, loads the old value and sets it.
//! 3. The writer commits the new one and returns.
//!
//! *Stale set*: the same, with the set after the commit.
//!
//! # When to use it
//!
//! To compare with. Any read while a write is under way is enough to go wrong: this is the worst of all.
//!
//! # Cost
//!
//! A hit is one round trip, a miss two and a load; concurrent misses all load. A write is one round trip before the
//! commit.

use std::fmt::Display;

use async_trait::async_trait;

use super::base::{Base, Commit, Protocol, outcome};
use super::table::Written;
use crate::cache::Read;
use crate::error::Result;

pub(super) struct DeleteThenUpdate;

#[async_trait]
impl<K, V> Protocol<K, V> for DeleteThenUpdate
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
        base.inner().plain_delete(name).await?;
        outcome(commit.await, Ok(()))
    }
}
