//! Each anomaly that the notes describe, in the order in which it happens: on the strategies that have it, and, in the
//! same order, on those that do not. The notes are numbered as in `docs/CACHE-CONSISTENCY.md`.

use std::time::Duration;

use lockkeeper_cache::{Cache, Error, Redis, Store, Strategy};
use testkit::staleness::lab::{END, Moved};
use testkit::staleness::{Kind, Outcome};
use testkit::wait::soon;

use crate::gate::Gate;
use crate::schedules::{self, Schedule};
use crate::world::{INTENT, NAME, Rows, TTL, World};
use crate::{Scene, story};

/// The two that promise something.
const SAFE: [Strategy; 2] = [Strategy::FillLease, Strategy::Strong];

/// Those that do not set what is not committed.
const NOT_AHEAD: [Strategy; 4] =
    [Strategy::FillLease, Strategy::Strong, Strategy::UpdateThenDelete, Strategy::DeleteThenUpdate];

/// Who loads from a replica that lags gets what it has; nobody can help that. It does not stay.
const EXCEPT: &str = schedules::LAGGING_REPLICA.name;

/// Every schedule that harms another strategy, on the one that is taken where nothing is said.
#[tokio::test(start_paused = true)]
async fn the_default_has_none_of_these() {
    for schedule in schedules::ALL {
        let mut scene = schedule.play(Strategy::default()).await;
        let (name, report) = (schedule.name, scene.report().await);
        match name {
            EXCEPT => assert_eq!((report.stuck, report.lost), (0, 0), "{name}: {report:?}"),
            _ => scene.is_right().await,
        }
    }
}

/// The one that needs a real Redis.
#[tokio::test]
async fn the_default_loses_no_write_with_its_cache() {
    assert!(a_write_outlives_the_cache(Strategy::default()).await);
}

/// Else it would show nothing that the default is not harmed.
#[tokio::test(start_paused = true)]
async fn each_of_these_harms_somebody() {
    for Schedule { name, harms, .. } in schedules::ALL {
        // Those that harm none of our strategies are done by hand below.
        let by_hand = [
            "TOLD_IN_THE_WRONG_ORDER",
            "COMMITTED_IN_THE_WRONG_ORDER",
            "COMMIT_FAILS",
            "DIES_BEFORE_THE_COMMIT",
        ];
        assert_eq!(harms.is_empty(), by_hand.contains(name), "{name}");
    }
    for schedule in schedules::ALL {
        for strategy in schedule.harms {
            let mut scene = schedule.play(*strategy).await;
            let report = scene.report().await;
            let harmed = !report.is_linearizable() || report.stuck > 0;
            assert!(harmed, "{} {strategy}\n{}", schedule.name, scene.story());
        }
    }
}

impl Scene {
    /// Stale after it was acknowledged, and still so at the end.
    async fn is_stuck(&mut self) {
        let (strategy, report) = (self.strategy, self.report().await);
        assert!(report.stale > 0 && report.stuck > 0, "{strategy}: {report:?}\n{}", self.story());
    }

    /// Stale after it was acknowledged, but not for ever.
    async fn was_stale(&mut self) {
        let (strategy, report) = (self.strategy, self.report().await);
        assert!(report.stale > 0 && report.stuck == 0, "{strategy}: {report:?}\n{}", self.story());
    }

    /// Nothing is wrong with it.
    async fn is_right(&mut self) {
        let (strategy, report) = (self.strategy, self.report().await);
        assert!(report.is_clean(), "{strategy}: {:#?}\n{}", report.examples, self.story());
    }

    pub(crate) fn story(&self) -> String {
        story(self.lab.moves())
    }
}

/// 000 §8 (2) and 002 §2.1.2.1: a reader misses and loads the old value; a writer commits and deletes; the reader fills
/// the old value.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_fills_the_old_value_after_the_delete() {
    let race = schedules::SLOW_READER;
    race.play(Strategy::UpdateThenDelete).await.is_stuck().await;
    race.play(Strategy::DeleteThenUpdate).await.is_stuck().await;
    for strategy in SAFE {
        race.play(strategy).await.is_right().await;
    }
}

/// 002 §2.1.1: a writer deletes; a reader misses, loads the old value and fills it; the writer commits.
#[tokio::test(start_paused = true)]
async fn a_reader_fills_the_old_value_between_delete_and_commit() {
    let race = schedules::READER_BEFORE_THE_COMMIT;
    race.play(Strategy::DeleteThenUpdate).await.is_stuck().await;
    for strategy in [Strategy::UpdateThenDelete, Strategy::FillLease, Strategy::Strong] {
        race.play(strategy).await.is_right().await;
    }
}

/// 002 §2.1.2: between the commit and the delete, readers get the old value, although the database has the new one.
#[tokio::test(start_paused = true)]
async fn the_old_value_is_served_between_commit_and_delete() {
    for strategy in [Strategy::UpdateThenDelete, Strategy::FillLease, Strategy::Strong] {
        let mut scene = schedules::BETWEEN_COMMIT_AND_DELETE.play(strategy).await;
        let report = scene.report().await;
        // It was not acknowledged yet, so nobody is wrong; but time goes back for those who look at both.
        let expected = u64::from(strategy != Strategy::Strong);
        assert_eq!((report.stale, report.inverted), (0, expected), "{strategy}\n{}", scene.story());
    }
}

/// 002 §2.1.3: the writer dies, or cannot reach the cache, after the commit and before the delete.
#[tokio::test(start_paused = true)]
async fn a_delete_that_is_lost_leaves_the_old_value() {
    for (strategy, stuck) in
        [(Strategy::UpdateThenDelete, 1), (Strategy::FillLease, 1), (Strategy::Strong, 0)]
    {
        let mut scene = schedules::LOST_DELETE.play(strategy).await;
        let report = scene.report().await;
        assert_eq!(report.stuck, stuck, "{strategy}: {report:?}\n{}", scene.story());
        if stuck == 0 {
            assert!(report.is_linearizable(), "{strategy}: {:#?}", report.examples);
        }
    }
}

/// 000 §10 (1): the time to live is what heals it in the end.
#[tokio::test(start_paused = true)]
async fn what_a_slow_reader_filled_ends_with_its_time() {
    let race = schedules::FILLED_UNTIL_ITS_TIME_ENDS;
    race.play(Strategy::UpdateThenDelete).await.was_stale().await;
}

/// 002 §2.1.1: the second delete takes away what was filled between delete and commit; until then it was stale.
#[tokio::test(start_paused = true)]
async fn double_delete_is_stale_until_the_second_delete() {
    schedules::SECOND_DELETE.play(Strategy::DoubleDelete).await.was_stale().await;
    // Nobody does it.
    schedules::READER_BEFORE_THE_COMMIT.play(Strategy::DoubleDelete).await.is_stuck().await;
    // The writer dies after the commit: the second delete is written down by then.
    let mut scene = Scene::warm(Strategy::DoubleDelete);
    scene.play(&[("writer", "commit"), ("reader", END), ("writer", "schedule")]).await;
    scene.lab.kill("writer");
    scene.world.pass(INTENT);
    scene.second_delete().await;
    assert_eq!(scene.report().await.stuck, 0, "{}", scene.story());
}

/// 000 §8 (2) and 002 §2.1.1: a reader that is slower than the second delete. No delay is long enough.
#[tokio::test(start_paused = true)]
async fn a_reader_slower_than_the_second_delete_fills_the_old_value() {
    let race = schedules::SLOWER_THAN_THE_SECOND_DELETE;
    race.play(Strategy::DoubleDelete).await.is_stuck().await;
    for strategy in SAFE {
        race.play(strategy).await.is_right().await;
    }
}

/// 000 §9 (2) and 002 §2.2.3: under a lock the second writer waits for the first.
#[tokio::test(start_paused = true)]
async fn under_a_lock_two_writers_set_the_cache_one_after_the_other() {
    let mut scene = Scene::warm(Strategy::WriteThrough);
    scene.play(&[("writer", "put")]).await;
    assert_eq!(scene.lab.advance("other writer").await, Moved::Blocked);
    scene.play(&[("writer", END), ("other writer", END), ("late reader", END)]).await;
    scene.is_right().await;
}

/// 000 §9 (3): under a read-write lock the writer waits for the reader that fills.
#[tokio::test(start_paused = true)]
async fn under_a_read_write_lock_the_writer_waits_for_the_slow_reader() {
    let mut scene = Scene::new(Strategy::ReadWriteLock);
    scene.loads("reader").await;
    assert_eq!(scene.lab.advance("writer").await, Moved::Blocked);
    scene.play(&[("reader", END), ("writer", END), ("late reader", END)]).await;
    scene.is_right().await;
}

/// A writer by hand, in an order that no strategy has: sets the cache after the commit, or before it.
async fn sets(world: World, at: testkit::staleness::lab::At, session: u64, cache_first: bool) {
    let begun = world.begin(session, Kind::Write);
    let (rows, store) =
        (Rows::new(&world, Some(at.clone())), Gate::new(world.store(), Some(at), None));
    if cache_first {
        let entry = world.next_entry(session);
        store.put(NAME, &entry, TTL).await.unwrap();
        match rows.commit(session).await {
            Ok(version) => world.end(begun, Outcome::Ok, version, None),
            Err(_) => world.end(begun, Outcome::Fail, 0, None),
        }
    } else {
        let version = rows.commit(session).await.unwrap();
        store.put(NAME, &world.entry(version), TTL).await.unwrap();
        world.end(begun, Outcome::Ok, version, None);
    }
}

/// Readers as of update-then-delete, and two writers by hand.
fn by_hand(cache_first: bool) -> Scene {
    let mut scene = Scene::warm(Strategy::UpdateThenDelete);
    for (session, name) in (40..).zip(["one", "another"]) {
        let world = scene.world.clone();
        scene.lab.actor(name, move |at| sets(world, at, session, cache_first));
    }
    scene
}

/// 000 §8 (1) and 002 §2.2.2: two writers commit, and set the cache in the other order.
#[tokio::test(start_paused = true)]
async fn two_writers_set_the_cache_in_the_wrong_order() {
    let mut scene = by_hand(false);
    scene.play(&[("one", "put"), ("another", END), ("one", END), ("late reader", END)]).await;
    scene.is_stuck().await;
    for strategy in SAFE {
        schedules::TOLD_IN_THE_WRONG_ORDER.play(strategy).await.is_right().await;
    }
}

/// 002 §2.2.1: two writers set the cache, and commit in the other order.
#[tokio::test(start_paused = true)]
async fn two_writers_commit_in_the_wrong_order() {
    let mut scene = by_hand(true);
    // Both count on being the next one, so one of the two values that were cached never was.
    scene.play(&[("one", "commit"), ("another", "commit"), ("another", END), ("one", END)]).await;
    let cached = scene.world.cached().await;
    assert_eq!((cached, scene.world.truth()), (Some(41), 40), "{}", scene.story());
    scene.is_stuck().await;
    for strategy in SAFE {
        schedules::COMMITTED_IN_THE_WRONG_ORDER.play(strategy).await.is_right().await;
    }
}

/// 002 §2.2.2: between the commit and the set, readers get the old value, although the database has the new one.
#[tokio::test(start_paused = true)]
async fn the_old_value_is_served_between_commit_and_set() {
    let mut naive = by_hand(false);
    naive.play(&[("one", "put")]).await;
    naive.witness(2).await;
    naive.play(&[("reader", END), ("one", END), ("late reader", END)]).await;
    // A lock of writers does not help: who finds a value takes none.
    let locked = schedules::BETWEEN_COMMIT_AND_DELETE.play(Strategy::WriteThrough).await;
    let strong = schedules::BETWEEN_COMMIT_AND_DELETE.play(Strategy::Strong).await;
    for (mut scene, inverted) in [(naive, 1), (locked, 1), (strong, 0)] {
        let report = scene.report().await;
        let counts = (report.stale, report.inverted, report.stuck);
        assert_eq!(counts, (0, inverted, 0), "{}\n{}", scene.strategy, scene.story());
    }
}

/// 002 §2.2.1: between the set and the commit, readers get the new value, although the database has the old one.
#[tokio::test(start_paused = true)]
async fn the_new_value_is_served_before_it_is_committed() {
    let mut scene = by_hand(true);
    scene.play(&[("one", "commit"), ("reader", END)]).await;
    assert_eq!((scene.world.cached().await, scene.world.truth()), (Some(40), 0));
    scene.witness(1).await;
    scene.play(&[("one", END), ("late reader", END)]).await;
    let report = scene.report().await;
    // It is committed in the end, so it is not dirty; but time goes back for those who look at both.
    let counts = (report.dirty, report.inverted, report.stale, report.stuck);
    assert_eq!(counts, (0, 1, 0, 0), "{}", scene.story());
    for strategy in [Strategy::FillLease, Strategy::Strong, Strategy::UpdateThenDelete] {
        schedules::SEEN_BEFORE_THE_COMMIT.play(strategy).await.is_right().await;
    }
}

/// 002 §2.2.1: the cache is set, and the commit fails: readers get what never was, until it ends.
#[tokio::test(start_paused = true)]
async fn a_commit_that_fails_after_the_set_leaves_what_never_was() {
    let mut scene = by_hand(true);
    scene.world.commit_fails();
    scene.play(&[("one", END), ("reader", END)]).await;
    assert_eq!((scene.world.cached().await, scene.world.truth()), (Some(40), 0));
    scene.world.pass(TTL);
    scene.play(&[("late reader", END)]).await;
    assert_eq!(scene.world.cached().await, Some(0), "{}", scene.story());
    let report = scene.report().await;
    // Nobody goes back behind what never was.
    assert_eq!((report.dirty, report.inverted), (1, 0), "{}", scene.story());
    for strategy in NOT_AHEAD {
        schedules::COMMIT_FAILS.play(strategy).await.is_right().await;
    }
}

/// The same when the writer dies there. Nobody knows that its write failed, so it counts as done once it was read, and who
/// then gets the old value goes back.
#[tokio::test(start_paused = true)]
async fn a_writer_that_dies_between_set_and_commit_leaves_what_never_was() {
    let mut scene = by_hand(true);
    scene.play(&[("one", "commit"), ("reader", END)]).await;
    scene.lab.kill("one");
    assert_eq!((scene.world.cached().await, scene.world.truth()), (Some(40), 0));
    scene.world.pass(TTL);
    scene.play(&[("late reader", END)]).await;
    let report = scene.report().await;
    // The late reader, and the last look.
    assert_eq!((report.dirty, report.inverted), (0, 2), "{}", scene.story());
    for strategy in NOT_AHEAD {
        schedules::DIES_BEFORE_THE_COMMIT.play(strategy).await.is_right().await;
    }
}

/// 002 §2.2.2: the commit is done and the set is lost.
#[tokio::test(start_paused = true)]
async fn a_set_that_is_lost_leaves_the_old_value() {
    let mut scene = by_hand(false);
    scene.play(&[("one", "put")]).await;
    scene.lab.kill("one");
    scene.play(&[("reader", END), ("late reader", END)]).await;
    assert_eq!(scene.report().await.stuck, 1, "{}", scene.story());
    let mut scene = schedules::LOST_DELETE.play(Strategy::Strong).await;
    assert_eq!(scene.report().await.stuck, 0, "{}", scene.story());
}

/// A fill from a replica of the database that lags. Versions help: what is older than the last write is not filled.
#[tokio::test(start_paused = true)]
async fn a_replica_that_lags_fills_the_old_value() {
    for (strategy, stuck) in
        [(Strategy::UpdateThenDelete, 1), (Strategy::FillLease, 0), (Strategy::Strong, 0)]
    {
        let mut scene = schedules::LAGGING_REPLICA.play(strategy).await;
        let report = scene.report().await;
        // The reader got what the replica had; nobody can help that.
        assert!(report.stale > 0, "{strategy}: {report:?}");
        assert_eq!(report.stuck, stuck, "{strategy}: {report:?}\n{}", scene.story());
    }
}

/// The store forgets everything while a reader loads: its fill must not come back.
#[tokio::test(start_paused = true)]
async fn a_fill_after_the_store_was_emptied_brings_the_old_value() {
    let race = schedules::EMPTIED_STORE;
    race.play(Strategy::UpdateThenDelete).await.is_stuck().await;
    for strategy in SAFE {
        race.play(strategy).await.is_right().await;
    }
}

/// What `strong` cannot help: the store forgets that somebody writes, or the commit takes longer than it believes that. What a
/// reader fills then is served after the commit, until the write returns; or until it ends, if the writer dies first. A reader that is slower than
/// the write fills nothing: see the schedules.
#[tokio::test(start_paused = true)]
async fn without_its_announcement_the_old_value_is_served_until_the_write_returns() {
    let lost: [fn(&World); 2] = [|world| world.store().clear(), |world| world.pass(INTENT)];
    for (dies, passes, inverted, stuck) in [
        (false, Duration::ZERO, 1, 0),
        // The last look is one more.
        (true, Duration::ZERO, 2, 1),
        (true, TTL, 1, 0),
    ] {
        for (way, lose) in lost.iter().enumerate() {
            let mut scene = Scene::warm(Strategy::Strong);
            scene.play(&[("writer", "commit")]).await;
            lose(&scene.world);
            scene.play(&[("reader", END), ("writer", "settle")]).await;
            scene.witness(2).await;
            scene.play(&[("late reader", END)]).await;
            match dies {
                true => scene.lab.kill("writer"),
                false => scene.play(&[("writer", END)]).await,
            }
            scene.world.pass(passes);
            let report = scene.report().await;
            let counts = (report.stale, report.inverted, report.stuck);
            let what = format!("{way}, dies: {dies}, {passes:?}");
            assert_eq!(counts, (0, inverted, stuck), "{what}\n{}", scene.story());
        }
    }
}

/// Whether a write is there after the cache died that it was made with; a write that waits in the cache is not.
async fn a_write_outlives_the_cache(strategy: Strategy) -> bool {
    let behind = strategy == Strategy::WriteBehind;
    let mut server = testkit::server::redis(&[]).await;
    let store = Redis::connect_warm(&format!("redis://{}", server.address())).await.unwrap();
    let (world, key) = (World::new(), "k".to_owned());
    let table =
        Cache::builder(store).namespace("cache").table(strategy, Rows::new(&world, None)).unwrap();
    let patient = async || loop {
        match table.read(&key).await {
            // While it is away, nobody reads past a change that may wait there.
            Err(Error::Busy { retry_after }) => tokio::time::sleep(retry_after).await,
            read => return read.unwrap().value,
        }
    };
    let read = async || soon("a value", patient()).await;
    assert_eq!(read().await.as_deref(), Some(&0), "{strategy}");
    if behind {
        // So that it has to wait.
        world.commit_fails();
    }
    table.write(&key, Some(7)).await.unwrap();
    assert_eq!(read().await.as_deref(), Some(&7), "{strategy}");
    // It keeps nothing on disk.
    server.restart().await;
    let after = read().await;
    assert_eq!(after.as_deref(), Some(&world.truth()), "{strategy}");
    world.truth() == 7
}

/// 002 §1.2: what is written to the cache first is lost with it, if it dies before the database has it.
#[tokio::test]
async fn a_cache_that_dies_before_it_wrote_back_loses_the_write() {
    for strategy in [Strategy::WriteBehind, Strategy::FillLease, Strategy::Strong] {
        let there = a_write_outlives_the_cache(strategy).await;
        assert_eq!(there, strategy != Strategy::WriteBehind, "{strategy}");
    }
}

/// Within its bound, on purpose.
#[tokio::test(start_paused = true)]
async fn bounded_stale_serves_the_old_value_until_its_bound() {
    let mut scene = schedules::WITHIN_A_BOUND.play(Strategy::BoundedStale).await;
    scene.was_stale().await;
    assert_eq!(scene.report().await.stale, 1, "{}", scene.story());
}
