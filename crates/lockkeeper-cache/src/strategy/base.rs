//! What all strategies stand on.

use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::runtime::Handle;

use super::table::Written;
use crate::cache::{Cache, Inner, Read};
use crate::database::Database;
use crate::error::{BoxError, Error, Result};
use crate::loader::{Loaded, Loader};

/// A write of the database: what it has now.
pub(crate) type Commit<'a, V> =
    Pin<Box<dyn Future<Output = Result<Loaded<V>, BoxError>> + Send + 'a>>;

/// The cache and the database of a table.
pub(crate) struct Base<K, V> {
    pub(crate) cache: Cache<K, V>,
    pub(crate) database: Arc<dyn Database<K, V>>,
}

/// What a strategy is: how it reads and how it writes. The name is that of the key at the store.
#[async_trait]
pub(crate) trait Protocol<K, V>: Send + Sync
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    async fn read(&self, base: &Base<K, V>, key: &K, name: &str) -> Result<Read<V>>;

    async fn write(
        &self,
        base: &Base<K, V>,
        key: &K,
        name: &str,
        commit: Commit<'_, V>,
    ) -> Result<Written>;

    /// The same for a value that the database of the table stores.
    async fn put(
        &self,
        base: &Base<K, V>,
        key: &K,
        name: &str,
        value: Option<V>,
    ) -> Result<Written> {
        let commit = Box::pin(async {
            let version = base.database.store(key, value.as_ref(), None).await?;
            Ok(Loaded { value, version })
        });
        self.write(base, key, name, commit).await
    }

    /// Waits until the database has all that was written before.
    async fn flush(&self, _base: &Base<K, V>) -> Result<()> {
        Ok(())
    }

    /// How many changes wait for the database.
    async fn pending(&self, _base: &Base<K, V>) -> Result<usize> {
        Ok(0)
    }
}

impl<K, V> Base<K, V> {
    pub(crate) fn inner(&self) -> &Arc<Inner<K, V>> {
        &self.cache.inner
    }
}

/// The database of a table as the loader of its cache.
pub(crate) struct Source<K, V>(pub(crate) Arc<dyn Database<K, V>>);

#[async_trait]
impl<K: Send + Sync, V: Send> Loader<K, V> for Source<K, V> {
    async fn load(&self, key: &K) -> Result<Loaded<V>, BoxError> {
        self.0.load(key).await
    }
}

/// The version of what is committed; 0 where that is not known.
pub(crate) fn version<V>(committed: &Result<Loaded<V>, BoxError>) -> u64 {
    committed.as_ref().map_or(0, |loaded| loaded.version)
}

/// What to say of a write and of what was done after it.
pub(crate) fn outcome<V>(
    committed: Result<Loaded<V>, BoxError>,
    after: Result<()>,
) -> Result<Written> {
    let version = match committed {
        Ok(loaded) => loaded.version,
        Err(error) => return Err(Error::Commit(error.into())),
    };
    match after {
        Ok(()) => Ok(Written { version }),
        Err(error) => Err(Error::Committed { version, source: Box::new(error) }),
    }
}

/// Invalidates a key if the write is dropped or panics before it came to that: the commit may be under way or done.
/// Then lets go of what it holds.
pub(crate) struct Clean<K, V, L = ()>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
    L: Send + 'static,
{
    cache: Cache<K, V>,
    left: Option<(K, L)>,
}

impl<K, V, L> Clean<K, V, L>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
    L: Send + 'static,
{
    pub(crate) fn new(base: &Base<K, V>, key: &K, holds: L) -> Self {
        Self { cache: base.cache.clone(), left: Some((key.clone(), holds)) }
    }

    pub(crate) fn cache(&self) -> &Cache<K, V> {
        &self.cache
    }

    pub(crate) fn holds(&self) -> Option<&L> {
        self.left.as_ref().map(|(_, holds)| holds)
    }

    /// There is nothing left to do.
    pub(crate) fn done(mut self) -> Option<L> {
        self.left.take().map(|(_, holds)| holds)
    }
}

impl<K, V, L> Drop for Clean<K, V, L>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
    L: Send + 'static,
{
    fn drop(&mut self) {
        let (Some((key, holds)), Ok(runtime)) = (self.left.take(), Handle::try_current()) else {
            return;
        };
        let cache = self.cache.clone();
        runtime.spawn(async move {
            // It has said so itself if it failed.
            let _ = cache.invalidate(&[key]).await;
            drop(holds);
        });
    }
}
