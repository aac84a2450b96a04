//! Who waits for whom, as the stores told it. Pure.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::backend::Status;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// What one store told.
#[derive(Debug)]
pub(super) struct Part {
    place: Arc<str>,
    spots: Vec<Spot>,
    /// For each owner, the names it waits for.
    waits: HashMap<Owner, Vec<usize>>,
}

/// A name that somebody holds or waits for.
#[derive(Debug)]
struct Spot {
    name: Name,
    holders: Vec<(Owner, Token)>,
}

/// Somebody who waits, for what, and who has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) owner: Owner,
    pub(super) place: Arc<str>,
    pub(super) name: Name,
    holder: Owner,
    token: Token,
}

impl Part {
    pub(super) fn new(place: &str, told: Vec<Status>) -> Self {
        let mut part = Self { place: place.into(), spots: Vec::new(), waits: HashMap::new() };
        for status in told {
            // Any one of its holders may let a semaphore's waiter in: no one of them is in the way.
            if status.kind.as_deref() == Some("semaphore") {
                continue;
            }
            // Of other programs' holds the token does not tell one from the next.
            let ours = status.holders.into_iter().filter(|holding| holding.owner.is_ours());
            let holders = ours.map(|holding| (holding.owner, holding.token)).collect();
            for owner in status.waiters {
                part.waits.entry(owner).or_default().push(part.spots.len());
            }
            part.spots.push(Spot { name: status.name, holders });
        }
        part
    }

    /// Whether this store told it.
    pub(super) fn is_of(&self, place: &str) -> bool {
        &*self.place == place
    }

    /// What an owner waits for here.
    fn waits_of<'a>(&'a self, owner: &Owner) -> impl Iterator<Item = (&'a Self, &'a Spot)> {
        let at = self.waits.get(owner).into_iter().flatten();
        at.map(move |at| (self, &self.spots[*at]))
    }

    /// Whether this is so: the wait, and behind it the hold.
    pub(super) fn has(&self, link: &Link) -> bool {
        let hold =
            |(holder, token): &(Owner, Token)| *holder == link.holder && *token == link.token;
        self.place == link.place
            && self
                .waits_of(&link.owner)
                .any(|(_, spot)| spot.name == link.name && spot.holders.iter().any(hold))
    }

    fn link(&self, spot: &Spot, owner: &Owner, holder: &Owner, token: Token) -> Link {
        let (place, name) = (Arc::clone(&self.place), spot.name.clone());
        Link { owner: owner.clone(), place, name, holder: holder.clone(), token }
    }
}

/// The shortest circle in which this owner's wait is, and in which nobody is younger. So of all owners in
/// a circle exactly one finds it.
pub(super) fn circle(
    parts: &[&Part],
    owner: &Owner,
    place: &str,
    name: &Name,
) -> Option<Vec<Link>> {
    let mut reached: HashMap<&Owner, Option<Link>> = HashMap::from([(owner, None)]);
    let mut looked_at = HashSet::new();
    let mut next = VecDeque::from([owner]);
    while let Some(waiting) = next.pop_front() {
        let begins = waiting == owner;
        for (part, spot) in parts.iter().flat_map(|part| part.waits_of(waiting)) {
            if begins && (&*part.place != place || spot.name != *name) {
                continue;
            }
            // Whoever comes here later has the same holders in front of him.
            if !looked_at.insert(std::ptr::from_ref(spot)) {
                continue;
            }
            for (holder, token) in &spot.holders {
                let link = || part.link(spot, waiting, holder, *token);
                if holder == owner && !begins {
                    return Some(path(&reached, link()));
                }
                if !holder.is_younger_than(owner) && !reached.contains_key(holder) {
                    reached.insert(holder, Some(link()));
                    next.push_back(holder);
                }
            }
        }
    }
    None
}

/// The way to the last link, in order.
fn path(reached: &HashMap<&Owner, Option<Link>>, last: Link) -> Vec<Link> {
    let mut links = vec![last];
    while let Some(Some(before)) = reached.get(&links[links.len() - 1].owner) {
        links.push(before.clone());
    }
    links.reverse();
    links
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::Holding;

    fn owner(number: u32) -> Owner {
        Owner::try_from(format!("host-1-0123abcd:{number}")).unwrap()
    }

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn held(at: &str, holders: &[(u32, u64)], waiters: &[u32]) -> Status {
        let holding = |(number, token): &(u32, u64)| Holding {
            owner: owner(*number),
            token: Token::new(*token).unwrap(),
            held: Duration::ZERO,
            lease_left: None,
        };
        Status {
            name: name(at),
            kind: Some("mutex".into()),
            holders: holders.iter().map(holding).collect(),
            waiters: waiters.iter().copied().map(owner).collect(),
            count: None,
        }
    }

    struct Graph(Vec<Part>);

    impl Graph {
        fn circle(&self, owner: &Owner, place: &str, name: &Name) -> Option<Vec<Link>> {
            circle(&self.0.iter().collect::<Vec<_>>(), owner, place, name)
        }

        fn still_has(&self, circle: &[Link]) -> bool {
            circle.iter().all(|link| self.0.iter().any(|part| part.has(link)))
        }
    }

    fn graph(told: &[(&str, &[Status])]) -> Graph {
        Graph(told.iter().map(|(place, told)| Part::new(place, told.to_vec())).collect())
    }

    #[test]
    fn only_the_youngest_of_a_circle_finds_it() {
        let one = [held("a", &[(1, 5)], &[3]), held("b", &[(2, 6)], &[1, 9])];
        let two = [held("a", &[(3, 7)], &[2])];
        let graph = graph(&[("one:", &one), ("two:", &two)]);
        let circle = graph.circle(&owner(3), "one:", &name("a")).unwrap();
        let waits: Vec<_> = circle
            .iter()
            .map(|link| (link.owner.clone(), &*link.place, link.name.to_string()))
            .collect();
        let expected = [
            (owner(3), "one:", "a".to_owned()),
            (owner(1), "one:", "b".to_owned()),
            (owner(2), "two:", "a".to_owned()),
        ];
        assert_eq!(waits, expected);
        assert_eq!(graph.circle(&owner(1), "one:", &name("b")), None);
        assert_eq!(graph.circle(&owner(2), "two:", &name("a")), None);
        assert_eq!(graph.circle(&owner(9), "one:", &name("b")), None, "behind it, not in it");
    }

    #[test]
    fn the_same_name_at_another_store_is_another_lock() {
        let one = [held("a", &[(1, 5)], &[2])];
        let two = [held("a", &[(3, 5)], &[1]), held("b", &[(2, 5)], &[])];
        let graph = graph(&[("one:", &one), ("two:", &two)]);
        assert_eq!(graph.circle(&owner(2), "one:", &name("a")), None);
    }

    #[test]
    fn a_hold_that_was_taken_again_is_not_the_same() {
        let look = |token| {
            graph(&[("one:", &[held("a", &[(1, token)], &[2]), held("b", &[(2, 6)], &[1])])])
        };
        let circle = look(5).circle(&owner(2), "one:", &name("a")).unwrap();
        assert!(look(5).still_has(&circle));
        assert!(!look(7).still_has(&circle));
        let gone = graph(&[("one:", &[held("a", &[(1, 5)], &[2]), held("b", &[(2, 6)], &[])])]);
        assert!(!gone.still_has(&circle), "gave up");
        assert!(!graph(&[]).still_has(&circle), "the store does not answer");
    }

    #[test]
    fn one_of_several_readers_is_enough_and_one_of_several_permits_is_not() {
        let told = [held("a", &[(1, 5), (3, 5)], &[4]), held("b", &[(4, 6)], &[3])];
        assert!(graph(&[("one:", &told)]).circle(&owner(4), "one:", &name("a")).is_some());
        let mut told = told;
        told[0].kind = Some("semaphore".into());
        assert_eq!(graph(&[("one:", &told)]).circle(&owner(4), "one:", &name("a")), None);
    }

    #[test]
    fn other_programs_are_left_out() {
        let mut told = [held("a", &[(1, 5)], &[2]), held("b", &[(2, 6)], &[1])];
        let other = Owner::try_from("5e1d2a31-7b0a-4c39-8a59-0123456789ab:1".to_owned()).unwrap();
        told[0].holders[0].owner = other.clone();
        told[1].waiters[0] = other;
        assert_eq!(graph(&[("one:", &told)]).circle(&owner(2), "one:", &name("a")), None);
    }

    #[test]
    fn who_waits_for_himself_is_not_in_a_circle() {
        let told = [held("a", &[(1, 5)], &[1])];
        assert_eq!(graph(&[("one:", &told)]).circle(&owner(1), "one:", &name("a")), None);
    }

    /// With younger owners all around, circles without them are still found.
    #[test]
    fn a_circle_is_found_behind_a_younger_owner() {
        let told = [held("a", &[(9, 1), (1, 1)], &[2]), held("b", &[(2, 1)], &[9, 1])];
        let graph = graph(&[("one:", &told)]);
        assert_eq!(graph.circle(&owner(2), "one:", &name("a")).unwrap().len(), 2);
        assert_eq!(graph.circle(&owner(9), "one:", &name("b")).unwrap().len(), 2);
        assert_eq!(graph.circle(&owner(1), "one:", &name("b")), None);
    }
}
