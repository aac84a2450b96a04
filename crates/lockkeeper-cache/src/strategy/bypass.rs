//! No cache.
//!
//! # How it works
//!
//! - Read: load from the database.
//! - Write: commit to the database.
//!
//! # What it promises
//!
//! What the database promises.
//!
//! # Known anomalies
//!
//! None of the cache. A loader that reads a replica has that replica's lag.
//!
//! 1. A writer commits to the primary and returns.
//! 2. A reader loads from a replica that does not have it yet.
//!
//! # When to use it
//!
//! To turn the cache off by a setting, and to compare with. Before it is turned on again, what others left in the cache
//! must be gone: give the table another namespace, or wait for the time to live.
//!
//! # Cost
//!
//! A load for each read. [`max_loads`](crate::Builder::max_loads) and [`limit`](crate::Builder::limit) still hold.

use std::fmt::Display;

use async_trait::async_trait;

use super::base::{Base, Commit, Protocol, outcome};
use super::table::Written;
use crate::cache::Read;
use crate::error::Result;
use crate::freshness::Freshness;

pub(super) struct Bypass;

#[async_trait]
impl<K, V> Protocol<K, V> for Bypass
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    async fn read(&self, base: &Base<K, V>, key: &K, _name: &str) -> Result<Read<V>> {
        base.cache.read(key, Freshness::Latest).await
    }

    async fn write(
        &self,
        _base: &Base<K, V>,
        _key: &K,
        _name: &str,
        commit: Commit<'_, V>,
    ) -> Result<Written> {
        outcome(commit.await, Ok(()))
    }
}
