//! Deletes that are to come later.

use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use crate::entry::{Millis, Ticket};

/// Deletes that are to come later, kept where the entries are: they outlive whoever asked for them.
///
/// The store only keeps them. [`double_delete`](crate::strategy::double_delete) looks for those that are due.
#[async_trait]
pub trait Deletes: Send + Sync {
    /// Puts a delete of a key into a queue, due after this time. One of the same ticket is moved. After `keep` the store
    /// may forget it.
    async fn schedule(
        &self,
        queue: &str,
        ticket: Ticket,
        key: &str,
        after: Duration,
        keep: Duration,
    ) -> Result<()>;

    /// Those that are due, no more than so many.
    async fn due(&self, queue: &str, most: usize) -> Result<Due>;

    /// These are done. Those that were moved meanwhile stay.
    async fn done(&self, queue: &str, deletes: &[Delete]) -> Result<()>;
}

/// A delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delete {
    /// Which one.
    pub ticket: Ticket,
    /// Of what.
    pub key: String,
    /// When it is due, by the clock of the store.
    pub at: Millis,
}

/// What is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// These.
    pub deletes: Vec<Delete>,
    /// And the next one after so long.
    pub next: Option<Duration>,
}
