//! A count that costs next to nothing: each thread has a place of its own, which nobody else writes to.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// So many threads have a place of their own. Those that come later share one.
const SEATS: usize = 64;

/// How often something happened.
pub(super) struct Count {
    own: Box<[Place; SEATS]>,
    shared: AtomicU64,
}

/// Alone in its line of the processor's cache.
#[derive(Default)]
#[repr(align(64))]
struct Place(AtomicU64);

/// Which place belongs to this thread, in every count.
struct Seat(usize);

/// Seats that are free again, and how many were ever given.
static FREE: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));

/// Not known yet.
const NONE: usize = usize::MAX;

thread_local! {
    /// What [`SEAT`] says, without looking whether it was asked before.
    static NUMBER: Cell<usize> = const { Cell::new(NONE) };
    static SEAT: Seat = Seat::take();
}

impl Seat {
    fn take() -> Self {
        let mut free = FREE.lock();
        if let Some(seat) = free.0.pop() {
            return Self(seat);
        }
        let seat = free.1.min(SEATS);
        free.1 = (free.1 + 1).min(SEATS);
        Self(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // What is counted from now on, in the end of other values of this thread, has no place of its own.
        NUMBER.set(SEATS);
        if self.0 < SEATS {
            FREE.lock().0.push(self.0);
        }
    }
}

/// One more, that has not happened yet.
pub(super) struct Next<'a> {
    count: &'a Count,
    own: Option<&'a Place>,
    next: u64,
}

impl Count {
    pub(super) fn new() -> Self {
        let own = Box::new(std::array::from_fn(|_| Place::default()));
        Self { own, shared: AtomicU64::new(0) }
    }

    /// To be got before what is counted is tried, when there is time for it, and used by the same thread before it counts
    /// anything else.
    #[inline]
    pub(super) fn next(&self) -> Next<'_> {
        let own = self.own.get(NUMBER.get());
        let next = own.map_or(0, |place| place.0.load(Ordering::Relaxed) + 1);
        Next { count: self, own, next }
    }

    pub(super) fn read(&self) -> u64 {
        let own = self.own.iter().map(|place| place.0.load(Ordering::Relaxed));
        own.sum::<u64>() + self.shared.load(Ordering::Relaxed)
    }

    /// Takes a seat, where that was not tried before.
    #[cold]
    fn add_without_seat(&self) {
        if NUMBER.get() == NONE {
            // There is none any more where the thread is about to end.
            NUMBER.set(SEAT.try_with(|seat| seat.0).unwrap_or(SEATS));
            return self.next().count();
        }
        self.shared.fetch_add(1, Ordering::Relaxed);
    }
}

impl Next<'_> {
    /// It has.
    #[inline]
    pub(super) fn count(self) {
        match self.own {
            // In two steps, and nothing is lost: nobody else writes here.
            Some(Place(count)) => count.store(self.next, Ordering::Relaxed),
            None => self.count.add_without_seat(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread::scope;

    use super::*;

    /// More threads at once than there are seats, twice, so that the second ones get the seats of the first.
    #[test]
    fn nothing_is_lost() {
        let (count, threads) = (Count::new(), SEATS + 16);
        for _ in 0..2 {
            let all = Barrier::new(threads);
            scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        all.wait();
                        (0..1000).for_each(|_| count.next().count());
                        all.wait();
                    });
                }
            });
        }
        assert_eq!(count.read(), 2 * 1000 * threads as u64);
        // Not all of them: threads of other tests have seats, too.
        assert!(count.own.iter().any(|place| place.0.load(Ordering::Relaxed) > 0));
        assert!(count.shared.load(Ordering::Relaxed) > 0);
    }
}
