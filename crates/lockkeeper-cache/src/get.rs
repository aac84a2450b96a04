//! A read of no more than a value. Written by hand, because what the compiler makes of an `async fn` is not put into its
//! caller, and that took a tenth of a hit in the first level.

use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;

use crate::cache::{Cache, Read};
use crate::error::Result;
use crate::freshness::Freshness;

pub(crate) struct Get<'a, K, V> {
    cache: &'a Cache<K, V>,
    key: &'a K,
    /// When the first level has nothing.
    reading: Option<BoxFuture<'a, Result<Read<V>>>>,
}

impl<'a, K, V> Get<'a, K, V> {
    #[inline]
    pub(crate) fn new(cache: &'a Cache<K, V>, key: &'a K) -> Self {
        Self { cache, key, reading: None }
    }
}

impl<'a, K, V> Get<'a, K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    #[cold]
    #[inline(never)]
    fn read(
        cache: &'a Cache<K, V>,
        key: &'a K,
        reading: &mut Option<BoxFuture<'a, Result<Read<V>>>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Arc<V>>>> {
        let reading = reading.get_or_insert_with(|| cache.boxed_read(key, Freshness::Any));
        Poll::Ready(ready!(reading.as_mut().poll(cx)).map(|read| read.value))
    }
}

impl<K, V> Future for Get<'_, K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    type Output = Result<Option<Arc<V>>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.reading.is_none()
            && let Some(value) = self.cache.inner.first_value(self.key)
        {
            return Poll::Ready(Ok(value));
        }
        let (cache, key) = (self.cache, self.key);
        Self::read(cache, key, &mut self.reading, cx)
    }
}
