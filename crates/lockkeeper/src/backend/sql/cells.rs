//! Values that are compared and set, in a database: a row each, with leases and with sessions alike.

use std::sync::Arc;

use async_trait::async_trait;

use super::Sql;
use super::dialect::Dialect;
use super::fault::{Fault, may_pass};
use super::pool::{Pool, statement};
use crate::backend::{Cell, Cells, Write};
use crate::error::{Error, Result};
use crate::name::Name;

pub(super) async fn read<D: Dialect>(
    pool: &Pool<D>,
    key: &[u8],
    count: usize,
) -> Result<Vec<Cell>> {
    let ask = async || statement!(pool, cells, key);
    let found = ask().await.map_err(|fault| Arc::new(fault).error(D::NAME, "reading cells"))?;
    let mut read = vec![Cell::default(); count];
    for (at, cell) in found {
        if let Some(read) = usize::try_from(at).ok().and_then(|at| read.get_mut(at)) {
            *read = cell;
        }
    }
    Ok(read)
}

pub(super) async fn swap<D: Dialect>(pool: &Pool<D>, key: &[u8], writes: &[Write]) -> Result<bool> {
    let ask = async || statement!(pool, swap_cells, key, writes);
    match ask().await {
        Err(Fault::Conflict(_)) => Ok(false),
        swapped => swapped.map_err(|fault| Arc::new(fault).error(D::NAME, "changing cells")),
    }
}

#[async_trait]
impl<D: Dialect> Cells for Sql<D> {
    async fn read(&self, name: &Name, count: usize) -> Result<Vec<Cell>> {
        read(&self.store.pool, &self.key(name), count).await
    }

    async fn swap(&self, name: &Name, writes: &[Write]) -> Result<bool> {
        swap(&self.store.pool, &self.key(name), writes).await
    }

    fn may_pass(&self, error: &Error) -> bool {
        may_pass(error)
    }
}
