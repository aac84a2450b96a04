//! The first level: values inside this process, in front of a store that several share.
//!
//! A copy is put here only by a read that got it from the store, together with the generation that its key had
//! *before* the store was asked. A change that the store tells of makes a new generation, and a copy of an old one is
//! not served. So it does not matter in which order the answer and the message arrive; a load, which knows nothing of
//! generations, never puts anything here.

mod changes;
mod count;
mod kept;
mod level;

use std::cell::Cell;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use quick_cache::sync::Cache as Map;

pub use self::changes::Watch;
use self::changes::{Mark, nanos};
use self::count::Count;
pub(crate) use self::kept::Shown;
use self::kept::{Kept, Wanted};
use crate::cache::{Read, Source};
use crate::entry::Millis;
use crate::error::{Error, Result};
use crate::freshness::Freshness;

/// The shortest bound: the clock that is used here has a coarse hand.
const SHORTEST: Duration = Duration::from_millis(50);

/// Values inside this process, in front of a store that several share; for
/// [`with_first_level`](crate::Cache::with_first_level).
///
/// # What it promises
///
/// What is served here is at most [`bound`](Self::bound) behind the store: after an invalidation, an intent or any other
/// change at the store has been acknowledged, other processes may serve what was there before for that long, and
/// not longer, whatever becomes of messages and connections. The cache that invalidates or announces a write itself serves
/// nothing older at all once that has returned. Reads that ask for [`Freshness::AtLeast`] or [`Freshness::MaxAge`] get
/// that here as well.
///
/// The bound is measured and not hoped for: every quarter of it, the server is asked on the connection that brings
/// its messages whether there are more. Without an answer nothing is served here when the bound is over; after a
/// connection was lost, nothing before there is another, and then all is forgotten.
///
/// # When it breaks
///
/// With it, [`Cache::intend`](crate::Cache::intend) is not strong between processes: a reader elsewhere may have
/// the value from before the commit for as long as the bound. A master that was replaced and still answers is
/// believed until the client hears of the new one (about two seconds); so long, changes at a server that has just joined
/// a cluster are not heard. Time for which the machine is suspended does not
/// count.
///
/// # Cost
///
/// No round trip for a hit, which takes some 8 ns more than the map alone, not quite half as long again; the first hit of a
/// value after any change in the namespace takes a few more. One more connection to
/// each server, a message for each change in the namespace to each process, and 260 KiB for each cache. A value is
/// copied here by the second read, the one that finds it at the store.
///
/// Hits here do not count for [`hot_keys`](crate::Cache::hot_keys): of a key that is read all the time, the store sees one
/// read per [`ttl`](Self::ttl) and change in each process. So it may never be hot and never be
/// [refreshed ahead](crate::Builder::early). When its time at the store ends, it is gone here as well, and the next read in
/// each process waits for the one load. Where nobody shall wait, [`refresh_after`](crate::Builder::refresh_after) has it
/// loaded by the first read at the store after that time, and copies here end by then.
#[derive(Clone, Copy, Debug)]
#[must_use = "to be given to a cache"]
pub struct FirstLevel {
    capacity: usize,
    bound: Duration,
    ttl: Duration,
}

impl FirstLevel {
    /// For so many values.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, bound: Duration::from_secs(1), ttl: Duration::from_secs(60) }
    }

    /// How old the news may be by which a value is served. Default a second, at least 50 ms. Shorter: more questions
    /// to the server, and a server that is slow for that long makes everybody ask the store.
    pub fn bound(mut self, bound: Duration) -> Self {
        self.bound = bound;
        self
    }

    /// How long a value is served here before the store is asked again, so that it is seen there that it is used, and
    /// refreshed in time. Default a minute.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    fn check(&self) -> Result<()> {
        let what = match self {
            Self { capacity: 0, .. } => "capacity must be at least 1",
            Self { bound, .. } if *bound < SHORTEST => "bound must be at least 50 ms",
            Self { ttl, .. } if ttl.is_zero() => "ttl must be longer than that",
            _ => return Ok(()),
        };
        Err(Error::Config(format!("first level: {what}")))
    }
}

/// What a cache has to do with its first level, whatever its keys are.
pub(crate) trait Level<K, V>: Send + Sync {
    /// A value, if there is one, for who takes any and wants no more than the value: the shortest way.
    #[expect(clippy::option_option, reason = "what is kept may be that there is nothing")]
    fn value(&self, key: &K) -> Option<Option<Arc<V>>>;

    /// One that does for who asks; `now`: by the clock of the store, where the age matters.
    fn get(&self, key: &K, freshness: Freshness, now: Millis) -> Option<Read<V>>;

    /// One that may be old, when nobody can tell: the store had it no longer ago than that, and no change of it is known.
    fn get_stale(
        &self,
        key: &K,
        freshness: Freshness,
        bound: Duration,
        now: Millis,
    ) -> Option<Read<V>>;

    /// What it would serve now. It counts for nothing.
    fn peek(&self, key: &K) -> Option<Read<V>>;

    /// What there is of a key, whether it would be served or not. It counts for nothing.
    fn show(&self, key: &K) -> Option<Shown>;

    fn forget(&self, key: &K);

    fn clear(&self);

    /// Keeps what was read from the store since the mark, for so long at most; unless something has changed since.
    fn put(&self, key: &K, read: &Read<V>, mark: Mark, left: Duration);

    fn changes(&self) -> &Watch;

    fn hits(&self) -> u64;
}

/// The values of one cache.
pub(crate) struct First<K, V> {
    map: Map<Kept<K>, Option<Arc<V>>>,
    changes: Arc<Watch>,
    hits: Count,
    ttl: u64,
}

impl<K: Eq + Hash, V> First<K, V> {
    /// Empty, and nothing is served before somebody has told `changes` how things stand.
    pub(crate) fn new(level: FirstLevel) -> Result<(Self, Arc<Watch>)> {
        level.check()?;
        let changes = Arc::new(Watch::new(level.bound));
        let (map, hits) = (Map::new(level.capacity), Count::new());
        let first = Self { map, changes: Arc::clone(&changes), hits, ttl: nanos(level.ttl) };
        Ok((first, changes))
    }
}

impl<K, V> Level<K, V> for First<K, V>
where
    K: Clone + Eq + Hash + Send + Sync,
    V: Send + Sync,
{
    fn value(&self, key: &K) -> Option<Option<Arc<V>>> {
        let hits = self.hits.next();
        let value = self.map.get(&Wanted { key, does: |kept| kept.holds(&self.changes) })?;
        hits.count();
        Some(value)
    }

    fn get(&self, key: &K, freshness: Freshness, now: Millis) -> Option<Read<V>> {
        let found = Cell::new(None);
        let does = |kept: &Kept<K>| {
            found.set(Some(*kept.stamp));
            kept.holds(&self.changes) && kept.stamp.fits(freshness, now)
        };
        let value = self.map.get(&Wanted { key, does })?;
        self.hits.next().count();
        Some(found.get()?.read(value, Source::First))
    }

    fn get_stale(
        &self,
        key: &K,
        freshness: Freshness,
        bound: Duration,
        now: Millis,
    ) -> Option<Read<V>> {
        let found = Cell::new(None);
        let does = |kept: &Kept<K>| {
            let stamp = &kept.stamp;
            found.set(Some(**stamp));
            self.changes.unchanged(&stamp.mark, bound) && stamp.fits(freshness, now)
        };
        let value = self.map.peek(&Wanted { key, does })?;
        Some(found.get()?.read(value, Source::Stale))
    }

    fn peek(&self, key: &K) -> Option<Read<V>> {
        let found = Cell::new(None);
        let does = |kept: &Kept<K>| {
            found.set(Some(*kept.stamp));
            kept.holds(&self.changes)
        };
        let value = self.map.peek(&Wanted { key, does })?;
        Some(found.get()?.read(value, Source::First))
    }

    fn show(&self, key: &K) -> Option<Shown> {
        let found = Cell::new(None);
        let does = |kept: &Kept<K>| {
            found.set(Some(kept.shown(&self.changes)));
            true
        };
        self.map.peek(&Wanted { key, does })?;
        found.get()
    }

    fn forget(&self, key: &K) {
        self.map.remove(&Wanted { key, does: |_| true });
    }

    fn clear(&self) {
        self.map.clear();
    }

    fn put(&self, key: &K, read: &Read<V>, mark: Mark, left: Duration) {
        // It would not be served, and drive out one that is.
        if !self.changes.is_same(&mark) {
            return;
        }
        let ends = Watch::now().saturating_add(self.ttl.min(nanos(left)));
        self.map.insert(Kept::new(key.clone(), read, mark, ends), read.value.clone());
    }

    fn changes(&self) -> &Watch {
        &self.changes
    }

    fn hits(&self) -> u64 {
        self.hits.read()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::thread::{scope, yield_now};

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn read(value: u32) -> Read<u32> {
        Read { value: Some(Arc::new(value)), version: 7, made: 1000, source: Source::Hit }
    }

    fn first() -> (First<&'static str, u32>, Arc<Watch>) {
        let (first, changes) = First::new(FirstLevel::new(10).bound(LONG)).unwrap();
        changes.caught_up(Watch::now());
        (first, changes)
    }

    fn get(first: &First<&'static str, u32>, freshness: Freshness) -> Option<u32> {
        let read = first.get(&"k", freshness, 2000);
        if let Some(Read { version, made, source, .. }) = read {
            assert_eq!((version, made, source), (7, 1000, Source::First));
        }
        let value = read.map(|read| read.value);
        if freshness == Freshness::Any {
            assert_eq!(value, first.value(&"k"), "the shortest way");
        }
        value?.as_deref().copied()
    }

    #[test]
    fn what_has_changed_since_the_store_was_asked_is_not_served() {
        let (first, changes) = first();
        let mark = changes.mark("k");
        first.put(&"k", &read(1), mark, LONG);
        assert_eq!(get(&first, Freshness::Any), Some(1));
        changes.changed(b"k");
        assert_eq!(get(&first, Freshness::Any), None);
        // The message comes between the answer of the store and the fill.
        let mark = changes.mark("k");
        changes.changed(b"k");
        first.put(&"k", &read(1), mark, LONG);
        assert_eq!(get(&first, Freshness::Any), None);
        assert_eq!(first.hits(), 2, "in both ways");
    }

    #[test]
    fn what_may_have_been_missed_is_forgotten() {
        let (first, changes) = first();
        let early = changes.mark("k");
        first.put(&"k", &read(1), early, LONG);
        changes.missed();
        assert_eq!(get(&first, Freshness::Any), None);
        let late = changes.mark("k");
        changes.caught_up(Watch::now());
        assert_eq!(get(&first, Freshness::Any), None, "not when it is heard again either");
        first.put(&"k", &read(1), early, LONG);
        assert_eq!(get(&first, Freshness::Any), None, "nor by who asked before");
        first.put(&"k", &read(2), late, LONG);
        assert_eq!((get(&first, Freshness::Any), changes.flushes()), (Some(2), 1));
    }

    fn stale(first: &First<&'static str, u32>) -> Option<u32> {
        first.get_stale(&"k", Freshness::Any, LONG, 2000)?.value.as_deref().copied()
    }

    /// What was kept is all there is when the store is down; what comes late is not to be among it.
    #[test]
    fn what_is_on_its_way_when_all_is_forgotten_does_not_arrive() {
        let (first, changes) = first();
        let mark = changes.mark("k");
        changes.forget_all();
        first.clear();
        first.put(&"k", &read(1), mark, LONG);
        assert_eq!((get(&first, Freshness::Any), stale(&first)), (None, None));
        // Nor does it drive out what came in time.
        first.put(&"k", &read(2), changes.mark("k"), LONG);
        first.put(&"k", &read(1), mark, LONG);
        assert_eq!((get(&first, Freshness::Any), stale(&first)), (Some(2), Some(2)));
        // What was there when a connection was lost is what may be old.
        changes.missed();
        assert_eq!((get(&first, Freshness::Any), stale(&first)), (None, Some(2)));
    }

    /// Somebody reads and fills all the time, while somebody else changes the value, says so, and looks. The first found that
    /// is older, with what it is older than.
    fn nothing_older(
        say: impl Fn(&First<&'static str, u32>, &Watch),
        look: impl Fn(&First<&'static str, u32>) -> Option<u32> + Sync,
    ) -> Option<(u32, u32)> {
        /// So many changes at least, and more until there was something to compare so many times.
        const CHANGES: (u32, u32) = (100_000, 20_000_000);
        const ENOUGH: u32 = 1000;
        let (first, changes) = first();
        let (store, done) = (AtomicU32::new(0), AtomicBool::new(false));
        let (wrong, compared) = scope(|scope| {
            scope.spawn(|| {
                while !done.load(SeqCst) {
                    let mark = changes.mark("k");
                    first.put(&"k", &read(store.load(SeqCst)), mark, LONG);
                    while look(&first).is_some() && !done.load(SeqCst) {}
                }
            });
            let (mut wrong, mut compared) = (None, 0);
            for value in 1..=CHANGES.1 {
                store.store(value, SeqCst);
                say(&first, &changes);
                let found = look(&first).or_else(|| {
                    // Who fills may need the processor.
                    (compared < ENOUGH).then(yield_now).and_then(|()| look(&first))
                });
                compared += u32::from(found.is_some());
                wrong = found.filter(|found| *found < value).map(|found| (found, value));
                if wrong.is_some() || (value >= CHANGES.0 && compared >= ENOUGH) {
                    break;
                }
            }
            done.store(true, SeqCst);
            (wrong, compared)
        });
        assert!(wrong.is_some() || compared >= ENOUGH, "too little to compare: {compared}");
        wrong
    }

    #[test]
    fn whoever_tells_of_a_change_reads_nothing_older() {
        let value = |first: &First<_, u32>| first.value(&"k")?.as_deref().copied();
        assert_eq!(nothing_older(|_, changes| changes.changed(b"k"), value), None);
    }

    #[test]
    fn whoever_forgets_all_reads_nothing_older_when_the_store_is_down() {
        let say = |first: &First<_, u32>, changes: &Watch| {
            changes.forget_all();
            first.clear();
        };
        assert_eq!(nothing_older(say, stale), None);
    }

    #[test]
    fn reads_get_what_they_ask_for_or_nothing() {
        let (first, changes) = first();
        first.put(&"k", &read(1), changes.mark("k"), LONG);
        let (short, second) = (Duration::from_millis(999), Duration::from_secs(1));
        for (freshness, found) in [
            (Freshness::Any, true),
            (Freshness::Stale(short), true),
            (Freshness::AtLeast(7), true),
            (Freshness::AtLeast(8), false),
            (Freshness::AtLeast(0), false),
            (Freshness::MaxAge(second), true),
            (Freshness::MaxAge(short), false),
            (Freshness::Latest, false),
        ] {
            assert_eq!(get(&first, freshness).is_some(), found, "{freshness:?}");
        }
        first.put(&"k", &read(1), changes.mark("k"), Duration::ZERO);
        assert_eq!(get(&first, Freshness::Any), None, "its time is over");
    }

    /// It was served before, and there is no news.
    #[test]
    fn what_is_over_is_not_served() {
        let (first, changes) = first();
        let left = Duration::from_millis(100);
        let before = Watch::now() + nanos(left);
        first.put(&"k", &read(1), changes.mark("k"), left);
        let after = Watch::now() + nanos(left);
        loop {
            let asked = Watch::now();
            let served = first.value(&"k").is_some();
            let answered = Watch::now();
            assert!(served || answered >= before, "it is not over yet");
            assert!(!served || asked < after, "it is over");
            if asked >= after {
                break;
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for level in [
            FirstLevel::new(0),
            FirstLevel::new(1).bound(Duration::from_millis(49)),
            FirstLevel::new(1).ttl(Duration::ZERO),
        ] {
            assert!(matches!(First::<u8, u8>::new(level), Err(Error::Config(_))), "{level:?}");
        }
    }
}
