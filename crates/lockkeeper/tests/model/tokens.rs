//! The tokens of a store, in terms of those of the model.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper::backend::Holding;

/// How a store counts.
pub(crate) enum Tokens {
    /// They follow each other: the last one before the sequence began.
    Counted(u64),
    /// They grow with every grant, by more than one: those that are known, and how many of the model's
    /// were known before this step. Those who are served in one step are served in any order.
    #[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "only etcd counts so"))]
    Growing(BTreeMap<u64, u64>, u64),
    /// They are drawn when a place in the queue is taken, and grow as that is served: those that are
    /// known, and what the last eviction said.
    #[cfg_attr(not(feature = "zookeeper"), allow(dead_code, reason = "for zookeeper: alone"))]
    Drawn(BTreeMap<u64, u64>, u64),
}

impl Tokens {
    /// What the model calls a token that is known.
    pub(crate) fn in_model(&self, token: u64) -> u64 {
        match self {
            Self::Counted(base) => token - base,
            Self::Growing(known, _) | Self::Drawn(known, _) => {
                known.get(&token).copied().unwrap_or(0)
            }
        }
    }

    /// A token that was granted where the model granted that one.
    pub(crate) fn granted(&mut self, token: u64, in_model: u64) {
        match self {
            Self::Counted(base) => assert_eq!(token - *base, in_model, "granted {token}"),
            Self::Growing(known, before) => grows(known, *before, token, in_model),
            Self::Drawn(known, evicted) => {
                let same = *known.entry(token).or_insert(in_model);
                assert_eq!(same, in_model, "the token {token}");
                // An owner that reads twice has one token in the model, and may have two there, with
                // those of others in between: the first of them is the one that counts.
                let mut seen = BTreeSet::new();
                let firsts = known.values().filter(|number| seen.insert(**number));
                assert!(firsts.is_sorted(), "{known:?}");
                let late = known.values().max() > Some(&in_model);
                assert!(token >= *evicted || late, "{token} after {evicted}: {known:?}");
            }
        }
    }

    /// What an eviction of these holders said.
    pub(crate) fn evicted(&mut self, token: u64, in_model: u64, holders: &[Holding]) {
        assert!(holders.iter().all(|holding| token > holding.token.get()), "{holders:?}");
        match self {
            Self::Counted(base) => assert_eq!(token - *base, in_model, "evicted {token}"),
            Self::Growing(known, before) => grows(known, *before, token, in_model),
            Self::Drawn(_, evicted) => *evicted = token,
        }
        // What it freed is granted later.
        self.next_step();
    }

    /// Whatever is granted from now on is new.
    pub(crate) fn next_step(&mut self) {
        if let Self::Growing(known, before) = self {
            *before = known.values().copied().max().unwrap_or(0);
        }
    }
}

/// It is larger than all that were there before the step; or it is known.
fn grows(known: &mut BTreeMap<u64, u64>, before: u64, token: u64, in_model: u64) {
    let same = *known.entry(token).or_insert(in_model);
    assert_eq!(same, in_model, "the token {token}");
    let grows = in_model <= before || known.range(token..).all(|(_, later)| *later > before);
    assert!(grows, "{in_model} has {token}: {known:?}");
    // An owner whose two requests to read are served in one step has one token in the model, and may
    // have two there.
    let another = known.iter().find(|(other, number)| **number == in_model && **other != token);
    assert!(another.is_none() || in_model > before, "{in_model} has {token} and {another:?}");
}
