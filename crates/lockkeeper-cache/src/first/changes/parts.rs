//! A watch in parts: several stores tell of changes, each of its own keys, and none knows of the others.
//!
//! What is known of the whole is what is known of the part that is heard least: that one has caught up says nothing
//! about the others. So the whole has caught up when all have, with the earliest of their times; and it has missed
//! something when one has.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Watch;

/// What the parts of a watch have in common.
struct Whole {
    watch: Weak<Watch>,
    /// How far each part has been heard; `None`: it is not.
    heard: Mutex<Vec<Option<u64>>>,
}

/// What makes a watch one of several.
pub(super) struct Part {
    whole: Arc<Whole>,
    at: usize,
}

impl Watch {
    /// So many watches, one for each store that tells of its share of the changes. They live as long as this one, which is
    /// told nothing by anybody else.
    pub(crate) fn split(self: &Arc<Self>, parts: usize) -> Vec<Arc<Self>> {
        let heard = Mutex::new(vec![None; parts]);
        let whole = Arc::new(Whole { watch: Arc::downgrade(self), heard });
        let part = |at| {
            let whole = Arc::clone(&whole);
            Arc::new(Self { part: Some(Part { whole, at }), ..Self::with_places(self.bound, 0) })
        };
        let split: Vec<_> = (0..parts).map(part).collect();
        self.parts.lock().extend(split.iter().map(Arc::clone));
        split
    }
}

impl Part {
    pub(super) fn changed(&self, key: &[u8]) {
        if let Some(watch) = self.whole.watch.upgrade() {
            watch.changed(key);
        }
    }

    pub(super) fn missed(&self) {
        self.heard(None);
    }

    pub(super) fn caught_up(&self, then: u64) {
        self.heard(Some(then));
    }

    fn heard(&self, heard: Option<u64>) {
        let Some(watch) = self.whole.watch.upgrade() else { return };
        // Until the whole is told: one that has missed something must not be overtaken by another that has not.
        let mut all = self.whole.heard.lock();
        all[self.at] = heard;
        if heard.is_none() {
            return watch.missed();
        }
        let all: Option<Vec<u64>> = all.iter().copied().collect();
        if let Some(least) = all.and_then(|all| all.into_iter().min()) {
            watch.caught_up(least);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::first::changes::{TICK, nanos};

    const BOUND: Duration = Duration::from_secs(1);

    /// Until when what is known will do.
    fn good_for(watch: &Watch, now: u64) -> Option<u64> {
        let good = |then: &u64| watch.news(*then + nanos(BOUND) - TICK - 1).is_some();
        [now + 20, now + 10, now].into_iter().find(good).map(|then| then - now)
    }

    #[test]
    fn the_whole_is_known_as_far_as_the_part_that_is_heard_least() {
        let (watch, now) = (Arc::new(Watch::new(BOUND)), Watch::now());
        let parts = watch.split(2);
        assert_eq!(parts[0].interval(), BOUND / 4);
        parts[0].caught_up(now + 20);
        assert_eq!(good_for(&watch, now), None, "nobody has heard of the other");
        parts[1].caught_up(now);
        assert_eq!(good_for(&watch, now), Some(0));
        parts[0].caught_up(now + 20);
        assert_eq!(good_for(&watch, now), Some(0), "one alone does not move it");
        parts[1].caught_up(now + 10);
        assert_eq!(good_for(&watch, now), Some(10));
        parts[1].missed();
        assert_eq!((good_for(&watch, now), watch.flushes()), (None, 1));
        parts[0].caught_up(now + 20);
        assert_eq!(good_for(&watch, now), None, "not before the other is heard again");
        parts[1].caught_up(now + 20);
        assert_eq!(good_for(&watch, now), Some(20));
        let mark = watch.mark("k");
        parts[1].changed(b"other");
        assert!(watch.is_same(&mark));
        parts[0].changed(b"k");
        assert!(!watch.is_same(&mark));
    }

    #[test]
    fn parts_of_parts_are_parts() {
        let (watch, now) = (Arc::new(Watch::new(BOUND)), Watch::now());
        let parts = watch.split(2);
        let inner = parts[1].split(2);
        for part in [&parts[0], &inner[0]] {
            part.caught_up(now);
            assert_eq!(good_for(&watch, now), None);
        }
        inner[1].caught_up(now);
        assert_eq!(good_for(&watch, now), Some(0));
        inner[0].missed();
        assert_eq!(good_for(&watch, now), None);
    }

    /// Who listens for a watch that is gone must be able to notice.
    #[test]
    fn parts_live_as_long_as_the_whole() {
        let watch = Arc::new(Watch::new(BOUND));
        let part = Arc::downgrade(&watch.split(1)[0]);
        assert_eq!(part.strong_count(), 1);
        drop(watch);
        assert_eq!(part.strong_count(), 0);
    }
}
