//! An outbox in a PostgreSQL database.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool, Row as _};

use super::sql::{STATEMENT_TIME, age, hex, in_time};
use super::{Outbox, Row};
use crate::error::{BoxError, Error, Result};
use crate::provider::provider;
use crate::store::millis;

/// Makes the table; where it is, nothing.
pub const CREATE_TABLE: &str = "CREATE TABLE IF NOT EXISTS lockkeeper_outbox (\
    id varchar(32) PRIMARY KEY, touched text NOT NULL, \
    created timestamptz NOT NULL DEFAULT clock_timestamp())";

/// Inserts a [`Row`]: its id and its keys. To be done in the transaction that changes what they stand for.
pub const INSERT: &str = "INSERT INTO lockkeeper_outbox (id, touched) VALUES ($1, $2)";

/// A table `lockkeeper_outbox` of a PostgreSQL database.
///
/// Statements go without being prepared, each by itself: any pooler will do. It needs `SELECT` and `DELETE` on the table;
/// who writes needs `INSERT`.
pub struct Postgres {
    pool: PgPool,
}

impl Postgres {
    /// The database that a URL of sqlx names; it is connected to when it is needed. Up to two connections. Must be called inside
    /// a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a URL that makes no sense.
    pub fn new(url: &str) -> Result<Self> {
        provider();
        // It may name a password.
        let bad = |_| Error::Config("the URL of an outbox makes no sense".into());
        let options = PgPoolOptions::new().max_connections(2).acquire_timeout(STATEMENT_TIME);
        Ok(Self { pool: options.connect_lazy(url).map_err(bad)? })
    }
}

fn text(text: &str) -> String {
    format!("convert_from(decode('{}', 'hex'), 'UTF8')", hex(text))
}

#[async_trait]
impl Outbox for Postgres {
    async fn read(&self, age: Duration, after: &str, limit: usize) -> Result<Vec<Row>, BoxError> {
        let (age, after) = (millis(age), text(after));
        let sql = format!(
            "SELECT id, touched FROM lockkeeper_outbox WHERE id > {after} \
             AND created <= clock_timestamp() - interval '{age} milliseconds' \
             ORDER BY id LIMIT {limit}"
        );
        let rows = in_time(sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&self.pool)).await?;
        let row =
            |row: &sqlx::postgres::PgRow| Ok(Row { id: row.try_get(0)?, touched: row.try_get(1)? });
        Ok(rows.iter().map(row).collect::<Result<_, sqlx::Error>>()?)
    }

    async fn delete(&self, ids: &[String]) -> Result<(), BoxError> {
        let ids: Vec<String> = ids.iter().map(|id| text(id)).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let sql = format!("DELETE FROM lockkeeper_outbox WHERE id IN ({})", ids.join(", "));
        in_time(sqlx::raw_sql(AssertSqlSafe(sql)).execute(&self.pool)).await?;
        Ok(())
    }

    async fn oldest(&self) -> Result<Option<Duration>, BoxError> {
        let sql = "SELECT (date_part('epoch', clock_timestamp() - min(created)) * 1000)::bigint \
                   FROM lockkeeper_outbox";
        let row = in_time(sqlx::raw_sql(sql).fetch_one(&self.pool)).await?;
        Ok(age(row.try_get(0)?))
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its options have the password.
        f.debug_struct("Postgres").finish_non_exhaustive()
    }
}
