//! Whether the store answers, or the filter.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;

use crate::breaker::{Gate, Pass, Phase, Policy, Refused};

/// So many looks in a row that failed, and it is left alone.
const STREAK: u32 = 3;

/// How long: at first and at most.
const OPEN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// A look that was given up after this time has failed: callers may have less patience than we do.
const SLOW: Duration = Duration::from_millis(100);

/// While all is well it costs a look at one number, and no lock: every hit passes here.
#[derive(Debug)]
pub(crate) struct Health {
    what: &'static str,
    streak: AtomicU32,
    /// When the last failure was noticed. What was asked before says nothing new: one stop of a second is one failure,
    /// however many looks it held up.
    failed: AtomicU64,
    gate: Gate,
}

/// A look at the store.
pub(crate) struct Look<'a> {
    health: &'a Health,
    pass: Option<Pass>,
    since: Instant,
    answered: bool,
}

impl Health {
    pub(crate) fn new(what: &'static str) -> Self {
        let (open, open_longest) = OPEN;
        let policy =
            Policy { calls: 1, open, open_longest, probe: 4 * OPEN.0, ..Policy::default() };
        let (streak, failed) = (AtomicU32::new(0), AtomicU64::new(0));
        Self { what, streak, failed, gate: Gate::new(policy) }
    }

    /// Asks to look.
    pub(crate) fn enter(&self) -> Result<Look<'_>, Refused> {
        let pass = if self.is_up() { None } else { Some(self.gate.enter()?) };
        Ok(Look { health: self, pass, since: Instant::now(), answered: false })
    }

    pub(crate) fn is_up(&self) -> bool {
        self.streak.load(Ordering::Relaxed) < STREAK
    }

    pub(crate) fn phase(&self) -> Phase {
        self.gate.phase()
    }

    /// When it is worth asking again.
    pub(crate) fn retry_after(&self) -> Duration {
        OPEN.0
    }

    fn over(&self, pass: Option<Pass>, since: Instant, ok: bool) {
        match (ok, pass) {
            (true, pass) => {
                // The gate first: whoever finds that all is well does not ask it.
                if let Some(pass) = pass {
                    pass.succeeded();
                }
                // Written only where it changes something: all hits read it.
                if self.streak.load(Ordering::Relaxed) != 0 {
                    self.streak.store(0, Ordering::Relaxed);
                }
            }
            (false, Some(pass)) => pass.failed(),
            (false, None) => {
                let now = Instant::now().as_nanos();
                if since.as_nanos() > self.failed.fetch_max(now, Ordering::Relaxed)
                    && self.streak.fetch_add(1, Ordering::Relaxed) + 1 == STREAK
                    && let Ok(pass) = self.gate.enter()
                {
                    tracing::warn!("{} does not answer, and is left alone for a while", self.what);
                    pass.failed();
                }
            }
        }
    }
}

impl Look<'_> {
    pub(crate) fn answered(mut self, ok: bool) {
        self.answered = true;
        self.health.over(self.pass.take(), self.since, ok);
    }
}

impl Look<'_> {
    /// For what answers in any case, only late.
    pub(crate) fn answered_within(self, time: Duration) {
        let in_time = Instant::now().since(self.since) < time;
        self.answered(in_time);
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        if !self.answered && Instant::now().since(self.since) >= SLOW {
            self.health.over(self.pass.take(), self.since, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(health: &Health) {
        health.enter().unwrap().answered(false);
    }

    #[test]
    fn after_three_failures_in_a_row_one_may_try() {
        let health = Health::new("it");
        for _ in 0..5 {
            fail(&health);
            fail(&health);
            health.enter().unwrap().answered(true);
        }
        assert!(health.is_up());
        // Many at once are one.
        let looks: Vec<_> = (0..10).map(|_| health.enter().unwrap()).collect();
        looks.into_iter().for_each(|look| look.answered(false));
        assert!(health.is_up());
        health.enter().unwrap().answered(true);
        // One that began before and has not ended.
        let slow = health.enter().unwrap();
        for _ in 0..3 {
            fail(&health);
        }
        assert!(!health.is_up());
        assert_eq!(health.phase(), Phase::Open);
        assert!(health.enter().is_err());
        // It was sent before: it tells that the store lives.
        slow.answered(true);
        assert!(health.is_up());
        health.enter().unwrap().answered(true);
    }

    #[test]
    fn a_look_that_is_given_up_at_once_counts_for_nothing() {
        let health = Health::new("it");
        for _ in 0..10 {
            drop(health.enter().unwrap());
        }
        assert!(health.is_up());
    }
}
