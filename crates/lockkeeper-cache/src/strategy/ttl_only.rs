//! Values end, and nothing else takes them away.
//!
//! # How it works
//!
//! - Read: as [`fill_lease`](super::fill_lease), so that one loads for all.
//! - Write: commit to the database. The cache is not told.
//!
//! # What it promises
//!
//! A value is served for no longer than [`ttl`](crate::Builder::ttl) after it was filled, and
//! [`null_ttl`](crate::Builder::null_ttl) for what was not there; it was loaded no more than a
//! [`lease`](crate::Builder::lease) before that.
//!
//! # Known anomalies
//!
//! *Stale until it ends*, after every write.
//!
//! 1. A reader fills the old value.
//! 2. A writer commits the new one and returns.
//! 3. Readers get the old value until it ends.
//!
//! # When to use it
//!
//! Where writers cannot be made to invalidate, and values may be as old as that.
//!
//! # Cost
//!
//! A hit is one round trip; a miss is two, both before the load. A write costs nothing.

use std::fmt::Display;

use async_trait::async_trait;

use super::base::{Base, Commit, Protocol, outcome};
use super::table::Written;
use crate::cache::Read;
use crate::error::Result;
use crate::freshness::Freshness;

pub(super) struct TtlOnly;

#[async_trait]
impl<K, V> Protocol<K, V> for TtlOnly
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    async fn read(&self, base: &Base<K, V>, key: &K, _name: &str) -> Result<Read<V>> {
        base.cache.read(key, Freshness::Any).await
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
