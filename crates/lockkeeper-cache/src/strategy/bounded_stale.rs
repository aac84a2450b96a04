//! Fill leases, and the last value is served while another is loaded.
//!
//! # How it works
//!
//! - Read: as [`fill_lease`], but a value that was invalidated no longer than
//!   [`keep_last`](crate::Builder::keep_last) ago is taken at once, and one reader loads another.
//! - Write: as [`fill_lease`]; the invalidation keeps the last value for so long.
//!
//! # What it promises
//!
//! Readers do not wait for the database because of a write. A value that is older than the last write that returned is
//! served for no longer than `keep_last` after that value was invalidated.
//!
//! # Known anomalies
//!
//! *Stale on purpose*: within the bound, also to the writer itself, and two reads may get the new value and then the old
//! one.
//!
//! 1. A writer commits, invalidates and returns.
//! 2. A reader gets the old value.
//!
//! [`Freshness::AtLeast`] at [`Table::cache`](super::Table::cache) is for those who must
//! not. *Lost invalidation* and *failover of the cache* are as with
//! [`fill_lease`]: then the value is older than the bound says.
//!
//! # When to use it
//!
//! For keys that are read all the time and are slow to load.
//!
//! # Cost
//!
//! As [`fill_lease`], and the memory of the last value for as long as it is kept.

use std::fmt::Display;
use std::time::Duration;

use async_trait::async_trait;

use super::base::{Base, Commit, Protocol};
use super::fill_lease;
use super::table::Written;
use crate::cache::Read;
use crate::error::{Error, Result};
use crate::freshness::Freshness;

pub(super) struct BoundedStale {
    bound: Duration,
}

impl BoundedStale {
    pub(super) fn new<K, V>(base: &Base<K, V>) -> Result<Self> {
        let bound = base.inner().settings.keep_last;
        match bound.as_millis() {
            0 => Err(Error::Config("bounded-stale needs keep_last: how stale may it be?".into())),
            _ => Ok(Self { bound }),
        }
    }
}

#[async_trait]
impl<K, V> Protocol<K, V> for BoundedStale
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    async fn read(&self, base: &Base<K, V>, key: &K, _name: &str) -> Result<Read<V>> {
        base.cache.read(key, Freshness::Stale(self.bound)).await
    }

    async fn write(
        &self,
        base: &Base<K, V>,
        key: &K,
        _name: &str,
        commit: Commit<'_, V>,
    ) -> Result<Written> {
        fill_lease::write(base, key, commit).await
    }
}
