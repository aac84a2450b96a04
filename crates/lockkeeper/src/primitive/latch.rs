//! A gate that opens when it has been counted down.

use std::time::Duration;

use super::target::Target;
use crate::backend::{Latches, Patience};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::locks::{Locks, OVERTIME};
use crate::wait::until;

/// A latch that nobody counts down goes away after this time.
const TTL: Duration = Duration::from_hours(24);

/// A countdown latch at a store: closed with a count, open at zero.
///
/// A latch that was never closed is open. One that is left alone for 24 hours goes away, and those
/// who wait for it go on: every count-down starts that time again.
///
/// ```
/// # use lockkeeper::{Locks, Result};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let locks = Locks::memory();
/// let loaded = locks.latch("tables-loaded");
/// loaded.close(2).await?;
/// loaded.count_down().await?;
/// assert_eq!(loaded.count().await?, 1);
/// loaded.count_down().await?;
/// loaded.wait().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Latch {
    target: Target,
}

impl Latch {
    pub(crate) fn new(locks: &Locks, name: &str) -> Self {
        Self { target: Target::new(locks, name) }
    }

    fn latches(&self) -> Result<&dyn Latches> {
        let backend = &self.target.inner.backend;
        backend.latches().ok_or_else(|| Error::Unsupported {
            backend: backend.name(),
            what: "countdown latches".into(),
        })
    }

    /// Closes the latch with this count unless it is closed already; whether it was open.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a count of zero; [`Error::WrongKind`] when the name is in use as a lock.
    pub async fn close(&self, count: u32) -> Result<bool> {
        if count == 0 {
            return Err(Error::Config("a latch needs a count of at least one".into()));
        }
        self.latches()?.close(self.target.name()?, count, TTL).await
    }

    /// Counts down by one and says what is left. An open latch stays open.
    ///
    /// # Errors
    ///
    /// When the store cannot be used.
    pub async fn count_down(&self) -> Result<u32> {
        let id = self.target.inner.identity.request_id();
        self.latches()?.count_down(self.target.name()?, id).await
    }

    /// What is left; zero: open.
    ///
    /// # Errors
    ///
    /// When the store cannot be used.
    pub async fn count(&self) -> Result<u32> {
        self.latches()?.count(self.target.name()?).await
    }

    /// Waits until the latch is open. Cancel safe.
    ///
    /// # Errors
    ///
    /// When the store cannot be used, or after [`Locks::shutdown`].
    pub async fn wait(&self) -> Result<()> {
        self.wait_with(Patience::Forever).await.map(|_open| ())
    }

    /// Waits for at most `timeout`; whether the latch is open. Cancel safe.
    ///
    /// # Errors
    ///
    /// When the store cannot be used, or after [`Locks::shutdown`].
    pub async fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.wait_with(Patience::Until(Instant::now() + timeout)).await
    }

    async fn wait_with(&self, patience: Patience) -> Result<bool> {
        let id = self.target.inner.identity.request_id();
        let waiting = self.latches()?.wait(self.target.name()?, id, patience);
        let waiting = self.target.inner.while_open(waiting);
        // The backend keeps the deadline; if it cannot, because nobody answers, we do.
        let bound = match patience {
            Patience::Until(at) => Patience::Until(at + OVERTIME),
            patience => patience,
        };
        until(bound, waiting).await.unwrap_or(Ok(false))
    }
}
