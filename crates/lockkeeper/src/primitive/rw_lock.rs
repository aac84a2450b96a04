//! Many readers or one writer.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use super::target::Target;
use crate::backend::Kind;
use crate::error::Result;
use crate::guard::Guard;
use crate::locks::Locks;

/// A read-write lock at a store: any number of readers, or one writer.
///
/// Readers overtake waiting writers, so a stream of readers can starve a writer; with
/// [`fair`](Self::fair) everybody is served in order of arrival.
///
/// With an [owner](Locks::owned_by) it is reentrant, and the writer may read. A reader that asks to
/// write would wait for itself: that is [`Error::Upgrade`](crate::Error::Upgrade), at once. The way
/// down is [`WriteGuard::downgrade`].
///
/// ```
/// # use lockkeeper::{Locks, Result};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let locks = Locks::memory();
/// let catalogue = locks.rw_lock("catalogue");
/// let one = catalogue.read().await?;
/// let two = catalogue.read().await?;
/// assert!(catalogue.try_write().await?.is_none());
/// drop((one, two));
/// let reading = catalogue.write().await?.downgrade().await?;
/// assert!(catalogue.try_read().await?.is_some());
/// reading.release().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    target: Target,
    fair: bool,
}

impl RwLock {
    pub(crate) fn new(locks: &Locks, name: &str) -> Self {
        Self { target: Target::new(locks, name), fair: false }
    }

    /// The same lock, granted in the order of arrival.
    #[must_use]
    pub fn fair(mut self) -> Self {
        self.fair = true;
        self
    }

    fn reading(&self) -> Kind {
        if self.fair { Kind::FairRead } else { Kind::Read }
    }

    fn writing(&self) -> Kind {
        if self.fair { Kind::FairWrite } else { Kind::Write }
    }

    /// Waits until the lock can be read. Cancel safe.
    ///
    /// # Errors
    ///
    /// When the store cannot be used, or after [`Locks::shutdown`]; never for contention, except that of
    /// owners that wait for each other: [`Error::Deadlock`](crate::Error::Deadlock).
    pub async fn read(&self) -> Result<Guard> {
        self.target.lock(self.reading()).await
    }

    /// Asks once to read; `None` when somebody writes.
    ///
    /// # Errors
    ///
    /// When the store cannot be used.
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.target.try_lock(self.reading()).await
    }

    /// Waits to read for at most `timeout`. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`](crate::Error::Timeout); as for [`read`](Self::read) otherwise.
    pub async fn read_timeout(&self, timeout: Duration) -> Result<Guard> {
        self.target.lock_timeout(self.reading(), timeout).await
    }

    /// Waits until the lock can be written. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::Upgrade`](crate::Error::Upgrade) when the owner reads; as for [`read`](Self::read)
    /// otherwise.
    pub async fn write(&self) -> Result<WriteGuard> {
        self.target.lock(self.writing()).await.map(WriteGuard)
    }

    /// Asks once to write; `None` when somebody reads or writes.
    ///
    /// # Errors
    ///
    /// [`Error::Upgrade`](crate::Error::Upgrade) when the owner reads.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(self.target.try_lock(self.writing()).await?.map(WriteGuard))
    }

    /// Waits to write for at most `timeout`. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`](crate::Error::Timeout); as for [`write`](Self::write) otherwise.
    pub async fn write_timeout(&self, timeout: Duration) -> Result<WriteGuard> {
        self.target.lock_timeout(self.writing(), timeout).await.map(WriteGuard)
    }
}

/// A read-write lock held for writing: a [`Guard`] that can become one for reading.
#[must_use = "if unused the lock is released at once"]
pub struct WriteGuard(Guard);

impl WriteGuard {
    /// Goes on reading without letting another writer in between, under the same token.
    ///
    /// With several guards of one owner all of them read from now on, also when the answer was lost.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost); [`Error::Unknown`](crate::Error::Unknown) when the
    /// store's answer was lost. In both cases this guard is gone, and with the last one of its owner
    /// the lock is released.
    pub async fn downgrade(self) -> Result<Guard> {
        self.0.downgrade().await
    }

    /// See [`Guard::release`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn release(self) -> Result<()> {
        self.0.release().await
    }
}

impl Deref for WriteGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl From<WriteGuard> for Guard {
    fn from(guard: WriteGuard) -> Self {
        guard.0
    }
}

impl fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
