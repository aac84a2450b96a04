//! The races of the textbooks, each in the order that makes it happen, and all orders.

use super::super::toy::{Strategy, World};
use super::*;
use crate::staleness::{Report, check};

/// Two readers and two writers, as far as the order has them.
async fn race(strategy: Strategy, warm: bool, order: &[(&str, &str)]) -> Report {
    let world = World::new(strategy, warm);
    let mut lab = Lab::new();
    for (session, name) in (1..).zip(["reader", "late"]) {
        let world = world.clone();
        lab.actor(name, move |at| async move { world.read(&at, session).await });
    }
    for (session, name) in (3..).zip(["writer", "other"]) {
        let world = world.clone();
        lab.actor(name, move |at| async move { world.write(&at, session).await });
    }
    lab.play(order).await;
    check(&world.history()).unwrap()
}

#[tokio::test]
async fn r1_a_late_fill_puts_the_old_value_back() {
    let order = [("reader", "has-read"), ("writer", END), ("reader", END), ("late", END)];
    for strategy in [
        Strategy::UpdateThenDelete,
        Strategy::DeleteThenUpdate,
        Strategy::DoubleDelete,
        Strategy::LeaseUnchecked,
    ] {
        let report = race(strategy, false, &order).await;
        assert_eq!((report.stale, report.stuck), (2, 1), "{strategy:?}: {:#?}", report.examples);
    }
    for strategy in [Strategy::Lease, Strategy::Intent] {
        let report = race(strategy, false, &order).await;
        assert!(report.is_clean(), "{strategy:?}: {:#?}", report.examples);
    }
    // The second delete waits for the fill: it heals, but who came before it was stale.
    let order = [
        ("reader", "has-read"),
        ("writer", "delay"),
        ("reader", END),
        ("late", END),
        ("writer", END),
    ];
    let report = race(Strategy::LateDoubleDelete, false, &order).await;
    assert_eq!((report.stale, report.stuck), (1, 0), "{:#?}", report.examples);
}

#[tokio::test]
async fn r2_a_fill_between_delete_and_commit_keeps_the_old_value() {
    let order = [("writer", "deleted"), ("reader", END), ("writer", END), ("late", END)];
    for strategy in [Strategy::DeleteThenUpdate, Strategy::LeaseDeleteThenUpdate] {
        let report = race(strategy, true, &order).await;
        assert_eq!((report.stale, report.stuck), (2, 1), "{strategy:?}: {:#?}", report.examples);
    }
    let order = [
        ("writer", "deleted"),
        ("reader", END),
        ("writer", "delay"),
        ("late", END),
        ("writer", END),
    ];
    for strategy in [Strategy::DoubleDelete, Strategy::LateDoubleDelete] {
        let report = race(strategy, true, &order).await;
        assert_eq!((report.stale, report.stuck), (1, 0), "{strategy:?}: {:#?}", report.examples);
    }
    let order = [("writer", "committed"), ("reader", END), ("writer", END), ("late", END)];
    for strategy in [Strategy::UpdateThenDelete, Strategy::Lease, Strategy::Intent] {
        let report = race(strategy, true, &order).await;
        assert!(report.is_clean(), "{strategy:?}: {:#?}", report.examples);
    }
}

#[tokio::test]
async fn r3_two_writers_put_their_values_in_the_wrong_order() {
    let order = [("writer", "committed"), ("other", END), ("writer", END), ("late", END)];
    let report = race(Strategy::UpdateThenSet, true, &order).await;
    assert_eq!((report.stale, report.stuck), (2, 1), "{:#?}", report.examples);
    for strategy in [Strategy::UpdateThenDelete, Strategy::Lease, Strategy::Intent] {
        let report = race(strategy, true, &order).await;
        assert!(report.is_clean(), "{strategy:?}: {:#?}", report.examples);
    }
}

/// The worst that any order does.
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

/// Two readers, of whom one comes twice, and a writer, in every order, with a cold and a warm cache.
async fn worst(strategy: Strategy, mortal: bool) -> Worst {
    let mut worst = Worst::Nothing;
    for warm in [false, true] {
        let scene = |lab: &mut Lab| {
            let world = World::new(strategy, warm);
            let [first, second, writer] = [world.clone(), world.clone(), world.clone()];
            lab.actor("first", |at| async move { first.read(&at, 1).await });
            lab.actor("second", |at| async move {
                second.read(&at, 2).await;
                at.step("again").await;
                second.peek(2);
            });
            lab.actor("writer", |at| async move { writer.write(&at, 3).await });
            if mortal {
                lab.may_die("writer");
            }
            world
        };
        let explored = explore(100_000, scene, |world, moves| {
            if moves.contains(&("writer", Moved::Killed)) {
                world.died(3);
            }
            let report = check(&world.history()).unwrap();
            worst = worst.max(Worst::of(&report));
            std::future::ready(())
        });
        let explored = explored.await;
        assert!(explored.complete && explored.deadlocks == 0, "{explored:?}");
    }
    worst
}

#[tokio::test]
async fn every_order_of_every_strategy() {
    for (strategy, expected) in [
        (Strategy::UpdateThenDelete, Worst::Stuck),
        (Strategy::DeleteThenUpdate, Worst::Stuck),
        (Strategy::UpdateThenSet, Worst::Stuck),
        (Strategy::DoubleDelete, Worst::Stuck),
        (Strategy::LateDoubleDelete, Worst::Stale),
        (Strategy::Lease, Worst::Wavers),
        (Strategy::LeaseUnchecked, Worst::Stuck),
        (Strategy::LeaseAckFirst, Worst::Stale),
        (Strategy::LeaseDeleteThenUpdate, Worst::Stuck),
        (Strategy::Intent, Worst::Nothing),
    ] {
        assert_eq!(worst(strategy, false).await, expected, "{strategy:?}");
    }
}

#[tokio::test]
async fn a_writer_that_dies_leaves_the_old_value_unless_it_marked_the_key() {
    assert_eq!(worst(Strategy::Lease, true).await, Worst::Stuck);
    assert_eq!(worst(Strategy::LateDoubleDelete, true).await, Worst::Stuck);
    assert_eq!(worst(Strategy::Intent, true).await, Worst::Nothing);
}
