//! Writes that are announced.

use std::fmt;
use std::sync::Arc;

use futures_util::future::join;

use crate::cache::{Inner, refs};
use crate::entry::{Settled, Ticket};
use crate::error::Result;

/// A write that was announced by [`Cache::intend`](crate::Cache::intend). Dropped without [`settle`](Self::settle), its keys are not cached for as long
/// as [`intent`](crate::Builder::intent) says.
#[must_use = "the keys are not cached until it is settled"]
pub struct Write<K, V> {
    pub(crate) inner: Arc<Inner<K, V>>,
    pub(crate) names: Vec<String>,
    pub(crate) writer: Ticket,
}

impl<K, V> Write<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// The write is committed, or was not done. `version`: what the keys have now, if that is known.
    ///
    /// [`Settled::Lapsed`]: it took so long that the intent had ended, and what was there before may have been
    /// served since the commit.
    ///
    /// # Errors
    ///
    /// [`Error::Store`](crate::Error::Store): the keys are not cached until the intent ends. If it has ended before the commit, old values may be
    /// there; so they are invalidated in the background, as by [`Cache::invalidate`](crate::Cache::invalidate). Or the
    /// [filter](crate::Builder::filter) has failed to take them in once more, whatever became of the intent: then it is tried again in
    /// the background.
    pub async fn settle(self, version: Option<u64>) -> Result<Settled> {
        let Self { inner, names, writer } = self;
        let (keys, how) = (refs(&names), inner.how(version.unwrap_or(0)));
        let settling = inner.insist("settling", || inner.store.settle(&keys, writer, how));
        let settling = inner.changing_or_owe(&names, version.unwrap_or(0), settling);
        // Once more: a filter that was begun since the intent does not have them.
        let (settled, announced) = join(settling, inner.announce_again(&names)).await;
        settled.and_then(|settled| announced.map(|()| settled))
    }
}

impl<K, V> fmt::Debug for Write<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Write").field("keys", &self.names).finish_non_exhaustive()
    }
}
