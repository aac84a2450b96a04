//! Every course that a few attempts at one lock can take, on the model of the nodes and with the real
//! decisions: any request lost, any reply lost, any node restarted or emptied, any pause, at any
//! point.
//!
//! Time goes by in steps. Nodes are alike, so two states that differ in their order only are one.

mod cases;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::node::{Node, Record, Standing, Time};
use super::readmit::{Plan, View, plan};
use super::round::{Decision, Round};
use super::votes::{ROUND, Vote, certain, majority, valid_until};
use crate::clock::Instant;

const TICK: Duration = Duration::from_secs(1);
/// Longer than a node is quiet: or that alone would outlast every lease.
const TTL: Duration = Duration::from_secs(4);
/// The present; all other moments are counted from it.
const NOW: Time = Duration::from_secs(20);

/// So many attempts there are at most.
const MOST: usize = 3;

/// What the exploration is about.
#[derive(Clone, Copy, Debug)]
struct Case {
    nodes: usize,
    /// Attempts to take the lock, each by a client of its own.
    attempts: usize,
    /// How many times a node loses its data, or is restarted with what is on its disk.
    faults: u8,
    fault: Fault,
    /// How many answers, or requests, get lost.
    losses: u8,
    /// Whether holders renew, once each.
    renewals: bool,
    /// What is left out, to see that it is needed.
    without: Option<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Emptied,
    Restarted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// The token is not written anywhere.
    SecondPhase,
    /// A node without its data votes at once.
    Waiting,
    /// It waits, but does not learn the counter of the others.
    Restoring,
    /// It learns of leases and counters while attempts from before may be under way.
    Quiet,
    /// A node that was restarted with old data votes at once.
    Restarts,
}

/// What one attempt knows of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Asked {
    Open,
    Yes {
        counter: u64,
        accepted: bool,
    },
    No,
    /// The second phase.
    Raising {
        counter: u64,
    },
    Raised {
        counter: u64,
        done: bool,
    },
    /// To be given back, if that arrives.
    Leaving,
    Left,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Column {
    node: Node,
    asked: [Asked; MOST],
    /// What it looked like when it was last written to disk.
    old: Option<Box<Node>>,
    /// What it said to whoever looks after a node that came back.
    seen: Option<(u64, Duration)>,
    /// It is the one that is looked after.
    looked_after: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Attempt {
    NotBegun,
    /// Since then, with the first token that it proposes, or writes.
    Asking(Time, u64),
    Raising(Time, u64),
    /// Valid until then; whether it has been renewed.
    Holding(Time, bool),
    /// Since then, and valid until then if that fails.
    Renewing(Time, Time),
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct World {
    columns: Vec<Column>,
    attempts: [Attempt; MOST],
    /// The token of the last grant.
    latest: u64,
    faults: u8,
    losses: u8,
}

/// What went wrong, if anything did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    TwoHolders,
    /// Then a write of the earlier holder passes a resource that the later one has written to.
    TokenNotLarger,
}

impl World {
    fn new(case: Case) -> Self {
        let column =
            Column {
                node: Node::voting(),
                asked: std::array::from_fn(|who| {
                    if who < case.attempts { Asked::Open } else { Asked::Left }
                }),
                old: None,
                seen: None,
                looked_after: false,
            };
        Self {
            columns: vec![column; case.nodes],
            attempts: std::array::from_fn(|who| {
                if who < case.attempts { Attempt::NotBegun } else { Attempt::Over }
            }),
            latest: 0,
            faults: case.faults,
            losses: case.losses,
        }
    }

    /// Every state that one step leads to.
    fn steps(&self, case: Case) -> Result<Vec<Self>, Wrong> {
        // The last one is gone into first: time goes by last, which finds what is wrong sooner.
        let mut later = self.clone();
        later.tick();
        for who in 0..self.attempts.len() {
            later = later.decided(case, who)?;
        }
        let mut next = vec![later];
        for who in 0..self.attempts.len() {
            self.attempt(case, who, &mut next)?;
        }
        self.faults(case, &mut next);
        self.look_after(case, &mut next);
        next.iter_mut().for_each(Self::tidy);
        Ok(next)
    }

    fn attempt(&self, case: Case, who: usize, next: &mut Vec<Self>) -> Result<(), Wrong> {
        match self.attempts[who] {
            Attempt::NotBegun => {
                // One after the other: which is which makes no difference.
                if who == 0 || self.attempts[who - 1] != Attempt::NotBegun {
                    // It may know the largest counter there is, or nothing.
                    let counters = self.columns.iter().filter_map(|column| {
                        column.node.record.as_ref().map(|record| record.counter)
                    });
                    let known = counters.max().unwrap_or(0);
                    for proposed in [0, known + 1] {
                        let mut world = self.clone();
                        world.attempts[who] = Attempt::Asking(NOW, proposed);
                        next.push(world);
                    }
                }
            }
            Attempt::Asking(_, first) | Attempt::Raising(_, first) => {
                self.answers(case, who, first, next)?;
            }
            Attempt::Holding(until, renewed) => {
                next.push(self.leaving(who));
                if case.renewals && !renewed {
                    let mut world = self.clone();
                    world.attempts[who] = Attempt::Renewing(NOW, until);
                    world.columns.iter_mut().for_each(|column| column.asked[who] = Asked::Open);
                    next.push(world);
                }
            }
            Attempt::Renewing(..) => self.answers(case, who, 0, next)?,
            Attempt::Over => {
                for at in 0..self.columns.len() {
                    if self.columns[at].asked[who] == Asked::Leaving {
                        let mut world = self.clone();
                        world.columns[at].node.release(NOW, value(who));
                        world.columns[at].asked[who] = Asked::Left;
                        next.push(world);
                    }
                }
            }
        }
        Ok(())
    }

    /// A request arrives at a node; it or its answer may get lost.
    fn answers(
        &self,
        case: Case,
        who: usize,
        first: u64,
        next: &mut Vec<Self>,
    ) -> Result<(), Wrong> {
        for at in 0..self.columns.len() {
            let asked = self.columns[at].asked[who];
            if !matches!(asked, Asked::Open | Asked::Raising { .. }) {
                continue;
            }
            let mut world = self.clone();
            let node = &mut world.columns[at].node;
            let (answer, lost) = match asked {
                Asked::Raising { counter } => {
                    let done = node.raise(NOW, value(who), first);
                    (Asked::Raised { counter, done }, Asked::Raised { counter, done: false })
                }
                _ if matches!(self.attempts[who], Attempt::Renewing(..)) => {
                    let yes = Asked::Yes { counter: 0, accepted: false };
                    (if node.renew(NOW, value(who), TTL) { yes } else { Asked::No }, Asked::No)
                }
                _ => match node.take(NOW, value(who), TTL, (first, first)) {
                    Vote::Yes { counter, accepted } => {
                        (Asked::Yes { counter, accepted }, Asked::No)
                    }
                    _ => (Asked::No, Asked::No),
                },
            };
            if self.losses > 0 {
                let mut unanswered = world.clone();
                unanswered.columns[at].asked[who] = lost;
                unanswered.losses -= 1;
                next.push(unanswered.decided(case, who)?);
                let mut unheard = self.clone();
                unheard.columns[at].asked[who] = lost;
                unheard.losses -= 1;
                next.push(unheard.decided(case, who)?);
            }
            world.columns[at].asked[who] = answer;
            next.push(world.decided(case, who)?);
        }
        Ok(())
    }

    /// What an attempt does about the answers that it has, at once: to decide later is the same as to
    /// be answered later, and to be granted later only makes the time shorter in which two could hold.
    fn decided(mut self, case: Case, who: usize) -> Result<Self, Wrong> {
        if let Attempt::Renewing(since, until) = self.attempts[who] {
            return self.renewed(who, since, until);
        }
        let (since, first, raising) = match self.attempts[who] {
            Attempt::Asking(since, first) => (since, first, false),
            Attempt::Raising(since, first) => (since, first, true),
            _ => return Ok(self),
        };
        let mut round = Round::new(self.columns.len(), if raising { 0 } else { first });
        for (node, column) in self.columns.iter().enumerate() {
            match column.asked[who] {
                Asked::Yes { counter, accepted } => {
                    round.hear(node, Vote::Yes { counter, accepted });
                }
                Asked::Raising { counter } | Asked::Raised { counter, .. } => {
                    round.hear(node, Vote::Yes { counter, accepted: false });
                }
                Asked::No => round.hear(node, Vote::Silent(String::new())),
                _ => {}
            }
        }
        if raising {
            assert_eq!(round.decide(TICK, TTL), Decision::Raise(first), "as it was decided");
            for (node, column) in self.columns.iter().enumerate() {
                if let Asked::Raised { done, .. } = column.asked[who] {
                    round.hear_raised(node, done);
                }
            }
        }
        match round.decide(NOW.saturating_sub(since), TTL) {
            Decision::Raise(first) if case.without == Some(Part::SecondPhase) => {
                self.granted(who, since, first)
            }
            Decision::Granted(first) => self.granted(who, since, first),
            Decision::Raise(first) => {
                self.attempts[who] = Attempt::Raising(since, first);
                for column in &mut self.columns {
                    column.asked[who] = match column.asked[who] {
                        Asked::Yes { counter, .. } => Asked::Raising { counter },
                        _ => Asked::No,
                    };
                }
                Ok(self)
            }
            Decision::Refused => Ok(self.leaving(who)),
            Decision::Wait | Decision::Found { .. } => Ok(self),
        }
    }

    /// What a holder does about the answers to its renewal.
    fn renewed(mut self, who: usize, since: Time, until: Time) -> Result<Self, Wrong> {
        let count = |asked: fn(&Asked) -> bool| {
            self.columns.iter().filter(|column| asked(&column.asked[who])).count()
        };
        let yes = count(|asked| matches!(asked, Asked::Yes { .. }));
        let open = count(|asked| *asked == Asked::Open);
        let late = NOW.saturating_sub(since) >= ROUND;
        match certain(yes, open, majority(self.columns.len())) {
            None if !late => return Ok(self),
            Some(true) if !late => {
                if self.others_hold(who) {
                    return Err(Wrong::TwoHolders);
                }
                self.attempts[who] = Attempt::Holding(ends(since), true);
            }
            _ => self.attempts[who] = Attempt::Holding(until, true),
        }
        self.columns.iter_mut().for_each(|column| column.asked[who] = Asked::Left);
        Ok(self)
    }

    /// Whether anybody else has it, renewing it or not.
    fn others_hold(&self, who: usize) -> bool {
        let holds = |attempt: &Attempt| matches!(attempt, Attempt::Holding(until, _) | Attempt::Renewing(_, until) if *until > NOW);
        self.attempts.iter().enumerate().any(|(other, attempt)| other != who && holds(attempt))
    }

    fn granted(&self, who: usize, since: Time, token: u64) -> Result<Self, Wrong> {
        if self.others_hold(who) {
            return Err(Wrong::TwoHolders);
        }
        if token <= self.latest {
            return Err(Wrong::TokenNotLarger);
        }
        let mut world = self.clone();
        world.attempts[who] = Attempt::Holding(ends(since), false);
        world.latest = token;
        for column in &mut world.columns {
            column.asked[who] = Asked::Left;
        }
        Ok(world)
    }

    /// Released, or given up: everywhere, as far as that arrives.
    fn leaving(&self, who: usize) -> Self {
        let mut world = self.clone();
        world.attempts[who] = Attempt::Over;
        for column in &mut world.columns {
            column.asked[who] = Asked::Leaving;
        }
        world
    }

    /// A node is emptied, or restarted with what it had written to disk: all, or what it had before.
    fn faults(&self, case: Case, next: &mut Vec<Self>) {
        for at in 0..self.columns.len() {
            let column = &self.columns[at];
            if self.faults == 0 {
                continue;
            }
            let mut push = |change: &dyn Fn(&mut Node)| {
                let mut world = self.clone();
                world.faults -= 1;
                let column = &mut world.columns[at];
                change(&mut column.node);
                (column.old, column.seen) = (None, None);
                next.push(world);
            };
            if case.fault == Fault::Emptied {
                push(&|node| {
                    node.flush();
                    if case.without == Some(Part::Waiting) {
                        node.look(NOW, true);
                        node.admit(NOW, Duration::ZERO, self.latest);
                    }
                });
                continue;
            }
            push(&|node| {
                let data = column.old.as_deref().unwrap_or(&column.node).clone();
                node.restart(data);
                if case.without == Some(Part::Restarts)
                    && let Some(record) = &mut node.record
                {
                    record.run = node.run;
                }
            });
            // It writes to disk once: before anything has happened there, or something.
            if column.old.is_none() && self.columns.iter().all(|column| column.old.is_none()) {
                let mut world = self.clone();
                world.columns[at].old = Some(Box::new(column.node.clone()));
                next.push(world);
            }
        }
    }

    /// Some client looks after a node that does not vote: after one at a time, node by node.
    fn look_after(&self, case: Case, next: &mut Vec<Self>) {
        for at in 0..self.columns.len() {
            let mut world = self.clone();
            let column = &mut world.columns[at];
            let view = column.node.look(NOW, false);
            if let View::Unmarked(_) = view {
                column.node.look(NOW, true);
                next.push(world);
                continue;
            }
            let View::Marked { waited, memory } = view else { continue };
            if !column.looked_after {
                let quiet = plan(&[view], 0, TTL);
                if !matches!(quiet, Plan::After(_)) || case.without == Some(Part::Quiet) {
                    let others = self.columns.iter().any(|column| column.looked_after);
                    column.looked_after = true;
                    if !others {
                        next.push(world);
                    }
                }
                continue;
            }
            let mut views = vec![View::Unknown; self.columns.len()];
            let waited = if case.without == Some(Part::Quiet) { waited + TTL * 9 } else { waited };
            views[at] = View::Marked { waited, memory };
            for (other, column) in self.columns.iter().enumerate() {
                if let Some((counter, busy)) = column.seen {
                    views[other] = View::Voting(super::readmit::Memory { counter, busy });
                } else if other != at
                    && let View::Voting(memory) = column.node.clone().look(NOW, false)
                {
                    let mut world = self.clone();
                    world.columns[other].seen = Some((memory.counter, memory.busy));
                    next.push(world);
                }
            }
            if let Plan::Admit { wait, counter, floor: false } = plan(&views, at, TTL) {
                let counter = if case.without == Some(Part::Restoring) { 0 } else { counter };
                world.columns[at].node.admit(NOW, wait, counter);
                world.columns[at].looked_after = false;
                world.columns.iter_mut().for_each(|column| column.seen = None);
                next.push(world);
            }
        }
    }

    /// A moment goes by: everything that is counted in time comes nearer.
    fn tick(&mut self) {
        let earlier = |time: &mut Time| *time = time.saturating_sub(TICK);
        for column in &mut self.columns {
            for node in std::iter::once(&mut column.node).chain(column.old.as_deref_mut()) {
                if let Some((_, until)) = &mut node.lock {
                    earlier(until);
                }
                earlier(&mut node.busy);
                match &mut node.record {
                    Some(Record {
                        standing: Standing::Marked(at) | Standing::From(at), ..
                    }) => {
                        earlier(at);
                    }
                    None => {}
                }
            }
        }
        for attempt in &mut self.attempts {
            match attempt {
                Attempt::Asking(time, _)
                | Attempt::Raising(time, _)
                | Attempt::Holding(time, _) => {
                    earlier(time);
                }
                Attempt::Renewing(since, until) => {
                    earlier(since);
                    earlier(until);
                }
                Attempt::NotBegun | Attempt::Over => {}
            }
        }
    }

    /// The same for all states that mean the same.
    fn tidy(&mut self) {
        let votes =
            |column: &Column| matches!(column.node.clone().look(NOW, false), View::Voting(_));
        // Nobody will ask for how long leases last.
        let settled = self.faults == 0 && self.columns.iter().all(votes);
        for column in &mut self.columns {
            if self.faults == 0 {
                column.old = None;
            }
            for node in std::iter::once(&mut column.node).chain(column.old.as_deref_mut()) {
                node.lock = node.held(NOW);
                if node.busy <= NOW || settled {
                    node.busy = Time::ZERO;
                }
                match &mut node.record {
                    Some(Record { standing: Standing::From(at), .. }) if *at <= NOW => {
                        *at = Time::ZERO;
                    }
                    Some(Record { standing: Standing::Marked(at), .. }) => {
                        *at = (*at).max(NOW.saturating_sub(TICK * 3));
                    }
                    _ => {}
                }
            }
            let same =
                column.node.record.as_ref().is_none_or(|record| record.run == column.node.run);
            if same && column.old.is_none() {
                column.node.run = 0;
                column.node.record.iter_mut().for_each(|record| record.run = 0);
            }
        }
        for (who, attempt) in self.attempts.iter_mut().enumerate() {
            match attempt {
                Attempt::Holding(until, _) | Attempt::Renewing(_, until) if *until <= NOW => {
                    // Over by itself; that it also releases adds nothing.
                    *attempt = Attempt::Over;
                }
                Attempt::Asking(since, _) | Attempt::Raising(since, _) => {
                    *since = (*since).max(NOW.saturating_sub(TTL));
                }
                _ => {}
            }
            if *attempt == Attempt::Over {
                for column in &mut self.columns {
                    let held = column.node.held(NOW).is_some_and(|(by, _)| by == value(who));
                    let old = column.old.as_ref().and_then(|old| old.held(NOW));
                    if !held && old.is_none_or(|(by, _)| by != value(who)) {
                        column.asked[who] = Asked::Left;
                    }
                }
            }
        }
        self.columns.sort_unstable();
    }
}

/// Until when a lease is valid that began then.
fn ends(since: Time) -> Time {
    let start = Instant::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(0));
    Duration::from_nanos(valid_until(start, TTL).as_nanos())
}

fn value(who: usize) -> u8 {
    u8::try_from(who).unwrap_or(u8::MAX)
}

/// Goes everywhere; how many states there are, or what went wrong first, if it is one of these.
fn explore(case: Case, looking_for: &[Wrong]) -> Result<usize, Wrong> {
    let mut first = World::new(case);
    first.tidy();
    let mut seen = HashSet::from([fingerprint(&first)]);
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        let steps = match world.steps(case) {
            Err(wrong) if looking_for.contains(&wrong) => return Err(wrong),
            steps => steps.unwrap_or_default(),
        };
        for next in steps {
            if seen.insert(fingerprint(&next)) {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

/// What stands for a state among those that were seen: the larger cases would not fit into memory. With
/// 128 bits, no two of a billion are likely to have the same one.
fn fingerprint(world: &World) -> u128 {
    let half = |which: u8| {
        let mut hasher = DefaultHasher::new();
        (which, world).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}
