//! Where entries are kept: the contract of a store.

mod changes;
mod deletes;
mod grouped;
mod memory;
mod positions;
#[cfg(feature = "redis")]
mod redis;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use self::changes::{Change, Changes, PENDING};
pub use self::deletes::{Delete, Deletes, Due};
pub use self::grouped::Grouped;
pub use self::memory::Memory;
pub use self::positions::{Claim, Positions};
#[cfg(feature = "redis")]
pub(crate) use self::redis::Servers;
#[cfg(feature = "redis")]
pub use self::redis::{Redis, RedisQueue};
use crate::entry::{Begun, Entry, Filled, Invalidation, Millis, Settled, Ticket, Value};
use crate::error::StoreError;
use crate::first::Watch;

/// What a store answers. An error means: it is not known whether the step was taken, and it may be taken
/// later. Every step is made so that this does no harm (see [`entry`](crate::entry)).
pub type Result<T> = std::result::Result<T, StoreError>;

/// Keeps entries under keys, and takes the steps of [`entry`](crate::entry), each as a whole.
///
/// A store must not hang: it answers or fails within a second or so. It may forget anything at any time, which costs
/// loads, and for [intents](Self::intend) the promise of the strong mode; it must not bring back what it forgot.
#[async_trait]
pub trait Store: Debug + Send + Sync {
    /// The time at the store, or a little later than that.
    fn now(&self) -> Millis;

    /// What is under each of these keys, in one round trip. What is not an entry is [`Seen::Unreadable`].
    async fn get(&self, keys: &[&str]) -> Result<Vec<Seen>>;

    /// The same for one key: most reads are of one, and spare themselves a list.
    async fn get_one(&self, key: &str) -> Result<Seen> {
        Ok(self.get(&[key]).await?.pop().unwrap_or(Seen::Nothing))
    }

    /// After this time [`get`](Self::get) has answered or failed, by a timer of its own; time in which this process
    /// did not run may come on top. `None`, which is the default: the cache watches over each read with another one.
    fn answers_within(&self) -> Option<Duration> {
        None
    }

    /// Whether it is several, and leaves alone by itself what of it does not answer, which is [`Seen::Down`] then. `false`, which is
    /// the default: the cache leaves the whole of it alone, and sends looks for several keys together where there are many.
    fn leaves_alone(&self) -> bool {
        false
    }

    /// See [`begin`](crate::entry::begin). The ticket must never have been sent before.
    async fn begin(
        &self,
        key: &str,
        ticket: Ticket,
        lease: Duration,
        except: Option<Ticket>,
    ) -> Result<Begun>;

    /// See [`fill`](crate::entry::fill).
    async fn fill(&self, key: &str, value: &Value, ttl: Duration) -> Result<Filled>;

    /// Sets a value, whatever is there: see [`set`](crate::entry::set). No lease guards it, so it may come too late; for
    /// the [strategies](crate::strategy) that have something else instead, or nothing.
    async fn put(&self, key: &str, value: &Value, ttl: Duration) -> Result<()>;

    /// See [`give_up`](crate::entry::give_up).
    async fn give_up(&self, key: &str, ticket: Ticket) -> Result<()>;

    /// See [`invalidate`](crate::entry::invalidate). All keys in one round trip; not as a whole.
    async fn invalidate(&self, keys: &[&str], how: Invalidation) -> Result<()>;

    /// See [`intend`](crate::entry::intend). All keys in one round trip; not as a whole.
    async fn intend(&self, keys: &[&str], writer: Ticket, ttl: Duration) -> Result<()>;

    /// See [`settle`](crate::entry::settle). All keys in one round trip; not as a whole. [`Settled::Held`] if that
    /// is so for all.
    async fn settle(&self, keys: &[&str], writer: Ticket, how: Invalidation) -> Result<Settled>;

    /// Where it keeps changes that the database is to get later, if it does: only a store that outlives the process.
    fn changes(&self) -> Option<&dyn Changes> {
        None
    }

    /// Where it keeps deletes that are to come later, if it does.
    fn deletes(&self) -> Option<&dyn Deletes> {
        None
    }

    /// Where it keeps how far followers of a log have come, if it does: only a store that forgets its entries when it may
    /// have lost invalidations of them.
    fn positions(&self) -> Option<&dyn Positions> {
        None
    }

    /// See [`update`](crate::entry::update), for each of these with its time to live. All keys in one round trip; not as a
    /// whole.
    async fn update(
        &self,
        updates: &[(&str, &Value, Duration)],
        how: Invalidation,
    ) -> Result<Vec<bool>> {
        let _ = (updates, how);
        Err(StoreError::new("store", "it takes no updates"))
    }

    /// A page of the keys that begin with this. What is there from the first page to the last is in one of them, and perhaps
    /// in several; what comes or goes meanwhile may be missing.
    async fn list(&self, prefix: &str, from: Cursor) -> Result<Page> {
        let _ = (prefix, from);
        Err(StoreError::new("store", "it cannot list its keys"))
    }

    /// Tells of every change of entries whose key begins so, by whoever makes it, until `changes` is dropped. `false`:
    /// it cannot, which is the default.
    fn follow(&self, prefix: &str, changes: &Arc<Watch>) -> bool {
        let _ = (prefix, changes);
        false
    }

    /// Adds a key to the set of each of these tags, for this time or longer; in one round trip. Tags are named like keys, and no
    /// key has the name of one.
    async fn tag(&self, key: &str, tags: &[&str], time: Duration) -> Result<()> {
        let _ = (key, tags, time);
        Err(StoreError::new("store", "it has no tags"))
    }

    /// A page of the keys in the set of a tag, as for [`list`](Self::list).
    async fn tagged(&self, tag: &str, from: Cursor) -> Result<Page> {
        let _ = (tag, from);
        Err(StoreError::new("store", "it has no tags"))
    }
}

/// Where a listing goes on; the default is its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Which part of the store.
    pub part: String,
    /// Where in it.
    pub at: u64,
}

/// Some of what is listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// These.
    pub keys: Vec<String>,
    /// Where it goes on; `None` at the end.
    pub next: Option<Cursor>,
}

/// What a look at a key shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing.
    Nothing,
    /// This.
    Entry(Entry),
    /// Something that is not an entry, or one of another format.
    Unreadable,
    /// Not known: where this key is kept does not answer, and others may.
    Down,
}

/// No longer than ten years: servers refuse times that they cannot count.
pub(crate) fn millis(duration: Duration) -> Millis {
    const LONGEST: u64 = 10 * 366 * 86_400_000;
    u64::try_from(duration.as_millis()).map_or(LONGEST, |millis| millis.min(LONGEST))
}
