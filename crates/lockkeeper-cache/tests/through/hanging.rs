//! Rows that hang do not take the places of those that do not.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::clock::Instant;
use lockkeeper_cache::through::{RedisQueue, Through};
use lockkeeper_cache::{BoxError, Cache, Database, Loaded, Loader, Order, Redis};
use parking_lot::Mutex;
use sqlx::Connection;
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use testkit::database::System;
use testkit::server;
use testkit::wait::{LONG, eventually, soon, within};

use crate::fake::url;
use crate::rows;

/// So many rows are locked by somebody else.
const LOCKED: u32 = 30;

/// So long an attempt at one of them takes before the database gives it up.
const HANGS: Duration = Duration::from_secs(10);

/// So long a write may take that has nothing to do with them.
const BOUND: Duration = Duration::from_secs(3);

/// Rows of PostgreSQL, which are waited for no longer than it is told.
#[derive(Clone)]
struct Impatient {
    pool: PgPool,
    patience_ms: Arc<AtomicU64>,
    tried: Arc<Mutex<HashSet<u32>>>,
}

#[async_trait]
impl Loader<u32, i64> for Impatient {
    async fn load(&self, id: &u32) -> Result<Loaded<i64>, BoxError> {
        let select = sqlx::query_scalar("SELECT val FROM things WHERE id = $1");
        let value: Option<i64> = select.bind(i32::try_from(*id)?).fetch_one(&self.pool).await?;
        Ok(value.into())
    }
}

#[async_trait]
impl Database<u32, i64> for Impatient {
    async fn store(
        &self,
        id: &u32,
        value: Option<&i64>,
        order: Option<Order>,
    ) -> Result<u64, BoxError> {
        let order = order.ok_or("written through only")?;
        self.tried.lock().insert(*id);
        let mut tx = self.pool.begin().await?;
        let patience = sqlx::query("SELECT set_config('lock_timeout', $1, true)");
        let ms = self.patience_ms.load(Ordering::SeqCst).to_string();
        patience.bind(ms).execute(&mut *tx).await?;
        let update =
            "UPDATE things SET val = $2, ms = $3, seq = $4 WHERE id = $1 AND (ms, seq) < ($3, $4)";
        let update = sqlx::query(update).bind(i32::try_from(*id)?).bind(value.copied());
        let update = update.bind(order.ms().cast_signed()).bind(order.seq().cast_signed());
        update.execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(0)
    }
}

/// For as long as it takes until each of those that hang is tried again, many times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rows_that_hang_do_not_hold_up_one_that_does_not() {
    let redis = server::redis(&[]).await;
    let database = System::Postgres.shared().await;
    let sql = rows::make(&database, System::Postgres, "hanging", LOCKED + 1);
    let pool = PgPoolOptions::new().max_connections(20).connect(&sql).await.unwrap();
    let (patience_ms, tried) = (Arc::new(AtomicU64::new(20)), Arc::default());
    let rows = Impatient { pool, patience_ms, tried };
    let store = soon("connected", Redis::connect(&url(&redis))).await.unwrap();
    let cache =
        Cache::builder(store).namespace("cache").timeout(2 * HANGS).build(rows.clone()).unwrap();
    let queue = soon("connected", RedisQueue::connect(&url(&redis), "t")).await.unwrap();
    let through = Through::builder(queue, cache, rows.clone()).build();

    let mut other = PgConnection::connect(&sql).await.unwrap();
    let mut locks = other.begin().await.unwrap();
    let lock = sqlx::query("SELECT FROM things WHERE id < $1 FOR UPDATE");
    lock.bind(i32::try_from(LOCKED).unwrap()).execute(&mut *locks).await.unwrap();
    let consumer = through.consume();
    for id in 0..LOCKED {
        let _ = through.write(&id, Some(1)).await.unwrap();
    }
    let all = usize::try_from(LOCKED).unwrap();
    eventually("each has failed", async || rows.tried.lock().len() == all).await;
    let hangs = u64::try_from(HANGS.as_millis()).unwrap();
    rows.patience_ms.store(hangs, Ordering::SeqCst);

    // By then each of them would be tried again, and hang.
    let (begun, mut longest) = (Instant::now(), Duration::ZERO);
    let mut value = 0;
    while Instant::now().since(begun) < HANGS {
        value += 1;
        let written = Instant::now();
        let accepted = soon("accepted", through.write(&LOCKED, Some(value))).await.unwrap();
        through.applied(accepted.order, BOUND).await.unwrap();
        longest = longest.max(Instant::now().since(written));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    eprintln!("{value} writes, the longest took {longest:?}");
    assert_eq!(through.stats().applied, value.cast_unsigned());

    locks.rollback().await.unwrap();
    let empty = async || through.backlog().await.unwrap().pending == 0;
    within(2 * LONG, "the others are applied", empty).await;
    let expected = (0..LOCKED).map(|id| (id, 1)).chain([(LOCKED, value)]);
    assert_eq!(rows::values(&database, "hanging"), expected.collect());
    consumer.stop().await;
}
