//! Latches.

use std::time::Duration;

use super::{Latch, State, World};
use crate::owner::RequestId;

impl<P: Clone> State<P> {
    /// Closes the latch unless it is closed; whether it was open. `Err`: the name is in use as this.
    pub fn close_latch(
        &mut self,
        count: u32,
        ttl: Duration,
        world: &mut World<'_, P>,
    ) -> Result<bool, &'static str> {
        self.settle(world);
        if let Some(kind) = self.kinds().next() {
            return Err(kind.family());
        }
        let was_open = self.latch.is_none();
        if was_open && count > 0 {
            let expires = world.now + ttl;
            self.latch = Some(Latch { count, ttl, expires, waiting: Vec::new() });
        }
        Ok(was_open)
    }

    /// Counts down by one; what is left.
    pub fn count_down(&mut self, world: &mut World<'_, P>) -> u32 {
        self.expire(world);
        let Some(latch) = &mut self.latch else { return 0 };
        latch.count = latch.count.saturating_sub(1);
        latch.expires = world.now + latch.ttl;
        let left = latch.count;
        if left == 0 {
            self.open_latch(world);
        }
        left
    }

    /// Whether it is a closed latch.
    pub fn is_latch(&self) -> bool {
        self.latch.is_some()
    }

    /// What is left.
    pub fn latch_count(&mut self, world: &mut World<'_, P>) -> u32 {
        self.expire(world);
        self.latch.as_ref().map_or(0, |latch| latch.count)
    }

    /// Asks to be told when the latch opens; whether it is open already.
    pub fn await_latch(&mut self, id: RequestId, party: P, world: &mut World<'_, P>) -> bool {
        self.expire(world);
        let Some(latch) = &mut self.latch else { return true };
        if !latch.waiting.iter().any(|(_, waiting)| *waiting == id) {
            latch.waiting.retain(|(party, _)| (world.alive)(party));
            latch.waiting.push((party, id));
        }
        false
    }

    /// No longer asks.
    pub fn leave_latch(&mut self, id: RequestId) {
        if let Some(latch) = &mut self.latch {
            latch.waiting.retain(|(_, waiting)| *waiting != id);
        }
    }

    pub(super) fn open_latch(&mut self, world: &mut World<'_, P>) {
        if let Some(latch) = self.latch.take() {
            world.news.opened.extend(latch.waiting);
        }
    }
}
