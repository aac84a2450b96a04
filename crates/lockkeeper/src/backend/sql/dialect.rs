//! What one kind of database does in its own way.

use std::fmt::Write as _;
use std::future::Future;
use std::sync::Weak;

use super::fault::Fault;
use super::hub::Hub;
use super::pool::Pool;
use super::row::{ClientId, Known, RawRow, Written};

/// The version of the tables that this program knows.
pub(super) const VERSION: u64 = 1;

/// What is over for so many µs is deleted: whoever waits in that row has seen it by then.
pub(super) const SPARED: u64 = 60_000_000;

/// To a channel, a text: sent with the write, or not at all.
pub(super) type Message = (String, String);

/// The answer to an insert.
pub(super) enum Inserted {
    /// Done; the row has this epoch.
    Done(u64),
    /// The name has a row; which, and the server's clock, where the answer says so.
    Taken(Option<(u64, RawRow)>),
}

/// A kind of database. Each method that takes a connection is one statement, committed by itself.
pub(super) trait Dialect: Send + Sync + Sized + 'static {
    /// The scheme of its URL.
    const NAME: &'static str;

    type Connection: Send + 'static;

    fn connect(&self) -> impl Future<Output = Result<Self::Connection, sqlx::Error>> + Send;

    /// The version of its tables.
    fn version(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Makes the tables where they are missing. More than one statement.
    fn init(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The server's clock in µs since 1970, and the row.
    fn load(
        connection: &mut Self::Connection,
        key: &[u8],
    ) -> impl Future<Output = Result<(u64, Option<RawRow>), sqlx::Error>> + Send;

    /// Makes the row, in version 1, unless there is one.
    fn insert(
        connection: &mut Self::Connection,
        key: &[u8],
        row: &Written,
    ) -> impl Future<Output = Result<Inserted, sqlx::Error>> + Send;

    /// Writes the row if it is still the known one and these clients are present; whether that was so.
    fn update(
        connection: &mut Self::Connection,
        key: &[u8],
        known: Known,
        row: &Written,
        present: &[ClientId],
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

    /// Deletes the rows of which nothing is of any use any more.
    fn purge(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// What an error means.
    fn fault(error: sqlx::Error) -> Fault;

    /// Listens to messages in the background, where the database has them.
    fn listen(pool: &Weak<Pool<Self>>, hub: &Weak<Hub>);
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
