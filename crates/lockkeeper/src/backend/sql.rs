//! Locks in a PostgreSQL, MySQL or MariaDB database: tables, no sessions.
//!
//! # How it works
//!
//! | table | what it is |
//! | --- | --- |
//! | `lockkeeper_names` | a row per name in use: the [`State`](crate::model::State) as JSON, a version, and an epoch that no other row ever had |
//! | `lockkeeper_meta` | the version of the tables, and how many evictions there were |
//! | `lockkeeper_turns` | on MySQL: rows that put inserts of one name in order |
//!
//! 1. A step reads the row and the server's clock, takes the model's step here, and writes the row if
//!    its epoch and version are still the same; if not, it begins again. All that a process asks of one
//!    name at a time is one step.
//! 2. A name that nobody uses has no row. It is taken with one statement, an insert that fails if there
//!    is a row after all, and released with one, a delete that does nothing if somebody has come since.
//! 3. Tokens count within the epoch of the row, and epochs grow: see `row.rs`.
//! 4. Whatever frees a name hands it to the first in the queue in the same step. PostgreSQL tells that
//!    client by `NOTIFY`, in the same statement. A client listens on one connection of its own, and
//!    proves to itself that it hears: behind a pooler it does not.
//! 5. Who hears nothing looks: once per name for all of the process that wait, after 20 ms, and up to
//!    1 s while nothing changes. Nobody who waits occupies a connection.
//!    A client that holds something looks for evictions in the same way, once for all names.
//! 6. A waiter keeps its place by asking again within [`WAITER_LEASE`]; where its client listens, by
//!    that: the connection that listens holds an advisory lock, and whoever hands a name over makes sure
//!    of it in the same statement. A client that is away for a moment has that lease to come back.
//! 7. A request whose answer is lost is sent again and finds what it got. Giving up releases whatever
//!    it may have got, in the background. A write that reaches the server more than 10 s late does
//!    nothing, and none waits for a lock of the database for more than 1 s.
//! 8. A statement waits no more than 2 s for a connection; one of a renewal does not wait behind all
//!    others.
//!
//! Each statement is committed by itself and leaves nothing in the session: any pooler will do.
//! Victims of a deadlock, serialization failures and failed certifications are tried again.
//!
//! # What it promises
//!
//! Exclusion between all clients of one database, by its clock; a queue in order of arrival; tokens
//! that grow as long as the database keeps what it has committed.
//!
//! # When it breaks
//!
//! A server that loses what it has committed (fail-over to a replica that was behind, commits that are
//! not synced to disk before a crash) grants again what is held, and may issue tokens again. A clock
//! that is set forward ends leases early. A request on a connection that was given up may arrive late:
//! it is undone for as long as it can take effect, by the client that sent it, if that still lives.
//!
//! # Cost
//!
//! One statement to take a free name, one to release it if nobody came; two to renew. In contention two
//! or three each. Who waits costs one look at the row when a lease ends; on MySQL, or behind a pooler,
//! about one statement a second for each name and process. A client of PostgreSQL says a word to itself
//! every 15 s.

mod admin;
mod attempt;
mod cells;
mod dialect;
mod fault;
mod fence;
mod hold;
mod hub;
mod latches;
mod line;
#[cfg(feature = "postgres")]
mod listener;
#[cfg(feature = "mysql")]
mod mysql;
mod pool;
#[cfg(feature = "postgres")]
mod postgres;
mod row;
mod session;
mod store;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use parking_lot::Mutex;

use self::dialect::{Dialect, PURGED_AT_ONCE, VERSION};
use self::fault::{Fault, may_pass};
use self::hold::SqlHold;
use self::hub::{Hub, Key};
use self::line::Lines;
use self::pool::{Pool, statement};
use self::row::{ClientId, MOST_TOKENS};
pub use self::session::Transactional;
use self::store::{After, Guess, Store};
use super::{Admin, Backend, Capabilities, Cells, Hold, Latches, Patience, Request};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::loss::Loss;
use crate::model::{Answer, Ask, Place};
use crate::name::Name;
use crate::owner::RequestId;
use crate::token::TokenBlock;
use crate::url::{Mode, SqlOptions};
use crate::wait::pause;

/// How long a waiter that does not ask again keeps its place.
pub const WAITER_LEASE: Duration = Duration::from_secs(5);
/// How long a server may fail before a request gives up.
const OUTAGE: Duration = Duration::from_secs(5);
/// Between two attempts to reach a server that fails.
const RETRY: Duration = Duration::from_millis(100);
/// How often a client that holds something looks for evictions where nobody tells of them.
const CHECK: Duration = Duration::from_secs(2);
/// How often rows of which nothing is of any use any more are deleted, and the server is asked for its
/// clock, in checks.
const PURGE: u32 = 300;

/// Opens a PostgreSQL database. `place` is the URL without its password.
///
/// # Errors
///
/// [`Error::Config`] for options that make no sense, [`Error::Unavailable`] when the server cannot be
/// reached, refuses us, or has no tables of ours.
#[cfg(feature = "postgres")]
pub async fn postgres(place: String, options: &SqlOptions) -> Result<Arc<dyn Backend>> {
    let dialect = postgres::Postgres::new(options)?;
    match options.mode {
        Mode::Lease => Ok(Sql::connect(dialect, place, options).await?),
        Mode::Session => Ok(session::Session::connect(dialect, place, options).await?),
    }
}

/// Makes the tables in a PostgreSQL database; where they are, nothing.
///
/// # Errors
///
/// As for [`postgres`], and when the tables are of a newer version.
#[cfg(feature = "postgres")]
pub async fn init_postgres(options: &SqlOptions) -> Result<()> {
    init(&Pool::new(postgres::Postgres::new(options)?, 1)).await
}

/// Opens a MySQL or MariaDB database. `place` is the URL without its password.
///
/// # Errors
///
/// As for [`postgres`].
#[cfg(feature = "mysql")]
pub async fn mysql(place: String, options: &SqlOptions) -> Result<Arc<dyn Backend>> {
    let dialect = mysql::MySql::new(options)?;
    match options.mode {
        Mode::Lease => Ok(Sql::connect(dialect, place, options).await?),
        Mode::Session => Ok(session::Session::connect(dialect, place, options).await?),
    }
}

/// Makes the tables in a MySQL or MariaDB database; where they are, nothing.
///
/// # Errors
///
/// As for [`mysql`], and when the tables are of a newer version.
#[cfg(feature = "mysql")]
pub async fn init_mysql(options: &SqlOptions) -> Result<()> {
    init(&Pool::new(mysql::MySql::new(options)?, 1)).await
}

/// Installs the trigger of [`fence::sql`](crate::fence::sql) on a table of a PostgreSQL database, or
/// removes it.
///
/// # Errors
///
/// [`Error::Config`] for a table that is not there or cannot be fenced, and as for [`postgres`].
#[cfg(feature = "postgres")]
pub async fn fence_postgres(options: &SqlOptions, table: &str, on: bool) -> Result<()> {
    fence::set::<_, sqlx::Postgres>(postgres::Postgres::new(options)?, table, on).await
}

/// The same on a table of a MySQL or MariaDB database.
///
/// # Errors
///
/// As for [`fence_postgres`].
#[cfg(feature = "mysql")]
pub async fn fence_mysql(options: &SqlOptions, table: &str, on: bool) -> Result<()> {
    fence::set::<_, sqlx::MySql>(mysql::MySql::new(options)?, table, on).await
}

async fn init<D: Dialect>(pool: &Pool<D>) -> Result<()> {
    let make = async || statement!(pool, init);
    let until = Instant::now() + OUTAGE;
    while let Err(fault) = make().await {
        // Others make them at the same time.
        if !matches!(fault, Fault::Conflict(_)) || Instant::now() > until {
            return Err(Arc::new(fault).error(D::NAME, "making the tables"));
        }
        tokio::time::sleep(RETRY).await;
    }
    check_version(pool).await.map(drop)
}

/// Refuses tables that this version does not know; the server's clock, and when we asked for it.
async fn check_version<D: Dialect>(pool: &Pool<D>) -> Result<(u64, Instant)> {
    let asked = Instant::now();
    let ask = async || statement!(pool, version);
    let found = ask().await.map_err(|fault| Arc::new(fault).error(D::NAME, "connecting"));
    let (found, clock) = found?;
    if found == VERSION {
        return Ok((clock, asked));
    }
    let context = match found > VERSION {
        true => format!("its tables are of version {found}; this program knows {VERSION}: upgrade"),
        false => format!(
            "its tables are of version {found} and too old: `lockkeeper init --url URL` of a version \
             that knows them brings them up to date"
        ),
    };
    Err(Error::Unavailable { backend: D::NAME, context, source: None })
}

/// Locks in a database.
struct Sql<D: Dialect> {
    place: String,
    prefix: String,
    store: Arc<Store<D>>,
    lines: Arc<Lines<D>>,
}

impl<D: Dialect> Sql<D> {
    async fn connect(dialect: D, place: String, options: &SqlOptions) -> Result<Arc<Self>> {
        let pool = Arc::new(Pool::new(dialect, options.pool));
        let clock = check_version(&pool).await?;
        let hub = Arc::new(Hub::new());
        D::listen(&Arc::downgrade(&pool), &Arc::downgrade(&hub));
        let store = Store::new(pool, hub, clock);
        let lines = Lines::new(&store);
        tokio::spawn(tend(Arc::downgrade(&store)));
        let prefix = options.prefix.clone();
        Ok(Arc::new(Self { place, prefix, store, lines }))
    }

    fn key(&self, name: &Name) -> Key {
        [self.prefix.as_bytes(), name.as_str().as_bytes()].concat().into()
    }

    /// As it is asked for at this moment.
    fn ask(&self, request: &Request) -> Ask<ClientId> {
        Ask {
            id: request.id,
            owner: request.owner.clone(),
            kind: request.kind,
            ttl: Some(request.term.ttl()),
            tokens: request.tokens.min(MOST_TOKENS),
            place: match request.patience {
                Patience::TryOnce => Place::None,
                _ => self.store.hub.place(),
            },
            party: self.store.hub.me,
        }
    }

    /// A hold of ours, from now on told when it is lost.
    fn hold(
        &self,
        key: &Key,
        request: &Request,
        tokens: TokenBlock,
        after: &After,
    ) -> Arc<SqlHold<D>> {
        let hold = Arc::new(SqlHold {
            store: Arc::clone(&self.store),
            key: Arc::clone(key),
            name: request.name.clone(),
            id: request.id,
            tokens,
            expires: after.sent + request.term.ttl(),
            loss: Loss::new(),
            left: Mutex::new(after.alone(request.id)),
        });
        self.store.hub.requests.hold(request.id, &hold);
        hold
    }
}

/// Looks after what nobody else does: evictions while no message arrives, and rows of the dead.
async fn tend<D: Dialect>(store: Weak<Store<D>>) {
    let mut evictions = None;
    for round in 0_u32.. {
        let Some(store) = store.upgrade() else { return };
        if let Err(fault) = look_after(&store, round, &mut evictions).await {
            tracing::debug!(%fault, "could not look after the locks; trying again");
        }
        drop(store);
        tokio::time::sleep(CHECK).await;
    }
}

async fn look_after<D: Dialect>(
    store: &Store<D>,
    round: u32,
    evictions: &mut Option<u64>,
) -> Result<(), Fault> {
    if round.is_multiple_of(PURGE) {
        purge(&store.pool).await?;
        let asked = Instant::now();
        let (_, clock) = statement!(store.pool, version)?;
        store.set_clock((clock, asked));
    }
    let requests = &store.hub.requests;
    if store.hub.hears() || !requests.holds_anything() {
        return Ok(());
    }
    let now = statement!(store.pool, evictions)?;
    if evictions.replace(now) != Some(now) {
        requests.check_all();
    }
    Ok(())
}

/// Deletes rows of which nothing is of any use any more. One by one: a row that somebody has locked must
/// not hold up others, nor keep them locked.
async fn purge<D: Dialect>(pool: &Pool<D>) -> Result<(), Fault> {
    loop {
        let (expired, mut deleted) = (statement!(pool, expired)?, false);
        for (key, known) in &expired {
            match statement!(pool, delete, key, *known, false, &[], false) {
                Ok(done) => deleted |= done,
                Err(Fault::Conflict(_)) => {}
                Err(fault) => return Err(fault),
            }
        }
        if !deleted || expired.len() < PURGED_AT_ONCE {
            return Ok(());
        }
    }
}

/// A request that may have a hold or a place in a queue: given up when dropped, unless it is settled.
struct Parked<'a, D: Dialect> {
    store: &'a Arc<Store<D>>,
    key: &'a Key,
    id: RequestId,
    ttl: Duration,
    settled: bool,
    holds: bool,
    /// An answer was lost.
    in_doubt: bool,
}

impl<D: Dialect> Drop for Parked<'_, D> {
    fn drop(&mut self) {
        if !self.holds {
            self.store.hub.requests.forget(self.id);
        }
        if !self.settled {
            // A place outlives a short lease.
            let until = Instant::now() + self.ttl.max(WAITER_LEASE);
            self.store.undo(self.key, self.id, until);
        }
    }
}

#[async_trait]
impl<D: Dialect> Backend for Sql<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    fn place(&self) -> &str {
        &self.place
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { frees_on_death: false, ..Capabilities::ALL }
    }

    async fn acquire(self: Arc<Self>, request: Request) -> Result<Option<Arc<dyn Hold>>> {
        let (store, id) = (&self.store, request.id);
        let requests = &store.hub.requests;
        let key = &self.key(&request.name);
        let news = requests.expect(id);
        // From here on, before the first request is sent: dropping this future undoes it.
        let (ttl, settled, holds, in_doubt) = (request.term.ttl(), false, false, false);
        let mut parked = Parked { store, key, id, ttl, settled, holds, in_doubt };
        // After `parked`, so that it is left before the request is undone.
        let mut in_line = None;
        let patience = match request.patience {
            // Asked once, but the answer may have been lost: then ask for it again.
            Patience::TryOnce => Patience::Forever,
            patience => patience,
        };
        let mut guess = Guess::Absent;
        let mut failing: Option<Instant> = None;
        loop {
            let ask = self.ask(&request);
            let asking = ask.clone();
            let asked = store.change(key, guess, move |stored, world, _| {
                let answer = stored.model.acquire(asking.clone(), world);
                Some((answer, stored.model.next_expiry()))
            });
            guess = Guess::Nothing;
            let next = match asked.await {
                Ok(((Answer::Granted { tokens, .. }, _), after)) => {
                    drop(in_line.take());
                    (parked.settled, parked.holds) = (true, true);
                    let hold = self.hold(key, &request, tokens, &after);
                    // What was said to the waiter meanwhile may have been that it is gone already.
                    if news.heard().now_or_never().is_some() {
                        requests.check(Arc::clone(&hold) as _);
                    }
                    return Ok(Some(hold));
                }
                Ok(((Answer::Queued, expiry), after)) => {
                    failing = None;
                    let joined = in_line.get_or_insert_with(|| self.lines.join(key, id));
                    joined.placed(ask, &after, expiry);
                    None
                }
                Ok(((Answer::Busy, _), _)) => {
                    parked.settled = !parked.in_doubt;
                    return Ok(None);
                }
                Ok(((Answer::Upgrade, _), _)) => {
                    let (name, owner) = (request.name.clone(), request.owner.clone());
                    return Err(Error::Upgrade { name, owner });
                }
                Ok(((Answer::WrongKind(used_as), _), _)) => {
                    let (name, asked) = (request.name.clone(), request.kind.family());
                    return Err(Error::WrongKind { name, used_as, asked });
                }
                Err(error) if may_pass(&error) => {
                    parked.in_doubt = true;
                    let since = *failing.get_or_insert_with(Instant::now);
                    if Instant::now().since(since) > OUTAGE {
                        return Err(error);
                    }
                    Some(Instant::now() + RETRY)
                }
                Err(error) => return Err(error),
            };
            if !pause(patience, next, news.heard()).await {
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
        Some(self)
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }
}

impl<D: Dialect> fmt::Debug for Sql<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sql").field("place", &self.place).finish_non_exhaustive()
    }
}
