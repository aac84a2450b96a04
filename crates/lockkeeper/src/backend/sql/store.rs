//! Steps on rows: all that this process asks of one name at a time is one step.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::WAITER_LEASE;
use super::attempt::Attempt;
use super::dialect::Dialect;
use super::fault::{Fault, READ_ONLY};
use super::hub::{Hub, Key};
use super::pool::Pool;
use super::row::{ClientId, Known, Stored};
use crate::clock::Instant;
use crate::error::Result;
use crate::model::World;
use crate::owner::{self, RequestId};
use crate::undo::UNDOING;

/// How often to try again while others are faster.
const TRIES: u32 = 60;
/// How often to try again when a connection breaks.
const BREAKS: u32 = 6;
/// The first and the longest pause before trying again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// No new try after this.
const STEP_TIME: Duration = Duration::from_secs(4);
/// A write that reaches the server later than this does nothing.
pub(super) const LATE: Duration = Duration::from_secs(10);
/// How long a write on a connection that was given up may still take effect: it also waits for locks.
const DOUBT: Duration = LATE.checked_add(Duration::from_secs(5)).unwrap();
/// So many requests for one name are one step at most: their tokens must fit into one epoch.
const AT_ONCE: usize = 1000;
/// Between two tries to undo what a request left behind.
const UNDO_PAUSE: Duration = Duration::from_millis(200);

/// What a step may take for granted, so that one statement is enough if it is so.
pub(super) enum Guess {
    Nothing,
    /// The name has no row.
    Absent,
    /// The row is as it was left.
    Left(Known, Arc<Stored>),
}

/// What is known after a step.
#[derive(Clone, Debug)]
pub(super) struct After {
    /// From before the statement was sent that told the server's clock.
    pub(super) sent: Instant,
    /// That clock; the times of the state count by it.
    pub(super) now: Instant,
    /// How many statements it took.
    pub(super) statements: u32,
    /// The row, if there is nothing but one hold in it.
    pub(super) sole: Option<(Known, Arc<Stored>)>,
}

impl After {
    /// The row, if there is nothing in it but the hold of this request. Of the whole step: others who
    /// were granted in it are not overlooked.
    pub(super) fn alone(&self, id: RequestId) -> Option<(Known, Arc<Stored>)> {
        self.sole.clone().filter(|(_, stored)| stored.model.is_only(id))
    }
}

pub(super) struct Store<D: Dialect> {
    pub(super) pool: Arc<Pool<D>>,
    pub(super) hub: Arc<Hub>,
    /// What waits for the step under way on a name to end.
    desks: Mutex<HashMap<Key, Vec<Asked>>>,
    /// Names with a write whose outcome is not known, and since when.
    doubts: Mutex<HashMap<Key, Instant>>,
    /// The server's clock in µs since 1970, and when we asked for it.
    clock: Mutex<(u64, Instant)>,
    /// Names that were handed over, and when they will be looked at.
    handed_over: Mutex<HashMap<Key, Instant>>,
}

/// Something asked of a name.
struct Asked {
    job: Box<dyn Job>,
    guess: Guess,
    urgent: bool,
}

impl<D: Dialect> Store<D> {
    /// `clock`: the server's, and when we asked for it.
    pub(super) fn new(pool: Arc<Pool<D>>, hub: Arc<Hub>, clock: (u64, Instant)) -> Arc<Self> {
        let (desks, doubts, handed_over) = Default::default();
        Arc::new(Self { pool, hub, desks, doubts, clock: Mutex::new(clock), handed_over })
    }

    /// The server's, in µs since 1970, and when we asked for it.
    pub(super) fn set_clock(&self, clock: (u64, Instant)) {
        *self.clock.lock() = clock;
    }

    /// When a write that is sent now is too late, by the server's clock in µs since 1970. As the
    /// server told it last: should it have been set since, the write does nothing and the clock is
    /// asked for again.
    pub(super) fn too_late(&self) -> u64 {
        let (now, asked) = *self.clock.lock();
        now.saturating_add(micros(Instant::now().since(asked) + LATE))
    }

    /// Takes one step of the model on one name. Begun at once, and carried out even if nobody waits
    /// for it any more.
    ///
    /// The step may be called several times, each time with a state as it was before; the last call
    /// counts. `again`: an earlier try may have taken effect. `None`: then there is no telling what it
    /// did, and the state must be left alone.
    pub(super) fn change<T, F>(
        self: &Arc<Self>,
        key: &Key,
        guess: Guess,
        step: F,
    ) -> impl Future<Output = Result<(T, After)>> + use<T, F, D>
    where
        T: Send + 'static,
        F: FnMut(&mut Stored, &mut World<'_, ClientId>, bool) -> Option<T> + Send + 'static,
    {
        self.ask(key, guess, false, step)
    }

    /// The same for what must not come too late: it does not wait behind all others for a connection.
    pub(super) fn change_soon<T, F>(
        self: &Arc<Self>,
        key: &Key,
        guess: Guess,
        step: F,
    ) -> impl Future<Output = Result<(T, After)>> + use<T, F, D>
    where
        T: Send + 'static,
        F: FnMut(&mut Stored, &mut World<'_, ClientId>, bool) -> Option<T> + Send + 'static,
    {
        self.ask(key, guess, true, step)
    }

    fn ask<T, F>(
        self: &Arc<Self>,
        key: &Key,
        guess: Guess,
        urgent: bool,
        step: F,
    ) -> impl Future<Output = Result<(T, After)>> + use<T, F, D>
    where
        T: Send + 'static,
        F: FnMut(&mut Stored, &mut World<'_, ClientId>, bool) -> Option<T> + Send + 'static,
    {
        let (reply, outcome) = oneshot::channel();
        let job: Box<dyn Job> = Box::new(Change { step, done: None, reply });
        let asked = Asked { job, guess, urgent };
        let mut desks = self.desks.lock();
        if let Some(desk) = desks.get_mut(key) {
            desk.push(asked);
        } else {
            desks.insert(Arc::clone(key), Vec::new());
            // Not under the lock: where the runtime has ended this closes the desk at once.
            drop(desks);
            let desk = Desk { store: Arc::clone(self), key: Arc::clone(key), open: true };
            self.hub.requests.runtime().spawn(desk.work(vec![asked]));
        }
        async {
            let outcome = outcome.await.unwrap_or(Err(Arc::new(Fault::Dropped)));
            outcome.map_err(|fault| fault.error(D::NAME, "a step"))
        }
    }

    /// Gives up whatever a request has, a hold or a place: in line behind the request that it undoes,
    /// and tried again until that would have expired. One in doubt may still arrive, on a connection
    /// that was given up: it is undone again and again until it cannot any more.
    pub(super) fn undo(self: &Arc<Self>, key: &Key, id: RequestId, until: Instant) {
        let (store, key) = (Arc::clone(self), Arc::clone(key));
        let undo = {
            let (store, key) = (Arc::clone(&store), Arc::clone(&key));
            move || {
                store.change(&key, Guess::Nothing, move |stored, world, _| {
                    stored.model.release(id, world);
                    Some(())
                })
            }
        };
        let (mut undoing, counted) = (undo(), UNDOING.begin());
        self.hub.requests.runtime().spawn(async move {
            let _counted = counted;
            let mut pause = UNDO_PAUSE;
            loop {
                let done = undoing.await;
                let again = match &done {
                    Ok(_) => store.is_in_doubt(&key),
                    Err(error) => {
                        let until_then = Instant::now() < until || store.is_in_doubt(&key);
                        until_then && super::fault::may_pass(error)
                    }
                };
                if !again {
                    return;
                }
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(Duration::from_secs(5));
                undoing = undo();
            }
        });
    }

    /// Looks whether a name that was handed over was taken, as others wait who hear of it only if it is
    /// handed on: they do not know how soon that lease ends.
    pub(super) fn see_to(self: &Arc<Self>, key: &Key) {
        let due = Instant::now() + WAITER_LEASE + PAUSE.1;
        if self.handed_over.lock().insert(Arc::clone(key), due).is_some() {
            return;
        }
        let (store, key) = (Arc::downgrade(self), Arc::clone(key));
        self.hub.requests.runtime().spawn(async move {
            let mut due = due;
            // Later if it is handed over again meanwhile: then it was taken.
            loop {
                tokio::time::sleep(due.since(Instant::now())).await;
                let Some(store) = store.upgrade() else { return };
                let mut handed_over = store.handed_over.lock();
                match handed_over.get(&key) {
                    Some(later) if *later > Instant::now() => due = *later,
                    _ => {
                        handed_over.remove(&key);
                        break;
                    }
                }
            }
            let Some(store) = store.upgrade() else { return };
            let looked = store.change(&key, Guess::Nothing, |stored, world, _| {
                stored.model.settle(world);
                // The next one asks again, and learns how long the lease is that it waits for now.
                let next = stored.model.present().next().map(|(client, _)| *client);
                if let Some(next) = next {
                    stored.model.doubt(&next, world);
                }
                Some(())
            });
            if let Err(error) = looked.await {
                tracing::debug!(%error, "could not look; those who wait do so themselves");
            }
        });
    }

    fn doubt(&self, key: &Key) {
        let mut doubts = self.doubts.lock();
        let now = Instant::now();
        doubts.retain(|_, since| now.since(*since) < DOUBT);
        doubts.insert(Arc::clone(key), now);
    }

    /// Whether a write on this name whose outcome was not known may yet take effect.
    pub(super) fn is_in_doubt(&self, key: &Key) -> bool {
        let since = self.doubts.lock().get(key).copied();
        since.is_some_and(|since| Instant::now().since(since) < DOUBT)
    }

    /// Takes the step, again and again while others are faster.
    async fn step(
        self: &Arc<Self>,
        key: &Key,
        jobs: &mut [Box<dyn Job>],
        urgent: bool,
        guess: Guess,
    ) -> Result<After, Fault> {
        let mut attempt = Attempt::new(key, jobs, urgent);
        let (mut guess, since) = (Some(guess), Instant::now());
        let (mut tries, mut breaks) = (0, 0);
        loop {
            let guess = guess.take().unwrap_or(Guess::Nothing);
            attempt.writing = false;
            let fault = match attempt.make(self, guess).await {
                Ok(Some(after)) => return Ok(after),
                Ok(None) => None,
                Err(fault) => Some(fault),
            };
            if attempt.writing && fault.as_ref().is_some_and(Fault::leaves_doubt) {
                attempt.again = true;
                self.doubt(key);
            }
            let fault = match fault {
                None | Some(Fault::Conflict(_)) if tries < TRIES => {
                    tries += 1;
                    None
                }
                None | Some(Fault::Conflict(_)) => Some(Fault::Contended),
                // By another connection: where one is read-only, that may lead to another server.
                Some(Fault::Broken(_) | Fault::Unreachable(_) | Fault::Refused(READ_ONLY, _))
                    if breaks < BREAKS =>
                {
                    breaks += 1;
                    None
                }
                fault => fault,
            };
            let is_over = Instant::now().since(since) > STEP_TIME;
            match fault.or(is_over.then_some(Fault::Contended)) {
                None => {}
                Some(fault) if attempt.again => return Err(Fault::InDoubt(Some(fault.into()))),
                Some(fault) => return Err(fault),
            }
            // A pause at random: the others do not try again at the same moment.
            let longest = (PAUSE.0 * (1 << (tries + breaks).min(10))).min(PAUSE.1);
            let part = u32::try_from(owner::random() % 1000).unwrap_or(0);
            tokio::time::sleep(longest * part / 1000).await;
        }
    }
}

/// Where all is done that is asked of one name. Closed when dropped: whoever waits then learns that
/// nobody works on it, and the next to come opens another.
struct Desk<D: Dialect> {
    store: Arc<Store<D>>,
    key: Key,
    open: bool,
}

impl<D: Dialect> Desk<D> {
    /// Works until nobody asks for this name any more.
    async fn work(mut self, mut asked: Vec<Asked>) {
        loop {
            let urgent = asked.iter().any(|asked| asked.urgent);
            let (mut jobs, guesses): (Vec<_>, Vec<_>) =
                asked.into_iter().map(|asked| (asked.job, asked.guess)).unzip();
            let mut guesses = guesses.into_iter();
            let guess = match (guesses.next(), guesses.next()) {
                (Some(guess), None) => guess,
                _ => Guess::Nothing,
            };
            let step = self.store.step(&self.key, &mut jobs, urgent, guess);
            let outcome = step.await.map_err(Arc::new);
            for job in jobs {
                job.finish(outcome.clone());
            }
            let Some(more) = self.next() else { return };
            asked = more;
        }
    }

    /// What was asked meanwhile.
    fn next(&mut self) -> Option<Vec<Asked>> {
        let mut desks = self.store.desks.lock();
        match desks.get_mut(&self.key) {
            Some(more) if !more.is_empty() => Some(more.drain(..more.len().min(AT_ONCE)).collect()),
            _ => {
                desks.remove(&self.key);
                self.open = false;
                None
            }
        }
    }
}

impl<D: Dialect> Drop for Desk<D> {
    fn drop(&mut self) {
        if self.open {
            let left = self.store.desks.lock().remove(&self.key);
            drop(left);
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Something to do in a step.
pub(super) trait Job: Send {
    fn run(&mut self, stored: &mut Stored, world: &mut World<'_, ClientId>, again: bool);
    fn finish(self: Box<Self>, outcome: Result<After, Arc<Fault>>);
}

struct Change<F, T> {
    step: F,
    done: Option<T>,
    reply: oneshot::Sender<Result<(T, After), Arc<Fault>>>,
}

impl<F, T> Job for Change<F, T>
where
    F: FnMut(&mut Stored, &mut World<'_, ClientId>, bool) -> Option<T> + Send,
    T: Send,
{
    fn run(&mut self, stored: &mut Stored, world: &mut World<'_, ClientId>, again: bool) {
        self.done = (self.step)(stored, world, again);
    }

    fn finish(self: Box<Self>, outcome: Result<After, Arc<Fault>>) {
        let Self { done, reply, .. } = *self;
        let in_doubt = || Arc::new(Fault::InDoubt(None));
        let result = outcome.and_then(|after| Ok((done.ok_or_else(in_doubt)?, after)));
        // Nobody waits any more: then it was undone, or will be by the next job in line.
        let _ = reply.send(result);
    }
}
