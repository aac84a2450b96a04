//! Who holds a name, who waits, and whom to watch: pure decisions over the keys of its queue.
//!
//! A key whose value says `held` is a hold; the others wait, in the order of their creation. Keys of
//! other clients (Go's `concurrency.Mutex`, `etcdctl lock`) say nothing: each is a mutex that holds
//! when it is the first of all, as those clients themselves see it.
//!
//! A waiter that finds that it is its turn writes so into its key. The rules make that safe without a
//! look at the others in the same step, because what they promise stays true until it has written:
//!
//! - Alone: nobody came before and nobody holds. Nobody can pass it.
//! - Reading: nobody exclusive came before. Nobody exclusive can pass it.
//! - A permit: all who came before hold, and there is room. Nobody can pass it.
//! - Beside another: an unfair reader that passes waiting writers, and an owner that reads under its
//!   own lock. Only these look again, in the same step, whether the one that they rely on is as it was.

use serde::{Deserialize, Serialize};

use crate::backend::{Access, Kind};
use crate::owner::{Owner, RequestId};
use crate::token::Token;

/// What is written in a key of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) id: String,
    pub(super) owner: Owner,
    pub(super) kind: Kind,
    /// Absent while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) held: Option<Held>,
}

/// A grant. What is absent is the revision in which it was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<u64>,
}

impl Place {
    pub(super) fn new(id: RequestId, owner: &Owner, kind: Kind) -> Self {
        Self { id: id.to_string(), owner: owner.clone(), kind, held: None }
    }

    pub(super) fn holding(&self, token: Option<u64>, since: Option<u64>) -> Self {
        Self { held: Some(Held { token, since }), ..self.clone() }
    }

    pub(super) fn to_value(&self) -> Vec<u8> {
        // Text and numbers: this cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// One key of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: Vec<u8>,
    pub(super) created: i64,
    pub(super) modified: i64,
    pub(super) lease: i64,
    /// `None`: of another client.
    pub(super) place: Option<Place>,
}

impl Entry {
    pub(super) fn kind(&self) -> Kind {
        self.place.as_ref().map_or(Kind::Mutex, |place| place.kind)
    }

    fn held(&self) -> Option<Held> {
        self.place.as_ref()?.held
    }

    fn owner(&self) -> Option<&Owner> {
        self.place.as_ref().map(|place| &place.owner)
    }

    fn is_shared(&self) -> bool {
        self.kind().is_shared()
    }

    /// The token of a hold.
    pub(super) fn token(&self) -> u64 {
        self.held().and_then(|held| held.token).unwrap_or_else(|| number(self.written()))
    }

    /// The revision of the grant.
    pub(super) fn since(&self) -> u64 {
        self.held().and_then(|held| held.since).unwrap_or_else(|| number(self.written()))
    }

    fn written(&self) -> i64 {
        if self.place.is_some() { self.modified } else { self.created }
    }
}

/// A revision as a token.
pub(super) fn number(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

pub(super) fn token(number: u64) -> Token {
    Token::new(number).unwrap_or(Token::MIN)
}

/// What a request that is in the queue does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It holds already.
    Holds,
    /// Writes that it holds.
    Take {
        /// Only if this key is still as it was in this revision.
        beside: Option<(Vec<u8>, i64)>,
        /// Under this token; `None`: under one of its own.
        token: Option<u64>,
    },
    /// Waits until something happens to this key.
    Key(Vec<u8>),
    /// Waits until this key is gone.
    Gone(Vec<u8>),
    /// Waits until any key of the queue is gone.
    Any,
}

/// The indices of the holds, in the order of the grants. `queue` is in the order of creation.
pub(super) fn holders(queue: &[Entry]) -> Vec<usize> {
    let holds = |at: &usize| match &queue[*at].place {
        Some(place) => place.held.is_some(),
        None => *at == 0,
    };
    let mut holders: Vec<usize> = (0..queue.len()).filter(holds).collect();
    holders.sort_by_key(|at| queue[*at].since());
    holders
}

/// Whether this owner reads already.
pub(super) fn reads(queue: &[Entry], owner: &Owner) -> bool {
    queue
        .iter()
        .any(|entry| entry.held().is_some() && entry.is_shared() && entry.owner() == Some(owner))
}

/// What the request at this index does next. `queue` is in the order of creation. `is_new`: it has only
/// just come; then it may pass those who wait if its owner holds the name already.
pub(super) fn turn(queue: &[Entry], me: usize, is_new: bool) -> Turn {
    let Some(place) = &queue[me].place else { return Turn::Any };
    if place.held.is_some() {
        return Turn::Holds;
    }
    let take = Turn::Take { beside: None, token: None };
    let (before, others) = (&queue[..me], || others(queue, me));
    match place.kind.access() {
        Access::Exclusive => match (before.last(), others().find(|other| other.held().is_some())) {
            (None, None) => take,
            (Some(next), _) | (None, Some(next)) => Turn::Gone(next.key.clone()),
        },
        Access::Permit { of } => {
            let waiting = before.iter().rev().find(|other| other.held().is_none());
            match waiting {
                Some(next) => Turn::Key(next.key.clone()),
                None if before.len() < of as usize => take,
                None => Turn::Any,
            }
        }
        Access::Shared => {
            let mine = |other: &Entry| other.owner() == Some(&place.owner);
            let own = own_hold(queue, me, &place.owner);
            // Beside its own writing nobody else is served.
            let alone = own.is_some_and(|own| !own.is_shared());
            let blocks = |other: &&Entry| match other.held() {
                Some(_) => !other.is_shared() && !mine(other),
                None => !other.is_shared() || (alone && !mine(other)),
            };
            let nearest = before.iter().rev().find(blocks);
            let passes = is_new || place.kind == Kind::Read;
            if let Some(own) = own
                && (passes || nearest.is_none())
            {
                let beside = Some((own.key.clone(), own.modified));
                return Turn::Take { beside, token: Some(own.token()) };
            }
            let Some(nearest) = nearest else {
                // An owner that reads twice does so under one token: the first one brings it.
                let first = before.iter().find(|other| mine(other));
                return first.map_or(take, |first| Turn::Key(first.key.clone()));
            };
            if place.kind != Kind::Read {
                return Turn::Key(nearest.key.clone());
            }
            // Other clients do not know that anybody may pass them.
            if let Some(other) = before.iter().rev().find(|other| other.place.is_none()) {
                return Turn::Key(other.key.clone());
            }
            match others().find(|other| other.held().is_some()) {
                Some(held) if held.is_shared() => {
                    let beside = Some((held.key.clone(), held.modified));
                    Turn::Take { beside, token: None }
                }
                Some(held) => Turn::Key(held.key.clone()),
                // Between two holders: whoever is first says soon what becomes of it.
                None => Turn::Key(queue[0].key.clone()),
            }
        }
    }
}

fn others(queue: &[Entry], me: usize) -> impl Iterator<Item = &Entry> {
    queue.iter().enumerate().filter(move |(at, _)| *at != me).map(|(_, entry)| entry)
}

/// A hold of the same owner beside which it may read.
fn own_hold<'a>(queue: &'a [Entry], me: usize, owner: &Owner) -> Option<&'a Entry> {
    let held = || others(queue, me).filter(|other| other.held().is_some());
    let fits = |other: &Entry| other.is_shared() || other.owner() == Some(owner);
    // Other clients do not know that anybody may pass them.
    let foreign = queue[..me].iter().any(|other| other.place.is_none());
    if foreign || !held().all(fits) {
        return None;
    }
    held().filter(|other| other.owner() == Some(owner)).min_by_key(|other| other.since())
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
