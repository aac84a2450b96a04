//! Rows of PostgreSQL, MySQL and MariaDB that refuse late writers.
//!
//! The largest token is in a column of the row itself, `fence BIGINT NULL`, and is compared and set by the
//! very statement that writes. `NULL` is a row that was never fenced.
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use lockkeeper::fence::Error;
//! use lockkeeper::fence::sql::Table;
//! use lockkeeper::fence::sql::sqlx::{Connection, PgConnection, Postgres};
//!
//! let accounts = Table::<Postgres>::new("accounts")?;
//! let mut connection = PgConnection::connect("postgres://localhost/shop").await?;
//!
//! let locks = lockkeeper::Locks::connect("postgres://localhost/shop").await?;
//! let guard = locks.mutex("accounts/42").lock().await?;
//! // UPDATE "accounts" SET "balance" = 100, "fence" = … WHERE "id" = 42 AND "fence" <= …
//! let written = accounts
//!     .update(guard.token())
//!     .key("id", 42_i64)
//!     .set("balance", 100_i64)
//!     .execute(&mut connection)
//!     .await;
//! match written {
//!     Err(Error::Stale(late)) => eprintln!("somebody else was here: {late}"),
//!     Err(Error::Missing { resource }) => eprintln!("there is no {resource}"),
//!     other => other?,
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "postgres"))]
//! # fn main() {}
//! ```
//!
//! # Transactions
//!
//! Writes that are more than one row, or SQL of your own: [`Write::raise`] first, in the same transaction.
//! It compares and sets the fence of one row and keeps that row locked until the transaction ends, so
//! nobody with a newer token can come in between. Everything else in the transaction is as late or as
//! timely as that row.
//!
//! ```no_run
//! # #[cfg(feature = "mysql")]
//! # #[allow(dead_code)]
//! # async fn move_all(guard: &lockkeeper::Guard, connection: &mut lockkeeper::fence::sql::sqlx::MySqlConnection) -> Result<(), Box<dyn std::error::Error>> {
//! use lockkeeper::fence::sql::Table;
//! use lockkeeper::fence::sql::sqlx::{self, Connection, MySql};
//!
//! let shelves = Table::<MySql>::new("shelves")?;
//! let mut transaction = connection.begin().await?;
//! shelves.update(guard.token()).key("id", 7_i64).raise(&mut transaction).await?;
//! sqlx::query("UPDATE items SET shelf = 8 WHERE shelf = 7").execute(&mut *transaction).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Behind PgBouncer in transaction mode use a transaction always, and [`Table::unprepared`]: what the driver
//! prepares stays with a connection that is lent to others.
//!
//! # Writers that forget
//!
//! All of this is of use only if *every* writer does it. [`Table::install_trigger`], or
//! `lockkeeper init --fence TABLE`, makes the database insist: it adds the columns and a trigger that
//! refuses writes under an older token, and on rows that were ever fenced also writes under none. A writer
//! says its token in the column `fence_by`, which the trigger always empties again, so a statement that
//! does not mention it is known to have forgotten. There is nothing in the session that could leak to the
//! next user of a pooled connection.
//!
//! | statement on a row with `fence = 7` | |
//! | --- | --- |
//! | `SET …, fence_by = 7`, or any larger number | done; `fence` is that number |
//! | `SET …, fence_by = 6` or `SET …, fence = 6` | refused: SQLSTATE `LKF01`, [`Error::Stale`] |
//! | `SET …, fence = 8` | done |
//! | `SET …`, and neither, or the old `fence = 7` | refused: SQLSTATE `LKF02`, [`Error::NoToken`] |
//! | `DELETE` | refused: `LKF02`; after `SET fence_by = -7`, in the same transaction, done |
//!
//! Tell the helper about the trigger with [`Table::with_trigger`]. SQL of your own gets the same errors by
//! `?` or `Error::from`.
//!
//! # What it does not do
//!
//! A row that is deleted forgets its fence: who comes late can insert it again. Keep the row and mark it,
//! or raise a row that stays. `TRUNCATE`, changes by a foreign key's `ON DELETE CASCADE` in MySQL, and
//! whoever may drop the trigger are not stopped. In an upsert say the token as a parameter, not as
//! `excluded.fence_by` or `VALUES(fence_by)`, which the trigger has emptied already: it is refused.

mod marked;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod row;
mod tokens;
mod write;

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;

pub use sqlx;
use sqlx::{Database, QueryBuilder};

pub use self::marked::{Marked, Marking};
pub use self::row::Value;
pub use self::tokens::SqlTokens;
pub use self::write::{Delete, Insert, Write};
use super::{Error, Mark, Result, Stale};
use crate::token::Token;

/// SQLSTATE of our triggers: an older token, and none.
const STALE: &str = "LKF01";
const NO_TOKEN: &str = "LKF02";
/// PostgreSQL cuts longer names, MySQL refuses them.
const LONGEST: usize = 63;

/// A database system that rows can be fenced in: `sqlx::Postgres` and `sqlx::MySql`.
pub trait System: Database + sealed::Dialect {}

mod sealed {
    use super::{Database, Future, QueryBuilder, Result, Table};

    /// What each system does in its own way.
    pub trait Dialect: Database {
        /// Around a name.
        const QUOTE: char;
        /// The type of a fence, to read it as.
        const NUMBER: &'static str;
        /// Reads the row as it is now, not as it was when the transaction began.
        const AS_IT_IS: &'static str;

        /// The type of a lock's name that is compared byte by byte.
        const LOCK_NAME: &'static str;
        /// What an `INSERT` of a token does where there is one already.
        const OR_LARGER: &'static str;

        fn bind(sql: &mut QueryBuilder<Self>, number: i64);

        fn bind_text(sql: &mut QueryBuilder<Self>, text: &str);

        /// How many rows it matched.
        fn execute(
            sql: &mut QueryBuilder<Self>,
            prepared: bool,
            connection: &mut Self::Connection,
        ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

        /// One number of each row.
        fn numbers(
            sql: &mut QueryBuilder<Self>,
            prepared: bool,
            connection: &mut Self::Connection,
        ) -> impl Future<Output = Result<Vec<Option<i64>>, sqlx::Error>> + Send;

        fn install(
            table: &Table<Self>,
            connection: &mut Self::Connection,
        ) -> impl Future<Output = Result<()>> + Send
        where
            Self: super::System;

        fn remove(
            table: &Table<Self>,
            connection: &mut Self::Connection,
        ) -> impl Future<Output = Result<()>> + Send
        where
            Self: super::System;
    }
}

/// A table whose rows are fenced.
pub struct Table<DB: System> {
    /// The schema, if it was given, and the name; checked.
    schema: Option<String>,
    name: String,
    column: String,
    /// The column for marks.
    mark: String,
    trigger: bool,
    prepared: bool,
    system: PhantomData<fn() -> DB>,
}

impl<DB: System> Table<DB> {
    /// A table, `NAME` or `SCHEMA.NAME`, whose fence is in the column `fence`. The name is quoted, so it
    /// must be spelt as the database has it.
    ///
    /// ```
    /// # #[cfg(feature = "postgres")] {
    /// use lockkeeper::fence::sql::{Table, sqlx::Postgres};
    /// assert!(Table::<Postgres>::new("shop.accounts").is_ok());
    /// assert!(Table::<Postgres>::new("accounts; DROP TABLE accounts").is_err());
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a name that is empty, too long, or has other characters than letters,
    /// digits, `_` and `-`.
    pub fn new(name: &str) -> Result<Self> {
        let (schema, name) = match name.split_once('.') {
            Some((schema, name)) => (Some(identifier(schema)?), identifier(name)?),
            None => (None, identifier(name)?),
        };
        Ok(Self::named(schema, name))
    }

    /// With a name that was checked.
    fn named(schema: Option<String>, name: String) -> Self {
        let (column, mark) = ("fence".into(), "mark".into());
        let (trigger, prepared, system) = (false, true, PhantomData);
        Self { schema, name, column, mark, trigger, prepared, system }
    }

    /// Has its fence in another column. With a trigger the token is then said in `COLUMN_by`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] as for [`new`](Self::new).
    pub fn column(self, name: &str) -> Result<Self> {
        identifier(&format!("{name}_by"))?;
        Ok(Self { column: identifier(name)?, ..self })
    }

    /// Has its marks in another column than `mark`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] as for [`new`](Self::new).
    pub fn mark_column(self, name: &str) -> Result<Self> {
        Ok(Self { mark: identifier(name)?, ..self })
    }

    /// Has the trigger of [`install_trigger`](Self::install_trigger): writes say their token to it as well.
    #[must_use]
    pub fn with_trigger(self) -> Self {
        Self { trigger: true, ..self }
    }

    /// Leaves no prepared statements in the session, for poolers that lend a connection for one
    /// transaction: each write is prepared anew, which PostgreSQL needs one more round trip for.
    #[must_use]
    pub fn unprepared(self) -> Self {
        Self { prepared: false, ..self }
    }

    /// Changes one row, or only raises its fence.
    pub fn update(&self, token: Token) -> Write<'_, DB> {
        Write::new(self, token)
    }

    /// Makes a row that is fenced from the beginning.
    pub fn insert(&self, token: Token) -> Insert<'_, DB> {
        Insert::new(self, token)
    }

    /// Deletes one row; its fence is forgotten with it.
    pub fn delete(&self, token: Token) -> Delete<'_, DB> {
        Delete::new(self, token)
    }

    /// Leaves a mark in one row, before the work. See [`Mark`]; the column is `mark VARCHAR(255) NULL`, in MySQL with
    /// `CHARACTER SET ascii COLLATE ascii_bin`.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # #[allow(dead_code)]
    /// # async fn pay(guard: &lockkeeper::Guard, connection: &mut lockkeeper::fence::sql::sqlx::PgConnection) -> lockkeeper::fence::Result<()> {
    /// # use lockkeeper::fence::{Mark, sql::{Table, sqlx::Postgres}};
    /// let accounts = Table::<Postgres>::new("accounts")?;
    /// let mark = Mark::of(guard);
    /// accounts.mark(&mark).key("id", 42_i64).execute(connection).await?;
    /// // Now read, and think. Then:
    /// accounts.marked(&mark).key("id", 42_i64).set("balance", 95_i64).execute(connection).await
    /// # }
    /// ```
    pub fn mark(&self, mark: &Mark) -> Marking<'_, DB> {
        Marking::new(self, mark)
    }

    /// Changes one row if the mark is still there.
    pub fn marked(&self, mark: &Mark) -> Marked<'_, DB> {
        Marked::new(self, mark)
    }

    /// Adds the columns and the trigger that refuses late and forgetful writers, where they are missing.
    /// Needs the rights in docs/OPERATIONS.md; run again it changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a table that is not there, or cannot be fenced, and [`Error::Store`], among
    /// others for missing rights.
    pub async fn install_trigger(&self, connection: &mut DB::Connection) -> Result<()> {
        DB::install(self, connection).await
    }

    /// Removes the trigger. The columns stay, and with them the tokens. Where there is no trigger, it does
    /// nothing.
    ///
    /// # Errors
    ///
    /// As for [`install_trigger`](Self::install_trigger).
    pub async fn remove_trigger(&self, connection: &mut DB::Connection) -> Result<()> {
        DB::remove(self, connection).await
    }

    /// Whether it is a column that is not for others to set.
    fn owns(&self, column: &str) -> bool {
        column == self.column || column == self.by()
    }

    fn quoted(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{}.{}", quote::<DB>(schema), quote::<DB>(&self.name)),
            None => quote::<DB>(&self.name),
        }
    }

    /// The column that a writer says its token in.
    fn by(&self) -> String {
        format!("{}_by", self.column)
    }

    fn hint(&self) -> String {
        format!("set {} to it, or use Table::with_trigger", self.by())
    }
}

impl<DB: System> Clone for Table<DB> {
    fn clone(&self) -> Self {
        Self {
            schema: self.schema.clone(),
            name: self.name.clone(),
            column: self.column.clone(),
            mark: self.mark.clone(),
            ..*self
        }
    }
}

impl<DB: System> fmt::Display for Table<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl<DB: System> fmt::Debug for Table<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("name", &self.to_string())
            .field("column", &self.column)
            .field("trigger", &self.trigger)
            .finish()
    }
}

/// A name that can stand in SQL, in quotes and inside the text of a trigger.
fn identifier(name: &str) -> Result<String> {
    let odd = |c: char| !(c.is_alphanumeric() || c == '_' || c == '-');
    let why = match name {
        "" => "it is empty".to_owned(),
        _ if name.len() > LONGEST => format!("it is longer than {LONGEST} bytes"),
        _ => match name.chars().find(|&c| odd(c)) {
            Some(c) => format!("{c:?} is not a letter, a digit, '_' or '-'"),
            None => return Ok(name.to_owned()),
        },
    };
    let shown: String = name.chars().take(LONGEST).collect();
    Err(Error::Invalid(format!("{shown:?} cannot be the name of a table or column: {why}")))
}

/// In quotes. None are in it, and no quotes of the other kind either.
fn quote<DB: System>(name: &str) -> String {
    format!("{0}{name}{0}", DB::QUOTE)
}

/// As the databases store it.
fn number(token: Token) -> Result<i64> {
    i64::try_from(token.get())
        .map_err(|_| Error::Invalid(format!("token {token} does not fit into BIGINT")))
}

fn store(context: impl Into<String>, source: sqlx::Error) -> Error {
    Error::Store { context: context.into(), source: Some(source.into()) }
}

/// What became of a write that the database has not answered as it should.
fn written(context: impl Into<String>, source: sqlx::Error) -> Error {
    use sqlx::Error::{Io, Protocol, WorkerCrashed};
    match source {
        Io(_) | Protocol(_) | WorkerCrashed => {
            Error::Unknown { context: context.into(), source: Some(source.into()) }
        }
        _ => store(context, source),
    }
}

/// Knows the refusals of our triggers; everything else stays what it is.
impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        refused(&error).unwrap_or_else(|| written("the database refused or failed", error))
    }
}

/// What a trigger of ours said.
fn refused(error: &sqlx::Error) -> Option<Error> {
    let error = error.as_database_error()?;
    let (code, said) = (error.code()?, error.message());
    let after = |text: &str| said.split_once(text).map_or("", |(_, rest)| rest);
    let word =
        |text: &str| after(text).split([' ', ',', ':']).next().unwrap_or_default().to_owned();
    let token = |text: &str| word(text).parse().ok().and_then(Token::new);
    let resource = word("fence of ");
    match &*code {
        STALE => {
            let (token, newest) = (token("token ")?, token("older than "));
            Some(Error::Stale(Stale { resource, token, newest }))
        }
        NO_TOKEN => Some(Error::NoToken { resource, hint: after("no token: ").to_owned() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_be_more_than_names_are_refused() {
        for fine in ["orders", "Orders_2", "größe", "a-b", &"x".repeat(63)] {
            assert_eq!(identifier(fine).unwrap(), fine);
        }
        let long = "x".repeat(64);
        let odd = [
            "", " ", "a b", "a\"b", "a`b", "a'b", "a;b", "a.b", "a$b", "a\\b", "a\0b", "a\nb",
            "(a)",
        ];
        for odd in odd.into_iter().chain([long.as_str()]) {
            let error = identifier(odd).unwrap_err().to_string();
            assert!(error.contains("cannot be the name"), "{error}");
        }
    }

    #[test]
    fn tokens_that_the_databases_cannot_store_are_refused() {
        assert_eq!(number(Token::MIN).unwrap(), 1);
        assert!(number(Token::new(u64::MAX).unwrap()).is_err());
    }
}
