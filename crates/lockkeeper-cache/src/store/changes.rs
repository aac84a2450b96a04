//! Changes that are to be written to the database later.

use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use crate::database::Order;
use crate::entry::{Ticket, Value};

/// The version of a value that the database does not have yet: newer than all that it has, so that no load replaces it.
pub const PENDING: u64 = u64::MAX;

/// Changes that are to be written to the database later, kept in order where the entries are.
///
/// The log, the keys of its entries and the right to apply it are in one place: see
/// [`write_behind`](crate::strategy::write_behind).
#[async_trait]
pub trait Changes: Send + Sync {
    /// Appends a change of a key and makes it the entry, without an end, as one step. `None`: there are `most` already.
    ///
    /// On an error it is not known whether that was done. It must not be sent again: the change would be there twice,
    /// perhaps with that of another in between.
    async fn append(
        &self,
        log: &str,
        key: &str,
        value: &Value,
        most: usize,
    ) -> Result<Option<Order>>;

    /// The first so many that are left.
    async fn first(&self, log: &str, most: usize) -> Result<Vec<Change>>;

    /// The last one that is left.
    async fn last(&self, log: &str) -> Result<Option<Order>>;

    /// How many are left.
    async fn pending(&self, log: &str) -> Result<usize>;

    /// The database has this one, as this version. If it is the last one of its key, the entry ends after that time; if
    /// the entry is of somebody else, it is deleted. May be sent again.
    async fn applied(&self, log: &str, change: &Change, version: u64, ttl: Duration) -> Result<()>;

    /// Takes the right to apply a log for that time, or keeps it; `false`: another one has it.
    async fn lead(&self, log: &str, ticket: Ticket, time: Duration) -> Result<bool>;

    /// Gives that right back.
    async fn resign(&self, log: &str, ticket: Ticket) -> Result<()>;
}

/// A change that the database does not have yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its place among all.
    pub order: Order,
    /// The key of its entry.
    pub key: String,
    /// What it has now; `None`: this cannot be read.
    pub value: Option<Value>,
}

impl Change {
    /// What its entry is filled with.
    pub(crate) fn fill(&self) -> Ticket {
        let (ms, seq) = (u128::from(self.order.ms()), u128::from(self.order.seq()));
        Ticket::from_bytes(((ms << 64) | seq).to_be_bytes())
    }
}
