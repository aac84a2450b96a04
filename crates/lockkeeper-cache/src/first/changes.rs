//! What has changed at the store, and how far that is known. Nothing here waits or talks to anybody.

mod parts;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use self::parts::Part;
use crate::hash::hash;

/// Keys share their generation with a 65,536th of the others: a change of one costs a look at the store for each of
/// those that are kept.
const PLACES: usize = 1 << 16;

/// The hand of the coarse clock moves at least so often.
const TICK: u64 = 10_000_000;

/// What a [store](crate::Store) tells a [first level](crate::FirstLevel): which keys have changed, and how far that
/// is known.
pub struct Watch {
    generations: Box<[AtomicU32]>,
    /// Grows when anything may have changed.
    epoch: AtomicU32,
    /// Grows when this process has changed everything.
    cleared: AtomicU32,
    /// Grows with everything that is told, after it: as long as it is the same, nothing else need be looked at.
    news: AtomicU64,
    /// Until when what is known will do; 0: nothing is known.
    good_until: AtomicU64,
    flushes: AtomicU64,
    bound: Duration,
    /// Those who tell this one, if they are several.
    parts: Mutex<Vec<Arc<Self>>>,
    /// Whom this one tells; it keeps nothing itself then.
    part: Option<Part>,
}

/// The generation of a key at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    place: u16,
    generation: u32,
    epoch: u32,
    cleared: u32,
    /// When, by [`Watch::now`].
    at: u64,
}

impl Watch {
    pub(crate) fn new(bound: Duration) -> Self {
        Self::with_places(bound, PLACES)
    }

    fn with_places(bound: Duration, places: usize) -> Self {
        let generations = (0..places).map(|_| AtomicU32::new(0)).collect();
        let (good_until, flushes) = (AtomicU64::new(0), AtomicU64::new(0));
        let (epoch, cleared, news) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU64::new(1));
        let (parts, part) = (Mutex::default(), None);
        Self { generations, epoch, cleared, news, good_until, flushes, bound, parts, part }
    }

    /// The time in nanoseconds, by a clock that is cheap to ask: it may be late by its tick.
    #[inline]
    pub fn now() -> u64 {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        let secs = u64::try_from(now.tv_sec).unwrap_or(0);
        secs * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
    }

    pub(crate) fn bound(&self) -> Duration {
        self.bound
    }

    /// How often a store should say how far it is known.
    pub fn interval(&self) -> Duration {
        self.bound / 4
    }

    /// What is under this key has changed.
    pub fn changed(&self, key: &[u8]) {
        if let Some(part) = &self.part {
            return part.changed(key);
        }
        self.generation(place(key)).fetch_add(1, Ordering::SeqCst);
        self.news.fetch_add(1, Ordering::SeqCst);
    }

    /// Anything may have changed. Nothing is served before the next [`caught_up`](Self::caught_up).
    pub fn missed(&self) {
        if let Some(part) = &self.part {
            return part.missed();
        }
        // Not when nothing was known anyway.
        if self.good_until.swap(0, Ordering::SeqCst) > 0 {
            self.flushes.fetch_add(1, Ordering::Relaxed);
        }
        self.next_epoch();
    }

    /// All that was kept before this is of an old generation, and known to have changed.
    pub(crate) fn forget_all(&self) {
        self.cleared.fetch_add(1, Ordering::SeqCst);
        self.next_epoch();
    }

    fn next_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        self.news.fetch_add(1, Ordering::SeqCst);
    }

    /// Every change has been told that was acknowledged before that time, by [`now`](Self::now).
    pub fn caught_up(&self, then: u64) {
        if let Some(part) = &self.part {
            return part.caught_up(then);
        }
        let until = then.saturating_add(nanos(self.bound)).saturating_sub(TICK);
        self.good_until.store(until, Ordering::SeqCst);
        self.news.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// The generation of a key, to be asked for before the store is.
    pub(crate) fn mark(&self, key: &str) -> Mark {
        let place = place(key.as_bytes());
        let generation = self.generation(place).load(Ordering::SeqCst);
        let cleared = self.cleared.load(Ordering::SeqCst);
        let epoch = self.epoch.load(Ordering::SeqCst);
        Mark { place, generation, epoch, cleared, at: Self::now() }
    }

    /// How much news there has been, if what is known does [now](Self::now).
    #[inline]
    pub(crate) fn news(&self, now: u64) -> Option<u64> {
        // In this order: who sees how far it is known must see what is known.
        let until = self.good_until();
        let news = self.news.load(Ordering::SeqCst);
        (now < until).then_some(news)
    }

    /// Until when what is known will do.
    pub(crate) fn good_until(&self) -> u64 {
        self.good_until.load(Ordering::SeqCst)
    }

    /// Whether nothing has changed since that mark, by the news so far.
    pub(crate) fn is_same(&self, mark: &Mark) -> bool {
        self.generation(mark.place).load(Ordering::SeqCst) == mark.generation
            && self.epoch.load(Ordering::SeqCst) == mark.epoch
    }

    /// Whether no change is known since that mark, though there may be some, and it is not older than that.
    pub(crate) fn unchanged(&self, mark: &Mark, bound: Duration) -> bool {
        let until = mark.at.saturating_add(nanos(bound)).saturating_sub(TICK);
        self.generation(mark.place).load(Ordering::SeqCst) == mark.generation
            && self.cleared.load(Ordering::SeqCst) == mark.cleared
            && Self::now() < until
    }

    #[inline]
    fn generation(&self, place: u16) -> &AtomicU32 {
        &self.generations[usize::from(place)]
    }
}

fn place(key: &[u8]) -> u16 {
    let [.., one, two] = hash(key).to_be_bytes();
    u16::from_be_bytes([one, two])
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { good_until, flushes, bound, .. } = self;
        let mut debug = f.debug_struct("Watch");
        debug.field("good_until", good_until).field("flushes", flushes).field("bound", bound);
        debug.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_known_for_as_long_as_the_bound_and_no_longer() {
        let second = Duration::from_secs(1);
        let (changes, now) = (Watch::new(second), Watch::now());
        assert_eq!(changes.news(now), None, "nobody has said anything");
        changes.caught_up(now);
        let (last, over) = (now + nanos(second) - TICK - 1, now + nanos(second) - TICK);
        assert!(changes.news(now).is_some() && changes.news(last).is_some());
        assert_eq!(changes.news(over), None);
        changes.missed();
        assert_eq!(changes.news(now), None);
        assert_eq!(changes.interval(), second / 4);
    }

    /// Whatever is told is news, and ends what it is about.
    #[test]
    fn what_is_told_is_seen() {
        let (changes, now) = (Watch::new(Duration::from_secs(1)), Watch::now());
        changes.caught_up(now);
        type Told = fn(&Watch);
        for (told, same) in [
            ((|changes| changes.changed(b"k")) as Told, false),
            (|changes| changes.changed(b"other"), true),
            (Watch::forget_all, false),
            (Watch::missed, false),
            (|changes| changes.caught_up(Watch::now()), true),
        ] {
            let (mark, news) = (changes.mark("k"), changes.news(now));
            assert!(changes.is_same(&mark));
            told(&changes);
            assert_eq!(changes.is_same(&mark), same);
            assert_ne!(changes.news(now), news);
            changes.caught_up(now);
        }
    }

    /// A clock that is late would make the bound longer.
    #[test]
    fn the_clock_is_not_later_than_its_tick() {
        let fine = || {
            let now = clock_gettime(ClockId::Monotonic);
            let (secs, nanos) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
            secs * 1_000_000_000 + nanos
        };
        for _ in 0..1000 {
            let before = fine();
            assert!(Watch::now() + TICK >= before);
        }
    }
}
