//! Values that are compared and set, in the database of a directory.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

use super::File;
use super::database::Fault;
use crate::backend::{Cell, Cells, Write};
use crate::error::{Error, Result};
use crate::name::Name;

#[async_trait]
impl Cells for File {
    async fn read(&self, name: &Name, count: usize) -> Result<Vec<Cell>> {
        let name = name.clone();
        let read = move |database: &Connection| {
            (0..count).map(|cell| load(database, name.as_str(), cell)).collect()
        };
        self.store.work(false, read).await
    }

    async fn swap(&self, name: &Name, writes: &[Write]) -> Result<bool> {
        let (name, writes) = (name.clone(), writes.to_vec());
        let swap = move |database: &Connection| {
            for write in &writes {
                if load(database, name.as_str(), write.cell)?.version != write.version {
                    return Ok(false);
                }
            }
            for Write { cell, version, value } in &writes {
                let upsert = "INSERT INTO cells VALUES (?1, ?2, ?3, ?4) \
                     ON CONFLICT DO UPDATE SET version = ?3, value = ?4";
                let version = (version + 1).cast_signed();
                let row = params![name.as_str(), number(*cell), version, value];
                database.prepare_cached(upsert)?.execute(row)?;
            }
            Ok(true)
        };
        // On disk before it counts: what was sold stays sold.
        self.store.work(true, swap).await
    }

    /// None of them leaves anything open, and the thread has tried for long enough.
    fn may_pass(&self, _error: &Error) -> bool {
        false
    }
}

fn load(database: &Connection, name: &str, cell: usize) -> Result<Cell, Fault> {
    let select = "SELECT version, value FROM cells WHERE name = ? AND cell = ?";
    let found: Option<(i64, Vec<u8>)> = database
        .prepare_cached(select)?
        .query_row(params![name, number(cell)], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(found.map_or_else(Cell::default, |(version, value)| Cell {
        version: version.cast_unsigned(),
        value,
    }))
}

fn number(cell: usize) -> i64 {
    i64::try_from(cell).unwrap_or(i64::MAX)
}
