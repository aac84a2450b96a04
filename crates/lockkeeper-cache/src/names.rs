//! Many keys at once, that nobody names one by one.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use crate::cache::{Cache, Inner};
use crate::error::{Error, Result};
use crate::store::Cursor;

impl<K, V> Cache<K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Invalidates every key of the [namespace](crate::Builder::namespace); also those of a namespace that begins with this one
    /// and a colon. How many there were.
    ///
    /// Afterwards no read that begins gets what was there before it was called, and no load that began before that
    /// fills anything.
    ///
    /// # When it breaks
    ///
    /// A slot of a cluster that moves meanwhile, from a server that is still to be asked to one that has been, takes its keys
    /// past it; so does another master that takes over.
    ///
    /// # Cost
    ///
    /// The servers look at every key that they have, of whatever namespace, 500 at a time, and each page of them is
    /// one round trip more to invalidate. Not for every day. Afterwards everything is loaded anew:
    /// [`max_loads`](crate::Builder::max_loads) protects the database.
    ///
    /// # Errors
    ///
    /// As for [`invalidate`](Self::invalidate), and it is tried again like that; some may have been invalidated.
    ///
    /// # Cancel safety
    ///
    /// None: a future that is dropped has invalidated some.
    pub async fn clear(&self) -> Result<u64> {
        let cleared = self.inner.clear().await.inspect_err(|_| self.inner.owe_all());
        // Copies of what the store has forgotten by itself are in no list. They are not served any more, and only take room.
        if let Some(first) = self.inner.first.get() {
            first.clear();
        }
        cleared
    }
}

impl<K, V> Inner<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    async fn clear(self: &Arc<Self>) -> Result<u64> {
        let prefix = format!("{}:", self.settings.namespace);
        let (mut from, mut count) = (Cursor::default(), 0);
        loop {
            let list = || self.store.list(&prefix, from.clone());
            let page = self.insist("listing", list).await?;
            // That something is cached says nothing of the database, so the filter is not told: it may be that there is nothing.
            self.invalidate_at_store(&page.keys, 0).await?;
            count += page.keys.len() as u64;
            let Some(next) = page.next else { break };
            from = next;
        }
        // What the store does not have any more may still be here.
        self.first_forget_all();
        Ok(count)
    }
}

/// Whether a key can be made of its text again.
pub(crate) fn readable<K: Display + FromStr>(text: &str) -> Result<()> {
    match text.parse::<K>().is_ok_and(|parsed| parsed.to_string() == text) {
        true => Ok(()),
        false => Err(Error::InvalidKey(format!("{text:?} is not the text of a key"))),
    }
}
