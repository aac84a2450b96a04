//! A table in a real database that compares orders, or does not; and a list of all changes that it had.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_cache::{BoxError, Database, Loaded, Loader, Order};
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::postgres::{PgPool, PgPoolOptions};
use testkit::database::{Database as Server, System};
use testkit::wait::eventually;

/// The rows, and what each change was and who made it, in the order in which they were made.
fn tables(system: System) -> [String; 2] {
    let number = match system {
        System::Postgres => "BIGSERIAL PRIMARY KEY",
        System::MariaDb => "BIGINT AUTO_INCREMENT PRIMARY KEY",
    };
    [
        "CREATE TABLE things (id INT PRIMARY KEY, val BIGINT, ms BIGINT NOT NULL, seq BIGINT NOT NULL)".into(),
        format!("CREATE TABLE history (n {number}, id INT NOT NULL, val BIGINT, who BIGINT NOT NULL)"),
    ]
}

/// Makes a database with the tables and so many rows; its URL.
pub(crate) fn make(server: &Server, system: System, name: &str, keys: u32) -> String {
    server.operator("", &format!("CREATE DATABASE {name}"));
    for table in tables(system) {
        server.operator(name, &table);
    }
    let rows: Vec<String> = (0..keys).map(|id| format!("({id}, 0, 0, 0)")).collect();
    server.operator(name, &format!("INSERT INTO things VALUES {}", rows.join(", ")));
    server.url(name)
}

/// Each change, as it was made: its row, its value, and who made it.
pub(crate) fn history(server: &Server, name: &str) -> Vec<(u32, i64, i64)> {
    let lines = server.operator(name, "SELECT id, val, who FROM history ORDER BY n");
    let numbers =
        |line: &str| -> Vec<i64> { line.split('|').map(|n| n.parse().unwrap()).collect() };
    lines.lines().map(numbers).map(|row| (u32::try_from(row[0]).unwrap(), row[1], row[2])).collect()
}

/// What each row has.
pub(crate) fn values(server: &Server, name: &str) -> BTreeMap<u32, i64> {
    let lines = server.operator(name, "SELECT id, val FROM things");
    let pairs = lines.lines().filter_map(|line| line.split_once('|'));
    pairs.map(|(id, value)| (id.parse().unwrap(), value.parse().unwrap())).collect()
}

#[derive(Clone)]
enum Pool {
    Postgres(PgPool),
    MariaDb(MySqlPool),
}

#[derive(Clone)]
pub(crate) struct Rows {
    pool: Pool,
    who: i64,
    /// Whether it compares orders.
    heeds: bool,
    /// Where it says that it stands, before its first change, until it is told to go on.
    stands: Option<PathBuf>,
    stood: Arc<AtomicBool>,
}

pub(crate) fn go_on(stands: &Path) -> PathBuf {
    stands.with_extension("go")
}

/// Says that the change which came late is made.
pub(crate) fn made(stands: &Path) -> PathBuf {
    stands.with_extension("made")
}

/// One transaction: the row is locked, its order compared, and the change noted.
macro_rules! change {
    ($pool:expr, $rows:expr, $id:expr, $value:expr, $order:expr, $select:literal, $update:literal, $note:literal) => {{
        let mut tx = $pool.begin().await?;
        let last: (i64, i64) = sqlx::query_as($select).bind($id).fetch_one(&mut *tx).await?;
        if last < $order || !$rows.heeds {
            let update = sqlx::query($update).bind($value).bind($order.0).bind($order.1).bind($id);
            update.execute(&mut *tx).await?;
            sqlx::query($note).bind($id).bind($value).bind($rows.who).execute(&mut *tx).await?;
        }
        tx.commit().await?;
    }};
}

impl Rows {
    pub(crate) async fn connect(url: &str, who: i64, heeds: bool, stands: Option<PathBuf>) -> Self {
        let time = Duration::from_secs(30);
        let pool = if url.starts_with("postgres") {
            let options = PgPoolOptions::new().max_connections(10).acquire_timeout(time);
            Pool::Postgres(options.connect(url).await.unwrap())
        } else {
            let options = MySqlPoolOptions::new().max_connections(10).acquire_timeout(time);
            Pool::MariaDb(options.connect(url).await.unwrap())
        };
        Self { pool, who, heeds, stands, stood: Arc::default() }
    }

    async fn change(&self, id: i32, value: Option<i64>, order: Order) -> Result<(), sqlx::Error> {
        let order = (order.ms().cast_signed(), order.seq().cast_signed());
        match &self.pool {
            Pool::Postgres(pool) => change!(
                pool,
                self,
                id,
                value,
                order,
                "SELECT ms, seq FROM things WHERE id = $1 FOR UPDATE",
                "UPDATE things SET val = $1, ms = $2, seq = $3 WHERE id = $4",
                "INSERT INTO history (id, val, who) VALUES ($1, $2, $3)"
            ),
            Pool::MariaDb(pool) => change!(
                pool,
                self,
                id,
                value,
                order,
                "SELECT ms, seq FROM things WHERE id = ? FOR UPDATE",
                "UPDATE things SET val = ?, ms = ?, seq = ? WHERE id = ?",
                "INSERT INTO history (id, val, who) VALUES (?, ?, ?)"
            ),
        }
        Ok(())
    }

    async fn change_or_stand(
        self,
        id: i32,
        value: Option<i64>,
        order: Order,
    ) -> Result<(), sqlx::Error> {
        let stands = self.stands.clone().filter(|_| !self.stood.swap(true, Ordering::SeqCst));
        let Some(stands) = stands else { return self.change(id, value, order).await };
        std::fs::write(&stands, "").unwrap();
        eventually("it is told to go on", async || go_on(&stands).exists()).await;
        let changed = self.change(id, value, order).await;
        std::fs::write(made(&stands), "").unwrap();
        changed
    }
}

#[async_trait]
impl Loader<u32, i64> for Rows {
    async fn load(&self, id: &u32) -> Result<Loaded<i64>, BoxError> {
        let id = i32::try_from(*id)?;
        let value: Option<i64> = match &self.pool {
            Pool::Postgres(pool) => {
                let select = sqlx::query_scalar("SELECT val FROM things WHERE id = $1");
                select.bind(id).fetch_one(pool).await?
            }
            Pool::MariaDb(pool) => {
                let select = sqlx::query_scalar("SELECT val FROM things WHERE id = ?");
                select.bind(id).fetch_one(pool).await?
            }
        };
        Ok(value.into())
    }
}

#[async_trait]
impl Database<u32, i64> for Rows {
    async fn store(
        &self,
        id: &u32,
        value: Option<&i64>,
        order: Option<Order>,
    ) -> Result<u64, BoxError> {
        let (id, order) = (i32::try_from(*id)?, order.ok_or("written through only")?);
        // As a request that is on its way: nobody calls it back.
        tokio::spawn(self.clone().change_or_stand(id, value.copied(), order)).await??;
        Ok(0)
    }
}
