//! A circuit breaker: what fails is left alone for a while, then tried by one.
//!
//! # How it works
//!
//! 1. *Closed*: everybody is admitted. When, of the calls within the last [`Policy::window`], at
//!    least [`Policy::calls`] were answered and [`Policy::percent`] of them failed, it opens.
//! 2. *Open*: nobody is admitted for [`Policy::open`].
//! 3. *Half open*: the first to ask after that is admitted as the probe, and nobody else. If it
//!    succeeds the breaker closes; if it fails, or has no answer within [`Policy::probe`], it opens
//!    again, for twice as long each time, up to [`Policy::open_longest`].
//!
//! # What it promises
//!
//! Never more than one probe at a time, whatever the order in which answers come. An answer to a call
//! that was admitted before the breaker last changed counts for nothing: a slow failure from before
//! does not open it again, and a late success does not close it. A call that is given up counts
//! neither way, and where it was the probe the next one may try at once.
//!
//! # When it breaks
//!
//! It knows what this process saw. A hundred processes have a hundred breakers and send a hundred
//! probes. After a probe succeeded everybody is admitted at once: put a [limit](crate::limit) behind
//! it. What counts as a failure is for the caller to say; a row that is not there is none.
//!
//! # Cost
//!
//! [`Breaker`] is pure: no clock, no lock. A [`Gate`] takes a mutex twice for each call, and reads the
//! clock.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Instant;
use parking_lot::Mutex;

/// The window is forgotten in so many steps.
const SLOTS: usize = 10;

/// When a [`Breaker`] opens and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How far back calls count. Longer: slower to open, and to forget. 10 s.
    pub window: Duration,
    /// Fewer answers than this within the window open nothing. 20.
    pub calls: u32,
    /// It opens when so many of a hundred failed. 50.
    pub percent: u32,
    /// How long nobody is admitted at first. 1 s.
    pub open: Duration,
    /// How long at most, after probes that failed. 30 s.
    pub open_longest: Duration,
    /// How long the answer of a probe is waited for. 10 s.
    pub probe: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(10),
            calls: 20,
            percent: 50,
            open: Duration::from_secs(1),
            open_longest: Duration::from_secs(30),
            probe: Duration::from_secs(10),
        }
    }
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered.
    Succeeded,
    /// It failed, or took too long.
    Failed,
    /// Nobody waited for the answer.
    GivenUp,
}

/// What a [`Breaker`] does at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Everybody is admitted.
    Closed,
    /// Nobody is.
    Open,
    /// One is, and has not answered yet.
    HalfOpen,
}

/// Leave to make one call, for [`Breaker::report`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a probe that is not reported keeps everybody out"]
pub struct Permit {
    round: u64,
}

/// Not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("left alone after failures; try again in {retry_after:?}")]
pub struct Refused {
    /// When it is worth asking again. Not a promise.
    pub retry_after: Duration,
}

/// The pure state machine; [`Gate`] is the one to share.
#[derive(Debug)]
pub struct Breaker {
    policy: Policy,
    state: State,
    /// Grows with every change, so that answers from before can be told.
    round: u64,
    /// How long it opens the next time.
    wait: Duration,
}

#[derive(Debug)]
enum State {
    Closed(Box<Window>),
    Open { until: Instant },
    HalfOpen { until: Instant },
}

impl Breaker {
    /// Closed, with nothing known.
    pub fn new(policy: Policy) -> Self {
        let state = State::Closed(Box::new(Window::new(policy.window)));
        Self { policy, state, round: 0, wait: policy.open }
    }

    /// What it does at present.
    pub fn phase(&self) -> Phase {
        match self.state {
            State::Closed(_) => Phase::Closed,
            State::Open { .. } => Phase::Open,
            State::HalfOpen { .. } => Phase::HalfOpen,
        }
    }

    /// Asks to make a call.
    ///
    /// # Errors
    ///
    /// When it is open, or another is the probe.
    pub fn admit(&mut self, now: Instant) -> Result<Permit, Refused> {
        match self.state {
            State::Closed(_) => {}
            State::Open { until } if now < until => {
                return Err(Refused { retry_after: until.since(now) });
            }
            State::Open { .. } => self.turn(State::HalfOpen { until: now + self.policy.probe }),
            State::HalfOpen { until } if now < until => {
                return Err(Refused { retry_after: until.since(now).min(self.policy.open) });
            }
            State::HalfOpen { .. } => {
                self.trip(now);
                return self.admit(now);
            }
        }
        Ok(Permit { round: self.round })
    }

    /// Says what became of a call.
    pub fn report(&mut self, permit: Permit, outcome: Outcome, now: Instant) {
        if permit.round != self.round {
            return;
        }
        match (&mut self.state, outcome) {
            (State::Closed(_) | State::Open { .. }, Outcome::GivenUp) => {}
            (State::Closed(window), _) => {
                window.count(outcome == Outcome::Failed, now);
                let (calls, failed) = window.sum(now);
                let share = u64::from(self.policy.percent.clamp(1, 100));
                if calls >= u64::from(self.policy.calls.max(1)) && failed * 100 >= calls * share {
                    self.trip(now);
                }
            }
            (State::HalfOpen { .. }, Outcome::Succeeded) => {
                self.wait = self.policy.open;
                self.turn(State::Closed(Box::new(Window::new(self.policy.window))));
            }
            (State::HalfOpen { .. }, Outcome::Failed) => self.trip(now),
            (State::HalfOpen { .. }, Outcome::GivenUp) => self.turn(State::Open { until: now }),
            // Nobody has a permit of such a round.
            (State::Open { .. }, _) => {}
        }
    }

    fn trip(&mut self, now: Instant) {
        self.turn(State::Open { until: now + self.wait });
        self.wait = self.wait.saturating_mul(2).min(self.policy.open_longest.max(self.policy.open));
    }

    fn turn(&mut self, state: State) {
        self.state = state;
        self.round += 1;
    }
}

/// Calls and failures of the last while, in slots that are forgotten one by one.
#[derive(Debug)]
struct Window {
    slots: [Slot; SLOTS],
    width: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    number: u64,
    calls: u64,
    failed: u64,
}

impl Window {
    fn new(length: Duration) -> Self {
        let width = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX) / SLOTS as u64;
        Self { slots: Default::default(), width: width.max(1) }
    }

    fn count(&mut self, failed: bool, now: Instant) {
        let number = now.as_nanos() / self.width;
        let at = usize::try_from(number % SLOTS as u64).unwrap_or(0);
        let slot = &mut self.slots[at];
        if slot.number != number {
            *slot = Slot { number, ..Slot::default() };
        }
        slot.calls += 1;
        slot.failed += u64::from(failed);
    }

    /// Calls, and how many of them failed.
    fn sum(&self, now: Instant) -> (u64, u64) {
        let number = now.as_nanos() / self.width;
        let recent = self.slots.iter().filter(|slot| slot.number + SLOTS as u64 > number);
        recent.fold((0, 0), |(calls, failed), slot| (calls + slot.calls, failed + slot.failed))
    }
}

/// A [`Breaker`] for many tasks, on the clock of this machine. Clones are the same gate.
///
/// ```
/// use lockkeeper_cache::breaker::{Gate, Policy};
///
/// # fn load() -> Result<u32, std::io::Error> { Ok(7) }
/// let gate = Gate::new(Policy::default());
/// let pass = gate.enter().expect("closed at first");
/// match load() {
///     Ok(_) => pass.succeeded(),
///     Err(_) => pass.failed(),
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Gate(Arc<Mutex<Breaker>>);

impl Gate {
    /// A closed breaker.
    pub fn new(policy: Policy) -> Self {
        Self(Arc::new(Mutex::new(Breaker::new(policy))))
    }

    /// Asks to make a call. Dropping the pass gives the call up.
    ///
    /// # Errors
    ///
    /// When the breaker is open, or another is the probe.
    pub fn enter(&self) -> Result<Pass, Refused> {
        let permit = self.0.lock().admit(Instant::now())?;
        Ok(Pass { gate: self.clone(), permit: Some(permit) })
    }

    /// What the breaker does at present.
    pub fn phase(&self) -> Phase {
        self.0.lock().phase()
    }
}

/// Leave to make one call.
#[derive(Debug)]
#[must_use = "a pass that is dropped counts as given up"]
pub struct Pass {
    gate: Gate,
    permit: Option<Permit>,
}

impl Pass {
    /// The call was answered.
    pub fn succeeded(mut self) {
        self.report(Outcome::Succeeded);
    }

    /// The call failed.
    pub fn failed(mut self) {
        self.report(Outcome::Failed);
    }

    fn report(&mut self, outcome: Outcome) {
        if let Some(permit) = self.permit.take() {
            self.gate.0.lock().report(permit, outcome, Instant::now());
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.report(Outcome::GivenUp);
    }
}

#[cfg(test)]
mod tests;
