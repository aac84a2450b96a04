//! Random numbers that can be had again: every test prints its seed.

use std::time::Duration;

/// A small generator (xorshift*), good enough to vary a schedule.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Seeded by `TESTKIT_SEED`, else by the clock; prints which, so that a failure can be repeated.
    pub fn seeded() -> Self {
        let seed = std::env::var("TESTKIT_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| lockkeeper::clock::Instant::now().as_nanos());
        eprintln!("TESTKIT_SEED={seed}");
        Self::from_seed(seed)
    }

    /// The same numbers as another one of this seed, for a process that is told it.
    pub fn from_seed(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A generator of its own for one of several tasks.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.next() | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound.max(1)
    }

    /// A duration of less than `bound`.
    pub fn duration(&mut self, bound: Duration) -> Duration {
        Duration::from_nanos(self.below(u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX)))
    }
}
