//! Several holders at a time.

use std::time::Duration;

use super::target::Target;
use crate::backend::Kind;
use crate::error::Result;
use crate::guard::Guard;
use crate::locks::Locks;

/// A semaphore at a store: up to a number of holders at a time, served in order of arrival.
///
/// A permit is a [`Guard`] like any other: renewed while it lives, back when it is dropped or its
/// process dies, lost before anybody else can have it.
///
/// The number is not stored: each request is judged by its own, so it can be changed by a rolling
/// deployment. While two numbers are in use there may be as many holders as the larger one allows.
///
/// ```
/// # use lockkeeper::{Locks, Result};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let locks = Locks::memory();
/// let slots = locks.semaphore("uploads", 2);
/// let one = slots.acquire().await?;
/// let two = slots.acquire().await?;
/// assert!(slots.try_acquire().await?.is_none());
/// one.release().await?;
/// assert!(slots.try_acquire().await?.is_some());
/// two.release().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    target: Target,
    kind: Kind,
}

impl Semaphore {
    pub(crate) fn new(locks: &Locks, name: &str, permits: u32) -> Self {
        Self { target: Target::new(locks, name), kind: Kind::Permit { of: permits } }
    }

    /// Waits until a permit is free. Cancel safe.
    ///
    /// # Errors
    ///
    /// When the store cannot be used, or after [`Locks::shutdown`]; never for contention.
    pub async fn acquire(&self) -> Result<Guard> {
        self.target.lock(self.kind).await
    }

    /// Asks once; `None` when all permits are taken.
    ///
    /// # Errors
    ///
    /// When the store cannot be used.
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.target.try_lock(self.kind).await
    }

    /// Waits for at most `timeout`. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`](crate::Error::Timeout).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Guard> {
        self.target.lock_timeout(self.kind, timeout).await
    }

    /// Asks at most `attempts` times; see [`Mutex::lock_attempts`](super::Mutex::lock_attempts).
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`](crate::Error::Timeout).
    pub async fn acquire_attempts(&self, attempts: u32) -> Result<Guard> {
        self.target.lock_attempts(self.kind, attempts).await
    }
}
