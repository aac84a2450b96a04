//! Locks in an Apache ZooKeeper ensemble. Tested on ZooKeeper 3.8.
//!
//! # How it works
//!
//! A request is an ephemeral sequential node under the node of its lock. Whoever has the smallest
//! number holds the lock; everybody else watches the one ahead of it, and nothing else. The name is
//! one element of the path: `orders-42` is `/orders-42`, and `app/orders` is `/app%2Forders`, so that
//! `a` and `a/b` do not disturb each other. Curator's lock at `/app/orders` is the lock `orders` of
//! `zookeeper://host/app`.
//!
//! | node, for a name `foo` | what it is |
//! | --- | --- |
//! | `/foo` | the lock; a container, which the server removes when it is empty. Its data says who was evicted and why |
//! | `/foo/_c_REQUEST-lock-N` | a mutex, as Curator's `InterProcessMutex` |
//! | `/foo/_c_REQUEST-__READ__N`, `…__WRIT__N` | a reader or a writer, as Curator's `InterProcessReadWriteLock`; reading under one's own write lock has the number of that |
//! | `/foo/locks/_c_REQUEST-lock-N`, `/foo/leases/_c_REQUEST-lease-N` | the line for a permit and the permits, as Curator's `InterProcessSemaphoreV2` and `InterProcessSemaphoreMutex`; in both dialects, because kazoo's is not below the lock's node |
//! | `/foo/latch` | a latch: count and time to live |
//! | `/%stock/foo/N` | a segment of a stock; it stays |
//! | `/foo/REQUEST__lock__N`, `/foo/REQUEST__rlock__N` | in dialect `kazoo`: as kazoo's `Lock` and `WriteLock`, and its `ReadLock` |
//!
//! 1. Create and list are sent together: one round trip to lock, one to release.
//! 2. The name of the node carries the id of the request. If the answer is lost, we look for it after
//!    a `sync`, keep it if it belongs to our session, and remove whatever else the request left.
//! 3. All holds of a client share one session. While it holds or waits for anything, the client proves
//!    eight times in a session's timeout that the session lives, with a write that changes nothing.
//! 4. A hold that lives longer than a moment watches its own node, so it learns of an eviction.
//! 5. The time to live of a single hold is kept by this process: it removes its node when that is over.
//!    If the process is dead or stopped, the session ends instead, after `ttl` of the URL (default 10 s;
//!    the server has bounds of its own, by default 2 to 20 of its ticks).
//! 6. Giving up removes the node, in the background where need be, for as long as the session lives.
//!
//! # What it promises
//!
//! Exclusion, in order of arrival for *every* kind: unfair readers do not pass a writer that waits,
//! because their tokens would pass it too. The token is the czxid of the node, which grows with every
//! write of the ensemble. A holder that cannot prove its session is told in time: see the module
//! `vitality` for what counts as proof. Waiters keep their place through any outage that the session
//! survives. Exclusion with Curator or, in dialect `kazoo`, with kazoo, for the kinds in the table.
//!
//! # When it breaks
//!
//! - An ensemble that is wiped, or restored from an older snapshot, starts tokens again.
//! - Curator's mutex and its read-write lock at one path do not exclude each other; ours exclude each
//!   other and both of Curator's in one direction. Use one kind at one path when sharing it.
//! - The two dialects do not exclude each other. kazoo's plain `Lock` ignores readers.
//! - Children that others put under a lock's node count as they do for Curator: a child whose name
//!   sorts before the digits, such as `0`, blocks the lock until it is removed.
//! - After two thousand million requests without a pause the numbers of a node are used up: that is an
//!   error, and not a lock for everybody as elsewhere.
//! - After two thousand million changes a segment of a stock cannot be changed any more, which is an error.
//! - An eviction's token is one more than that of the holder. The next in line, who came before the
//!   eviction, may have that same number.
//! - Why a holder was evicted is lost if nobody waits, and the server removes the empty container, which it looks for every
//!   minute, before the holder has read it: then the holder learns only that its hold is gone.
//!
//! # Cost
//!
//! One round trip to lock and one to release; a permit takes three. A hand-over is one event and one
//! list, however many wait; the list is as long as the line. One write for each eighth of the session's
//! timeout while anything is held, and one read for each renewal.
//!
//! # References
//!
//! Curator issues 43, 264, 498, 604, 621 and kazoo issues 563, 730, 732 are what this avoids.

mod address;
mod admin;
mod cells;
mod guarded;
mod hold;
mod latches;
mod layout;
mod line;
mod queue;
mod reasons;
mod session;
mod vitality;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteError};

pub use self::guarded::Guarded;

use self::address::Address;
use self::hold::{Grant, Held, ZooKeeperHold, read_beside};
use self::layout::{Dialect, LEASES, LOCKS, Note, Role, element, lease_prefix};
use self::line::{Line, Place, Traces, Waited};
use self::queue::between;
use self::session::{Ensemble, Session, answered, delete_for_good, failed};
use super::{Admin, Backend, Capabilities, Cells, Hold, Kind, Latches, Patience, Request};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::token::Token;
use crate::url::{Servers, ZooKeeperOptions};

/// The scheme of the URL.
const BACKEND: &str = "zookeeper";
/// How long the servers may fail to answer before a request gives up.
const OUTAGE: Duration = Duration::from_secs(5);
/// Between two attempts.
const RETRY: Duration = Duration::from_millis(50);
/// So often a request that was not to wait is asked again when its place was lost.
const TRIES: usize = 5;

/// Locks in a ZooKeeper ensemble.
#[derive(Clone)]
pub struct ZooKeeper {
    place: String,
    dialect: Dialect,
    ensemble: Arc<Ensemble>,
}

/// What came of one session's request.
enum Asked {
    Granted(Arc<ZooKeeperHold>),
    Busy,
    /// The place was lost with its session, or by somebody's hand.
    Again,
}

impl ZooKeeper {
    /// Connects. `place` is what the ensemble is called.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for options or files that make no sense, [`Error::Unavailable`] when no
    /// server can be reached or they refuse us.
    pub async fn connect(
        servers: &Servers,
        place: String,
        options: &ZooKeeperOptions,
    ) -> Result<Arc<Self>> {
        if servers.tls.is_some() && cfg!(not(feature = "zookeeper-tls")) {
            let missing =
                "no TLS for zookeepers: in this build; enable the feature `zookeeper-tls`";
            return Err(Error::Config(missing.into()));
        }
        let address = Address::new(servers, options)?;
        let dialect = address.dialect;
        let ensemble = Ensemble::new(address);
        ensemble.session().await?;
        Ok(Arc::new(Self { place, dialect, ensemble }))
    }

    /// The node of a lock.
    fn dir(&self, name: &Name) -> String {
        format!("{}/{}", self.ensemble.address.base, element(name))
    }

    /// Asks, and asks again with the next session when one is over.
    async fn ask(&self, request: &Request) -> Result<Option<Arc<dyn Hold>>> {
        let mut tries = 0;
        loop {
            let session = self.ensemble.session().await?;
            // From here on, before the first request is sent: dropping this future undoes it.
            let mut traces = Traces::of(&self.ensemble, &session);
            let asked = match request.kind {
                Kind::Permit { of } => {
                    self.ask_for_permit(&session, request, of, &mut traces).await?
                }
                _ => self.ask_for_lock(&session, request, &mut traces).await?,
            };
            match asked {
                Asked::Granted(hold) => {
                    traces.settle();
                    return Ok(Some(hold));
                }
                Asked::Busy => {
                    traces.settle();
                    return Ok(None);
                }
                // Before the next try, whose nodes have the same names.
                Asked::Again => traces.clear().await,
            }
            tries += 1;
            if request.patience == Patience::TryOnce && tries >= TRIES {
                return Ok(None);
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn ask_for_lock(
        &self,
        session: &Arc<Session>,
        request: &Request,
        traces: &mut Traces,
    ) -> Result<Asked> {
        let (dir, role) = (self.dir(&request.name), Role::of(request.kind));
        let mine = session.held_by(&dir, &request.owner);
        for hold in mine.iter().filter(|hold| hold.reads() && !role.is_shared()) {
            // It may have been taken away without our having heard of it yet.
            if hold.check().await.map_err(|error| failed("looking at a hold", error))?.is_none() {
                let (name, owner) = (request.name.clone(), request.owner.clone());
                return Err(Error::Upgrade { name, owner });
            }
        }
        traces.expect(&dir, &self.dialect.stem(request.id));
        for own in mine.iter().filter(|hold| role.is_shared() && hold.id != request.id) {
            if let Some(hold) = self.read_under(session, request, own).await? {
                return Ok(Asked::Granted(hold));
            }
        }
        let prefix = self.dialect.prefix(request.id, role);
        let line = self.line(session, &dir, &prefix);
        let _waiting = session.wait();
        let Some((place, children)) = line.join(&note(request, None).to_text()).await? else {
            return Ok(Asked::Again);
        };
        let used = self.used_before(session, &dir, &children, place.czxid, false).await?;
        if let Some(used_as) = used {
            delete_for_good(session, &line.path(&place.child)).await;
            traces.settle();
            return Err(wrong_kind(request, used_as));
        }
        let once = request.patience == Patience::TryOnce;
        let mut sent = place.sent;
        match line.wait(&place, children.clone(), true).await? {
            Waited::Served => {}
            Waited::Busy if once => {
                delete_for_good(session, &line.path(&place.child)).await;
                return Ok(Asked::Busy);
            }
            _ => loop {
                let waited = tokio::select! {
                    waited = line.wait(&place, children.clone(), false) => waited?,
                    write = self.own_turn(&line, request, &place), if role.is_shared() => {
                        let reading = self.read_under(session, request, &write?).await?;
                        // It does not write any more: then we wait for our turn as before.
                        let Some(hold) = reading else { continue };
                        delete_for_good(session, &line.path(&place.child)).await;
                        return Ok(Asked::Granted(hold));
                    }
                };
                if waited != Waited::Served {
                    return Ok(Asked::Again);
                }
                sent = Instant::now();
                break;
            },
        }
        let path = line.path(&place.child);
        self.grant(session, request, dir.clone(), Held::at(path, role), &place, sent).await
    }

    /// Waits until the same owner gets the lock for writing and we are the next in line: then we need
    /// not wait for it to end. Cancel safe.
    async fn own_turn(
        &self,
        line: &Line<'_>,
        request: &Request,
        place: &Place,
    ) -> Result<Arc<ZooKeeperHold>> {
        loop {
            let granted = line.session.next_grant();
            let mine = line.session.held_by(line.dir, &request.owner);
            let write = mine.into_iter().find(|hold| !hold.reads());
            let Some(write) = write else {
                granted.await;
                continue;
            };
            // Where there is no line any more, whoever waits for the turn says so.
            let Some(children) = line.list().await? else { return std::future::pending().await };
            let path = write.path();
            let holder = path.rsplit('/').next().unwrap_or_default();
            let Some(other) = between(self.dialect, &children, holder, &place.child) else {
                return Ok(write);
            };
            // Whoever stands between us may leave without anything being granted.
            tokio::select! {
                left = line.changed(other) => left?,
                () = granted => {}
            }
        }
    }

    fn line<'a>(&'a self, session: &'a Arc<Session>, dir: &'a str, prefix: &'a str) -> Line<'a> {
        self.line_as(self.dialect, session, dir, prefix)
    }

    fn line_as<'a>(
        &'a self,
        dialect: Dialect,
        session: &'a Arc<Session>,
        dir: &'a str,
        prefix: &'a str,
    ) -> Line<'a> {
        Line { ensemble: &self.ensemble, session, dialect, dir, prefix }
    }

    /// It is our turn: a hold, if the session can be proven alive.
    async fn grant(
        &self,
        session: &Arc<Session>,
        request: &Request,
        dir: String,
        held: Held,
        place: &Place,
        sent: Instant,
    ) -> Result<Asked> {
        if session.prove_unless_fresh().await.is_err() {
            return Ok(Asked::Again);
        }
        let token = u64::try_from(place.czxid).ok().and_then(Token::new);
        let token = token.ok_or_else(|| {
            failed("a grant", ZkError::UnexpectedError(format!("czxid {}", place.czxid)))
        })?;
        let (owner, kind, term) = (request.owner.clone(), request.kind, request.term);
        let grant = Grant { dir, held, id: request.id, owner, kind, token, term, sent };
        Ok(Asked::Granted(ZooKeeperHold::new(&self.ensemble, session, grant)))
    }

    /// Reads where the same owner writes already, under the same number and token. `None`: it does not
    /// write any more.
    async fn read_under(
        &self,
        session: &Arc<Session>,
        request: &Request,
        write: &Arc<ZooKeeperHold>,
    ) -> Result<Option<Arc<ZooKeeperHold>>> {
        let unknown = |error| failed("reading under one's own write lock", error);
        let ours = write.path();
        let path = read_beside(&self.ensemble, &ours, request.id);
        let text = note(request, Some(write.token)).to_text();
        let mut writer = session.client.new_multi_writer();
        let options = self.ensemble.options(CreateMode::Ephemeral);
        let added = writer
            .add_check_version(&ours, -1)
            .and_then(|()| writer.add_create(&path, text.as_bytes(), &options));
        added.map_err(unknown)?;
        let sent = Instant::now();
        match answered(async { Ok(writer.commit().await) }).await.map_err(unknown)? {
            Ok(_) => session.acknowledged(sent, None),
            Err(MultiWriteError::OperationFailed { source: ZkError::NodeExists, .. }) => {}
            Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. }) => {
                return Ok(None);
            }
            Err(error) => return Err(unknown(error.into())),
        }
        let (id, owner, kind, term) =
            (request.id, request.owner.clone(), request.kind, request.term);
        let held = Held::at(path, Role::Read);
        let (dir, token) = (write.dir.clone(), write.token);
        let grant = Grant { dir, held, id, owner, kind, token, term, sent };
        Ok(Some(ZooKeeperHold::new(&self.ensemble, session, grant)))
    }

    /// Curator's semaphore: whoever is first in line takes a permit, waits until there are not too
    /// many, and leaves the line.
    async fn ask_for_permit(
        &self,
        session: &Arc<Session>,
        request: &Request,
        of: u32,
        traces: &mut Traces,
    ) -> Result<Asked> {
        let dir = self.dir(&request.name);
        let (locks, leases) = (format!("{dir}/{LOCKS}"), format!("{dir}/{LEASES}"));
        let stem = Dialect::Curator.stem(request.id);
        let once = request.patience == Patience::TryOnce;
        // First the permit, then the place: nobody is let in between.
        traces.expect(&leases, &stem);
        traces.expect(&locks, &stem);
        let text = note(request, None).to_text();
        let prefix = Dialect::Curator.prefix(request.id, Role::Mutex);
        let line = self.line_as(Dialect::Curator, session, &locks, &prefix);
        let _waiting = session.wait();
        let Some((place, children)) = line.join(&text).await? else { return Ok(Asked::Again) };
        let in_line = line.path(&place.child);
        let beside = self.line(session, &dir, "").list().await?.unwrap_or_default();
        if let Some(used_as) = self.used_before(session, &dir, &beside, place.czxid, true).await? {
            delete_for_good(session, &in_line).await;
            traces.settle();
            return Err(wrong_kind(request, used_as));
        }
        match line.wait(&place, children, once).await? {
            Waited::Served => {}
            Waited::Busy => {
                delete_for_good(session, &in_line).await;
                return Ok(Asked::Busy);
            }
            Waited::Gone => return Ok(Asked::Again),
        }
        let prefix = lease_prefix(request.id);
        let permits = self.line_as(Dialect::Curator, session, &leases, &prefix);
        let Some((permit, children)) = permits.join(&text).await? else { return Ok(Asked::Again) };
        let path = permits.path(&permit.child);
        let mut sent = permit.sent;
        match permits.room(&permit, children, of, once).await? {
            None => {}
            Some(Waited::Served) => sent = Instant::now(),
            Some(Waited::Busy) => {
                delete_for_good(session, &path).await;
                delete_for_good(session, &in_line).await;
                return Ok(Asked::Busy);
            }
            Some(Waited::Gone) => return Ok(Asked::Again),
        }
        delete_for_good(session, &in_line).await;
        let held = Held::at(path, Role::Mutex);
        self.grant(session, request, dir.clone(), held, &permit, sent).await
    }
}

/// What we write into the node of a request.
fn note(request: &Request, token: Option<Token>) -> Note {
    Note {
        owner: request.owner.clone(),
        family: Some(request.kind.family().to_owned()),
        ttl_ms: u64::try_from(request.term.ttl().as_millis()).ok(),
        token,
    }
}

fn wrong_kind(request: &Request, used_as: &'static str) -> Error {
    Error::WrongKind { name: request.name.clone(), used_as, asked: request.kind.family() }
}

#[async_trait]
impl Backend for ZooKeeper {
    fn name(&self) -> &'static str {
        BACKEND
    }

    fn place(&self) -> &str {
        &self.place
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { token_blocks: false, frees_on_death: false, ..Capabilities::ALL }
    }

    async fn acquire(self: Arc<Self>, request: Request) -> Result<Option<Arc<dyn Hold>>> {
        let asking = self.ask(&request);
        match request.patience {
            Patience::Until(at) => {
                let left = at.since(Instant::now());
                tokio::time::timeout(left, asking).await.unwrap_or(Ok(None))
            }
            _ => asking.await,
        }
    }

    fn lifeline(&self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
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

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeper").field("place", &self.place).finish_non_exhaustive()
    }
}
