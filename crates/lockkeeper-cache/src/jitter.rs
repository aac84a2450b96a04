//! When an entry ends, and when it is loaded anew before that.
//!
//! Both are pure: the randomness is given, so a test says what happens.
//!
//! # What it promises
//!
//! - [`Jitter`]: entries that were filled at the same moment do not end at the same moment. It only
//!   ever shortens: nothing lives longer than was asked for.
//! - [`Early`]: an entry that is read often is loaded anew before it ends, so that nobody waits for
//!   it. The more often it is read and the longer its load takes, the surer that is. An entry nobody
//!   reads is never loaded.
//!
//! # When it breaks
//!
//! [`Early`] chooses *when*; it does not choose *one*. While the first load is under way others find
//! the entry due as well: about three at a hundred reads a second. Exactly one load needs a lease
//! below it, and the lease also keeps a load that was overtaken by an invalidation from being stored.
//!
//! # Cost
//!
//! A multiplication; a logarithm for a hit shortly before the end.

use std::time::Duration;

/// How much of a TTL is left to chance. The default is a tenth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jitter(f64);

impl Jitter {
    /// Every entry lives exactly as long as was asked for.
    pub const NONE: Self = Self(0.0);

    /// Takes up to this share off. `None` unless it is at least 0 and less than 1.
    ///
    /// More: the ends of entries lie further apart. Less: entries live longer on average.
    pub fn new(share: f64) -> Option<Self> {
        (0.0..1.0).contains(&share).then_some(Self(share))
    }

    /// Somewhere between `ttl` and `ttl` less the share. Never longer, and never zero unless it was.
    ///
    /// ```
    /// use std::time::Duration;
    /// use lockkeeper_cache::jitter::Jitter;
    ///
    /// let minute = Duration::from_secs(60);
    /// assert_eq!(Jitter::default().shorten(minute, 0), minute);
    /// assert!(Jitter::default().shorten(minute, u64::MAX) >= Duration::from_secs(54));
    /// ```
    #[must_use]
    pub fn shorten(self, ttl: Duration, random: u64) -> Duration {
        let off = ttl.as_secs_f64() * self.0 * unit(random);
        let off = Duration::try_from_secs_f64(off).unwrap_or(Duration::ZERO);
        ttl.saturating_sub(off).max(Duration::from_nanos(1)).min(ttl)
    }
}

impl Default for Jitter {
    fn default() -> Self {
        Self(0.1)
    }
}

/// Chooses by chance the read that loads an entry anew before it ends (XFetch).
///
/// With `left` to live and a load that takes δ, a read is chosen with probability `e^(-left / βδ)`:
/// 37 % at one load time before the end, 0.7 % at five.
///
/// A. Vattani, F. Chierichetti, K. Lowenstein: Optimal Probabilistic Cache Stampede Prevention,
/// VLDB 2015.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Early(f64);

impl Early {
    /// With this β; 1 is the default. `None` unless it is more than 0 and finite.
    ///
    /// More: loads begin earlier, and a wait becomes rarer. Less: entries are used for longer.
    pub fn new(beta: f64) -> Option<Self> {
        (beta > 0.0 && beta.is_finite()).then_some(Self(beta))
    }

    /// Whether this read is the one. Always if nothing is `left`.
    #[must_use]
    pub fn is_due(self, left: Duration, load_time: Duration, random: u64) -> bool {
        let load_time = load_time.as_secs_f64() * self.0;
        let left = left.as_secs_f64();
        // No chance is so small: most hits are spared the logarithm.
        if left > 37.0 * load_time {
            return false;
        }
        // In (0, 1]: the logarithm of 0 would make every entry due at once.
        let chance = 1.0 - unit(random);
        -load_time * chance.ln() >= left
    }
}

impl Default for Early {
    fn default() -> Self {
        Self(1.0)
    }
}

/// A number in [0, 1) with 53 random bits.
fn unit(random: u64) -> f64 {
    const STEPS: f64 = (1_u64 << 53) as f64;
    (random >> 11) as f64 / STEPS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same numbers on every run (splitmix64).
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        }
    }

    #[test]
    fn only_shares_that_leave_something_are_taken() {
        for share in [-0.1, 1.0, 2.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Jitter::new(share), None, "{share}");
        }
        assert_eq!(Jitter::new(0.0), Some(Jitter::NONE));
        for beta in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Early::new(beta), None, "{beta}");
        }
    }

    #[test]
    fn ends_are_spread_evenly_over_the_share() {
        let (ttl, mut numbers) = (Duration::from_secs(100), Numbers(1));
        let mut tenths = [0_u32; 10];
        for _ in 0..100_000 {
            let off = ttl - Jitter::default().shorten(ttl, numbers.next());
            tenths[usize::try_from(off.as_secs()).unwrap()] += 1;
        }
        assert!(tenths.iter().all(|count| (9_600..10_400).contains(count)), "{tenths:?}");
    }

    #[test]
    fn reads_are_chosen_with_the_probability_that_is_promised() {
        const READS: u32 = 100_000;
        let load = Duration::from_millis(200);
        for (beta, left, expected) in [
            (1.0, 0.5, 0.6065),
            (1.0, 1.0, 0.3679),
            (1.0, 2.0, 0.1353),
            (1.0, 5.0, 0.0067),
            (2.0, 2.0, 0.3679),
        ] {
            let (early, mut numbers) = (Early::new(beta).unwrap(), Numbers(2));
            let left = load.mul_f64(left);
            let chosen = (0..READS).filter(|_| early.is_due(left, load, numbers.next())).count();
            let share = chosen as f64 / f64::from(READS);
            assert!((share - expected).abs() < 0.005, "{share} instead of {expected}");
        }
    }

    /// 60 s to live, 200 ms to load, a hundred reads a second.
    #[test]
    fn what_is_read_often_is_loaded_before_it_ends_and_by_few() {
        const CYCLES: u32 = 500;
        let (ttl, load, pause) =
            (Duration::from_secs(60), Duration::from_millis(200), Duration::from_millis(10));
        let (mut numbers, mut loads, mut late) = (Numbers(3), 0_u32, 0_u32);
        for _ in 0..CYCLES {
            let (mut age, mut filled) = (Duration::ZERO, None);
            while filled.is_none_or(|at| age < at) {
                age += pause;
                let left = ttl.saturating_sub(age);
                if Early::default().is_due(left, load, numbers.next()) {
                    loads += 1;
                    late += u32::from(left.is_zero() && filled.is_none());
                    filled = filled.or(Some(age + load));
                }
            }
        }
        let loads = f64::from(loads) / f64::from(CYCLES);
        assert!((2.0..4.0).contains(&loads), "{loads} loads a cycle");
        assert_eq!(late, 0, "ended before they were loaded");
    }

    #[test]
    fn the_ends_of_the_scale() {
        let (nothing, second) = (Duration::ZERO, Duration::from_secs(1));
        for random in [0, 1 << 11, u64::MAX] {
            assert!(Early::default().is_due(nothing, second, random), "ended");
            assert!(Early::default().is_due(nothing, nothing, random), "ended");
            assert!(!Early::default().is_due(second, nothing, random), "takes no time to load");
        }
        assert!(!Early::default().is_due(second, second, 0));
        assert!(Early::default().is_due(second, second, u64::MAX));
        assert!(!Early::default().is_due(Duration::MAX, second, u64::MAX));
    }

    proptest! {
        #[test]
        fn never_longer_and_never_more_off_than_the_share(
            nanos in 0..u64::MAX, share in 0.0..1.0_f64, random: u64,
        ) {
            let ttl = Duration::from_nanos(nanos);
            let short = Jitter::new(share).unwrap().shorten(ttl, random);
            prop_assert!(short <= ttl);
            prop_assert_eq!(short.is_zero(), ttl.is_zero());
            let off = (ttl - short).as_secs_f64();
            prop_assert!(off <= ttl.as_secs_f64() * share * 1.000_001 + 1e-9);
        }
    }
}
