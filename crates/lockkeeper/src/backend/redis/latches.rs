//! Countdown latches at a Redis server.

use std::time::Duration;

use async_trait::async_trait;
use redis::Value;

use super::answer::{millis, strange, wrong_kind};
use super::commands::may_pass;
use super::layout::latch_channel;
use super::{NOBODY, OUTAGE, RETRY, Redis, Server, WAITER_LEASE};
use crate::backend::{Latches, Patience};
use crate::clock::Instant;
use crate::error::Result;
use crate::name::Name;
use crate::owner::RequestId;
use crate::wait::pause;

#[async_trait]
impl Latches for Redis {
    async fn close(&self, name: &Name, count: u32, ttl: Duration) -> Result<bool> {
        let (count, ttl) = (count.to_string(), millis(ttl));
        let close = &self.server.scripts.latch_close;
        let answer: Vec<Value> =
            self.server.run(close, &self.lock(name), NOBODY, &[&count, &ttl]).await?;
        match answer.as_slice() {
            [Value::Int(was_open)] => Ok(*was_open == 1),
            [Value::Int(-3), family] => Err(wrong_kind(name, family, "latch")),
            _ => Err(strange(&answer)),
        }
    }

    async fn count_down(&self, name: &Name, id: RequestId) -> Result<u32> {
        let (lock, script) = (self.lock(name), &self.server.scripts.latch_count_down);
        let until = Instant::now() + OUTAGE;
        loop {
            match self.server.run(script, &lock, id, &[]).await {
                // Sent again under the same id it does not count twice.
                Err(error) if may_pass(&error) && Instant::now() < until => {
                    tokio::time::sleep(RETRY).await;
                }
                counted => return counted,
            }
        }
    }

    async fn count(&self, name: &Name) -> Result<u32> {
        self.server.run(&self.server.scripts.latch_count, &self.lock(name), NOBODY, &[]).await
    }

    async fn wait(&self, name: &Name, id: RequestId, patience: Patience) -> Result<bool> {
        let news = self.server.listener.requests.expect(id);
        let _forget = Forget(&self.server, id);
        let _listening = self.server.listener.also(vec![latch_channel(&self.lock(name))]).await;
        loop {
            if self.count(name).await? == 0 {
                return Ok(true);
            }
            let next = Instant::now() + WAITER_LEASE;
            if !pause(patience, Some(next), news.heard()).await {
                return Ok(false);
            }
        }
    }
}

/// A wait for a latch that ends.
struct Forget<'a>(&'a Server, RequestId);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.listener.requests.forget(self.1);
    }
}
