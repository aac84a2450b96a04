//! A small world of owners and locks, in which it is known who is stuck, looked at as stores are looked at:
//! name by name, while everything goes on.

use std::time::Duration;

use super::graph::{Part, circle};
use crate::backend::{Holding, Status};
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

const OWNERS: usize = 5;
const NAMES: usize = 4;

struct World {
    /// For each name, who has it and under which token, and the last token.
    held: [Option<(usize, u64)>; NAMES],
    tokens: [u64; NAMES],
    /// For each owner, what it waits for.
    waits: [Option<usize>; OWNERS],
    /// Whether locks are taken in the order of their names, so that there are no circles.
    in_order: bool,
    /// So many owners and names are in use.
    owners: usize,
    names: usize,
    random: u64,
}

fn owner(at: usize) -> Owner {
    Owner::try_from(format!("host-1-0123abcd:{}", at + 1)).unwrap()
}

fn name(at: usize) -> Name {
    format!("lock/{at}").parse().unwrap()
}

fn place(at: usize) -> &'static str {
    if at.is_multiple_of(2) { "even:" } else { "odd:" }
}

impl World {
    fn new(in_order: bool, seed: u64) -> Self {
        let (held, waits) = ([None; NAMES], [None; OWNERS]);
        let (owners, names) = (OWNERS, NAMES);
        let random = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut world = Self { held, tokens: [0; NAMES], waits, in_order, owners, names, random };
        // The fewer, the more often the same ones meet again.
        world.owners = 2 + world.below(if in_order { 2 } else { OWNERS - 1 });
        world.names = 2 + world.below(if in_order { 1 } else { NAMES - 1 });
        world
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        usize::try_from(self.random >> 33).unwrap() % bound
    }

    fn has(&self, name: usize, who: usize) -> bool {
        self.held[name].is_some_and(|(holder, _)| holder == who)
    }

    /// Who waits for nothing takes or releases something.
    fn step(&mut self) {
        let who = self.below(self.owners);
        if self.waits[who].is_some() {
            return;
        }
        let wanted = self.below(self.names);
        let first = (0..NAMES).rev().find(|name| self.has(*name, who)).map_or(0, |last| last + 1);
        if self.has(wanted, who) || (self.in_order && wanted < first) {
            // Everything, as most do.
            for name in 0..NAMES {
                if self.has(name, who) {
                    self.release(name);
                }
            }
        } else if self.held[wanted].is_none() {
            self.grant(wanted, who);
        } else {
            self.waits[who] = Some(wanted);
        }
    }

    fn grant(&mut self, name: usize, who: usize) {
        self.tokens[name] += 1;
        self.held[name] = Some((who, self.tokens[name]));
        self.waits[who] = None;
    }

    fn release(&mut self, name: usize) {
        self.held[name] = None;
        if let Some(next) = (0..OWNERS).find(|who| self.waits[*who] == Some(name)) {
            self.grant(name, next);
        }
    }

    /// Follows who waits for whom: the circle that this leads to from here.
    fn circle(&self, from: usize) -> Option<Vec<usize>> {
        let mut way = vec![from];
        loop {
            let (holder, _) = self.held[self.waits[way[way.len() - 1]]?]?;
            if let Some(at) = way.iter().position(|who| *who == holder) {
                return Some(way.split_off(at));
            }
            way.push(holder);
        }
    }

    fn look(&mut self) -> Vec<Part> {
        let mut told = Vec::new();
        for at in 0..self.names {
            for _ in 0..self.below(24) {
                self.step();
            }
            let holding = |(who, token)| Holding {
                owner: owner(who),
                token: Token::new(token).unwrap(),
                held: Duration::ZERO,
                lease_left: None,
            };
            let waiters = (0..OWNERS).filter(|who| self.waits[*who] == Some(at)).map(owner);
            let status = Status {
                name: name(at),
                kind: Some("mutex".into()),
                holders: self.held[at].map(holding).into_iter().collect(),
                waiters: waiters.collect(),
                count: None,
            };
            told.push(Part::new(place(at), vec![status]));
        }
        told
    }
}

/// The owners that one look makes suspicious, and those whose suspicion the next one confirms.
fn told(world: &mut World) -> (usize, Vec<usize>) {
    // An owner asks only about its own wait, which it knows.
    let waits = world.waits;
    let first = world.look();
    let first: Vec<&Part> = first.iter().collect();
    let mut suspected = Vec::new();
    for (who, wait) in waits.iter().enumerate() {
        let Some(wait) = wait else { continue };
        let found = circle(&first, &owner(who), place(*wait), &name(*wait));
        suspected.extend(found.map(|links| (who, links)));
    }
    let second = world.look();
    let count = suspected.len();
    suspected
        .retain(|(_, circle)| circle.iter().all(|link| second.iter().any(|part| part.has(link))));
    (count, suspected.into_iter().map(|(who, _)| who).collect())
}

#[test]
fn what_looks_like_a_circle_is_none_without_one() {
    let mut suspicions = 0;
    for seed in 0..500 {
        let mut world = World::new(true, seed);
        for _ in 0..100 {
            let (suspected, told) = told(&mut world);
            assert!(told.is_empty(), "{told:?}");
            suspicions += suspected;
        }
    }
    assert!(suspicions > 100, "only {suspicions} looks were misleading");
}

#[test]
fn of_every_circle_the_youngest_is_told_and_nobody_else() {
    let mut circles = 0;
    for seed in 0..3000 {
        let mut world = World::new(false, seed);
        // Those that are in one when the first look begins stay in it.
        while (0..OWNERS).all(|who| world.circle(who).is_none()) {
            world.step();
        }
        let before: Vec<usize> = youngest(&world);
        let (_, told) = told(&mut world);
        let after = youngest(&world);
        assert!(before.iter().all(|who| told.contains(who)), "{before:?} of {told:?}");
        assert!(told.iter().all(|who| after.contains(who)), "{told:?} of {after:?}");
        circles += before.len();
    }
    assert!(circles >= 3000);
}

/// The youngest of each circle that there is.
fn youngest(world: &World) -> Vec<usize> {
    let circles = (0..OWNERS).filter_map(|who| world.circle(who));
    let mut youngest: Vec<usize> = circles.filter_map(|circle| circle.into_iter().max()).collect();
    youngest.sort_unstable();
    youngest.dedup();
    youngest
}
