//! Writes through a queue, reads from the cache.
//!
//! # How it works
//!
//! - Write: [`Through::write`] appends the write to a durable [`Queue`] and returns its [`Order`]. When as many wait as may, it is told
//!   [`Error::Busy`], or waits for as long as [it chose](Builder::wait). Each write has an id, by which the queue knows one that is
//!   sent again because the answer was lost.
//! - One [`Consumer`] at a time takes them in their order, those of a key one after the other and several keys at a time, and gives
//!   each to [`Database::store`]. Then it [tells the cache](Tell), and only then takes the write out of the queue. Who applies
//!   holds the lock `through:<name>` if there are [`locks`](Builder::locks), and else a right in the queue, for as long as the
//!   [lease](crate::Builder::lease) of the cache.
//! - What the database fails at is tried again, later and later, and holds up its key alone: of the eight writes that are given to
//!   the database at a time, no more than four have failed before. When 64 keys are held up, no others are begun.
//! - What the database will never take becomes a [`Letter`], and the later writes of its key go on: [`Rejected`] by the database,
//!   one at which the database panics, one that cannot be decoded; and what has failed [so often](Builder::attempts), if that is
//!   wanted. Letters are [listed](Through::letters), [retried](Through::retry) and [discarded](Through::discard).
//! - A write of another [schema](crate::Builder::schema) waits for a consumer of that schema, and holds up its key: consumers take turns until
//!   there is one. Let the queue run empty before the last of them ends.
//! - Read: [`Through::get`] reads the cache alone, or with the loader behind it: see [`Reads`].
//!
//! # What it promises
//!
//! A write that was accepted is as durable as the queue. It is applied or becomes a letter, whichever process dies at any point, as
//! long as there is a consumer; and the writes of a key are applied in the order in which they were accepted, also those that are left when
//! one between them became a letter. One that is applied again, or late by a consumer that was paused, carries an order that is not
//! later than what the database has: it compares them, and changes nothing. There are never more writes and letters than may be; when
//! there is no room for a letter, its key waits.
//!
//! When [`Through::applied`] has returned, the write is in the database, and the cache was told.
//!
//! # Known anomalies
//!
//! *The cache and the database are behind*: until a write is applied, all who read get what was there before, the writer
//! included. Who must see his own write waits for [`Through::applied`].
//!
//! *A queue that loses data* loses writes that were accepted, and one in its place whose clock is behind gives orders that the
//! database has seen.
//!
//! *An unknown outcome*: after [`Error::Commit`] the write may be in the queue, or come there later. Write it again
//! [with the same id](Through::write_as) before the next write of the key.
//!
//! *Many rows that begin to hang at once*: whether a write hangs is known when its first attempt has ended. Until then thirty keys
//! hold up those behind them, for up to eight times the [time](crate::Builder::timeout) that the database has; once for each
//! consumer that begins. Let the database give up sooner (`lock_timeout`).
//!
//! *A letter that is retried* becomes the last write of its key, after those that came meanwhile. One that was buried after an attempt
//! without an answer, or by a consumer that was paused, may have been applied as well; so the cache is told of letters, too. What the
//! database does only after that is not told, and what is cached then ends with its time: let the database give up before the
//! [time](crate::Builder::timeout) that it has is over.
//!
//! *Only the cache*: who reads it alone finds nothing where nothing was [loaded](Through::preload) or written, where a value
//! has ended ([`ttl`](crate::Builder::ttl)), for a moment after each write, where what was written is too large for
//! the cache, where a consumer that was paused told the cache once more and lost its turn before it could load a value without a
//! version, and where what was written could not be loaded for ten seconds after the first attempt: with the attempt that ends
//! then, no write waits in the queue for longer because of that ([`ThroughStats::not_refreshed`]).
//!
//! # When to use it
//!
//! Where peaks of writes must not reach the database, or readers must not: stock counts that are looked at by many, profiles, scores.
//! Not where a writer has to know at once whether the database agrees.
//!
//! # Cost
//!
//! A write is one round trip to the queue. Behind it: one commit, one round trip to take it out of the queue, one to tell the cache,
//! and a load if it is [refreshed](Tell::Refresh); one look for a hundred. A consumer looks 20 times a second when there is nothing to do, and
//! keeps up to 1,600 writes in memory.
//!
//! ```no_run
//! # #![allow(dead_code)]
//! # use lockkeeper_cache::{Cache, Database, Error, Redis};
//! # async fn example(database: impl Database<u64, u32> + Clone + 'static) -> Result<(), Error> {
//! use std::time::Duration;
//! use lockkeeper_cache::through::{RedisQueue, Through};
//!
//! # let store = Redis::connect("redis://localhost").await.unwrap();
//! let cache = Cache::builder(store).namespace("stock").build(database.clone())?;
//! let queue = RedisQueue::connect("redis://localhost", "stock").await?;
//! let stock = Through::builder(queue, cache, database).build();
//! // In the processes that are to write to the database:
//! let consumer = stock.consume();
//!
//! let accepted = stock.write(&7, Some(41)).await?;
//! stock.applied(accepted.order, Duration::from_secs(5)).await?;
//! let left = stock.get(&7).await?.and_then(|read| read.value);
//! # drop((left, consumer));
//! # Ok(())
//! # }
//! ```

mod consumer;
mod lanes;
mod preload;
mod queue;

use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Locks, Mutex};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

pub use self::consumer::Consumer;
pub use self::preload::Preloaded;
pub use self::queue::{Backlog, Fate, Letter, Message, Queue, Queued, Retried};
use crate::cache::{Cache, Inner, Read};
use crate::database::{Database, Order};
use crate::entry::Ticket;
use crate::error::{BoxError, Error, Result};
use crate::freshness::Freshness;
use crate::names::readable;
use crate::stats::Counter;
#[cfg(feature = "redis")]
pub use crate::store::RedisQueue;

/// Between two attempts at a queue that is full, and when a writer that was refused may try again.
const FULL: Duration = Duration::from_millis(50);

/// Between two looks at what became of a write: at first, and at most.
const LOOKS: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// Who sees what is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// The cache alone: readers never reach the database.
    #[default]
    Cache,
    /// What is not cached is loaded.
    Loader,
}

/// What a consumer tells the cache after a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tell {
    /// It invalidates the key and loads it, so that those find it who read only the cache. A follower of the changes of the
    /// database may do the same once more.
    #[default]
    Refresh,
    /// It invalidates the key: the next read that may loads it.
    Invalidate,
    /// Nothing: somebody follows the changes of the database.
    Nobody,
}

/// What a database returns for a write that it will never take: it becomes a [`Letter`] at once. As the error itself or
/// among its causes.
///
/// ```
/// use lockkeeper_cache::BoxError;
/// use lockkeeper_cache::through::Rejected;
/// fn store(amount: i64) -> Result<(), BoxError> {
///     // As the constraint of the table says.
///     if amount < 0 { Err(Rejected::new("a stock is not negative").into()) } else { Ok(()) }
/// }
/// assert!(store(-1).is_err());
/// ```
#[derive(Debug, thiserror::Error)]
#[error("rejected")]
pub struct Rejected(#[source] BoxError);

impl Rejected {
    /// Because of this.
    pub fn new(why: impl Into<BoxError>) -> Self {
        Self(why.into())
    }

    /// Whether it is one, or one is among its causes.
    fn is(error: &(dyn std::error::Error + 'static)) -> bool {
        let mut next = Some(error);
        while let Some(error) = next {
            if error.is::<Self>() {
                return true;
            }
            next = error.source();
        }
        false
    }
}

/// A write is in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "accepted is not yet applied"]
pub struct Accepted {
    /// Its place among all.
    pub order: Order,
}

/// What consumers in this process did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThroughStats {
    /// Writes that were applied.
    pub applied: u64,
    /// Times that the database failed at one which may be tried again.
    pub retries: u64,
    /// Writes that became letters.
    pub buried: u64,
    /// Writes that were applied, or given up, after which the value is not [cached](Tell::Refresh): it is too large, somebody else
    /// writes it, or it could not be loaded for ten seconds.
    pub not_refreshed: u64,
}

#[derive(Debug, Default)]
struct Counters {
    applied: Counter,
    retries: Counter,
    buried: Counter,
    not_refreshed: Counter,
}

struct Shared<K, V> {
    queue: Arc<dyn Queue>,
    cache: Cache<K, V>,
    database: Box<dyn Database<K, V>>,
    reads: Reads,
    tell: Tell,
    wait: Duration,
    attempts: Option<u32>,
    lock: Option<Mutex>,
    /// Tells the consumer that there is something new.
    wake: Notify,
    counters: Counters,
}

impl<K, V> Shared<K, V> {
    fn inner(&self) -> &Arc<Inner<K, V>> {
        &self.cache.inner
    }
}

/// Makes a [`Through`].
#[must_use = "nothing is made before build"]
pub struct Builder<K, V> {
    shared: Shared<K, V>,
}

impl<K, V> Builder<K, V>
where
    K: FromStr + Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Who reads what. Default: the cache alone.
    pub fn reads(mut self, reads: Reads) -> Self {
        self.shared.reads = reads;
        self
    }

    /// What a consumer tells the cache. Default: it refreshes.
    pub fn tell(mut self, tell: Tell) -> Self {
        self.shared.tell = tell;
        self
    }

    /// How long a write waits for room in the queue. Default: not at all.
    pub fn wait(mut self, time: Duration) -> Self {
        self.shared.wait = time;
        self
    }

    /// What the database has failed at so often for one consumer becomes a letter as well. Default: never, so a database that
    /// is down for long costs nothing but time.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.shared.attempts = Some(attempts.max(1));
        self
    }

    /// Consumers take turns by a lock of these.
    pub fn locks(mut self, locks: &Locks) -> Self {
        self.shared.lock = Some(locks.mutex(format!("through:{}", self.shared.queue.name())));
        self
    }

    /// Makes it.
    pub fn build(self) -> Through<K, V> {
        Through { shared: Arc::new(self.shared) }
    }
}

impl<K, V> fmt::Debug for Builder<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("queue", &self.shared.queue).finish_non_exhaustive()
    }
}

/// Values that are written through a queue and read from a cache. A clone is the same.
pub struct Through<K, V> {
    shared: Arc<Shared<K, V>>,
}

impl<K, V> Through<K, V>
where
    K: FromStr + Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// A builder. The database is the one that the cache loads from, and must compare the [orders](Database::store) of what it
    /// is given. All processes that use one queue have the same keys and values; their caches say how they are
    /// [encoded](crate::Codec).
    pub fn builder(
        queue: impl Queue + 'static,
        cache: Cache<K, V>,
        database: impl Database<K, V> + 'static,
    ) -> Builder<K, V> {
        let shared = Shared {
            queue: Arc::new(queue),
            cache,
            database: Box::new(database),
            reads: Reads::default(),
            tell: Tell::default(),
            wait: Duration::ZERO,
            attempts: None,
            lock: None,
            wake: Notify::new(),
            counters: Counters::default(),
        };
        Builder { shared }
    }

    /// Writes a value; `None` deletes it. It is in the queue when this returns, and in the database later.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`], [`Error::InvalidValue`], and [`Error::Busy`] when as many wait as may: nothing was written.
    /// [`Error::Commit`]: the queue did not answer for as long as the cache has [time](crate::Builder::timeout), and it is not
    /// known whether it was written.
    ///
    /// # Cancel safety
    ///
    /// It may be written or not.
    pub async fn write(&self, key: &K, value: Option<V>) -> Result<Accepted> {
        self.write_as(&format!("{:?}", Ticket::new()), key, value).await
    }

    /// The same, with an id that no other write has. A write with an id that is in the queue, however long, or was
    /// [lately](Queue::append), is not written again, whatever its key and value are: after [`Error::Commit`], or in another
    /// process, the same may be written again until it is known how it ended.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub async fn write_as(&self, id: &str, key: &K, value: Option<V>) -> Result<Accepted> {
        let (shared, inner) = (&self.shared, self.shared.inner());
        // As long as a name may be.
        inner.name(key)?;
        let key = key.to_string();
        readable::<K>(&key)?;
        let Some(value) = inner.encode(value.as_ref()) else {
            return Err(Error::InvalidValue("too large, or it cannot be encoded".into()));
        };
        let (value, schema) = (value.map(|value| value.to_vec()), inner.settings.schema);
        let message = Message { id: id.to_owned(), key, schema, value };
        let begun = Instant::now();
        loop {
            let append = || shared.queue.append(&message);
            let appended = inner.insist("a write to the queue", append).await;
            if let Some(order) = appended.map_err(|error| Error::Commit(Arc::new(error)))? {
                shared.wake.notify_one();
                return Ok(Accepted { order });
            }
            if begun.elapsed() + FULL > shared.wait {
                return Err(Error::Busy { retry_after: FULL });
            }
            sleep(FULL).await;
        }
    }

    /// Waits until a write is in the database and the cache was told of it.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if that takes longer, [`Error::Commit`] for one that is a letter, [`Error::Store`].
    pub async fn applied(&self, order: Order, wait: Duration) -> Result<()> {
        let (shared, begun, mut pause) = (&self.shared, Instant::now(), LOOKS.0);
        loop {
            let look = || shared.queue.fate(order);
            match shared.inner().insist("looking for a write", look).await? {
                Fate::Gone => return Ok(()),
                Fate::Buried => {
                    return Err(Error::Commit(Arc::from(BoxError::from("it is a letter"))));
                }
                Fate::Waits if begun.elapsed() + pause > wait => {
                    return Err(Error::Timeout { waited: begun.elapsed() });
                }
                Fate::Waits => sleep(pause).await,
            }
            pause = (pause * 2).min(LOOKS.1);
        }
    }

    /// What is under a key, by the [choice](Reads) that was made. `None`: it is not cached, which says nothing about the database. That
    /// the database has nothing is a [`Read`] without a value.
    ///
    /// # Errors
    ///
    /// As for [`Cache::peek`], or with the loader as for [`Cache::read`].
    pub async fn get(&self, key: &K) -> Result<Option<Read<V>>> {
        match self.shared.reads {
            Reads::Cache => self.shared.cache.peek(key).await,
            Reads::Loader => self.shared.cache.read(key, Freshness::Any).await.map(Some),
        }
    }

    /// Begins to apply in this process, when it is its turn. Must be called inside a tokio runtime.
    pub fn consume(&self) -> Consumer {
        Consumer::start(Arc::clone(&self.shared))
    }

    /// How much there is in the queue.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] when it does not answer.
    pub async fn backlog(&self) -> Result<Backlog> {
        self.ask("looking at a queue", || self.shared.queue.backlog()).await
    }

    /// The first so many letters behind this one, or from the beginning.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] when the queue does not answer.
    pub async fn letters(&self, after: Option<Order>, most: usize) -> Result<Vec<Letter>> {
        self.ask("listing letters", || self.shared.queue.letters(after, most)).await
    }

    /// Has the write of a letter applied again, as the last one of its key. [`Retried::Gone`] may also mean that the answer to
    /// the first attempt was lost.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] when the queue does not answer.
    pub async fn retry(&self, letter: Order) -> Result<Retried> {
        let retried = self.ask("retrying a letter", || self.shared.queue.retry(letter)).await?;
        self.shared.wake.notify_one();
        Ok(retried)
    }

    /// Gives a letter up for good; `false`: there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] when the queue does not answer.
    pub async fn discard(&self, letter: Order) -> Result<bool> {
        self.ask("discarding a letter", || self.shared.queue.discard(letter)).await
    }

    /// What consumers in this process did.
    pub fn stats(&self) -> ThroughStats {
        let Counters { applied, retries, buried, not_refreshed } = &self.shared.counters;
        let [applied, retries, buried, not_refreshed] =
            [applied, retries, buried, not_refreshed].map(Counter::get);
        ThroughStats { applied, retries, buried, not_refreshed }
    }

    /// The cache that is read from.
    pub fn cache(&self) -> &Cache<K, V> {
        &self.shared.cache
    }

    async fn ask<T, F>(&self, what: &'static str, attempt: impl Fn() -> F + Send) -> Result<T>
    where
        F: Future<Output = crate::store::Result<T>> + Send,
    {
        self.shared.inner().insist(what, attempt).await
    }
}

impl<K, V> Clone for Through<K, V> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K, V> fmt::Debug for Through<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { queue, cache, .. } = &*self.shared;
        f.debug_struct("Through").field("queue", queue).field("cache", cache).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejection_is_found_among_the_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] Rejected);
        let rejected = Rejected::new("negative");
        assert!(Rejected::is(&rejected));
        assert!(Rejected::is(&Outer(rejected)));
        assert!(!Rejected::is(&*BoxError::from("down")));
    }
}
