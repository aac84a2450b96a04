//! Values that are compared and set, at a Redis server: a hash for each name, in one slot.

use async_trait::async_trait;
use redis::RedisWrite;

use super::Redis;
use super::commands::{evalsha, may_pass};
use super::layout::cells_key;
use crate::backend::{Cell, Cells, Write};
use crate::error::{Error, Result};
use crate::name::Name;

#[async_trait]
impl Cells for Redis {
    async fn read(&self, name: &Name, count: usize) -> Result<Vec<Cell>> {
        let (lock, script) = (self.cells(name)?, &self.server.scripts.cells_read);
        let step = |_: &str| {
            let mut command = evalsha(script, 1);
            command.arg(cells_key(&lock));
            (0..count).for_each(|cell| command.write_arg_fmt(cell));
            command
        };
        let read = self.server.nodes.invoke(&lock, script, step, None).await?;
        let read: Vec<Option<Vec<u8>>> = read.value;
        read.into_iter().map(|value| value.map_or_else(|| Ok(Cell::default()), parse)).collect()
    }

    async fn swap(&self, name: &Name, writes: &[Write]) -> Result<bool> {
        let (lock, script) = (self.cells(name)?, &self.server.scripts.cells_swap);
        let step = |_: &str| {
            let mut command = evalsha(script, 1);
            command.arg(cells_key(&lock));
            for Write { cell, version, value } in writes {
                command.arg(cell).arg(version).arg(value.as_slice());
            }
            command
        };
        let swapped = self.server.nodes.invoke::<u8>(&lock, script, step, None).await?;
        Ok(swapped.value == 1)
    }

    fn may_pass(&self, error: &Error) -> bool {
        may_pass(error)
    }
}

impl Redis {
    fn cells(&self, name: &Name) -> Result<String> {
        if self.server.replicas.is_some() {
            // A write that too few of them have can neither be counted nor be taken back.
            let what =
                "stocks and jobs that replicas must have (replicas=): leave that out".to_owned();
            return Err(Error::Unsupported { backend: "redis", what });
        }
        self.lock(name)
    }
}

fn parse(value: Vec<u8>) -> Result<Cell> {
    let space = value.iter().position(|byte| *byte == b' ');
    let version = space.and_then(|at| str::from_utf8(&value[..at]).ok()?.parse().ok());
    match (space, version) {
        (Some(at), Some(version)) => Ok(Cell { version, value: value[at + 1..].to_vec() }),
        _ => Err(Error::Config("the key of the stock or job holds something else".into())),
    }
}
