//! The first level before a store that tells of nothing: what the process does itself it must not need to be told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_cache::entry::{Begun, Filled, Invalidation, Millis, Settled, Ticket, Value};
use lockkeeper_cache::store::{Cursor, Page, Result};
use lockkeeper_cache::{
    BoxError, Cache, Codec, Error, FirstLevel, Freshness, Json, Loaded, Memory, Seen, Source,
    Store, StoreError, Watch,
};
use testkit::wait::soon;
use tokio::sync::Semaphore;

use crate::harness::Database;

/// Says that all is known, once and for all. Changes stop in front of it while the barrier is taken.
#[derive(Debug)]
struct Deaf(Memory, Arc<Barrier>);

#[derive(Debug)]
struct Barrier {
    reached: Semaphore,
    open: Semaphore,
    broken: AtomicBool,
}

impl Barrier {
    fn new() -> Arc<Self> {
        let (reached, open) = (Semaphore::new(0), Semaphore::new(1));
        Arc::new(Self { reached, open, broken: AtomicBool::new(false) })
    }

    async fn pass(&self) {
        self.reached.add_permits(1);
        let _passed = self.open.acquire().await.unwrap();
    }
}

#[async_trait]
impl Store for Deaf {
    fn now(&self) -> Millis {
        self.0.now()
    }

    async fn get(&self, keys: &[&str]) -> Result<Vec<Seen>> {
        self.0.get(keys).await
    }

    async fn begin(
        &self,
        key: &str,
        ticket: Ticket,
        lease: Duration,
        except: Option<Ticket>,
    ) -> Result<Begun> {
        self.0.begin(key, ticket, lease, except).await
    }

    async fn fill(&self, key: &str, value: &Value, ttl: Duration) -> Result<Filled> {
        self.0.fill(key, value, ttl).await
    }

    async fn put(&self, key: &str, value: &Value, ttl: Duration) -> Result<()> {
        self.0.put(key, value, ttl).await
    }

    async fn give_up(&self, key: &str, ticket: Ticket) -> Result<()> {
        self.0.give_up(key, ticket).await
    }

    async fn invalidate(&self, keys: &[&str], how: Invalidation) -> Result<()> {
        self.1.pass().await;
        self.0.invalidate(keys, how).await
    }

    async fn intend(&self, keys: &[&str], writer: Ticket, ttl: Duration) -> Result<()> {
        self.1.pass().await;
        self.0.intend(keys, writer, ttl).await
    }

    async fn settle(&self, keys: &[&str], writer: Ticket, how: Invalidation) -> Result<Settled> {
        self.0.settle(keys, writer, how).await
    }

    async fn update(
        &self,
        updates: &[(&str, &Value, Duration)],
        how: Invalidation,
    ) -> Result<Vec<bool>> {
        self.0.update(updates, how).await
    }

    async fn list(&self, prefix: &str, from: Cursor) -> Result<Page> {
        if self.1.broken.load(Ordering::SeqCst) {
            return Err(StoreError::new("test", "no answer"));
        }
        self.0.list(prefix, from).await
    }

    fn follow(&self, _: &str, changes: &Arc<Watch>) -> bool {
        changes.caught_up(Watch::now());
        true
    }
}

/// Stops a read between the answer of the store and the first level, when it is told to.
#[derive(Clone)]
struct Gate {
    shut: Arc<AtomicBool>,
    reached: Sender<()>,
    open: Arc<Mutex<Receiver<()>>>,
}

impl Codec<u64> for Gate {
    fn encode(&self, value: &u64) -> std::result::Result<Vec<u8>, BoxError> {
        Json.encode(value)
    }

    fn decode(&self, bytes: &[u8]) -> std::result::Result<u64, BoxError> {
        if self.shut.swap(false, Ordering::SeqCst) {
            self.reached.send(())?;
            self.open.lock().unwrap().recv()?;
        }
        Json.decode(bytes)
    }
}

fn build(
    codec: impl Codec<u64> + 'static,
    database: &Database,
    barrier: &Arc<Barrier>,
) -> Cache<u32, u64> {
    build_at(Memory::new(), codec, database, barrier)
}

fn build_at(
    memory: Memory,
    codec: impl Codec<u64> + 'static,
    database: &Database,
    barrier: &Arc<Barrier>,
) -> Cache<u32, u64> {
    let database = database.clone();
    let loader = move |_: u32| {
        let read = database.read();
        async move { Ok::<_, Error>(Loaded::found(read).version(read)) }
    };
    let level = FirstLevel::new(10).bound(Duration::from_secs(3600));
    let builder = Cache::builder(Deaf(memory, Arc::clone(barrier))).namespace("cache");
    let builder = builder.timeout(Duration::from_millis(500));
    builder.build_with(codec, loader).unwrap().with_first_level(level).unwrap()
}

async fn read(cache: &Cache<u32, u64>) -> (u64, Source) {
    let read = cache.read(&1, Freshness::Any).await.unwrap();
    (*read.value.unwrap(), read.source)
}

/// Loaded, found at the store, found here.
async fn three_reads(cache: &Cache<u32, u64>, value: u64) {
    for source in [Source::Loaded, Source::Hit, Source::First] {
        assert_eq!(read(cache).await, (value, source));
    }
}

#[tokio::test]
async fn what_this_process_changes_it_does_not_serve() {
    let database = Database::new();
    let cache = build(Json, &database, &Barrier::new());
    three_reads(&cache, 1).await;
    database.commit();
    cache.invalidate(&[1]).await.unwrap();
    three_reads(&cache, 2).await;
    let write = cache.intend(&[1]).await.unwrap();
    assert_eq!(read(&cache).await, (2, Source::Loaded));
    database.commit();
    assert_eq!(read(&cache).await, (3, Source::Loaded), "nothing is kept while somebody writes");
    write.settle(None).await.unwrap();
    three_reads(&cache, 3).await;
}

#[tokio::test]
async fn what_this_process_sets_or_clears_it_does_not_serve() {
    let (database, barrier, memory) = (Database::new(), Barrier::new(), Memory::new());
    let cache = build_at(memory.clone(), Json, &database, &barrier);
    three_reads(&cache, 1).await;
    database.commit();
    let set = [(1, Loaded::found(2).version(2))];
    assert_eq!(cache.set_many(&set).await.unwrap(), [true]);
    for source in [Source::Hit, Source::First] {
        assert_eq!(read(&cache).await, (2, source));
    }
    // Somebody else has taken it away, and the message has not come yet.
    memory.clear();
    database.commit();
    assert_eq!(cache.clear().await.unwrap(), 0);
    three_reads(&cache, 3).await;
    // What cannot be cleared is not served here either.
    barrier.broken.store(true, Ordering::SeqCst);
    database.commit();
    assert!(cache.clear().await.is_err());
    assert_eq!(read(&cache).await, (4, Source::Loaded));
    barrier.broken.store(false, Ordering::SeqCst);
    soon("made up for", async {
        while cache.debt().is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    three_reads(&cache, 4).await;
}

/// What is found at the store before the change gets there is served until then, and not afterwards.
#[tokio::test]
async fn what_is_found_while_it_is_being_changed_is_not_kept() {
    let (database, barrier) = (Database::new(), Barrier::new());
    let cache = build(Json, &database, &barrier);
    for intend in [false, true] {
        let old = database.read();
        assert_eq!(read(&cache).await, (old, Source::Loaded));
        let shut = barrier.open.acquire().await.unwrap();
        barrier.reached.forget_permits(usize::MAX);
        let writer = cache.clone();
        let changing = tokio::spawn(async move {
            match intend {
                true => drop(writer.intend(&[1]).await.unwrap()),
                false => writer.invalidate(&[1]).await.unwrap(),
            }
        });
        soon("it is about to be changed", barrier.reached.acquire()).await.unwrap().forget();
        assert_eq!(read(&cache).await, (old, Source::Hit));
        assert_eq!(read(&cache).await, (old, Source::First));
        drop(shut);
        soon("changed", changing).await.unwrap();
        database.commit();
        assert_eq!(read(&cache).await, (old + 1, Source::Loaded));
        cache.invalidate(&[1]).await.unwrap();
    }
}

/// R13 in one process: the value that was there is on its way to the first level when it is invalidated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_on_its_way_when_it_is_invalidated_does_not_arrive() {
    let database = Database::new();
    let (reached, at_the_gate) = channel();
    let (go, open) = channel();
    let shut = Arc::new(AtomicBool::new(false));
    let gate = Gate { shut: Arc::clone(&shut), reached, open: Arc::new(Mutex::new(open)) };
    let cache = build(gate, &database, &Barrier::new());
    assert_eq!(read(&cache).await, (1, Source::Loaded));
    for many in [false, true] {
        let old = database.read();
        shut.store(true, Ordering::SeqCst);
        let reader = cache.clone();
        let early = tokio::spawn(async move {
            match many {
                true => *reader.get_many(&[1]).await.unwrap().remove(0).unwrap(),
                false => read(&reader).await.0,
            }
        });
        let at_the_gate = || at_the_gate.recv().unwrap();
        tokio::task::block_in_place(at_the_gate);
        let new = database.commit();
        cache.invalidate(&[1]).await.unwrap();
        go.send(()).unwrap();
        assert_eq!(soon("a value", early).await.unwrap(), old, "it began before the write");
        assert_eq!(read(&cache).await, (new, Source::Loaded));
    }
}
