//! The statements that a lock is made of, without the lock; and locks by hand.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};

use crate::client::{Client, is_postgres};
use crate::harness::worker::{Library, Lock};

/// As many connections as a client of ours has by default.
const POOL: usize = 4;
/// Of a lock by hand: longer than the bench.
const LONG: u32 = 600;

/// How a turn is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A row inserted and deleted, as text.
    Rows,
    /// The same, prepared.
    Prepared,
    /// Nothing at all.
    Select,
    /// Advisory locks, `GET_LOCK`.
    Session,
    /// `SELECT … FOR UPDATE`.
    RowLock,
}

pub(crate) struct Raw {
    url: String,
    way: Way,
    pool: Arc<Pool>,
    spare: Spare,
}

/// Connections of locks by hand that are not used now: making one takes longer than many turns.
type Spare = Arc<std::sync::Mutex<Vec<Client>>>;

/// Connections for statements that are complete in themselves.
struct Pool {
    idle: Mutex<Vec<Client>>,
    permits: Semaphore,
}

impl Library for Raw {
    type Lock = Turn;

    fn package(_: &str) -> &'static str {
        "sqlx"
    }

    async fn connect(url: &str, library: &str, _lease: Duration) -> Self {
        let way = match library {
            "raw-rows" => Way::Rows,
            "raw-prepared" => Way::Prepared,
            "raw-select" => Way::Select,
            "session" => Way::Session,
            "row-lock" => Way::RowLock,
            _ => panic!("no such library: {library}"),
        };
        let mut idle = Vec::new();
        if matches!(way, Way::Rows | Way::Prepared | Way::Select) {
            for _ in 0..POOL {
                idle.push(Client::connect(url).await);
            }
        }
        let pool = Arc::new(Pool { idle: Mutex::new(idle), permits: Semaphore::new(POOL) });
        Self { url: url.to_owned(), way, pool, spare: Spare::default() }
    }

    async fn lock(&self, name: String, _task: u64) -> Turn {
        let mut own = None;
        if matches!(self.way, Way::Session | Way::RowLock) {
            let spare = self.spare.lock().unwrap().pop();
            let mut client = match spare {
                Some(client) => client,
                None => Client::connect(&self.url).await,
            };
            if self.way == Way::RowLock {
                let insert = format!("INSERT INTO bench_locks (name) VALUES ('{name}')");
                client.run(&unless_there(&self.url, &insert)).await;
            }
            own = Some(client);
        }
        let postgres = is_postgres(&self.url);
        let (pool, spare) = (Arc::clone(&self.pool), Arc::clone(&self.spare));
        Turn { way: self.way, postgres, pool, own, spare, name }
    }
}

fn unless_there(url: &str, insert: &str) -> String {
    match is_postgres(url) {
        true => format!("{insert} ON CONFLICT DO NOTHING"),
        false => insert.replacen("INSERT", "INSERT IGNORE", 1),
    }
}

/// One name, as one task wants it.
pub(crate) struct Turn {
    way: Way,
    postgres: bool,
    pool: Arc<Pool>,
    /// A lock by hand lives in its connection.
    own: Option<Client>,
    spare: Spare,
    name: String,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.spare.lock().unwrap().extend(self.own.take());
    }
}

impl Turn {
    async fn with_pool(&self, sql: &str) {
        let _permit = self.pool.permits.acquire().await.unwrap();
        let mut client = self.pool.idle.lock().await.pop().unwrap();
        match self.way {
            Way::Prepared => client.run_prepared(sql, &self.name).await,
            _ => client.run(sql).await,
        }
        self.pool.idle.lock().await.push(client);
    }
}

impl Lock for Turn {
    type Taken = ();

    async fn take(&mut self) {
        let name = &self.name;
        match (self.way, &mut self.own) {
            (Way::Session, Some(client)) if self.postgres => {
                let sql = format!("SELECT pg_advisory_lock(hashtextextended('{name}', 0))");
                client.run(&sql).await;
            }
            (Way::Session, Some(client)) => {
                client.run(&format!("SELECT GET_LOCK('{name}', {LONG})")).await;
            }
            (Way::RowLock, Some(client)) => {
                client.run("BEGIN").await;
                let sql = format!("SELECT 1 FROM bench_locks WHERE name = '{name}' FOR UPDATE");
                client.run(&sql).await;
            }
            (Way::Prepared, _) => {
                self.with_pool("INSERT INTO bench_rows (name) VALUES ($1)").await;
            }
            (Way::Rows, _) => {
                self.with_pool(&format!("INSERT INTO bench_rows (name) VALUES ('{name}')")).await;
            }
            _ => self.with_pool("SELECT 1").await,
        }
    }

    async fn release(&mut self, (): ()) {
        let name = &self.name;
        match (self.way, &mut self.own) {
            (Way::Session, Some(client)) if self.postgres => {
                let sql = format!("SELECT pg_advisory_unlock(hashtextextended('{name}', 0))");
                client.run(&sql).await;
            }
            (Way::Session, Some(client)) => {
                client.run(&format!("SELECT RELEASE_LOCK('{name}')")).await;
            }
            (Way::RowLock, Some(client)) => client.run("COMMIT").await,
            (Way::Prepared, _) => {
                self.with_pool("DELETE FROM bench_rows WHERE name = $1").await;
            }
            (Way::Rows, _) => {
                self.with_pool(&format!("DELETE FROM bench_rows WHERE name = '{name}'")).await;
            }
            _ => self.with_pool("SELECT 1").await,
        }
    }
}
