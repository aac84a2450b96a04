//! One holder at a time.

use std::sync::Arc;
use std::time::Duration;

use super::target::Target;
use crate::backend::Kind;
use crate::error::Result;
use crate::guard::Guard;
use crate::locks::{Inner, Locks, Options};
use crate::name::Name;

/// A mutex at a store: one holder at a time, over all processes that use the store.
///
/// Made by [`Locks::mutex`]; costs nothing until it is locked. Not reentrant unless the locks were
/// made [`owned_by`](Locks::owned_by) somebody.
///
/// Many tasks of one process on one mutex pass it on in memory, without a round trip; other
/// processes get their turn in between. With [`fair`](Self::fair) every task stands in line at the
/// store, and grants come strictly in order of arrival.
///
/// ```
/// # use lockkeeper::{Error, Locks, Result};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let locks = Locks::memory();
/// let mutex = locks.mutex("orders/42");
/// let guard = mutex.lock().await?;
/// assert!(mutex.try_lock().await?.is_none());
/// let late = mutex.lock_timeout(Duration::from_millis(10)).await;
/// assert!(matches!(late, Err(Error::Timeout { .. })));
/// guard.release().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    target: Target,
    kind: Kind,
}

impl Mutex {
    pub(crate) fn new(locks: &Locks, name: &str) -> Self {
        Self { target: Target::new(locks, name), kind: Kind::Mutex }
    }

    /// The same mutex, granted in the order of arrival.
    #[must_use]
    pub fn fair(mut self) -> Self {
        self.kind = Kind::FairMutex;
        self
    }

    /// The name, if it is a valid one.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`](crate::Error::InvalidName).
    pub fn name(&self) -> Result<&Name> {
        self.target.name()
    }

    /// Where multi-locks sort it: first by store, then by name.
    pub(crate) fn rank(&self) -> Result<(String, Name)> {
        Ok((self.target.inner.backend.place().to_owned(), self.name()?.clone()))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.target.inner
    }

    /// What is asked for when it is taken together with others.
    pub(crate) fn wanted(&self) -> Result<(Name, Kind, Options)> {
        Ok((self.name()?.clone(), self.kind, self.target.options.clone()))
    }

    /// Waits until the lock is granted.
    ///
    /// # Errors
    ///
    /// When the store cannot be used, or after [`Locks::shutdown`]; never for contention, except that of
    /// owners that wait for each other: [`Error::Deadlock`](crate::Error::Deadlock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the wait; nothing stays behind.
    pub async fn lock(&self) -> Result<Guard> {
        self.target.lock(self.kind).await
    }

    /// Asks once; `None` when somebody else has it.
    ///
    /// # Errors
    ///
    /// When the store cannot be used.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.target.try_lock(self.kind).await
    }

    /// Waits for at most `timeout`. The bound holds even when the store does not answer.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`](crate::Error::Timeout), with the holder where the store can name it; as for
    /// [`lock`](Self::lock) otherwise.
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<Guard> {
        self.target.lock_timeout(self.kind, timeout).await
    }

    /// Asks at most `attempts` times, with short random pauses that grow to 50 ms. For callers that
    /// count rounds; to wait for a time, [`lock_timeout`](Self::lock_timeout) is quicker and asks
    /// less.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`](crate::Error::Timeout).
    pub async fn lock_attempts(&self, attempts: u32) -> Result<Guard> {
        self.target.lock_attempts(self.kind, attempts).await
    }
}
