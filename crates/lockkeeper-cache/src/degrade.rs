//! Switching a cache off and on again in the one order that serves nothing stale.
//!
//! # How it works
//!
//! Off: **reads off**, drain, **writes off**. While invalidations are not delivered nobody may read
//! what is in the cache, so reads go first, and are given time to end.
//!
//! On again: **writes on**, drain, **a new epoch**, **reads on**. What is in the cache missed the
//! invalidations of the time between; the new epoch makes all of it unreadable, and it must come after
//! writes are on, or what is invalidated between the two is missed as well.
//!
//! "Writes" are invalidations and fills. [`Degrade`] is pure: it says which [`Step`] is next, somebody
//! does it, among as many processes as share the cache, and says so.
//!
//! # What it promises
//!
//! - Reads are never on while writes are off.
//! - After a time in which an invalidation may have been lost, reads are on only after a new epoch
//!   that was begun after it, and after writes were on.
//! - Writes go off only when reads have been off for the drain.
//! - Whatever is asked for and however often that changes, a few steps lead there.
//!
//! Where nothing was lost no new epoch is needed, and the cache is still warm.
//!
//! # When it breaks
//!
//! - The drain is too short: a read that began before takes longer than it and serves what it found;
//!   or a writer that asked before waits longer than it until it commits. Ask after the commit.
//! - A lost invalidation is not told by [`Degrade::lost`]. One whose outcome is unknown is lost.
//! - A process that shares the cache and does not hear of it goes on reading. The one who does a step
//!   must know that all did it, or wait for as long as it takes until they must have noticed.
//!
//! # Cost
//!
//! Nothing while all is well but a look at two booleans. A new epoch makes the whole cache cold: have
//! a [limit](crate::limit) on loads.

use std::time::Duration;

use lockkeeper::clock::Instant;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The cache is used.
    On,
    /// It is not.
    Off,
}

/// One step on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Nobody reads from the cache any more.
    ReadsOff,
    /// Nobody invalidates or fills any more.
    WritesOff,
    /// Everybody invalidates and fills again.
    WritesOn,
    /// What is in the cache cannot be read any more.
    NewEpoch,
    /// Everybody reads again.
    ReadsOn,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// This; then [`Degrade::did`]. If it fails, it is next again.
    Do(Ticket),
    /// Nothing until then.
    Wait(Instant),
    /// Nothing: it is as it was asked for.
    Nothing,
}

/// A step to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    step: Step,
    /// Of the target it leads to. When that changes, what is under way counts for nothing.
    round: u64,
    /// A new epoch mends what was lost before it was begun, and no more.
    losses: u64,
}

impl Ticket {
    /// What to do.
    pub const fn step(&self) -> Step {
        self.step
    }
}

/// Whether a cache is read and written, and what is next to change that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Degrade {
    drain: Duration,
    target: Target,
    reads: bool,
    writes: bool,
    /// Since when all know what the last step changed.
    since: Option<Instant>,
    round: u64,
    losses: u64,
    mended: u64,
}

impl Degrade {
    /// On. The drain is as long as a read, or a write, may take at most. Longer: slower to change.
    pub const fn new(drain: Duration) -> Self {
        Self {
            drain,
            target: Target::On,
            reads: true,
            writes: true,
            since: None,
            round: 0,
            losses: 0,
            mended: 0,
        }
    }

    /// Whether the cache may be read.
    pub const fn reads(&self) -> bool {
        self.reads
    }

    /// Whether invalidations and fills are sent. Ask after the commit.
    pub const fn writes(&self) -> bool {
        self.writes
    }

    /// What was asked for last.
    pub const fn target(&self) -> Target {
        self.target
    }

    /// Asks for something else. Off: reads of this process are off at once.
    pub fn want(&mut self, target: Target) {
        if self.target != target {
            self.target = target;
            self.round += 1;
            self.since = None;
            self.reads &= target == Target::On;
        }
    }

    /// An invalidation was lost, or perhaps lost. Changes nothing by itself; but when reads have been
    /// off, they are not on again before a new epoch.
    pub fn lost(&mut self) {
        self.losses += 1;
    }

    /// What to do now.
    pub fn next(&self, now: Instant) -> Next {
        let (round, losses) = (self.round, self.losses);
        let next = |step| Next::Do(Ticket { step, round, losses });
        let drained = |step| match self.since.map(|since| since + self.drain) {
            Some(until) if now < until => Next::Wait(until),
            _ => next(step),
        };
        match (self.target, self.reads, self.writes) {
            (Target::Off, _, true) if self.since.is_none() => next(Step::ReadsOff),
            (Target::Off, _, true) => drained(Step::WritesOff),
            (Target::Off, _, false) | (Target::On, true, true) => Next::Nothing,
            (Target::On, _, false) => next(Step::WritesOn),
            (Target::On, false, true) if self.losses > self.mended => drained(Step::NewEpoch),
            (Target::On, false, true) => next(Step::ReadsOn),
        }
    }

    /// A step was done, by all whom it concerns. `false`: it came too late and counts for nothing.
    pub fn did(&mut self, ticket: Ticket, now: Instant) -> bool {
        let expected = match self.next(now) {
            Next::Do(next) => next.step == ticket.step && next.round == ticket.round,
            Next::Wait(_) | Next::Nothing => false,
        };
        if expected {
            match ticket.step {
                Step::ReadsOff => self.since = Some(now),
                Step::WritesOff => {
                    self.writes = false;
                    // From now on all of them are.
                    self.lost();
                }
                Step::WritesOn => {
                    self.writes = true;
                    self.since = Some(now);
                }
                Step::NewEpoch => self.mended = self.mended.max(ticket.losses),
                Step::ReadsOn => self.reads = true,
            }
        }
        expected
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const DRAIN: Duration = Duration::from_secs(2);
    const TICK: Duration = Duration::from_secs(1);

    fn at(ticks: u32) -> Instant {
        Instant::from_nanos(1) + ticks * TICK
    }

    /// Does what is next until there is nothing, and says what that was.
    fn run(degrade: &mut Degrade, now: &mut Instant) -> Vec<Step> {
        let mut steps = Vec::new();
        loop {
            match degrade.next(*now) {
                Next::Do(ticket) => {
                    assert!(degrade.did(ticket, *now));
                    steps.push(ticket.step);
                }
                Next::Wait(until) => *now = until,
                Next::Nothing => return steps,
            }
        }
    }

    #[test]
    fn off_and_on_in_order() {
        let (mut degrade, mut now) = (Degrade::new(DRAIN), at(0));
        assert_eq!(run(&mut degrade, &mut now), []);
        degrade.want(Target::Off);
        assert!(!degrade.reads() && degrade.writes());
        assert_eq!(run(&mut degrade, &mut now), [Step::ReadsOff, Step::WritesOff]);
        assert_eq!(now, at(2), "reads were given time to end");
        assert!(!degrade.reads() && !degrade.writes());
        degrade.want(Target::On);
        assert!(!degrade.reads() && !degrade.writes());
        let steps = run(&mut degrade, &mut now);
        assert_eq!(steps, [Step::WritesOn, Step::NewEpoch, Step::ReadsOn]);
        assert_eq!(now, at(4), "writes were given time to end");
        assert!(degrade.reads() && degrade.writes());
    }

    #[test]
    fn a_short_failure_in_which_nothing_was_lost_leaves_the_cache_warm() {
        let (mut degrade, mut now) = (Degrade::new(DRAIN), at(0));
        degrade.want(Target::Off);
        degrade.want(Target::On);
        assert_eq!(run(&mut degrade, &mut now), [Step::ReadsOn]);
    }

    #[test]
    fn a_lost_invalidation_needs_a_new_epoch() {
        let (mut degrade, mut now) = (Degrade::new(DRAIN), at(0));
        degrade.want(Target::Off);
        degrade.lost();
        degrade.want(Target::On);
        assert_eq!(run(&mut degrade, &mut now), [Step::NewEpoch, Step::ReadsOn]);
    }

    #[test]
    fn what_is_lost_while_the_epoch_is_made_needs_another() {
        let (mut degrade, mut now) = (Degrade::new(DRAIN), at(0));
        degrade.want(Target::Off);
        degrade.lost();
        degrade.want(Target::On);
        let Next::Do(ticket) = degrade.next(now) else { panic!("nothing to do") };
        assert_eq!(ticket.step(), Step::NewEpoch);
        degrade.lost();
        assert!(degrade.did(ticket, now));
        assert_eq!(run(&mut degrade, &mut now), [Step::NewEpoch, Step::ReadsOn]);
    }

    #[test]
    fn a_step_for_a_target_of_before_counts_for_nothing() {
        let (mut degrade, now) = (Degrade::new(Duration::ZERO), at(0));
        degrade.want(Target::Off);
        let Next::Do(reads_off) = degrade.next(now) else { panic!("nothing to do") };
        degrade.want(Target::On);
        degrade.want(Target::Off);
        assert!(!degrade.did(reads_off, now));
    }

    /// One history, and what an onlooker knows of it.
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct World {
        degrade: Degrade,
        ticks: u32,
        held: Option<Ticket>,
        /// Something was lost, and no new epoch has been begun since with writes on.
        stale: bool,
        /// A new epoch is under way that mends all that was lost.
        mends: bool,
        reads_off_at: Option<u32>,
    }

    impl World {
        fn play(&self, event: u32) -> Option<Self> {
            let mut world = self.clone();
            let now = at(world.ticks);
            match event {
                0 => world.degrade.want(Target::Off),
                1 => world.degrade.want(Target::On),
                2 => {
                    world.degrade.lost();
                    (world.stale, world.mends) = (true, false);
                }
                3 => world.ticks += 1,
                4 => {
                    let Next::Do(ticket) = world.degrade.next(now) else { return None };
                    world.held = Some(ticket);
                    if ticket.step == Step::NewEpoch {
                        assert!(world.degrade.writes(), "an epoch that misses what comes after");
                        world.mends = true;
                    }
                }
                5 => {
                    let ticket = world.held.take()?;
                    if world.degrade.did(ticket, now) && ticket.step == Step::NewEpoch {
                        world.stale &= !world.mends;
                    }
                }
                _ => {
                    // The same, but it is still under way elsewhere.
                    let ticket = world.held?;
                    if world.degrade.did(ticket, now) && ticket.step == Step::NewEpoch {
                        world.stale &= !world.mends;
                    }
                }
            }
            world.look(self);
            Some(world)
        }

        fn look(&mut self, before: &Self) {
            let (reads, writes) = (self.degrade.reads(), self.degrade.writes());
            assert!(writes || !reads, "read while invalidations are not sent");
            if !writes {
                (self.stale, self.mends) = (true, false);
            }
            if reads && !before.degrade.reads() {
                assert!(!self.stale, "reads on without a new epoch");
            }
            if !reads && before.degrade.reads() {
                self.reads_off_at = Some(self.ticks);
            }
            if !writes && before.degrade.writes() {
                let off = self.reads_off_at.expect("reads go first");
                assert!(at(self.ticks).since(at(off)) >= DRAIN, "reads were given no time to end");
            }
        }

        /// From anywhere, a few steps lead to what is asked for.
        fn ends(&self) {
            for target in [Target::On, Target::Off] {
                let (mut degrade, mut now) = (self.degrade.clone(), at(self.ticks));
                degrade.want(target);
                assert!(run(&mut degrade, &mut now).len() <= 3);
                let on = target == Target::On;
                assert_eq!((degrade.reads(), degrade.writes()), (on, on));
            }
        }
    }

    /// Every order of events, up to a length in which it goes off and on again and then some.
    #[test]
    fn every_history_keeps_the_promises() {
        const LENGTH: u32 = 14;
        let (degrade, held) = (Degrade::new(DRAIN), None);
        let first =
            World { degrade, ticks: 0, held, stale: false, mends: false, reads_off_at: None };
        let (mut seen, mut worlds) = (HashSet::from([first.clone()]), vec![first]);
        for _ in 0..LENGTH {
            let mut later = Vec::new();
            for world in worlds {
                for event in 0..7 {
                    // More of these than two show nothing new, and would be many.
                    let plenty = (event == 2 && world.degrade.losses > 2)
                        || (event < 2 && world.degrade.round > 4)
                        || (event == 3 && world.ticks > 5);
                    if plenty {
                        continue;
                    }
                    let Some(next) = world.play(event) else { continue };
                    if seen.insert(next.clone()) {
                        next.ends();
                        later.push(next);
                    }
                }
            }
            worlds = later;
        }
        let full = |world: &&World| world.degrade.reads() && world.degrade.mended > 0;
        assert!(seen.iter().filter(full).count() > 100, "off and on again was not reached");
    }
}
