//! The contract of a log.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::time::Duration;

use async_trait::async_trait;

use super::{Change, Finding, TableName};
use crate::error::BoxError;

/// The tables whose changes are wanted, each with the columns that keys are made of.
pub type Wanted = BTreeMap<TableName, BTreeSet<String>>;

/// A place in a log between two transactions, as text that only its [`Source`] understands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Position(pub String);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How far a log has been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// What the database has written and was not read yet; `None` if that is not known.
    pub bytes: Option<u64>,
    /// How long ago the last thing that was read was committed, by the clock of the database; nothing if all is read.
    pub time: Option<Duration>,
}

/// Part of a log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// What has changed, in order. A transaction that was rolled back is not here.
    pub changes: Vec<Change>,
    /// Where to go on when all these are done: after the last transaction that ended in this batch or before it.
    /// `None`: no transaction ended here.
    pub position: Option<Position>,
    /// How much there is still to come.
    pub lag: Lag,
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// It does not have that position any more, or it is the log of another history. Only a new beginning helps.
    #[error("the history is lost: {0}")]
    Lost(String),
    /// The database must be set up otherwise. The text says how. Trying again does not help before somebody has done so.
    #[error("{0}")]
    Refused(String),
    /// Anything else: try again from the last position that was saved.
    #[error("the log cannot be read: {0}")]
    Failed(BoxError),
}

/// A database whose log can be read.
#[async_trait]
pub trait Source: Debug + Send + Sync {
    /// What is not as it should be for these tables.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    async fn check(&self, wanted: &Wanted) -> Result<Vec<Finding>, BoxError>;

    /// Opens the log where it was left; or from now on. In that case the [first batch](Log::next) comes at once, is empty and has
    /// the position where it begins, and everything that was committed before that position can be read by a transaction that
    /// begins now.
    ///
    /// # Errors
    ///
    /// [`LogError::Lost`] only if there is a position.
    async fn open(
        &self,
        from: Option<&Position>,
        wanted: &Wanted,
    ) -> Result<Box<dyn Log>, LogError>;
}

/// A log that is being read, by one reader at a time. Dropping it ends that at once, or nearly so.
#[async_trait]
pub trait Log: Debug + Send {
    /// What comes next: some thousand changes at most, however large a transaction is. Comes after a second or so even if
    /// there is nothing.
    ///
    /// **Every change in it can be read by a transaction that begins now** at the database: who is told of a change and
    /// then loads must not get what was there before.
    ///
    /// # Cancel safety
    ///
    /// None is needed: it is not called again after its future was dropped.
    async fn next(&mut self) -> Result<Batch, LogError>;

    /// Nothing before this position will be asked for again: the database may throw it away.
    async fn confirm(&mut self, position: &Position) -> Result<(), LogError>;
}
