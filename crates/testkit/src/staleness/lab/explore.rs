//! All orders of a scene, one after the other, each from the beginning.

use std::future::Future;

use super::{Lab, Move, Moved};
use crate::random::Random;

/// What was run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explored {
    /// So many orders.
    pub runs: usize,
    /// There are no others.
    pub complete: bool,
    /// So many of them ended with actors that wait for each other.
    pub deadlocks: usize,
}

/// Runs every order of a scene, but not more than `most`. `scene` sets it up and returns what `judge`
/// wants to look at when nobody can move any more, with the moves that were made.
///
/// Costs as many runs as there are orders: three actors of three moves have 1680, of four 34650.
///
/// # Panics
///
/// When the same beginning leads to different choices: the scene is not all there is.
pub async fn explore<T, F>(
    most: usize,
    mut scene: impl FnMut(&mut Lab) -> T + Send,
    mut judge: impl FnMut(T, Vec<Move>) -> F + Send,
) -> Explored
where
    T: Send,
    F: Future<Output = ()> + Send,
{
    let mut explored = Explored::default();
    // At each turn, what was chosen and out of how many.
    let mut path: Vec<(usize, usize)> = Vec::new();
    while explored.runs < most {
        let mut lab = Lab::new();
        let world = scene(&mut lab);
        let mut turn = 0;
        let ended = run(&mut lab, |options| {
            if turn == path.len() {
                path.push((0, options));
            }
            let (chosen, before) = path[turn];
            assert_eq!(options, before, "the same beginning, another choice at turn {turn}");
            turn += 1;
            chosen
        });
        explored.deadlocks += usize::from(!ended.await);
        explored.runs += 1;
        judge(world, lab.moves).await;
        while path.pop_if(|(chosen, options)| *chosen + 1 == *options).is_some() {}
        match path.last_mut() {
            Some((chosen, _)) => *chosen += 1,
            None => {
                explored.complete = true;
                break;
            }
        }
    }
    explored
}

/// Runs a scene in so many random orders.
pub async fn wander<T, F>(
    runs: usize,
    random: &mut Random,
    mut scene: impl FnMut(&mut Lab) -> T + Send,
    mut judge: impl FnMut(T, Vec<Move>) -> F + Send,
) -> Explored
where
    T: Send,
    F: Future<Output = ()> + Send,
{
    let mut explored = Explored::default();
    while explored.runs < runs {
        let mut lab = Lab::new();
        let world = scene(&mut lab);
        let ended = run(&mut lab, |options| {
            usize::try_from(random.below(options as u64)).unwrap_or_default()
        });
        explored.deadlocks += usize::from(!ended.await);
        explored.runs += 1;
        judge(world, lab.moves).await;
    }
    explored
}

#[derive(Clone, Copy)]
enum Choice {
    Go(usize),
    Kill(usize),
}

/// One run to its end; whether everybody came there.
async fn run(lab: &mut Lab, mut choose: impl FnMut(usize) -> usize + Send) -> bool {
    // Those who wait for somebody else to move.
    let mut waits = vec![false; lab.actors.len()];
    loop {
        let goes = lab.alive().filter(|at| !waits[*at]).map(Choice::Go);
        let mut choices: Vec<_> = goes.collect();
        if choices.is_empty() {
            return lab.alive().next().is_none();
        }
        choices.extend(lab.alive().filter(|at| lab.actors[*at].mortal).map(Choice::Kill));
        let moved = match choices[choose(choices.len())] {
            Choice::Kill(at) => {
                lab.end(at);
                Moved::Killed
            }
            Choice::Go(at) => {
                let moved = lab.go(at).await;
                waits[at] = moved == Moved::Blocked;
                moved
            }
        };
        if moved != Moved::Blocked {
            waits.fill(false);
        }
    }
}
