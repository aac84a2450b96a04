//! The processes that use a directory: who lives, and how to wake them up.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::directory::Directory;
use super::hold::FileHold;
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
    runtime: Handle,
    listener: OnceLock<AbortHandle>,
    /// Requests of this process that want to hear about themselves.
    requests: Mutex<HashMap<RequestId, Interested>>,
    /// Processes that are watched, until they die: one descriptor each.
    watched: Mutex<HashSet<PeerId>>,
}

enum Interested {
    Waiter(Arc<Notify>),
    Holder(Weak<FileHold>),
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
            runtime: Handle::current(),
            listener: OnceLock::new(),
            requests: Mutex::default(),
            watched: Mutex::default(),
        }))
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Looks in the background whether a hold is still ours.
    pub(super) fn check(&self, hold: Arc<FileHold>) {
        self.runtime.spawn(async move { hold.check().await });
    }

    pub(super) fn me(&self) -> PeerId {
        self.me
    }

    /// Begins to listen, until the last user of the directory is gone.
    pub(super) fn serve(self: &Arc<Self>) {
        let (us, fifo) = (Arc::downgrade(self), Arc::clone(&self.fifo));
        let listener = self.runtime.spawn(async move {
            while let Ok(messages) = listen(&fifo).await {
                let Some(us) = us.upgrade() else { return };
                messages.into_iter().for_each(|id| us.hear(id));
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

    /// A request that wants to be woken up.
    pub(super) fn expect(&self, id: RequestId) -> Arc<Notify> {
        let news = Arc::new(Notify::new());
        self.requests.lock().insert(id, Interested::Waiter(Arc::clone(&news)));
        news
    }

    /// A request that is granted and wants to hear if it is lost.
    pub(super) fn hold(&self, id: RequestId, hold: &Arc<FileHold>) {
        self.requests.lock().insert(id, Interested::Holder(Arc::downgrade(hold)));
    }

    pub(super) fn forget(&self, id: RequestId) {
        self.requests.lock().remove(&id);
    }

    /// Tells a process that something happened to a request of its.
    pub(super) fn tell(&self, peer: PeerId, id: RequestId) {
        if peer == self.me {
            return self.hear(id);
        }
        if let Some(Ok(mut fifo)) = self.directory.knock(peer) {
            // Full: it has news enough to look up. Gone: nobody to tell. In both cases the re-check
            // that every waiter makes is the remedy.
            let _ = fifo.write(&id.to_bytes());
        }
    }

    fn hear(&self, id: RequestId) {
        let hold = match self.requests.lock().get(&id) {
            Some(Interested::Waiter(news)) => return news.notify_one(),
            Some(Interested::Holder(hold)) => hold.upgrade(),
            None => None,
        };
        // Not under the lock: a hold that is dropped here takes it.
        if let Some(hold) = hold {
            self.check(hold);
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
            self.runtime.spawn(async move {
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
                    us.wake_all();
                }
            });
        }
    }

    fn wake_all(&self) {
        for interested in self.requests.lock().values() {
            if let Interested::Waiter(news) = interested {
                news.notify_one();
            }
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
