//! The database of a directory: what is stored, and how it survives restarts.
//!
//! # Tokens
//!
//! One counter serves all names, so a name that nobody uses needs no row. Commits are not forced to
//! disk one by one, which a lock does not need: after a power failure nobody holds anything. But
//! tokens must not go back, so each boot begins a new *epoch*, which is forced to disk before the
//! first token of it is issued: `token = epoch << 24 | number`. An epoch is not smaller than the
//! seconds since the start of 2026, so that even a directory that was deleted does not start again
//! with old tokens, unless it is made again within the same second. All of it stays below 2^53 until
//! 2043, for readers that take numbers for floating point.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::directory::{Directory, store_pause};
use super::peers::PeerId;
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::model::State;
use crate::name::Name;

pub(super) type NameState = State<PeerId>;

/// Bits for the tokens of one epoch. More of them run on into the next epochs, which does no harm:
/// the clock is faster than anybody can take locks.
const EPOCH_SHIFT: u32 = 24;
/// The start of 2026 in Unix time.
const EPOCH_START: u64 = 1_767_225_600;
/// The version of the schema.
const VERSION: i32 = 1;
/// How often to try again while another process writes: with pauses of 200 µs, some five seconds.
const BUSY_TRIES: i32 = 20_000;

/// What stocks are made of.
const CELLS: &str = "CREATE TABLE IF NOT EXISTS cells (\
    name TEXT NOT NULL, cell INTEGER NOT NULL, version INTEGER NOT NULL, value BLOB NOT NULL, \
    PRIMARY KEY (name, cell)) WITHOUT ROWID";

/// What can go wrong in here.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("SQLite")]
    Sql(#[from] rusqlite::Error),
    #[error("the directory was deleted or replaced while it was in use")]
    Replaced,
    #[error("SQLite gave the transaction up")]
    RolledBack,
    #[error("the row of this name cannot be read")]
    Row(#[source] serde_json::Error),
}

impl Fault {
    fn is_busy(&self) -> bool {
        matches!(self, Self::Sql(error)
            if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy))
    }
}

/// Opens the database, creates it where it is missing, and begins a new epoch where the machine was
/// restarted. Needs the directory's lock.
pub(super) fn open(directory: &Directory, me: PeerId) -> Result<Connection> {
    let path = directory.database();
    if !path.exists() {
        // SQLite gives its other files the mode of this one. Only while it is new: closing a file
        // drops all POSIX locks that this process has on it, SQLite's among them.
        drop(directory.open_file(&path)?);
    }
    let failed = |error| failed("opening the database", Fault::Sql(error));
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
    // Not there in directories of before; those who do not know it leave it alone.
    step.execute_batch(CELLS).map_err(failed)?;
    let (token, last_boot): (i64, String) = step
        .query_row("SELECT token, boot FROM meta", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .map_err(failed)?;
    // A process that is alive was not there before a reboot: containers may have boot ids of their own.
    let rebooted = last_boot.is_empty() || (last_boot != boot && !directory.anybody_but(me));
    if rebooted {
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
    let doing = "tidying up after a reboot";
    let sql = |error| failed(doing, Fault::Sql(error));
    let mut select = database.prepare("SELECT name, state FROM names").map_err(sql)?;
    // All of them first: a row that is written under an open cursor is found again, for ever.
    let rows: Vec<_> = select
        .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?)))
        .map_err(sql)?
        .collect();
    for row in rows {
        let (name, before) = row.map_err(sql)?;
        // What cannot be read is of no use to anybody after a reboot.
        let mut state: NameState = serde_json::from_slice(&before).unwrap_or_default();
        state.restart(Instant::now());
        let row = Row { before: Some(before), state };
        row.save(database, &name).map_err(|fault| failed(doing, fault))?;
    }
    Ok(())
}

/// The error for everybody whose request went down with the same fault. Nothing was changed.
pub(super) fn failed(what: &str, fault: impl Into<Arc<Fault>>) -> Error {
    let fault = fault.into();
    let hint = match fault.is_busy() {
        true => ": another process has been inside a transaction for seconds; is it stopped?",
        false => "",
    };
    Error::unavailable("file", format!("{what}{hint}"), fault)
}

/// Whether a request failed because the directory is not the one that we opened.
pub(super) fn is_replaced(error: &Error) -> bool {
    matches!(error, Error::Unavailable { source: Some(source), .. }
        if source.downcast_ref::<Arc<Fault>>().is_some_and(|fault| matches!(**fault, Fault::Replaced)))
}

/// The state of a name, and what was stored of it before.
pub(super) struct Row {
    before: Option<Vec<u8>>,
    pub(super) state: NameState,
}

impl Row {
    pub(super) fn load(database: &Connection, name: &Name) -> Result<Self, Fault> {
        let before: Option<Vec<u8>> = database
            .prepare_cached("SELECT state FROM names WHERE name = ?")?
            .query_row([name.as_str()], |row| row.get(0))
            .optional()?;
        let state = match &before {
            None => NameState::default(),
            Some(row) => serde_json::from_slice(row).map_err(Fault::Row)?,
        };
        Ok(Self { before, state })
    }

    /// Stores it, if there is anything new to store.
    pub(super) fn save(&self, database: &Connection, name: &str) -> Result<(), Fault> {
        if self.state.is_idle() {
            if self.before.is_some() {
                database.prepare_cached("DELETE FROM names WHERE name = ?")?.execute([name])?;
            }
            return Ok(());
        }
        let after = serde_json::to_vec(&self.state).map_err(Fault::Row)?;
        if self.before.as_ref() != Some(&after) {
            let upsert = "INSERT INTO names VALUES (?1, ?2) ON CONFLICT DO UPDATE SET state = ?2";
            database.prepare_cached(upsert)?.execute(params![name, after])?;
        }
        Ok(())
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
        let year_2043 = EPOCH_START + 17 * 365 * 86_400;
        assert!(new_epoch(0, year_2043) < 1 << 53);
    }
}
