//! A client on a thread and a runtime of its own, which can stand still and crash as a process does.
//!
//! While the thread stands still nothing of the client runs: no renewal, no answer is read. That is what
//! a long collection of garbage, a suspended machine or a stopped process does to it.

use std::sync::mpsc;
use std::thread;

use tokio::sync::oneshot;

use crate::error::{Error, Result};
use crate::gate::{PATIENCE, within};

/// A client that runs.
#[derive(Debug)]
pub struct Client<T> {
    ended: oneshot::Receiver<Result<T>>,
}

impl<T: Send + 'static> Client<T> {
    /// Starts it. What it leaves behind (with [`std::mem::forget`] for guards) ends with its runtime, as
    /// with a process that is killed: nothing is given back, all connections are closed.
    ///
    /// # Errors
    ///
    /// When the machine has no thread for it.
    pub fn start<F, W>(work: W) -> Result<Self>
    where
        W: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<T>>,
    {
        let (end, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("lab client".into()).spawn(move || {
            let result = runtime.block_on(work());
            runtime.shutdown_background();
            // Nobody waits for it any more.
            let _ = end.send(result);
        })?;
        Ok(Self { ended })
    }

    /// Waits until it is over.
    ///
    /// # Errors
    ///
    /// Its own, and when it is not over in time.
    pub async fn end(self) -> Result<T> {
        let gone = |_| Error::Other("a client panicked".into());
        within(2 * PATIENCE, "the end of a client", self.ended).await?.map_err(gone)?
    }
}

/// Stands still until somebody says so.
#[derive(Debug)]
pub struct StandStill(mpsc::Receiver<()>);

/// Ends a [`StandStill`].
#[derive(Debug)]
pub struct GoOn(mpsc::Sender<()>);

/// A pause that is to come, and its end.
pub fn pause() -> (StandStill, GoOn) {
    let (sender, receiver) = mpsc::channel();
    (StandStill(receiver), GoOn(sender))
}

impl StandStill {
    /// Blocks this thread, on purpose, and so everything of the client that runs on it.
    ///
    /// # Errors
    ///
    /// When nobody ends it in time.
    pub fn now(self) -> Result<()> {
        self.0.recv_timeout(PATIENCE).map_err(|_| Error::Late("the end of a pause".into()))
    }
}

impl GoOn {
    /// Lets it go on.
    pub fn now(self) {
        // It has given up meanwhile.
        let _ = self.0.send(());
    }
}
