//! How large a filter is, and which bits a key sets.

use super::FilterError;
#[cfg(any(test, feature = "redis"))]
use crate::hash::hash;

/// Redis has no longer strings.
const MOST_BITS: u64 = (1 << 32) - 64;

/// The size of a filter: how many bits it has and how many of them a key sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    bits: u64,
    hashes: u32,
}

impl Shape {
    /// For so many keys, of which the filter is wrong about this share of those that do not exist.
    ///
    /// More keys than are there: more memory. Fewer: more errors, of the harmless kind. Plan for growth
    /// until the next rebuild.
    ///
    /// ```
    /// use lockkeeper_cache::filter::Shape;
    ///
    /// let shape = Shape::for_keys(1_000_000, 0.01)?;
    /// assert_eq!(shape.bytes(), 1_198_136);
    /// assert!(shape.error_rate(1_000_000) < 0.0101);
    /// assert!(shape.error_rate(2_000_000) > 0.1);
    /// # Ok::<(), lockkeeper_cache::filter::FilterError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Unless the error rate is between 1e-9 and 0.5, and the filter has no more than 2³² bits.
    pub fn for_keys(keys: u64, error_rate: f64) -> Result<Self, FilterError> {
        if !(1e-9..=0.5).contains(&error_rate) {
            return Err(FilterError::Size("the error rate must be between 1e-9 and 0.5"));
        }
        let keys = keys.max(1);
        // At least a bit for a key, so that what follows cannot overflow.
        let size = usize::try_from(keys).ok().filter(|_| keys <= MOST_BITS);
        let bits = size.map(|keys| fastbloom::optimal_size(keys, error_rate).next_multiple_of(64));
        match (size, bits) {
            (Some(keys), Some(bits)) if bits as u64 <= MOST_BITS => {
                let hashes = fastbloom::optimal_hashes(bits, keys);
                Ok(Self { bits: bits as u64, hashes })
            }
            _ => Err(FilterError::Size("it would have more than 2^32 bits")),
        }
    }

    /// With exactly this; for what was stored. `None` if there is no such filter.
    #[cfg_attr(not(feature = "redis"), cfg(test))]
    pub(super) fn of(bits: u64, hashes: u32) -> Option<Self> {
        let fits = bits > 0 && bits <= MOST_BITS && bits.is_multiple_of(64) && hashes > 0;
        fits.then_some(Self { bits, hashes })
    }

    /// How many bits it has.
    pub const fn bits(self) -> u64 {
        self.bits
    }

    /// How many bits a key sets.
    pub const fn hashes(self) -> u32 {
        self.hashes
    }

    /// How much memory it takes.
    pub const fn bytes(self) -> u64 {
        self.bits / 8
    }

    /// The share of keys that do not exist for which it says maybe, when there are so many that do.
    pub fn error_rate(self, keys: u64) -> f64 {
        let unset = -f64::from(self.hashes) * keys as f64 / self.bits as f64;
        (-unset.exp_m1()).powf(f64::from(self.hashes))
    }

    /// An empty filter in process.
    pub(super) fn empty(self) -> fastbloom::AtomicBloomFilter {
        let bits = usize::try_from(self.bits).unwrap_or(usize::MAX);
        // Keys are hashed by us: this one is not used.
        let empty = fastbloom::AtomicBloomFilter::with_num_bits(bits).seed(&0);
        empty.hashes(self.hashes)
    }

    /// The bits that a key sets. The same as `fastbloom` sets for the same hash, which a test holds
    /// fast: double hashing, with a multiplication in place of a division.
    #[cfg_attr(not(feature = "redis"), cfg(test))]
    pub(super) fn positions(self, key: &[u8]) -> impl Iterator<Item = u64> {
        let first = hash(key);
        let step = first.wrapping_mul(0x517C_C1B7_2722_0A95);
        let hashes = std::iter::successors(Some(first), move |last| {
            Some(last.rotate_left(5).wrapping_add(step))
        });
        let bits = u128::from(self.bits);
        let position = move |hash| u64::try_from((u128::from(hash) * bits) >> 64).unwrap_or(0);
        hashes.map(position).take(self.hashes as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Worked out by another program. Do *not* change it: shared filters would lose their keys.
    #[test]
    fn pinned() {
        let positions: Vec<_> = Shape::of(1024, 7).unwrap().positions(b"user:42").collect();
        assert_eq!(positions, [293, 670, 450, 569, 291, 608, 532]);
    }

    #[test]
    fn only_sizes_that_work_are_taken() {
        for rate in [0.0, -0.1, 0.6, 1.0, f64::NAN, f64::INFINITY, 1e-10] {
            assert!(Shape::for_keys(10, rate).is_err(), "{rate}");
        }
        for keys in [500_000_000, u64::MAX / 2, u64::MAX] {
            assert!(Shape::for_keys(keys, 0.01).is_err(), "{keys}");
        }
        assert!(Shape::for_keys(440_000_000, 0.01).is_ok());
        assert!(Shape::for_keys(0, 0.5).is_ok());
    }

    proptest! {
        #[test]
        fn sizes_are_whole_words_and_hold_their_rate(
            keys in 1_u64..100_000_000, digits in 0.31..9.0_f64,
        ) {
            let rate = 10_f64.powf(-digits);
            if let Ok(shape) = Shape::for_keys(keys, rate) {
                prop_assert_eq!(Shape::of(shape.bits(), shape.hashes()), Some(shape));
                // A little more, because there are only whole hashes.
                prop_assert!(shape.error_rate(keys) < rate * 1.25, "{}", shape.error_rate(keys));
                prop_assert!(shape.error_rate(keys * 4) > shape.error_rate(keys));
            }
        }

        /// What the crate sets is what we say.
        #[test]
        fn the_crate_sets_the_same_bits(
            words in 1_u64..200, hashes in 1_u32..40, key: Vec<u8>,
        ) {
            let shape = Shape::of(words * 64, hashes).unwrap();
            let filter = shape.empty();
            filter.insert_hash(hash(&key));
            let mut expected = vec![0_u64; usize::try_from(words).unwrap()];
            for position in shape.positions(&key) {
                prop_assert!(position < shape.bits());
                expected[usize::try_from(position / 64).unwrap()] |= 1 << (position % 64);
            }
            prop_assert_eq!(filter.iter().collect::<Vec<_>>(), expected);
        }
    }
}
