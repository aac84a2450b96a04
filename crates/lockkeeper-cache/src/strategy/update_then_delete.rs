//! Commit, then delete the entry.
//!
//! # How it works
//!
//! - Read: `GET`; on a miss load from the database and `SET`.
//! - Write: commit to the database, then delete the entry. It is deleted as well when the commit failed.
//!
//! # What it promises
//!
//! After a write has returned, the value that was there before it is not served, **unless a reader loaded it before
//! the commit and sets it after the delete**.
//!
//! # Known anomalies
//!
//! *Stale set*: the value stays stale until it ends.
//!
//! 1. A reader misses, and loads the old value.
//! 2. A writer commits the new one, deletes the entry and returns.
//! 3. The reader sets the old value.
//!
//! *Lost delete*: a writer that dies between the commit and the delete leaves the old value there until it ends. In
//! between, readers get the old value in any case.
//!
//! # When to use it
//!
//! To compare with. [`fill_lease`](super::fill_lease) costs the same and closes the first one.
//!
//! # Cost
//!
//! A hit is one round trip, a miss two and a load; concurrent misses all load. A write is one round trip after the
//! commit.

use std::fmt::Display;

use async_trait::async_trait;

use super::base::{Base, Commit, Protocol, outcome};
use super::table::Written;
use crate::cache::Read;
use crate::error::Result;

pub(super) struct UpdateThenDelete;

#[async_trait]
impl<K, V> Protocol<K, V> for UpdateThenDelete
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
        let committed = commit.await;
        let deleted = base.inner().plain_delete(name).await;
        outcome(committed, deleted)
    }
}
