//! Where values come from.

use async_trait::async_trait;

use crate::error::BoxError;

/// What the database has under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded<V> {
    pub(crate) value: Option<V>,
    pub(crate) version: u64,
}

impl<V> Loaded<V> {
    /// This value.
    pub fn found(value: V) -> Self {
        Self { value: Some(value), version: 0 }
    }

    /// Nothing. That is cached as well, for a shorter time.
    pub fn nothing() -> Self {
        Self { value: None, version: 0 }
    }

    /// In this version: a number that grows with every change of the row, read together with it. Take it from a sequence of the
    /// database where rows are deleted and made again: one that begins anew is smaller than what was cached before. Versions are from 1;
    /// 0 stands for an unknown one.
    ///
    /// A value without a version is refused for a while after an invalidation that named one.
    #[must_use]
    pub fn version(self, version: u64) -> Self {
        Self { version, ..self }
    }
}

impl<V> From<Option<V>> for Loaded<V> {
    fn from(value: Option<V>) -> Self {
        Self { value, version: 0 }
    }
}

/// Loads values from the database. Any `Fn(K) -> impl Future<Output = Result<Loaded<V>, E>>` is one.
///
/// It must read what is committed, from the primary or from a replica that does not lag behind the
/// invalidations; else give values their [version](Loaded::version).
///
/// Loads go on when the read that began them is gone, so they have all that they need themselves: a closure that needs a
/// pool of connections gives each load a clone of it.
///
/// ```
/// # use std::{collections::HashMap, convert::Infallible, sync::Arc};
/// use lockkeeper_cache::{Cache, Loaded, Memory};
///
/// # #[derive(Clone)]
/// # struct Pool(Arc<HashMap<u64, String>>);
/// # impl Pool {
/// #     async fn query(&self, id: u64) -> Result<Option<String>, Infallible> {
/// #         Ok(self.0.get(&id).cloned())
/// #     }
/// # }
/// # #[tokio::main]
/// # async fn main() -> Result<(), lockkeeper_cache::Error> {
/// # let pool = Pool(Arc::new(HashMap::from([(7, "Ann".to_owned())])));
/// let loader = move |id: u64| {
///     let pool = pool.clone();
///     async move {
///         let row = pool.query(id).await?; // SELECT name FROM users WHERE id = $1
///         Ok::<_, Infallible>(Loaded::from(row))
///     }
/// };
/// let names = Cache::builder(Memory::new()).namespace("user").build(loader)?;
/// assert_eq!(names.get(&7).await?.as_deref().map(String::as_str), Some("Ann"));
/// # Ok(())
/// # }
/// ```
///
/// Or it is a type of its own, as in the example `shop`, which can be a [`Database`](crate::Database) as well.
#[async_trait]
pub trait Loader<K, V>: Send + Sync {
    /// Loads one.
    ///
    /// # Errors
    ///
    /// Whatever it likes; all who wait for this load get it.
    async fn load(&self, key: &K) -> Result<Loaded<V>, BoxError>;
}

#[async_trait]
impl<K, V, F, R, E> Loader<K, V> for F
where
    K: Clone + Send + Sync,
    F: Fn(K) -> R + Send + Sync,
    R: Future<Output = Result<Loaded<V>, E>> + Send,
    E: Into<BoxError>,
{
    async fn load(&self, key: &K) -> Result<Loaded<V>, BoxError> {
        self(key.clone()).await.map_err(Into::into)
    }
}
