//! What is loaded before anybody asks for it.

use std::fmt::Display;
use std::str::FromStr;

use futures_util::stream::{self, StreamExt};
use tokio::time::{Instant, sleep};

use super::Through;
use crate::error::{Error, Result};

/// So many are loaded at a time; a cache lets more.
const AT_ONCE: usize = 16;

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preloaded {
    /// Keys that are cached now, or that the database has nothing under.
    pub done: u64,
    /// Keys that could not be loaded, or that the store does not take: it did not answer, the value is too large, or somebody else
    /// writes it.
    pub failed: u64,
}

impl<K, V> Through<K, V>
where
    K: FromStr + Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Loads what is not cached of these keys, a few at a time, so that those find it who read only the cache. `progress` is called after
    /// each. What cannot be loaded is counted, and left out; a database that is [to be spared](Error::Busy) is asked again for as
    /// long as a read may [take](crate::Builder::timeout).
    ///
    /// # Cancel safety
    ///
    /// What was loaded is cached.
    pub async fn preload(
        &self,
        keys: impl IntoIterator<Item = K, IntoIter: Send> + Send,
        mut progress: impl FnMut(Preloaded) + Send,
    ) -> Preloaded {
        let loads = stream::iter(keys).map(async |key| self.load_patiently(&key).await);
        let mut loads = std::pin::pin!(loads.buffer_unordered(AT_ONCE));
        let mut so_far = Preloaded::default();
        while let Some(loaded) = loads.next().await {
            match loaded {
                Ok(true) => so_far.done += 1,
                Ok(false) => so_far.failed += 1,
                Err(error) => {
                    tracing::warn!(%error, "a key is not preloaded");
                    so_far.failed += 1;
                }
            }
            progress(so_far);
        }
        so_far
    }

    async fn load_patiently(&self, key: &K) -> Result<bool> {
        let (begun, time) = (Instant::now(), self.shared.inner().settings.timeout);
        loop {
            match self.shared.cache.load_into_store(key).await {
                Err(Error::Busy { retry_after }) if begun.elapsed() + retry_after < time => {
                    sleep(retry_after).await;
                }
                loaded => return loaded,
            }
        }
    }
}
