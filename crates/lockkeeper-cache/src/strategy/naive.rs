//! Cache-aside as it is usually written: `GET`, else load and `SET`; `DEL`. Nothing guards the set.

use std::sync::Arc;

use crate::cache::{Inner, Read, Source};
use crate::entry::{Entry, Invalidation, Lease, Ticket, Value};
use crate::error::Result;
use crate::load::Decoded;
use crate::store::Seen;

/// A delete that leaves nothing behind.
pub(super) const DELETE: Invalidation = Invalidation { floor: 0, floor_ms: 0, keep_ms: 0 };

impl<K, V> Inner<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// What is there, if that will do.
    pub(super) async fn plain_get(&self, name: &str) -> Option<Read<V>> {
        let Ok(Seen::Entry(Entry::Value(value))) = self.look(name).await else { return None };
        let Decoded::Read(read) = self.decode(&value) else { return None };
        self.stats.hits.add();
        if read.value.is_none() {
            self.stats.null_hits.add();
        }
        Some(read)
    }

    /// From the database, to be set then.
    pub(super) async fn plain_load(&self, key: &K) -> Result<Read<V>> {
        self.stats.misses.add();
        let made = self.store.now();
        let loaded = self.load(key, None).await?;
        let (value, version) = (loaded.value.map(Arc::new), loaded.version);
        Ok(Read { value, version, made, source: Source::Loaded })
    }

    /// Sets, whatever is there. Whether that was done; a value that is unfit is not set.
    pub(super) async fn plain_set(&self, name: &str, read: &Read<V>) -> crate::store::Result<bool> {
        let Some(payload) = self.encode(read.value.as_deref()) else { return Ok(false) };
        let ttl = if payload.is_some() { self.settings.ttl } else { self.settings.null_ttl };
        let (lease, fill, schema) = (Lease::NONE, Ticket::new(), self.settings.schema);
        let Read { version, made, .. } = *read;
        let value = Value { lease, fill, version, made, soft: u64::MAX, cost: 0, schema, payload };
        let set = self.changing(&[name], self.store.put(name, &value, ttl)).await;
        set.inspect_err(|error| self.store_failed("setting", error))?;
        self.stats.fills.add();
        Ok(true)
    }

    /// Deletes, as often as it takes.
    pub(super) async fn plain_delete(&self, name: &str) -> Result<()> {
        let names = [name];
        let deleting = self.insist("a delete", || self.store.invalidate(&names, DELETE));
        self.changing(&names, deleting).await?;
        self.stats.invalidations.add();
        Ok(())
    }

    /// `GET`, else load and `SET`.
    pub(super) async fn plain_read(&self, key: &K, name: &str) -> Result<Read<V>> {
        self.in_time(async {
            if let Some(read) = self.plain_get(name).await {
                return Ok(read);
            }
            let read = self.plain_load(key).await?;
            // Else the next one loads too.
            let _ = self.plain_set(name, &read).await;
            Ok(read)
        })
        .await
    }
}
