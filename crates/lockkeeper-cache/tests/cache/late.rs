//! A request for a lease that the store gets late, and loads that never end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_cache::entry::{Begun, Filled, Invalidation, Millis, Settled, Ticket, Value};
use lockkeeper_cache::store::Result as StoreResult;
use lockkeeper_cache::{Cache, Memory, Seen, Store, StoreError};
use parking_lot::Mutex;

use crate::harness::{Client, Database, value};

/// Says once that it did not hear a request for a lease, and keeps it.
#[derive(Debug)]
struct Late {
    store: Memory,
    on: AtomicBool,
    kept: Arc<Mutex<Option<(String, Ticket)>>>,
}

#[async_trait]
impl Store for Late {
    fn now(&self) -> Millis {
        self.store.now()
    }

    async fn get(&self, keys: &[&str]) -> StoreResult<Vec<Seen>> {
        self.store.get(keys).await
    }

    async fn begin(
        &self,
        key: &str,
        ticket: Ticket,
        lease: Duration,
        except: Option<Ticket>,
    ) -> StoreResult<Begun> {
        if self.on.swap(false, Ordering::SeqCst) {
            *self.kept.lock() = Some((key.to_owned(), ticket));
            return Err(StoreError::new("test", "no answer"));
        }
        self.store.begin(key, ticket, lease, except).await
    }

    async fn fill(&self, key: &str, value: &Value, ttl: Duration) -> StoreResult<Filled> {
        self.store.fill(key, value, ttl).await
    }

    async fn put(&self, key: &str, value: &Value, ttl: Duration) -> StoreResult<()> {
        self.store.put(key, value, ttl).await
    }

    async fn give_up(&self, key: &str, ticket: Ticket) -> StoreResult<()> {
        self.store.give_up(key, ticket).await
    }

    async fn invalidate(&self, keys: &[&str], how: Invalidation) -> StoreResult<()> {
        self.store.invalidate(keys, how).await
    }

    async fn intend(&self, keys: &[&str], writer: Ticket, ttl: Duration) -> StoreResult<()> {
        self.store.intend(keys, writer, ttl).await
    }

    async fn settle(
        &self,
        keys: &[&str],
        writer: Ticket,
        how: Invalidation,
    ) -> StoreResult<Settled> {
        self.store.settle(keys, writer, how).await
    }
}

#[tokio::test]
async fn who_sees_a_lease_that_came_late_does_not_join_the_load_that_gave_it_up() {
    let (store, kept) = (Memory::new(), Arc::new(Mutex::new(None)));
    let late = Late { store: store.clone(), on: AtomicBool::new(true), kept: Arc::clone(&kept) };
    let (database, lease) = (Database::new(), Duration::from_millis(200));
    let mut client = Client::new(Cache::builder(late).namespace("cache").lease(lease), &database);
    let early = client.get();
    let old = client.load().await;
    database.commit();
    client.cache.invalidate(&[1]).await.unwrap();
    // Only now the request arrives, and is granted.
    let (key, ticket) = kept.lock().take().unwrap();
    store.begin(&key, ticket, lease, None).await.unwrap();
    let read = client.get();
    let new = client.load().await;
    assert_eq!(new.read, 2);
    new.go();
    assert_eq!(value(read).await, 2);
    old.go();
    assert_eq!(value(early).await, 1);
}

/// The runtime of those who read ends, and the cache is used in another one.
#[test]
fn a_load_that_ends_with_its_runtime_is_not_waited_for() {
    let first = tokio::runtime::Runtime::new().unwrap();
    let database = Database::new();
    let mut client = Client::new(Cache::builder(Memory::new()).namespace("cache"), &database);
    let load = first.block_on(async {
        // So each read goes to the database, one after the other.
        let _write = client.cache.intend(&[1]).await.unwrap();
        let _one = client.get();
        let load = client.load().await;
        let _two = client.get();
        client.eventually("it waits for the first", |stats| stats.misses == 2).await;
        load
    });
    drop(first);
    assert!(load.is_dropped());
    let second = tokio::runtime::Runtime::new().unwrap();
    assert_eq!(second.block_on(client.loaded()), 1);
}
