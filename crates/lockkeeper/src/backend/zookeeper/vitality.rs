//! Until when a session is certainly alive: pure arithmetic.
//!
//! The leader ends a session when it has not heard of it for the whole timeout `T`. It hears of it
//! from the server that we are connected to, and that one tells it only every half tick, which is at
//! most `T`/4, because no session may be shorter than two ticks. So an answer to a write, for which
//! the leader and a majority were needed, proves only that the leader has heard what we sent a
//! quarter of `T` before: a server that is cut off right after that answer has told it nothing more.
//!
//! An answer to a read or a ping proves nothing: a server that is cut off goes on giving them.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Instant;

/// So many writes are remembered.
const REMEMBERED: usize = 32;

#[derive(Debug)]
pub(super) struct Vitality {
    timeout: Duration,
    /// When writes that were answered had been sent; in order.
    acknowledged: VecDeque<Instant>,
}

impl Vitality {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, acknowledged: VecDeque::new() }
    }

    /// A write that was sent then has been answered.
    pub(super) fn acknowledged(&mut self, sent: Instant) {
        // So many as fit between two moments that matter are as good as one.
        let last = self.acknowledged.back().copied();
        let dense = self.acknowledged.len() >= 2
            && self.acknowledged[self.acknowledged.len() - 2] + self.timeout / 16 > sent;
        if last.is_some_and(|last| last >= sent) {
            return;
        }
        if dense {
            self.acknowledged.pop_back();
        }
        self.acknowledged.push_back(sent);
        if self.acknowledged.len() > REMEMBERED {
            self.acknowledged.pop_front();
        }
    }

    /// When the last write that was answered had been sent.
    pub(super) fn last(&self) -> Option<Instant> {
        self.acknowledged.back().copied()
    }

    /// The session lives at least until then.
    pub(super) fn alive_until(&self) -> Instant {
        let Some(last) = self.last() else { return Instant::from_nanos(0) };
        let heard_of = last.before(self.timeout / 4);
        // The client pings every fifth of the timeout when there is nothing else to send.
        let pinged = heard_of.before(self.timeout / 5);
        let proven = self.acknowledged.iter().rev().copied().find(|sent| *sent <= heard_of);
        let proven = proven.filter(|sent| *sent + self.timeout > last).unwrap_or(pinged);
        proven + self.timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(20);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 * (1000 + seconds))
    }

    fn after(writes: &[u64]) -> Instant {
        let mut vitality = Vitality::new(T);
        writes.iter().for_each(|sent| vitality.acknowledged(at(*sent)));
        vitality.alive_until()
    }

    #[test]
    fn nothing_is_known_before_the_first_answer() {
        assert_eq!(after(&[]), Instant::from_nanos(0));
    }

    #[test]
    fn the_first_write_counts_on_the_pings_before_it() {
        assert_eq!(after(&[0]), at(11));
        assert_eq!(after(&[0, 500]), at(511), "the other one is too long ago to tell");
    }

    #[test]
    fn a_write_proves_what_was_sent_a_quarter_before() {
        assert_eq!(after(&[0, 4]), at(15), "too close to prove anything");
        assert_eq!(after(&[0, 5]), at(20));
        assert_eq!(after(&[0, 2, 4, 6, 8]), at(22));
        assert_eq!(after(&[0, 8]), at(20), "a gap in between is a gap, pings or not");
    }

    #[test]
    fn an_old_answer_that_comes_late_changes_nothing() {
        assert_eq!(after(&[0, 8, 3]), at(20));
    }

    #[test]
    fn many_writes_do_not_push_out_what_they_prove() {
        let mut vitality = Vitality::new(T);
        for millis in 0..10_000_u64 {
            vitality.acknowledged(at(0) + Duration::from_millis(millis));
        }
        let until = vitality.alive_until();
        assert!(until > at(9) + T.mul_f64(0.6) && until < at(10) + T.mul_f64(0.75), "{until:?}");
    }
}
