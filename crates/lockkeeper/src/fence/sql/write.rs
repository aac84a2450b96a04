//! Statements that compare the fence and write, at once.

use std::fmt;

use sqlx::{Connection, QueryBuilder, Transaction};

use super::row::{Row, Value, bind};
use super::{Error, Result, Stale, System, Table, number, quote, refused, written};
use crate::token::Token;

/// How often a write is tried whose refusal cannot be explained: the row has changed in between.
const TRIES: u32 = 16;

/// What is written to which row, under which token.
struct Parts<'t, DB: System> {
    row: Row<'t, DB>,
    token: Token,
}

impl<'t, DB: System> Parts<'t, DB> {
    fn new(table: &'t Table<DB>, token: Token) -> Self {
        Self { row: Row::new(table), token }
    }

    /// The number of the token, if everything else makes sense too.
    fn check(&mut self, needs_key: bool) -> Result<i64> {
        self.row.check(needs_key)?;
        number(self.token)
    }

    /// `AND` the fence is not newer.
    fn push_fence(&self, sql: &mut QueryBuilder<DB>, token: i64) {
        let fence = quote::<DB>(&self.row.table.column);
        sql.push(format_args!(" AND ({fence} IS NULL OR {fence} <= "));
        DB::bind(sql, token);
        sql.push(")");
    }

    /// `UPDATE` with what is to be set, and `by` for the trigger.
    async fn update(
        &self,
        token: i64,
        by: Option<i64>,
        connection: &mut DB::Connection,
    ) -> Result<()> {
        let (table, fence) = (self.row.table.quoted(), quote::<DB>(&self.row.table.column));
        let build = || {
            let mut sql = QueryBuilder::new(format!("UPDATE {table} SET "));
            self.row.push_sets(&mut sql);
            sql.push(format_args!("{fence} = "));
            DB::bind(&mut sql, token);
            if let Some(by) = by {
                sql.push(format_args!(", {} = ", quote::<DB>(&self.row.table.by())));
                DB::bind(&mut sql, by);
            }
            self.row.push_key(&mut sql);
            self.push_fence(&mut sql, token);
            sql
        };
        self.once(build, token, connection).await
    }

    /// Carries out a statement that must match one row.
    async fn once(
        &self,
        build: impl Fn() -> QueryBuilder<DB> + Send + Sync,
        token: i64,
        connection: &mut DB::Connection,
    ) -> Result<()> {
        for _ in 0..TRIES {
            match DB::execute(&mut build(), self.row.table.prepared, connection)
                .await
                .map_err(|error| self.failed(error))?
            {
                1 => return Ok(()),
                0 => {}
                rows => return Err(Error::Ambiguous { resource: self.row.resource(), rows }),
            }
            // Refused already: this only tells why.
            if let Some(why) = self.explain(token, connection).await? {
                return Err(why);
            }
        }
        let context = format!("{} is changed by others all the time", self.row.resource());
        Err(Error::Store { context, source: None })
    }

    /// Why no row matched, if it would not match now either.
    async fn explain(&self, token: i64, connection: &mut DB::Connection) -> Result<Option<Error>> {
        let (fence, number) = (quote::<DB>(&self.row.table.column), DB::NUMBER);
        let mut sql = QueryBuilder::new(format!(
            "SELECT CAST({fence} AS {number}) FROM {}",
            self.row.table.quoted()
        ));
        self.row.push_key(&mut sql);
        sql.push(DB::AS_IT_IS);
        let found = DB::numbers(&mut sql, self.row.table.prepared, connection)
            .await
            .map_err(|error| self.failed(error))?;
        let resource = self.row.resource();
        if found.is_empty() {
            return Ok(Some(Error::Missing { resource }));
        }
        let newest = found.into_iter().flatten().max().filter(|newest| *newest > token);
        Ok(newest.map(|newest| {
            let newest = u64::try_from(newest).ok().and_then(Token::new);
            Error::Stale(Stale { resource, token: self.token, newest })
        }))
    }

    /// What the database said, about this row.
    fn failed(&self, error: sqlx::Error) -> Error {
        let resource = self.row.resource();
        match refused(&error) {
            Some(Error::Stale(stale)) => Error::Stale(Stale { resource, ..stale }),
            Some(Error::NoToken { .. }) => Error::NoToken { resource, hint: self.row.table.hint() },
            Some(other) => other,
            None => written(format!("writing to {resource} failed"), error),
        }
    }
}

/// An `UPDATE` of one row, carried out by [`execute`](Self::execute) or [`raise`](Self::raise).
#[must_use = "nothing is written before `execute` or `raise`"]
pub struct Write<'t, DB: System> {
    parts: Parts<'t, DB>,
}

impl<'t, DB: System> Write<'t, DB> {
    pub(super) fn new(table: &'t Table<DB>, token: Token) -> Self {
        Self { parts: Parts::new(table, token) }
    }

    /// Which row: the column has this value. Several must all have theirs.
    pub fn key(mut self, column: &str, value: impl Value<DB> + fmt::Debug) -> Self {
        self.parts.row.key(column, value);
        self
    }

    /// Sets a column.
    pub fn set(mut self, column: &str, value: impl Value<DB>) -> Self {
        self.parts.row.set(column, bind(value));
        self
    }

    /// Sets a column to an expression, which is SQL: never put there what came from outside, bind it.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # #[allow(dead_code)]
    /// # async fn pay(token: lockkeeper::Token, connection: &mut lockkeeper::fence::sql::sqlx::PgConnection) -> lockkeeper::fence::Result<()> {
    /// # use lockkeeper::fence::sql::{Table, sqlx::Postgres};
    /// let accounts = Table::<Postgres>::new("accounts")?;
    /// let pay = accounts.update(token).key("id", 42_i64).set_to("balance", |sql| {
    ///     sql.push("balance - ").push_bind(5_i64);
    /// });
    /// pay.execute(connection).await
    /// # }
    /// ```
    pub fn set_to(
        mut self,
        column: &str,
        expression: impl Fn(&mut QueryBuilder<DB>) + Send + Sync + 'static,
    ) -> Self {
        self.parts.row.set(column, Box::new(expression));
        self
    }

    /// Writes, unless the row has seen a newer token. One statement: the connection may be in a
    /// transaction, and need not. Without anything to set it raises the fence, so that late writers are
    /// refused from now on.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`], [`Error::Missing`] and whatever the database says.
    pub async fn execute(mut self, connection: &mut DB::Connection) -> Result<()> {
        let token = self.parts.check(true)?;
        self.parts.update(token, self.parts.row.table.trigger.then_some(token), connection).await
    }

    /// The same, and the row stays locked until the transaction ends: whatever else is written in it comes
    /// before everything under a newer token.
    ///
    /// # Errors
    ///
    /// As for [`execute`](Self::execute): roll the transaction back.
    pub async fn raise(self, transaction: &mut Transaction<'_, DB>) -> Result<()> {
        self.execute(&mut **transaction).await
    }
}

/// An `INSERT` of one row that is fenced from the beginning.
#[must_use = "nothing is written before `execute`"]
pub struct Insert<'t, DB: System> {
    parts: Parts<'t, DB>,
}

impl<'t, DB: System> Insert<'t, DB> {
    pub(super) fn new(table: &'t Table<DB>, token: Token) -> Self {
        Self { parts: Parts::new(table, token) }
    }

    /// Sets a column.
    pub fn set(mut self, column: &str, value: impl Value<DB>) -> Self {
        self.parts.row.set(column, bind(value));
        self
    }

    /// Makes the row.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] with the driver's error, `is_unique_violation` if the row is there already:
    /// then update it.
    pub async fn execute(mut self, connection: &mut DB::Connection) -> Result<()> {
        let token = self.parts.check(false)?;
        let table = self.parts.row.table;
        let fence = quote::<DB>(&table.column);
        let columns = self.parts.row.sets.iter().map(|(column, _)| quote::<DB>(column) + ", ");
        let columns: String = columns.collect();
        let mut sql = QueryBuilder::new(format!(
            "INSERT INTO {} ({columns}{fence}) VALUES (",
            table.quoted()
        ));
        for (_, push) in &self.parts.row.sets {
            push(&mut sql);
            sql.push(", ");
        }
        DB::bind(&mut sql, token);
        sql.push(")");
        DB::execute(&mut sql, table.prepared, connection)
            .await
            .map_err(|error| self.parts.failed(error))?;
        Ok(())
    }
}

/// A `DELETE` of one row.
#[must_use = "nothing is deleted before `execute`"]
pub struct Delete<'t, DB: System> {
    parts: Parts<'t, DB>,
}

impl<'t, DB: System> Delete<'t, DB> {
    pub(super) fn new(table: &'t Table<DB>, token: Token) -> Self {
        Self { parts: Parts::new(table, token) }
    }

    /// Which row: the column has this value. Several must all have theirs.
    pub fn key(mut self, column: &str, value: impl Value<DB> + fmt::Debug) -> Self {
        self.parts.row.key(column, value);
        self
    }

    /// Deletes the row, unless it has seen a newer token. One statement; with a trigger two, in a
    /// transaction, or in a savepoint if the connection is in one already.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`], [`Error::Missing`] and whatever the database says.
    pub async fn execute(mut self, connection: &mut DB::Connection) -> Result<()> {
        let token = self.parts.check(true)?;
        if !self.parts.row.table.trigger {
            return self.delete(token, connection).await;
        }
        let failed = |error| self.parts.failed(error);
        let mut transaction = connection.begin().await.map_err(failed)?;
        // A trigger on DELETE sees no new values, so the token is said before.
        let deleted = match self.parts.update(token, Some(-token), &mut transaction).await {
            Ok(()) => self.delete(token, &mut transaction).await,
            refused => refused,
        };
        match deleted {
            Ok(()) => transaction.commit().await.map_err(failed),
            refused => {
                // Now, and not with the next use of the connection: the row is locked until then. If it
                // fails, the connection is gone, and the transaction with it.
                let _ = transaction.rollback().await;
                refused
            }
        }
    }

    async fn delete(&self, token: i64, connection: &mut DB::Connection) -> Result<()> {
        let build = || {
            let mut sql =
                QueryBuilder::new(format!("DELETE FROM {}", self.parts.row.table.quoted()));
            self.parts.row.push_key(&mut sql);
            self.parts.push_fence(&mut sql, token);
            sql
        };
        self.parts.once(build, token, connection).await
    }
}

macro_rules! debug {
    ($($type:ident)+) => {
        $(impl<DB: System> fmt::Debug for $type<'_, DB> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($type))
                    .field("resource", &self.parts.row.resource())
                    .field("token", &self.parts.token)
                    .finish_non_exhaustive()
            }
        })+
    };
}

debug! { Write Insert Delete }
