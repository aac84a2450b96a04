//! The Redis that keeps the changes is killed, and started again with what it has on its disk.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use lockkeeper_cache::{BoxError, Database, Error, Loaded, Loader, Order, Strategy, Table};
use testkit::database::System;
use testkit::server;
use testkit::wait::{eventually, soon};
use tokio::sync::watch;

use super::crash::{Postgres, TABLES, builder};

const KEYS: u32 = 20;

/// So many changes of a key at most: it is killed long before.
const MOST: u32 = 2000;

/// A database that keeps those waiting who change something, until it is open.
struct Closed {
    postgres: Postgres,
    open: watch::Receiver<bool>,
}

#[async_trait]
impl Loader<u32, String> for Closed {
    async fn load(&self, id: &u32) -> Result<Loaded<String>, BoxError> {
        self.postgres.load(id).await
    }
}

#[async_trait]
impl Database<u32, String> for Closed {
    async fn store(
        &self,
        id: &u32,
        name: Option<&String>,
        order: Option<Order>,
    ) -> Result<u64, BoxError> {
        self.open.clone().wait_for(|open| *open).await?;
        self.postgres.store(id, name, order).await
    }
}

/// The changes of one key, each with the next number.
struct Writer {
    id: u32,
    tried: u32,
    acknowledged: Vec<u32>,
}

impl Writer {
    /// What becomes of a change that fails nobody knows.
    async fn change(&mut self, table: &Table<u32, String>) -> Result<(), Error> {
        self.tried += 1;
        soon("an end", table.write(&self.id, Some(self.tried.to_string()))).await?;
        self.acknowledged.push(self.tried);
        Ok(())
    }

    async fn change_until_it_fails(&mut self, table: &Table<u32, String>) {
        while self.change(table).await.is_ok() {
            assert!(self.tried < MOST, "nobody has killed the server");
        }
    }

    /// Whether these changes, in the order in which the database had them, are all that were acknowledged, each once, and
    /// none that were not made.
    fn check(&self, history: &[u32]) {
        let in_order = history.is_sorted_by(|one, next| one < next);
        let all = self.acknowledged.iter().all(|change| history.contains(change));
        let made = history.iter().all(|change| (1..=self.tried).contains(change));
        assert!(in_order && all && made, "{}: {:?} {history:?}", self.id, self.acknowledged);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_in_the_database_after_redis_was_killed() {
    let mut redis = server::redis(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let postgres = System::Postgres.shared().await;
    let place = "behind_server";
    postgres.operator("", &format!("CREATE DATABASE {place}"));
    postgres.operator(place, TABLES);
    let database = Postgres::connect(&postgres.url(place), usize::MAX).await;
    let (open, opened) = watch::channel(true);
    let builder = builder(&redis, false).await.behind(1_000_000);
    let closed = Closed { postgres: database, open: opened };
    let table = Arc::new(builder.table(Strategy::WriteBehind, closed).unwrap());
    let writers = (0..KEYS).map(|id| Writer { id, tried: 0, acknowledged: Vec::new() });
    let mut writers: Vec<Writer> = writers.collect();
    // Some are in the database by then, one is on its way, and the others wait.
    join_all(writers.iter_mut().map(|writer| writer.change(&table))).await;
    soon("a flush", table.flush()).await.unwrap();
    open.send_replace(false);
    let (counting, waiting) = (Arc::clone(&table), u64::from(KEYS) * 10);
    let kill = async {
        let many = async || counting.pending().await.unwrap() as u64 >= waiting;
        eventually("many wait", many).await;
        redis.kill();
    };
    let write = join_all(writers.iter_mut().map(|writer| writer.change_until_it_fails(&table)));
    tokio::join!(kill, write);
    let before: usize = writers.iter().map(|writer| writer.acknowledged.len()).sum();
    assert!(before as u64 >= waiting, "{before}");
    let lines = "SELECT count(*) FROM history";
    assert_eq!(postgres.operator(place, lines), KEYS.to_string(), "the others waited");
    redis.start_again().await;
    for writer in &mut writers {
        let again = async {
            while writer.change(&table).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon("it goes on", again).await;
    }
    open.send_replace(true);
    soon("a flush", table.flush()).await.unwrap();
    assert_eq!(table.pending().await.unwrap(), 0);
    for writer in &writers {
        let id = writer.id;
        let history =
            format!("SELECT string_agg(name, ',' ORDER BY n) FROM history WHERE id = {id}");
        let history = postgres.operator(place, &history);
        let history: Vec<u32> = history.split(',').map(|change| change.parse().unwrap()).collect();
        writer.check(&history);
        let last = history.last().unwrap().to_string();
        assert_eq!(
            postgres.operator(place, &format!("SELECT name FROM things WHERE id = {id}")),
            last
        );
        let read = soon("a value", table.read(&id)).await.unwrap();
        assert_eq!(read.value.as_deref(), Some(&last));
    }
}
