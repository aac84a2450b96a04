//! What nodes say, and the arithmetic of majorities and of time.

use std::fmt;
use std::time::Duration;

use crate::clock::Instant;

/// From before the first request of a round is sent until its last vote counts. A node that came
/// back without its data waits at least this long, so that no round from before still counts.
pub(super) const ROUND: Duration = Duration::from_secs(2);

/// More than half of the nodes.
pub(super) const fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// By how much clocks may disagree in that time.
pub(super) fn drift(time: Duration) -> Duration {
    time / 100 + Duration::from_millis(2)
}

/// Until when a lock is ours that a majority gave for `ttl` after `start`.
pub(super) fn valid_until(start: Instant, ttl: Duration) -> Instant {
    start + ttl.saturating_sub(drift(ttl))
}

/// For how long one node is waited for: little, compared with the lease.
pub(super) fn node_time(ttl: Duration) -> Duration {
    (ttl / 8).clamp(Duration::from_millis(50), ROUND / 2)
}

/// Whether there are, or can still be, `needed` of something; `None`: it is not certain yet.
pub(super) const fn certain(have: usize, open: usize, needed: usize) -> Option<bool> {
    match (have >= needed, have + open < needed) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

/// Why a node that answers does not vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Absence {
    /// It has no record of being one of us: new, flushed, or restarted without its data.
    Blank,
    /// It was restarted, and nobody knows how old its data is.
    Restarted,
    /// It is known to be one of those and waits until no lease from before can be alive. Once that
    /// moment is known: how long still.
    Waiting(Option<Duration>),
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank => f.write_str("new or without its data: does not vote yet"),
            Self::Restarted => f.write_str("restarted: does not vote yet"),
            Self::Waiting(None) => f.write_str("came back: does not vote yet"),
            Self::Waiting(Some(left)) => {
                let left = Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(0));
                write!(f, "came back: votes again in {}", humantime::format_duration(left))
            }
        }
    }
}

/// What one node says to a request to take a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    /// Taken. The counter of the node as it is now, and whether the tokens that were proposed are the
    /// ones that it counted.
    Yes { counter: u64, accepted: bool },
    /// Taken before, by the same request: under this value, with this first token (0: not settled).
    Mine { value: String, token: u64, left: Duration },
    /// Somebody else has it.
    Held { by: String, left: Duration },
    /// It does not vote.
    Absent(Absence),
    /// No answer in time, or an error.
    Silent(String),
}

impl Vote {
    /// Whether the node takes part at all, whatever it says.
    pub(super) const fn is_present(&self) -> bool {
        matches!(self, Self::Yes { .. } | Self::Mine { .. } | Self::Held { .. })
    }
}

impl fmt::Display for Vote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes { .. } => f.write_str("yes"),
            Self::Mine { .. } => f.write_str("an earlier attempt of ours is not undone yet"),
            Self::Held { by, .. } => write!(f, "held by {by}"),
            Self::Absent(why) => why.fmt(f),
            Self::Silent(why) => f.write_str(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_majorities_share_a_node_and_so_does_one_with_those_that_a_node_had_besides_itself() {
        for nodes in 3..20 {
            assert!(2 * majority(nodes) > nodes);
            assert!(majority(nodes) + (majority(nodes) - 1) > nodes - 1);
        }
        assert_eq!([3, 4, 5].map(majority), [2, 3, 3]);
    }

    #[test]
    fn a_lease_ends_before_it_ends_at_the_nodes() {
        let start = Instant::from_nanos(1_000_000_000);
        let until = valid_until(start, Duration::from_secs(10));
        assert_eq!(until.since(start), Duration::from_millis(9_898));
        assert_eq!(valid_until(start, Duration::from_millis(1)), start);
    }

    #[test]
    fn a_vote_is_certain_as_early_as_it_can_be() {
        assert_eq!(certain(3, 2, 3), Some(true));
        assert_eq!(certain(2, 1, 3), None);
        assert_eq!(certain(1, 1, 3), Some(false));
    }
}
