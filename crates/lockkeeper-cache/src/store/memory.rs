//! Entries inside this process.

mod deletes;
mod positions;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use indexmap::IndexMap;
use lockkeeper::clock::Instant;
use parking_lot::Mutex;

use super::{Cursor, Deletes, Page, Positions, Result, Seen, Store, millis};
use crate::entry::{
    self, Begun, Change, Entry, Filled, Invalidation, Millis, Settled, Slot, Ticket, Value,
};

const SHARDS: usize = 16;

/// So many are looked at to find one to forget.
const SAMPLE: usize = 8;

/// Entries inside this process, shared by all caches that are made with a clone of it.
///
/// # What it promises
///
/// The same as a server does, between the tasks of one process: it takes the same steps.
///
/// # When it breaks
///
/// It knows nothing of writes that other processes make. More than [`capacity`](Self::with_capacity) entries are not
/// kept: of a few that are picked at random, those that have ended go first, then the values that were not used for the
/// longest time.
///
/// # Cost
///
/// About the size of the value and its key, and 200 bytes. A step takes a lock that a sixteenth of the keys share.
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
}

struct Shared {
    shards: [Mutex<Shard>; SHARDS],
    /// The keys of each tag, and until when each is remembered.
    tags: Mutex<Sets>,
    hasher: RandomState,
    clock: Box<dyn Fn() -> Millis + Send + Sync>,
    queues: Mutex<HashMap<String, deletes::Queue>>,
    positions: Mutex<HashMap<String, positions::Record>>,
}

#[derive(Default)]
struct Sets {
    of: HashMap<String, Members>,
    /// How many there were when those without members were last removed.
    kept: usize,
}

#[derive(Default)]
struct Members {
    until: HashMap<Box<str>, Millis>,
    /// How many there were when those that had ended were last removed.
    kept: usize,
}

#[derive(Default)]
struct Shard {
    slots: IndexMap<Box<str>, Kept, RandomState>,
    capacity: usize,
    /// Counts uses.
    uses: u64,
}

struct Kept {
    slot: Slot,
    used: u64,
}

impl Memory {
    /// Keeps up to 100,000 entries.
    pub fn new() -> Self {
        Self::with_capacity(100_000)
    }

    /// Keeps about so many entries, at least one in each of 16 parts.
    pub fn with_capacity(capacity: usize) -> Self {
        Self::with_clock(capacity, || millis(Duration::from_nanos(Instant::now().as_nanos())))
    }

    /// The same by a clock of your own, in milliseconds, which must not go back. For tests.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    /// use std::sync::Arc;
    /// use lockkeeper_cache::{Memory, Store};
    /// let time = Arc::new(AtomicU64::new(7));
    /// let clock = Arc::clone(&time);
    /// let store = Memory::with_clock(100, move || clock.load(SeqCst));
    /// assert_eq!(store.now(), 7);
    /// ```
    pub fn with_clock(capacity: usize, clock: impl Fn() -> Millis + Send + Sync + 'static) -> Self {
        let capacity = capacity.div_ceil(SHARDS).max(1);
        let shard = |_| Mutex::new(Shard { capacity, ..Shard::default() });
        let shards = std::array::from_fn(shard);
        let (hasher, clock) = (RandomState::new(), Box::new(clock));
        let (tags, queues, positions) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { shared: Arc::new(Shared { shards, tags, hasher, clock, queues, positions }) }
    }

    /// How many entries there are, ended ones included.
    pub fn len(&self) -> usize {
        self.shared.shards.iter().map(|shard| shard.lock().slots.len()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything: leases and intents, deletes that are to come, and how far followers have come, included. Nothing that is under way is filled afterwards.
    pub fn clear(&self) {
        self.shared.positions.lock().clear();
        self.shared.queues.lock().clear();
        self.shared.shards.iter().for_each(|shard| shard.lock().slots.clear());
        // Not earlier: what is tagged and not there is harmless.
        *self.shared.tags.lock() = Sets::default();
    }

    fn shard(&self, key: &str) -> &Mutex<Shard> {
        let hash = self.shared.hasher.hash_one(key);
        &self.shared.shards[usize::from(hash.to_be_bytes()[0]) % SHARDS]
    }

    /// Takes a step on one key.
    fn step<T>(&self, key: &str, step: impl FnOnce(Option<&Slot>, Millis) -> (Change, T)) -> T {
        let mut shard = self.shard(key).lock();
        // Asked for inside the lock, so that no step is taken at an earlier time than the one before it.
        let now = (self.shared.clock)();
        let (change, answer) = step(shard.slots.get(key).map(|kept| &kept.slot), now);
        match change {
            Change::Keep => {}
            Change::Remove => {
                shard.slots.swap_remove(key);
            }
            Change::Put(slot) => {
                let random = self.shared.hasher.hash_one(shard.uses);
                shard.put(key, slot, now, random);
            }
        }
        answer
    }
}

impl Shard {
    fn put(&mut self, key: &str, slot: Slot, now: Millis, random: u64) {
        self.uses += 1;
        let kept = Kept { slot, used: self.uses };
        if let Some(there) = self.slots.get_mut(key) {
            *there = kept;
            return;
        }
        if self.slots.len() >= self.capacity {
            self.forget_one(now, random);
        }
        self.slots.insert(key.into(), kept);
    }

    /// Forgets the least useful one of a few.
    fn forget_one(&mut self, now: Millis, random: u64) {
        let count = self.slots.len();
        let first = usize::try_from(random % (count as u64)).unwrap_or(0);
        let worth = |at: usize| {
            let (_, Kept { slot, used }) = self.slots.get_index(at)?;
            let kind = match slot.entry {
                _ if slot.expires <= now => 0,
                Entry::Value(_) => 1,
                Entry::Gap(_) => 2,
                Entry::Intents(_) => 3,
            };
            Some((kind, *used, at))
        };
        // Far apart: neighbours came at the same time.
        let stride = (count / SAMPLE).max(1);
        let sample = (0..SAMPLE.min(count)).map(|step| (first + step * stride) % count);
        if let Some((_, _, at)) = sample.filter_map(worth).min() {
            self.slots.swap_remove_index(at);
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.len()).finish()
    }
}

#[async_trait]
impl Store for Memory {
    fn now(&self) -> Millis {
        (self.shared.clock)()
    }

    async fn get(&self, keys: &[&str]) -> Result<Vec<Seen>> {
        let look = |key: &&str| {
            let mut shard = self.shard(key).lock();
            let now = (self.shared.clock)();
            let Shard { slots, uses, .. } = &mut *shard;
            match slots.get_mut(*key).filter(|kept| kept.slot.expires > now) {
                Some(kept) => {
                    *uses += 1;
                    kept.used = *uses;
                    Seen::Entry(kept.slot.entry.clone())
                }
                None => Seen::Nothing,
            }
        };
        Ok(keys.iter().map(look).collect())
    }

    async fn begin(
        &self,
        key: &str,
        ticket: Ticket,
        lease: Duration,
        except: Option<Ticket>,
    ) -> Result<Begun> {
        Ok(self.step(key, |slot, now| entry::begin(slot, now, ticket, millis(lease), except)))
    }

    async fn fill(&self, key: &str, value: &Value, ttl: Duration) -> Result<Filled> {
        Ok(self.step(key, |slot, now| entry::fill(slot, now, value, millis(ttl))))
    }

    async fn put(&self, key: &str, value: &Value, ttl: Duration) -> Result<()> {
        self.step(key, |_, now| (entry::set(now, value, millis(ttl)), ()));
        Ok(())
    }

    async fn give_up(&self, key: &str, ticket: Ticket) -> Result<()> {
        self.step(key, |slot, now| (entry::give_up(slot, now, ticket), ()));
        Ok(())
    }

    async fn invalidate(&self, keys: &[&str], how: Invalidation) -> Result<()> {
        for key in keys {
            self.step(key, |slot, now| (entry::invalidate(slot, now, how), ()));
        }
        Ok(())
    }

    async fn intend(&self, keys: &[&str], writer: Ticket, ttl: Duration) -> Result<()> {
        for key in keys {
            self.step(key, |slot, now| (entry::intend(slot, now, writer, millis(ttl)), ()));
        }
        Ok(())
    }

    async fn settle(&self, keys: &[&str], writer: Ticket, how: Invalidation) -> Result<Settled> {
        let mut all = Settled::Held;
        for key in keys {
            let settled = self.step(key, |slot, now| entry::settle(slot, now, writer, how));
            all = if settled == Settled::Held { all } else { settled };
        }
        Ok(all)
    }

    fn deletes(&self) -> Option<&dyn Deletes> {
        Some(self)
    }

    fn positions(&self) -> Option<&dyn Positions> {
        Some(self)
    }

    async fn update(
        &self,
        updates: &[(&str, &Value, Duration)],
        how: Invalidation,
    ) -> Result<Vec<bool>> {
        let each = updates.iter().map(|(key, value, ttl)| {
            self.step(key, |slot, now| entry::update(slot, now, value, millis(*ttl), how))
        });
        Ok(each.collect())
    }

    async fn list(&self, prefix: &str, from: Cursor) -> Result<Page> {
        let at = usize::try_from(from.at).unwrap_or(SHARDS);
        let Some(shard) = self.shared.shards.get(at) else { return Ok(Page::default()) };
        let shard = shard.lock();
        let keys = shard.slots.keys().filter(|key| key.starts_with(prefix));
        let keys = keys.map(|key| key.to_string()).collect();
        let next = (at + 1 < SHARDS).then(|| Cursor { at: from.at + 1, ..from });
        Ok(Page { keys, next })
    }

    async fn tag(&self, key: &str, tags: &[&str], time: Duration) -> Result<()> {
        let mut sets = self.shared.tags.lock();
        let now = (self.shared.clock)();
        for tag in tags {
            let set = sets.of.entry((*tag).to_owned()).or_default();
            let until = set.until.entry(key.into()).or_default();
            *until = (*until).max(now + millis(time));
            // Now and then: each addition pays for a look at two.
            if set.until.len() > 2 * set.kept + SAMPLE {
                set.until.retain(|_, until| *until > now);
                set.kept = set.until.len();
            }
        }
        if sets.of.len() > 2 * sets.kept + SAMPLE {
            sets.of.retain(|_, set| set.until.values().any(|until| *until > now));
            sets.kept = sets.of.len();
        }
        Ok(())
    }

    async fn tagged(&self, tag: &str, _: Cursor) -> Result<Page> {
        let sets = self.shared.tags.lock();
        let keys =
            sets.of.get(tag).map(|set| set.until.keys().map(|key| key.to_string()).collect());
        Ok(Page { keys: keys.unwrap_or_default(), next: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_used_is_forgotten_first() {
        let store = Memory::with_capacity(1600);
        let lease = Duration::from_secs(60);
        let fill = async |key: String| {
            let ticket = Ticket::new();
            store.begin(&key, ticket, lease, None).await.unwrap();
            let (nobody, soft, payload) = (entry::Lease::NONE, u64::MAX, None);
            let (version, made, cost, schema) = (0, 0, 0, 0);
            let value =
                Value { lease: nobody, fill: ticket, version, made, soft, cost, schema, payload };
            assert_eq!(store.fill(&key, &value, lease).await.unwrap(), Filled::Done);
        };
        fill("hot".into()).await;
        store.intend(&["written"], Ticket::new(), lease).await.unwrap();
        for number in 0..20_000 {
            fill(number.to_string()).await;
            store.get(&["hot"]).await.unwrap();
        }
        assert!(store.len() <= 1600, "{}", store.len());
        let kept = store.get(&["hot", "written"]).await.unwrap();
        assert!(kept.iter().all(|seen| *seen != Seen::Nothing), "{kept:?}");
    }

    #[tokio::test]
    async fn tags_of_keys_that_have_ended_are_forgotten() {
        let time = Arc::new(std::sync::atomic::AtomicU64::new(1));
        let clock = Arc::clone(&time);
        let store =
            Memory::with_clock(100, move || clock.load(std::sync::atomic::Ordering::SeqCst));
        let ms = Duration::from_millis(1);
        store.tag("long", &["lasts"], 5000 * ms).await.unwrap();
        for number in 0..2000_u64 {
            time.store(number, std::sync::atomic::Ordering::SeqCst);
            store.tag("key", &[&number.to_string()], 10 * ms).await.unwrap();
        }
        let sets = store.shared.tags.lock().of.len();
        assert!(sets < 100, "{sets}");
        assert_eq!(store.tagged("lasts", Cursor::default()).await.unwrap().keys, ["long"]);
    }
}
