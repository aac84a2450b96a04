//! One key, when its turn has come.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Instant;
use tokio::time::{sleep, timeout};

use super::Picked;
use crate::cache::{Inner, Read};
use crate::entry::{Entry, Value};
use crate::events::Event;
use crate::loader::Loaded;
use crate::store::{self, Seen};

/// So often a key that the first level serves tries to have another turn.
const TRIES: usize = 8;

/// What the store has of a key.
enum Stored {
    Value(Value),
    Nothing,
    /// Nothing to go by: it does not answer, or what it has waits for the database, or is of another schema.
    Unsaid,
}

impl Stored {
    fn value(self) -> Option<Value> {
        if let Self::Value(value) = self { Some(value) } else { None }
    }
}

impl<K, V> Inner<K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    pub(super) async fn audit_one(self: &Arc<Self>, picked: Picked<K>, delay: Duration) {
        sleep(delay.saturating_sub(Instant::now().since(picked.at))).await;
        self.compare(&picked, delay).await;
        for _ in 0..TRIES {
            if self.first_copy(&picked.key).is_none() {
                break;
            }
            if self.audits.again(&picked) {
                return;
            }
            // At some time, so that the others get their turns as well, and hits at the store.
            sleep(delay.mul_f64(fastrand::f64())).await;
        }
        self.audits.is_over(&picked.name);
    }

    async fn compare(self: &Arc<Self>, Picked { key, name, .. }: &Picked<K>, delay: Duration) {
        let copy = self.first_copy(key);
        let cached = self.stored(name).await.value();
        if cached.is_none() && copy.is_none() {
            return self.stats.audit_gone.add();
        }
        // Refused or failed: another time.
        let Ok(Ok(loaded)) = timeout(self.settings.timeout, self.load(key, None)).await else {
            return;
        };
        self.stats.audited.add();
        let cached = cached
            .filter(|cached| self.differs(cached.version, cached.payload.as_deref(), &loaded));
        let copy = copy.filter(|copy| self.copy_differs(copy, &loaded));
        if cached.is_none() && copy.is_none() {
            return;
        }
        sleep(delay).await;
        if let (Some(cached), Some(now)) = (cached, self.stored(name).await.value())
            && now.fill == cached.fill
        {
            // If it fails it will be found again. The first level forgets it as well.
            let _ = self.invalidate(std::slice::from_ref(key), loaded.version).await;
            self.stats.audit_stale.add();
            self.note(name, Event::AuditStale);
            tracing::warn!(
                key = %name.escape_debug(), cached = cached.version, database = loaded.version,
                "a stale value was cached, and is invalidated"
            );
        } else if let Some(copy) = copy {
            self.judge_copy(key, name, &copy, &loaded).await;
        }
    }

    /// A copy in the first level that was old before the delay.
    async fn judge_copy(self: &Arc<Self>, key: &K, name: &str, copy: &Read<V>, loaded: &Loaded<V>) {
        sleep(self.first_bound()).await;
        // Of the same load: whether it is the same copy does not matter.
        let now = self.first_copy(key);
        let same = now.is_some_and(|now| (now.made, now.version) == (copy.made, copy.version));
        let kept = match self.stored(name).await {
            // The first level is right to have what the store has.
            Stored::Value(there) => (there.made, there.version) == (copy.made, copy.version),
            Stored::Nothing => false,
            Stored::Unsaid => true,
        };
        if !same || kept {
            return;
        }
        self.first_drop(key);
        self.stats.audit_first_stale.add();
        self.note(name, Event::AuditStale);
        tracing::warn!(
            key = %name.escape_debug(), cached = copy.version, database = loaded.version,
            "the first level had a stale value, and forgets it"
        );
    }

    async fn stored(self: &Arc<Self>, name: &str) -> Stored {
        match self.look(name).await {
            // What waits for the database is not what it has, and not stale.
            Ok(Seen::Entry(Entry::Value(value)))
                if value.schema == self.settings.schema && value.version != store::PENDING =>
            {
                Stored::Value(value)
            }
            Ok(Seen::Nothing | Seen::Entry(Entry::Gap(_) | Entry::Intents(_))) => Stored::Nothing,
            _ => Stored::Unsaid,
        }
    }

    /// Whether the database has something newer than that.
    fn differs(&self, version: u64, payload: Option<&[u8]>, loaded: &Loaded<V>) -> bool {
        if version != 0 && loaded.version != 0 {
            return loaded.version > version;
        }
        match (&loaded.value, payload) {
            (None, None) => false,
            (Some(_), None) | (None, Some(_)) => true,
            (Some(value), Some(cached)) => {
                self.codec.encode(value).is_ok_and(|bytes| bytes[..] != *cached)
            }
        }
    }

    fn copy_differs(&self, copy: &Read<V>, loaded: &Loaded<V>) -> bool {
        match copy.value.as_deref().map(|value| self.codec.encode(value)).transpose() {
            Ok(payload) => self.differs(copy.version, payload.as_deref(), loaded),
            Err(_) => false,
        }
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use testkit::server;
    use testkit::wait::eventually;

    use super::*;
    use crate::{Cache, Error, FirstLevel, Redis};

    #[tokio::test]
    async fn a_copy_of_what_the_store_has_is_not_held_against_the_first_level() {
        let loader = async |_: u8| Ok::<_, Error>(Loaded::found(1_u8).version(1));
        let server = server::redis(&[]).await;
        let store = Redis::connect(&format!("redis://{}", server.address())).await.unwrap();
        let cache = Cache::builder(store).namespace("cache").build(loader).unwrap();
        let cache = cache.with_first_level(FirstLevel::new(10)).unwrap();
        let warm = async || cache.get(&1).await.is_ok() && cache.inner.first_copy(&1).is_some();
        eventually("there is a copy", warm).await;
        let (copy, loaded) = (cache.inner.first_copy(&1).unwrap(), Loaded::found(2).version(2));
        cache.idle().await;
        cache.inner.judge_copy(&1, "cache:1", &copy, &loaded).await;
        assert_eq!(cache.stats().audit_first_stale, 0);
        assert!(cache.inner.first_copy(&1).is_some());
    }
}
