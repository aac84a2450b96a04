//! The database of a directory: one thread that makes one transaction out of all that is asked of it
//! at a time.
//!
//! # Tokens
//!
//! One counter serves all names, so a name that nobody uses needs no row. Commits are not forced to
//! disk one by one, which a lock does not need: after a power failure nobody holds anything. But
//! tokens must not go back, so each boot begins a new *epoch*, which is forced to disk before the
//! first token of it is issued: `token = epoch << 28 | number`. An epoch is not smaller than the
//! seconds since the start of 2026, so that even a directory that was deleted does not start again
//! with old tokens. All of it stays below 2^53 until 2034, for readers that take numbers for floating
//! point.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use tokio::sync::oneshot;

use super::directory::{Directory, store_pause};
use super::peers::{PeerId, Peers};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::model::{News, State, World};
use crate::name::Name;

type NameState = State<PeerId>;

/// Tokens of one epoch.
const EPOCH_SHIFT: u32 = 28;
/// The start of 2026 in Unix time.
const EPOCH_START: u64 = 1_767_225_600;
/// The version of the schema.
const VERSION: i32 = 1;
/// At most so many requests in one transaction.
const BATCH: usize = 256;
/// How often to try again while another process writes: with pauses of 200 µs, some five seconds.
const BUSY_TRIES: i32 = 20_000;

/// Opens the database, creates it where it is missing, and begins a new epoch where the machine was
/// restarted. Needs the directory's lock.
pub(super) fn open_database(directory: &Directory) -> Result<Connection> {
    let path = directory.database();
    // SQLite gives its other files the mode of this one.
    drop(directory.open_file(&path)?);
    let failed = |error| sql_error("opening the database", error);
    let mut database = Connection::open(&path).map_err(failed)?;
    database
        .busy_handler(Some(|tries| {
            store_pause();
            tries < BUSY_TRIES
        }))
        .map_err(failed)?;
    database.pragma_update(None, "journal_mode", "WAL").map_err(failed)?;
    database.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
    let version: i32 =
        database.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    if version > VERSION {
        return Err(Error::Unavailable {
            backend: "file",
            context: format!(
                "{} was made by a newer version (layout {version}; this one knows {VERSION}): \
                 upgrade, or name another directory with file:/DIR",
                path.display()
            ),
            source: None,
        });
    }
    let boot = boot_id()?;
    let step = database.transaction_with_behavior(TransactionBehavior::Immediate);
    let step = step.map_err(failed)?;
    if version == 0 {
        step.execute_batch(include_str!("schema.sql")).map_err(failed)?;
    }
    let (token, last_boot): (i64, String) = step
        .query_row("SELECT token, boot FROM meta", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .map_err(failed)?;
    if last_boot != boot {
        let token = new_epoch(token.cast_unsigned(), seconds());
        step.execute("UPDATE meta SET token = ?, boot = ?", params![token.cast_signed(), boot])
            .map_err(failed)?;
        forget_everybody(&step)?;
    }
    step.commit().map_err(failed)?;
    database.pragma_update(None, "synchronous", "NORMAL").map_err(failed)?;
    Ok(database)
}

/// The first value of the counter after a reboot.
fn new_epoch(token: u64, seconds: u64) -> u64 {
    ((token >> EPOCH_SHIFT) + 1).max(seconds.saturating_sub(EPOCH_START)) << EPOCH_SHIFT
}

#[allow(clippy::disallowed_methods, reason = "a hint that only ever raises tokens")]
fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

fn boot_id() -> Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .map_err(|error| Error::unavailable("file", "cannot tell reboots apart", error))
}

/// After a reboot no process of before lives. Latches stay; their time starts again.
fn forget_everybody(database: &Connection) -> Result<()> {
    let failed = |error| sql_error("tidying up after a reboot", error);
    let mut select = database.prepare("SELECT name, state FROM names").map_err(failed)?;
    let rows = select
        .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?)))
        .map_err(failed)?;
    for row in rows {
        let (name, state) = row.map_err(failed)?;
        // What cannot be read is of no use to anybody after a reboot.
        let mut state: NameState = serde_json::from_slice(&state).unwrap_or_default();
        state.restart(Instant::now());
        save(database, &name, &state).map_err(failed)?;
    }
    Ok(())
}

fn save(database: &Connection, name: &str, state: &NameState) -> rusqlite::Result<()> {
    if state.is_idle() {
        database.prepare_cached("DELETE FROM names WHERE name = ?")?.execute([name])?;
        return Ok(());
    }
    let state = serde_json::to_vec(state)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let upsert = "INSERT INTO names VALUES (?1, ?2) ON CONFLICT DO UPDATE SET state = ?2";
    database.prepare_cached(upsert)?.execute(params![name, state])?;
    Ok(())
}

fn sql_error(what: &str, error: rusqlite::Error) -> Error {
    let busy = error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy);
    let context = match busy {
        true => format!(
            "{what}: another process has been inside a transaction for seconds; is it stopped?"
        ),
        false => what.to_owned(),
    };
    Error::unavailable("file", context, error)
}

/// The way to the thread that owns the database.
pub(super) struct Store {
    jobs: mpsc::Sender<Box<dyn Job>>,
}

impl Store {
    pub(super) fn start(
        database: Connection,
        directory: Directory,
        peers: Arc<Peers>,
    ) -> Result<Arc<Self>> {
        let (jobs, inbox) = mpsc::channel();
        let inode = inode(&directory);
        let clerk = Clerk { database, directory, inode, peers };
        std::thread::Builder::new()
            .name("lockkeeper-file".into())
            .spawn(move || clerk.work(&inbox))
            .map_err(|error| Error::unavailable("file", "no thread to be had", error))?;
        Ok(Arc::new(Self { jobs }))
    }

    /// Takes one step of the model on one name, in a transaction. An error: nothing was changed.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        name: &Name,
        step: impl FnOnce(&mut NameState, &mut World<'_, PeerId>) -> T + Send + 'static,
    ) -> Result<T> {
        let (reply, outcome) = oneshot::channel();
        self.send(Change { name: name.clone(), step: Some(step), done: None, reply: Some(reply) });
        outcome.await.unwrap_or_else(|_| Err(gone()))
    }

    /// The same, without waiting for it.
    pub(super) fn submit(
        &self,
        name: &Name,
        step: impl FnOnce(&mut NameState, &mut World<'_, PeerId>) + Send + 'static,
    ) {
        self.send(Change { name: name.clone(), step: Some(step), done: None, reply: None });
    }

    /// All names in use.
    pub(super) async fn names(&self) -> Result<Vec<Name>> {
        let (reply, outcome) = oneshot::channel();
        self.send(List { names: Vec::new(), reply });
        outcome.await.unwrap_or_else(|_| Err(gone()))
    }

    fn send(&self, job: impl Job + 'static) {
        // Without the thread the job is dropped, and whoever waits for it sees that.
        let _ = self.jobs.send(Box::new(job));
    }
}

fn gone() -> Error {
    Error::Unavailable { backend: "file", context: "the database thread ended".into(), source: None }
}

/// Something to do inside a transaction; `finish` is called once it is committed or rolled back.
trait Job: Send {
    fn run(&mut self, transaction: &mut Transaction<'_>) -> rusqlite::Result<()>;
    fn finish(self: Box<Self>, outcome: Result<()>);
}

/// One transaction, with what it has read so far.
struct Transaction<'a> {
    database: &'a Connection,
    peers: &'a Peers,
    states: HashMap<Name, NameState>,
    token: u64,
    news: News<PeerId>,
}

impl<'a> Transaction<'a> {
    fn begin(database: &'a Connection, peers: &'a Peers) -> rusqlite::Result<Self> {
        let token: i64 = database
            .prepare_cached("SELECT token FROM meta")?
            .query_row([], |row| row.get(0))?;
        Ok(Self {
            database,
            peers,
            states: HashMap::new(),
            token: token.cast_unsigned(),
            news: News::default(),
        })
    }

    fn state(&mut self, name: &Name) -> rusqlite::Result<&mut NameState> {
        match self.states.entry(name.clone()) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let row: Option<Vec<u8>> = self
                    .database
                    .prepare_cached("SELECT state FROM names WHERE name = ?")?
                    .query_row([name.as_str()], |row| row.get(0))
                    .optional()?;
                let state = match row {
                    None => NameState::default(),
                    Some(row) => serde_json::from_slice(&row).map_err(|error| {
                        let kind = rusqlite::types::Type::Blob;
                        rusqlite::Error::FromSqlConversionFailure(1, kind, error.into())
                    })?,
                };
                Ok(entry.insert(state))
            }
        }
    }

    /// Writes what was changed; whom to tell once that is committed.
    fn end(self) -> rusqlite::Result<News<PeerId>> {
        for (name, state) in &self.states {
            save(self.database, name.as_str(), state)?;
        }
        let token = self.token.cast_signed();
        self.database.prepare_cached("UPDATE meta SET token = ?")?.execute([token])?;
        Ok(self.news)
    }
}

struct Change<F, T> {
    name: Name,
    step: Option<F>,
    done: Option<T>,
    reply: Option<oneshot::Sender<Result<T>>>,
}

impl<F, T> Job for Change<F, T>
where
    F: FnOnce(&mut NameState, &mut World<'_, PeerId>) -> T + Send,
    T: Send,
{
    fn run(&mut self, transaction: &mut Transaction<'_>) -> rusqlite::Result<()> {
        let Some(step) = self.step.take() else { return Ok(()) };
        let (mut token, mut news) = (transaction.token, std::mem::take(&mut transaction.news));
        let peers = transaction.peers;
        let alive = |peer: &PeerId| peers.is_alive(*peer);
        let state = transaction.state(&self.name)?;
        let mut world =
            World { now: Instant::now(), counter: &mut token, alive: &alive, news: &mut news };
        self.done = Some(step(state, &mut world));
        (transaction.token, transaction.news) = (token, news);
        Ok(())
    }

    fn finish(mut self: Box<Self>, outcome: Result<()>) {
        let result = match (outcome, self.done.take()) {
            (Ok(()), Some(done)) => Ok(done),
            (Ok(()), None) => Err(gone()),
            (Err(error), _) => Err(error),
        };
        if let Some(reply) = self.reply.take() {
            // Nobody waits any more: then it was undone, or will be by the next job in line.
            let _ = reply.send(result);
        }
    }
}

struct List {
    names: Vec<Name>,
    reply: oneshot::Sender<Result<Vec<Name>>>,
}

impl Job for List {
    fn run(&mut self, transaction: &mut Transaction<'_>) -> rusqlite::Result<()> {
        let mut select = transaction.database.prepare("SELECT name FROM names ORDER BY name")?;
        let rows = select.query_map([], |row| row.get::<_, String>(0))?;
        for row in rows {
            self.names.extend(row?.parse::<Name>().ok());
        }
        Ok(())
    }

    fn finish(self: Box<Self>, outcome: Result<()>) {
        let Self { names, reply } = *self;
        let _ = reply.send(outcome.map(|()| names));
    }
}

/// The thread that owns the database.
struct Clerk {
    database: Connection,
    directory: Directory,
    inode: Option<u64>,
    peers: Arc<Peers>,
}

impl Clerk {
    /// Works until nobody can ask any more.
    fn work(mut self, inbox: &mpsc::Receiver<Box<dyn Job>>) {
        while let Ok(first) = inbox.recv() {
            let rest = inbox.try_iter().take(BATCH - 1);
            let mut jobs: Vec<Box<dyn Job>> = std::iter::once(first).chain(rest).collect();
            let outcome = self.transact(&mut jobs);
            match outcome {
                Ok((news, mut failures)) => {
                    for (at, job) in jobs.into_iter().enumerate() {
                        job.finish(failures.remove(&at).map_or(Ok(()), Err));
                    }
                    let lost = news.lost.into_iter().map(|(peer, id, _)| (peer, id));
                    for (peer, id) in news.granted.into_iter().chain(news.opened).chain(lost) {
                        self.peers.tell(peer, id);
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    for job in jobs {
                        job.finish(Err(sql_error("a transaction failed", copy(&error, &text))));
                    }
                }
            }
        }
    }

    /// Runs the jobs in one transaction. An error: nothing was changed. A job that fails by itself
    /// is in the map, and the others stand.
    fn transact(
        &mut self,
        jobs: &mut [Box<dyn Job>],
    ) -> rusqlite::Result<(News<PeerId>, HashMap<usize, Error>)> {
        if self.inode != inode(&self.directory) {
            let path = self.directory.database();
            return Err(rusqlite::Error::InvalidPath(path));
        }
        let mut failures = HashMap::new();
        let immediate = TransactionBehavior::Immediate;
        let committed = self.database.transaction_with_behavior(immediate)?;
        let mut transaction = Transaction::begin(&committed, &self.peers)?;
        for (at, job) in jobs.iter_mut().enumerate() {
            if let Err(error) = job.run(&mut transaction) {
                failures.insert(at, sql_error("a row cannot be read", error));
            }
        }
        let news = transaction.end()?;
        committed.commit()?;
        Ok((news, failures))
    }
}

/// One error for each of those who share it.
fn copy(error: &rusqlite::Error, text: &str) -> rusqlite::Error {
    match error {
        rusqlite::Error::SqliteFailure(code, _) => {
            rusqlite::Error::SqliteFailure(*code, Some(text.to_owned()))
        }
        rusqlite::Error::InvalidPath(path) => rusqlite::Error::InvalidPath(path.clone()),
        _ => rusqlite::Error::InvalidParameterName(text.to_owned()),
    }
}

/// Tells whether the database is still the file that we opened.
fn inode(directory: &Directory) -> Option<u64> {
    fs::metadata(directory.database()).ok().map(|meta| meta.ino())
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_newer_than_every_token_of_the_one_before() {
        let now = EPOCH_START + 1000;
        let first = new_epoch(0, now);
        assert_eq!(first, 1000 << EPOCH_SHIFT);
        // The clock may stand still or go back, tokens may be lost in a power failure.
        for clock in [now, 0, now + 5] {
            assert!(new_epoch(first + 77, clock) > first + (1 << EPOCH_SHIFT) - 1);
        }
    }
}
