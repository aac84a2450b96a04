//! Five tables, what is done to their rows, and a cache in front of each.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_cache::cdc::Rule;
use lockkeeper_cache::{BoxError, Cache, Loaded, Loader, Redis};
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, raw_sql};
use testkit::database::System;
use testkit::random::Random;
use testkit::wait::CASE;

/// So many rows each table has at most.
pub(crate) const ROWS: u64 = 1000;

/// So many keys a row may have, one after the other.
const FORMS: u64 = 3;

pub(crate) type Names = Cache<String, String>;

/// A table, and how the key of a row is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    columns: &'static str,
    rule: &'static str,
    /// The same in SQL.
    text: &'static str,
    /// The values of the columns in row `#` of form `@`, and what they are called.
    row: (&'static str, &'static str),
    /// How a row is found, whatever its form.
    find: &'static str,
    /// What changes the form, if anything does.
    form: Option<&'static str>,
}

pub(crate) const TABLES: [Table; 5] = [
    Table {
        name: "users",
        columns: "id BIGINT PRIMARY KEY",
        rule: "{id}",
        text: "CONCAT(id, '')",
        row: ("id", "#"),
        find: "id = #",
        form: None,
    },
    Table {
        name: "items",
        columns: "tenant INT NOT NULL, sku VARCHAR(40) NOT NULL, PRIMARY KEY (tenant, sku)",
        rule: "{tenant}/{sku}",
        text: "CONCAT(tenant, '/', sku)",
        row: ("tenant, sku", "@, 'sku-#'"),
        find: "sku = 'sku-#'",
        form: Some("tenant = @"),
    },
    Table {
        name: "mails",
        columns: "id BIGINT PRIMARY KEY, email VARCHAR(80) NOT NULL",
        rule: "{email}",
        text: "email",
        row: ("id, email", "#, 'u#.@@example.org'"),
        find: "id = #",
        form: Some("email = 'u#.@@example.org'"),
    },
    Table {
        name: "counters",
        columns: "id DECIMAL(20) PRIMARY KEY",
        rule: "c-{id}",
        text: "CONCAT('c-', id)",
        row: ("id", "18446744073709500000 + #"),
        find: "id = 18446744073709500000 + #",
        form: None,
    },
    Table {
        name: "notes",
        columns: "id VARCHAR(36) PRIMARY KEY, day DATE NOT NULL",
        rule: "{day}:{id}",
        text: "CONCAT(day, ':', id)",
        row: ("id, day", "'n#', '2026-01-1@'"),
        find: "id = 'n#'",
        form: Some("day = '2026-01-1@'"),
    },
];

fn fill_in(text: &str, number: u64, form: u64) -> String {
    // The second one stands in an address.
    let text = text.replace('#', &number.to_string());
    match text.split_once("@@") {
        Some((before, after)) => format!("{before}{form}@{after}"),
        None => text.replace('@', &form.to_string()),
    }
}

impl Table {
    pub(crate) fn rule(&self, system: System) -> Rule {
        let schema = if system == System::Postgres { "public" } else { "here" };
        Rule::new(&format!("{schema}.{}", self.name), self.rule).unwrap()
    }

    fn create(&self) -> String {
        format!("CREATE TABLE {} ({}, v VARCHAR(200) NOT NULL)", self.name, self.columns)
    }

    /// Every key that a row may ever have.
    pub(crate) fn keys(&self) -> impl Iterator<Item = String> + '_ {
        let forms = if self.form.is_some() { FORMS } else { 1 };
        (0..ROWS).flat_map(move |number| (0..forms).map(move |form| self.key(number, form)))
    }

    pub(crate) fn key(&self, number: u64, form: u64) -> String {
        match self.name {
            "users" => number.to_string(),
            "items" => format!("{form}/sku-{number}"),
            "mails" => format!("u{number}.{form}@example.org"),
            "counters" => format!("c-{}", 18_446_744_073_709_500_000 + u128::from(number)),
            _ => format!("2026-01-1{form}:n{number}"),
        }
    }

    /// Any change of some row.
    fn change(&self, random: &mut Random, value: &str) -> String {
        let (number, form) = (random.below(ROWS), random.below(FORMS));
        let (table, find) = (self.name, fill_in(self.find, number, form));
        match (random.below(10), self.form) {
            (0 | 1, _) => format!("DELETE FROM {table} WHERE {find}"),
            (2 | 3, Some(change)) => {
                let change = fill_in(change, number, form);
                format!("UPDATE {table} SET {change}, v = '{value}' WHERE {find}")
            }
            (4 | 5, _) => format!("UPDATE {table} SET v = '{value}' WHERE {find}"),
            _ => self.upsert(number, form, value),
        }
    }

    fn upsert(&self, number: u64, form: u64, value: &str) -> String {
        let (table, find, names) = (self.name, fill_in(self.find, number, form), self.row.0);
        let row = fill_in(self.row.1, number, form);
        format!(
            "DELETE FROM {table} WHERE {find}; \
             INSERT INTO {table} ({names}, v) VALUES ({row}, '{value}')"
        )
    }
}

#[derive(Clone, Debug)]
enum Pool {
    Postgres(PgPool),
    MariaDb(MySqlPool),
}

/// The database, as one who knows nothing of caches sees it.
#[derive(Clone, Debug)]
pub(crate) struct Shop {
    pub(crate) system: System,
    pool: Pool,
}

impl Shop {
    pub(crate) async fn connect(url: &str) -> Self {
        if url.starts_with("postgres") {
            let options = PgPoolOptions::new().max_connections(24).acquire_timeout(CASE);
            let pool = Pool::Postgres(options.connect(url).await.unwrap());
            Self { system: System::Postgres, pool }
        } else {
            let options = MySqlPoolOptions::new().max_connections(24).acquire_timeout(CASE);
            let pool = Pool::MariaDb(options.connect(url).await.unwrap());
            Self { system: System::MariaDb, pool }
        }
    }

    pub(crate) async fn make(&self) {
        for table in TABLES {
            self.run(&table.create()).await.unwrap();
        }
        if self.system == System::Postgres {
            for table in TABLES {
                let name = table.name;
                let full = format!("ALTER TABLE {name} REPLICA IDENTITY FULL");
                self.run(&full).await.unwrap();
            }
            let tables = TABLES.map(|table| table.name).join(", ");
            let publication = format!("CREATE PUBLICATION lockkeeper FOR TABLE {tables}");
            self.run(&publication).await.unwrap();
        }
    }

    /// Runs these statements as one transaction; how many rows they changed.
    pub(crate) async fn run(&self, sql: &str) -> sqlx::Result<u64> {
        let sql = raw_sql(AssertSqlSafe(sql.to_owned()));
        match &self.pool {
            Pool::Postgres(pool) => {
                let mut transaction = pool.begin().await?;
                let done = sql.execute(&mut *transaction).await?;
                transaction.commit().await?;
                Ok(done.rows_affected())
            }
            Pool::MariaDb(pool) => {
                let mut transaction = pool.begin().await?;
                let done = sql.execute(&mut *transaction).await?;
                transaction.commit().await?;
                Ok(done.rows_affected())
            }
        }
    }

    /// Rows of a table with their keys: all, or those of this one.
    async fn rows(&self, table: &Table, key: Option<&str>) -> sqlx::Result<Vec<(String, String)>> {
        let Table { name, text, .. } = table;
        let all = format!("SELECT {text}, v FROM {name}");
        // With a parameter, or there would be another statement for each key.
        match (&self.pool, key) {
            (Pool::Postgres(pool), None) => {
                sqlx::query_as(AssertSqlSafe(all)).fetch_all(pool).await
            }
            (Pool::MariaDb(pool), None) => sqlx::query_as(AssertSqlSafe(all)).fetch_all(pool).await,
            (Pool::Postgres(pool), Some(key)) => {
                let one = AssertSqlSafe(format!("{all} WHERE {text} = $1"));
                sqlx::query_as(one).bind(key).fetch_all(pool).await
            }
            (Pool::MariaDb(pool), Some(key)) => {
                let one = AssertSqlSafe(format!("{all} WHERE {text} = ?"));
                sqlx::query_as(one).bind(key).fetch_all(pool).await
            }
        }
    }

    /// Makes a row what is said here, whatever was there.
    pub(crate) async fn upsert(&self, table: &Table, number: u64, form: u64, value: &str) {
        let sql = table.upsert(number, form, value);
        // Two that meet may be told to try again.
        for _ in 0..100 {
            if self.run(&sql).await.is_ok() {
                return;
            }
        }
        panic!("it is never taken: {sql}");
    }

    /// All rows of a table by their keys.
    pub(crate) async fn all(&self, table: &Table) -> BTreeMap<String, String> {
        self.rows(table, None).await.unwrap().into_iter().collect()
    }

    /// A cache in front of a table. Nothing in it ends by itself.
    pub(crate) async fn cache(&self, table: Table, redis: &str) -> Names {
        let store = Redis::connect(redis).await.unwrap();
        let (hour, loads) = (Duration::from_secs(3600), Duration::from_secs(20));
        Cache::builder(store)
            .namespace(table.name)
            .ttl(hour)
            .null_ttl(hour)
            .timeout(loads)
            .build(Rows { shop: self.clone(), table })
            .unwrap()
    }

    /// Some changes in one transaction, or none because it is rolled back; how many rows they changed.
    pub(crate) async fn disturb(&self, random: &mut Random, value: &str) -> u64 {
        let count = 1 + random.below(20);
        let changes = (0..count).map(|_| {
            let table = TABLES[usize::try_from(random.below(5)).unwrap()];
            table.change(random, value)
        });
        let changes: Vec<String> = changes.collect();
        let sql = match random.below(8) {
            0 => format!("{}; SELECT no_such_function()", changes.join("; ")),
            _ => changes.join("; "),
        };
        // Two that meet may be told to try again: then nothing has changed.
        self.run(&sql).await.unwrap_or(0)
    }
}

/// Reads a table.
#[derive(Debug)]
struct Rows {
    shop: Shop,
    table: Table,
}

#[async_trait]
impl Loader<String, String> for Rows {
    async fn load(&self, key: &String) -> Result<Loaded<String>, BoxError> {
        let found = self.shop.rows(&self.table, Some(key)).await?;
        Ok(found.into_iter().next().map(|(_, value)| value).into())
    }
}
