//! The orders in which things go wrong for somebody.

use std::time::Duration;

use lockkeeper_cache::Strategy::{self, *};
use testkit::staleness::Kind;
use testkit::staleness::lab::{END, Moved};

use crate::Scene;
use crate::world::{INTENT, TTL};

/// A reader that has loaded and has not filled yet.
const LOADED: [&str; 2] = ["put", "fill"];

/// More than any actor has places.
const PLACES: usize = 9;

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// An actor goes on until it stands before this.
    To(&'static str, &'static str),
    /// An actor goes on until it has ended.
    Ends(&'static str),
    /// A reader goes on until it has loaded, and has not filled yet.
    Loads(&'static str),
    /// A writer goes on until it has committed, and stands before whatever it does next.
    Commits(&'static str),
    /// An actor dies where it stands.
    Dies(&'static str),
    /// Somebody reads the database itself, and finds this version.
    Witness(u64),
    /// The time of the second delete comes, and somebody does it.
    SecondDelete,
    /// So much time passes at the store.
    Passes(Duration),
    /// The store forgets everything.
    Empties,
    /// Commits fail from now on.
    CommitsFail,
    /// Loads see what is there now, until they are told otherwise.
    Lags,
    CatchesUp,
}

use Step::*;

/// What happens, and whom it harms.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub(crate) name: &'static str,
    /// Whether the value is in the cache at the beginning.
    warm: bool,
    steps: &'static [Step],
    /// Those that are harmed by it. None: two writers do it by hand, see there.
    pub(crate) harms: &'static [Strategy],
}

macro_rules! schedules {
    ($($name:ident = $warm:literal [$($step:expr),+] harms [$($harms:expr),*];)+) => {
        $(pub(crate) const $name: Schedule = Schedule {
            name: stringify!($name),
            warm: $warm,
            steps: &[$($step),+],
            harms: &[$($harms),*],
        };)+

        /// All of them.
        pub(crate) const ALL: &[Schedule] = &[$($name),+];
    };
}

schedules! {
    SLOW_READER = false [Loads("reader"), Ends("writer"), Ends("reader"), Ends("late reader")]
        harms [UpdateThenDelete, DeleteThenUpdate, DoubleDelete, TtlOnly];
    READER_BEFORE_THE_COMMIT = true
        [To("writer", "commit"), Ends("reader"), Ends("writer"), Ends("late reader")]
        harms [DeleteThenUpdate, DoubleDelete];
    SECOND_DELETE = true
        [To("writer", "commit"), Ends("reader"), Ends("writer"), Ends("late reader"), SecondDelete]
        harms [DoubleDelete];
    SLOWER_THAN_THE_SECOND_DELETE = false
        [Loads("reader"), Ends("writer"), SecondDelete, Ends("reader"), Ends("late reader")]
        harms [DoubleDelete];
    BETWEEN_COMMIT_AND_DELETE = true
        [Commits("writer"), Witness(2), Ends("reader"), Ends("writer"), Ends("late reader")]
        harms [UpdateThenDelete, FillLease];
    LOST_DELETE = true [Commits("writer"), Dies("writer"), Ends("reader"), Ends("late reader")]
        harms [UpdateThenDelete, FillLease];
    FILLED_UNTIL_ITS_TIME_ENDS = false
        [Loads("reader"), Ends("writer"), Ends("reader"), Ends("late reader"), Passes(TTL)]
        harms [UpdateThenDelete];
    TOLD_IN_THE_WRONG_ORDER = true
        [Commits("writer"), Ends("other writer"), Ends("writer"), Ends("late reader")] harms [];
    COMMITTED_IN_THE_WRONG_ORDER = true
        [To("writer", "commit"), Ends("other writer"), Ends("writer"), Ends("late reader")]
        harms [];
    SEEN_BEFORE_THE_COMMIT = true
        [To("writer", "commit"), Ends("reader"), Witness(1), Ends("writer"), Ends("late reader")]
        harms [DeleteThenUpdate, DoubleDelete];
    COMMIT_FAILS = true
        [CommitsFail, Ends("writer"), Ends("reader"), Passes(TTL), Ends("late reader")] harms [];
    DIES_BEFORE_THE_COMMIT = true
        [To("writer", "commit"), Ends("reader"), Dies("writer"), Passes(TTL), Ends("late reader")]
        harms [];
    LAGGING_REPLICA = true [Lags, Ends("writer"), Ends("reader"), CatchesUp, Ends("late reader")]
        harms [UpdateThenDelete];
    EMPTIED_STORE = false
        [Loads("reader"), Ends("writer"), Empties, Ends("reader"), Ends("late reader")]
        harms [UpdateThenDelete];
    FORGOTTEN_ANNOUNCEMENT = true
        [To("writer", "commit"), Empties, Loads("reader"), Ends("writer"), Ends("reader"),
            Ends("late reader")]
        harms [UpdateThenDelete];
    ANNOUNCEMENT_TOO_SHORT = true
        [To("writer", "commit"), Passes(INTENT), Loads("reader"), Ends("writer"), Ends("reader"),
            Ends("late reader")]
        harms [DeleteThenUpdate];
    WITHIN_A_BOUND = true
        [Ends("writer"), Ends("reader"), Passes(Duration::from_millis(1001)), Ends("late reader")]
        harms [BoundedStale];
}

impl Schedule {
    /// As it goes with this strategy.
    pub(crate) async fn play(&self, strategy: Strategy) -> Scene {
        let mut scene = if self.warm { Scene::warm(strategy) } else { Scene::new(strategy) };
        for step in self.steps {
            scene.step(*step).await;
        }
        scene
    }
}

impl Scene {
    async fn step(&mut self, step: Step) {
        match step {
            To(actor, place) => self.play(&[(actor, place)]).await,
            Ends(actor) => self.play(&[(actor, END)]).await,
            Loads(reader) => self.loads(reader).await,
            Commits(writer) => {
                self.play(&[(writer, "commit")]).await;
                self.reaches(writer, |_| true).await;
            }
            Dies(actor) => self.lab.kill(actor),
            Witness(version) => self.witness(version).await,
            SecondDelete => self.second_delete().await,
            Passes(time) => self.world.pass(time),
            Empties => self.world.store().clear(),
            CommitsFail => self.world.commit_fails(),
            Lags => self.world.replica_lags(),
            CatchesUp => self.world.replica_catches_up(),
        }
    }

    /// A reader goes on until it has loaded.
    pub(crate) async fn loads(&mut self, reader: &str) {
        self.reaches(reader, |place| LOADED.contains(&place)).await;
    }

    /// Somebody reads the database itself, and finds this version.
    pub(crate) async fn witness(&mut self, version: u64) {
        let witness = self.world.table(Bypass, None, None);
        let found = self.world.read(&witness, 50, Kind::Read).await;
        assert_eq!(found, version, "\n{}", self.story());
    }

    /// An actor goes on until it stands at such a place.
    async fn reaches(&mut self, actor: &str, does: impl Fn(&str) -> bool) {
        for _ in 0..PLACES {
            if let Moved::At(place) = self.lab.advance(actor).await
                && does(place)
            {
                return;
            }
        }
        panic!("{actor} does not come there:\n{}", self.story());
    }

    /// The time of the second delete comes, and somebody does it.
    pub(crate) async fn second_delete(&mut self) {
        self.world.pass(crate::world::SECOND_DELETE);
        let _sweeper = self.world.table(DoubleDelete, None, None);
        // The clock stands still, so this passes when it has nothing more to do.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
