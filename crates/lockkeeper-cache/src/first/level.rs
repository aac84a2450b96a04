//! Where a cache and its first level meet.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use super::changes::Mark;
use super::{First, FirstLevel};
use crate::cache::{Cache, Inner, Read, Source};
use crate::entry::Millis;
use crate::error::{Error, Result};
use crate::freshness::Freshness;
use crate::store::millis;

impl<K, V> Cache<K, V>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// The same cache, and all its clones, with a level in this process before its store. See [`FirstLevel`] for what
    /// that promises.
    ///
    /// ```no_run
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lockkeeper_cache::{Cache, Error, FirstLevel, Loaded, Redis};
    ///
    /// let store = Redis::connect("redis://localhost").await?;
    /// let names = Cache::builder(store)
    ///     .namespace("user")
    ///     .build(async |id: u64| Ok::<_, Error>(Loaded::found(format!("user {id}"))))?
    ///     .with_first_level(FirstLevel::new(10_000))?;
    /// # drop(names);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when the store does not tell of changes ([`Memory`](crate::Memory), which is as near
    /// already, and [`Grouped`](crate::Grouped) with such a one in it), when there is a first level already, or an option
    /// makes no sense.
    pub fn with_first_level(self, level: FirstLevel) -> Result<Self> {
        let (first, changes) = First::new(level)?;
        let inner = &self.inner;
        let already = || Error::Config("there is a first level already".into());
        if inner.first.get().is_some() {
            return Err(already());
        }
        // Before it is used by anybody: one that hears of nothing must not be there, not even for clones.
        if !inner.store.follow(&format!("{}:", inner.settings.namespace), &changes) {
            let why = "does not tell of changes: Memory is as near already, and Grouped needs stores that do";
            return Err(Error::Config(format!("no first level before this store, which {why}")));
        }
        // Who comes second is dropped, and nobody tells it anything any more.
        inner.first.set(Box::new(first)).map_err(|_| already())?;
        Ok(self)
    }
}

impl<K: Send + Sync, V: Send + Sync> Inner<K, V> {
    /// What the first level has.
    pub(crate) fn first_get(&self, key: &K, freshness: Freshness) -> Option<Read<V>> {
        self.first.get()?.get(key, freshness, self.now_for(freshness))
    }

    /// What it would serve now, for who only looks.
    pub(crate) fn first_copy(&self, key: &K) -> Option<Read<V>> {
        self.first.get()?.peek(key)
    }

    /// How far it may be behind the store.
    pub(crate) fn first_bound(&self) -> Duration {
        self.first.get().map_or(Duration::ZERO, |first| first.changes().bound())
    }

    /// The time at the store, for who asks for an age.
    pub(crate) fn now_for(&self, freshness: Freshness) -> Millis {
        if let Freshness::MaxAge(_) = freshness { self.store.now() } else { 0 }
    }

    /// The same for a read that takes any and wants no more than the value: the shortest way.
    #[inline]
    #[expect(clippy::option_option, reason = "what is kept may be that there is nothing")]
    pub(crate) fn first_value(&self, key: &K) -> Option<Option<Arc<V>>> {
        self.first.get()?.value(key)
    }

    /// To be asked for before anything else is looked at.
    pub(crate) fn mark(&self, name: &str) -> Option<Mark> {
        Some(self.first.get()?.changes().mark(name))
    }

    /// Keeps what the store had, until it should be refreshed there or ends there at the latest.
    pub(crate) fn first_put(&self, key: &K, read: &Read<V>, mark: Option<Mark>) {
        let (Some(first), Some(mark), Source::Hit) = (self.first.get(), mark, read.source) else {
            return;
        };
        let ttl = if read.value.is_some() { self.settings.ttl } else { self.settings.null_ttl };
        let lives = self.settings.refresh_after.map_or(ttl, |after| after.min(ttl));
        let age = self.store.now().saturating_sub(read.made);
        let left = Duration::from_millis(millis(lives).saturating_sub(age));
        // One that is over already is put as well: it may be what is left when the store is down.
        first.put(key, read, mark, left);
    }

    /// Nothing of this key is to be served any more.
    pub(crate) fn first_drop(&self, key: &K) {
        if let Some(first) = self.first.get() {
            first.forget(key);
        }
    }

    /// Does something that changes these entries at the store. Whatever came of it, nothing older is served here
    /// afterwards.
    pub(crate) async fn changing<T>(
        &self,
        names: &[&str],
        doing: impl Future<Output = T> + Send,
    ) -> T {
        self.first_forget(names.iter().copied());
        let done = doing.await;
        self.first_forget(names.iter().copied());
        done
    }

    /// What is here of these is not served any more.
    pub(crate) fn first_forget<'a>(&self, names: impl Iterator<Item = &'a str>) {
        if let Some(first) = self.first.get() {
            names.for_each(|name| first.changes().changed(name.as_bytes()));
        }
    }

    /// Nothing that is here is served any more.
    pub(crate) fn first_forget_all(&self) {
        if let Some(first) = self.first.get() {
            first.changes().forget_all();
        }
    }
}
