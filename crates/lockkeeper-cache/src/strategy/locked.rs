//! What the strategies that take locks have in common.

use std::fmt::Display;
use std::sync::Arc;

use lockkeeper::{Guard, Locks};

use super::Strategy;
use super::base::{Base, Clean};
use crate::cache::Read;
use crate::error::{Error, Result};

/// The locks that a strategy was given.
pub(super) fn given(locks: Option<Locks>, to: Strategy) -> Result<Locks> {
    locks.ok_or_else(|| Error::Config(format!("{to} needs locks: give them with Builder::locks")))
}

/// The name of a key's lock. Not that of its entry, which may be at the same server.
pub(super) fn lock_name(name: &str) -> String {
    format!("lock:{name}")
}

/// A lock was not to be had, or was lost.
pub(super) fn refused(error: lockkeeper::Error) -> Error {
    match error {
        lockkeeper::Error::InvalidName { reason, .. } => Error::InvalidKey(reason),
        other => Error::Lock(Arc::new(other)),
    }
}

/// A read without its lock: from the database, and nothing is set, where the locks cannot be reached.
pub(super) async fn without<K, V>(
    base: &Base<K, V>,
    key: &K,
    error: lockkeeper::Error,
) -> Result<Read<V>>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    match error {
        lockkeeper::Error::Unavailable { .. } | lockkeeper::Error::Unknown { .. } => {
            base.inner().bypass(key, None).await
        }
        other => Err(refused(other)),
    }
}

/// `GET`, else load and `SET`, by who has a lock. Whose lock is lost sets nothing.
pub(super) async fn read<K, V>(
    base: &Base<K, V>,
    key: &K,
    name: &str,
    guard: &Guard,
) -> Result<Read<V>>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    if let Some(read) = base.inner().plain_get(key, name).await? {
        return Ok(read);
    }
    let read = base.inner().plain_load(key, name).await?;
    if guard.check().is_ok() {
        // Else the next one loads too.
        let _ = base.inner().plain_set(key, name, &read).await;
    }
    Ok(read)
}

/// Says whether the lock was held until now, after what was done under it: if not, somebody else may have read or
/// written meanwhile.
pub(super) async fn held<K, V, L>(
    clean: &Clean<K, V, L>,
    name: &str,
    after: Result<()>,
) -> Result<()>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
    L: AsGuard + Send + Sync + 'static,
{
    let Some(Err(lost)) = clean.holds().map(|guard| guard.as_guard().check()) else { return after };
    // What we set may be over something newer.
    clean.cache().inner.plain_delete(name).await?;
    Err(refused(lost))
}

/// A guard of either kind.
pub(super) trait AsGuard {
    fn as_guard(&self) -> &Guard;
}

impl AsGuard for Guard {
    fn as_guard(&self) -> &Guard {
        self
    }
}

impl AsGuard for lockkeeper::WriteGuard {
    fn as_guard(&self) -> &Guard {
        self
    }
}
