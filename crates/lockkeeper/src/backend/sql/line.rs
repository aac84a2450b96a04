//! Waiting: one look at a name for all of this process who wait for it.
//!
//! Where messages arrive, a look is due when something expires. Where they do not, also when places
//! have to be kept, and after a pause that grows while nothing changes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::WAITER_LEASE;
use super::dialect::Dialect;
use super::hub::Key;
use super::row::ClientId;
use super::store::{After, Guess, Store};
use crate::clock::Instant;
use crate::model::{Answer, Ask, Place};
use crate::owner::{self, RequestId};

/// The first and the longest pause between two looks, before chance makes it up to a third longer.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How old a place may become before it is asked for again.
const KEEP: Duration = WAITER_LEASE.checked_div(2).unwrap();
/// No look is later than this: it bounds what a message that was lost can cost.
const LONGEST: Duration = Duration::from_secs(30);

pub(super) struct Lines<D: Dialect> {
    store: Arc<Store<D>>,
    lines: Mutex<HashMap<Key, Arc<Line>>>,
}

#[derive(Default)]
struct Line {
    /// `None`: waits for a latch.
    members: Mutex<HashMap<RequestId, Option<Member>>>,
    /// When something expires, as one of them was told.
    expiry: Mutex<Option<Instant>>,
    joined: Notify,
}

struct Member {
    ask: Ask<ClientId>,
    /// When its place was asked for the last time.
    placed: Instant,
}

impl Member {
    fn is_present(&self) -> bool {
        matches!(self.ask.place, Place::Present(_))
    }

    /// When its place has to be asked for again.
    fn keep(&self, hears: bool) -> Instant {
        match (self.is_present(), hears) {
            (false, _) => self.placed + KEEP,
            (true, true) => Instant::NEVER,
            // Nobody can tell any more that we live.
            (true, false) => self.placed,
        }
    }
}

/// A request that waits in line; not any more when dropped.
pub(super) struct Membership {
    line: Arc<Line>,
    id: RequestId,
}

impl Membership {
    /// It has just asked for its place by itself, like this, and knows when something expires.
    pub(super) fn placed(&self, ask: Ask<ClientId>, after: &After, expiry: Option<Instant>) {
        self.line.members.lock().insert(self.id, Some(Member { ask, placed: after.sent }));
        *self.line.expiry.lock() = Some(after.here(expiry));
        self.line.joined.notify_one();
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.line.members.lock().remove(&self.id);
        self.line.joined.notify_one();
    }
}

/// What a look has found.
struct Seen {
    /// Whose request is not in line any more: they ask by themselves.
    over: Vec<RequestId>,
    kept: Vec<(RequestId, Place)>,
    holders: Vec<RequestId>,
    next: Option<Instant>,
}

impl<D: Dialect> Lines<D> {
    pub(super) fn new(store: &Arc<Store<D>>) -> Arc<Self> {
        Arc::new(Self { store: Arc::clone(store), lines: Mutex::default() })
    }

    /// Waits with the others.
    pub(super) fn join(self: &Arc<Self>, key: &Key, id: RequestId) -> Membership {
        let mut lines = self.lines.lock();
        let line = lines.entry(Arc::clone(key)).or_insert_with(|| {
            let line = Arc::<Line>::default();
            let watching = Arc::clone(self).watch(Arc::clone(key), Arc::clone(&line));
            self.store.hub.requests.runtime().spawn(watching);
            line
        });
        line.members.lock().insert(id, None);
        line.joined.notify_one();
        Membership { line: Arc::clone(line), id }
    }

    /// Whether nobody waits in this line any more; it is closed then.
    fn is_over(&self, key: &Key, line: &Line) -> bool {
        let mut lines = self.lines.lock();
        let over = line.members.lock().is_empty();
        if over {
            lines.remove(key);
        }
        over
    }

    async fn watch(self: Arc<Self>, key: Key, line: Arc<Line>) {
        let hub = Arc::clone(&self.store.hub);
        let mut pace = Pace::new();
        while !self.is_over(&key, &line) {
            if let Some(expiry) = line.expiry.lock().take() {
                pace.expiry = expiry;
            }
            // Before the look at it, or a change in between would go unnoticed.
            let changed = hub.changed.notified();
            let due = pace.due(line.keep(hub.hears()), hub.hears());
            let now = Instant::now();
            if now < due {
                tokio::select! {
                    () = tokio::time::sleep(due.since(now)) => {}
                    () = line.joined.notified() => {}
                    () = changed => {}
                }
                continue;
            }
            match self.look(&key, &line).await {
                Ok((seen, after)) => {
                    line.looked(&seen, after.sent);
                    seen.over.iter().for_each(|id| hub.requests.hear(*id, None));
                    pace.looked(seen, after);
                }
                Err(error) => {
                    tracing::debug!(%error, "could not look; those who wait ask by themselves");
                    let waiting: Vec<_> = line.members.lock().keys().copied().collect();
                    waiting.into_iter().for_each(|id| hub.requests.hear(id, None));
                    pace.failed();
                }
            }
        }
    }

    /// Looks at the row, lets go of what has expired, and keeps the places that are due.
    async fn look(&self, key: &Key, line: &Arc<Line>) -> crate::error::Result<(Seen, After)> {
        let (line, hub) = (Arc::clone(line), Arc::clone(&self.store.hub));
        let step = self.store.change(key, Guess::Nothing, move |stored, world, _| {
            stored.model.settle(world);
            let mut seen = Seen { over: vec![], kept: vec![], holders: vec![], next: None };
            // Those who wait at this moment: whoever has left meanwhile must not be asked for.
            let members = line.members.lock();
            let (now, hears, place) = (Instant::now(), hub.hears(), hub.place());
            // One that is nearly due takes the others along: one look for all, not one for each.
            let keeps = || members.values().flatten().map(|member| member.keep(hears));
            let soon = |part: u32| keeps().any(|keep| keep <= now + KEEP / part);
            let due = now + if soon(4) { KEEP / 2 } else { Duration::ZERO };
            for (id, member) in &*members {
                let over = match member {
                    None => !stored.model.is_latch(),
                    Some(_) if stored.model.held_by().any(|holder| holder == *id) => true,
                    Some(member) if member.keep(hears) <= due => {
                        let ask = Ask { place, ..member.ask.clone() };
                        seen.kept.push((*id, place));
                        stored.model.acquire(ask, world) != Answer::Queued
                    }
                    Some(_) => !stored.model.is_in_line(*id),
                };
                if over {
                    seen.over.push(*id);
                }
            }
            seen.holders = stored.model.held_by().collect();
            seen.next = stored.model.next_expiry();
            Some(seen)
        });
        step.await
    }
}

impl Line {
    /// When the oldest place has to be asked for again.
    fn keep(&self, hears: bool) -> Instant {
        let members = self.members.lock();
        let places = members.values().flatten().map(|member| member.keep(hears));
        places.min().unwrap_or(Instant::NEVER)
    }

    fn looked(&self, seen: &Seen, at: Instant) {
        let mut members = self.members.lock();
        for (id, place) in &seen.kept {
            if let Some(Some(member)) = members.get_mut(id) {
                (member.ask.place, member.placed) = (*place, at);
            }
        }
    }
}

impl After {
    /// When something expires by our own clock, and not before it is so by the server's.
    fn here(&self, expiry: Option<Instant>) -> Instant {
        let left = expiry.map_or(LONGEST, |expiry| expiry.since(self.now));
        Instant::now() + left.min(LONGEST) + Duration::from_millis(1)
    }
}

/// When to look next.
struct Pace {
    /// When something expires.
    expiry: Instant,
    /// When to look although nothing is known to happen.
    anyway: Instant,
    pause: Duration,
    holders: Vec<RequestId>,
    /// Not before this, whatever is due.
    rest: Instant,
}

impl Pace {
    fn new() -> Self {
        let soon = Instant::now() + PAUSE.0;
        // Who joins says when something expires, or else the first look does.
        Self { expiry: soon, anyway: soon, pause: PAUSE.0, holders: Vec::new(), rest: soon }
    }

    fn due(&self, keep: Instant, hears: bool) -> Instant {
        let due = self.expiry.min(keep);
        let due = if hears { due } else { due.min(self.anyway) };
        due.max(self.rest)
    }

    fn looked(&mut self, seen: Seen, after: After) {
        let now = Instant::now();
        self.expiry = after.here(seen.next);
        self.pause = match seen.holders == self.holders {
            true => (self.pause * 2).min(PAUSE.1),
            false => PAUSE.0,
        };
        self.holders = seen.holders;
        // One that took two statements counts for two.
        let pause = self.pause * after.statements.clamp(1, 4);
        let chance = u32::try_from(owner::random() % 300).unwrap_or(0);
        self.anyway = now + pause + pause * chance / 1000;
        self.rest = now + PAUSE.0;
    }

    fn failed(&mut self) {
        self.pause = (self.pause * 2).min(PAUSE.1);
        let next = Instant::now() + self.pause;
        (self.expiry, self.anyway, self.rest) = (next, next, next);
    }
}
