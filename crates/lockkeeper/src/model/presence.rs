//! Places that last as long as a party is present, for stores that can tell.
//!
//! Who is found absent, or lets a hold run out, is only doubted: it is told, and its places have a lease
//! from then on. So a party that was away for a moment keeps them, and a dead one is in the way for no
//! longer than one lease, wherever it stands in line.

use super::{State, Waiter, World};
use crate::owner::RequestId;

impl<P> Waiter<P> {
    pub(super) fn is_present(&self) -> bool {
        self.lease.is_some() && self.expires.is_none()
    }
}

impl<P: Clone + PartialEq> State<P> {
    /// Whether the request has a place.
    pub fn is_in_line(&self, id: RequestId) -> bool {
        self.queue.iter().any(|waiter| waiter.id == id)
    }

    /// Those whose presence keeps a place, and for which request.
    pub fn present(&self) -> impl Iterator<Item = (&P, RequestId)> {
        let present = self.queue.iter().filter(|waiter| waiter.is_present());
        present.map(|waiter| (&waiter.party, waiter.id))
    }

    /// A party may be gone: its places end like leased ones, unless it asks again.
    pub fn doubt(&mut self, party: &P, world: &mut World<'_, P>) {
        for waiter in &mut self.queue {
            if waiter.party == *party && waiter.is_present() {
                waiter.expires = waiter.lease.map(|lease| world.now + lease);
                world.news.doubted.push((party.clone(), waiter.id));
            }
        }
    }
}
