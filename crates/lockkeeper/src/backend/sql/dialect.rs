//! What one kind of database does in its own way.

use std::fmt::Write as _;
use std::future::Future;
use std::sync::Weak;

use super::fault::Fault;
use super::hub::Hub;
use super::pool::Pool;
use super::row::{ClientId, Known, RawRow, Written};
use crate::backend::{Cell, Write};

/// The version of the tables that this program knows.
pub(super) const VERSION: u64 = 1;

/// What is over for so many µs is deleted: whoever waits in that row has seen it by then.
pub(super) const SPARED: u64 = 60_000_000;

/// To a channel, a text: sent with the write, or not at all.
pub(super) type Message = (String, String);

/// What an update is conditional on, besides the row.
#[derive(Clone, Copy)]
pub(super) struct When<'a> {
    /// The server's clock has not come to this, in µs since 1970.
    pub(super) too_late: u64,
    /// These clients listen.
    pub(super) present: &'a [ClientId],
}

/// The answer to an insert.
pub(super) enum Inserted {
    /// Done; the row has this epoch.
    Done(u64),
    /// The name has a row; which, and the server's clock, where the answer says so. Or it was too late.
    Taken(Option<(u64, RawRow)>),
}

/// A kind of database. Each method that takes a connection is one statement, committed by itself.
/// `prepared`: it may leave that statement behind in the session, to be sent faster the next time.
pub(super) trait Dialect: Send + Sync + Sized + 'static {
    /// The scheme of its URL.
    const NAME: &'static str;

    type Connection: Send + 'static;

    /// Whether sessions are known to be our own, so that statements can be prepared.
    fn prepares(&self) -> bool {
        false
    }

    fn connect(&self) -> impl Future<Output = Result<Self::Connection, sqlx::Error>> + Send;

    /// The version of its tables, and its clock in µs since 1970.
    fn version(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(u64, u64), sqlx::Error>> + Send;

    /// Makes the tables where they are missing. More than one statement.
    fn init(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The server's clock in µs since 1970, and the row.
    fn load(
        connection: &mut Self::Connection,
        key: &[u8],
        prepared: bool,
    ) -> impl Future<Output = Result<(u64, Option<RawRow>), sqlx::Error>> + Send;

    /// Makes the row, in version 1, unless there is one or the server's clock has come to `too_late`.
    ///
    /// For one name one at a time, from before the epoch is drawn until the row is there: or one that
    /// is held up in between would be granted with tokens from before those that others had meanwhile.
    fn insert(
        connection: &mut Self::Connection,
        key: &[u8],
        row: &Written,
        too_late: u64,
        prepared: bool,
    ) -> impl Future<Output = Result<Inserted, sqlx::Error>> + Send;

    /// Writes the row if it is still the known one, and what else is needed is so; whether it did.
    fn update(
        connection: &mut Self::Connection,
        key: &[u8],
        known: Known,
        row: &Written,
        when: When<'_>,
        messages: &[Message],
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Which of these clients are not present. Asked only where clients listen.
    fn absent(
        connection: &mut Self::Connection,
        clients: &[ClientId],
    ) -> impl Future<Output = Result<Vec<ClientId>, sqlx::Error>> + Send;

    /// The same, and gives the row another epoch.
    fn renumber(
        connection: &mut Self::Connection,
        key: &[u8],
        known: Known,
        row: &Written,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Deletes the row if it is still the known one; whether it was. If `alive`, only if what is in it
    /// has not expired.
    fn delete(
        connection: &mut Self::Connection,
        key: &[u8],
        known: Known,
        alive: bool,
        messages: &[Message],
        prepared: bool,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// How many evictions there were.
    fn evictions(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// One more.
    fn count_eviction(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// All names that begin like this.
    fn keys(
        connection: &mut Self::Connection,
        prefix: &[u8],
    ) -> impl Future<Output = Result<Vec<Vec<u8>>, sqlx::Error>> + Send;

    /// Some rows of which nothing is of any use any more.
    fn expired(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Vec<(Vec<u8>, Known)>, sqlx::Error>> + Send;

    /// All cells of a name, with their numbers.
    fn cells(
        connection: &mut Self::Connection,
        key: &[u8],
    ) -> impl Future<Output = Result<Vec<(u64, Cell)>, sqlx::Error>> + Send;

    /// Writes cells if all of them are of the versions that are expected; whether it did. One
    /// statement however many there are, for nobody must be stopped in between with rows locked; before
    /// that, another one makes rows that are missing.
    fn swap_cells(
        connection: &mut Self::Connection,
        key: &[u8],
        writes: &[Write],
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// What an error means.
    fn fault(error: sqlx::Error) -> Fault;

    /// Listens to messages in the background, where the database has them.
    fn listen(pool: &Weak<Pool<Self>>, hub: &Weak<Hub>);
}

/// How long a statement may wait for somebody else's transaction, in s: so that the server is done with
/// it when we do not wait for its answer any more.
pub(super) const LOCK_TIME: u32 = 1;

/// How many rows are looked at at a time when they are purged.
pub(super) const PURGED_AT_ONCE: usize = 1000;

/// A number for a name, the same in every program (FNV-1a).
pub(super) fn hash(key: &[u8]) -> u32 {
    key.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Bytes as text that needs no quoting.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The bytes that [`hex`] wrote.
#[cfg(feature = "postgres")]
pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|two| u8::from_str_radix(str::from_utf8(two).ok()?, 16).ok()).collect()
}
