//! Steps on rows: all that this process asks of one name at a time is one step.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::WAITER_LEASE;
use super::dialect::{Dialect, Inserted};
use super::fault::Fault;
use super::hub::{Hub, Key};
use super::pool::{Pool, statement};
use super::row::{ClientId, Known, Loaded, Stored, Written};
use crate::clock::Instant;
use crate::error::Result;
use crate::loss::Cause;
use crate::model::{News, World};
use crate::owner::{self, RequestId};

/// How often to try again while others are faster.
const TRIES: u32 = 60;
/// How often to try again when a connection breaks.
const BREAKS: u32 = 6;
/// The first and the longest pause before trying again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// How long a write on a connection that was given up may still arrive.
const DOUBT: Duration = Duration::from_secs(60);
/// Between two tries to undo what a request left behind.
const UNDO_PAUSE: Duration = Duration::from_millis(200);

/// What a step may take for granted, so that one statement is enough if it is so.
pub(super) enum Guess {
    Nothing,
    /// The name has no row.
    Absent,
    /// The row is as it was left.
    Left(Known, Stored),
}

/// What is known after a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct After {
    /// From before the statement was sent that told the server's clock.
    pub(super) sent: Instant,
    /// That clock; the times of the state count by it.
    pub(super) now: Instant,
    /// The row, if there is one.
    pub(super) known: Option<Known>,
    /// How many statements it took.
    pub(super) statements: u32,
}

pub(super) struct Store<D: Dialect> {
    pub(super) pool: Arc<Pool<D>>,
    pub(super) hub: Arc<Hub>,
    /// What waits for the step under way on a name to end.
    desks: Mutex<HashMap<Key, Vec<Asked>>>,
    /// Names with a write whose outcome is not known, and since when.
    doubts: Mutex<HashMap<Key, Instant>>,
    /// Names that were handed over, and will be looked at.
    handed_over: Mutex<HashSet<Key>>,
}

type Asked = (Box<dyn Job>, Guess);

impl<D: Dialect> Store<D> {
    pub(super) fn new(pool: Arc<Pool<D>>, hub: Arc<Hub>) -> Arc<Self> {
        let (desks, doubts, handed_over) = Default::default();
        Arc::new(Self { pool, hub, desks, doubts, handed_over })
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
        let (reply, outcome) = oneshot::channel();
        let job: Box<dyn Job> = Box::new(Change { step, done: None, reply });
        let mut desks = self.desks.lock();
        if let Some(desk) = desks.get_mut(key) {
            desk.push((job, guess));
        } else {
            desks.insert(Arc::clone(key), Vec::new());
            let (store, key) = (Arc::clone(self), Arc::clone(key));
            self.hub.requests.runtime().spawn(store.work(key, vec![(job, guess)]));
        }
        async {
            let outcome = outcome.await.unwrap_or(Err(Arc::new(Fault::Dropped)));
            outcome.map_err(|fault| fault.error(D::NAME, "a step"))
        }
    }

    /// Gives up whatever a request has, a hold or a place: in line behind the request that it undoes,
    /// and tried again until that would have expired. One in doubt may still arrive, on a connection
    /// that was given up: it is undone again and again for so long.
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
        let mut undoing = undo();
        self.hub.requests.runtime().spawn(async move {
            let mut pause = UNDO_PAUSE;
            loop {
                let done = undoing.await;
                let again = match &done {
                    Ok(_) => store.is_in_doubt(&key),
                    Err(error) => super::fault::may_pass(error),
                };
                if !again || Instant::now() + pause > until {
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
    fn see_to(self: &Arc<Self>, key: &Key) {
        if !self.handed_over.lock().insert(Arc::clone(key)) {
            return;
        }
        let (store, key) = (Arc::downgrade(self), Arc::clone(key));
        self.hub.requests.runtime().spawn(async move {
            tokio::time::sleep(WAITER_LEASE + PAUSE.1).await;
            let Some(store) = store.upgrade() else { return };
            store.handed_over.lock().remove(&key);
            let looked = store.change(&key, Guess::Nothing, |stored, world, _| {
                stored.model.settle(world);
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

    fn is_in_doubt(&self, key: &Key) -> bool {
        let since = self.doubts.lock().get(key).copied();
        since.is_some_and(|since| Instant::now().since(since) < DOUBT)
    }

    /// Works until nobody asks for this name any more.
    async fn work(self: Arc<Self>, key: Key, mut asked: Vec<Asked>) {
        loop {
            let (mut jobs, guesses): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
            let mut guesses = guesses.into_iter();
            let guess = match (guesses.next(), guesses.next()) {
                (Some(guess), None) => guess,
                _ => Guess::Nothing,
            };
            let outcome = self.step(&key, &mut jobs, guess).await.map_err(Arc::new);
            if outcome.as_ref().is_err_and(|fault| fault.leaves_doubt()) {
                self.doubt(&key);
            }
            for job in jobs {
                job.finish(outcome.clone());
            }
            let mut desks = self.desks.lock();
            match desks.get_mut(&key) {
                Some(more) if !more.is_empty() => asked = std::mem::take(more),
                _ => {
                    desks.remove(&key);
                    return;
                }
            }
        }
    }

    /// Takes the step, again and again while others are faster.
    async fn step(
        self: &Arc<Self>,
        key: &Key,
        jobs: &mut [Box<dyn Job>],
        guess: Guess,
    ) -> Result<After, Fault> {
        let mut attempt =
            Attempt { key, jobs, again: false, writing: false, statements: 0, absent: vec![] };
        let mut guess = Some(guess);
        let (mut tries, mut breaks) = (0, 0);
        loop {
            let guess = guess.take().unwrap_or(Guess::Nothing);
            attempt.writing = false;
            match attempt.make(self, guess).await {
                Ok(Some(after)) => return Ok(after),
                Ok(None) | Err(Fault::Conflict(_)) => tries += 1,
                Err(fault @ Fault::Broken(_)) if breaks == BREAKS => return Err(fault),
                Err(Fault::Broken(_)) => {
                    breaks += 1;
                    if attempt.writing {
                        attempt.again = true;
                        self.doubt(key);
                    }
                }
                Err(fault) => return Err(fault),
            }
            if tries == TRIES {
                return Err(Fault::Contended);
            }
            // A pause at random: the others do not try again at the same moment.
            let longest = (PAUSE.0 * (1 << (tries + breaks).min(10))).min(PAUSE.1);
            let part = u32::try_from(owner::random() % 1000).unwrap_or(0);
            tokio::time::sleep(longest * part / 1000).await;
        }
    }
}

/// One step under way.
struct Attempt<'a> {
    key: &'a Key,
    jobs: &'a mut [Box<dyn Job>],
    /// A write may have taken effect although its answer was lost.
    again: bool,
    /// A write is under way.
    writing: bool,
    statements: u32,
    /// Clients that wait, and were not there when it was their turn.
    absent: Vec<ClientId>,
}

impl Attempt<'_> {
    /// `None`: somebody else was faster.
    async fn make<D: Dialect>(
        &mut self,
        store: &Arc<Store<D>>,
        guess: Guess,
    ) -> Result<Option<After>, Fault> {
        let (pool, key) = (&store.pool, self.key);
        let sent = Instant::now();
        let (mut loaded, left) = match guess {
            Guess::Left(known, stored) => {
                (Loaded { known: Some(known), stored, ..Loaded::absent(0) }, true)
            }
            Guess::Absent => {
                let (after, _, _) = self.run(&Loaded::absent(0));
                if after.stored.model.is_idle() {
                    // Nothing to insert: whether there is a row is still to be seen.
                    (self.load(pool).await?, false)
                } else {
                    (Loaded::absent(0), false)
                }
            }
            Guess::Nothing => (self.load(pool).await?, false),
        };
        if loaded.known.is_none() {
            match self.insert(store, &loaded).await? {
                Insertion::Done(known) => {
                    let now = known.map_or(loaded.now, |_| Loaded::absent(0).now);
                    let statements = self.statements;
                    return Ok(Some(After { sent, now, known, statements }));
                }
                Insertion::Taken(Some(taken)) => loaded = taken,
                Insertion::Taken(None) => return Ok(None),
            }
        }
        let (after, news, opened) = self.run(&loaded);
        let Some(known) = loaded.known else { return Ok(None) };
        let messages = store.hub.messages(key, &news, opened);
        let idle = after.stored.model.is_idle();
        let mut now_known = Some(Known { version: known.version + 1, ..known });
        let done = if idle {
            now_known = None;
            self.writes();
            statement!(pool, delete, key, known, left, &messages)?
        } else if left {
            // Only what ends with the row can be done without looking.
            return Ok(None);
        } else if after.counter == loaded.counter
            && after.stored.to_bytes()? == loaded.stored.to_bytes()?
        {
            now_known = Some(known);
            true
        } else if loaded.has_room_for(after.counter) {
            let row = Written::new(after.counter, &after.stored)?;
            let mut present = store.hub.to_be_present(&loaded.stored.model, &news);
            present.retain(|client| !self.absent.contains(client));
            self.writes();
            let done = statement!(pool, update, key, known, &row, &present, &messages)?;
            if !done && !present.is_empty() {
                self.writing = false;
                self.statements += 1;
                // All of them: one lease for all who are gone, not one for each.
                let waiting: Vec<_> =
                    loaded.stored.model.present().map(|(client, _)| *client).collect();
                self.absent = statement!(pool, absent, &waiting)?;
            }
            done
        } else {
            let row = Written::new(loaded.counter, &loaded.stored)?;
            self.statements += 1;
            statement!(pool, renumber, key, known, &row)?;
            return Ok(None);
        };
        if !done {
            return Ok(None);
        }
        store.hub.tell(key, &news, opened);
        let to_others = news.granted.iter().any(|(client, _)| *client != store.hub.me);
        if to_others && after.stored.model.present().next().is_some() {
            store.see_to(key);
        }
        let (now, statements) = (loaded.now, self.statements);
        Ok(Some(After { sent, now, known: now_known, statements }))
    }

    async fn load<D: Dialect>(&mut self, pool: &Pool<D>) -> Result<Loaded, Fault> {
        self.statements += 1;
        let (now, row) = statement!(pool, load, self.key)?;
        Ok(Loaded::read(now, row)?)
    }

    /// Makes the row of a name that has none, if there is anything to put into it.
    async fn insert<D: Dialect>(
        &mut self,
        store: &Store<D>,
        loaded: &Loaded,
    ) -> Result<Insertion, Fault> {
        let (pool, key) = (&store.pool, self.key);
        let (after, _, _) = self.run(loaded);
        // A token that was issued and is not remembered has to be larger than those before all the
        // same: the row, which nobody needs, draws its epoch.
        if after.stored.model.is_idle() && after.counter == loaded.counter {
            return Ok(Insertion::Done(None));
        }
        // By the clock and the tokens of the row that is to be.
        let (after, _, _) = self.run(&Loaded::absent(0));
        let row = Written::new(after.counter, &after.stored)?;
        self.writes();
        match statement!(pool, insert, key, &row)? {
            Inserted::Done(epoch) => {
                let (_, news, opened) = self.run(&Loaded::absent(epoch));
                store.hub.tell(key, &news, opened);
                Ok(Insertion::Done(Some(Known { epoch, version: 1 })))
            }
            Inserted::Taken(row) => {
                self.writing = false;
                let row = row.map(|(now, row)| Loaded::read(now, Some(row))).transpose()?;
                Ok(Insertion::Taken(row))
            }
        }
    }

    fn writes(&mut self) {
        self.writing = true;
        self.statements += 1;
    }

    /// The state after all jobs, whom to tell, and whether a latch has opened.
    fn run(&mut self, before: &Loaded) -> (Loaded, News<ClientId>, bool) {
        let mut after = before.clone();
        let mut news = News::default();
        let mut world = World {
            now: before.now,
            counter: &mut after.counter,
            alive: &|_| true,
            news: &mut news,
        };
        for client in &self.absent {
            after.stored.model.doubt(client, &mut world);
        }
        for job in &mut *self.jobs {
            job.run(&mut after.stored, &mut world, self.again);
        }
        // Who lets a hold run out may be stopped, and the rest of its requests with it.
        let ran_out = world.news.lost.iter().filter(|(_, _, cause)| *cause == Cause::Expired);
        let ran_out: Vec<_> = ran_out.map(|(client, ..)| *client).collect();
        for client in &ran_out {
            after.stored.model.doubt(client, &mut world);
        }
        if !self.absent.is_empty() {
            // The next one has to see for itself whether the one before it comes back.
            let next = after.stored.model.present().next();
            world.news.doubted.extend(next.map(|(client, id)| (*client, id)));
        }
        let opened = before.stored.model.is_latch() && !after.stored.model.is_latch();
        (after, news, opened)
    }
}

enum Insertion {
    /// The row that was made, if any had to be.
    Done(Option<Known>),
    /// There is a row.
    Taken(Option<Loaded>),
}

/// Something to do in a step.
trait Job: Send {
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
        let in_doubt = || Arc::new(Fault::InDoubt);
        let result = outcome.and_then(|after| Ok((done.ok_or_else(in_doubt)?, after)));
        // Nobody waits any more: then it was undone, or will be by the next job in line.
        let _ = reply.send(result);
    }
}
