//! The races of the notes on caches, each in the order that makes it happen, on the real tables: wrong where the
//! strategy is naive, right where it is not. Then all orders.
//!
//! An actor is a process of its own with a table of its own. It stops before each step at the store and before each
//! look at the database, and goes on when the schedule says so.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod anomalies;
mod gate;
mod orders;
mod schedules;
mod world;

use std::time::Duration;

use lockkeeper_cache::Strategy;
use testkit::staleness::lab::{Lab, Move};
use testkit::staleness::{Kind, Report};

use crate::world::World;

/// The clock stands still while anybody can move, so this passes at once when nobody can; longer than tables wait
/// between two looks at a key that another one loads.
const PATIENCE: Duration = Duration::from_millis(200);

/// Two readers and two writers of one strategy, as far as the schedule has them.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) lab: Lab,
    pub(crate) strategy: Strategy,
}

impl Scene {
    pub(crate) fn new(strategy: Strategy) -> Self {
        let (world, mut lab) = (World::new(), Lab::new());
        lab.patience(PATIENCE);
        for (session, name) in (10..).zip(["reader", "late reader"]) {
            let world = world.clone();
            lab.actor(name, move |at| async move {
                let table = world.table(strategy, Some(at), None);
                world.read(&table, session, Kind::Read).await;
            });
        }
        for (session, name) in (20..).zip(["writer", "other writer"]) {
            let world = world.clone();
            lab.actor(name, move |at| async move {
                let table = world.table(strategy, Some(at), None);
                world.write(&table, session).await;
            });
        }
        Self { world, lab, strategy }
    }

    /// With the value in the cache.
    pub(crate) fn warm(strategy: Strategy) -> Self {
        let scene = Self::new(strategy);
        let _ = scene.world.clone().warm();
        scene
    }

    pub(crate) async fn play(&mut self, schedule: &[(&str, &str)]) {
        self.lab.play(schedule).await;
    }

    pub(crate) async fn report(&mut self) -> Report {
        self.world.report(self.strategy).await
    }
}

/// For the one who reads a failed test.
pub(crate) fn story(moves: &[Move]) -> String {
    moves.iter().map(|(who, moved)| format!("{who}: {moved:?}\n")).collect()
}
