//! What a log says.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::Error;
use crate::transaction::Touched;

/// A table, as its database names it: `schema.name`, which in MariaDB is `database.name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName {
    /// Where it is.
    pub schema: Arc<str>,
    /// What it is called there.
    pub name: Arc<str>,
}

impl TableName {
    /// From its two parts, as the database has them: not folded, not quoted.
    pub fn new(schema: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { schema: schema.into(), name: name.into() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

impl FromStr for TableName {
    type Err = Error;

    /// Splits at the first dot.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once('.') {
            Some((schema, name)) if !schema.is_empty() && !name.is_empty() => {
                Ok(Self::new(schema, name))
            }
            _ => Err(Error::Config(format!("{text:?} is no table: write schema.name"))),
        }
    }
}

/// What is in a column.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// `NULL`.
    Null,
    /// This, as the database writes it as text.
    Text(Arc<str>),
    /// Something that the log does not have, or that has no text.
    Missing,
}

/// The columns of a row that were [wanted](super::Wanted), as far as the log has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    columns: Arc<[Arc<str>]>,
    cells: Box<[Cell]>,
}

impl Row {
    /// As many cells as columns; those that are not given are [missing](Cell::Missing).
    pub fn new(columns: Arc<[Arc<str>]>, cells: impl Into<Box<[Cell]>>) -> Self {
        Self { columns, cells: cells.into() }
    }

    /// What is in this column.
    pub fn get(&self, column: &str) -> &Cell {
        let at = self.columns.iter().position(|name| **name == *column);
        at.and_then(|at| self.cells.get(at)).unwrap_or(&Cell::Missing)
    }
}

/// Something that a log says has changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A row of a table. `old` is `None` for one that was inserted, and for an update that kept everything by which the table
    /// identifies its rows; `new` is `None` for one that was deleted.
    Row {
        /// Of this table.
        table: Arc<TableName>,
        /// As it was.
        old: Option<Row>,
        /// As it is now. What is missing here is as in `old`.
        new: Option<Row>,
    },
    /// Any rows of a table.
    Table {
        /// This one.
        table: Arc<TableName>,
        /// Why it is not known which rows.
        why: &'static str,
    },
    /// Any rows of any table.
    Everything {
        /// Why it is not known which.
        why: &'static str,
    },
    /// Keys that the writer itself has named.
    Keys {
        /// In this namespace.
        namespace: String,
        /// These.
        touched: Vec<Touched>,
    },
}
