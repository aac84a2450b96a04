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

    /// In this version: a number that grows with every change of the row, read together with it. Versions are from 1;
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
