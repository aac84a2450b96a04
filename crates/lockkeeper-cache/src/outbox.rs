//! Invalidations that survive a crash between the commit and the invalidation.
//!
//! # How it works
//!
//! 1. A row with the names of the keys that a transaction changes is inserted **in that transaction**: it is there if and
//!    only if the transaction is committed.
//! 2. After the commit the keys are invalidated, as ever, and the row is deleted a little later.
//! 3. A [`Relay`] in each process looks for rows that are still there after a while: whoever should have invalidated their keys is
//!    dead, or could not reach the store, or was told that a commit had failed which had not. It invalidates them and
//!    deletes the row.
//!
//! # What it promises
//!
//! What is committed is invalidated, at least once, as long as one relay lives and reaches both the database and the
//! store. Old values are served for no longer than the [grace time](Builder::grace), the [time between two
//! looks](Builder::every), and however long the store cannot be reached.
//!
//! # When it breaks
//!
//! The row is inserted in another transaction than the change, or on another database. A database that loses what it has
//! committed loses the row with it.
//!
//! # Cost
//!
//! One more insert in each transaction, and one more row to delete, many at a time. Each relay asks the database
//! twice in every interval. Relays do not wait for each other: a row that two of them find is invalidated twice, which costs a
//! load.
//!
//! ```no_run
//! # #![allow(dead_code)]
//! # #[cfg(feature = "postgres")]
//! # mod example {
//! # use lockkeeper_cache::Cache;
//! use lockkeeper_cache::outbox::{Relay, postgres};
//!
//! # async fn example(users: Cache<u64, String>, mut sql: sqlx::PgTransaction<'static>)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! // Once, before anything else: postgres::CREATE_TABLE
//! let outbox = postgres::Postgres::new("postgres://app@db/shop")?;
//! let relay = Relay::builder(outbox).cache(&users).start();
//!
//! let mut tx = users.transaction();
//! // UPDATE users SET … WHERE id = 7
//! tx.touch(&7)?;
//! let row = tx.row();
//! sqlx::query(postgres::INSERT).bind(&row.id).bind(&row.touched).execute(&mut *sql).await?;
//! relay.commit(tx, async { sql.commit().await }).await?.cache?;
//! # Ok(())
//! # }
//! # }
//! ```

#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
mod relay;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sql;

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

pub use self::relay::{Builder, Relay, RelayStats};
use crate::entry::Ticket;
use crate::error::BoxError;
use crate::transaction::Touched;

/// Rows in a table of the database whose transactions they are inserted in.
///
/// It must not hang: it answers or fails within a few seconds.
#[async_trait]
pub trait Outbox: Debug + Send + Sync {
    /// Up to `limit` rows that were inserted at least `age` ago and whose ids come after this one, in the order of their ids.
    /// Only what is committed.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached or refuses.
    async fn read(&self, age: Duration, after: &str, limit: usize) -> Result<Vec<Row>, BoxError>;

    /// Deletes rows; those that are gone already do not matter.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached or refuses.
    async fn delete(&self, ids: &[String]) -> Result<(), BoxError>;

    /// How long ago the oldest row was inserted; `None` when there is none.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached or refuses.
    async fn oldest(&self) -> Result<Option<Duration>, BoxError>;
}

/// A row, from [`Transaction::row`](crate::Transaction::row).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// No two are alike. 32 letters and digits.
    pub id: String,
    /// The keys, as JSON.
    pub touched: String,
}

/// What is in a row. Programs of two versions meet at one table: another form needs another number.
#[derive(Serialize, Deserialize)]
struct Content<'a> {
    v: u32,
    #[serde(borrow)]
    keys: Vec<(std::borrow::Cow<'a, str>, std::borrow::Cow<'a, str>, u64)>,
}

impl Row {
    pub(crate) fn new<'a>(id: Ticket, all: impl Iterator<Item = (&'a str, &'a Touched)>) -> Self {
        let keys = all.map(|(namespace, Touched { key, version })| {
            (namespace.into(), key.as_str().into(), *version)
        });
        let content = Content { v: 1, keys: keys.collect() };
        // Texts and numbers can always be written.
        let touched = serde_json::to_string(&content).unwrap_or_default();
        Self { id: Self::id(id), touched }
    }

    pub(crate) fn id(id: Ticket) -> String {
        format!("{id:?}")
    }

    fn decode(&self) -> Option<Vec<(String, Touched)>> {
        decode(&self.touched)
    }
}

/// Namespaces and what is touched in each; `None` for what is not ours or of another time.
pub(crate) fn decode(touched: &str) -> Option<Vec<(String, Touched)>> {
    let content: Content<'_> = serde_json::from_str(touched).ok()?;
    let keys = content.keys.into_iter().map(|(namespace, key, version)| {
        (namespace.into_owned(), Touched { key: key.into_owned(), version })
    });
    (content.v == 1).then(|| keys.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_other_versions_are_read_as_they_were_written() {
        let touched = Touched { key: "a:\"\n\u{1f511}".into(), version: u64::MAX };
        let row = Row::new(Ticket::from_bytes([0xa; 16]), [("user", &touched)].into_iter());
        assert_eq!(row.id, "0a".repeat(16));
        assert_eq!(row.decode(), Some(vec![("user".into(), touched)]));
        // Do not change this.
        let read = |text: &str| Row { id: String::new(), touched: text.into() }.decode();
        let touched = Touched { key: "7".into(), version: 3 };
        let written = r#"{"v":1,"keys":[["user","7",3]]}"#;
        assert_eq!(read(written), Some(vec![("user".into(), touched)]));
        assert_eq!(read(&written.replace("\"v\":1", "\"v\":2")), None);
        assert_eq!((read(""), read("[]"), read(r#"{"v":1,"keys":[[1,2,3]]}"#)), (None, None, None));
    }
}
