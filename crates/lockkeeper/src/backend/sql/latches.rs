//! Countdown latches in a database.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;

use super::dialect::Dialect;
use super::fault::{may_pass, unknown};
use super::hub::{Hub, Key};
use super::row::{ClientId, Stored};
use super::store::{Guess, LATE};
use super::{OUTAGE, RETRY, Sql};
use crate::backend::{Latches, Patience};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::model::World;
use crate::name::Name;
use crate::owner::{self, RequestId};
use crate::wait::pause;

#[async_trait]
impl<D: Dialect> Latches for Sql<D> {
    async fn close(&self, name: &Name, count: u32, ttl: Duration) -> Result<bool> {
        let closing = owner::random().max(1);
        let close = move |stored: &mut Stored, world: &mut World<'_, ClientId>, again: bool| {
            match stored.model.close_latch(count, ttl, world) {
                Ok(true) => stored.closing = closing,
                // It was the first try that closed it.
                Ok(false) if stored.closing == closing => return Some(Ok(true)),
                // It may be the first try that closed it, and it was opened and closed again since.
                Ok(false) if again => return None,
                closed => return Some(closed),
            }
            Some(Ok(true))
        };
        let closed = self.store.change(&self.key(name), Guess::Absent, close);
        let wrong = |used_as| Error::WrongKind { name: name.clone(), used_as, asked: "latch" };
        let closed = closed.await.map_err(unknown(name, "closing the latch", ttl));
        closed?.0.map_err(wrong)
    }

    async fn count_down(&self, name: &Name, id: RequestId) -> Result<u32> {
        let (key, until) = (self.key(name), Instant::now() + OUTAGE);
        let meant = Arc::<OnceLock<u64>>::default();
        loop {
            let meant = Arc::clone(&meant);
            let counted = self.store.change(&key, Guess::Nothing, move |stored, world, _| {
                stored.model.settle(world);
                // The one that was seen first is meant, not one that was closed since.
                if stored.model.is_latch()
                    && *meant.get_or_init(|| stored.closing) != stored.closing
                {
                    return Some(0);
                }
                // Sent again under the same id it does not count twice.
                if stored.model.is_latch() && stored.has_counted(id, world.now) {
                    return Some(stored.model.latch_count(world));
                }
                Some(stored.model.count_down(world))
            });
            match counted.await {
                Err(error) if may_pass(&error) && Instant::now() < until => {
                    tokio::time::sleep(RETRY).await;
                }
                counted => {
                    return Ok(counted.map_err(unknown(name, "the count-down", LATE))?.0);
                }
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
