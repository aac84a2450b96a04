//! What the map of a first level has of a key, and how it is looked for.
//!
//! What is known of a value is with its key, so that the map itself looks at it while it searches: what does not do is not
//! found, and all that a hit copies is a pointer.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::Equivalent;

use super::changes::{Mark, Watch};
use crate::cache::{Read, Source};
use crate::entry::Millis;
use crate::freshness::Freshness;

/// A key of which the store had a value.
pub(super) struct Kept<K> {
    key: K,
    /// How much news there had been when the stamp was last looked at, and will do until there is more.
    news: AtomicU64,
    /// Apart, because few hits need it, and the rest lies closer together without it.
    pub(super) stamp: Box<Stamp>,
}

impl<K> Kept<K> {
    pub(super) fn new<V>(key: K, read: &Read<V>, mark: Mark, ends: u64) -> Self {
        let stamp = Box::new(Stamp { version: read.version, made: read.made, mark, ends });
        // There is never so little: the first hit looks at the stamp.
        Self { key, news: AtomicU64::new(0), stamp }
    }

    /// Whether it may be served, as far as must be known now.
    #[inline]
    pub(super) fn holds(&self, changes: &Watch) -> bool {
        let now = Watch::now();
        changes.news(now).is_some_and(|news| {
            self.news.load(Ordering::Relaxed) == news || self.looked_at(changes, news, now)
        })
    }

    /// What there is to be said of it.
    pub(super) fn shown(&self, changes: &Watch) -> Shown {
        let Stamp { version, made, ends, .. } = *self.stamp;
        let left = Duration::from_nanos(ends.saturating_sub(Watch::now()));
        Shown { serves: self.holds(changes), left, version, made }
    }

    #[cold]
    fn looked_at(&self, changes: &Watch, news: u64, now: u64) -> bool {
        let good = now < self.stamp.ends && changes.is_same(&self.stamp.mark);
        // Without news nobody looks again, so its time must not be over before that of the news is.
        if good && self.stamp.ends >= changes.good_until() {
            self.news.store(news, Ordering::Relaxed);
        }
        good
    }
}

impl<K: PartialEq> PartialEq for Kept<K> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<K: Eq> Eq for Kept<K> {}

impl<K: Hash> Hash for Kept<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

/// What there is of a key, for [`explain`](crate::Cache::explain).
#[derive(Clone, Copy)]
pub(crate) struct Shown {
    /// Whether it would be served now.
    pub(crate) serves: bool,
    /// How long it may be yet, if nothing changes.
    pub(crate) left: Duration,
    pub(crate) version: u64,
    pub(crate) made: Millis,
}

/// What is known of a value.
#[derive(Clone, Copy)]
pub(super) struct Stamp {
    version: u64,
    made: Millis,
    pub(super) mark: Mark,
    /// By [`Watch::now`].
    ends: u64,
}

impl Stamp {
    /// Whether a read that asks for this takes it.
    pub(super) fn fits(&self, freshness: Freshness, now: Millis) -> bool {
        // What a writer was told whose database has no versions: the store has what he wrote, and this may not.
        freshness != Freshness::AtLeast(0) && freshness.accepts(self.version, self.made, now)
    }

    pub(super) fn read<V>(self, value: Option<Arc<V>>, source: Source) -> Read<V> {
        Read { value, version: self.version, made: self.made, source }
    }
}

/// A key that is looked for, and whether what is kept of it does.
pub(super) struct Wanted<'a, K, F: Fn(&Kept<K>) -> bool> {
    pub(super) key: &'a K,
    /// May be asked about other keys as well, and before the one that is taken.
    pub(super) does: F,
}

impl<K: Hash, F: Fn(&Kept<K>) -> bool> Hash for Wanted<'_, K, F> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl<K: Eq, F: Fn(&Kept<K>) -> bool> Equivalent<Kept<K>> for Wanted<'_, K, F> {
    #[inline]
    fn equivalent(&self, kept: &Kept<K>) -> bool {
        // In this order, because a processor that waits for the text of a key has time to look at a clock.
        (self.does)(kept) && self.key == &kept.key
    }
}
