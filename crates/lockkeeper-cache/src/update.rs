//! What is cached, replaced by what a writer has at hand.

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{join, join_all};
use indexmap::IndexMap;

use crate::cache::{Cache, Inner, refs};
use crate::entry::{Lease, Ticket, Value};
use crate::error::{Error, Result};
use crate::loader::Loaded;
use crate::store::millis;

impl<K, V> Cache<K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Writers have committed these values, in these versions: what is cached of an earlier version is replaced, in one round
    /// trip for all. For each key, whether the cache has it now in this version. To be called like
    /// [`invalidate`](Self::invalidate), and promises as much: afterwards no read that begins gets an earlier version.
    ///
    /// It never fills a key that has no value: the store may have forgotten that a later version was committed,
    /// and a writer that is late would put its own there for good. Such a key is invalidated to this version, and the
    /// next read loads it. So it is with a value whose version is not known, or that a newer program wrote.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a value without a [version](Loaded::version), and then nothing was done; else as for
    /// [`invalidate`](Self::invalidate), with the same remedy.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), lockkeeper_cache::Error> {
    /// # use lockkeeper_cache::{Cache, Error, Loaded, Memory};
    /// # let names = Cache::builder(Memory::new())
    /// #     .namespace("name")
    /// #     .build(async |id: u64| {
    /// #     Ok::<_, Error>(Loaded::found(format!("user {id}")).version(1))
    /// # })?;
    /// names.get(&7).await?;
    /// // UPDATE users SET name = 'Ada' WHERE id IN (7, 8) RETURNING id, version
    /// let rows = [7, 8].map(|id| (id, Loaded::found("Ada".to_owned()).version(2)));
    /// assert_eq!(names.set_many(&rows).await?, [true, false]);
    /// assert_eq!(names.get(&7).await?.as_deref(), Some(&"Ada".to_owned()));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_many(&self, values: &[(K, Loaded<V>)]) -> Result<Vec<bool>> {
        if values.iter().any(|(_, loaded)| loaded.version == 0) {
            return Err(Error::Config("a value that is set needs a version from 1 on".into()));
        }
        let named = values.iter().map(|(key, loaded)| Ok((self.inner.name(key)?, loaded)));
        let named: Vec<(String, &Loaded<V>)> = named.collect::<Result<_>>()?;
        // They live on, so their tags must know them for longer.
        let tagging =
            values.iter().zip(&named).map(|((key, _), (name, _))| self.inner.tag(key, name));
        let tagged: Vec<bool> =
            join_all(tagging).await.iter().map(std::result::Result::is_ok).collect();
        self.inner.set_many(&named, &tagged).await
    }
}

impl<K, V> Inner<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    async fn set_many(
        self: &Arc<Self>,
        named: &[(String, &Loaded<V>)],
        tagged: &[bool],
    ) -> Result<Vec<bool>> {
        let mut fit = Vec::with_capacity(named.len());
        let mut unfit = IndexMap::<u64, Vec<String>>::new();
        for (at, (name, loaded)) in named.iter().enumerate() {
            match self.encode(loaded.value.as_ref()).filter(|_| tagged[at]) {
                Some(payload) => {
                    fit.push(Fit { at, name, value: self.value_of(payload, loaded.version) });
                }
                None => unfit.entry(loaded.version).or_default().push(name.clone()),
            }
        }
        let invalidating =
            unfit.iter().map(|(version, names)| self.invalidate_names(names, *version));
        let mut stored = vec![false; named.len()];
        let (replaced, invalidated) =
            join(self.replace(&fit, &mut stored), join_all(invalidating)).await;
        invalidated.into_iter().collect::<Result<()>>()?;
        replaced.map(|()| stored)
    }

    /// Puts these in the place of what is there; writes down for which it did.
    async fn replace(self: &Arc<Self>, fit: &[Fit<'_>], stored: &mut [bool]) -> Result<()> {
        if fit.is_empty() {
            return Ok(());
        }
        let updates = fit.iter().map(|Fit { name, value, .. }| {
            (*name, value, self.lifetime(value.payload.is_none(), value.fill))
        });
        let updates: Vec<_> = updates.collect();
        let names: Vec<String> = fit.iter().map(|fit| fit.name.to_owned()).collect();
        let update = || self.store.update(&updates, self.how(0));
        let updating = async {
            let update = self.insist("an update", update);
            self.changing(&refs(&names), update).await.inspect_err(|_| {
                for (name, fit) in names.iter().zip(fit) {
                    self.owe(std::slice::from_ref(name), fit.value.version);
                }
            })
        };
        let (updated, announced) = join(updating, self.announce_again(&names)).await;
        for (fit, answer) in fit.iter().zip(updated?) {
            stored[fit.at] = answer;
            self.stats.invalidations.add();
        }
        announced
    }

    fn value_of(&self, payload: Option<Bytes>, version: u64) -> Value {
        let now = self.store.now();
        let (lease, fill, schema) = (Lease::NONE, Ticket::new(), self.settings.schema);
        let soft = self
            .settings
            .refresh_after
            .map_or(u64::MAX, |after| now + millis(self.guards.shorten(after, fill)));
        // When it was loaded, and how long that took, is known of what it replaces.
        Value { lease, fill, version, made: 0, soft, cost: 0, schema, payload }
    }
}

/// A value that can be put into the place of another, and where it was in the list.
struct Fit<'a> {
    at: usize,
    name: &'a str,
    value: Value,
}
