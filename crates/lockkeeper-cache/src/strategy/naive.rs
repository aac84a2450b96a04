//! Cache-aside as it is usually written: `GET`, else load and `SET`; `DEL`. Nothing guards the set.

use std::sync::Arc;

use crate::cache::{Inner, Read, Source};
use crate::entry::{Entry, Invalidation, Lease, Ticket, Value};
use crate::error::Result;
use crate::load::Decoded;
use crate::store::{self, Seen};

/// A delete that leaves nothing behind.
pub(super) const DELETE: Invalidation = Invalidation { floor: 0, floor_ms: 0, keep_ms: 0 };

impl<K, V> Inner<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// What is there, if that will do: not while a delete is owed. While the store does not answer, what
    /// [`Down`](crate::Down) says.
    pub(super) async fn plain_get(
        self: &Arc<Self>,
        key: &K,
        name: &str,
    ) -> Result<Option<Read<V>>> {
        if self.debt.has(name) {
            return Ok(None);
        }
        let value = match self.look(name).await {
            Ok(Seen::Entry(Entry::Value(value))) => value,
            Ok(Seen::Down) | Err(_) => return self.down(key, name).await.map(Some),
            Ok(_) => return Ok(None),
        };
        let Decoded::Read(read) = self.decode(name, &value) else { return Ok(None) };
        self.stats.hits.add();
        if read.value.is_none() {
            self.stats.null_hits.add();
        }
        self.guards.hot.hit(name);
        self.audits.sample(key, name, read.source);
        Ok(Some(read))
    }

    /// From the database, to be set then, unless the filter knows that there is nothing.
    pub(super) async fn plain_load(&self, key: &K, name: &str) -> Result<Read<V>> {
        self.stats.misses.add();
        if let Some(nothing) = self.absent(name).await {
            return Ok(nothing);
        }
        let made = self.store.now();
        let loaded = self.load(key, None).await?;
        let (value, version) = (loaded.value.map(Arc::new), loaded.version);
        Ok(Read { value, version, made, source: Source::Loaded })
    }

    /// Sets, whatever is there. Whether that was done; a value that is unfit is not set, nor one that its tags would not
    /// find, or that came from the filter.
    pub(super) async fn plain_set(
        self: &Arc<Self>,
        key: &K,
        name: &str,
        read: &Read<V>,
    ) -> store::Result<bool> {
        let Some(payload) = self.encode(read.value.as_deref()) else { return Ok(false) };
        if read.source == Source::Filter || self.tag(key, name).await.is_err() {
            return Ok(false);
        }
        let (lease, fill, schema) = (Lease::NONE, Ticket::new(), self.settings.schema);
        let ttl = self.lifetime(payload.is_none(), fill);
        let Read { version, made, .. } = *read;
        let value = Value { lease, fill, version, made, soft: u64::MAX, cost: 0, schema, payload };
        let set = self.changing(&[name], self.store.put(name, &value, ttl)).await;
        set.inspect_err(|error| self.store_failed("setting", error))?;
        self.stats.fills.add();
        Ok(true)
    }

    /// Deletes, as often as it takes; what cannot be deleted in time is owed.
    pub(super) async fn plain_delete(self: &Arc<Self>, name: &str) -> Result<()> {
        let names = [name];
        let deleting = self.insist("a delete", || self.store.invalidate(&names, DELETE));
        self.changing_or_owe(&[name.to_owned()], 0, deleting).await?;
        self.stats.invalidations.add();
        Ok(())
    }

    /// `GET`, else load and `SET`.
    pub(super) async fn plain_read(self: &Arc<Self>, key: &K, name: &str) -> Result<Read<V>> {
        self.in_time(async {
            if let Some(read) = self.plain_get(key, name).await? {
                return Ok(read);
            }
            let read = self.plain_load(key, name).await?;
            // Else the next one loads too.
            let _ = self.plain_set(key, name, &read).await;
            Ok(read)
        })
        .await
    }
}
