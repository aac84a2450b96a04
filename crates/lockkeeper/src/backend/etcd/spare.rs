//! Leases that have been used and can be used again.
//!
//! A lease costs two writes, one to make it and one to end it, and names a key, which stays in the
//! history of the cluster until that is compacted and makes every look at the queue a little slower.
//! So whoever takes and gives back locks in turn does so with the same lease.
//!
//! Only a lease with nothing attached goes here, and only if every request that could attach something
//! has been answered: what is still on its way would find it alive. It is not kept alive; nobody takes
//! one that ends soon.

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Instant;

/// So many are kept.
const ROOM: usize = 256;

/// A lease that is known to live.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leased {
    pub(super) id: i64,
    /// Before it was asked for, or kept alive.
    pub(super) sent: Instant,
    pub(super) ttl: Duration,
}

impl Leased {
    /// When it must be kept alive.
    pub(super) fn due(&self) -> Instant {
        self.sent + self.ttl / 3
    }

    fn is_good(&self, now: Instant) -> bool {
        now < self.sent + self.ttl / 2
    }
}

#[derive(Default)]
pub(super) struct Spare(Mutex<Vec<Leased>>);

impl Spare {
    /// One that lasts as long as one that is made for this time.
    pub(super) fn take(&self, ttl: Duration) -> Option<Leased> {
        let (mut spare, now) = (self.0.lock(), Instant::now());
        spare.retain(|lease| lease.is_good(now));
        let at = spare.iter().rposition(|lease| lease.ttl == ttl)?;
        Some(spare.remove(at))
    }

    /// Keeps it for the next one; whether there was room for it.
    pub(super) fn put(&self, lease: Leased) -> bool {
        let mut spare = self.0.lock();
        let room = lease.is_good(Instant::now()) && spare.len() < ROOM;
        if room {
            spare.push(lease);
        }
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lives_long_enough_is_used_again() {
        let (spare, ttl) = (Spare::default(), Duration::from_secs(5));
        let lease = |id, ago| Leased { id, sent: Instant::now().before(ago), ttl };
        assert!(!spare.put(lease(1, ttl / 2)), "too old");
        assert!(spare.put(lease(2, Duration::ZERO)) && spare.put(lease(3, ttl / 4)));
        assert!(spare.take(ttl * 2).is_none(), "it lasts for another time");
        assert_eq!(spare.take(ttl).map(|lease| lease.id), Some(3), "the last one first");
        assert_eq!(spare.take(ttl).map(|lease| lease.id), Some(2));
        assert!(spare.take(ttl).is_none());
        assert!((0..2 * ROOM).filter(|_| spare.put(lease(4, Duration::ZERO))).count() == ROOM);
    }
}
