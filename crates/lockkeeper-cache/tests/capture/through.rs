//! Writes through a queue, whose way back to the readers is the log of the database.

use async_trait::async_trait;
use lockkeeper::Locks;
use lockkeeper_cache::cdc::{Follower, Postgres, Rule};
use lockkeeper_cache::through::{Reads, RedisQueue, Tell, Through};
use lockkeeper_cache::{BoxError, Cache, Database, Loaded, Loader, Order, Redis};
use sqlx::postgres::{PgPool, PgPoolOptions};
use testkit::database::System;
use testkit::server::redis;
use testkit::wait::{CASE, eventually};

use crate::process::is_following;
use crate::{ALONE, database};

const KEYS: u64 = 20;
const WRITES: u64 = 400;

/// A table that compares orders.
#[derive(Clone, Debug)]
struct Things(PgPool);

#[async_trait]
impl Loader<u64, u64> for Things {
    async fn load(&self, id: &u64) -> Result<Loaded<u64>, BoxError> {
        let sql = "SELECT v FROM things WHERE id = $1 AND v IS NOT NULL";
        let found: Option<(i64,)> =
            sqlx::query_as(sql).bind(id.cast_signed()).fetch_optional(&self.0).await?;
        Ok(found.map(|(value,)| value.cast_unsigned()).into())
    }
}

#[async_trait]
impl Database<u64, u64> for Things {
    async fn store(
        &self,
        id: &u64,
        value: Option<&u64>,
        order: Option<Order>,
    ) -> Result<u64, BoxError> {
        let order = order.ok_or("a write without its order")?;
        let sql = "INSERT INTO things VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (id) DO UPDATE SET v = $2, ms = $3, seq = $4 \
                   WHERE (things.ms, things.seq) < ($3, $4)";
        let (ms, seq) = (order.ms().cast_signed(), order.seq().cast_signed());
        let value = value.map(|value| value.cast_signed());
        let row = sqlx::query(sql).bind(id.cast_signed()).bind(value).bind(ms).bind(seq);
        row.execute(&self.0).await?;
        Ok(0)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_only_the_cache_hears_of_writes_from_the_log() {
    let _alone = ALONE.lock().await;
    let (server, database) = (redis(&[]).await, database(System::Postgres).await);
    let (redis, url) = (format!("redis://{}", server.address()), database.url("here"));
    for sql in [
        "CREATE TABLE things (id BIGINT PRIMARY KEY, v BIGINT, ms BIGINT NOT NULL, seq BIGINT NOT NULL)",
        "CREATE PUBLICATION lockkeeper FOR TABLE things",
    ] {
        database.operator("here", sql);
    }
    let options = PgPoolOptions::new().max_connections(16).acquire_timeout(CASE);
    let things = Things(options.connect(&url).await.unwrap());
    let store = Redis::connect(&redis).await.unwrap();
    let cache = Cache::builder(store).namespace("thing").build(things.clone()).unwrap();
    let follower = Follower::builder(Postgres::new(&url).unwrap())
        .refresh(Rule::new("public.things", "{id}").unwrap(), &cache)
        .locks(Locks::connect(&redis).await.unwrap())
        .start()
        .unwrap();
    is_following(&follower).await;
    let queue = RedisQueue::connect(&redis, "things").await.unwrap();
    let through = Through::builder(queue, cache, things.clone())
        .reads(Reads::Cache)
        .tell(Tell::Nobody)
        .build();
    let consumer = through.consume();
    let mut last = None;
    for number in 0..WRITES {
        let accepted = through.write(&(number % KEYS), Some(number)).await.unwrap();
        last = Some(accepted.order);
    }
    through.applied(last.unwrap(), CASE).await.unwrap();
    for id in 0..KEYS {
        let wanted = WRITES - KEYS + id;
        eventually("the last write is in the cache", || async {
            let read = through.get(&id).await.unwrap();
            read.is_some_and(|read| read.value.as_deref() == Some(&wanted))
        })
        .await;
        assert_eq!(things.load(&id).await.unwrap(), Loaded::found(wanted));
    }
    consumer.stop().await;
    follower.stop().await;
}
