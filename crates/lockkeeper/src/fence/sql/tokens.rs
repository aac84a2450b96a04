//! The largest token of each lock, in a table.

use std::fmt;

use async_trait::async_trait;
use sqlx::{Pool, QueryBuilder};

use super::{Error, Result, Stale, System, Table, number, quote, store};
use crate::fence::TokenStore;
use crate::name::Name;
use crate::token::Token;

/// A [`TokenStore`] in a database: a row for each name, in the table `lockkeeper_tokens` or another.
///
/// A token that was seen already costs one `SELECT`, a new one an `INSERT` besides. Rows stay for ever; those of locks
/// that nobody uses any more can be deleted by hand.
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper::fence::sql::{SqlTokens, sqlx};
/// let tokens = SqlTokens::new(sqlx::PgPool::connect("postgres://localhost/shop").await?);
/// tokens.create_table().await?;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "postgres"))]
/// # fn main() {}
/// ```
pub struct SqlTokens<DB: System> {
    pool: Pool<DB>,
    table: Table<DB>,
}

impl<DB: System> SqlTokens<DB> {
    /// In the table `lockkeeper_tokens`, which must be there: see [`create_table`](Self::create_table). Every request
    /// needs a connection of the pool, of the server that is written to: a replica may not know the newest token.
    pub fn new(pool: Pool<DB>) -> Self {
        Self { pool, table: Table::named(None, "lockkeeper_tokens".into()) }
    }

    /// In another table, with the columns `name` and that of its fence.
    #[must_use]
    pub fn table(self, table: Table<DB>) -> Self {
        Self { table, ..self }
    }

    /// Makes the table where it is missing.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], among others for missing rights.
    pub async fn create_table(&self) -> Result<()> {
        let (table, fence) = (self.table.quoted(), quote::<DB>(&self.table.column));
        let columns =
            format!("name {} NOT NULL PRIMARY KEY, {fence} BIGINT NOT NULL", DB::LOCK_NAME);
        let mut sql = QueryBuilder::new(format!("CREATE TABLE IF NOT EXISTS {table} ({columns})"));
        let mut connection = self.pool.acquire().await.map_err(|error| self.failed(error))?;
        let made = DB::execute(&mut sql, false, &mut connection).await;
        made.map(drop).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: sqlx::Error) -> Error {
        store(format!("the tokens in {} cannot be compared", self.table), error)
    }

    /// The largest token of a name.
    async fn read(&self, name: &Name, connection: &mut DB::Connection) -> Result<Option<i64>> {
        let (table, fence) = (self.table.quoted(), quote::<DB>(&self.table.column));
        let mut sql = QueryBuilder::new(format!(
            "SELECT CAST({fence} AS {}) FROM {table} WHERE name = ",
            DB::NUMBER
        ));
        DB::bind_text(&mut sql, name.as_str());
        let read = DB::numbers(&mut sql, self.table.prepared, connection).await;
        Ok(read.map_err(|error| self.failed(error))?.into_iter().flatten().max())
    }

    /// Makes it this one, unless it is larger.
    async fn write(&self, name: &Name, token: i64, connection: &mut DB::Connection) -> Result<()> {
        let (table, fence) = (self.table.quoted(), quote::<DB>(&self.table.column));
        let mut sql = QueryBuilder::new(format!("INSERT INTO {table} (name, {fence}) VALUES ("));
        DB::bind_text(&mut sql, name.as_str());
        sql.push(", ");
        DB::bind(&mut sql, token);
        let or = DB::OR_LARGER.replace("{table}", &table).replace("{fence}", &fence);
        sql.push(format_args!(") {or}"));
        let written = DB::execute(&mut sql, self.table.prepared, connection).await;
        written.map(drop).map_err(|error| self.failed(error))
    }
}

impl<DB: System> fmt::Debug for SqlTokens<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlTokens").field("table", &self.table).finish_non_exhaustive()
    }
}

#[async_trait]
impl<DB: System> TokenStore for SqlTokens<DB> {
    async fn raise(&self, name: &Name, token: Token) -> Result<()> {
        let wanted = number(token)?;
        let mut connection = self.pool.acquire().await.map_err(|error| self.failed(error))?;
        for is_written in [false, true] {
            match self.read(name, &mut connection).await? {
                Some(seen) if seen > wanted => {
                    let newest = u64::try_from(seen).ok().and_then(Token::new);
                    return Err(Error::Stale(Stale { resource: name.to_string(), token, newest }));
                }
                // Committed by whoever wrote it, and nothing newer is: as good as written anew.
                Some(seen) if seen == wanted => return Ok(()),
                _ if is_written => break,
                _ => self.write(name, wanted, &mut connection).await?,
            }
        }
        let context = format!("the token of {name} in {} was lowered by somebody", self.table);
        Err(Error::Store { context, source: None })
    }
}
