//! Caches that a follower tells of changes.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::cache::Cache;
use crate::error::Result;
use crate::store::Positions;
use crate::transaction::Invalidate;

/// A cache, whatever its keys and values are: all that a follower needs of one. What fails is owed by the cache itself as well, but
/// with this process that is gone: only what has succeeded counts.
#[async_trait]
pub(crate) trait Target: Invalidate {
    /// Clones of one cache have the same.
    fn id(&self) -> usize;

    /// The longest key that it takes.
    fn max_key(&self) -> usize;

    /// Where its store keeps how far followers have come, if it does.
    fn positions(&self) -> Option<&dyn Positions>;

    /// As [`Cache::clear`].
    async fn clear_all(&self) -> Result<u64>;
}

#[async_trait]
impl<K, V> Target for Cache<K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn id(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    fn max_key(&self) -> usize {
        self.inner.settings.max_key
    }

    fn positions(&self) -> Option<&dyn Positions> {
        self.inner.store.positions()
    }

    async fn clear_all(&self) -> Result<u64> {
        self.clear().await
    }
}

/// Reads a key again, whose text this is, and says whether it is cached. Nothing: it is no key of that cache.
pub(crate) type Load = Arc<dyn Fn(&str) -> Option<BoxFuture<'static, Result<bool>>> + Send + Sync>;

/// How keys of this cache are read again.
pub(crate) fn load<K, V>(cache: &Cache<K, V>) -> Load
where
    K: Clone + Display + FromStr + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let cache = cache.clone();
    Arc::new(move |text| {
        // `007` is a number, and not the key that was invalidated.
        let key = text.parse::<K>().ok().filter(|key| key.to_string() == text)?;
        let cache = cache.clone();
        Some(async move { cache.load_into_store(&key).await }.boxed())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Loaded, Memory};

    #[tokio::test]
    async fn keys_that_are_not_of_the_cache_are_not_read() {
        let loader = async |key: u64| match key {
            9 => Err(Error::Config("told to fail".into())),
            key => Ok(Loaded::found(key)),
        };
        let cache = Cache::builder(Memory::new()).namespace("cache").build(loader).unwrap();
        let load = load(&cache);
        for text in ["", "x", "-1", "007", "+7", " 7"] {
            assert!(load(text).is_none(), "{text}");
        }
        assert!(load("7").unwrap().await.unwrap());
        assert!(load("9").unwrap().await.is_err());
        assert_eq!(cache.stats().fills, 1);
        assert_eq!(cache.clone().id(), cache.id());
    }
}
