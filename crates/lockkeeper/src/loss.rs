//! The signal that a lock is no longer ours.

use std::fmt;
use std::sync::OnceLock;

use tokio::sync::Notify;

/// Why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The lease was about to end and could not be renewed, or was fixed and is over.
    Expired,
    /// The store says that the hold is not ours any more.
    Gone,
    /// Somebody took it away, for this reason.
    Evicted(String),
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// There was no [`progress`](crate::Guard::progress) for as long as `stall_after` allows.
    Stalled,
    /// [`Locks::shutdown`](crate::Locks::shutdown) was called.
    ShutDown,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("its lease ran out"),
            Self::Gone => f.write_str("the store no longer knows the hold"),
            Self::Evicted(reason) => write!(f, "it was taken away: {reason}"),
            Self::MaxHold => f.write_str("it was held for as long as max_hold allows"),
            Self::Stalled => f.write_str("there was no progress for as long as stall_after allows"),
            Self::ShutDown => f.write_str("this process is shutting down"),
        }
    }
}

/// Set once, by the keeper or by a backend that learns of the loss first; awaited by any number.
#[derive(Debug, Default)]
pub struct Loss {
    cause: OnceLock<Cause>,
    heard: Notify,
}

impl Loss {
    /// A signal that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares the hold lost. The first cause stays.
    pub fn declare(&self, cause: Cause) {
        if self.cause.set(cause).is_ok() {
            self.heard.notify_waiters();
        }
    }

    /// The cause, once the hold is lost.
    pub fn cause(&self) -> Option<&Cause> {
        self.cause.get()
    }

    /// Waits until the hold is lost. Cancel safe.
    pub async fn wait(&self) -> &Cause {
        loop {
            let heard = self.heard.notified();
            if let Some(cause) = self.cause.get() {
                return cause;
            }
            heard.await;
        }
    }
}
