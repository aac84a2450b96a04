//! A store that answers when it is told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_cache::entry::{Begun, Filled, Invalidation, Millis, Settled, Ticket, Value};
use lockkeeper_cache::store::Result;
use lockkeeper_cache::{Memory, Seen, Store, StoreError, Watch};
use tokio::sync::watch;

/// In memory, and down when it is told so. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Breaking {
    memory: Memory,
    down: Arc<AtomicBool>,
    /// So many looks tell what they have seen; without a number all do.
    told: watch::Sender<Option<usize>>,
    looks: Arc<AtomicUsize>,
    others: Arc<AtomicUsize>,
}

impl Breaking {
    pub(crate) fn on(memory: Memory) -> Self {
        Self { memory, ..Self::default() }
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// So many looks, counted from the first ever, tell what they have seen. Later ones wait until this is called with more,
    /// or for all.
    pub(crate) fn tell(&self, looks: Option<usize>) {
        self.told.send_replace(looks);
    }

    /// How often somebody looked.
    pub(crate) fn looks(&self) -> usize {
        self.looks.load(Ordering::SeqCst)
    }

    /// How often it was asked for something else.
    pub(crate) fn others(&self) -> usize {
        self.others.load(Ordering::SeqCst)
    }

    /// Which one it is of those.
    fn answer(&self, count: &AtomicUsize) -> Result<usize> {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        match self.down.load(Ordering::SeqCst) {
            true => Err(StoreError::new("breaking", "told to be down")),
            false => Ok(number),
        }
    }
}

#[async_trait]
impl Store for Breaking {
    fn now(&self) -> Millis {
        self.memory.now()
    }

    async fn get(&self, keys: &[&str]) -> Result<Vec<Seen>> {
        let number = self.answer(&self.looks)?;
        let seen = self.memory.get(keys).await;
        let is_told = |told: &Option<usize>| told.is_none_or(|told| number <= told);
        let _ = self.told.subscribe().wait_for(is_told).await;
        seen
    }

    async fn begin(
        &self,
        key: &str,
        ticket: Ticket,
        lease: Duration,
        except: Option<Ticket>,
    ) -> Result<Begun> {
        self.answer(&self.others)?;
        self.memory.begin(key, ticket, lease, except).await
    }

    async fn fill(&self, key: &str, value: &Value, ttl: Duration) -> Result<Filled> {
        self.answer(&self.others)?;
        self.memory.fill(key, value, ttl).await
    }

    async fn put(&self, key: &str, value: &Value, ttl: Duration) -> Result<()> {
        self.answer(&self.others)?;
        self.memory.put(key, value, ttl).await
    }

    async fn give_up(&self, key: &str, ticket: Ticket) -> Result<()> {
        self.answer(&self.others)?;
        self.memory.give_up(key, ticket).await
    }

    async fn invalidate(&self, keys: &[&str], how: Invalidation) -> Result<()> {
        self.answer(&self.others)?;
        self.memory.invalidate(keys, how).await
    }

    async fn intend(&self, keys: &[&str], writer: Ticket, ttl: Duration) -> Result<()> {
        self.answer(&self.others)?;
        self.memory.intend(keys, writer, ttl).await
    }

    async fn settle(&self, keys: &[&str], writer: Ticket, how: Invalidation) -> Result<Settled> {
        self.answer(&self.others)?;
        self.memory.settle(keys, writer, how).await
    }

    async fn update(
        &self,
        updates: &[(&str, &Value, Duration)],
        how: Invalidation,
    ) -> Result<Vec<bool>> {
        self.answer(&self.others)?;
        self.memory.update(updates, how).await
    }

    /// Once and for all: what changes later is not told.
    fn follow(&self, _: &str, changes: &Arc<Watch>) -> bool {
        changes.caught_up(Watch::now());
        true
    }
}
