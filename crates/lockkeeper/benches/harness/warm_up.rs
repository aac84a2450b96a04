//! Whether a contender is still getting faster.
//!
//! Machines that compile while they run do so for half a minute, and a library that is measured in
//! that time is measured wrong.

use super::Plan;

/// So much more is faster.
const FASTER: f64 = 1.1;
/// After so many tries without that, it is as fast as it gets.
const TRIES: usize = 4;

#[derive(Debug)]
pub(crate) struct WarmUp {
    best: f64,
    since_best: usize,
    left: usize,
}

impl WarmUp {
    /// At most so many tries; none if it is to be quick.
    pub(crate) fn new(plan: &Plan, at_most: usize) -> Self {
        Self::of(if plan.quick { 0 } else { at_most })
    }

    /// At most so many tries.
    pub(crate) fn of(at_most: usize) -> Self {
        Self { best: 0.0, since_best: 0, left: at_most }
    }

    /// Whether another try is to be made.
    pub(crate) fn goes_on(&self) -> bool {
        !self.is_warm() && self.left > 0
    }

    /// How many turns a try had.
    pub(crate) fn tried(&mut self, turns: f64) {
        self.left -= 1;
        self.since_best += 1;
        if turns > self.best * FASTER {
            (self.best, self.since_best) = (turns, 0);
        }
    }

    pub(crate) fn is_warm(&self) -> bool {
        self.since_best >= TRIES
    }
}
