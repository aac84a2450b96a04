//! When a node that came back without its data may vote again, and from which counter on. Pure.

use std::time::Duration;

use super::votes::{ROUND, drift, majority};

/// What is known of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// It did not answer.
    Unknown,
    /// It votes.
    Voting(Memory),
    /// It does not, and has not been told to wait: blank, or restarted.
    Unmarked(Memory),
    /// It has been waiting for so long, and nobody has said yet until when.
    Marked { waited: Duration, memory: Memory },
    /// It will vote by itself when its time has come.
    Admitted,
}

/// What a node remembers, as far as it matters to another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// No token that it knows of is larger.
    pub(super) counter: u64,
    /// After this time no lease is alive that it voted for.
    pub(super) busy: Duration,
}

/// What to do about a node that does not vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Nothing: it votes, or will.
    Leave,
    /// Tell it to wait, and look again.
    Mark,
    /// Look again after this time.
    After(Duration),
    /// Too few others answer to know what it forgot: look again later.
    TooFew,
    /// It may vote after this time, with a counter of at least this. `floor`: besides, one that is
    /// larger than any token from before can be, because nobody else remembers those.
    Admit { wait: Duration, counter: u64, floor: bool },
}

/// What to do about node `at`. `unknown`: how long a lease may be that nobody remembers.
pub(super) fn plan(nodes: &[View], at: usize, unknown: Duration) -> Plan {
    let (waited, own) = match nodes[at] {
        View::Voting(_) | View::Admitted | View::Unknown => return Plan::Leave,
        View::Unmarked(_) => return Plan::Mark,
        View::Marked { waited, memory } => (waited, memory),
    };
    // No attempt from before the loss may still be under way: what it did elsewhere is then seen.
    let quiet = ROUND + drift(ROUND);
    if waited < quiet {
        return Plan::After(quiet.saturating_sub(waited));
    }
    let (mut voting, mut absent) = (0, 0);
    let mut all = own;
    for view in nodes {
        match view {
            View::Voting(memory) => {
                voting += 1;
                all = all.max(*memory);
            }
            View::Unmarked(memory) | View::Marked { memory, .. } => {
                absent += 1;
                all = all.max(*memory);
            }
            View::Admitted => absent += 1,
            View::Unknown => {}
        }
    }
    let needed = majority(nodes.len());
    let wait = all.busy + drift(all.busy);
    if voting >= needed {
        return Plan::Admit { wait, counter: all.counter, floor: false };
    }
    if nodes.len() - absent >= needed {
        // Those that do not answer may know.
        return Plan::TooFew;
    }
    // A majority has lost its data. Nobody knows what was granted: wait as long as a lease may be.
    let wait = wait.max((unknown + drift(unknown)).saturating_sub(waited));
    Plan::Admit { wait, counter: all.counter, floor: true }
}

impl Memory {
    fn max(self, other: Self) -> Self {
        Self { counter: self.counter.max(other.counter), busy: self.busy.max(other.busy) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);
    const QUIET: Duration = Duration::from_secs(3);

    fn memory(counter: u64, seconds: u64) -> Memory {
        Memory { counter, busy: Duration::from_secs(seconds) }
    }

    fn marked(waited: Duration) -> View {
        View::Marked { waited, memory: Memory::default() }
    }

    #[test]
    fn it_waits_for_the_longest_lease_that_a_majority_of_the_others_knows() {
        let others = [memory(4, 10), memory(9, 3)].map(View::Voting);
        let nodes = |waited| [others[0], marked(waited), others[1]];
        let quiet = ROUND + drift(ROUND);
        assert_eq!(plan(&nodes(Duration::ZERO), 1, LEASE), Plan::After(quiet));
        let wait = Duration::from_millis(10_102);
        let admit = Plan::Admit { wait, counter: 9, floor: false };
        assert_eq!(plan(&nodes(QUIET), 1, LEASE), admit);
        assert_eq!(
            plan(&[others[0], View::Unmarked(memory(0, 0)), others[1]], 1, LEASE),
            Plan::Mark
        );
        assert_eq!(plan(&nodes(QUIET), 0, LEASE), Plan::Leave);
    }

    #[test]
    fn it_is_not_admitted_while_those_who_know_do_not_answer() {
        let voting = View::Voting(memory(4, 10));
        assert_eq!(plan(&[voting, marked(QUIET), View::Unknown], 1, LEASE), Plan::TooFew);
        let five = [voting, voting, marked(QUIET), View::Unknown, View::Unknown];
        assert_eq!(plan(&five, 2, LEASE), Plan::TooFew);
        let five = [voting, voting, marked(QUIET), marked(QUIET), View::Unknown];
        assert_eq!(plan(&five, 2, LEASE), Plan::TooFew, "the last one may know");
    }

    #[test]
    fn when_a_majority_forgot_it_waits_for_the_longest_lease_that_may_be() {
        let nodes = [View::Voting(memory(4, 10)), marked(QUIET), View::Admitted];
        let wait = LEASE + drift(LEASE) - QUIET;
        assert_eq!(plan(&nodes, 1, LEASE), Plan::Admit { wait, counter: 4, floor: true });
        let late = [View::Voting(memory(4, 10)), marked(LEASE * 2), View::Admitted];
        let wait = Duration::from_millis(10_102);
        assert_eq!(plan(&late, 1, LEASE), Plan::Admit { wait, counter: 4, floor: true });
    }
}
