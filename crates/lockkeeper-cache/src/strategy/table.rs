//! What is read and written by a strategy.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Locks;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Strategy;
use super::base::{Base, Protocol, Source};
use super::bounded_stale::BoundedStale;
use super::bypass::Bypass;
use super::delete_then_update::DeleteThenUpdate;
use super::double_delete::DoubleDelete;
use super::fill_lease::FillLease;
use super::read_write_lock::ReadWriteLock;
use super::strong::Strong;
use super::ttl_only::TtlOnly;
use super::update_then_delete::UpdateThenDelete;
use super::write_behind::{self, WriteBehind};
use super::write_through::WriteThrough;
use crate::builder::Builder;
use crate::cache::{Cache, Read};
use crate::database::Database;
use crate::error::{BoxError, Error, Result};
use crate::guard::Down;
use crate::loader::Loaded;

/// What only some strategies need.
#[derive(Debug, Default)]
pub(crate) struct Options {
    pub(crate) locks: Option<Locks>,
    pub(crate) second_delete: Option<Duration>,
    pub(crate) behind: Option<usize>,
}

impl Options {
    /// The first that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let Self { locks, second_delete, behind } = self;
        let given = [
            ("locks", locks.is_some()),
            ("second_delete", second_delete.is_some()),
            ("behind", behind.is_some()),
        ];
        given.into_iter().find_map(|(name, given)| given.then_some(name))
    }
}

/// A table of a database, read and written through a cache by one [`Strategy`]. A clone is the same table.
///
/// All who write the table write it through one of these, with the same strategy and the same namespace; else see
/// what is said of writers that do not invalidate.
///
/// ```
/// # use async_trait::async_trait;
/// # use lockkeeper_cache::{BoxError, Database, Loaded, Loader, Order};
/// # #[derive(Default)]
/// # struct Stock(std::sync::atomic::AtomicU64);
/// # #[async_trait]
/// # impl Loader<String, u64> for Stock {
/// #     async fn load(&self, _: &String) -> Result<Loaded<u64>, BoxError> {
/// #         Ok(Loaded::found(self.0.load(std::sync::atomic::Ordering::SeqCst)))
/// #     }
/// # }
/// # #[async_trait]
/// # impl Database<String, u64> for Stock {
/// #     async fn store(&self, _: &String, to: Option<&u64>, _: Option<Order>) -> Result<u64, BoxError> {
/// #         self.0.store(*to.unwrap_or(&0), std::sync::atomic::Ordering::SeqCst);
/// #         Ok(0)
/// #     }
/// # }
/// # #[tokio::main]
/// # async fn main() -> Result<(), lockkeeper_cache::Error> {
/// use lockkeeper_cache::{Cache, Memory, Strategy};
///
/// let stock = Cache::builder(Memory::new())
///     .namespace("stock")
///     .table(Strategy::default(), Stock::default())?;
/// stock.write(&"pen".to_owned(), Some(12)).await?;
/// assert_eq!(stock.read(&"pen".to_owned()).await?.value.as_deref(), Some(&12));
/// # Ok(())
/// # }
/// ```
///
/// The example `shop` has a table of PostgreSQL.
pub struct Table<K, V> {
    shared: Arc<Shared<K, V>>,
}

struct Shared<K, V> {
    strategy: Strategy,
    base: Base<K, V>,
    protocol: Box<dyn Protocol<K, V>>,
}

/// A write that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// The version that the key has now, for [`Freshness::AtLeast`](crate::Freshness::AtLeast); 0 where none is known.
    pub version: u64,
}

impl Builder {
    /// Makes a table that is read and written by this strategy, with values as JSON.
    ///
    /// The text of a key must make the same key again: [write-behind](super::write_behind) reads it back.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) for what [`build`](Self::build) refuses, and when the strategy needs something that is not there.
    pub fn table<K, V>(
        mut self,
        strategy: Strategy,
        database: impl Database<K, V> + 'static,
    ) -> Result<Table<K, V>>
    where
        K: Clone + Display + FromStr + Send + Sync + 'static,
        V: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let options = std::mem::take(&mut self.options);
        if strategy == Strategy::WriteBehind {
            self.settings.namespace = write_behind::tagged(&self.settings.namespace)?;
            // A change may wait there, which the database does not have.
            self = self.when_down(Down::Busy);
        }
        let database: Arc<dyn Database<K, V>> = Arc::new(database);
        let cache = self.build(Source(Arc::clone(&database)))?;
        let base = Base { cache, database };
        let protocol = protocol(strategy, options, &base)?;
        Ok(Table { shared: Arc::new(Shared { strategy, base, protocol }) })
    }

    /// Where the locks are that some strategies take. Only for a [`table`](Self::table).
    pub fn locks(mut self, locks: Locks) -> Self {
        self.options.locks = Some(locks);
        self
    }

    /// How long after the commit the second delete comes. Longer than a load takes, and a replica of the database lags.
    /// Default 1 s. Only for a [`table`](Self::table).
    pub fn second_delete(mut self, after: Duration) -> Self {
        self.options.second_delete = Some(after);
        self
    }

    /// How many changes may wait for the database in [write-behind](super::write_behind); writers that come then are told
    /// [`Error::Busy`](crate::Error::Busy). Default 10,000. Only for a [`table`](Self::table).
    pub fn behind(mut self, most: usize) -> Self {
        self.options.behind = Some(most);
        self
    }
}

fn protocol<K, V>(
    strategy: Strategy,
    options: Options,
    base: &Base<K, V>,
) -> Result<Box<dyn Protocol<K, V>>>
where
    K: Clone + Display + FromStr + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let second = options.second_delete.unwrap_or(Duration::from_secs(1));
    let behind = options.behind.unwrap_or(10_000);
    Ok(match strategy {
        Strategy::FillLease => Box::new(FillLease),
        Strategy::Strong => Box::new(Strong),
        Strategy::BoundedStale => Box::new(BoundedStale::new(base)?),
        Strategy::UpdateThenDelete => Box::new(UpdateThenDelete),
        Strategy::DeleteThenUpdate => Box::new(DeleteThenUpdate),
        Strategy::DoubleDelete => Box::new(DoubleDelete::new(base, second)?),
        Strategy::WriteThrough => Box::new(WriteThrough::new(options.locks)?),
        Strategy::ReadWriteLock => Box::new(ReadWriteLock::new(options.locks)?),
        Strategy::WriteBehind => Box::new(WriteBehind::new(base, options.locks, behind)?),
        Strategy::TtlOnly => Box::new(TtlOnly),
        Strategy::Bypass => Box::new(Bypass),
    })
}

impl<K, V> Table<K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// The value under a key, as new as the strategy promises.
    ///
    /// # Errors
    ///
    /// As for [`Cache::read`]; and [`Error::Lock`](crate::Error::Lock) where reads take a lock.
    pub async fn read(&self, key: &K) -> Result<Read<V>> {
        let Shared { base, protocol, .. } = &*self.shared;
        let name = base.inner().name(key)?;
        protocol.read(base, key, &name).await
    }

    /// Writes a value to the database of the table, and does to the cache what the strategy says; `None` deletes it.
    ///
    /// # Errors
    ///
    /// - [`Error::Commit`](crate::Error::Commit): the database failed. It is not known whether the value was changed.
    /// - [`Error::Committed`](crate::Error::Committed): it was changed, but what the strategy promises of the cache does not hold.
    /// - Any other: nothing was changed.
    ///
    /// # Cancel safety
    ///
    /// A write that is dropped may be committed or not. Strategies that promise something then invalidate in the
    /// background.
    pub async fn write(&self, key: &K, value: Option<V>) -> Result<Written> {
        let Shared { base, protocol, .. } = &*self.shared;
        let name = base.inner().name(key)?;
        self.known(&name, protocol.put(base, key, &name, value)).await
    }

    /// The same for a commit of your own, a transaction for example. It says what the key has when it returns, and is
    /// committed by then. It is not begun when something fails before.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write); [`Error::Config`](crate::Error::Config) for write-behind, which commits later.
    pub async fn write_with(
        &self,
        key: &K,
        commit: impl Future<Output = Result<Loaded<V>, BoxError>> + Send,
    ) -> Result<Written> {
        let Shared { base, protocol, .. } = &*self.shared;
        let name = base.inner().name(key)?;
        self.known(&name, protocol.write(base, key, &name, Box::pin(commit))).await
    }

    /// A write whose key the filter knows: before the commit, so that no crash leaves a row that it does not know
    /// of, and after it, because a filter that was begun meanwhile does not have it.
    async fn known(
        &self,
        name: &str,
        write: impl Future<Output = Result<Written>> + Send,
    ) -> Result<Written> {
        let (inner, names) = (self.shared.base.inner(), [name.to_owned()]);
        inner.announce(&names).await?;
        let written = write.await;
        // What is surely not in the database need not be in the filter.
        if !matches!(written, Ok(_) | Err(Error::Commit(_) | Error::Committed { .. })) {
            return written;
        }
        let again = inner.announce_again(&names).await;
        let Written { version } = written?;
        let failed = |error| Error::Committed { version, source: Box::new(error) };
        again.map(|()| Written { version }).map_err(failed)
    }

    /// Waits until the database has all that was written before by anybody. Only [write-behind](super::write_behind) makes
    /// it wait, and for as long as the database fails. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::Store`](crate::Error::Store).
    pub async fn flush(&self) -> Result<()> {
        self.shared.protocol.flush(&self.shared.base).await
    }

    /// How many changes wait for the database; none but for [write-behind](super::write_behind).
    ///
    /// # Errors
    ///
    /// [`Error::Store`](crate::Error::Store).
    pub async fn pending(&self) -> Result<usize> {
        self.shared.protocol.pending(&self.shared.base).await
    }

    /// Its cache, for what is not a matter of the strategy: statistics, several rows in one [commit](Cache::write), a
    /// [first level](Cache::with_first_level), and reads that [ask for more](Cache::read).
    ///
    /// Those reads are reads of a cache with fill leases, whatever the strategy: they take no locks, and where the table has
    /// no cache ([bypass](super::bypass)) they fill one that nobody invalidates.
    pub fn cache(&self) -> &Cache<K, V> {
        &self.shared.base.cache
    }

    /// How it reads and writes.
    pub fn strategy(&self) -> Strategy {
        self.shared.strategy
    }
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K, V> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { strategy, base, .. } = &*self.shared;
        f.debug_struct("Table").field("strategy", strategy).field("cache", &base.cache).finish()
    }
}
