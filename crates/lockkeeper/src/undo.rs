//! What a process that is told to go waits for besides its holds: its requests may have a place in a line, or
//! even a grant whose answer is on its way, and both are taken back in the background.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What is given up in the background, in all of the process.
pub(crate) static UNDOING: Count = Count::new();

/// How many of something are under way.
pub(crate) struct Count(AtomicUsize);

impl Count {
    pub(crate) const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// One more, until it is dropped.
    pub(crate) fn begin(&self) -> Counted<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Counted(self)
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

/// See [`Count::begin`].
#[must_use]
pub(crate) struct Counted<'a>(&'a Count);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}
