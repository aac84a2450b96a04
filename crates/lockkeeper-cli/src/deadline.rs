//! When the command must be told to stop, and when it must be dead. Pure: moments in, moments out.
//!
//! ```text
//!   renewed        renewal due                    TERM at      KILL at   lease ends
//!   |──────────────|──────────────────────────────|────────────|─────────|
//!   0              ttl/3                           └── grace ──┘└ margin ┘
//! ```
//!
//! Each renewal moves all of it. The margin is for the kernel to end the processes; the grace counts
//! up to a third of the time to live, so that TERM never comes while an ordinary renewal may.

use std::time::Duration;

use lockkeeper::clock::Instant;

use crate::args::OnLost;

/// The margin is never longer than this.
const MARGIN_MAX: Duration = Duration::from_millis(500);

/// How the command is ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) on_lost: OnLost,
    /// What the user allows between TERM and KILL.
    pub(crate) grace: Duration,
    /// The time to live of the lock.
    pub(crate) ttl: Duration,
}

impl Policy {
    /// When the command must be killed at the latest, with this end of the lease.
    pub(crate) fn kill_at(&self, expires: Option<Instant>) -> Instant {
        match expires {
            Some(at) if self.on_lost != OnLost::Ignore => at.before(MARGIN_MAX.min(self.ttl / 10)),
            _ => Instant::NEVER,
        }
    }

    /// When the command must be told to stop, unless a renewal moves the end of the lease before.
    pub(crate) fn stop_at(&self, expires: Option<Instant>) -> Instant {
        match self.kill_at(expires) {
            Instant::NEVER => Instant::NEVER,
            kill_at => kill_at.before(self.grace_on_loss().min(self.ttl / 3)),
        }
    }

    /// The time between TERM and KILL when the lock is lost.
    pub(crate) fn grace_on_loss(&self) -> Duration {
        if self.on_lost == OnLost::Kill { Duration::ZERO } else { self.grace }
    }

    /// How often to look whether a renewal has moved the end of the lease.
    pub(crate) fn tick(&self) -> Duration {
        (self.ttl / 6).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(on_lost: OnLost, grace: u64, ttl: u64) -> Policy {
        Policy { on_lost, grace: Duration::from_millis(grace), ttl: Duration::from_millis(ttl) }
    }

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(0) + Duration::from_millis(millis)
    }

    #[test]
    fn term_comes_a_grace_before_kill_and_kill_a_margin_before_the_end() {
        let cases = [
            // grace, ttl, TERM, KILL; the lease ends at 100 s
            (5_000, 30_000, 94_500, 99_500),
            (60_000, 30_000, 89_500, 99_500),
            (5_000, 3_000, 98_700, 99_700),
            (0, 30_000, 99_500, 99_500),
        ];
        for (grace, ttl, term, kill) in cases {
            let policy = policy(OnLost::Term, grace, ttl);
            assert_eq!(policy.stop_at(Some(at(100_000))), at(term), "{policy:?}");
            assert_eq!(policy.kill_at(Some(at(100_000))), at(kill), "{policy:?}");
        }
    }

    #[test]
    fn kill_has_no_grace_and_ignore_no_deadline() {
        let kill = policy(OnLost::Kill, 5_000, 30_000);
        assert_eq!(kill.stop_at(Some(at(100_000))), kill.kill_at(Some(at(100_000))));
        let ignore = policy(OnLost::Ignore, 5_000, 30_000);
        assert_eq!(ignore.stop_at(Some(at(100_000))), Instant::NEVER);
        assert_eq!(policy(OnLost::Term, 1, 30_000).stop_at(None), Instant::NEVER);
    }

    #[test]
    fn term_never_comes_before_an_ordinary_renewal() {
        for ttl in [100, 1_000, 30_000, 3_600_000] {
            let policy = policy(OnLost::Term, u64::MAX / 2, ttl);
            let renewal_due = at(ttl / 3);
            assert!(policy.stop_at(Some(at(ttl))) > renewal_due, "{ttl}");
            assert!(policy.tick() < Duration::from_millis(ttl / 3), "{ttl}");
        }
    }
}
