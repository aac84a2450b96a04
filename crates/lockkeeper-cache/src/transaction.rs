//! Invalidation that is bound to a commit.

use std::fmt::{self, Debug, Display};
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::runtime::Handle;

use crate::cache::Cache;
use crate::entry::{Settled, Ticket};
use crate::error::{Error, Result};
use crate::outbox::Row;

/// A key that a transaction changes, as text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Touched {
    /// The key without the namespace.
    pub key: String,
    /// The version that it has then; 0 where none is known.
    pub version: u64,
}

/// A cache, whatever its keys and values are: all that transactions need of one.
#[async_trait]
pub trait Invalidate: Debug + Send + Sync {
    /// What its keys begin with at the store.
    fn namespace(&self) -> &str;

    /// As [`Cache::invalidate_to`], with a version for each key.
    ///
    /// # Errors
    ///
    /// As for [`Cache::invalidate`]. Keys that this cache would refuse are left out: it cannot have them.
    async fn invalidate_touched(&self, touched: &[Touched]) -> Result<()>;

    /// Tells the [filter](crate::Builder::filter) of these keys, if there is one. Before the commit, so that no crash
    /// leaves a row that it does not know of.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    async fn announce_touched(&self, touched: &[Touched]) -> Result<()>;
}

#[async_trait]
impl<K, V> Invalidate for Cache<K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn namespace(&self) -> &str {
        &self.inner.settings.namespace
    }

    async fn invalidate_touched(&self, touched: &[Touched]) -> Result<()> {
        let (namespace, max) = (self.namespace(), self.inner.settings.max_key);
        let mut by_version = indexmap::IndexMap::<u64, Vec<String>>::new();
        for Touched { key, version } in touched.iter().filter(|touched| touched.key.len() <= max) {
            by_version.entry(*version).or_default().push(format!("{namespace}:{key}"));
        }
        let each = by_version.iter();
        // At the same time, so that they share a round trip; and all of them, also when one fails.
        let done = each.map(|(version, names)| self.inner.invalidate_names(names, *version));
        join_all(done).await.into_iter().collect()
    }

    async fn announce_touched(&self, touched: &[Touched]) -> Result<()> {
        let (namespace, max) = (self.namespace(), self.inner.settings.max_key);
        let fit = touched.iter().filter(|touched| touched.key.len() <= max);
        let names: Vec<String> =
            fit.map(|touched| format!("{namespace}:{}", touched.key)).collect();
        if names.is_empty() {
            return Ok(());
        }
        self.inner.announce(&names).await
    }
}

/// The keys that one transaction of the database changes, in one cache or in several.
///
/// # What it promises
///
/// They are invalidated after the commit, and there is no way to do it before. A transaction that is rolled back, or
/// dropped, does nothing to the cache. When the commit fails nobody knows whether it took effect, so they are invalidated
/// all the same; that costs a load. It is the same when the future of [`commit`](Self::commit) is dropped.
///
/// # When it breaks
///
/// A process that dies between the commit and the invalidation leaves old values behind until their time to live ends, and
/// so does a commit that takes effect only after the database has said that it failed. An
/// [outbox](crate::outbox) heals both.
///
/// # Cost
///
/// One round trip to the store, however many keys there are.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use lockkeeper_cache::{Cache, Error, Loaded, Memory};
/// # let users = Cache::builder(Memory::new())
/// #     .namespace("user")
/// #     .build(async |id: u64| Ok::<_, Error>(Loaded::found(format!("user {id}"))))?;
/// # let orders = Cache::builder(Memory::new())
/// #     .namespace("order")
/// #     .build(async |id: u64| Ok::<_, Error>(Loaded::found(id)))?;
/// let mut tx = users.transaction();
/// // UPDATE users SET … WHERE id = 7 RETURNING version
/// tx.touch_to(&7, 12)?;
/// // UPDATE orders SET … WHERE id = 3
/// tx.touch_in(&orders, &3, 0)?;
/// let commit = async { Ok::<_, Error>("what sql.commit() returns") };
/// let committed = tx.commit(commit).await?;
/// // The database has it in any case. An error here: others may read old values.
/// committed.cache?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is invalidated before the commit"]
pub struct Transaction<K, V> {
    cache: Cache<K, V>,
    id: Ticket,
    touched: Vec<Group>,
    /// There is a row for an outbox: more than it has must not be touched.
    sealed: bool,
}

/// A cache, and what is touched in it.
type Group = (Arc<dyn Invalidate>, Vec<Touched>);

/// What is done in the database, and what came of it at the cache.
#[derive(Clone, Debug)]
#[must_use = "the cache may have failed although the database did not"]
pub struct Committed<T, S = ()> {
    /// What the database said.
    pub value: T,
    /// How the cache was told.
    pub cache: Result<S>,
}

/// Why [`Cache::write`] did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError<E> {
    /// The cache could not be told before: nothing was written.
    #[error("not written, because the cache could not be told before")]
    NotBegun(#[source] Error),
    /// The write failed. Perhaps it took effect nevertheless.
    #[error("the write failed")]
    Failed(#[source] E),
}

impl<K, V> Cache<K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Collects the keys that a transaction changes, to invalidate them after its commit.
    pub fn transaction(&self) -> Transaction<K, V> {
        let touched = vec![(Arc::new(self.clone()) as Arc<dyn Invalidate>, Vec::new())];
        Transaction { cache: self.clone(), id: Ticket::new(), touched, sealed: false }
    }

    /// A write in strong mode: says that these keys are about to change, writes, and says that it is done. No read gets what
    /// was there before the commit, from the commit on. `write` returns the version that the keys have now; 0 if
    /// that is not known.
    ///
    /// When `write` fails, or is dropped in the middle, nobody knows whether it took effect, now or a little later: nothing is
    /// cached under these keys until the intent ends by itself, after [`intent`](crate::Builder::intent). Who knows
    /// that nothing was changed can use [`intend`](Self::intend) and [`settle`](crate::Write::settle).
    ///
    /// One round trip to the store before the write, and one after it.
    ///
    /// # Errors
    ///
    /// [`WriteError::NotBegun`]: the store cannot be reached, and `write` was not called. [`WriteError::Failed`]: with the
    /// error of `write`. When only the last step fails it is in [`Committed::cache`]: as for
    /// [`settle`](crate::Write::settle). [`Settled::Lapsed`] there: `write` took longer than an intent lasts, and old values may have been
    /// read since the commit.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use lockkeeper_cache::{entry::Settled, Cache, Error, Loaded, Memory};
    /// # let users = Cache::builder(Memory::new())
    /// #     .namespace("user")
    /// #     .build(async |id: u64| Ok::<_, Error>(Loaded::found(id)))?;
    /// let update = async {
    ///     // BEGIN; UPDATE users SET … WHERE id = 7 RETURNING version; COMMIT
    ///     Ok::<_, Error>(12)
    /// };
    /// let written = users.write(&[7], update).await?;
    /// assert_eq!((written.value, written.cache?), (12, Settled::Held));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn write<E: Send>(
        &self,
        keys: &[K],
        write: impl Future<Output = Result<u64, E>> + Send,
    ) -> Result<Committed<u64, Settled>, WriteError<E>> {
        let intent = self.intend(keys).await.map_err(WriteError::NotBegun)?;
        let version = match write.await {
            Ok(version) => version,
            Err(error) => {
                // It may have taken effect, and a filter that was begun since the intent does not have it.
                let _ = intent.inner.announce_again(&intent.names).await;
                return Err(WriteError::Failed(error));
            }
        };
        let cache = intent.settle((version > 0).then_some(version)).await;
        Ok(Committed { value: version, cache })
    }
}

impl<K, V> Transaction<K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// This key changes.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`]; [`Error::Config`] after [`row`](Self::row).
    pub fn touch(&mut self, key: &K) -> Result<()> {
        self.touch_to(key, 0)
    }

    /// This key changes, and has that version then: see [`Cache::invalidate_to`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`]; [`Error::Config`] after [`row`](Self::row).
    pub fn touch_to(&mut self, key: &K, version: u64) -> Result<()> {
        self.check()?;
        let touched = touched(&self.cache, key, version)?;
        self.touched[0].1.push(touched);
        Ok(())
    }

    /// The same in another cache; 0 for a version that is not known.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`]; [`Error::Config`] after [`row`](Self::row).
    pub fn touch_in<L, W>(&mut self, cache: &Cache<L, W>, key: &L, version: u64) -> Result<()>
    where
        L: Clone + Display + Send + Sync + 'static,
        W: Send + Sync + 'static,
    {
        self.check()?;
        let touched = touched(cache, key, version)?;
        self.touched.push((Arc::new(cache.clone()), vec![touched]));
        Ok(())
    }

    fn check(&self) -> Result<()> {
        match self.sealed {
            true => Err(Error::Config("a key is touched after the row was made".into())),
            false => Ok(()),
        }
    }

    /// The row for an [outbox](crate::outbox), with all that is touched; to be made last, because nothing can be touched
    /// afterwards.
    pub fn row(&mut self) -> Row {
        self.sealed = true;
        let all = self.touched.iter().flat_map(|(cache, touched)| {
            touched.iter().map(|touched| (cache.namespace(), touched))
        });
        Row::new(self.id, all)
    }

    /// The id of its row, if one was made.
    pub(crate) fn row_id(&self) -> Option<String> {
        self.sealed.then(|| Row::id(self.id))
    }

    /// Commits, and invalidates. `commit` is the last thing that is done in the database.
    ///
    /// # Errors
    ///
    /// That of `commit`; perhaps it took effect nevertheless.
    ///
    /// # Cancel safety
    ///
    /// Dropped in the middle, it invalidates in the background, which may be earlier than the database commits.
    pub async fn commit<T, E>(
        self,
        commit: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<Committed<T>, E>
    where
        T: Send,
        E: Send,
    {
        // If that fails, the invalidation tells it once more, and says so.
        let each = self.touched.iter().map(|(cache, touched)| cache.announce_touched(touched));
        join_all(each).await;
        let mut unsure = Unsure(self.touched);
        let outcome = commit.await;
        let cache = invalidate(&unsure.0).await;
        unsure.0.clear();
        Ok(Committed { value: outcome?, cache })
    }
}

fn touched<K, V>(cache: &Cache<K, V>, key: &K, version: u64) -> Result<Touched>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let name = cache.inner.name(key)?;
    let key = name[cache.namespace().len() + 1..].to_owned();
    Ok(Touched { key, version })
}

async fn invalidate(groups: &[Group]) -> Result<()> {
    let each = groups.iter().map(|(cache, touched)| cache.invalidate_touched(touched));
    join_all(each).await.into_iter().collect()
}

/// Invalidates when it is dropped: a commit is under way, or done.
struct Unsure(Vec<Group>);

impl Drop for Unsure {
    fn drop(&mut self) {
        let groups = std::mem::take(&mut self.0);
        let (false, Ok(runtime)) = (groups.is_empty(), Handle::try_current()) else { return };
        runtime.spawn(async move {
            // The cache has said so if this fails.
            let _ = invalidate(&groups).await;
        });
    }
}

impl<K, V> Debug for Transaction<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("id", &self.id).field("touched", &self.touched).finish()
    }
}
