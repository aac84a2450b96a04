//! When to ask again, and for how long.

use std::time::Duration;

use super::round::Round;
use super::votes::{Absence, ROUND, Vote, node_time};
use crate::backend::redis::layout::is_our_field;
use crate::backend::{Patience, Request};
use crate::clock::Instant;
use crate::error::Error;
use crate::owner;

/// How long there may be no majority before a request gives up.
const OUTAGE: Duration = Duration::from_secs(5);

/// That there is no majority.
#[derive(Default)]
pub(super) struct Outage {
    since: Option<Instant>,
    /// What nodes said when they had time to answer.
    pub(super) error: Option<Error>,
    /// When they last had, it was only a matter of who holds the lock.
    contended: bool,
}

impl Outage {
    /// There is none: it is only a matter of who holds the lock.
    pub(super) fn none() -> Self {
        Self { contended: true, ..Self::default() }
    }

    pub(super) fn note(
        &mut self,
        nodes_come_back: bool,
        in_a_hurry: bool,
        error: impl FnOnce() -> Error,
    ) {
        if in_a_hurry && self.contended {
            return;
        }
        self.contended = false;
        if self.error.is_none() || !in_a_hurry {
            self.error = Some(error());
        }
        // Nodes that come back are waited for; those that do not answer, for a while.
        self.since = match nodes_come_back {
            true => None,
            false => Some(self.since.unwrap_or_else(Instant::now)),
        };
    }

    pub(super) fn is_too_long(&self) -> bool {
        self.since.is_some_and(|since| Instant::now().since(since) > OUTAGE)
    }
}

/// For how long a node is waited for; patience that ends first leaves time to say what was wrong.
pub(super) fn time_for(request: &Request) -> Duration {
    let time = node_time(request.term.ttl());
    match request.patience {
        Patience::Until(at) => time.min(at.since(Instant::now()) * 3 / 4),
        _ => time,
    }
}

/// A time between these two.
pub(super) fn between(low: u64, high: u64) -> Duration {
    Duration::from_millis(low + owner::random() % (high - low))
}

/// When to ask again after an attempt that failed because others have the lock.
/// `took`: how long it lasted; `splits`: how many of them in a row nobody got.
pub(super) fn ask_again(round: &Round, took: Duration, splits: u32) -> Duration {
    match round.holder() {
        // Ours say when they let go.
        Some((by, left)) if is_our_field(by) => left.min(between(500, 1000)),
        // Other libraries do not.
        Some((_, left)) if !left.is_zero() => left.min(between(50, 250)),
        Some(_) => between(50, 250),
        // Several have some of the nodes: whoever asks again first may get it, if the others leave it
        // the time that an attempt takes.
        None => {
            let most = (took * (1 << splits.min(2))).min(ROUND / 4);
            let most = u64::try_from(most.as_millis()).unwrap_or(0);
            between(2, 40 + most)
        }
    }
}

/// For how long nodes that answer will not vote, as far as they know.
pub(super) fn absent_for(round: &Round) -> Option<Duration> {
    let absent = round.votes().iter().flatten().filter_map(|vote| match vote {
        Vote::Absent(Absence::Waiting(left)) => Some(left.unwrap_or(ROUND)),
        Vote::Absent(_) => Some(ROUND),
        _ => None,
    });
    absent.max()
}
