//! Locks inside one process: no server, no files.
//!
//! # How it works
//!
//! One [`State`] per name in a table behind a mutex. A waiter parks until it is
//! told that the name was handed to it.
//!
//! # What it promises
//!
//! Everything in the contract, in order of arrival, between all tasks that share the [`Memory`]:
//! clones of one [`Locks`](crate::Locks), or all that connect to the same `memory:NAME`. Tokens start
//! at 1 and end with the process. A hosted lock has no lease: it cannot outlive the process that
//! would renew it.
//!
//! # When it breaks
//!
//! It does not see other processes. A guard that is leaked with [`std::mem::forget`] holds for ever.
//!
//! # Cost
//!
//! No system call. See BENCHMARKS for the ratio to `tokio::sync::Mutex`.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    Admin, Backend, Capabilities, Cell, Cells, Eviction, Hold, Latches, Patience, Release, Renewal,
    Request, Status, Term, Write,
};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::loss::{Cause, Loss};
use crate::model::{Answer, Ask, News, Place, State, World};
use crate::name::Name;
use crate::owner::{self, RequestId};
use crate::token::TokenBlock;
use crate::wait::pause;

/// Idle names are kept, to be found again without an allocation, until there are this many.
const NAMES_KEPT: usize = 1024;

/// A table of locks in this process.
pub struct Memory {
    place: String,
    table: Mutex<Table>,
    cells: Mutex<HashMap<Name, Vec<Cell>>>,
}

#[derive(Default)]
struct Table {
    names: HashMap<Name, State<Party>>,
    counter: u64,
}

/// One request: first a place in a queue, then a hold.
struct Ticket {
    memory: Arc<Memory>,
    request: Request,
    grant: OnceLock<(TokenBlock, Option<Instant>)>,
    loss: Loss,
    news: Notify,
    stage: AtomicU8,
}

/// What [`Ticket::stage`] says: somebody uses it, or has parked it, or it was taken away, or somebody
/// uses it and somebody else was told so: then it must not be parked, for nobody would wake the other.
const IN_USE: u8 = 0;
const PARKED: u8 = 1;
const TAKEN: u8 = 2;
const WANTED: u8 = 3;

/// Whom to tell.
#[derive(Clone)]
enum Party {
    Request(Arc<Ticket>),
    Latch(Arc<Notify>),
}

impl Party {
    fn tell(&self) {
        match self {
            Self::Request(ticket) => ticket.news.notify_one(),
            Self::Latch(opened) => opened.notify_one(),
        }
    }

    /// Whether it may stand in somebody's way. A parked hold may not, and is gone when asked.
    fn is_in_use(&self) -> bool {
        match self {
            Self::Request(ticket) => {
                let next = |stage| match stage {
                    IN_USE | WANTED => Some(WANTED),
                    _ => Some(TAKEN),
                };
                let stage = ticket.stage.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
                matches!(stage, Ok(IN_USE | WANTED))
            }
            Self::Latch(_) => true,
        }
    }

    fn tell_lost(&self, cause: Cause) {
        if let Self::Request(ticket) = self {
            ticket.loss.declare(cause);
        }
    }
}

impl Memory {
    /// A table of its own, shared with nobody.
    pub fn private() -> Arc<Self> {
        // A place of its own, so that nobody takes two such tables for one.
        Self::at(format!("#{:016x}", owner::random()))
    }

    /// The table of this name, the same for the whole process while anybody uses it.
    pub fn shared(name: &str) -> Arc<Self> {
        static SHARED: LazyLock<Mutex<HashMap<String, Weak<Memory>>>> =
            LazyLock::new(Mutex::default);
        let mut shared = SHARED.lock();
        if let Some(memory) = shared.get(name).and_then(Weak::upgrade) {
            return memory;
        }
        shared.retain(|_, memory| memory.strong_count() > 0);
        let memory = Self::at(name.to_owned());
        shared.insert(name.to_owned(), Arc::downgrade(&memory));
        memory
    }

    fn at(name: String) -> Arc<Self> {
        let place = format!("memory:{name}");
        Arc::new(Self { place, table: Mutex::default(), cells: Mutex::default() })
    }

    /// Runs one transition on a name, then tells whom it concerns.
    fn change<T>(
        &self,
        name: &Name,
        transition: impl FnOnce(&mut State<Party>, &mut World<'_, Party>) -> T,
    ) -> T {
        let mut news = News::default();
        let result = {
            let mut table = self.table.lock();
            let Table { names, counter } = &mut *table;
            let many = names.len() > NAMES_KEPT;
            let mut world =
                World { now: Instant::now(), counter, alive: &Party::is_in_use, news: &mut news };
            // The common case first: `entry` would need a copy of the name.
            if let Some(state) = names.get_mut(name) {
                let result = transition(state, &mut world);
                if many && state.is_idle() {
                    names.remove(name);
                }
                result
            } else {
                let mut state = State::default();
                let result = transition(&mut state, &mut world);
                if !state.is_idle() {
                    names.insert(name.clone(), state);
                }
                result
            }
        };
        for (party, _) in news.granted.iter().chain(&news.opened) {
            party.tell();
        }
        for (party, _, cause) in news.lost {
            party.tell_lost(cause);
        }
        result
    }

    fn look(&self, name: &Name) -> Status {
        self.change(name, |state, world| {
            state.settle(world);
            state.status(name, world.now)
        })
    }
}

impl Ticket {
    fn new(memory: Arc<Memory>, request: Request) -> Arc<Self> {
        Arc::new(Self {
            memory,
            request,
            grant: OnceLock::new(),
            loss: Loss::new(),
            news: Notify::new(),
            stage: AtomicU8::new(IN_USE),
        })
    }

    /// Asks the table, or asks again. Also: when to ask next at the latest.
    fn ask(self: &Arc<Self>) -> (Answer, Option<Instant>) {
        let place = match self.request.patience {
            Patience::TryOnce => Place::None,
            _ => Place::Kept,
        };
        let ask = Ask {
            id: self.request.id,
            owner: self.request.owner.clone(),
            kind: self.request.kind,
            ttl: self.lease(self.request.term.ttl()),
            tokens: self.request.tokens,
            place,
            party: Party::Request(Arc::clone(self)),
        };
        self.memory.change(&self.request.name, |state, world| {
            (state.acquire(ask, world), state.next_expiry())
        })
    }

    fn lease(&self, ttl: Duration) -> Option<Duration> {
        match self.request.term {
            Term::Hosted(_) => None,
            Term::Fixed(_) => Some(ttl),
        }
    }

    fn withdraw(&self) -> bool {
        self.memory.change(&self.request.name, |state, world| state.release(self.request.id, world))
    }
}

/// A place in a queue: given up when dropped, unless it was taken.
struct Parked<'a>(&'a Ticket, bool);

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.withdraw();
        }
    }
}

#[async_trait]
impl Backend for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn place(&self) -> &str {
        &self.place
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { across_processes: false, ..Capabilities::ALL }
    }

    async fn acquire(self: Arc<Self>, request: Request) -> Result<Option<Arc<dyn Hold>>> {
        let ticket = Ticket::new(self, request);
        let mut parked = Parked(&ticket, true);
        loop {
            let (answer, next) = ticket.ask();
            let request = &ticket.request;
            match answer {
                Answer::Granted { tokens, expires } => {
                    parked.1 = true;
                    let _ = ticket.grant.set((tokens, expires));
                    return Ok(Some(Arc::clone(&ticket) as Arc<dyn Hold>));
                }
                Answer::Queued => parked.1 = false,
                Answer::Busy => return Ok(None),
                Answer::Upgrade => {
                    let (name, owner) = (request.name.clone(), request.owner.clone());
                    return Err(Error::Upgrade { name, owner });
                }
                Answer::WrongKind(used_as) => {
                    let name = request.name.clone();
                    return Err(Error::WrongKind { name, used_as, asked: request.kind.family() });
                }
            }
            if !pause(request.patience, next, ticket.news.notified()).await {
                return Ok(None);
            }
        }
    }

    fn lifeline(&self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    fn admin(&self) -> &dyn Admin {
        self
    }

    fn latches(&self) -> Option<&dyn Latches> {
        Some(self)
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }
}

#[async_trait]
impl Hold for Ticket {
    fn tokens(&self) -> TokenBlock {
        self.grant.get().expect("a hold is granted").0
    }

    fn expires_at(&self) -> Option<Instant> {
        self.grant.get().and_then(|(_, expires)| *expires)
    }

    fn loss(&self) -> &Loss {
        &self.loss
    }

    async fn renew(self: Arc<Self>, ttl: Duration) -> Result<Renewal> {
        let renewed = self.memory.change(&self.request.name, |state, world| {
            state.renew(self.request.id, self.lease(ttl), world)
        });
        Ok(renewed.map_or_else(Renewal::Lost, Renewal::Held))
    }

    async fn downgrade(self: Arc<Self>) -> Result<Renewal> {
        let downgraded = self
            .memory
            .change(&self.request.name, |state, world| state.downgrade(self.request.id, world));
        Ok(downgraded.map_or_else(Renewal::Lost, Renewal::Held))
    }

    fn park(&self) -> bool {
        self.stage.compare_exchange(IN_USE, PARKED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn unpark(&self) -> bool {
        self.stage.compare_exchange(PARKED, IN_USE, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    async fn release(self: Arc<Self>) -> Result<Release> {
        Ok(if self.withdraw() { Release::Released } else { Release::NotHeld })
    }
}

#[async_trait]
impl Admin for Memory {
    async fn list(&self) -> Result<Vec<Status>> {
        let mut names: Vec<Name> = self.table.lock().names.keys().cloned().collect();
        names.sort();
        Ok(names
            .iter()
            .map(|name| self.look(name))
            .filter(|status| status.kind.is_some())
            .collect())
    }

    async fn show(&self, name: &Name) -> Result<Status> {
        Ok(self.look(name))
    }

    async fn evict(&self, name: &Name, reason: &str) -> Result<Eviction> {
        let (holders, token) = self.change(name, |state, world| state.evict(reason, world));
        Ok(Eviction { holders, token })
    }
}

/// Gives up the wait for a latch when dropped.
struct LatchWait<'a>(&'a Memory, &'a Name, RequestId);

impl Drop for LatchWait<'_> {
    fn drop(&mut self) {
        self.0.change(self.1, |state, _| state.leave_latch(self.2));
    }
}

#[async_trait]
impl Latches for Memory {
    async fn close(&self, name: &Name, count: u32, ttl: Duration) -> Result<bool> {
        self.change(name, |state, world| state.close_latch(count, ttl, world))
            .map_err(|used_as| Error::WrongKind { name: name.clone(), used_as, asked: "latch" })
    }

    async fn count_down(&self, name: &Name, _id: RequestId) -> Result<u32> {
        Ok(self.change(name, |state, world| state.count_down(world)))
    }

    async fn count(&self, name: &Name) -> Result<u32> {
        Ok(self.change(name, |state, world| state.latch_count(world)))
    }

    async fn wait(&self, name: &Name, id: RequestId, patience: Patience) -> Result<bool> {
        let opened = Arc::new(Notify::new());
        let _waiting = LatchWait(self, name, id);
        loop {
            let party = Party::Latch(Arc::clone(&opened));
            let (open, next) = self.change(name, |state, world| {
                (state.await_latch(id, party, world), state.next_expiry())
            });
            if open {
                return Ok(true);
            }
            if !pause(patience, next, opened.notified()).await {
                return Ok(false);
            }
        }
    }
}

#[async_trait]
impl Cells for Memory {
    async fn read(&self, name: &Name, count: usize) -> Result<Vec<Cell>> {
        let mut read = self.cells.lock().get(name).cloned().unwrap_or_default();
        read.resize(count, Cell::default());
        Ok(read)
    }

    async fn swap(&self, name: &Name, writes: &[Write]) -> Result<bool> {
        let mut cells = self.cells.lock();
        let cells = cells.entry(name.clone()).or_default();
        let last = writes.iter().map(|write| write.cell + 1).max().unwrap_or(0);
        cells.resize(cells.len().max(last), Cell::default());
        if writes.iter().any(|write| cells[write.cell].version != write.version) {
            return Ok(false);
        }
        for Write { cell, version, value } in writes {
            cells[*cell] = Cell { version: version + 1, value: value.clone() };
        }
        Ok(true)
    }

    fn may_pass(&self, _error: &Error) -> bool {
        false
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("place", &self.place).finish_non_exhaustive()
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("request", &self.request).finish_non_exhaustive()
    }
}
