//! The contract of a queue.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use crate::database::Order;
use crate::entry::{Millis, Ticket};
use crate::store::Result;

/// A write, as a queue keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Which attempt at writing: no two writes have the same.
    pub id: String,
    /// What it changes.
    pub key: String,
    /// Which [form](crate::Builder::schema) the value has.
    pub schema: u32,
    /// The new value, encoded; `None` deletes.
    pub value: Option<Vec<u8>>,
}

/// A write that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Its place among all.
    pub order: Order,
    /// What it is; `None`: this cannot be read.
    pub message: Option<Message>,
}

impl Queued {
    /// Which attempt at writing it is, if that can be read.
    pub fn id(&self) -> Option<&str> {
        self.message.as_ref().map(|message| message.id.as_str())
    }
}

/// A write that the database will not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Its name: the larger one was buried later.
    pub id: Order,
    /// When it was buried, by the clock of the queue.
    pub at: Millis,
    /// The place that the write had.
    pub order: Order,
    /// Why it is here.
    pub why: String,
    /// How often it was tried by who buried it.
    pub attempts: u32,
    /// What it is; `None`: this cannot be read.
    pub message: Option<Message>,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It waits.
    Waits,
    /// It is a [`Letter`].
    Buried,
    /// Neither: it was applied; or it was a letter, which was retried or discarded.
    Gone,
}

/// What became of a letter that was to be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retried {
    /// It waits again, in this place: behind all that were written meanwhile.
    Waits(Order),
    /// It is still a letter, because as many wait as may.
    Full,
    /// There is no such letter.
    Gone,
}

/// How much there is in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// So many writes wait.
    pub pending: usize,
    /// The first of them waits for so long.
    pub oldest: Option<Duration>,
    /// So many are letters.
    pub letters: usize,
}

/// Writes in their order, that outlive the processes which write and apply them; and those that cannot be applied.
///
/// A queue must not hang: it answers or fails within a second or so. Each call is one step, done as a whole. On an error it is
/// not known whether it was, and it may be later; each may then be called again.
#[async_trait]
pub trait Queue: Debug + Send + Sync {
    /// What it is called; no two have the same name at one place.
    fn name(&self) -> &str;

    /// Appends a write, and returns its place when it is durable. `None`: as many wait as may. A message with an id that waits,
    /// however long it has, or that did lately, is not appended again: the place of the first is returned.
    ///
    /// An order is larger than all that were returned before, also those of writes that are gone since.
    async fn append(&self, message: &Message) -> Result<Option<Order>>;

    /// The first so many that wait behind this place, or from the beginning.
    async fn read(&self, after: Option<Order>, most: usize) -> Result<Vec<Queued>>;

    /// The database has this one. One that is gone does not matter.
    async fn done(&self, queued: &Queued) -> Result<()>;

    /// Makes a [`Letter`] of one that waits; one that is gone does not matter. `false`: there are as many letters as there may be,
    /// and it still waits.
    async fn bury(&self, queued: &Queued, why: &str, attempts: u32) -> Result<bool>;

    /// What became of a write.
    async fn fate(&self, order: Order) -> Result<Fate>;

    /// The first so many letters behind this one, or from the beginning.
    async fn letters(&self, after: Option<Order>, most: usize) -> Result<Vec<Letter>>;

    /// Appends the write of a letter again and takes the letter away.
    async fn retry(&self, letter: Order) -> Result<Retried>;

    /// Takes a letter away; `false`: there is none.
    async fn discard(&self, letter: Order) -> Result<bool>;

    /// How much there is.
    async fn backlog(&self) -> Result<Backlog>;

    /// Takes the right to apply for that time, or keeps it; `false`: another one has it.
    async fn lead(&self, ticket: Ticket, time: Duration) -> Result<bool>;

    /// Gives that right back.
    async fn resign(&self, ticket: Ticket) -> Result<()>;
}
