//! Meeting points, so that what happens in the worst order does so every time.

use std::time::Duration;

use tokio::sync::watch;

use crate::error::{Error, Result};

/// No step of an experiment takes longer than this, or it has no outcome.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Closed until somebody opens it, then open for ever. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate {
    what: &'static str,
    open: watch::Sender<bool>,
}

impl Gate {
    /// A closed one; `what` has happened when it is opened.
    pub fn new(what: &'static str) -> Self {
        Self { what, open: watch::Sender::new(false) }
    }

    /// Lets everybody through.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Waits until it is open.
    ///
    /// # Errors
    ///
    /// When it is not within [`PATIENCE`].
    pub async fn pass(&self) -> Result<()> {
        let mut seen = self.open.subscribe();
        within(PATIENCE, self.what, seen.wait_for(|open| *open)).await.map(drop)
    }
}

/// What comes out, if it does in time.
///
/// # Errors
///
/// When it does not.
pub async fn within<T>(bound: Duration, what: &str, work: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(bound, work).await.map_err(|_| Error::Late(what.into()))
}
