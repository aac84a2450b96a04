//! A race lab: scripts of several actors that run in exactly the order a test wants, or in every
//! order there is.
//!
//! # How it works
//!
//! 1. An actor is a future with named places in it: `at.step("after-read").await`.
//! 2. It stands still at each of them until the lab lets it go on, and only one actor goes on at a
//!    time. What lies between two places is done without anybody between.
//! 3. [`Lab::play`] runs one order, which is given; [`explore`] runs all of them, each with a scene
//!    of its own; [`wander`] runs random ones where all are too many.
//!
//! # What it promises
//!
//! The same order does the same again, as long as the actors share nothing with the world outside the
//! lab. Actors may talk to real servers: an actor that goes on is waited for. They may call
//! something that runs elsewhere: a step may be taken in another task, by a clone of the [`At`].
//!
//! # When it breaks
//!
//! An actor that waits for another one cannot reach its next place: it is [`Moved::Blocked`] and may
//! be let go on again when others have moved. Without servers and other tasks that is known at once;
//! with them it takes [`Lab::patience`]. Where only tasks of one runtime are involved whose clock is
//! paused, that is no time at all, and the same order still does the same again.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;

mod explore;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod toy;

pub use explore::{Explored, explore, wander};

/// So often others may go first until they have nothing to do but wait.
const SETTLE: usize = 16;

/// The place behind the last one.
pub const END: &str = "end";

/// How far an actor came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// It stands at this place.
    At(&'static str),
    /// It has ended.
    Done,
    /// It waits for something that another actor may do.
    Blocked,
    /// It was killed where it stood.
    Killed,
}

/// One move of a run, as it is told: who came where.
pub type Move = (&'static str, Moved);

/// What an actor and the lab know of each other.
#[derive(Debug, Default)]
struct Seat {
    stands: Option<&'static str>,
    actor: Option<Waker>,
    lab: Option<Waker>,
}

/// An actor's end of the lab.
#[derive(Clone, Debug)]
pub struct At {
    seat: Arc<Mutex<Seat>>,
}

impl At {
    /// A place: the actor stands here until the lab lets it go on. Cancel safe.
    pub async fn step(&self, name: &'static str) {
        Stop { seat: &self.seat, name, arrived: false }.await;
    }
}

/// The future of a step. Dropped, it leaves the place: what was cancelled stands nowhere.
struct Stop<'a> {
    seat: &'a Mutex<Seat>,
    name: &'static str,
    arrived: bool,
}

impl Future for Stop<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut seat = this.seat.lock();
        if !this.arrived {
            let other = seat.stands.replace(this.name);
            assert_eq!(other, None, "an actor is at {} and at another place", this.name);
            this.arrived = true;
            if let Some(lab) = seat.lab.take() {
                lab.wake();
            }
        } else if seat.stands.is_none() {
            this.arrived = false;
            return Poll::Ready(());
        }
        seat.actor = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        if self.arrived {
            self.seat.lock().stands = None;
        }
    }
}

struct Actor {
    name: &'static str,
    seat: Arc<Mutex<Seat>>,
    /// Gone when it has ended.
    script: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    mortal: bool,
    /// It has been let go and came nowhere.
    blocked: bool,
}

/// The actors of one run.
#[derive(Default)]
pub struct Lab {
    actors: Vec<Actor>,
    patience: Option<Duration>,
    moves: Vec<Move>,
}

impl fmt::Debug for Lab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.actors.iter().map(|actor| actor.name).collect();
        f.debug_struct("Lab").field("actors", &names).field("moves", &self.moves).finish()
    }
}

impl Lab {
    /// A lab for actors that wait for nothing but each other.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// For actors that talk to servers or use other tasks: they count as blocked only after this time.
    pub fn patience(&mut self, patience: Duration) {
        self.patience = Some(patience);
    }

    /// Adds an actor. It begins when it is first let go.
    pub fn actor<F>(&mut self, name: &'static str, script: impl FnOnce(At) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let seat = Arc::default();
        let script = Box::pin(script(At { seat: Arc::clone(&seat) }));
        self.actors.push(Actor { name, seat, script: Some(script), mortal: false, blocked: false });
    }

    /// Lets [`explore`] also kill this actor, at every place.
    pub fn may_die(&mut self, name: &str) {
        let at = self.place(name);
        self.actors[at].mortal = true;
    }

    fn place(&self, name: &str) -> usize {
        let place = self.actors.iter().position(|actor| actor.name == name);
        place.unwrap_or_else(|| panic!("there is no actor {name}"))
    }

    /// What happened so far.
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// Lets one actor go on to its next place.
    ///
    /// # Panics
    ///
    /// When it has ended, or there is no such actor.
    pub async fn advance(&mut self, name: &str) -> Moved {
        let at = self.place(name);
        self.go(at).await
    }

    /// Ends an actor where it stands, as a crash would.
    ///
    /// # Panics
    ///
    /// When there is no such actor.
    pub fn kill(&mut self, name: &str) {
        let at = self.place(name);
        self.end(at);
    }

    fn end(&mut self, at: usize) {
        self.actors[at].script = None;
        self.moves.push((self.actors[at].name, Moved::Killed));
    }

    /// Runs the actors in this order: each pair says who goes on, and to which place ([`END`] is the
    /// last one). Those who are not named stay where they are.
    ///
    /// # Panics
    ///
    /// When an actor ends or is blocked before it comes to its place: the schedule does not fit the
    /// script.
    pub async fn play(&mut self, order: &[(&str, &str)]) {
        for (name, place) in order {
            loop {
                match self.advance(name).await {
                    Moved::At(here) if here == *place => break,
                    Moved::Done if *place == END => break,
                    Moved::At(_) => {}
                    moved => panic!("{name} is {moved:?} before {place}: {:?}", self.moves),
                }
            }
        }
    }

    async fn go(&mut self, at: usize) -> Moved {
        let actor = &mut self.actors[at];
        let name = actor.name;
        assert!(actor.script.is_some(), "{name} has ended: {:?}", self.moves);
        // One that was blocked is on its way already: the place it may have come to is news.
        if !actor.blocked {
            let mut seat = actor.seat.lock();
            seat.stands = None;
            if let Some(waker) = seat.actor.take() {
                waker.wake();
            }
        }
        let moved = match self.patience {
            None => actor.until_quiet().await,
            Some(patience) => {
                let arrives = std::future::poll_fn(|cx| actor.poll(cx.waker()));
                tokio::time::timeout(patience, arrives).await.unwrap_or(Moved::Blocked)
            }
        };
        if self.patience.is_some() {
            // What the move brought about in other tasks, or what was to happen at the moment at which the patience
            // ended, happens before the next move.
            for _ in 0..SETTLE {
                tokio::task::yield_now().await;
            }
        }
        actor.blocked = moved == Moved::Blocked;
        self.moves.push((name, moved));
        moved
    }

    /// Those that have not ended.
    fn alive(&self) -> impl Iterator<Item = usize> {
        let actors = self.actors.iter().enumerate();
        actors.filter(|(_, actor)| actor.script.is_some()).map(|(at, _)| at)
    }
}

/// Remembers that somebody has a reason to go on.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Actor {
    fn poll(&mut self, waker: &Waker) -> Poll<Moved> {
        self.seat.lock().lab = Some(waker.clone());
        if let Some(script) = &mut self.script
            && script.as_mut().poll(&mut Context::from_waker(waker)).is_ready()
        {
            self.script = None;
            return Poll::Ready(Moved::Done);
        }
        match self.seat.lock().stands {
            Some(place) => Poll::Ready(Moved::At(place)),
            None => Poll::Pending,
        }
    }

    /// Goes on for as long as there is a reason to.
    async fn until_quiet(&mut self) -> Moved {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        loop {
            if let Poll::Ready(moved) = self.poll(&waker) {
                return moved;
            }
            // Who only lets others go first is woken by the runtime, and by it alone.
            tokio::task::yield_now().await;
            if !woken.0.swap(false, Ordering::SeqCst) {
                return Moved::Blocked;
            }
        }
    }
}
