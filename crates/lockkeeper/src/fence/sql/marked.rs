//! Marks in rows, instead of tokens.

use std::fmt;

use sqlx::QueryBuilder;

use super::row::{Push, Row, Value, bind};
use super::{Error, Result, System, Table, quote, refused, written};
use crate::fence::Mark;

/// Leaves a mark in one row, whatever mark was there: from now on whoever left that one cannot write.
#[must_use = "nothing is written before `execute`"]
pub struct Marking<'t, DB: System> {
    row: Row<'t, DB>,
    mark: String,
}

impl<'t, DB: System> Marking<'t, DB> {
    pub(super) fn new(table: &'t Table<DB>, mark: &Mark) -> Self {
        Self { row: Row::new(table), mark: mark.to_string() }
    }

    /// Which row: the column has this value. Several must all have theirs.
    pub fn key(mut self, column: &str, value: impl Value<DB> + fmt::Debug) -> Self {
        self.row.key(column, value);
        self
    }

    /// Marks the row. Commit it before anything is read: a mark that others cannot see holds nobody off.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] and whatever the database says.
    pub async fn execute(mut self, connection: &mut DB::Connection) -> Result<()> {
        self.row.check(true)?;
        update(&self.row, &self.mark, false, connection).await
    }
}

/// An `UPDATE` of one row that is done only if the mark is still there.
#[must_use = "nothing is written before `execute`"]
pub struct Marked<'t, DB: System> {
    row: Row<'t, DB>,
    mark: String,
}

impl<'t, DB: System> Marked<'t, DB> {
    pub(super) fn new(table: &'t Table<DB>, mark: &Mark) -> Self {
        Self { row: Row::new(table), mark: mark.to_string() }
    }

    /// Which row: the column has this value. Several must all have theirs.
    pub fn key(mut self, column: &str, value: impl Value<DB> + fmt::Debug) -> Self {
        self.row.key(column, value);
        self
    }

    /// Sets a column.
    pub fn set(self, column: &str, value: impl Value<DB>) -> Self {
        self.push(column, bind(value))
    }

    /// Sets a column to an expression, as [`Write::set_to`](super::Write::set_to) does.
    pub fn set_to(
        self,
        column: &str,
        expression: impl Fn(&mut QueryBuilder<DB>) + Send + Sync + 'static,
    ) -> Self {
        self.push(column, Box::new(expression))
    }

    fn push(mut self, column: &str, push: Push<DB>) -> Self {
        match column == self.row.table.mark {
            true => self.row.refuse(column),
            false => self.row.set(column, push),
        }
        self
    }

    /// Writes, if the row bears this mark. One statement; in a transaction the row stays locked until it
    /// ends, as after [`Write::raise`](super::Write::raise). The mark stays: it may be written again.
    ///
    /// # Errors
    ///
    /// [`Error::Overtaken`], [`Error::Missing`] and whatever the database says.
    pub async fn execute(mut self, connection: &mut DB::Connection) -> Result<()> {
        self.row.check(true)?;
        update(&self.row, &self.mark, true, connection).await
    }
}

/// Sets what is to be set, and the mark; with `compare` only if it is there already.
async fn update<DB: System>(
    row: &Row<'_, DB>,
    mark: &str,
    compare: bool,
    connection: &mut DB::Connection,
) -> Result<()> {
    let (table, column, resource) =
        (row.table.quoted(), quote::<DB>(&row.table.mark), row.resource());
    let failed = |error| {
        // The trigger of a fenced table wants a token all the same.
        refused(&error).unwrap_or_else(|| written(format!("writing to {resource} failed"), error))
    };
    let mut sql = QueryBuilder::new(format!("UPDATE {table} SET "));
    row.push_sets(&mut sql);
    sql.push(format_args!("{column} = "));
    DB::bind_text(&mut sql, mark);
    row.push_key(&mut sql);
    if compare {
        sql.push(format_args!(" AND {column} = "));
        DB::bind_text(&mut sql, mark);
    }
    let prepared = row.table.prepared;
    match DB::execute(&mut sql, prepared, connection).await.map_err(failed)? {
        1 => return Ok(()),
        0 => {}
        rows => return Err(Error::Ambiguous { resource, rows }),
    }
    // Refused already: this only tells why.
    let mut sql = QueryBuilder::new(format!("SELECT CAST(1 AS {}) FROM {table}", DB::NUMBER));
    row.push_key(&mut sql);
    sql.push(DB::AS_IT_IS);
    match DB::numbers(&mut sql, prepared, connection).await.map_err(failed)?.is_empty() {
        true => Err(Error::Missing { resource }),
        false => Err(Error::Overtaken { resource }),
    }
}

macro_rules! debug {
    ($($type:ident)+) => {
        $(impl<DB: System> fmt::Debug for $type<'_, DB> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($type))
                    .field("resource", &self.row.resource())
                    .field("mark", &self.mark)
                    .finish_non_exhaustive()
            }
        })+
    };
}

debug! { Marking Marked }
