//! The database: a row for each key, with a number that grows with every change of it.

use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_cache::{BoxError, Database, Loaded, Loader, Order};
use parking_lot::Mutex;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::postgres::{PgPool, PgPoolOptions};
use testkit::random::Random;
use testkit::staleness::{Kind, Log, Source};
use tokio::time::sleep;

/// The rows; and which changes came, with the place of each among all.
const TABLES: [&str; 4] = [
    "DROP TABLE IF EXISTS cached",
    "DROP TABLE IF EXISTS changes",
    "CREATE TABLE cached (id VARCHAR(80) PRIMARY KEY, ver BIGINT NOT NULL, val BIGINT, ms BIGINT NOT NULL, seq BIGINT NOT NULL)",
    "CREATE TABLE changes (id VARCHAR(80), ms BIGINT, seq BIGINT, val BIGINT, PRIMARY KEY (id, ms, seq))",
];

/// One in so many loads and commits is slow, by less than this.
const SLOW: (u64, Duration) = (3, Duration::from_millis(12));

#[derive(Clone, Debug)]
enum Pool {
    Postgres(PgPool),
    MariaDb(MySqlPool),
}

/// The rows, as one process sees them.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pool: Pool,
    /// Where loads are written down.
    log: Arc<Log>,
    random: Arc<Mutex<Random>>,
    held: Arc<Mutex<Option<Hold>>>,
}

/// The next commit of a key that begins so never returns. Instead the database is asked what it has now, and this file is
/// made: who sees it may kill the process there.
#[derive(Debug)]
struct Hold {
    prefix: String,
    file: PathBuf,
}

impl Rows {
    pub(crate) async fn connect(url: &str, log: &Arc<Log>, random: Random) -> Self {
        let pool = if url.starts_with("postgres") {
            Pool::Postgres(PgPoolOptions::new().max_connections(12).connect(url).await.unwrap())
        } else {
            Pool::MariaDb(MySqlPoolOptions::new().max_connections(12).connect(url).await.unwrap())
        };
        let random = Arc::new(Mutex::new(random));
        Self { pool, log: Arc::clone(log), random, held: Arc::default() }
    }

    /// Holds the next commit of a key that begins so, for good, and makes this file.
    pub(crate) fn hold(&self, prefix: String, file: PathBuf) {
        *self.held.lock() = Some(Hold { prefix, file });
    }

    /// Makes the tables, with these rows: version 1.
    pub(crate) async fn make(&self, keys: &[String]) {
        for sql in TABLES {
            match &self.pool {
                Pool::Postgres(pool) => drop(sqlx::query(sql).execute(pool).await.unwrap()),
                Pool::MariaDb(pool) => drop(sqlx::query(sql).execute(pool).await.unwrap()),
            }
        }
        for key in keys {
            match &self.pool {
                Pool::Postgres(pool) => {
                    let row = sqlx::query("INSERT INTO cached VALUES ($1, 1, 0, 0, 0)").bind(key);
                    row.execute(pool).await.unwrap();
                }
                Pool::MariaDb(pool) => {
                    let row = sqlx::query("INSERT INTO cached VALUES (?, 1, 0, 0, 0)").bind(key);
                    row.execute(pool).await.unwrap();
                }
            }
        }
    }

    /// What was changed later, in its order.
    pub(crate) async fn changes(&self) -> Vec<(String, i64)> {
        let sql = "SELECT id, val FROM changes ORDER BY id, ms, seq";
        match &self.pool {
            Pool::Postgres(pool) => sqlx::query_as(sql).fetch_all(pool).await.unwrap(),
            Pool::MariaDb(pool) => sqlx::query_as(sql).fetch_all(pool).await.unwrap(),
        }
    }

    /// The version and the value of a row, which exists.
    pub(crate) async fn read(&self, key: &str) -> Result<(i64, Option<i64>), sqlx::Error> {
        match &self.pool {
            Pool::Postgres(pool) => {
                let row = sqlx::query_as("SELECT ver, val FROM cached WHERE id = $1");
                row.bind(key).fetch_one(pool).await
            }
            Pool::MariaDb(pool) => {
                let row = sqlx::query_as("SELECT ver, val FROM cached WHERE id = ?");
                row.bind(key).fetch_one(pool).await
            }
        }
    }

    /// Commits a change of a row; the version it then has.
    async fn write(&self, key: &str, value: Option<i64>) -> Result<u64, sqlx::Error> {
        match &self.pool {
            Pool::Postgres(pool) => {
                let sql = "UPDATE cached SET ver = ver + 1, val = $2 WHERE id = $1 RETURNING ver";
                let row = sqlx::query_scalar(sql).bind(key).bind(value);
                Ok(row.fetch_one(pool).await.map(i64::cast_unsigned)?)
            }
            Pool::MariaDb(pool) => {
                // It has no RETURNING for updates, but remembers a number for the connection.
                let sql = "UPDATE cached SET ver = LAST_INSERT_ID(ver + 1), val = ? WHERE id = ?";
                let row = sqlx::query(sql).bind(value).bind(key);
                Ok(row.execute(pool).await?.last_insert_id())
            }
        }
    }

    /// The same for a change that may come twice, or too late; 0 if it does.
    async fn write_in_order(
        &self,
        key: &str,
        value: Option<i64>,
        order: Order,
    ) -> Result<u64, sqlx::Error> {
        let [ms, seq] = [order.ms(), order.seq()].map(u64::cast_signed);
        match &self.pool {
            Pool::Postgres(pool) => {
                let sql = "INSERT INTO changes VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
                sqlx::query(sql).bind(key).bind(ms).bind(seq).bind(value).execute(pool).await?;
                let sql = "UPDATE cached SET ver = ver + 1, val = $4, ms = $2, seq = $3 \
                           WHERE id = $1 AND (ms, seq) < ($2, $3) RETURNING ver";
                let row = sqlx::query_scalar(sql).bind(key).bind(ms).bind(seq).bind(value);
                Ok(row.fetch_optional(pool).await?.map_or(0, i64::cast_unsigned))
            }
            Pool::MariaDb(pool) => {
                let sql = "INSERT IGNORE INTO changes VALUES (?, ?, ?, ?)";
                sqlx::query(sql).bind(key).bind(ms).bind(seq).bind(value).execute(pool).await?;
                let sql = "UPDATE cached SET ver = LAST_INSERT_ID(ver + 1), val = ?, seq = ?, ms = ? \
                           WHERE id = ? AND (ms, seq) < (?, ?)";
                let row =
                    sqlx::query(sql).bind(value).bind(seq).bind(ms).bind(key).bind(ms).bind(seq);
                let done = row.execute(pool).await?;
                Ok(if done.rows_affected() > 0 { done.last_insert_id() } else { 0 })
            }
        }
    }

    /// Now and then as long as a busy machine would take.
    async fn sometimes_slow(&self) {
        let pause = {
            let mut random = self.random.lock();
            if random.below(SLOW.0) > 0 { Duration::ZERO } else { random.duration(SLOW.1) }
        };
        sleep(pause).await;
    }
}

#[async_trait]
impl Loader<String, i64> for Rows {
    async fn load(&self, key: &String) -> Result<Loaded<i64>, BoxError> {
        let load = self.log.begin(0, key, Kind::Load);
        let (version, value) = self.read(key).await?;
        let version = version.cast_unsigned();
        load.found(Some(version), Source::Db);
        // Between the look at the database and the fill.
        self.sometimes_slow().await;
        Ok(Loaded::from(value).version(version))
    }
}

#[async_trait]
impl Database<String, i64> for Rows {
    async fn store(
        &self,
        key: &String,
        value: Option<&i64>,
        order: Option<Order>,
    ) -> Result<u64, BoxError> {
        self.sometimes_slow().await;
        let version = match order {
            Some(order) => self.write_in_order(key, value.copied(), order).await?,
            None => self.write(key, value.copied()).await?,
        };
        let held = self.held.lock().take_if(|held| key.starts_with(&held.prefix));
        if let Some(Hold { file, .. }) = held {
            // What the database has told somebody nobody may miss who asks later, whoever has written it.
            let told = self.log.begin(0, key, Kind::Read);
            let (version, _) = self.read(key).await?;
            told.found(Some(version.cast_unsigned()), Source::Db);
            std::fs::write(file, "")?;
            pending::<()>().await;
        }
        Ok(version)
    }
}
