//! Which keys are read most.
//!
//! # How it works
//!
//! One hit of [`SAMPLE`] is looked at, by chance. Its key is counted in a sketch of [`PLACES`] places (space-saving:
//! A. Metwally, D. Agrawal, A. El Abbadi, ICDT 2005): a key that has no place takes that of the key with the smallest
//! count, and goes on from that count. So a count is never too small, and too large by no more than it was when the
//! key came in. Every [`HALF`] all counts are halved, so that what was hot once is forgotten.
//!
//! A key is hot when at least [`HOT`] sampled hits are surely its own: some twenty hits a second, kept up.
//!
//! # Cost
//!
//! A hit takes a random number; one of [`SAMPLE`] takes a lock and looks through the places.

use std::time::Duration;

use lockkeeper::clock::Instant;
use parking_lot::Mutex;
use serde::Serialize;

/// One hit of so many is looked at.
const SAMPLE: u64 = 16;

/// So many keys are counted.
const PLACES: usize = 64;

/// When counts are halved.
const HALF: Duration = Duration::from_secs(10);

/// So many sampled hits make a key hot.
const HOT: u64 = 8;

/// A key that is read much, from [`Cache::hot_keys`](crate::Cache::hot_keys).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HotKey {
    /// The key, as it is written.
    pub key: String,
    /// About so many hits lately: in the last ten seconds or so, and half as much of what was before.
    pub hits: u64,
}

/// Samples hits.
#[derive(Debug)]
pub(crate) struct Hot {
    sketch: Mutex<Sketch>,
}

impl Hot {
    pub(crate) fn new() -> Self {
        let sketch = Sketch { places: Vec::new(), halved: Instant::now() };
        Self { sketch: Mutex::new(sketch) }
    }

    /// A hit. A random number, for whoever needs one.
    pub(crate) fn hit(&self, name: &str) -> u64 {
        // Not every sixteenth: reads come in rounds, too.
        if fastrand::u64(..).is_multiple_of(SAMPLE) {
            self.sketch.lock().count(name, Instant::now());
        }
        fastrand::u64(..)
    }

    pub(crate) fn is_hot(&self, name: &str) -> bool {
        let mut sketch = self.sketch.lock();
        sketch.forget(Instant::now());
        sketch.places.iter().any(|place| *place.name == *name && place.is_hot())
    }

    /// The hot ones and their hits, most first.
    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        let mut sketch = self.sketch.lock();
        sketch.forget(Instant::now());
        let hot = sketch.places.iter().filter(|place| place.is_hot());
        let mut hot: Vec<_> =
            hot.map(|place| (String::from(&*place.name), place.own() * SAMPLE)).collect();
        drop(sketch);
        hot.sort_by_key(|(_, hits)| std::cmp::Reverse(*hits));
        hot
    }
}

#[derive(Debug)]
struct Sketch {
    places: Vec<Place>,
    halved: Instant,
}

#[derive(Debug)]
struct Place {
    name: Box<str>,
    count: u64,
    /// How much of it may belong to keys that were here before.
    over: u64,
}

impl Place {
    fn own(&self) -> u64 {
        self.count - self.over
    }

    fn is_hot(&self) -> bool {
        self.own() >= HOT
    }
}

impl Sketch {
    fn count(&mut self, name: &str, now: Instant) {
        self.forget(now);
        if let Some(place) = self.places.iter_mut().find(|place| *place.name == *name) {
            place.count += 1;
            return;
        }
        if self.places.len() < PLACES {
            self.places.push(Place { name: name.into(), count: 1, over: 0 });
            return;
        }
        if let Some(least) = self.places.iter_mut().min_by_key(|place| place.count) {
            *least = Place { name: name.into(), count: least.count + 1, over: least.count };
        }
    }

    fn forget(&mut self, now: Instant) {
        let times = now.since(self.halved).as_nanos() / HALF.as_nanos();
        if times == 0 {
            return;
        }
        self.halved = now;
        let times = u32::try_from(times).unwrap_or(u32::MAX).min(63);
        for place in &mut self.places {
            place.count >>= times;
            place.over >>= times;
        }
        self.places.retain(|place| place.count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sketch() -> (Sketch, Instant) {
        let now = Instant::from_nanos(1);
        (Sketch { places: Vec::new(), halved: now }, now)
    }

    fn own(sketch: &Sketch, name: &str) -> Option<u64> {
        sketch.places.iter().find(|place| *place.name == *name).map(Place::own)
    }

    /// A hundred thousand keys that come once, and one of a hundred hits is for the same key.
    #[test]
    fn one_that_is_hot_is_found_among_many_that_are_not() {
        let (mut sketch, now) = sketch();
        for number in 0..100_000 {
            sketch.count(&format!("cold {number}"), now);
            if number % 20 == 0 {
                sketch.count("hot", now);
            }
        }
        let hot: Vec<_> = sketch.places.iter().filter(|place| place.is_hot()).collect();
        assert_eq!(hot.len(), 1, "{hot:?}");
        assert_eq!(&*hot[0].name, "hot");
        assert!(hot[0].own() <= 5000, "more than there were");
    }

    #[test]
    fn what_was_hot_once_is_forgotten() {
        let (mut sketch, now) = sketch();
        for _ in 0..100 {
            sketch.count("a", now);
        }
        sketch.forget(now + HALF / 2);
        assert_eq!(own(&sketch, "a"), Some(100));
        sketch.forget(now + HALF);
        assert_eq!(own(&sketch, "a"), Some(50));
        sketch.forget(now + HALF * 4);
        assert_eq!(own(&sketch, "a"), Some(6));
        sketch.forget(now + HALF * 1000);
        assert!(sketch.places.is_empty());
    }

    #[test]
    fn hits_are_sampled_evenly_whatever_the_order() {
        let hot = Hot::new();
        for number in 0..64_000 {
            hot.hit(["a", "b", "c", "d"][number % 4]);
        }
        let list = hot.list();
        assert_eq!(list.len(), 4);
        for (name, hits) in list {
            assert!((13_000..19_000).contains(&hits), "{name}: {hits}");
        }
        assert!(hot.is_hot("a") && !hot.is_hot("e"));
    }
}
