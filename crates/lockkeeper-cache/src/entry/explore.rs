//! Every order of the steps of two readers and two writers of one key, with faults.
//!
//! The store takes the real steps. A request is under way from when it is sent until it arrives, which may be
//! after its sender has given it up; the time may pass every lease, the store may forget everything, and another server
//! may take over with what there was at some time before.

mod cases;

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use super::{
    Begun, Change, Entry, Filled, Invalidation, Lease, Millis, Slot, Ticket, Value, begin, fill,
    intend, invalidate, settle, update,
};

const LEASE: Millis = 10;
const TTL: Millis = 1_000_000;

/// What the value that is there at first was filled with.
const FIRST: Ticket = Ticket::from_bytes([200; 16]);

/// What is explored.
#[derive(Clone, Copy)]
struct World {
    /// Loads and invalidations say their version.
    versions: bool,
    /// Writers say beforehand that they will write.
    strong: bool,
    /// How many writers bring the value, instead of invalidating. Of two, the other then says no version.
    updates: usize,
    /// A value is there at first.
    warm: bool,
    /// Readers take that value and refresh it.
    refresh: bool,
    losses: u8,
    passes: u8,
    wipes: u8,
    /// Whether another server takes over with what was there at an earlier time.
    restores: u8,
    wrong: Option<Wrong>,
}

/// What is done wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// A fill is taken from anybody.
    AnyTicket,
    /// A request for a lease whose answer is lost is sent again as it is.
    TicketTwice,
    /// Who misses takes the outcome of whatever load is under way in its process.
    JoinsAny,
    /// The writer invalidates before it commits.
    InvalidatesFirst,
    /// What another server has written counts.
    Warm,
    /// A writer puts its value where there is none.
    UpdatesNothing,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Reader {
    Idle,
    Missed,
    Asking(Ticket),
    Loading(Ticket),
    Loaded(Ticket, u32),
    /// From the database, and fills nothing.
    Direct,
    /// Waits for the other one.
    Joined,
    Done(u32),
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Writer {
    Idle,
    Intending,
    Ready,
    Early,
    Telling(u32),
    Done,
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Begin(usize, Ticket),
    Fill(Ticket, u32),
    Intend(usize),
    Invalidate(usize, u32),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    database: u32,
    acked: u32,
    slot: Option<Slot>,
    /// The server that there is, and the one that has written that.
    server: u8,
    by: u8,
    /// What the next server will have, and who has written it.
    saved: Option<(Slot, u8)>,
    now: Millis,
    tickets: u8,
    readers: [Reader; 2],
    /// What each reader must see at least.
    wanted: [u32; 2],
    /// Whether the other's load began after this one's look.
    younger: [bool; 2],
    tries: [u8; 2],
    writers: [Writer; 2],
    under_way: Vec<Message>,
    losses: u8,
    passes: u8,
    wipes: u8,
    restores: u8,
    /// A lease or an intent may have ended, or been forgotten: strong readers may see the last but one.
    weakened: bool,
}

impl State {
    fn new(world: World) -> Self {
        let entry = Entry::Value(value(FIRST, 1, world));
        Self {
            database: 1,
            acked: 1,
            slot: world.warm.then_some(Slot { entry, expires: TTL }),
            server: 0,
            by: 0,
            saved: None,
            now: 0,
            tickets: 0,
            readers: [Reader::Idle, Reader::Idle],
            wanted: [0; 2],
            younger: [false; 2],
            tries: [0; 2],
            writers: [Writer::Idle, Writer::Idle],
            under_way: Vec::new(),
            losses: world.losses,
            passes: world.passes,
            wipes: world.wipes,
            restores: world.restores,
            weakened: false,
        }
    }

    /// What the store takes for what is there.
    fn own(&self, world: World) -> Option<&Slot> {
        self.slot.as_ref().filter(|_| self.by == self.server || world.wrong == Some(Wrong::Warm))
    }

    fn put(&mut self, change: Change) {
        if change != Change::Keep {
            self.by = self.server;
        }
        match change {
            Change::Keep => {}
            Change::Put(slot) => self.slot = Some(slot),
            Change::Remove => self.slot = None,
        }
    }

    fn send(&mut self, message: Message) {
        self.under_way.push(message);
        self.under_way.sort();
    }

    fn new_ticket(&mut self) -> Ticket {
        self.tickets += 1;
        ticket(self.tickets)
    }

    fn there(&self, world: World) -> Option<&Entry> {
        self.own(world).filter(|slot| slot.expires > self.now).map(|slot| &slot.entry)
    }

    /// A read is over with this. What is wrong with it?
    fn done(&mut self, who: usize, seen: u32) -> Result<(), String> {
        self.readers[who] = Reader::Done(seen);
        if seen < self.wanted[who] {
            return Err(format!("reader {who} began after {} and got {seen}", self.wanted[who]));
        }
        Ok(())
    }

    fn look(&mut self, who: usize, world: World) -> Result<(), String> {
        match self.there(world) {
            Some(Entry::Value(value)) => {
                let (seen, due) = (value.schema, world.refresh && value.fill == FIRST);
                let looked = self.done(who, seen);
                if due {
                    // Whoever wanted it has it; what is loaded now nobody waits for.
                    (self.readers[who], self.wanted[who]) = (Reader::Missed, 0);
                }
                return looked;
            }
            Some(Entry::Intents(intents))
                if intents.writers.iter().any(|by| by.is_live(self.now)) =>
            {
                self.readers[who] = Reader::Direct;
            }
            Some(Entry::Gap(gap))
                if gap.lease.is_live(self.now) && self.loads(1 - who) == Some(gap.lease.ticket) =>
            {
                self.readers[who] = Reader::Joined;
            }
            _ => self.readers[who] = Reader::Missed,
        }
        Ok(())
    }

    /// The ticket that a reader loads under.
    fn loads(&self, who: usize) -> Option<Ticket> {
        match self.readers[who] {
            Reader::Loading(ticket) | Reader::Loaded(ticket, _) => Some(ticket),
            _ => None,
        }
    }

    fn ask(&mut self, who: usize, world: World) {
        let under_way = !matches!(
            self.readers[1 - who],
            Reader::Idle | Reader::Missed | Reader::Done(_) | Reader::Joined
        );
        let joins = self.younger[who] || world.wrong == Some(Wrong::JoinsAny);
        if under_way && joins {
            self.readers[who] = Reader::Joined;
            return;
        }
        if self.tries[who] == 2 {
            self.readers[who] = Reader::Direct;
            return;
        }
        self.tries[who] += 1;
        self.younger[1 - who] = self.readers[1 - who] == Reader::Missed;
        let ticket = self.new_ticket();
        self.readers[who] = Reader::Asking(ticket);
        self.send(Message::Begin(who, ticket));
    }

    fn arrive(&mut self, message: Message, world: World) -> Result<(), String> {
        match message {
            Message::Begin(who, ticket) => {
                let except = world.refresh.then_some(FIRST);
                let (change, begun) = begin(self.own(world), self.now, ticket, LEASE, except);
                self.put(change);
                if self.readers[who] != Reader::Asking(ticket) {
                    return Ok(());
                }
                match begun {
                    Begun::Granted { .. } => self.readers[who] = Reader::Loading(ticket),
                    Begun::There(Entry::Value(value)) if Some(value.fill) != except => {
                        return self.done(who, value.schema);
                    }
                    Begun::There(Entry::Value(_)) => self.readers[who] = Reader::Missed,
                    Begun::There(Entry::Intents(_)) => self.readers[who] = Reader::Direct,
                    Begun::There(Entry::Gap(_)) => self.readers[who] = Reader::Missed,
                }
            }
            Message::Fill(ticket, seen) => {
                let ticket = match world.wrong {
                    Some(Wrong::AnyTicket) => match self.there(world) {
                        Some(Entry::Gap(gap)) => gap.lease.ticket,
                        _ => {
                            let (change, _) = begin(None, self.now, ticket, LEASE, None);
                            self.put(change);
                            ticket
                        }
                    },
                    _ => ticket,
                };
                let value = value(ticket, seen, world);
                let (change, Filled::Done | Filled::Gone | Filled::Late | Filled::Older) =
                    fill(self.own(world), self.now, &value, TTL);
                self.put(change);
            }
            Message::Intend(who) => {
                let change = intend(self.own(world), self.now, writer(who), LEASE);
                self.put(change);
                if self.writers[who] == Writer::Intending {
                    self.writers[who] = Writer::Ready;
                }
            }
            Message::Invalidate(who, version) => {
                let named = world.versions && (world.updates == 0 || who < world.updates);
                let floor = if named { u64::from(version) } else { 0 };
                let how = Invalidation { floor, floor_ms: LEASE, keep_ms: 0 };
                let change = match world.strong {
                    _ if who < world.updates => self.update(version, how, world),
                    true => settle(self.own(world), self.now, writer(who), how).0,
                    false => invalidate(self.own(world), self.now, how),
                };
                self.put(change);
                match self.writers[who] {
                    Writer::Early => self.writers[who] = Writer::Ready,
                    Writer::Telling(version) => {
                        self.writers[who] = Writer::Done;
                        self.acked = self.acked.max(version);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn update(&self, version: u32, how: Invalidation, world: World) -> Change {
        let value = value(ticket(150 + u8::try_from(version).unwrap()), version, world);
        if world.wrong == Some(Wrong::UpdatesNothing) && self.there(world).is_none() {
            return Change::Put(Slot { entry: Entry::Value(value), expires: self.now + TTL });
        }
        update(self.own(world), self.now, &value, TTL, how).0
    }

    fn read(&mut self, who: usize, world: World) -> Option<Result<(), String>> {
        Some(match self.readers[who].clone() {
            Reader::Idle => {
                let strict = world.strong && !self.weakened;
                self.wanted[who] = if strict { self.database } else { self.acked };
                self.look(who, world)
            }
            Reader::Missed => {
                self.ask(who, world);
                Ok(())
            }
            Reader::Loading(ticket) => {
                self.readers[who] = Reader::Loaded(ticket, self.database);
                Ok(())
            }
            Reader::Loaded(ticket, seen) => {
                self.send(Message::Fill(ticket, seen));
                self.done(who, seen)
            }
            Reader::Direct => {
                let seen = self.database;
                self.done(who, seen)
            }
            Reader::Joined => match self.readers[1 - who] {
                Reader::Done(seen) => self.done(who, seen),
                _ => return None,
            },
            Reader::Asking(_) | Reader::Done(_) => return None,
        })
    }

    fn write(&mut self, who: usize, world: World) -> bool {
        let first = world.wrong == Some(Wrong::InvalidatesFirst);
        match self.writers[who] {
            Writer::Idle if world.strong => {
                self.send(Message::Intend(who));
                self.writers[who] = Writer::Intending;
            }
            Writer::Idle if first => {
                self.send(Message::Invalidate(who, 0));
                self.writers[who] = Writer::Early;
            }
            Writer::Idle | Writer::Ready => {
                self.database += 1;
                if first {
                    self.writers[who] = Writer::Done;
                    self.acked = self.acked.max(self.database);
                    return true;
                }
                // At once: it may arrive as late as one that is sent later.
                self.send(Message::Invalidate(who, self.database));
                self.writers[who] = Writer::Telling(self.database);
            }
            _ => return false,
        }
        true
    }

    /// Somebody gives up waiting for an answer.
    fn lose(&mut self, who: usize, world: World) -> Vec<Self> {
        let mut next = Vec::new();
        let Some(losses) = self.losses.checked_sub(1) else { return next };
        let mut lost = Self { losses, ..self.clone() };
        if let Reader::Asking(ticket) = self.readers[who] {
            match world.wrong {
                Some(Wrong::TicketTwice) => lost.send(Message::Begin(who, ticket)),
                _ => lost.readers[who] = Reader::Direct,
            }
            next.push(lost.clone());
        }
        lost = Self { losses, ..self.clone() };
        match self.writers[who] {
            Writer::Intending => lost.send(Message::Intend(who)),
            Writer::Telling(version) => lost.send(Message::Invalidate(who, version)),
            _ => return next,
        }
        next.push(lost);
        next
    }

    fn next(&self, world: World) -> Vec<Result<Self, String>> {
        let mut next = Vec::new();
        for who in 0..2 {
            // Both are alike: it is enough if the second one begins second.
            if who == 0 || self.readers[0] != Reader::Idle {
                let mut step = self.clone();
                if let Some(read) = step.read(who, world) {
                    next.push(read.map(|()| step));
                }
            }
            if who == 0 || self.writers[0] != Writer::Idle {
                let mut step = self.clone();
                if step.write(who, world) {
                    next.push(Ok(step));
                }
            }
            next.extend(self.clone().lose(who, world).into_iter().map(Ok));
        }
        for at in 0..self.under_way.len() {
            let mut step = self.clone();
            let message = step.under_way.remove(at);
            // A fill may also be lost for good: nobody sends it again.
            if matches!(message, Message::Fill(..)) {
                next.push(Ok(step.clone()));
            }
            next.push(step.arrive(message, world).map(|()| step));
        }
        if let Some(passes) = self.passes.checked_sub(1) {
            let now = self.now + LEASE + 1;
            next.push(Ok(Self { passes, now, weakened: true, ..self.clone() }));
        }
        if let Some(wipes) = self.wipes.checked_sub(1) {
            next.push(Ok(Self { wipes, slot: None, weakened: true, ..self.clone() }));
        }
        if let Some(restores) = self.restores.checked_sub(1) {
            match self.saved.clone() {
                // With nothing it would be a wipe.
                None if self.slot.is_none() => {}
                None => {
                    let saved = self.slot.clone().map(|slot| (slot, self.by));
                    next.push(Ok(Self { saved, ..self.clone() }));
                }
                Some((slot, by)) => {
                    let (slot, server, saved) = (Some(slot), self.server + 1, None);
                    let weakened = true;
                    next.push(Ok(Self {
                        restores,
                        slot,
                        by,
                        server,
                        saved,
                        weakened,
                        ..self.clone()
                    }));
                }
            }
        }
        next
    }

    /// Whether everybody is done, and then whether what is there is what the database has.
    fn check(&self, world: World) -> Result<(), String> {
        let read = self.readers.iter().all(|reader| matches!(reader, Reader::Done(_)));
        let written = self.writers.iter().all(|writer| *writer == Writer::Done);
        if !read || !written || !self.under_way.is_empty() {
            return Ok(());
        }
        match self.there(world) {
            Some(Entry::Value(value)) if value.schema != self.database => {
                Err(format!("{} stays, and the database has {}", value.schema, self.database))
            }
            _ => Ok(()),
        }
    }
}

fn ticket(number: u8) -> Ticket {
    Ticket::from_bytes([number; 16])
}

fn writer(who: usize) -> Ticket {
    ticket(if who == 0 { 100 } else { 101 })
}

/// What the database had is the schema here: the version may be unknown.
fn value(fill: Ticket, seen: u32, world: World) -> Value {
    let version = if world.versions { u64::from(seen) } else { 0 };
    let (lease, made, soft) = (Lease::NONE, 0, u64::MAX);
    Value { lease, fill, version, made, soft, cost: 0, schema: seen, payload: None }
}

/// How many states there are, and all that is wrong in them.
fn explore(world: World) -> (usize, HashSet<String>) {
    // Two numbers stand for a state: there are too many to keep, and too few for two to be alike by chance.
    let hashers = [RandomState::new(), RandomState::new()];
    let print = |state: &State| hashers.each_ref().map(|hasher| hasher.hash_one(state));
    let first = State::new(world);
    let mut seen = HashSet::from([print(&first)]);
    let (mut open, mut wrong) = (vec![first], HashSet::new());
    while let Some(state) = open.pop() {
        wrong.extend(state.check(world).err());
        for next in state.next(world) {
            match next {
                Ok(next) if seen.insert(print(&next)) => open.push(next),
                Ok(_) => {}
                Err(what) => {
                    wrong.insert(what);
                }
            }
        }
    }
    (seen.len(), wrong)
}
