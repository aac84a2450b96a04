//! Values that are compared and set: they need no session.

use async_trait::async_trait;

use super::super::cells::{read, swap};
use super::super::fault::may_pass;
use super::Session;
use super::ties::Ties;
use crate::backend::{Cell, Cells, Write};
use crate::error::{Error, Result};
use crate::name::Name;

#[async_trait]
impl<D: Ties> Cells for Session<D> {
    async fn read(&self, name: &Name, count: usize) -> Result<Vec<Cell>> {
        read(&self.sessions.pool, &self.key(name), count).await
    }

    async fn swap(&self, name: &Name, writes: &[Write]) -> Result<bool> {
        swap(&self.sessions.pool, &self.key(name), writes).await
    }

    fn may_pass(&self, error: &Error) -> bool {
        may_pass(error)
    }
}
