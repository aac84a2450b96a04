//! Which transactions can be seen.

/// What a transaction that begins now can see, as `pg_current_snapshot()` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Those from this one on have not ended, or had not begun.
    end: u64,
    /// Those before it that have not ended.
    running: Vec<u64>,
}

impl Snapshot {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (_begin, end, running) = (parts.next()?, parts.next()?, parts.next()?);
        let running = running.split(',').filter(|number| !number.is_empty());
        let running = running.map(|number| number.parse().ok()).collect::<Option<_>>()?;
        Some(Self { end: end.parse().ok()?, running })
    }

    /// Whether a transaction that had the lower half of its number in the log, and is committed there, can be seen.
    pub(super) fn sees(&self, xid: u32) -> bool {
        self.sees_full(self.full(xid))
    }

    fn sees_full(&self, xid: u64) -> bool {
        xid < self.end && !self.running.contains(&xid)
    }

    /// Whether all that had begun at an earlier moment have ended.
    pub(super) fn sees_all_of(&self, earlier: &Self) -> bool {
        earlier.end <= self.end && !self.running.iter().any(|xid| *xid < earlier.end)
    }

    /// The number whose lower half is known: the one that is nearest, before or after. One that waits to be seen may be
    /// after all that have ended.
    fn full(&self, xid: u32) -> u64 {
        let [_, _, _, _, a, b, c, d] = self.end.to_be_bytes();
        let distance = xid.wrapping_sub(u32::from_be_bytes([a, b, c, d])).cast_signed();
        self.end.saturating_add_signed(i64::from(distance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_or_comes_later_cannot_be_seen() {
        let snapshot = Snapshot::parse("10:20:12,15").unwrap();
        assert_eq!(snapshot.running, [12, 15]);
        for (xid, seen) in
            [(9, true), (11, true), (12, false), (15, false), (19, true), (20, false)]
        {
            assert_eq!(snapshot.sees(xid), seen, "{xid}");
        }
        assert_eq!(Snapshot::parse("3:3:").unwrap().running, [0; 0]);
        for bad in ["", "1:2", "1:x:", "1:2:x"] {
            assert_eq!(Snapshot::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn half_a_number_is_the_nearest_one_also_where_numbers_wrap() {
        let turn = 1_u64 << 32;
        let end = 5 * turn + 2;
        let snapshot = Snapshot { end, running: vec![5 * turn - 3] };
        assert_eq!(snapshot.full(1), end - 1);
        assert_eq!(snapshot.full(7), end + 5, "one that waits, and is the newest");
        assert_eq!(snapshot.full(u32::MAX), 5 * turn - 1);
        assert!(snapshot.sees(u32::MAX) && !snapshot.sees(u32::MAX - 2) && !snapshot.sees(2));
    }

    #[test]
    fn all_of_an_earlier_moment_are_over() {
        let earlier = Snapshot::parse("10:20:12").unwrap();
        let later = |text| Snapshot::parse(text).unwrap().sees_all_of(&earlier);
        assert!(!later("12:22:12,21"));
        assert!(later("21:22:21") && later("20:20:"));
        assert!(!later("10:19:"), "of another server");
    }
}
