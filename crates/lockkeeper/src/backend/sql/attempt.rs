//! One try of a step: what is known or read, what comes of it, and the statement that writes it.

use std::sync::Arc;

use super::dialect::{Dialect, Inserted, When};
use super::fault::Fault;
use super::hub::Key;
use super::pool::{Lane, statement};
use super::row::{ClientId, Known, Loaded, Stored, Written};
use super::store::{After, Guess, Job, LATE, Store};
use crate::clock::Instant;
use crate::loss::Cause;
use crate::model::{News, World};

/// One step under way.
pub(super) struct Attempt<'a> {
    key: &'a Key,
    jobs: &'a mut [Box<dyn Job>],
    urgent: bool,
    /// A write may have taken effect although its answer was lost.
    pub(super) again: bool,
    /// A write is under way.
    pub(super) writing: bool,
    statements: u32,
    /// Clients that wait, and were not there when it was their turn.
    absent: Vec<ClientId>,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(key: &'a Key, jobs: &'a mut [Box<dyn Job>], urgent: bool) -> Self {
        let (again, writing, statements, absent) = Default::default();
        Self { key, jobs, urgent, again, writing, statements, absent }
    }

    /// `None`: somebody else was faster.
    pub(super) async fn make<D: Dialect>(
        &mut self,
        store: &Arc<Store<D>>,
        guess: Guess,
    ) -> Result<Option<After>, Fault> {
        let (pool, key) = (self.lane(store), self.key);
        let sent = Instant::now();
        let (mut loaded, left) = match guess {
            Guess::Left(known, stored) => {
                let stored = Stored::clone(&stored);
                (Loaded { known: Some(known), stored, ..Loaded::absent(0) }, true)
            }
            Guess::Absent => {
                let (after, _, _) = self.run(&Loaded::absent(0));
                if after.stored.model.is_idle() {
                    // Nothing to insert: whether there is a row is still to be seen.
                    (self.load(store).await?, false)
                } else {
                    (Loaded::absent(0), false)
                }
            }
            Guess::Nothing => (self.load(store).await?, false),
        };
        if loaded.known.is_none() {
            match self.insert(store, &loaded).await? {
                Insertion::Done(made) => {
                    let now = made.as_ref().map_or(loaded.now, |_| Loaded::absent(0).now);
                    let sole = made.and_then(|(known, after)| sole(Some(known), after.stored));
                    let statements = self.statements;
                    return Ok(Some(After { sent, now, statements, sole }));
                }
                Insertion::Taken(Some(taken)) => loaded = taken,
                Insertion::Taken(None) => return Ok(None),
            }
        }
        let (after, news, opened) = self.run(&loaded);
        let Some(known) = loaded.known else { return Ok(None) };
        let messages = store.hub.messages(key, &news, opened);
        let idle = after.stored.model.is_idle();
        let prepared = store.pool.dialect.prepares();
        let mut now_known = Some(Known { version: known.version + 1, ..known });
        let done = if idle {
            now_known = None;
            self.writes();
            statement!(pool, delete, key, known, left, &messages, prepared)?
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
            let when = When { too_late: micros_of(loaded.now + LATE), present: &present };
            self.writes();
            let done = statement!(pool, update, key, known, &row, when, &messages)?;
            if !done && !present.is_empty() {
                self.writing = false;
                self.absent = self.absent(store, &loaded).await?;
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
        Ok(Some(After { sent, now, statements, sole: sole(now_known, after.stored) }))
    }

    fn lane<'p, D: Dialect>(&self, store: &'p Store<D>) -> Lane<'p, D> {
        Lane { pool: &store.pool, urgent: self.urgent }
    }

    /// Those who wait and are not there. All of them: one lease for all who are gone, not one for each.
    async fn absent<D: Dialect>(
        &mut self,
        store: &Store<D>,
        loaded: &Loaded,
    ) -> Result<Vec<ClientId>, Fault> {
        self.statements += 1;
        let waiting: Vec<_> = loaded.stored.model.present().map(|(client, _)| *client).collect();
        statement!(self.lane(store), absent, &waiting)
    }

    async fn load<D: Dialect>(&mut self, store: &Store<D>) -> Result<Loaded, Fault> {
        self.statements += 1;
        let sent = Instant::now();
        let prepared = store.pool.dialect.prepares();
        let (now, row) = statement!(self.lane(store), load, self.key, prepared)?;
        store.set_clock((now, sent));
        Ok(Loaded::read(now, row)?)
    }

    /// Makes the row of a name that has none, if there is anything to put into it.
    async fn insert<D: Dialect>(
        &mut self,
        store: &Store<D>,
        loaded: &Loaded,
    ) -> Result<Insertion, Fault> {
        let (pool, key) = (self.lane(store), self.key);
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
        let prepared = store.pool.dialect.prepares();
        match statement!(pool, insert, key, &row, store.too_late(), prepared)? {
            Inserted::Done(epoch) => {
                let (after, news, opened) = self.run(&Loaded::absent(epoch));
                store.hub.tell(key, &news, opened);
                Ok(Insertion::Done(Some((Known { epoch, version: 1 }, after))))
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

/// The row, if there is nothing but one hold in it.
fn sole(known: Option<Known>, stored: Stored) -> Option<(Known, Arc<Stored>)> {
    let id = stored.model.held_by().next()?;
    let alone = known.filter(|_| stored.model.is_only(id))?;
    Some((alone, Arc::new(stored)))
}

/// A moment of the server's clock in µs since 1970.
fn micros_of(at: Instant) -> u64 {
    at.as_nanos() / 1000
}

enum Insertion {
    /// The row that was made, if any had to be, and what is in it.
    Done(Option<(Known, Loaded)>),
    /// There is a row.
    Taken(Option<Loaded>),
}
