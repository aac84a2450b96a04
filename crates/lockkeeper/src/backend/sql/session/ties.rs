//! What one kind of database does in its own way about locks that live with a connection.

use std::future::Future;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::dialect::{Dialect, hash};
use super::super::fault::Fault;
use super::super::pool::Pool;
use crate::backend::Capabilities;
use crate::owner::{self, Owner};

/// What all sessions have in common, whatever the database.
pub(super) const COMMON: Capabilities = Capabilities {
    fair: false,
    read_write: false,
    fair_read_write: false,
    permits: false,
    latches: false,
    token_blocks: true,
    across_processes: true,
    frees_on_death: true,
};

/// The server ends a session that is not in use after so long. Ours are used again for half of it.
pub(super) const SPARE: Duration = Duration::from_secs(60);

/// How often a hold asks whether it is still there.
pub(super) const BEAT: Duration = Duration::from_secs(1);

/// What begins the text of a statement that waits, so that `show` can say who it is.
pub(super) const WAITS: &str = "/* lockkeeper waits: ";

/// A session that has a lock, or waits for it.
#[derive(Debug)]
pub(in crate::backend::sql) struct Tie {
    /// What the server calls the lock.
    pub(super) lock: String,
    /// The number of the session.
    pub(super) session: u64,
    pub(super) granted: bool,
    /// Who waits, where the server tells.
    pub(super) waiter: Option<Owner>,
}

/// A lock to be asked for.
pub(in crate::backend::sql) struct Wanted<'a> {
    /// The name with its prefix.
    pub(super) key: &'a [u8],
    pub(super) shared: bool,
    /// After so long without a word of ours the server ends the session.
    pub(super) ttl: Duration,
    pub(super) owner: &'a Owner,
}

/// Each method that takes a connection is one round trip.
pub(in crate::backend::sql) trait Ties: Dialect {
    /// A connection that stays the same.
    type Session: Send + 'static;

    /// What it can do in this way.
    const CAN: Capabilities;
    /// The longest time after which the server ends a session that says nothing.
    const LONGEST: Duration;

    /// A session, and its number at the server.
    fn open(&self) -> impl Future<Output = Result<(Self::Session, u64), sqlx::Error>> + Send;

    fn connection(
        session: &mut Self::Session,
    ) -> impl Future<Output = Result<&mut Self::Connection, sqlx::Error>> + Send;

    /// Ends when the connection has ended; never, where only asking tells. Cancel safe.
    fn hear_the_end(session: &mut Self::Session) -> impl Future<Output = ()> + Send;

    /// Whether our sessions are not our own: something in between lends connections.
    fn is_shared(
        session: &mut Self::Session,
        pool: &Pool<Self>,
    ) -> impl Future<Output = Result<bool, Fault>> + Send;

    /// Takes the lock, waiting for no longer than that. What the server calls it, if it is ours now.
    fn lock(
        connection: &mut Self::Connection,
        wanted: &Wanted<'_>,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<String>, sqlx::Error>> + Send;

    /// Gives the lock back and deletes the row; whether it was ours.
    fn unlock(
        connection: &mut Self::Connection,
        lock: &str,
        shared: bool,
        row: &[u8],
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Lets others share it.
    fn share(
        connection: &mut Self::Connection,
        lock: &str,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// A sign of life: the server ends the session if there is no other for so long. The number of the
    /// session, and the row.
    fn beat(
        connection: &mut Self::Connection,
        row: &[u8],
        left: Duration,
    ) -> impl Future<Output = Result<(u64, Option<Vec<u8>>), sqlx::Error>> + Send;

    /// What the server calls the lock.
    fn called(
        connection: &mut Self::Connection,
        key: &[u8],
    ) -> impl Future<Output = Result<String, sqlx::Error>> + Send;

    /// Who has these locks, or waits for them, first come first: what they are called, and their keys.
    fn ties(
        connection: &mut Self::Connection,
        locks: &[(String, Vec<u8>)],
    ) -> impl Future<Output = Result<Vec<Tie>, sqlx::Error>> + Send;

    /// Which database of which server this is.
    fn database(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<String, sqlx::Error>> + Send;

    /// Makes the row that a transaction locks, where it locks one.
    fn make_row(
        connection: &mut Self::Connection,
        key: &[u8],
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Deletes such rows when they are old.
    fn purge_rows(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Ends a session of ours if it still has this lock; if it need not be held, also if it waits for one
    /// or may yet. The server may have given the number to somebody else by now, who came
    /// within this time.
    fn end(
        connection: &mut Self::Connection,
        session: u64,
        key: &[u8],
        held: bool,
        since: Duration,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

/// What is hashed into the name of a lock.
pub(super) fn hashed(key: &[u8]) -> Vec<u8> {
    [b"lockkeeper:", key].concat()
}

/// Whoever a statement says that it waits for.
pub(super) fn waiter(text: &str) -> Option<Owner> {
    let (_, rest) = text.split_once(WAITS)?;
    Owner::try_from(rest.split_once(" */")?.0.to_owned()).ok()
}

/// What the row of a hold says. Its name begins with a byte that no name of a lock begins with; its epoch
/// is where the tokens come from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Held {
    /// The name with its prefix.
    pub(super) key: String,
    pub(super) owner: Owner,
    /// What the name is in use as.
    pub(super) used_as: String,
    /// What the server calls the lock, and the session that has it.
    pub(super) lock: String,
    pub(super) session: u64,
    /// The holder is to let go of it, for this reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) evicted: Option<String>,
}

/// What the names of all rows of holds begin with.
pub(super) const ROWS: &[u8] = &[0];

/// What the names of rows of holds of this key begin with.
pub(super) fn rows_of(key: &[u8]) -> Vec<u8> {
    [ROWS, &hash(key).to_be_bytes()].concat()
}

/// The name of a row that nobody else has.
pub(super) fn new_row(key: &[u8]) -> Vec<u8> {
    let random = [owner::random().to_be_bytes(), owner::random().to_be_bytes()];
    [rows_of(key).as_slice(), random.as_flattened()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_statement_says_who_waits() {
        let owner = Owner::try_from("host-1-abcdef:7".to_owned()).unwrap();
        let text = format!("SET x; SELECT {WAITS}{owner} */ GET_LOCK('x', 5)");
        assert_eq!(waiter(&text), Some(owner));
        assert_eq!(waiter("SELECT 1"), None);
    }

    #[test]
    fn rows_of_holds_are_no_names() {
        assert_ne!(new_row(b"x"), new_row(b"x"));
        let row = new_row(b"x");
        assert!(row.starts_with(&rows_of(b"x")) && row.starts_with(ROWS));
        let name = String::from_utf8_lossy(&row).parse::<crate::name::Name>();
        assert!(name.is_err(), "{name:?}");
    }
}
