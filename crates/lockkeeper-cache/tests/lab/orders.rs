//! All orders of readers and writers, and the worst that any of them does.

use std::sync::Arc;

use lockkeeper_cache::Strategy;
use parking_lot::Mutex;
use testkit::random::Random;
use testkit::staleness::lab::{Lab, Move, explore, wander};
use testkit::staleness::{Kind, Report};

use crate::gate::Mutant;
use crate::world::World;
use crate::{PATIENCE, story};

/// More orders than this are not run.
const MOST: usize = 60_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worst {
    Nothing,
    /// Old and new by turns, but only while the write is under way.
    Wavers,
    /// Old after the write was acknowledged.
    Stale,
    /// Old for as long as it is cached.
    Stuck,
}

impl Worst {
    const fn of(report: &Report) -> Self {
        match report {
            Report { stuck: 1.., .. } => Self::Stuck,
            Report { stale: 1.., .. } => Self::Stale,
            report if report.is_linearizable() => Self::Nothing,
            _ => Self::Wavers,
        }
    }
}

/// Who is there.
#[derive(Clone, Copy, Debug)]
struct Cast {
    strategy: Strategy,
    mutant: Option<Mutant>,
    readers: usize,
    writers: usize,
    /// Somebody asks the database itself: who reads after that must not be behind it.
    witness: bool,
    /// The first writer may die anywhere.
    mortal: bool,
}

impl Cast {
    const fn of(strategy: Strategy) -> Self {
        Self { strategy, mutant: None, readers: 1, writers: 1, witness: true, mortal: false }
    }

    fn enter(self, lab: &mut Lab, warm: bool) -> World {
        let world = if warm { World::new().warm() } else { World::new() };
        lab.patience(PATIENCE);
        let Self { strategy, mutant, .. } = self;
        let readers = (10..).zip(["first reader", "second reader"]);
        for (session, name) in readers.take(self.readers) {
            let world = world.clone();
            lab.actor(name, move |at| async move {
                let table = world.table(strategy, Some(at), mutant);
                world.read(&table, session, Kind::Read).await;
            });
        }
        let writers = (20..).zip(["first writer", "second writer"]);
        for (session, name) in writers.take(self.writers) {
            let world = world.clone();
            lab.actor(name, move |at| async move {
                let table = world.table(strategy, Some(at), mutant);
                world.write(&table, session).await;
            });
        }
        if self.witness {
            let world = world.clone();
            lab.actor("witness", move |at| async move {
                let table = world.table(Strategy::Bypass, Some(at), None);
                world.read(&table, 30, Kind::Read).await;
            });
        }
        if self.mortal {
            lab.may_die("first writer");
        }
        world
    }

    /// The worst of all orders, from an empty cache and from a warm one.
    async fn worst(self) -> Worst {
        let worst = Arc::new(Mutex::new((Worst::Nothing, String::new())));
        for warm in [false, true] {
            let enter = |lab: &mut Lab| self.enter(lab, warm);
            let explored = explore(MOST, enter, |world, moves| self.judge(world, moves, &worst));
            let explored = explored.await;
            eprintln!("{self:?}: {explored:?}");
            assert!(explored.complete && explored.deadlocks == 0, "{self:?}: {explored:?}");
        }
        let worst = worst.lock();
        eprintln!("{:?}:\n{}", worst.0, worst.1);
        worst.0
    }

    /// The worst of so many orders.
    async fn worst_of(self, runs: usize) -> Worst {
        let worst = Arc::new(Mutex::new((Worst::Nothing, String::new())));
        let random = &mut Random::seeded();
        for warm in [false, true] {
            let enter = |lab: &mut Lab| self.enter(lab, warm);
            let judge = |world, moves| self.judge(world, moves, &worst);
            assert_eq!(wander(runs, random, enter, judge).await.deadlocks, 0);
        }
        let worst = worst.lock();
        eprintln!("{:?}:\n{}", worst.0, worst.1);
        worst.0
    }

    fn judge(
        self,
        world: World,
        moves: Vec<Move>,
        worst: &Arc<Mutex<(Worst, String)>>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let worst = Arc::clone(worst);
        async move {
            let report = world.report(self.strategy).await;
            assert_eq!(report.dirty, 0, "{self:?}\n{}", story(&moves));
            let found = Worst::of(&report);
            let mut worst = worst.lock();
            if found > worst.0 {
                *worst = (found, story(&moves));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn in_no_order_is_a_fill_lease_stale() {
    let two = Cast { readers: 2, witness: false, ..Cast::of(Strategy::FillLease) };
    assert_eq!(two.worst().await, Worst::Nothing);
    // Between the commit and the invalidation the old value is served, and the database has the new one.
    assert_eq!(Cast::of(Strategy::FillLease).worst().await, Worst::Wavers);
}

#[tokio::test(start_paused = true)]
async fn in_no_order_is_strong_anything_but_the_database() {
    let two = Cast { readers: 2, witness: false, ..Cast::of(Strategy::Strong) };
    assert_eq!(two.worst().await, Worst::Nothing);
    assert_eq!(Cast::of(Strategy::Strong).worst().await, Worst::Nothing);
}

#[tokio::test(start_paused = true)]
async fn in_no_order_of_two_writers_either() {
    let two = |strategy| Cast { writers: 2, witness: false, ..Cast::of(strategy) };
    assert_eq!(two(Strategy::FillLease).worst().await, Worst::Nothing);
}

/// All of them would be millions.
#[tokio::test(start_paused = true)]
async fn nor_in_some_orders_of_two_writers_and_a_witness() {
    let strong = Cast { writers: 2, ..Cast::of(Strategy::Strong) };
    assert_eq!(strong.worst_of(2000).await, Worst::Nothing);
    let two = |strategy| Cast { readers: 2, writers: 2, ..Cast::of(strategy) };
    assert_eq!(two(Strategy::FillLease).worst_of(1000).await, Worst::Wavers);
    assert_eq!(two(Strategy::Strong).worst_of(1000).await, Worst::Nothing);
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_dies_anywhere_leaves_the_old_value_unless_it_was_announced() {
    let mortal = |strategy| Cast { mortal: true, ..Cast::of(strategy) };
    assert_eq!(mortal(Strategy::FillLease).worst().await, Worst::Stuck);
    assert_eq!(mortal(Strategy::Strong).worst().await, Worst::Nothing);
}

#[tokio::test(start_paused = true)]
async fn in_some_order_the_naive_ones_stay_stale() {
    for strategy in [
        Strategy::UpdateThenDelete,
        Strategy::DeleteThenUpdate,
        Strategy::DoubleDelete,
        Strategy::TtlOnly,
    ] {
        assert_eq!(Cast::of(strategy).worst().await, Worst::Stuck, "{strategy}");
    }
    assert_eq!(Cast::of(Strategy::Bypass).worst().await, Worst::Nothing);
}

#[tokio::test(start_paused = true)]
async fn in_no_order_are_those_with_locks_stale() {
    assert_eq!(Cast::of(Strategy::WriteThrough).worst().await, Worst::Wavers);
    assert_eq!(Cast::of(Strategy::ReadWriteLock).worst().await, Worst::Nothing);
}

/// What the orders above would not notice they would not prove.
#[tokio::test(start_paused = true)]
async fn every_mutant_is_caught() {
    for (strategy, mutant, expected) in [
        (Strategy::FillLease, Mutant::FillsWithoutLease, Worst::Stuck),
        (Strategy::FillLease, Mutant::LosesInvalidations, Worst::Stuck),
        (Strategy::FillLease, Mutant::LeavesLeases, Worst::Stuck),
        (Strategy::Strong, Mutant::FillsWithoutLease, Worst::Stuck),
        (Strategy::Strong, Mutant::HidesWriters, Worst::Wavers),
    ] {
        let witness = mutant == Mutant::HidesWriters;
        let cast = Cast { mutant: Some(mutant), witness, ..Cast::of(strategy) };
        assert_eq!(cast.worst().await, expected, "{strategy}, {mutant:?}");
    }
}
