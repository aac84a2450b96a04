//! Those who apply the changes are killed and paused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use lockkeeper::Locks;
use lockkeeper_cache::{
    BoxError, Builder, Cache, Database, Error, Loaded, Loader, Order, Redis, Strategy,
};
use sqlx::{PgPool, Row};
use testkit::database::System;
use testkit::server::{self, Server};
use testkit::wait::soon;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use super::{Ordered, read, table, write};

const KEYS: u32 = 50;
const CHANGES: usize = 20;

pub(super) const TABLES: &str =
    "CREATE TABLE things (id INT PRIMARY KEY, name TEXT, version BIGINT, ms BIGINT, seq BIGINT);
     CREATE TABLE history (n SERIAL PRIMARY KEY, id INT, name TEXT)";

/// A table in PostgreSQL, and a list of all changes that it had.
#[derive(Clone)]
pub(super) struct Postgres {
    pool: PgPool,
    /// So many stores are done, and then none.
    left: Arc<AtomicUsize>,
    stands: Arc<Notify>,
}

impl Postgres {
    pub(super) async fn connect(url: &str, left: usize) -> Self {
        let pool = PgPool::connect(url).await.unwrap();
        Self { pool, left: Arc::new(AtomicUsize::new(left)), stands: Arc::default() }
    }
}

#[async_trait]
impl Loader<u32, String> for Postgres {
    async fn load(&self, id: &u32) -> Result<Loaded<String>, BoxError> {
        let select = sqlx::query("SELECT name, version FROM things WHERE id = $1");
        let row = select.bind(i32::try_from(*id)?).fetch_optional(&self.pool).await?;
        let Some(row) = row else { return Ok(Loaded::nothing()) };
        let version: i64 = row.try_get(1)?;
        Ok(Loaded::from(row.try_get::<Option<String>, _>(0)?).version(version.cast_unsigned()))
    }
}

#[async_trait]
impl Database<u32, String> for Postgres {
    async fn store(
        &self,
        id: &u32,
        name: Option<&String>,
        order: Option<Order>,
    ) -> Result<u64, BoxError> {
        let taken =
            self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if taken.is_err() {
            self.stands.notify_one();
            std::future::pending::<()>().await;
        }
        let order = order.ok_or("written behind only")?;
        let upsert = "WITH done AS (
                INSERT INTO things VALUES ($1, $2, 1, $3, $4)
                ON CONFLICT (id) DO UPDATE SET name = $2, version = things.version + 1, ms = $3, seq = $4
                WHERE (things.ms, things.seq) < ($3, $4) RETURNING version
            ), noted AS (INSERT INTO history (id, name) SELECT $1, $2 FROM done)
            SELECT version FROM done UNION SELECT version FROM things WHERE id = $1 ORDER BY 1 DESC LIMIT 1";
        let upsert = sqlx::query(upsert).bind(i32::try_from(*id)?).bind(name);
        let upsert = upsert.bind(order.ms().cast_signed()).bind(order.seq().cast_signed());
        let version: i64 = upsert.fetch_one(&self.pool).await?.try_get(0)?;
        Ok(version.cast_unsigned())
    }
}

pub(super) async fn builder(server: &Server, locked: bool) -> Builder {
    let url = format!("redis://{}", server.address());
    let time = Duration::from_millis(500);
    let builder = Cache::builder(Redis::connect_warm(&url).await.unwrap()).namespace("cache");
    let builder = builder.namespace("things").lease(time).behind(300);
    match locked {
        true => builder.locks(Locks::connect(&url).await.unwrap().ttl(time)),
        false => builder,
    }
}

/// A thousand changes; who applies them is killed at the three hundredth, in the middle of some.
async fn killed(locked: bool) {
    let server = Arc::new(server::redis(&[]).await);
    let postgres = System::Postgres.shared().await;
    let place = format!("behind_{locked}");
    postgres.operator("", &format!("CREATE DATABASE {place}"));
    postgres.operator(&place, TABLES);
    let url = postgres.url(&place);
    // As a process of its own: nothing of it is left afterwards.
    let doomed = Runtime::new().unwrap();
    let (near, there) = (Arc::clone(&server), url.clone());
    let first = doomed.spawn(async move {
        let database = Postgres::connect(&there, 300).await;
        let stands = Arc::clone(&database.stands);
        let table = builder(&near, locked).await.table(Strategy::WriteBehind, database).unwrap();
        // It applies before there is anybody else.
        soon("a write", table.write(&KEYS, Some("0".into()))).await.unwrap();
        soon("a flush", table.flush()).await.unwrap();
        (table, stands)
    });
    let (gone, stands) = soon("the first", first).await.unwrap();
    let database = Postgres::connect(&url, usize::MAX).await;
    let table = builder(&server, locked).await.table(Strategy::WriteBehind, database).unwrap();
    let kill = async {
        soon("it stands still", stands.notified()).await;
        drop(gone);
        doomed.shutdown_background();
    };
    let busy = AtomicUsize::new(0);
    let write_all = join_all((0..KEYS).map(async |id| {
        for change in 0..CHANGES {
            while let Err(error) = table.write(&id, Some(change.to_string())).await {
                assert!(matches!(error, Error::Busy { .. }), "{error:?}");
                busy.fetch_add(1, Ordering::SeqCst);
                assert!(table.pending().await.unwrap() <= 300);
                tokio::task::yield_now().await;
            }
        }
    }));
    tokio::join!(kill, write_all);
    assert!(busy.load(Ordering::SeqCst) > 0, "the bound was never met");
    soon("a flush", table.flush()).await.unwrap();
    assert_eq!(table.pending().await.unwrap(), 0);
    let history = postgres.operator(
        &place,
        "SELECT string_agg(name, ',' ORDER BY n) FROM history WHERE id < 50 GROUP BY id",
    );
    let expected: Vec<String> = (0..CHANGES).map(|change| change.to_string()).collect();
    let expected = expected.join(",");
    assert_eq!(history.lines().count(), usize::try_from(KEYS).unwrap());
    history.lines().for_each(|of_one_key| assert_eq!(of_one_key, expected));
    let read = soon("a value", table.read(&7)).await.unwrap();
    assert_eq!((read.value.as_deref().map(String::as_str), read.version), (Some("19"), 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_one_goes_on_where_one_was_killed() {
    killed(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn also_with_a_lock() {
    killed(true).await;
}

/// Stops its whole process in the middle of the first store.
struct Paused {
    rows: Ordered,
    stands: mpsc::SyncSender<()>,
    go_on: parking_lot::Mutex<Option<mpsc::Receiver<()>>>,
}

#[async_trait]
impl Loader<u32, String> for Paused {
    async fn load(&self, id: &u32) -> Result<Loaded<String>, BoxError> {
        self.rows.load(id).await
    }
}

#[async_trait]
impl Database<u32, String> for Paused {
    async fn store(
        &self,
        id: &u32,
        name: Option<&String>,
        order: Option<Order>,
    ) -> Result<u64, BoxError> {
        let go_on = self.go_on.lock().take();
        if let Some(go_on) = go_on {
            self.stands.send(())?;
            go_on.recv()?;
        }
        self.rows.store(id, name, order).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_paused_wakes_up_and_changes_nothing() {
    let server = Arc::new(server::redis(&[]).await);
    let database = Ordered::default();
    let ((stands, stood), (wake, go_on)) = (mpsc::sync_channel(1), mpsc::sync_channel(1));
    let (near, rows) = (Arc::clone(&server), database.clone());
    let old = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let go_on = parking_lot::Mutex::new(Some(go_on));
            let paused = Paused { rows, stands, go_on };
            let builder = super::builder(&near).await;
            let table = builder.table(Strategy::WriteBehind, paused).unwrap();
            write(&table, 1, "old").await;
            soon("it wakes up", table.flush()).await.unwrap();
            // It has looked once more.
            write(&table, 2, "last").await;
            soon("a flush", table.flush()).await.unwrap();
        });
    });
    tokio::task::spawn_blocking(move || stood.recv()).await.unwrap().unwrap();
    let table = table(&server, &database).await;
    write(&table, 1, "new").await;
    soon("a flush", table.flush()).await.unwrap();
    assert_eq!(database.get(1).as_deref(), Some("new"));
    assert_eq!(database.refused.load(Ordering::SeqCst), 0);
    wake.send(()).unwrap();
    tokio::task::spawn_blocking(move || old.join()).await.unwrap().unwrap();
    assert_eq!(database.refused.load(Ordering::SeqCst), 1, "it came too late");
    assert_eq!(database.get(1).as_deref(), Some("new"));
    assert_eq!(read(&table, 1).await.as_deref(), Some("new"));
}
