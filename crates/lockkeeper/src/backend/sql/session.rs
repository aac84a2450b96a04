//! Locks that live with a connection: advisory locks of PostgreSQL, `GET_LOCK` of MySQL and MariaDB.
//!
//! # How it works
//!
//! 1. Each lock that is held or waited for has a connection of its own; at most `pool=` of them. The lock
//!    is the server's own: it is free the moment the connection ends, however that happens.
//! 2. What the server locks is a hash of the name: 64 bits in PostgreSQL, 256 in MySQL, there with the
//!    name of the database, because its locks are those of the whole server. Two names with the same hash
//!    exclude each other, and are otherwise never taken for one another: everything else goes by the
//!    name.
//! 3. Then, while the lock is held, a row is inserted into `lockkeeper_names`: who holds what by which
//!    session. Its epoch brings the tokens, from the same source as in lease mode, so they grow in the
//!    order of grants. A row whose session does not have the lock says nothing, and is deleted by
//!    whoever comes by.
//! 4. Waiting is done by the server, in slices of [`SLICE`] and with a limit that it keeps itself; only one
//!    of a process waits there for a name, the others stand in line behind it in order of arrival. To
//!    give up is to end the session: nothing can be left.
//! 5. A task watches each hold: see `hold.rs`. The time to live is a setting of the session, after which
//!    the server ends it if it hears nothing (`idle_session_timeout`, `wait_timeout`); each renewal is
//!    a sign of life. So a holder that is stopped or cut off knows by its own clock that it has lost the
//!    lock before the server frees it, exactly as in lease mode.
//! 6. An eviction is written into the row, where the holder finds it, and lets go; who does not is cut off.
//!
//! # What it promises
//!
//! Exclusion between all sessions of one server and database; a lock that is free at once when its process
//! dies; tokens as in lease mode.
//!
//! # When it breaks
//!
//! When the server itself ends the connection of a holder (an administrator, a restart), the lock is free
//! at that moment. The holder hears it as soon as the end of the connection arrives (PostgreSQL), or when
//! it asks next, within a second (MySQL); in between two may believe that they hold it, and only the
//! token tells them apart. The locks are those of one server: not of a cluster, not of its replicas.
//! A pooler that lends connections is refused.
//!
//! # Cost
//!
//! Two statements to take a free lock, one to release it, and one every second while it is held; one every
//! five seconds for each name that a process waits for.

mod admin;
mod cells;
mod hold;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod sessions;
mod ties;
mod transaction;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use self::hold::{Book, Care, Facts, SessionHold};
use self::sessions::{Aim, Sessions, Tied, ask};
use self::ties::{Held, Ties, Wanted, new_row};
pub use self::transaction::Transactional;
use super::dialect::Inserted;
use super::fault::{Fault, STATEMENT_TIME};
use super::pool::{Pool, statement};
use super::row::{Loaded, Written};
use super::{OUTAGE, RETRY, WAITER_LEASE, check_version};
use crate::backend::{
    Access, Admin, Backend, Capabilities, Cells, Hold, Latches, Patience, Request, Transactions,
};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::locks::OVERTIME;
use crate::loss::Loss;
use crate::name::Name;
use crate::owner::{Owner, RequestId};
use crate::token::TokenBlock;
use crate::url::SqlOptions;
use crate::wait::{pause, until};

/// For so long a session waits at the server before it asks again: a connection that has gone silent is
/// found out.
const SLICE: Duration = Duration::from_secs(5);
/// Connections for everything that needs no session.
const ERRANDS: usize = 2;
/// Between two looks for rows of the dead.
const PURGE: Duration = Duration::from_mins(10);
/// So many tokens an epoch has.
const MOST: u32 = 1 << 14;
/// The row of a hold has no end of its own.
const NEVER: u64 = u64::MAX >> 2;

const POOLER: &str = "something between us and the server shares connections among clients (a pooler \
    such as PgBouncer in transaction mode, or a proxy), and a lock that lives with a connection would \
    not be ours alone: connect to the server directly, or use mode=lease";

/// Locks that live with connections to a database.
pub(super) struct Session<D: Ties> {
    place: String,
    prefix: String,
    connections: usize,
    sessions: Arc<Sessions<D>>,
    /// Those who wait, by key: the first of them at the server.
    lines: Mutex<HashMap<Vec<u8>, Weak<tokio::sync::Mutex<()>>>>,
    book: Book,
}

/// One who waits: his request, at which place, for which key.
type Waiting = (RequestId, String, Vec<u8>, Owner);

/// Those of this process who wait behind the first: the server knows nothing of them.
static BEHIND: Mutex<Vec<Waiting>> = Mutex::new(Vec::new());

/// One of them, for as long as this lives.
struct InLine(RequestId);

impl Drop for InLine {
    fn drop(&mut self) {
        BEHIND.lock().retain(|(id, ..)| *id != self.0);
    }
}

impl<D: Ties> Session<D> {
    pub(super) async fn connect(
        dialect: D,
        place: String,
        options: &SqlOptions,
    ) -> Result<Arc<Self>> {
        let pool = Arc::new(Pool::new(dialect, ERRANDS));
        check_version(&pool).await?;
        let sessions = Sessions::new(pool, options.pool);
        let this = Arc::new(Self {
            // Not the same locks as those of the same database with leases.
            place: format!("{place}{}mode=session", if place.contains('?') { '&' } else { '?' }),
            prefix: options.prefix.clone(),
            connections: options.pool,
            sessions,
            lines: Mutex::default(),
            book: Book::default(),
        });
        if this.is_shared().await.map_err(|fault| error::<D>(fault, "connecting"))? {
            let context = POOLER.to_owned();
            return Err(Error::Unavailable { backend: D::NAME, context, source: None });
        }
        tokio::spawn(tend(Arc::downgrade(&this)));
        Ok(this)
    }

    /// Whether sessions of ours are not our own.
    async fn is_shared(&self) -> Result<bool, Fault> {
        let Some(permit) = self.sessions.permit(Instant::now() + OUTAGE).await else {
            return Err(Fault::Dropped);
        };
        let mut tied = self.sessions.tie(permit).await?;
        let Some(session) = &mut tied.session else { return Err(Fault::Dropped) };
        let looking = D::is_shared(session, &self.sessions.pool);
        let shared = tokio::time::timeout(4 * STATEMENT_TIME, looking).await;
        let shared = shared.map_err(|_| Fault::Silent)??;
        if !shared {
            tied.give_back();
        }
        Ok(shared)
    }

    fn key(&self, name: &Name) -> Vec<u8> {
        [self.prefix.as_bytes(), name.as_str().as_bytes()].concat()
    }

    /// The line of this process for a name.
    fn line(&self, key: &[u8]) -> Arc<tokio::sync::Mutex<()>> {
        let mut lines = self.lines.lock();
        if let Some(line) = lines.get(key).and_then(Weak::upgrade) {
            return line;
        }
        if lines.len() >= 64 && lines.len().is_power_of_two() {
            lines.retain(|_, line| line.strong_count() > 0);
        }
        let line = Arc::default();
        lines.insert(key.to_vec(), Arc::downgrade(&line));
        line
    }

    /// Says that somebody waits in it.
    fn enter_line(&self, request: &Request, key: &[u8]) -> InLine {
        let (place, owner) = (self.place.clone(), request.owner.clone());
        BEHIND.lock().push((request.id, place, key.to_vec(), owner));
        InLine(request.id)
    }

    /// Who does.
    fn behind(&self, key: &[u8]) -> Vec<Owner> {
        let behind = BEHIND.lock();
        let here = behind.iter().filter(|(_, place, of, _)| *place == self.place && of == key);
        here.map(|(.., owner)| owner.clone()).collect()
    }

    /// An owner that would wait for itself.
    fn refuse_own(&self, request: &Request) -> Result<()> {
        let holds: Vec<_> = self.book.lock().values().filter_map(Weak::upgrade).collect();
        let own = holds.iter().find(|hold| {
            let facts = &hold.facts;
            facts.owner == request.owner
                && facts.name == request.name
                && facts.loss.cause().is_none()
        });
        let Some(own) = own else { return Ok(()) };
        let held = own.facts.kind.lock().access();
        match (held, request.kind.access()) {
            (Access::Shared, Access::Exclusive) => {
                let (name, owner) = (request.name.clone(), request.owner.clone());
                Err(Error::Upgrade { name, owner })
            }
            (Access::Exclusive, Access::Shared) => {
                let what = "reading under one's own write lock with mode=session".to_owned();
                Err(Error::Unsupported { backend: D::NAME, what })
            }
            _ => Ok(()),
        }
    }

    /// One session's attempt, for as long as patience lasts.
    async fn attempt(
        &self,
        request: &Request,
        key: &[u8],
    ) -> Result<Option<Arc<SessionHold>>, Fault> {
        let once = request.patience == Patience::TryOnce;
        let deadline = if once { Instant::NEVER } else { request.patience.deadline() };
        let out = Instant::now() + OUTAGE;
        let Some(permit) = self.sessions.permit(deadline.min(out)).await else {
            return if deadline < out { Ok(None) } else { Err(Fault::Dropped) };
        };
        let mut tied = self.sessions.tie(permit).await?;
        let ttl = request.term.ttl().min(D::LONGEST);
        let (shared, owner) = (request.kind.is_shared(), &request.owner);
        let mut wanted = Wanted { key, shared, ttl, owner };
        tied.aim = Some(Aim { key: key.to_vec(), ttl });
        let mut granted = match ask!(&mut tied, STATEMENT_TIME, lock, &wanted, Duration::ZERO) {
            // One that the server has ended since it was used.
            Err(Fault::Broken(_)) if !tied.fresh => {
                tied.renew().await?;
                ask!(&mut tied, STATEMENT_TIME, lock, &wanted, Duration::ZERO)?
            }
            granted => granted?,
        };
        let waited = granted.is_none();
        // A process that is stopped while it waits, and is granted the lock then, has it only for so long.
        wanted.ttl = ttl.min(WAITER_LEASE);
        while granted.is_none() {
            let (now, wait) = (Instant::now(), deadline.since(Instant::now()).min(SLICE));
            if once || wait.is_zero() {
                tied.give_back();
                return Ok(None);
            }
            let patience = (wait + STATEMENT_TIME).min(deadline.since(now) + OVERTIME / 2);
            granted = match ask!(&mut tied, patience, lock, &wanted, wait) {
                // It may have it by now: closed.
                Err(Fault::Silent) if Instant::now() >= deadline => return Ok(None),
                granted => granted?,
            };
            // Some servers count in whole seconds.
            let early = wait.saturating_sub(Instant::now().since(now));
            if granted.is_none() && !early.is_zero() {
                tokio::time::sleep(early.min(RETRY / 2)).await;
            }
        }
        let Some(lock) = granted else { return Ok(None) };
        self.hold(request, key, tied, (lock, waited)).await.map(Some)
    }

    /// The lock is held: draws the tokens, and leaves it to a task.
    async fn hold(
        &self,
        request: &Request,
        key: &[u8],
        mut tied: Tied<D>,
        (lock, waited): (String, bool),
    ) -> Result<Arc<SessionHold>, Fault> {
        let held = Held {
            key: String::from_utf8_lossy(key).into_owned(),
            owner: request.owner.clone(),
            used_as: request.kind.family().to_owned(),
            lock,
            session: tied.number,
            evicted: None,
        };
        tied.held = true;
        let row = new_row(key);
        let written = Written { token: 0, ends: NEVER, state: serde_json::to_vec(&held)? };
        let ttl = request.term.ttl().min(D::LONGEST);
        let mut sent = Instant::now();
        let inserted = ask!(&mut tied, STATEMENT_TIME, insert, &row, &written, NEVER, false)?;
        let Inserted::Done(epoch) = inserted else { return Err(Fault::Contended) };
        if waited {
            sent = Instant::now();
            ask!(&mut tied, STATEMENT_TIME, beat, &row, ttl)?;
        }
        let expires = sent + ttl;
        let facts = Arc::new(Facts {
            name: request.name.clone(),
            owner: request.owner.clone(),
            kind: Mutex::new(request.kind),
            tokens: TokenBlock::issue(&mut Loaded::absent(epoch).counter, request.tokens.min(MOST)),
            expires,
            loss: Loss::new(),
        });
        let care = Care {
            facts,
            tied: Some(tied),
            lock: held.lock,
            shared: request.kind.is_shared(),
            row,
            ends: expires,
            book: (Arc::clone(&self.book), request.id),
        };
        Ok(SessionHold::start(care, &self.sessions.runtime))
    }

    /// What to say when all connections are in use.
    fn full(&self) -> Error {
        let context = format!(
            "all {} connections belong to locks that this client holds or waits for: raise pool=",
            self.connections
        );
        Error::Unavailable { backend: D::NAME, context, source: None }
    }
}

fn error<D: Ties>(fault: Fault, doing: &str) -> Error {
    Arc::new(fault).error(D::NAME, doing)
}

/// Deletes the rows of the dead.
async fn tend<D: Ties>(session: Weak<Session<D>>) {
    while let Some(present) = session.upgrade() {
        let purged = async {
            present.survey(None).await?;
            statement!(present.sessions.pool, purge_rows)
        };
        if let Err(fault) = purged.await {
            let fault: Fault = fault;
            tracing::debug!(%fault, "could not look for rows of the dead; trying again");
        }
        drop(present);
        tokio::time::sleep(PURGE).await;
    }
}

#[async_trait]
impl<D: Ties> Backend for Session<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    fn place(&self) -> &str {
        &self.place
    }

    fn capabilities(&self) -> Capabilities {
        D::CAN
    }

    async fn acquire(self: Arc<Self>, request: Request) -> Result<Option<Arc<dyn Hold>>> {
        if let Some(hold) = self.book.lock().get(&request.id).and_then(Weak::upgrade) {
            return Ok(Some(hold));
        }
        self.refuse_own(&request)?;
        let key = self.key(&request.name);
        let _place = match request.patience {
            Patience::TryOnce => None,
            patience => {
                let in_line = self.enter_line(&request, &key);
                let place = until(patience, self.line(&key).lock_owned()).await;
                drop(in_line);
                match place {
                    Some(place) => Some(place),
                    None => return Ok(None),
                }
            }
        };
        let patience = match request.patience {
            // Asked once, but the answer may have been lost: then ask for it again.
            Patience::TryOnce => Patience::Forever,
            patience => patience,
        };
        let mut failing: Option<Instant> = None;
        loop {
            let begun = Instant::now();
            let fault = match self.attempt(&request, &key).await {
                Ok(hold) => return Ok(hold.map(|hold| hold as _)),
                Err(Fault::Dropped) => return Err(self.full()),
                Err(fault) => fault,
            };
            // A wait that broke off in the end is no outage.
            if Instant::now().since(begun) > OUTAGE {
                failing = None;
            }
            let from = *failing.get_or_insert_with(Instant::now);
            if !fault.may_pass() || Instant::now().since(from) > OUTAGE {
                return Err(error::<D>(fault, "locking"));
            }
            let again = Some(Instant::now() + RETRY);
            if !pause(patience, again, std::future::pending()).await {
                return Ok(None);
            }
        }
    }

    fn lifeline(&self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    fn admin(&self) -> &dyn Admin {
        self
    }

    fn latches(&self) -> Option<&dyn Latches> {
        None
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        Some(self)
    }
}

impl<D: Ties> fmt::Debug for Session<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("place", &self.place).finish_non_exhaustive()
    }
}
