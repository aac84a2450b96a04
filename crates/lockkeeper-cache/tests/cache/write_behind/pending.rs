//! What waits for the database is what is read, or nothing is.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_cache::entry::{Begun, Entry, Filled, Lease, Ticket, Value};
use lockkeeper_cache::store::PENDING;
use lockkeeper_cache::{
    BoxError, Database, Down, Error, Freshness, Loaded, Loader, Order, Redis, Seen, Store, Strategy,
};
use testkit::server;
use testkit::wait::{eventually, soon};

use super::{Ordered, builder, read, table, write};

#[tokio::test]
async fn nothing_is_read_past_a_redis_that_does_not_answer() {
    let server = server::redis(&[]).await;
    let database = Ordered::default();
    database.apply(1, Some("old"), None);
    database.fail(true);
    // Not even for who asks for that.
    let builder = builder(&server).await.when_down(Down::Load);
    let table = builder.table(Strategy::WriteBehind, database.clone()).unwrap();
    write(&table, 1, "new").await;
    server.pause();
    for _ in 0..5 {
        let refused = soon("an end", table.read(&1)).await;
        assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
        let many = soon("an end", table.cache().get_many(&[1, 2])).await;
        assert!(matches!(many, Err(Error::Busy { .. })), "{many:?}");
    }
    server.resume();
    eventually("it answers again", async || table.read(&1).await.is_ok()).await;
    assert_eq!(read(&table, 1).await.as_deref(), Some("new"));
    assert_eq!(table.cache().stats().loads, 0);
}

/// Without versions nothing but its lease tells that it is old.
#[tokio::test]
async fn a_load_from_before_a_change_was_applied_fills_nothing() {
    let server = server::redis(&[]).await;
    let store = Redis::connect_warm(&format!("redis://{}", server.address())).await.unwrap();
    let (changes, log, key) = (store.changes().unwrap(), "{t}!changes", "{t}:1");
    let (lease, fill, soft, payload) = (Lease::NONE, Ticket::NONE, u64::MAX, None);
    let new = Value { lease, fill, version: PENDING, made: 0, soft, cost: 0, schema: 0, payload };
    changes.append(log, key, &new, 10).await.unwrap().unwrap();
    let seen = store.get(&[key]).await.unwrap().remove(0);
    let Seen::Entry(Entry::Value(there)) = seen else { panic!("{seen:?}") };
    let (ticket, minute) = (Ticket::new(), Duration::from_secs(60));
    let begun = store.begin(key, ticket, minute, Some(there.fill)).await.unwrap();
    assert!(matches!(begun, Begun::Granted { floor: PENDING, .. }), "{begun:?}");
    let change = changes.first(log, 1).await.unwrap().remove(0);
    changes.applied(log, &change, 0, minute).await.unwrap();
    let old = Value { fill: ticket, version: 0, payload: Some(b"\"old\"".to_vec().into()), ..new };
    assert_eq!(store.fill(key, &old, minute).await.unwrap(), Filled::Gone);
}

#[tokio::test]
async fn a_change_of_another_program_is_not_read_past() {
    let server = server::redis(&[]).await;
    let database = Ordered::default();
    database.apply(1, Some("old"), None);
    database.apply(2, Some("old"), None);
    database.fail(true);
    let one = table(&server, &database).await;
    let later = builder(&server).await.schema(1).table(Strategy::WriteBehind, database.clone());
    let later = later.unwrap();
    write(&one, 1, "one").await;
    write(&later, 2, "later").await;
    for (table, id) in [(&one, 2), (&later, 1)] {
        let refused = soon("an end", table.read(&id)).await;
        assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
        assert_eq!(table.cache().stats().loads, 0);
    }
    database.fail(false);
    soon("a flush", one.flush()).await.unwrap();
    assert_eq!(read(&later, 1).await.as_deref(), Some("one"));
}

/// The database has nothing newer, however old the change is.
#[tokio::test]
async fn a_change_that_waits_is_as_new_as_anybody_can_ask_for() {
    let server = server::redis(&[]).await;
    let database = Ordered::default();
    database.fail(true);
    let table = table(&server, &database).await;
    write(&table, 1, "new").await;
    let made = table.read(&1).await.unwrap().made;
    let now = Redis::connect_warm(&format!("redis://{}", server.address())).await.unwrap();
    eventually("it is older", async || now.now() > made + 5).await;
    let read = table.cache().read(&1, Freshness::MaxAge(Duration::from_millis(1))).await.unwrap();
    assert_eq!(read.value.as_deref().map(String::as_str), Some("new"));
    assert_eq!(table.cache().stats().loads, 0);
}

/// A database that knows no versions.
#[derive(Clone, Default)]
struct Plain(Ordered);

#[async_trait]
impl Loader<u32, String> for Plain {
    async fn load(&self, id: &u32) -> Result<Loaded<String>, BoxError> {
        Ok(self.0.load(id).await?.version(0))
    }
}

#[async_trait]
impl Database<u32, String> for Plain {
    async fn store(
        &self,
        id: &u32,
        name: Option<&String>,
        order: Option<Order>,
    ) -> Result<u64, BoxError> {
        self.0.store(id, name, order).await.map(|_| 0)
    }
}

#[tokio::test]
async fn an_audit_does_not_take_changes_for_stale_values() {
    let server = server::redis(&[]).await;
    let database = Plain::default();
    database.0.apply(1, Some("old"), None);
    database.0.fail(true);
    let table = builder(&server).await.table(Strategy::WriteBehind, database.clone()).unwrap();
    table.write(&1, Some("new".into())).await.unwrap();
    let audit = table.cache().audit(NonZeroU32::new(1000).unwrap(), Duration::from_millis(1));
    eventually("it has looked", async || {
        let read = table.read(&1).await.unwrap();
        assert_eq!(read.value.as_deref().map(String::as_str), Some("new"));
        let stats = table.cache().stats();
        stats.audit_gone + stats.audit_stale > 2
    })
    .await;
    drop(audit);
    assert_eq!(table.cache().stats().audit_stale, 0);
}

/// Hangs the first time.
#[derive(Clone, Default)]
struct Hangs(Ordered, Arc<AtomicUsize>);

#[async_trait]
impl Loader<u32, String> for Hangs {
    async fn load(&self, id: &u32) -> Result<Loaded<String>, BoxError> {
        self.0.load(id).await
    }
}

#[async_trait]
impl Database<u32, String> for Hangs {
    async fn store(
        &self,
        id: &u32,
        name: Option<&String>,
        order: Option<Order>,
    ) -> Result<u64, BoxError> {
        if self.1.fetch_add(1, Ordering::SeqCst) == 0 {
            std::future::pending::<()>().await;
        }
        self.0.store(id, name, order).await
    }
}

#[tokio::test]
async fn a_database_that_hangs_is_asked_again() {
    let server = server::redis(&[]).await;
    let database = Hangs::default();
    let builder = builder(&server).await.timeout(Duration::from_millis(200));
    let table = builder.table(Strategy::WriteBehind, database.clone()).unwrap();
    table.write(&1, Some("new".into())).await.unwrap();
    soon("a flush", table.flush()).await.unwrap();
    assert_eq!(database.0.get(1).as_deref(), Some("new"));
}
