//! A table of numbers in a database of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_cache::outbox::{Builder, Relay, Row, mysql, postgres};
use lockkeeper_cache::{BoxError, Builder as CacheBuilder, Cache, Loaded};
use sqlx::{Connection, MySqlConnection, MySqlPool, PgConnection, PgPool};
use testkit::database::{Database, System};

/// A database with the tables `items` and `lockkeeper_outbox`.
pub(crate) struct Sql {
    system: System,
    server: Arc<Database>,
    name: String,
    pool: Pool,
}

#[derive(Clone)]
enum Pool {
    Postgres(PgPool),
    MySql(MySqlPool),
}

/// A transaction of a writer.
pub(crate) enum Open {
    Postgres(sqlx::PgTransaction<'static>),
    MySql(sqlx::MySqlTransaction<'static>),
}

impl Sql {
    pub(crate) async fn new(system: System) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let server = system.shared().await;
        let name = format!("outbox{}", COUNT.fetch_add(1, Ordering::Relaxed));
        server.operator("", &format!("CREATE DATABASE {name}"));
        server.operator(&name, "CREATE TABLE items (id INT PRIMARY KEY, number BIGINT NOT NULL)");
        server.operator(&name, "INSERT INTO items VALUES (1, 1), (2, 1)");
        let create = match system {
            System::Postgres => postgres::CREATE_TABLE,
            System::MariaDb => mysql::CREATE_TABLE,
        };
        // Twice: it may be there.
        server.operator(&name, create);
        server.operator(&name, create);
        let pool = pool(system, &server.url(&name));
        Self { system, server, name, pool }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url(&self.name)
    }

    pub(crate) fn operator(&self, sql: &str) -> String {
        self.server.operator(&self.name, sql)
    }

    /// How many rows there are in the outbox.
    pub(crate) fn rows(&self) -> u64 {
        self.operator("SELECT count(*) FROM lockkeeper_outbox").parse().unwrap()
    }

    /// Numbers by their id.
    pub(crate) fn cache(&self, builder: CacheBuilder) -> Cache<i32, i64> {
        cache(builder, &self.pool)
    }

    pub(crate) fn relay(&self) -> Builder {
        match self.system {
            System::Postgres => Relay::builder(postgres::Postgres::new(&self.url()).unwrap()),
            System::MariaDb => Relay::builder(mysql::MySql::new(&self.url()).unwrap()),
        }
    }

    pub(crate) async fn begin(&self, row: &Row) -> Open {
        begin(&self.pool, row).await
    }
}

impl Open {
    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Postgres(sql) => sql.commit().await,
            Self::MySql(sql) => sql.commit().await,
        }
    }

    pub(crate) async fn rollback(self) {
        match self {
            Self::Postgres(sql) => sql.rollback().await.unwrap(),
            Self::MySql(sql) => sql.rollback().await.unwrap(),
        }
    }
}

fn pool(system: System, url: &str) -> Pool {
    match system {
        System::Postgres => Pool::Postgres(PgPool::connect_lazy(url).unwrap()),
        System::MariaDb => Pool::MySql(MySqlPool::connect_lazy(url).unwrap()),
    }
}

fn cache(builder: CacheBuilder, pool: &Pool) -> Cache<i32, i64> {
    const READ: [&str; 2] =
        ["SELECT number FROM items WHERE id = $1", "SELECT number FROM items WHERE id = ?"];
    let pool = pool.clone();
    let loader = move |id: i32| {
        let pool = pool.clone();
        async move {
            let number: Option<i64> = match &pool {
                Pool::Postgres(pool) => {
                    sqlx::query_scalar(READ[0]).bind(id).fetch_optional(pool).await?
                }
                Pool::MySql(pool) => {
                    sqlx::query_scalar(READ[1]).bind(id).fetch_optional(pool).await?
                }
            };
            Ok::<_, BoxError>(Loaded::from(number))
        }
    };
    builder.build(loader).unwrap()
}

/// Counts item 1 up, and inserts the row.
async fn begin(pool: &Pool, row: &Row) -> Open {
    const WRITE: &str = "UPDATE items SET number = number + 1 WHERE id = 1";
    match pool {
        Pool::Postgres(pool) => {
            let mut sql = pool.begin().await.unwrap();
            sqlx::query(WRITE).execute(&mut *sql).await.unwrap();
            let insert = sqlx::query(postgres::INSERT).bind(&row.id).bind(&row.touched);
            insert.execute(&mut *sql).await.unwrap();
            Open::Postgres(sql)
        }
        Pool::MySql(pool) => {
            let mut sql = pool.begin().await.unwrap();
            sqlx::query(WRITE).execute(&mut *sql).await.unwrap();
            let insert = sqlx::query(mysql::INSERT).bind(&row.id).bind(&row.touched);
            insert.execute(&mut *sql).await.unwrap();
            Open::MySql(sql)
        }
    }
}

/// A writer that ends, without any goodbye, when it has committed: run by `relay::writer_main`.
pub(crate) async fn write_and_die(redis: &str, sql: &str) {
    let system = match sql.starts_with("postgres") {
        true => System::Postgres,
        false => System::MariaDb,
    };
    // Connected first, so that a failure is not taken for the end.
    match system {
        System::Postgres => drop(PgConnection::connect(sql).await.unwrap()),
        System::MariaDb => drop(MySqlConnection::connect(sql).await.unwrap()),
    }
    let store = lockkeeper_cache::Redis::connect(redis).await.unwrap();
    let pool = pool(system, sql);
    let cache = cache(Cache::builder(store).namespace("cache"), &pool);
    let mut tx = cache.transaction();
    tx.touch(&1).unwrap();
    let open = begin(&pool, &tx.row()).await;
    let commit = async {
        open.commit().await.unwrap();
        std::process::abort()
    };
    let _ = tx.commit::<(), sqlx::Error>(commit).await;
}
