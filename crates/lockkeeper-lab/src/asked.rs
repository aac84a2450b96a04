//! A database that counts how often it is asked: the checker of everything that a cache is to keep from it.

use std::sync::Arc;

use parking_lot::Mutex;

/// Counts loads, in all and in each second. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Asked(Arc<Mutex<Counts>>);

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    total: u64,
    this_second: u64,
    busiest: u64,
}

impl Asked {
    /// Somebody asks it.
    pub fn load(&self) {
        let mut counts = self.0.lock();
        counts.total += 1;
        counts.this_second += 1;
        counts.busiest = counts.busiest.max(counts.this_second);
    }

    /// Another second begins. Returns how often it was asked in the last one.
    pub fn next_second(&self) -> u64 {
        std::mem::take(&mut self.0.lock().this_second)
    }

    /// How often it was asked in all.
    pub fn total(&self) -> u64 {
        self.0.lock().total
    }

    /// How often it was asked in the second in which that was most.
    pub fn busiest(&self) -> u64 {
        self.0.lock().busiest
    }
}

/// A count as a figure.
pub fn figure(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_is_counted_for_itself() {
        let asked = Asked::default();
        asked.load();
        asked.load();
        assert_eq!(asked.next_second(), 2);
        asked.load();
        assert_eq!(asked.next_second(), 1);
        assert_eq!(asked.next_second(), 0);
        assert_eq!((asked.total(), asked.busiest()), (3, 2));
    }
}
