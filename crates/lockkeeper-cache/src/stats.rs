//! What happened, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// What happened in one cache since it was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])+ pub $name: u64,)+
        }

        /// The same, while it happens.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)+
        }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.0.load(Ordering::Relaxed),)+ }
            }
        }
    };
}

counters! {
    /// Reads that found a value that would do.
    hits,
    /// Of those, how many were told that the database has nothing.
    null_hits,
    /// Reads that did not.
    misses,
    /// Reads that got a value that had been invalidated, because they would rather have that than wait.
    stale_hits,
    /// Reads that shared the load of another in this process.
    joined,
    /// Times that somebody waited for a load in another process.
    waits,
    /// Calls of the loader.
    loads,
    /// Of those, how many failed or panicked.
    load_errors,
    /// Of those, how many filled nothing, whatever came out: the store was not available, a writer was at work, or
    /// the read wanted no less than the database.
    bypasses,
    /// Loads that were not begun, to spare the database.
    refused_loads,
    /// Loads of a value that was still there.
    refreshes,
    /// Values that were filled.
    fills,
    /// Values that were not, because the lease was gone or had ended.
    lost_fills,
    /// Values that were not, because they were older than what the store knows of.
    old_fills,
    /// Values that were too large or could not be encoded.
    unfit_values,
    /// Entries that could not be read, or whose value could not.
    unreadable,
    /// Steps that the store failed at.
    store_errors,
    /// Keys that were invalidated.
    invalidations,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
