//! One attempt to take a lock: from votes to a decision. Pure.

use std::time::Duration;

use super::votes::{ROUND, Vote, certain, drift, majority};

/// What is known of one attempt.
#[derive(Clone, Debug)]
pub(super) struct Round {
    /// The first of the tokens that were proposed together with the request.
    proposed: u64,
    votes: Vec<Option<Vote>>,
    /// The second phase: the first token, and at which nodes it is written.
    raise: Option<(u64, Vec<Raise>)>,
}

/// What a node said to the second phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Raise {
    /// It did not vote in the first phase, or too late to be counted.
    NotAsked,
    Open,
    Done,
    Failed,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Wait for more answers.
    Wait,
    /// Ours; the first token.
    Granted(u64),
    /// A majority gave it: now write this first token at the nodes that did.
    Raise(u64),
    /// The same request was granted before.
    Found { value: String, token: u64, left: Duration },
    /// Not to be had this time.
    Refused,
}

impl Round {
    pub(super) fn new(nodes: usize, proposed: u64) -> Self {
        Self { proposed, votes: vec![None; nodes], raise: None }
    }

    /// Takes in a vote of the first phase.
    pub(super) fn hear(&mut self, node: usize, vote: Vote) {
        self.votes[node] = Some(vote);
    }

    /// Takes in an answer of the second phase.
    pub(super) fn hear_raised(&mut self, node: usize, done: bool) {
        if let Some((_, raises)) = &mut self.raise
            && raises[node] == Raise::Open
        {
            raises[node] = if done { Raise::Done } else { Raise::Failed };
        }
    }

    /// Time is up: whoever has not answered will not be counted.
    pub(super) fn close(&mut self, after: Duration) {
        match &mut self.raise {
            Some((_, raises)) => {
                raises.iter_mut().filter(|raise| **raise == Raise::Open).for_each(|raise| {
                    *raise = Raise::Failed;
                });
            }
            None => {
                for vote in self.votes.iter_mut().filter(|vote| vote.is_none()) {
                    *vote = Some(Vote::Silent(format!("no answer within {after:?}")));
                }
            }
        }
    }

    /// The nodes that are asked in the second phase.
    pub(super) fn to_raise(&self) -> impl Iterator<Item = usize> {
        let raises = self.raise.iter().flat_map(|(_, raises)| raises.iter().enumerate());
        raises.filter(|(_, raise)| **raise == Raise::Open).map(|(node, _)| node)
    }

    /// What follows from the votes. `elapsed`: since before the first request was sent.
    pub(super) fn decide(&mut self, elapsed: Duration, ttl: Duration) -> Decision {
        // A vote counts only while the lease that it gives has not run out, and for one round.
        if elapsed >= ROUND || elapsed + drift(ttl) >= ttl {
            return Decision::Refused;
        }
        let needed = majority(self.votes.len());
        if let Some((first, raises)) = &self.raise {
            let count = |which| raises.iter().filter(|raise| **raise == which).count();
            return match certain(count(Raise::Done), count(Raise::Open), needed) {
                Some(true) => Decision::Granted(*first),
                Some(false) => Decision::Refused,
                None => Decision::Wait,
            };
        }
        if let Some(found) = self.found(needed) {
            return found;
        }
        let (mut yes, mut accepted, mut open, mut highest) = (0, 0, 0, self.proposed);
        for vote in &self.votes {
            match vote {
                None => open += 1,
                Some(Vote::Yes { counter, accepted: agreed }) => {
                    yes += 1;
                    accepted += usize::from(*agreed);
                    highest = highest.max(*counter);
                }
                Some(_) => {}
            }
        }
        match certain(yes, open, needed) {
            Some(true) if accepted >= needed => Decision::Granted(self.proposed),
            Some(true) => {
                // Only those whose counter is known now: the token must be larger than each of them.
                let ask = |vote: &Option<Vote>| match vote {
                    Some(Vote::Yes { .. }) => Raise::Open,
                    _ => Raise::NotAsked,
                };
                self.raise = Some((highest + 1, self.votes.iter().map(ask).collect()));
                Decision::Raise(highest + 1)
            }
            // The same request may have been granted before; that is seen when all have answered.
            Some(false) if open > 0 && self.has_mine() => Decision::Wait,
            Some(false) => Decision::Refused,
            None => Decision::Wait,
        }
    }

    fn has_mine(&self) -> bool {
        self.votes.iter().any(|vote| matches!(vote, Some(Vote::Mine { .. })))
    }

    /// A grant that the same request got before: a majority says the same of it. Not one, if it was
    /// given up: the undoing may arrive at any time.
    fn found(&self, needed: usize) -> Option<Decision> {
        let mine = self.votes.iter().filter_map(|vote| match vote {
            Some(Vote::Mine { value, token, left }) if *token > 0 => Some((value, *token, *left)),
            _ => None,
        });
        let mine: Vec<_> = mine.collect();
        let (value, token, _) = *mine.first()?;
        let same = mine.iter().filter(|(other, number, _)| *other == value && *number == token);
        let left = same.clone().map(|(_, _, left)| *left).min()?;
        (same.count() >= needed).then(|| Decision::Found { value: value.clone(), token, left })
    }

    /// Whether more answers may show that it is only a matter of who holds the lock, or why not.
    pub(super) fn is_open(&self) -> bool {
        self.raise.is_none() && !self.is_contended() && self.votes.iter().any(Option::is_none)
    }

    /// Whether somebody else has it somewhere, and only such nodes have not answered.
    pub(super) fn hangs_on(&self, such: impl Fn(usize) -> bool) -> bool {
        let mut votes = self.votes.iter().enumerate();
        self.raise.is_none()
            && self.votes.iter().any(|vote| matches!(vote, Some(Vote::Held { .. })))
            && votes.all(|(node, vote)| vote.is_some() || such(node))
    }

    /// Whether so many nodes take part that it is only a matter of who holds the lock.
    pub(super) fn is_contended(&self) -> bool {
        let present = self.votes.iter().flatten().filter(|vote| vote.is_present()).count();
        present >= majority(self.votes.len())
    }

    /// Who has it at a majority of the nodes, and for how long still at the most.
    pub(super) fn holder(&self) -> Option<(&str, Duration)> {
        let held = self.votes.iter().flatten().filter_map(|vote| match vote {
            Vote::Held { by, left } => Some((by.as_str(), *left)),
            _ => None,
        });
        held.clone().find_map(|(by, _)| {
            let same = held.clone().filter(|(other, _)| *other == by);
            let left = same.clone().map(|(_, left)| left).max()?;
            (same.count() >= majority(self.votes.len())).then_some((by, left))
        })
    }

    /// The votes so far, by node.
    pub(super) fn votes(&self) -> &[Option<Vote>] {
        &self.votes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);
    const SOON: Duration = Duration::from_millis(1);

    fn yes(counter: u64, accepted: bool) -> Vote {
        Vote::Yes { counter, accepted }
    }

    fn held(by: &str) -> Vote {
        Vote::Held { by: by.into(), left: TTL }
    }

    fn round(votes: &[Option<Vote>]) -> Round {
        let mut round = Round::new(votes.len(), 7);
        for (node, vote) in votes.iter().enumerate() {
            if let Some(vote) = vote {
                round.hear(node, vote.clone());
            }
        }
        round
    }

    #[test]
    fn a_majority_that_took_the_proposal_needs_no_second_phase() {
        let mut votes = vec![Some(yes(7, true)), Some(yes(7, true)), None, None, None];
        assert_eq!(round(&votes).decide(SOON, TTL), Decision::Wait);
        votes[4] = Some(yes(7, true));
        assert_eq!(round(&votes).decide(SOON, TTL), Decision::Granted(7));
    }

    #[test]
    fn the_second_phase_is_above_every_counter_and_asks_those_alone() {
        let votes = [Some(yes(7, true)), Some(yes(30, false)), Some(yes(9, false)), None, None];
        let mut round = round(&votes);
        assert_eq!(round.decide(SOON, TTL), Decision::Raise(31));
        assert_eq!(round.to_raise().collect::<Vec<_>>(), [0, 1, 2]);
        // Too late to be counted: its counter may be above the token.
        round.hear(3, yes(50, false));
        round.hear_raised(3, true);
        round.hear_raised(0, true);
        round.hear_raised(1, true);
        assert_eq!(round.decide(SOON, TTL), Decision::Wait);
        round.hear_raised(2, true);
        assert_eq!(round.decide(SOON, TTL), Decision::Granted(31));
    }

    #[test]
    fn a_second_phase_that_fails_at_one_too_many_is_refused_at_once() {
        let votes = [Some(yes(8, false)), Some(yes(8, false)), Some(held("x"))];
        let mut round = round(&votes);
        assert_eq!(round.decide(SOON, TTL), Decision::Raise(9));
        round.hear_raised(0, false);
        assert_eq!(round.decide(SOON, TTL), Decision::Refused);
    }

    #[test]
    fn votes_that_came_too_late_do_not_count() {
        let votes = [Some(yes(7, true)), Some(yes(7, true)), Some(yes(7, true))];
        assert_eq!(round(&votes).decide(ROUND, TTL), Decision::Refused);
        let short = Duration::from_millis(100);
        assert_eq!(round(&votes).decide(Duration::from_millis(97), short), Decision::Refused);
        assert_eq!(round(&votes).decide(Duration::from_millis(90), short), Decision::Granted(7));
    }

    #[test]
    fn it_is_refused_as_soon_as_no_majority_is_left() {
        let votes =
            [Some(held("x")), Some(Vote::Silent("down".into())), None, Some(held("x")), None];
        let mut round = round(&votes);
        assert_eq!(round.decide(SOON, TTL), Decision::Refused);
        assert!(!round.is_contended());
        round.hear(2, held("x"));
        assert!(round.is_contended());
        assert_eq!(round.holder(), Some(("x", TTL)));
    }

    #[test]
    fn a_grant_of_the_same_request_is_found() {
        let mine = |token| Some(Vote::Mine { value: "v".into(), token, left: TTL });
        let mut votes = vec![mine(5), None, mine(5)];
        let found = Decision::Found { value: "v".into(), token: 5, left: TTL };
        assert_eq!(round(&votes).decide(SOON, TTL), found);
        votes[2] = mine(0);
        assert_eq!(round(&votes).decide(SOON, TTL), Decision::Wait);
        votes[1] = mine(4);
        assert_eq!(round(&votes).decide(SOON, TTL), Decision::Refused);
    }
}
