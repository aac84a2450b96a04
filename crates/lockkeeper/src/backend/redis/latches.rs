//! Countdown latches at a Redis server.

use std::time::Duration;

use async_trait::async_trait;
use redis::Value;

use super::answer::{millis, strange, wrong_kind};
use super::commands::may_pass;
use super::layout::latch_channel;
use super::server::{Ear, Server};
use super::{NOBODY, RETRY, Redis, WAITER_LEASE};
use crate::backend::{Latches, Patience};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner::RequestId;
use crate::wait::pause;

#[async_trait]
impl Latches for Redis {
    async fn close(&self, name: &Name, count: u32, ttl: Duration) -> Result<bool> {
        let (count, ttl) = (count.to_string(), millis(ttl));
        let close = &self.server.scripts.latch_close;
        let answer: Vec<Value> =
            self.server.run(close, &self.latch(name)?, NOBODY, &[&count, &ttl]).await?;
        match answer.as_slice() {
            [Value::Int(was_open)] => Ok(*was_open == 1),
            [Value::Int(-3), family] => Err(wrong_kind(name, family, "latch")),
            _ => Err(strange(&answer)),
        }
    }

    async fn count_down(&self, name: &Name, id: RequestId) -> Result<u32> {
        let (lock, script) = (self.latch(name)?, &self.server.scripts.latch_count_down);
        let until = Instant::now() + self.server.nodes.outage(true);
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
        self.server.run(&self.server.scripts.latch_count, &self.latch(name)?, NOBODY, &[]).await
    }

    async fn wait(&self, name: &Name, id: RequestId, patience: Patience) -> Result<bool> {
        let lock = self.latch(name)?;
        let news = self.server.requests.expect(id);
        let _forget = Forget(&self.server, id);
        let mut ear = Ear::default();
        let mut failing: Option<Instant> = None;
        loop {
            let counted = self.count_listening(name, &lock, &mut ear).await;
            let next = match counted {
                Ok(0) => return Ok(true),
                Ok(_) => {
                    failing = None;
                    Instant::now() + WAITER_LEASE
                }
                Err(error) => {
                    let since = *failing.get_or_insert_with(Instant::now);
                    let outage = self.server.nodes.outage(true);
                    if !may_pass(&error) || Instant::now().since(since) > outage {
                        return Err(error);
                    }
                    Instant::now() + RETRY
                }
            };
            if !pause(patience, Some(next), news.heard()).await {
                return Ok(false);
            }
        }
    }
}

impl Redis {
    /// The key of a latch. Redisson puts braces around its name whatever is in it, so the channel of
    /// one with braces is in another slot.
    fn latch(&self, name: &Name) -> Result<String> {
        let lock = self.lock(name)?;
        if self.server.nodes.is_cluster() && lock.contains('{') {
            let what = "latches with braces in their names in a cluster".to_owned();
            return Err(Error::Unsupported { backend: "redis", what });
        }
        Ok(lock)
    }

    /// What is left, seen after we have begun to listen where the latch is now.
    async fn count_listening(&self, name: &Name, lock: &str, ear: &mut Ear) -> Result<u32> {
        let node = self.server.nodes.of(lock).await?;
        if !ear.is_at(&node) {
            ear.listen(node, vec![latch_channel(lock)]).await;
        }
        self.count(name).await
    }
}

/// A wait for a latch that ends.
struct Forget<'a>(&'a Server, RequestId);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.requests.forget(self.1);
    }
}
