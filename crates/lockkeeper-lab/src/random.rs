//! Random numbers that can be had again: the seed is printed.

use std::time::Duration;

/// A small generator (xorshift*), good enough to vary a schedule.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The same numbers as another one of this seed.
    pub fn from_seed(seed: u64) -> Self {
        // Spread first: seeds that people choose are small, and zero would stay zero.
        let spread = seed.wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        Self((spread ^ (spread >> 31)) | 1)
    }

    /// A generator of its own for one of several tasks.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.number() | 1)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.number() >> 11) % bound.max(1)
    }

    /// A duration of less than `bound`.
    pub fn duration(&mut self, bound: Duration) -> Duration {
        Duration::from_nanos(self.below(u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX)))
    }
}
