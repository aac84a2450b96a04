//! Whether a store answers, or a filter.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;

use crate::breaker::{Gate, Pass, Phase, Policy, Refused};

/// So many looks in a row that failed, and it is left alone.
const STREAK: u32 = 3;

/// How long: at first and at most.
const OPEN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Looks that were given up after this time without any answer have failed: callers may have less patience than we do.
const SLOW: Duration = Duration::from_millis(100);

/// While all is well it costs a look at one number, and no lock: every hit passes here.
#[derive(Debug)]
pub(crate) struct Health {
    what: String,
    streak: AtomicU32,
    /// When the last failure was noticed. What was asked before says nothing new: one stop of a second is one failure,
    /// however many looks it held up.
    failed: AtomicU64,
    /// For so long those have waited who gave up, since the last answer; and until when that is counted.
    waited: AtomicU64,
    counted: AtomicU64,
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
    pub(crate) fn new(what: impl Into<String>) -> Self {
        let (open, open_longest) = OPEN;
        let policy =
            Policy { calls: 1, open, open_longest, probe: 4 * OPEN.0, ..Policy::default() };
        let [failed, waited, counted] = [0; 3].map(AtomicU64::new);
        let (what, streak, gate) = (what.into(), AtomicU32::new(0), Gate::new(policy));
        Self { what, streak, failed, waited, counted, gate }
    }

    /// Asks to look.
    pub(crate) fn enter(&self) -> Result<Look<'_>, Refused> {
        let pass = if self.is_up() { None } else { Some(self.gate.enter()?) };
        Ok(Look { health: self, pass, since: Instant::now(), answered: false })
    }

    fn is_up(&self) -> bool {
        self.streak.load(Ordering::Relaxed) < STREAK
    }

    pub(crate) fn phase(&self) -> Phase {
        if self.is_up() { Phase::Closed } else { self.gate.phase() }
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
                if self.waited.load(Ordering::Relaxed) != 0 {
                    self.waited.store(0, Ordering::Relaxed);
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

    /// Whether the store has kept those waiting for too long who gave up, whatever patience each of them had.
    fn is_silent(&self, since: Instant) -> bool {
        let now = Instant::now().as_nanos();
        // For many at once it is the same time.
        let from = self.counted.fetch_max(now, Ordering::Relaxed).max(since.as_nanos());
        let more = now.saturating_sub(from);
        u128::from(self.waited.fetch_add(more, Ordering::Relaxed) + more) >= SLOW.as_nanos()
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
        if self.answered {
            return;
        }
        // Who tries for all and has no patience fails at once: or one after the other would be sent into a store that hangs.
        if self.health.is_silent(self.since) || self.pass.is_some() {
            self.health.over(self.pass.take(), self.since, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use testkit::wait::eventually;

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
    fn looks_that_are_given_up_at_once_count_for_nothing() {
        let health = Health::new("it");
        for _ in 0..10 {
            drop(health.enter().unwrap());
        }
        assert!(health.is_up());
    }

    /// Waits until who looks is refused, or is not, and gives each look up after a while.
    async fn until_refused(health: &Health, refused: bool, patience: Duration) {
        let it_is = async || {
            let look = health.enter();
            tokio::time::sleep(patience).await;
            look.is_err() == refused
        };
        eventually("who looks is refused, or is not", it_is).await;
    }

    #[tokio::test]
    async fn a_store_that_hangs_is_left_alone_whatever_patience_those_have_who_look() {
        let health = Health::new("it");
        until_refused(&health, true, SLOW / 10).await;
        // One tries, and gives up: no other one is sent after him.
        until_refused(&health, false, Duration::ZERO).await;
        assert!(health.enter().is_err());
    }

    #[tokio::test]
    async fn a_store_that_answers_in_between_does_not_hang() {
        let health = Health::new("it");
        for _ in 0..20 {
            let look = health.enter().unwrap();
            tokio::time::sleep(SLOW / 10).await;
            drop(look);
            health.enter().unwrap().answered(true);
        }
        assert!(health.is_up());
    }
}
