//! Values that are compared and set, in an etcd cluster: a key each, without a lease.

use async_trait::async_trait;

use super::client::may_pass;
use super::layout::after;
use super::{Etcd, pb, steps};
use crate::backend::{Cell, Cells, Write};
use crate::error::{Error, Result};
use crate::name::Name;

#[async_trait]
impl Cells for Etcd {
    async fn read(&self, name: &Name, count: usize) -> Result<Vec<Cell>> {
        let first = self.cells_prefix(name);
        let range_end = after(&first).into_bytes();
        let range = pb::RangeRequest { key: first.clone().into(), range_end, ..Default::default() };
        let mut read = vec![Cell::default(); count];
        for found in self.server.client.range(range).await?.kvs {
            let cell = found.key.strip_prefix(first.as_bytes());
            let cell = cell.and_then(|cell| str::from_utf8(cell).ok()?.parse::<usize>().ok());
            if let Some(read) = cell.and_then(|cell| read.get_mut(cell)) {
                let version = u64::try_from(found.version).unwrap_or(0);
                *read = Cell { version, value: found.value };
            }
        }
        Ok(read)
    }

    async fn swap(&self, name: &Name, writes: &[Write]) -> Result<bool> {
        let prefix = self.cells_prefix(name);
        let key = |write: &Write| format!("{prefix}{}", write.cell).into_bytes();
        let unless = writes.iter().map(|write| steps::written(key(write), write.version));
        let puts = writes.iter().map(|write| steps::put(key(write), write.value.clone(), Some(0)));
        let step = steps::txn(unless.collect(), puts.collect(), Vec::new());
        Ok(self.server.client.txn(step).await?.succeeded)
    }

    fn may_pass(&self, error: &Error) -> bool {
        may_pass(error)
    }
}

impl Etcd {
    fn cells_prefix(&self, name: &Name) -> String {
        format!("{}./cells/{name}//", self.prefix)
    }
}
