//! What happened, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What happened in one cache since it was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)+
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

        impl Stats {
            /// All numbers with their names and what they count.
            pub fn all(&self) -> impl Iterator<Item = Stat> + use<> {
                [$(Stat {
                    name: stringify!($name),
                    help: concat!($($doc),+).trim_start(),
                    count: self.$name,
                },)+].into_iter()
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
    /// Steps that the store or the filter failed at.
    store_errors,
    /// Reads that had to do without the store, because it did not answer or was left alone.
    down_reads,
    /// Reads that were told by the filter that the database has nothing, without a load.
    filtered,
    /// Hits on hot keys that had the value loaded anew before it ended.
    early_refreshes,
    /// Values that the audit has compared with the database.
    audited,
    /// Of those, how many were stale: the database had something else, and nobody had invalidated them.
    audit_stale,
    /// Values that were gone when the audit came to look at them.
    audit_gone,
    /// Keys that were invalidated.
    invalidations,
    /// Keys that could not be, and are tried again.
    debts,
    /// Of those, how many have been invalidated since.
    debts_paid,
    /// Times that they were too many to remember.
    debt_overflows,
}

/// One number of [`Stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat {
    /// What it is called.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// How many.
    pub count: u64,
}

impl Stats {
    /// The same for Prometheus, in its text format: counters `lockkeeper_cache_NAME_total` with the label `cache`.
    ///
    /// ```
    /// let text = lockkeeper_cache::Stats::default().prometheus("price");
    /// assert!(text.contains("# HELP lockkeeper_cache_loads_total Calls of the loader.\n"));
    /// assert!(text.contains("# TYPE lockkeeper_cache_loads_total counter\n"));
    /// assert!(text.contains("lockkeeper_cache_loads_total{cache=\"price\"} 0\n"));
    /// ```
    pub fn prometheus(&self, cache: &str) -> String {
        let mut label = String::new();
        for letter in cache.chars() {
            match letter {
                '\\' | '"' => label.extend(['\\', letter]),
                '\n' => label.push_str("\\n"),
                letter => label.push(letter),
            }
        }
        let stat = |Stat { name, help, count }| {
            let name = format!("lockkeeper_cache_{name}_total");
            format!(
                "# HELP {name} {help}\n# TYPE {name} counter\n{name}{{cache=\"{label}\"}} {count}\n"
            )
        };
        self.all().map(stat).collect()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
