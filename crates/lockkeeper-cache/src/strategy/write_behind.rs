//! The cache first, the database later.
//!
//! # How it works
//!
//! - Write: one script appends the change to a Redis Stream and makes it the entry, which has no end until the database
//!   has it. A deletion is a change to nothing. [`Error::Busy`] when as many changes wait as
//!   [`behind`](crate::Builder::behind) lets.
//! - Read: as [`fill_lease`](super::fill_lease). A key with a change that waits is a hit. While Redis does not answer, and
//!   where a change waits that this program cannot read, reads get [`Error::Busy`]: the database may be older.
//! - One process at a time applies the changes: it takes them from the beginning of the stream, those of a key in
//!   their order, and gives each with its [`Order`](crate::Order) to [`Database::store`](crate::Database::store); then
//!   one script takes it out of the stream and gives the entry its time to live. When the database fails it waits and
//!   tries the same change again. Who applies holds the lock `behind:<namespace>` if there are
//!   [`locks`](crate::Builder::locks), and else a lease in Redis, which lasts for [`lease`](crate::Builder::lease).
//!
//! All keys of the table are in one slot of a cluster. All processes connect with
//! [`Redis::connect_warm`](crate::Redis::connect_warm): what waits must count after a fail-over.
//!
//! # What it promises
//!
//! A write that has returned is seen by every read that begins, and is as durable as that Redis. It reaches the database,
//! whichever process dies: another one goes on with the first change that is left. The database sees the changes of a key
//! in their order; one that comes again, or too late from a process that was paused, carries an order that is not later
//! than what it has, and changes nothing. There are never more than `behind` changes that wait.
//!
//! # Known anomalies
//!
//! *The database is behind*: who reads it directly, or in a transaction, misses the changes that wait.
//!
//! *A Redis that loses data* loses writes that were acknowledged.
//!
//! 1. A writer appends a change and returns.
//! 2. Redis ends before it has written that to its disk or to the replica that takes over.
//! 3. The change never comes to the database, and readers get the old value.
//!
//! `appendonly yes` with `appendfsync always`, `min-replicas-to-write`, and `maxmemory-policy noeviction` make that less
//! likely. A server in its place whose clock is behind gives orders that the database has seen.
//!
//! *Past the change*: an entry that is evicted, or [invalidated](crate::Cache::invalidate) or
//! [cleared](crate::Cache::clear) by hand, before the database has it. Readers get what the database has, until it has
//! the change. So do those who ask for [`Latest`](Freshness::Latest).
//!
//! *A change that the database never takes*, or that this program cannot decode, holds up all that follow, until
//! the table is full. [Flush](super::Table::flush) before values change their [form](crate::Builder::schema).
//!
//! # When to use it
//!
//! For many small writes that need not be in the database at once: counters, positions, last-seen times.
//!
//! # Cost
//!
//! A hit is one round trip; a write is one, and no commit. Behind it: one for each change, and one for a hundred. Each process
//! asks about 20 times a second whether there is something to apply, if it is the one who does. The changes that wait
//! take memory twice.

mod applier;

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::Locks;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::sleep;

use self::applier::Applier;
use super::base::{Base, Commit, Protocol};
use super::table::Written;
use crate::cache::{Inner, Read};
use crate::entry::{Lease, Ticket, Value};
use crate::error::{Error, Result};
use crate::freshness::Freshness;
use crate::names::readable;
use crate::store::{Changes, PENDING};

/// Between two looks at the log.
const LOOK: Duration = Duration::from_millis(50);

/// When a writer that was refused may try again.
const FULL: Duration = Duration::from_millis(200);

pub(super) struct WriteBehind {
    log: Arc<str>,
    most: usize,
    /// Tells the one who applies that there is something new.
    wake: Arc<Notify>,
}

/// All keys with this are in one slot.
pub(super) fn tagged(namespace: &str) -> Result<String> {
    match namespace {
        // Nothing between the braces is no tag.
        "" => Err(Error::Config("write-behind needs a namespace".into())),
        brace if brace.starts_with('}') => {
            Err(Error::Config("a namespace of write-behind cannot begin with }".into()))
        }
        namespace => Ok(format!("{{{namespace}}}")),
    }
}

impl WriteBehind {
    pub(super) fn new<K, V>(base: &Base<K, V>, locks: Option<Locks>, most: usize) -> Result<Self>
    where
        K: Clone + Display + FromStr + Send + Sync + 'static,
        V: Send + Sync + 'static,
    {
        let inner = base.inner();
        let config = |what: &str| Error::Config(format!("write-behind needs {what}"));
        if inner.store.changes().is_none() {
            return Err(config(
                "a store that outlives the process and what takes its place: Redis::connect_warm",
            ));
        }
        if inner.tags.is_some() {
            let why = "write-behind has no tags: changes that wait must not be invalidated";
            return Err(Error::Config(why.into()));
        }
        if most == 0 {
            return Err(config("room for at least one change"));
        }
        let runtime = Handle::try_current().map_err(|_| config("a tokio runtime"))?;
        let namespace = &inner.settings.namespace;
        let log: Arc<str> = format!("{namespace}!changes").into();
        let lock = locks.map(|locks| locks.mutex(format!("behind:{namespace}")));
        let wake = Arc::new(Notify::new());
        let applier = Applier {
            cache: Arc::downgrade(inner),
            store: Arc::clone(&inner.store),
            database: Arc::clone(&base.database),
            log: Arc::clone(&log),
            wake: Arc::clone(&wake),
            lock,
            lease: inner.settings.lease,
        };
        runtime.spawn(applier.run());
        Ok(Self { log, most, wake })
    }
}

fn changes<K, V>(inner: &Inner<K, V>) -> Result<&dyn Changes> {
    let missing = || Error::Config("the store keeps no changes".into());
    inner.store.changes().ok_or_else(missing)
}

#[async_trait]
impl<K, V> Protocol<K, V> for WriteBehind
where
    K: Clone + Display + FromStr + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    async fn read(&self, base: &Base<K, V>, key: &K, _name: &str) -> Result<Read<V>> {
        let read = base.cache.read(key, Freshness::Any).await?;
        // It will have one when the database has it.
        let version = if read.version == PENDING { 0 } else { read.version };
        Ok(Read { version, ..read })
    }

    async fn write(
        &self,
        _base: &Base<K, V>,
        _key: &K,
        _name: &str,
        _commit: Commit<'_, V>,
    ) -> Result<Written> {
        Err(Error::Config("write-behind commits later, and not with a commit of yours".into()))
    }

    async fn put(
        &self,
        base: &Base<K, V>,
        key: &K,
        name: &str,
        value: Option<V>,
    ) -> Result<Written> {
        let (inner, text) = (base.inner(), key.to_string());
        readable::<K>(&text)?;
        let Some(payload) = inner.encode(value.as_ref()) else {
            return Err(Error::InvalidValue("too large, or it cannot be encoded".into()));
        };
        let (lease, fill, version, soft) = (Lease::NONE, Ticket::NONE, PENDING, u64::MAX);
        let (made, cost, schema) = (inner.store.now(), 0, inner.settings.schema);
        let value = Value { lease, fill, version, made, soft, cost, schema, payload };
        let appending = changes(inner)?.append(&self.log, name, &value, self.most);
        let appended = inner.changing(&[name], appending).await;
        let appended = appended.inspect_err(|error| inner.store_failed("a change", error));
        // It may be there: who reads it sees it, and it comes to the database.
        match appended.map_err(|error| Error::Commit(Arc::new(error)))? {
            None => Err(Error::Busy { retry_after: FULL }),
            Some(_) => {
                self.wake.notify_one();
                Ok(Written { version: 0 })
            }
        }
    }

    async fn flush(&self, base: &Base<K, V>) -> Result<()> {
        let (inner, changes) = (base.inner(), changes(base.inner())?);
        let what = "looking for changes that wait";
        let last = inner.insist(what, || changes.last(&self.log)).await?;
        let Some(last) = last else { return Ok(()) };
        loop {
            let first = inner.insist(what, || changes.first(&self.log, 1)).await?;
            if first.first().is_none_or(|first| first.order > last) {
                return Ok(());
            }
            sleep(LOOK / 5).await;
        }
    }

    async fn pending(&self, base: &Base<K, V>) -> Result<usize> {
        let (inner, changes) = (base.inner(), changes(base.inner())?);
        inner.insist("counting changes that wait", || changes.pending(&self.log)).await
    }
}
