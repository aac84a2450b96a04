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
                Stats { $($name: self.$name.get(),)+ }
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
    /// Of those, how many were told that the database has nothing. Not of those that the first level served: what it has
    /// is not looked at.
    null_hits,
    /// Reads that found one in the first level, inside this process; not among `hits`.
    first_hits,
    /// Times that the first level was emptied, because changes may have been missed.
    first_flushes,
    /// Reads that did not.
    misses,
    /// Reads that got a value that had been invalidated, because they would rather have that than wait.
    stale_hits,
    /// Reads that shared the load of another in this process.
    joined,
    /// Times that somebody waited for a load in another process, or for a fill of this one that was still under way.
    waits,
    /// Calls of the loader.
    loads,
    /// Of those, how many failed or panicked.
    load_errors,
    /// Of those, how many filled nothing, whatever came out: the store was not available, a writer was at work, or
    /// the read wanted no less than the database.
    bypasses,
    /// How long the calls of the loader took, all together, in microseconds: divided by `loads`, how long one takes.
    load_micros,
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
    /// Of those, how many got a copy of the first level that may be old.
    down_stale,
    /// Reads that were told by the filter that the database has nothing, without a load.
    filtered,
    /// Reads of which the filter could not say anything, and which were let through: it is not loaded, or did not answer in
    /// time, or was left alone after that, or has failed to take in that key.
    unfiltered,
    /// Hits on hot keys that had the value loaded anew before it ended.
    early_refreshes,
    /// Values that the audit has compared with the database.
    audited,
    /// Of those, how many were stale: the database had something else, and nobody had invalidated them.
    audit_stale,
    /// Of those, how many were stale in the first level of this process alone: the store had them no more, and the message was
    /// lost.
    audit_first_stale,
    /// Values that were gone, or waited for the database, when the audit came to look at them.
    audit_gone,
    /// Changes that were [written behind](crate::strategy::write_behind) to the database by this process.
    applied,
    /// Times that the database refused one, or did not answer; it is tried again, and those after it wait.
    apply_errors,
    /// Keys that were invalidated.
    invalidations,
    /// Keys that could not be, or that the filter has failed to take in, and that are tried again.
    debts,
    /// Of those, with how many it was done since.
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
    /// The numbers of some caches for Prometheus, in its text format: counters `lockkeeper_cache_NAME_total` with the
    /// name that is given here as the label `cache`. All caches of a process in one call, because each counter may be
    /// described only once.
    ///
    /// ```
    /// use lockkeeper_cache::Stats;
    /// let (users, prices) = (Stats::default(), Stats::default());
    /// let text = Stats::prometheus([("user", users), ("price", prices)]);
    /// assert!(text.contains("# HELP lockkeeper_cache_loads_total Calls of the loader.\n"));
    /// assert!(text.contains("# TYPE lockkeeper_cache_loads_total counter\n"));
    /// assert!(text.contains("lockkeeper_cache_loads_total{cache=\"price\"} 0\n"));
    /// ```
    pub fn prometheus<'a>(caches: impl IntoIterator<Item = (&'a str, Self)>) -> String {
        let caches: Vec<(String, Self)> =
            caches.into_iter().map(|(name, stats)| (label(name), stats)).collect();
        let mut text = String::new();
        for (at, Stat { name, help, .. }) in Self::default().all().enumerate() {
            let name = format!("lockkeeper_cache_{name}_total");
            text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} counter\n"));
            for (cache, stats) in &caches {
                let count = stats.all().nth(at).map_or(0, |stat| stat.count);
                text.push_str(&format!("{name}{{cache=\"{cache}\"}} {count}\n"));
            }
        }
        text
    }
}

/// As the value of a label.
fn label(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.add_many(1);
    }

    pub(crate) fn add_many(&self, many: u64) {
        self.0.fetch_add(many, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_is_described_once_and_labels_are_escaped() {
        let stats = Counters::default();
        stats.hits.add();
        let text = Stats::prometheus([("a\"b\\c\nd", stats.read()), ("other", Stats::default())]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.iter().filter(|line| line.starts_with("# TYPE")).count() * 4, lines.len());
        assert!(
            text.contains("lockkeeper_cache_hits_total{cache=\"a\\\"b\\\\c\\nd\"} 1\n"),
            "{text}"
        );
        assert!(Stats::default().all().all(|stat| stat.help.ends_with('.')), "no help");
    }
}
