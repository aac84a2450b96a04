//! Several caches for one set of keys, each with its share, and each on its own when it fails.
//!
//! # How it works
//!
//! A key belongs to one node, by a hash over the key and the names of the nodes (rendezvous hashing).
//! It belongs to that node also while the node is down: its keys are then loaded from the database
//! within the [limit](crate::limit), or answered otherwise, but they do not move to the next node. Where
//! they do, as on a hash ring, the next node gets twice its load, may fail of it, and so on round the
//! ring; and when the node comes back it has what was not invalidated meanwhile.
//!
//! # What it promises
//!
//! - The same names give the same node for a key, in every process, in whatever order they are given.
//! - A node that fails changes nothing for the keys of the others.
//! - A node that is added takes keys from the others, an equal share of each, and moves none between
//!   them. One that is taken away gives its keys to the others.
//!
//! # When it breaks
//!
//! Two processes with different lists of nodes disagree about a share of the keys, and an
//! invalidation of one does not reach what the other filled: change the list while nobody uses
//! the cache, or clear it afterwards. Whoever renames a node moves its keys.
//!
//! # Cost
//!
//! One hash of the key, and a few multiplications for each node: meant for up to some dozens.

use std::time::Duration;

use crate::breaker::{Gate, Pass, Phase, Policy};
use crate::hash::hash;

/// Nodes by name; see the [module](self).
#[derive(Debug)]
pub struct Group<N> {
    members: Vec<Member<N>>,
}

#[derive(Debug)]
struct Member<N> {
    name: String,
    seed: u64,
    node: N,
    gate: Gate,
}

/// The nodes that were given make no group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// There is none.
    #[error("a group needs a node")]
    Empty,
    /// Two have this name, or names that cannot be told apart.
    #[error("two nodes are called {0:?}")]
    Twice(String),
}

/// The node to which a key belongs is down. Others are not asked in its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cache {name:?} is down; try again in {retry_after:?}")]
pub struct Down {
    /// The node.
    pub name: String,
    /// When it is worth asking again.
    pub retry_after: Duration,
}

impl<N> Group<N> {
    /// A group of these nodes, each with a breaker of its own.
    ///
    /// # Errors
    ///
    /// Without a node, or with two of one name.
    pub fn new(
        nodes: impl IntoIterator<Item = (String, N)>,
        policy: Policy,
    ) -> Result<Self, GroupError> {
        let mut members: Vec<Member<N>> = Vec::new();
        for (name, node) in nodes {
            let seed = hash(name.as_bytes());
            if members.iter().any(|member| member.seed == seed) {
                return Err(GroupError::Twice(name));
            }
            members.push(Member { name, seed, node, gate: Gate::new(policy) });
        }
        if members.is_empty() {
            return Err(GroupError::Empty);
        }
        // So that nothing depends on the order in which they were given.
        members.sort_by_key(|member| member.seed);
        Ok(Self { members })
    }

    /// The name of the node to which a key belongs, up or down, and the node.
    pub fn of(&self, key: &[u8]) -> (&str, &N) {
        let member = self.member(key);
        (&member.name, &member.node)
    }

    /// The node to which a key belongs, if it may be asked, with the pass to report how that went.
    ///
    /// # Errors
    ///
    /// [`Down`] if it is down. There is no other node for this key.
    pub fn enter(&self, key: &[u8]) -> Result<(&N, Pass), Down> {
        let member = self.member(key);
        match member.gate.enter() {
            Ok(pass) => Ok((&member.node, pass)),
            Err(refused) => {
                Err(Down { name: member.name.clone(), retry_after: refused.retry_after })
            }
        }
    }

    /// All nodes with their names and how they are.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &N, Phase)> {
        self.members.iter().map(|member| (&*member.name, &member.node, member.gate.phase()))
    }

    fn member(&self, key: &[u8]) -> &Member<N> {
        let key = hash(key);
        let mut best = &self.members[0];
        let mut most = 0;
        for member in &self.members {
            let weight = mix(key ^ member.seed);
            if weight >= most {
                (best, most) = (member, weight);
            }
        }
        best
    }
}

/// Spreads every bit over all (splitmix64). No two inputs give the same, so there are no ties.
pub(crate) const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn group(names: &[&str]) -> Group<usize> {
        let nodes = names.iter().enumerate().map(|(at, name)| ((*name).to_owned(), at));
        let policy = Policy { calls: 1, open: Duration::from_secs(600), ..Policy::default() };
        Group::new(nodes, policy).unwrap()
    }

    fn key(number: usize) -> Vec<u8> {
        format!("user:{number}").into_bytes()
    }

    /// Worked out by another program. Do *not* change it: keys would move.
    #[test]
    fn pinned() {
        let group = group(&["a", "b", "c"]);
        let nodes: Vec<_> = (0..12).map(|number| *group.of(&key(number)).1).collect();
        assert_eq!(nodes, [2, 2, 1, 2, 0, 1, 0, 0, 0, 2, 0, 0]);
    }

    #[test]
    fn every_node_gets_its_share() {
        let group = group(&["a", "b", "c", "d"]);
        let mut shares = HashMap::<_, u32>::new();
        for number in 0..40_000 {
            *shares.entry(group.of(&key(number)).0).or_default() += 1;
        }
        assert!(shares.values().all(|share| (9_500..10_500).contains(share)), "{shares:?}");
    }

    #[test]
    fn a_node_that_is_down_is_down_alone() {
        let group = group(&["a", "b", "c"]);
        let before: Vec<_> = (0..300).map(|number| group.of(&key(number)).0.to_owned()).collect();
        let (_, pass) = group.enter(&key(0)).unwrap();
        pass.failed();
        for (number, name) in before.iter().enumerate() {
            assert_eq!(group.of(&key(number)).0, name, "a key has moved");
            match group.enter(&key(number)) {
                Ok((_, pass)) => {
                    assert_ne!(*name, before[0]);
                    pass.succeeded();
                }
                Err(down) => assert_eq!((&down.name, name), (&before[0], &before[0])),
            }
        }
        let open = group.nodes().filter(|(_, _, phase)| *phase == Phase::Open);
        assert_eq!(open.count(), 1);
    }

    #[test]
    fn a_node_that_is_added_takes_its_share_and_moves_nothing_else() {
        let (before, after) = (group(&["a", "b", "c"]), group(&["a", "b", "c", "d"]));
        let mut taken = 0;
        for number in 0..10_000 {
            let (from, to) = (before.of(&key(number)).0, after.of(&key(number)).0);
            assert!(from == to || to == "d", "from {from} to {to}");
            taken += u32::from(to == "d");
        }
        assert!((2_300..2_700).contains(&taken), "{taken}");
    }

    #[test]
    fn names_are_there_and_differ() {
        let none = Group::<()>::new([], Policy::default());
        assert_eq!(none.err(), Some(GroupError::Empty));
        let two = ["a", "b", "a"].map(|name| (name.to_owned(), ()));
        let two = Group::new(two, Policy::default());
        assert_eq!(two.err(), Some(GroupError::Twice("a".to_owned())));
    }

    proptest! {
        #[test]
        fn the_order_of_the_names_does_not_matter(
            names in prop::collection::hash_set("[a-z]{1,8}", 1..8), key: Vec<u8>,
        ) {
            let mut names: Vec<_> = names.iter().map(String::as_str).collect();
            let first = group(&names).of(&key).0.to_owned();
            names.reverse();
            let second = group(&names);
            prop_assert_eq!(first, second.of(&key).0);
        }
    }
}
