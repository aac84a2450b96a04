//! A Redis whose messages are lost: whoever follows it is told that all is known, and never what has changed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_cache::entry::{Begun, Filled, Invalidation, Millis, Settled, Ticket, Value};
use lockkeeper_cache::store::Result;
use lockkeeper_cache::{Redis, Seen, Store, Watch};
use parking_lot::Mutex;
use tokio::time::sleep;

#[derive(Debug)]
pub(crate) struct Unheard {
    pub(crate) redis: Redis,
    /// Who follows: what is lost may be told by hand.
    pub(crate) followers: Arc<Mutex<Vec<Arc<Watch>>>>,
}

#[async_trait]
impl Store for Unheard {
    fn now(&self) -> Millis {
        self.redis.now()
    }

    async fn get(&self, keys: &[&str]) -> Result<Vec<Seen>> {
        self.redis.get(keys).await
    }

    async fn begin(
        &self,
        key: &str,
        ticket: Ticket,
        lease: Duration,
        except: Option<Ticket>,
    ) -> Result<Begun> {
        self.redis.begin(key, ticket, lease, except).await
    }

    async fn fill(&self, key: &str, value: &Value, ttl: Duration) -> Result<Filled> {
        self.redis.fill(key, value, ttl).await
    }

    async fn put(&self, key: &str, value: &Value, ttl: Duration) -> Result<()> {
        self.redis.put(key, value, ttl).await
    }

    async fn give_up(&self, key: &str, ticket: Ticket) -> Result<()> {
        self.redis.give_up(key, ticket).await
    }

    async fn invalidate(&self, keys: &[&str], how: Invalidation) -> Result<()> {
        self.redis.invalidate(keys, how).await
    }

    async fn intend(&self, keys: &[&str], writer: Ticket, ttl: Duration) -> Result<()> {
        self.redis.intend(keys, writer, ttl).await
    }

    async fn settle(&self, keys: &[&str], writer: Ticket, how: Invalidation) -> Result<Settled> {
        self.redis.settle(keys, writer, how).await
    }

    fn follow(&self, _: &str, changes: &Arc<Watch>) -> bool {
        self.followers.lock().push(Arc::clone(changes));
        let changes = Arc::downgrade(changes);
        tokio::spawn(async move {
            while let Some(changes) = changes.upgrade() {
                changes.caught_up(Watch::now());
                let pause = changes.interval();
                drop(changes);
                sleep(pause).await;
            }
        });
        true
    }
}
