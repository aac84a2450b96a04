//! The lab on itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::random::Random;

mod races;

/// Actors of so many moves each, that write down who moved.
fn walkers(lab: &mut Lab, moves: [usize; 3]) -> Arc<Mutex<String>> {
    let said = Arc::new(Mutex::new(String::new()));
    for (name, moves) in ["a", "b", "c"].into_iter().zip(moves).filter(|(_, moves)| *moves > 0) {
        let said = Arc::clone(&said);
        lab.actor(name, move |at| async move {
            for _ in 1..moves {
                said.lock().push_str(name);
                at.step("on").await;
            }
            said.lock().push_str(name);
        });
    }
    said
}

fn ignore<T>(_: T, _: Vec<Move>) -> std::future::Ready<()> {
    std::future::ready(())
}

#[tokio::test]
async fn every_order_is_run_once() {
    for (moves, orders) in [([1, 0, 0], 1), ([2, 1, 0], 3), ([3, 3, 0], 20), ([2, 2, 2], 90)] {
        let mut seen = BTreeSet::new();
        let explored = explore(
            1000,
            |lab| walkers(lab, moves),
            |said, trail| {
                assert_eq!(trail.len(), moves.iter().sum::<usize>());
                assert!(seen.insert(said.lock().clone()), "{said:?} came twice");
                std::future::ready(())
            },
        );
        assert_eq!(explored.await, Explored { runs: orders, complete: true, deadlocks: 0 });
        assert_eq!(seen.len(), orders);
    }
}

#[tokio::test]
async fn too_many_orders_are_cut_off_and_said_to_be() {
    let cut = Explored { runs: 7, complete: false, deadlocks: 0 };
    assert_eq!(explore(7, |lab| walkers(lab, [2, 2, 2]), ignore).await, cut);
    let random = &mut Random::seeded();
    assert_eq!(wander(7, random, |lab| walkers(lab, [2, 2, 2]), ignore).await, cut);
}

#[tokio::test]
#[should_panic(expected = "the same beginning, another choice")]
async fn a_scene_that_is_not_all_there_is_is_refused() {
    let mut moves = 1;
    let scene = |lab: &mut Lab| {
        moves += 1;
        walkers(lab, [moves, 1, usize::from(moves > 3)])
    };
    explore(99, scene, ignore).await;
}

#[tokio::test]
async fn a_given_order_is_played_and_nobody_else_moves() {
    let mut lab = Lab::new();
    let said = walkers(&mut lab, [3, 2, 1]);
    lab.play(&[("a", "on"), ("b", "on"), ("a", END), ("b", END)]).await;
    assert_eq!(*said.lock(), "abaab");
    assert_eq!(lab.moves()[0], ("a", Moved::At("on")));
    assert_eq!(lab.moves().last(), Some(&("b", Moved::Done)));
}

#[tokio::test]
#[should_panic(expected = "a is Done before nowhere")]
async fn an_order_that_does_not_fit_the_script_is_refused() {
    let mut lab = Lab::new();
    walkers(&mut lab, [2, 0, 0]);
    lab.play(&[("a", "nowhere")]).await;
}

/// One that waits until the gate is opened.
fn waits(lab: &mut Lab) -> Arc<tokio::sync::Semaphore> {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let waited = Arc::clone(&gate);
    lab.actor("waits", |at| async move {
        waited.acquire().await.unwrap().forget();
        at.step("through").await;
    });
    gate
}

#[tokio::test]
async fn an_actor_that_waits_for_another_is_blocked_until_it_moved() {
    for patience in [None, Some(Duration::from_millis(5))] {
        let mut lab = Lab::new();
        if let Some(patience) = patience {
            lab.patience(patience);
        }
        let gate = waits(&mut lab);
        lab.actor("opens", |_| async move { gate.add_permits(1) });
        assert_eq!(lab.advance("waits").await, Moved::Blocked);
        assert_eq!(lab.advance("waits").await, Moved::Blocked);
        assert_eq!(lab.advance("opens").await, Moved::Done);
        assert_eq!(lab.advance("waits").await, Moved::At("through"));
        assert_eq!(lab.advance("waits").await, Moved::Done);
    }
}

#[tokio::test]
async fn actors_that_wait_for_ever_are_a_deadlock() {
    let explored = explore(9, waits, ignore).await;
    assert_eq!(explored, Explored { runs: 1, complete: true, deadlocks: 1 });
    let both = |lab: &mut Lab| {
        let gate = waits(lab);
        lab.actor("opens", |_| async move { gate.add_permits(1) });
    };
    let explored = explore(9, both, ignore).await;
    assert!(explored.complete && explored.deadlocks == 0, "{explored:?}");
}

#[tokio::test]
async fn an_actor_that_only_lets_others_go_first_is_not_blocked() {
    let mut lab = Lab::new();
    lab.actor("polite", |at| async move {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        at.step("here").await;
    });
    assert_eq!(lab.advance("polite").await, Moved::At("here"));
}

#[tokio::test]
async fn a_step_may_be_taken_in_another_task() {
    let mut lab = Lab::new();
    lab.patience(crate::wait::LONG);
    let (tell, told) = tokio::sync::oneshot::channel();
    lab.actor("caller", |at| async move {
        let load = tokio::spawn(async move {
            at.step("loads").await;
            tell.send(()).unwrap();
            at.step("loaded").await;
        });
        load.await.unwrap();
    });
    assert_eq!(lab.advance("caller").await, Moved::At("loads"));
    assert_eq!(lab.advance("caller").await, Moved::At("loaded"));
    told.await.unwrap();
    assert_eq!(lab.advance("caller").await, Moved::Done);
}

#[tokio::test]
async fn a_place_that_a_blocked_actor_comes_to_by_itself_is_not_passed() {
    let mut lab = Lab::new();
    lab.patience(Duration::from_millis(5));
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let waited = Arc::clone(&gate);
    let (tell, told) = tokio::sync::oneshot::channel();
    lab.actor("caller", |at| async move {
        let load = tokio::spawn(async move {
            waited.acquire().await.unwrap().forget();
            tell.send(()).unwrap();
            at.step("loads").await;
        });
        load.await.unwrap();
    });
    assert_eq!(lab.advance("caller").await, Moved::Blocked);
    gate.add_permits(1);
    told.await.unwrap();
    // The task stands at its place now, though nobody let the actor go.
    lab.patience(crate::wait::LONG);
    assert_eq!(lab.advance("caller").await, Moved::At("loads"));
    assert_eq!(lab.advance("caller").await, Moved::Done);
}

#[tokio::test]
async fn a_step_that_is_cancelled_is_left() {
    let mut lab = Lab::new();
    lab.actor("hasty", |at| async move {
        tokio::select! {
            biased;
            () = at.step("never") => unreachable!(),
            () = std::future::ready(()) => {}
        }
        at.step("next").await;
    });
    assert_eq!(lab.advance("hasty").await, Moved::At("next"));
    assert_eq!(lab.advance("hasty").await, Moved::Done);
}

#[tokio::test]
async fn one_that_may_die_dies_everywhere() {
    let mut ends = BTreeSet::new();
    let scene = |lab: &mut Lab| {
        let said = walkers(lab, [3, 0, 0]);
        lab.may_die("a");
        said
    };
    let explored = explore(99, scene, |said, moves| {
        let killed = moves.last() == Some(&("a", Moved::Killed));
        ends.insert((said.lock().clone(), killed));
        std::future::ready(())
    });
    assert_eq!(explored.await, Explored { runs: 4, complete: true, deadlocks: 0 });
    let expected = [("", true), ("a", true), ("aa", true), ("aaa", false)];
    assert_eq!(ends, expected.map(|(said, killed)| (said.to_owned(), killed)).into());
}
