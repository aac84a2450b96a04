//! Countdown latches in a database.

use std::time::Duration;

use async_trait::async_trait;

use super::dialect::Dialect;
use super::fault::may_pass;
use super::hub::{Hub, Key};
use super::store::Guess;
use super::{OUTAGE, RETRY, Sql};
use crate::backend::{Latches, Patience};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner::RequestId;
use crate::wait::pause;

#[async_trait]
impl<D: Dialect> Latches for Sql<D> {
    async fn close(&self, name: &Name, count: u32, ttl: Duration) -> Result<bool> {
        let closed =
            self.store.change(&self.key(name), Guess::Absent, move |stored, world, again| {
                match stored.model.close_latch(count, ttl, world) {
                    // It may be the first try that closed it.
                    Ok(false) if again => None,
                    closed => Some(closed),
                }
            });
        let wrong = |used_as| Error::WrongKind { name: name.clone(), used_as, asked: "latch" };
        closed.await?.0.map_err(wrong)
    }

    async fn count_down(&self, name: &Name, id: RequestId) -> Result<u32> {
        let (key, until) = (self.key(name), Instant::now() + OUTAGE);
        loop {
            let counted = self.store.change(&key, Guess::Nothing, move |stored, world, _| {
                // Sent again under the same id it does not count twice.
                if stored.model.is_latch() && stored.has_counted(id) {
                    return Some(stored.model.latch_count(world));
                }
                Some(stored.model.count_down(world))
            });
            match counted.await {
                Err(error) if may_pass(&error) && Instant::now() < until => {
                    tokio::time::sleep(RETRY).await;
                }
                counted => return Ok(counted?.0),
            }
        }
    }

    async fn count(&self, name: &Name) -> Result<u32> {
        let count = self.store.change(&self.key(name), Guess::Nothing, |stored, world, _| {
            Some(stored.model.latch_count(world))
        });
        Ok(count.await?.0)
    }

    async fn wait(&self, name: &Name, id: RequestId, patience: Patience) -> Result<bool> {
        let (hub, key) = (&self.store.hub, self.key(name));
        let news = hub.requests.expect(id);
        hub.await_latch(&key, id);
        let _waiting = Waiting { hub, key: &key, id };
        let _in_line = self.lines.join(&key, id);
        let mut failing: Option<Instant> = None;
        loop {
            let next = match self.count(name).await {
                Ok(0) => return Ok(true),
                Ok(_) => {
                    failing = None;
                    None
                }
                Err(error) if may_pass(&error) => {
                    let since = *failing.get_or_insert_with(Instant::now);
                    if Instant::now().since(since) > OUTAGE {
                        return Err(error);
                    }
                    Some(Instant::now() + RETRY)
                }
                Err(error) => return Err(error),
            };
            if !pause(patience, next, news.heard()).await {
                return Ok(false);
            }
        }
    }
}

/// A wait for a latch that ends.
struct Waiting<'a> {
    hub: &'a Hub,
    key: &'a Key,
    id: RequestId,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.hub.leave_latch(self.key, self.id);
        self.hub.requests.forget(self.id);
    }
}
