//! The processes that use a directory: who lives, and how to wake them up.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::task::AbortHandle;

use super::super::register::Register;
use super::directory::Directory;
use crate::error::{Error, Result};
use crate::owner::{self, RequestId};

/// A process that uses the directory; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct PeerId(u64);

impl PeerId {
    pub(super) fn random() -> Self {
        // JSON readers may take numbers for floating point: 53 bits survive that.
        Self(owner::random() >> 11)
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for PeerId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

/// This process among the others.
pub(super) struct Peers {
    directory: Directory,
    me: PeerId,
    fifo: Arc<Receiver>,
    listener: OnceLock<AbortHandle>,
    /// Requests of this process that want to hear about themselves.
    pub(super) requests: Register,
    /// Processes that are watched, until they die: one descriptor each.
    watched: Mutex<HashSet<PeerId>>,
}

impl Peers {
    /// Enters this process, whose FIFO was just made.
    pub(super) fn join(directory: Directory, (me, fifo): (PeerId, File)) -> Result<Arc<Self>> {
        let fifo = Receiver::from_file(fifo)
            .map_err(|error| Error::unavailable("file", "cannot wait for messages", error))?;
        Ok(Arc::new(Self {
            directory,
            me,
            fifo: Arc::new(fifo),
            listener: OnceLock::new(),
            requests: Register::new(),
            watched: Mutex::default(),
        }))
    }

    pub(super) fn me(&self) -> PeerId {
        self.me
    }

    /// Begins to listen, until the last user of the directory is gone.
    pub(super) fn serve(self: &Arc<Self>) {
        let (us, fifo) = (Arc::downgrade(self), Arc::clone(&self.fifo));
        let listener = self.requests.runtime().spawn(async move {
            while let Ok(messages) = listen(&fifo).await {
                let Some(us) = us.upgrade() else { return };
                messages.into_iter().for_each(|id| us.requests.hear(id, None));
            }
        });
        // Called once, by whoever opens the directory.
        let _ = self.listener.set(listener.abort_handle());
    }

    /// The end of the FIFO that proves that this process lives.
    pub(super) fn lifeline(&self) -> io::Result<OwnedFd> {
        self.fifo.as_fd().try_clone_to_owned()
    }

    /// Whether a process lives. One that is out of our reach is taken to live: its leases decide.
    pub(super) fn is_alive(&self, peer: PeerId) -> bool {
        peer == self.me || self.directory.knock(peer).is_some()
    }

    /// Tells a process that something happened to a request of its.
    pub(super) fn tell(&self, peer: PeerId, id: RequestId) {
        if peer == self.me {
            return self.requests.hear(id, None);
        }
        if let Some(Ok(mut fifo)) = self.directory.knock(peer) {
            // Full: it has news enough to look up. Gone: nobody to tell. In both cases the re-check
            // that every waiter makes is the remedy.
            let _ = fifo.write(&id.to_bytes());
        }
    }

    /// Watches these processes; when one goes, everybody who waits here asks again.
    pub(super) fn watch(self: &Arc<Self>, peers: Vec<PeerId>) {
        for peer in peers {
            if peer == self.me || !self.watched.lock().insert(peer) {
                continue;
            }
            let us = Arc::downgrade(self);
            let fifo = self.directory.knock(peer);
            self.requests.runtime().spawn(async move {
                let gone = match fifo {
                    Some(Ok(fifo)) => closed(fifo).await,
                    Some(Err(error)) => Err(error),
                    None => Ok(()),
                };
                if let Err(error) = gone {
                    tracing::debug!(%peer, %error, "cannot watch a process; its leases decide");
                    return;
                }
                if let Some(us) = us.upgrade() {
                    us.watched.lock().remove(&peer);
                    us.requests.wake_all();
                }
            });
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.get() {
            listener.abort();
        }
        // A leftover is removed by the next process that opens the directory.
        let _ = std::fs::remove_file(self.directory.fifo(self.me));
    }
}

/// Takes in one batch of messages.
async fn listen(fifo: &Receiver) -> io::Result<Vec<RequestId>> {
    let mut buffer = [0_u8; 16 * 256];
    loop {
        fifo.readable().await?;
        match fifo.try_read(&mut buffer) {
            Ok(read) => {
                // Ids are written whole, because they are smaller than PIPE_BUF.
                let (ids, _) = buffer[..read].as_chunks::<16>();
                return Ok(ids.iter().map(|id| RequestId::from_bytes(*id)).collect());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until nobody has the FIFO open for reading any more.
async fn closed(fifo: File) -> io::Result<()> {
    // Errors are reported for the one reason that nobody reads.
    Sender::from_file(fifo)?.ready(Interest::ERROR).await?;
    Ok(())
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").field("me", &self.me).finish_non_exhaustive()
    }
}
