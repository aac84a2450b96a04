//! A count that costs next to nothing: each thread has a place of its own, which nobody else writes to.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// So many threads have a place of their own. Those that come later share one.
const SEATS: usize = 64;

/// How often something happened.
pub(super) struct Count {
    own: Box<[Place]>,
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

/// The seat of this thread; one that nobody has where the thread is about to end.
#[inline]
fn seat() -> usize {
    let number = NUMBER.get();
    if number == NONE { first_seat() } else { number }
}

#[cold]
fn first_seat() -> usize {
    let seat = SEAT.try_with(|seat| seat.0).unwrap_or(SEATS);
    NUMBER.set(seat);
    seat
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

impl Count {
    pub(super) fn new() -> Self {
        Self { own: (0..SEATS).map(|_| Place::default()).collect(), shared: AtomicU64::new(0) }
    }

    #[inline]
    pub(super) fn add(&self) {
        match self.own.get(seat()) {
            // Two steps, and nothing is lost: nobody else writes here.
            Some(Place(count)) => {
                count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            None => {
                self.shared.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn read(&self) -> u64 {
        let own = self.own.iter().map(|place| place.0.load(Ordering::Relaxed));
        own.sum::<u64>() + self.shared.load(Ordering::Relaxed)
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
                        (0..1000).for_each(|_| count.add());
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
