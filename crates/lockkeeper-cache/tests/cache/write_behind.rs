//! Changes that come to the database later: seen at once, and never lost or turned around.

mod crash;
mod pending;
mod server_killed;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_cache::entry::{Begun, Entry, Filled, Lease, Ticket, Value};
use lockkeeper_cache::store::PENDING;
use lockkeeper_cache::{
    BoxError, Builder, Cache, Database, Error, Freshness, Loaded, Loader, Memory, Order, Redis,
    Seen, Source, Store, Strategy, Table,
};
use parking_lot::Mutex;
use testkit::nodes::Cluster;
use testkit::resp::Raw;
use testkit::server::{self, Server};
use testkit::wait::{eventually, soon};

/// A row: its last change, how many it had, and what it has.
type Row = (Option<Order>, u64, Option<String>);

/// A database that looks at the order of changes, and can fail and panic.
#[derive(Clone, Default)]
struct Ordered {
    rows: Arc<Mutex<HashMap<u32, Row>>>,
    fails: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
}

impl Ordered {
    fn get(&self, id: u32) -> Option<String> {
        self.rows.lock().get(&id).and_then(|(_, _, name)| name.clone())
    }

    fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::SeqCst);
    }

    fn apply(&self, id: u32, name: Option<&str>, order: Option<Order>) -> u64 {
        let mut rows = self.rows.lock();
        let (last, version, there) = rows.entry(id).or_default();
        if order.is_some() && *last >= order {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return *version;
        }
        (*last, *version, *there) = (order, *version + 1, name.map(str::to_owned));
        *version
    }
}

#[async_trait]
impl Loader<u32, String> for Ordered {
    async fn load(&self, id: &u32) -> Result<Loaded<String>, BoxError> {
        let (_, version, name) = self.rows.lock().get(id).cloned().unwrap_or_default();
        Ok(Loaded::from(name).version(version))
    }
}

#[async_trait]
impl Database<u32, String> for Ordered {
    async fn store(
        &self,
        id: &u32,
        name: Option<&String>,
        order: Option<Order>,
    ) -> Result<u64, BoxError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics.load(Ordering::SeqCst), "told to");
        if self.fails.load(Ordering::SeqCst) {
            return Err("no database".into());
        }
        Ok(self.apply(*id, name.map(String::as_str), order))
    }
}

async fn builder(server: &Server) -> Builder {
    let store = Redis::connect_warm(&format!("redis://{}", server.address())).await.unwrap();
    // A process that is gone is followed soon.
    Cache::builder(store).namespace("t").lease(Duration::from_millis(300))
}

async fn table(server: &Server, database: &Ordered) -> Table<u32, String> {
    builder(server).await.table(Strategy::WriteBehind, database.clone()).unwrap()
}

async fn read(table: &Table<u32, String>, id: u32) -> Option<String> {
    let read = soon("a value", table.read(&id)).await.unwrap();
    read.value.map(|name| (*name).clone())
}

async fn write(table: &Table<u32, String>, id: u32, name: &str) {
    soon("a write", table.write(&id, Some(name.to_owned()))).await.unwrap();
}

#[tokio::test]
async fn a_change_is_a_hit_at_once_and_in_the_database_later() {
    let server = server::redis(&[]).await;
    let raw = Raw::connect(server.address()).await;
    let database = Ordered::default();
    let [one, other] = [table(&server, &database).await, table(&server, &database).await];
    database.fail(true);
    write(&one, 1, "a").await;
    write(&one, 2, "b").await;
    write(&one, 1, "c").await;
    one.write(&2, None).await.unwrap();
    for table in [&one, &other] {
        assert_eq!((read(table, 1).await.as_deref(), read(table, 2).await), (Some("c"), None));
        assert_eq!(table.cache().stats().hits, 2);
        assert_eq!(table.pending().await.unwrap(), 4);
    }
    assert_eq!((one.read(&1).await.unwrap().version, database.get(1)), (0, None));
    // It cannot end before the database has it.
    let mut waiting = raw.immortal().await;
    waiting.sort();
    assert_eq!(waiting, ["{t}!changes", "{t}:1", "{t}:2"]);
    database.fail(false);
    soon("a flush", other.flush()).await.unwrap();
    assert_eq!((database.get(1).as_deref(), database.get(2)), (Some("c"), None));
    assert_eq!(one.pending().await.unwrap(), 0);
    // The empty log stays: it knows the last order.
    assert_eq!(raw.immortal().await, ["{t}!changes"]);
    let found = one.cache().read(&1, Freshness::AtLeast(2)).await.unwrap();
    assert_eq!((found.source, found.version), (Source::Hit, 2));
}

#[tokio::test]
async fn no_more_wait_than_may() {
    let server = server::redis(&[]).await;
    let database = Ordered::default();
    database.fail(true);
    let table = builder(&server).await.behind(5).table(Strategy::WriteBehind, database.clone());
    let table = table.unwrap();
    for id in 0..5 {
        write(&table, id, "x").await;
    }
    let refused = table.write(&0, Some("y".into())).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    assert_eq!((read(&table, 0).await.as_deref(), table.pending().await.unwrap()), (Some("x"), 5));
    database.fail(false);
    soon("a flush", table.flush()).await.unwrap();
    write(&table, 0, "y").await;
    soon("a flush", table.flush()).await.unwrap();
    assert_eq!(database.get(0).as_deref(), Some("y"));
}

#[tokio::test]
async fn nothing_that_is_loaded_comes_before_a_change_that_waits() {
    let server = server::redis(&[]).await;
    let database = Ordered::default();
    database.apply(1, Some("old"), None);
    let old = table(&server, &database).await;
    // Under a lease that it gets before the change.
    let (store, key) =
        (Redis::connect_warm(&format!("redis://{}", server.address())).await.unwrap(), "{t}:1");
    let ticket = Ticket::new();
    let lease = Duration::from_secs(60);
    store.begin(key, ticket, lease, None).await.unwrap();
    database.fail(true);
    write(&old, 1, "new").await;
    let value = Value {
        lease: Lease::NONE,
        fill: ticket,
        version: 1,
        made: 0,
        soft: u64::MAX,
        cost: 0,
        schema: 0,
        payload: None,
    };
    let filled = store.fill(key, &value, lease).await.unwrap();
    assert_eq!(filled, Filled::Gone);
    assert_eq!(read(&old, 1).await.as_deref(), Some("new"));
}

#[tokio::test]
async fn an_entry_that_was_lost_does_not_outlive_the_change() {
    let server = server::redis(&[]).await;
    let raw = Raw::connect(server.address()).await;
    let database = Ordered::default();
    database.fail(true);
    let table = table(&server, &database).await;
    write(&table, 1, "new").await;
    raw.ask("DEL {t}:1").await;
    assert_eq!(read(&table, 1).await, None, "the database does not have it yet");
    database.fail(false);
    soon("a flush", table.flush()).await.unwrap();
    assert_eq!(read(&table, 1).await.as_deref(), Some("new"));
}

/// How often anybody has looked at a log.
async fn looks(raw: &Raw) -> usize {
    let stats = format!("{:?}", raw.ask("INFO commandstats").await);
    let calls = stats.split("cmdstat_xrange:calls=").nth(1).and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

#[tokio::test]
async fn a_change_of_another_program_waits_for_it() {
    let server = server::redis(&[]).await;
    let raw = Raw::connect(server.address()).await;
    let database = Ordered::default();
    let broken = Ordered { fails: Arc::new(AtomicBool::new(true)), ..database.clone() };
    let old = table(&server, &broken).await;
    write(&old, 1, "old").await;
    drop(old);
    let (asked, ours) = (Arc::default(), database.clone());
    let ours = Ordered { asked: Arc::clone(&asked), ..ours };
    let new = builder(&server).await.schema(1).table(Strategy::WriteBehind, ours).unwrap();
    write(&new, 1, "new").await;
    let before = looks(&raw).await;
    eventually("it has looked", async || looks(&raw).await > before + 3).await;
    assert_eq!((new.pending().await.unwrap(), database.get(1)), (2, None));
    let old = table(&server, &database).await;
    soon("a flush", new.flush()).await.unwrap();
    assert_eq!((database.get(1).as_deref(), database.rows.lock()[&1].1), (Some("new"), 2));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    drop(old);
}

/// As soon as one is gone that says so, and not when its lease ends.
#[tokio::test]
async fn the_right_to_apply_is_given_back() {
    let server = server::redis(&[]).await;
    let database = Ordered::default();
    let builder = async || builder(&server).await.lease(Duration::from_secs(3600));
    let one = builder().await.table(Strategy::WriteBehind, database.clone()).unwrap();
    write(&one, 1, "a").await;
    soon("a flush", one.flush()).await.unwrap();
    let other = builder().await.table(Strategy::WriteBehind, database.clone()).unwrap();
    drop(one);
    write(&other, 1, "b").await;
    soon("a flush", other.flush()).await.unwrap();
    assert_eq!(database.get(1).as_deref(), Some("b"));
}

#[tokio::test]
async fn a_database_that_panics_is_asked_again() {
    let server = server::redis(&[]).await;
    let database = Ordered::default();
    database.panics.store(true, Ordering::SeqCst);
    let table = table(&server, &database).await;
    write(&table, 1, "a").await;
    eventually("it was asked", async || database.asked.load(Ordering::SeqCst) > 1).await;
    assert_eq!(table.pending().await.unwrap(), 1);
    database.panics.store(false, Ordering::SeqCst);
    soon("a flush", table.flush()).await.unwrap();
    assert_eq!(database.get(1).as_deref(), Some("a"));
}

#[tokio::test]
async fn what_cannot_be_stored_is_refused() {
    let server = server::redis(&[]).await;
    let table = builder(&server).await.max_value(10).max_key(2);
    let table = table.table(Strategy::WriteBehind, Ordered::default()).unwrap();
    let refused = table.write(&1, Some("x".repeat(20))).await;
    assert!(matches!(refused, Err(Error::InvalidValue(_))), "{refused:?}");
    let refused = table.write(&100, Some("x".into())).await;
    assert!(matches!(refused, Err(Error::InvalidKey(_))), "{refused:?}");
    let refused = table.write_with(&1, async { Ok(Loaded::nothing()) }).await;
    assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
    let memory = Cache::builder(Memory::new())
        .namespace("cache")
        .table(Strategy::WriteBehind, Ordered::default());
    assert!(matches!(&memory, Err(Error::Config(why)) if why.contains("Redis")), "{memory:?}");
    for namespace in ["", "}{"] {
        let builder = builder(&server).await.namespace(namespace);
        let refused = builder.table(Strategy::WriteBehind, Ordered::default());
        assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
    }
    assert_eq!(table.pending().await.unwrap(), 0);
}

#[tokio::test]
async fn a_store_that_is_gone_is_an_error_of_the_write() {
    let mut server = server::redis(&[]).await;
    let database = Ordered::default();
    database.apply(1, Some("there"), None);
    let table = table(&server, &database).await;
    server.kill();
    let refused = soon("an end", table.read(&1)).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    let written = soon("an end", table.write(&1, Some("new".into()))).await;
    assert!(matches!(written, Err(Error::Commit(_))), "{written:?}");
}

#[tokio::test]
async fn in_a_cluster_all_keys_are_in_one_place() {
    let cluster = Cluster::shared().await;
    let store = soon("connected", Redis::connect_warm(&cluster.url())).await.unwrap();
    let database = Ordered::default();
    let builder = Cache::builder(store).namespace("behind");
    let table = builder.table(Strategy::WriteBehind, database.clone()).unwrap();
    for id in 0..50 {
        write(&table, id, "x").await;
    }
    soon("a flush", table.flush()).await.unwrap();
    assert!((0..50).all(|id| database.get(id).as_deref() == Some("x")));
}

/// Somebody wants a value anew while its change waits: what he loads is from before the change.
#[tokio::test]
async fn who_loaded_before_the_database_had_a_change_does_not_fill_over_it() {
    let server = server::redis(&[]).await;
    let store = Redis::connect_warm(&format!("redis://{}", server.address())).await.unwrap();
    let (log, key, minute) = ("{t}!changes", "{t}:1", Duration::from_secs(60));
    let value = |fill, version, payload: &[u8]| {
        let (lease, payload) = (Lease::NONE, Some(payload.to_vec().into()));
        Value { lease, fill, version, made: 1, soft: u64::MAX, cost: 0, schema: 0, payload }
    };
    let changes = store.changes().unwrap();
    let pending = value(Ticket::NONE, PENDING, b"new");
    changes.append(log, key, &pending, 9).await.unwrap().unwrap();
    let there = store.get(&[key]).await.unwrap().remove(0);
    let Seen::Entry(Entry::Value(there)) = there else { panic!("{there:?}") };
    let ticket = Ticket::new();
    let begun = store.begin(key, ticket, minute, Some(there.fill)).await.unwrap();
    assert!(matches!(begun, Begun::Granted { floor: PENDING, .. }), "{begun:?}");
    // The database has no versions.
    let change = changes.first(log, 1).await.unwrap().remove(0);
    changes.applied(log, &change, 0, minute).await.unwrap();
    let old = value(ticket, 0, b"old");
    assert_eq!(store.fill(key, &old, minute).await.unwrap(), Filled::Gone);
    let there = store.get(&[key]).await.unwrap().remove(0);
    assert!(
        matches!(&there, Seen::Entry(Entry::Value(there)) if there.payload.as_deref() == Some(b"new")),
        "{there:?}"
    );
}
