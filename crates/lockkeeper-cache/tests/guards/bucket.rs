//! Whether loads keep to a limit.

const SECOND: u64 = 1_000_000_000;

/// How many loads too many there are, in the worst of all windows of time: the most by which loads that begin from one
/// moment to another are more than `burst + rate × time`. Rounded up. `begins` are nanoseconds, in order.
///
/// A bucket that leaks at that rate and gets a drop for each load is as full, at its fullest, as the worst window is over
/// `rate × time`.
pub(crate) fn excess(begins: &[u64], rate: u32, burst: u32) -> u64 {
    let (mut level, mut fullest, mut last) = (0, 0, begins.first().copied().unwrap_or(0));
    for &begin in begins {
        assert!(begin >= last, "not in order");
        level = u64::saturating_sub(level, (begin - last) * u64::from(rate)) + SECOND;
        fullest = fullest.max(level);
        last = begin;
    }
    fullest.saturating_sub(u64::from(burst) * SECOND).div_ceil(SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excess_of(millis: &[u64], rate: u32, burst: u32) -> u64 {
        let begins: Vec<u64> = millis.iter().map(|at| at * 1_000_000).collect();
        let windows = (0..begins.len()).flat_map(|from| {
            let begins = &begins;
            (from..begins.len()).map(move |to| {
                let time = begins[to] - begins[from];
                let count = (to - from + 1) as u64 * SECOND;
                let allowed = u64::from(burst) * SECOND + time * u64::from(rate);
                count.saturating_sub(allowed).div_ceil(SECOND)
            })
        });
        let found = excess(&begins, rate, burst);
        assert_eq!(found, windows.max().unwrap_or(0), "window by window");
        found
    }

    /// A hundred a second with a burst of two.
    #[test]
    fn what_is_over_the_limit_is_counted() {
        for (millis, over) in [
            (&[][..], 0),
            (&[0, 0], 0),
            (&[0, 0, 0], 1),
            (&[0, 0, 10, 20, 30], 0),
            (&[0, 0, 9], 1),
            (&[0, 0, 10, 20, 25, 25], 2),
            (&[0, 5000, 5000, 5000], 1),
            (&[0, 5000, 5000, 5000, 5001, 5001, 9000], 3),
        ] {
            assert_eq!(excess_of(millis, 100, 2), over, "{millis:?}");
        }
    }
}
