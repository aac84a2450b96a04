//! Connections that one transaction has for itself.
//!
//! `WATCH` belongs to a connection, and so does what a server collects between `MULTI` and `EXEC`: who
//! shares the connection would be watched too, or commit for another. A connection goes back to the
//! others only when the server has said that nothing of the kind is left on it; otherwise it is closed,
//! and the server forgets.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{FromRedisValue, Pipeline, RedisResult, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::commands::{COMMAND_TIME, LOOK_TIME, failed, unanswered};
use super::super::link::Open;
use super::super::nodes::Node;
use crate::error::{Error, Result};

/// So many transactions are under way at one server.
const UNDER_WAY: usize = 64;
/// So many connections are kept for the next ones.
const IDLE: usize = 8;

/// The connections to one server.
pub(in crate::backend::redis) struct Pool {
    idle: Mutex<Vec<Open>>,
    under_way: Arc<Semaphore>,
}

impl Pool {
    pub(in crate::backend::redis) fn new() -> Self {
        Self { idle: Mutex::default(), under_way: Arc::new(Semaphore::new(UNDER_WAY)) }
    }
}

/// A connection of one's own. Closed when dropped.
pub(super) struct Own {
    pub(super) open: Open,
    node: Arc<Node>,
    _permit: OwnedSemaphorePermit,
}

impl Own {
    pub(super) async fn at(node: Arc<Node>) -> Result<Self> {
        let under_way = Arc::clone(&node.alone.under_way).acquire_owned();
        let Ok(Ok(permit)) = tokio::time::timeout(LOOK_TIME, under_way).await else {
            let context = format!("{UNDER_WAY} transactions are under way and none of them ends");
            return Err(Error::Unavailable { backend: "redis", context, source: None });
        };
        while let Some(open) = pop(&node.alone) {
            if node.commands.link.is_right(&open) {
                return Ok(Self { open, node, _permit: permit });
            }
        }
        let open = node.commands.link.another().await?;
        let mut own = Self { open, node, _permit: permit };
        own.prove().await?;
        Ok(own)
    }

    /// Sees to it that we may say `MULTI` at all: where that is refused, the commands after it would
    /// run one by one, whatever has changed.
    async fn prove(&mut self) -> Result<()> {
        let mut nothing = redis::pipe();
        nothing.cmd("MULTI").cmd("EXEC");
        let (_, _): (Value, Value) =
            in_time(COMMAND_TIME, async { nothing.query_async(&mut self.open.connection).await })
                .await?;
        Ok(())
    }

    /// Sends a command that waits for nobody.
    pub(super) async fn say<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> Result<T> {
        in_time(COMMAND_TIME, command.query_async(&mut self.open.connection)).await
    }

    /// Sends commands, and takes every answer as it is. An error: they arrived or did not.
    pub(super) async fn send(&mut self, commands: &Pipeline) -> Result<Vec<Value>> {
        let count = commands.len();
        in_time(LOOK_TIME, self.open.connection.send_packed_commands(commands, 0, count)).await
    }

    /// Whether this is still the right server, as far as is known.
    pub(super) fn is_right(&self) -> bool {
        self.node.commands.link.is_right(&self.open)
    }

    /// For the next transaction: the server watches nothing for this connection.
    pub(super) fn give_back(self) {
        let mut idle = self.node.alone.idle.lock();
        if idle.len() < IDLE {
            idle.push(self.open);
        }
    }

    /// Closes this one, and those that were made before something went wrong with it.
    pub(super) fn close_all(self) {
        self.node.alone.idle.lock().clear();
    }
}

fn pop(pool: &Pool) -> Option<Open> {
    pool.idle.lock().pop()
}

pub(super) async fn in_time<T>(
    time: Duration,
    asking: impl Future<Output = RedisResult<T>> + Send,
) -> Result<T> {
    let answer = tokio::time::timeout(time, asking).await;
    answer.map_err(|_| unanswered(time))?.map_err(|error| failed("a transaction", error))
}
