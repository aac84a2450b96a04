//! Values that are compared and set, in the database of a directory.

use async_trait::async_trait;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};

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
            // One statement: of several, an error half-way would leave a part.
            let rows = vec!["(?, ?, ?, ?)"; writes.len()].join(", ");
            let upsert = format!(
                "INSERT INTO cells VALUES {rows} \
                 ON CONFLICT DO UPDATE SET version = excluded.version, value = excluded.value"
            );
            let row = |write: &Write| -> [Value; 4] {
                let (cell, version) = (number(write.cell), (write.version + 1).cast_signed());
                let name = name.as_str().to_owned();
                [name.into(), cell.into(), version.into(), write.value.clone().into()]
            };
            let rows = params_from_iter(writes.iter().flat_map(row));
            database.prepare_cached(&upsert)?.execute(rows)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_error_half_way_leaves_nothing() {
        let dir = tempfile::TempDir::new().unwrap();
        let file = File::open(dir.path()).await.unwrap();
        // As a disk that is full at the second one.
        let trigger = "CREATE TRIGGER full BEFORE INSERT ON cells WHEN NEW.cell = 1 \
             BEGIN SELECT RAISE(ABORT, 'no space'); END";
        Connection::open(dir.path().join("locks.db")).unwrap().execute_batch(trigger).unwrap();
        let name = "s".parse().unwrap();
        let write = |cell| Write { cell, version: 0, value: b"new".to_vec() };
        file.swap(&name, &[write(0), write(1), write(2)]).await.unwrap_err();
        assert_eq!(Cells::read(&*file, &name, 3).await.unwrap(), vec![Cell::default(); 3]);
        assert!(file.swap(&name, &[write(0), write(2)]).await.unwrap());
    }
}
