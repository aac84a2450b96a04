//! Locks between the processes of one host: a directory, no server.
//!
//! # How it works
//!
//! | in the directory | what it is |
//! | --- | --- |
//! | `locks.db` | a SQLite database (WAL): the [`State`](crate::model::State) of each name in use, the last token, and what stocks there are |
//! | `processes/ID` | a FIFO per process: being open for reading proves that the process lives, and what is written to it wakes the process up |
//! | `setup.lock` | locked with `flock` while the directory is set up or tidied |
//!
//! 1. A request is one transaction: load the state of the name, take the model's step, store it.
//! 2. Whatever frees a name grants it to the first in the queue in the same transaction, and then
//!    writes that request's id into the FIFO of its process: one message for one hand-over.
//! 3. The woken process asks again. The request is idempotent, finds its grant, and its lease starts
//!    anew.
//! 4. A waiter holds the FIFOs of all processes before it open for writing. The kernel reports the
//!    moment a process is gone, however it went; the waiter asks again and the model forgets the dead.
//! 5. A waiter asks again every third of its own lease ([`WAITER_LEASE`]) in any case, so a message
//!    that was lost, or a process that is stopped, costs the others no more than that.
//!
//! # What it promises
//!
//! Exclusion between all processes that use the directory, in order of arrival; a lock is free the
//! moment its process dies and not later than its lease; tokens that grow over releases, restarts,
//! power failures and even the deletion of the directory (see `database.rs`).
//!
//! # When it breaks
//!
//! Not on network file systems, which it refuses. A process that is stopped *inside* a transaction
//! (some 50 µs) blocks the directory until it goes on or dies; others then report
//! [`Error::Unavailable`]. A disk that stands still for two thirds of the time to live costs a holder
//! its lock, declared in time. Deleting the directory while locks are held makes every holder lose its
//! lock at the next renewal. Processes in different time namespaces must not share a directory.
//!
//! # Cost
//!
//! One transaction to lock and one to release, no `fsync` except for stocks; a holder renews every third of its time to
//! live; a waiter asks about every 1.7 s.

mod cells;
mod database;
mod directory;
mod hold;
mod peers;
mod store;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;

use self::directory::Directory;
use self::hold::FileHold;
use self::peers::{PeerId, Peers};
use self::store::Store;
use super::{
    Admin, Backend, Capabilities, Cells, Eviction, Hold, Latches, Patience, Request, Status,
};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::model::{Answer, Ask, Place};
use crate::name::Name;
use crate::owner::RequestId;
use crate::wait::pause;

/// How long a waiter that does not ask again keeps its place.
pub const WAITER_LEASE: Duration = Duration::from_secs(5);

/// Locks in a directory of this host.
pub struct File {
    place: String,
    store: Arc<Store>,
    peers: Arc<Peers>,
}

impl File {
    /// Opens the directory, creating it if it is missing.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when it cannot be created or written, is on a network file system, or
    /// was made by a newer version.
    pub async fn open(directory: &Path) -> Result<Arc<Self>> {
        let directory = Directory::prepare(directory)?;
        let place = format!("file:{}", directory.path().display());
        let setup = directory.clone();
        // Opening waits for file locks: not on a thread of the runtime.
        let opened = tokio::task::spawn_blocking(move || {
            let _alone = setup.lock()?;
            let fifo = setup.make_fifo()?;
            Ok::<_, Error>((database::open(&setup, fifo.0)?, fifo))
        });
        let (database, fifo) = opened.await.map_err(|error| {
            Error::unavailable("file", "opening the directory was interrupted", error)
        })??;
        let peers = Peers::join(directory.clone(), fifo)?;
        let store = Store::start(database, directory, Arc::clone(&peers))?;
        peers.serve();
        Ok(Arc::new(Self { place, store, peers }))
    }

    /// The directory that `file:` stands for.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when the user has no home directory.
    pub fn default_directory() -> Result<PathBuf> {
        directory::default()
    }

    /// Asks for a lock, or asks again. Also: when to ask next at the latest.
    async fn ask(&self, request: &Request) -> Result<(Answer, Option<Instant>)> {
        let ask = Ask {
            id: request.id,
            owner: request.owner.clone(),
            kind: request.kind,
            ttl: Some(request.term.ttl()),
            tokens: request.tokens,
            place: match request.patience {
                Patience::TryOnce => Place::None,
                _ => Place::Leased(WAITER_LEASE),
            },
            party: self.peers.me(),
        };
        let id = request.id;
        let (answer, next, ahead) = self
            .store
            .change(&request.name, move |state, world| {
                let answer = state.acquire(ask, world);
                let ahead: Vec<PeerId> = match answer {
                    Answer::Queued => state.ahead_of(id).copied().collect(),
                    _ => Vec::new(),
                };
                (answer, state.next_expiry(), ahead)
            })
            .await?;
        self.peers.watch(ahead);
        let heartbeat = Instant::now() + WAITER_LEASE / 3;
        Ok((answer, Some(next.map_or(heartbeat, |next| next.min(heartbeat)))))
    }
}

/// A request that may have a hold or a place in a queue: given up when dropped, unless it is settled.
struct Parked<'a> {
    file: &'a File,
    name: &'a Name,
    id: RequestId,
    ttl: Duration,
    /// Nothing to undo.
    settled: bool,
    /// Known as a holder now, not to be forgotten.
    holds: bool,
}

impl<'a> Parked<'a> {
    fn new(file: &'a File, name: &'a Name, id: RequestId, ttl: Duration) -> Self {
        Self { file, name, id, ttl, settled: false, holds: false }
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        if !self.holds {
            self.file.peers.requests.forget(self.id);
        }
        if self.settled {
            return;
        }
        let File { store, peers, .. } = self.file;
        store.undo(self.name, self.id, Instant::now() + self.ttl, peers.requests.runtime());
    }
}

#[async_trait]
impl Backend for File {
    fn name(&self) -> &'static str {
        "file"
    }

    fn place(&self) -> &str {
        &self.place
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    async fn acquire(self: Arc<Self>, request: Request) -> Result<Option<Arc<dyn Hold>>> {
        let news = self.peers.requests.expect(request.id);
        // From here on, before the first request is sent: dropping this future undoes it.
        let mut parked = Parked::new(&self, &request.name, request.id, request.term.ttl());
        loop {
            let (answer, next) = self.ask(&request).await?;
            match answer {
                Answer::Granted { tokens, expires } => {
                    (parked.settled, parked.holds) = (true, true);
                    let hold = FileHold::new(&self.store, &self.peers, &request, tokens, expires);
                    // In one step from waiter to holder. What was said to the waiter meanwhile may
                    // have been that the hold is gone already.
                    self.peers.requests.hold(request.id, &hold);
                    if news.heard().now_or_never().is_some() {
                        let hold = Arc::clone(&hold);
                        self.peers.requests.check(hold);
                    }
                    return Ok(Some(hold));
                }
                Answer::Queued => {}
                Answer::Busy => {
                    parked.settled = true;
                    return Ok(None);
                }
                Answer::Upgrade => {
                    let (name, owner) = (request.name.clone(), request.owner.clone());
                    return Err(Error::Upgrade { name, owner });
                }
                Answer::WrongKind(used_as) => {
                    let (name, asked) = (request.name.clone(), request.kind.family());
                    return Err(Error::WrongKind { name, used_as, asked });
                }
            }
            if !pause(request.patience, next, news.heard()).await {
                return Ok(None);
            }
        }
    }

    fn lifeline(&self) -> io::Result<Option<OwnedFd>> {
        self.peers.lifeline().map(Some)
    }

    fn admin(&self) -> &dyn Admin {
        self
    }

    fn latches(&self) -> Option<&dyn Latches> {
        Some(self)
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }
}

#[async_trait]
impl Admin for File {
    async fn list(&self) -> Result<Vec<Status>> {
        let all = self.store.names().await?;
        let mut seen = Vec::with_capacity(all.len());
        for name in all {
            match self.show(&name).await {
                Ok(status) => seen.push(status),
                // One row that cannot be read must not hide the others.
                Err(error) => {
                    tracing::warn!(%name, %error, "cannot be shown");
                    seen.push(Status::unreadable(name));
                }
            }
        }
        seen.retain(|status| status.kind.is_some());
        Ok(seen)
    }

    async fn show(&self, name: &Name) -> Result<Status> {
        let named = name.clone();
        self.store
            .change(name, move |state, world| {
                state.settle(world);
                state.status(&named, world.now)
            })
            .await
    }

    async fn evict(&self, name: &Name, reason: &str) -> Result<Eviction> {
        let reason = reason.to_owned();
        let (holders, token) =
            self.store.change(name, move |state, world| state.evict(&reason, world)).await?;
        Ok(Eviction { holders, token })
    }
}

#[async_trait]
impl Latches for File {
    async fn close(&self, name: &Name, count: u32, ttl: Duration) -> Result<bool> {
        let closed = self
            .store
            .change(name, move |state, world| state.close_latch(count, ttl, world))
            .await?;
        closed.map_err(|used_as| Error::WrongKind { name: name.clone(), used_as, asked: "latch" })
    }

    async fn count_down(&self, name: &Name, _id: RequestId) -> Result<u32> {
        self.store.change(name, |state, world| state.count_down(world)).await
    }

    async fn count(&self, name: &Name) -> Result<u32> {
        self.store.change(name, |state, world| state.latch_count(world)).await
    }

    async fn wait(&self, name: &Name, id: RequestId, patience: Patience) -> Result<bool> {
        let news = self.peers.requests.expect(id);
        let me = self.peers.me();
        let _parked = Parked::new(self, name, id, WAITER_LEASE);
        loop {
            let open = self
                .store
                .change(name, move |state, world| state.await_latch(id, me, world))
                .await?;
            if open {
                return Ok(true);
            }
            // Nothing but the count-down opens it: the slow re-check of `pause` is enough.
            if !pause(patience, None, news.heard()).await {
                return Ok(false);
            }
        }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("place", &self.place).finish_non_exhaustive()
    }
}
