//! Small values that are compared and set, several at once: what stocks are made of.

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::name::Name;

/// Values at a store, numbered from zero under one name. They stay until somebody deletes them by
/// hand; a lock, semaphore or latch of the same name has nothing to do with them.
#[async_trait]
pub trait Cells: Send + Sync {
    /// The first `count` cells, each as it was at some moment during the call.
    async fn read(&self, name: &Name, count: usize) -> Result<Vec<Cell>>;

    /// The same, all of them as they were at *one* moment during the call.
    async fn read_at_once(&self, name: &Name, count: usize) -> Result<Vec<Cell>> {
        self.read(name, count).await
    }

    /// Writes all of these in one step if each cell is still of the version that is expected of it;
    /// otherwise none. Whether it did. An error: it may have been carried out, or may yet be.
    async fn swap(&self, name: &Name, writes: &[Write]) -> Result<bool>;

    /// Whether an error may pass by itself. If not, nothing was written.
    fn may_pass(&self, error: &Error) -> bool;
}

/// What is in a cell. One that was never written is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Grows by one with every write.
    pub version: u64,
    /// The value.
    pub value: Vec<u8>,
}

/// A new value for a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Which one.
    pub cell: usize,
    /// The version that it has now.
    pub version: u64,
    /// What is to be in it.
    pub value: Vec<u8>,
}
