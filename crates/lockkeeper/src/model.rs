//! The state of one name and every transition on it: the specification of a lock.
//!
//! Pure: time, liveness and the token counter come in as arguments, and what others must be told
//! goes out as [`News`]. `memory:` is this in a mutex, `file:` is this in a row of a database, and
//! every other backend must answer as this does, which the model test checks.
//!
//! # Rules
//!
//! 1. Each transition first lets go of what has expired by `now`.
//! 2. A free name is granted at once. Otherwise the request queues, if it wants to.
//! 3. Whatever frees a name hands it to the queue in the same step, so a name is never free while
//!    somebody who could hold it waits: nobody barges and no wake-up can be lost.
//! 4. The queue is served in order of arrival. Only an unfair reader may pass those before it.
//! 5. Parties that are found dead are skipped; their holds and places are forgotten.
//! 6. A grant out of the queue first lasts no longer than the waiter's own lease: a party that is
//!    alive asks again at once (the request is idempotent) and gets its full time; one that is
//!    stopped delays the rest by no more than that.

mod latches;
mod presence;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::{Holding, Kind, Status};
use crate::clock::Instant;
use crate::loss::Cause;
use crate::name::Name;
use crate::owner::{Owner, RequestId};
use crate::token::{Token, TokenBlock};

/// How long the reason of an eviction is kept for a holder without a lease to ask for it.
const EVICTION_MEMORY: Duration = Duration::from_secs(60);

/// Everything known about one name. `P` is how a backend finds the party behind a request again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State<P> {
    holders: Vec<Holder<P>>,
    queue: Vec<Waiter<P>>,
    latch: Option<Latch<P>>,
    evicted: Vec<Evicted>,
}

/// A request as the model sees it.
#[derive(Clone, Debug)]
pub struct Ask<P> {
    /// Which acquisition.
    pub id: RequestId,
    /// For whom.
    pub owner: Owner,
    /// In which way.
    pub kind: Kind,
    /// How long the lease lasts; `None`: as long as the party lives.
    pub ttl: Option<Duration>,
    /// How many tokens.
    pub tokens: u32,
    /// Whether to queue.
    pub place: Place,
    /// Whom to tell.
    pub party: P,
}

/// Whether a request that cannot be granted now wants a place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// No.
    None,
    /// Yes, for as long as it asks again within this time.
    Leased(Duration),
    /// Yes, for as long as the party is present. A grant out of the queue first lasts for this time.
    Present(Duration),
    /// Yes, until it is withdrawn.
    Kept,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Granted, now or before.
    Granted {
        /// The tokens.
        tokens: TokenBlock,
        /// When the lease ends.
        expires: Option<Instant>,
    },
    /// In the queue.
    Queued,
    /// Not to be had now.
    Busy,
    /// The owner reads already.
    Upgrade,
    /// The name is in use as this.
    WrongKind(&'static str),
}

/// Whom a transition concerns besides the one who asked.
#[derive(Clone, Debug)]
pub struct News<P> {
    /// Those whose request was granted.
    pub granted: Vec<(P, RequestId)>,
    /// Those whose hold was taken away.
    pub lost: Vec<(P, RequestId, Cause)>,
    /// Those who wait for a latch that has opened or gone away.
    pub opened: Vec<(P, RequestId)>,
    /// Those who lose their place unless they ask again.
    pub doubted: Vec<(P, RequestId)>,
}

impl<P> Default for News<P> {
    fn default() -> Self {
        Self { granted: vec![], lost: vec![], opened: vec![], doubted: vec![] }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Holder<P> {
    id: RequestId,
    owner: Owner,
    kind: Kind,
    tokens: TokenBlock,
    since: Instant,
    expires: Option<Instant>,
    party: P,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Waiter<P> {
    id: RequestId,
    owner: Owner,
    kind: Kind,
    ttl: Option<Duration>,
    tokens: u32,
    lease: Option<Duration>,
    expires: Option<Instant>,
    party: P,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Latch<P> {
    count: u32,
    ttl: Duration,
    expires: Instant,
    waiting: Vec<(P, RequestId)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Evicted {
    id: RequestId,
    reason: String,
    until: Instant,
}

/// What a transition needs to know of the world.
pub struct World<'a, P> {
    /// The present moment.
    pub now: Instant,
    /// The last token issued.
    pub counter: &'a mut u64,
    /// Whether a party still lives. Asked only about those in somebody's way.
    pub alive: &'a dyn Fn(&P) -> bool,
    /// Whom to tell afterwards.
    pub news: &'a mut News<P>,
}

impl<P> std::fmt::Debug for World<'_, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("now", &self.now).finish_non_exhaustive()
    }
}

impl<P> Default for State<P> {
    fn default() -> Self {
        Self { holders: Vec::new(), queue: Vec::new(), latch: None, evicted: Vec::new() }
    }
}

impl<P: Clone> State<P> {
    /// Whether there is nothing to remember about the name.
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty()
            && self.queue.is_empty()
            && self.latch.is_none()
            && self.evicted.is_empty()
    }

    /// When something expires next: whoever waits must look again then.
    pub fn next_expiry(&self) -> Option<Instant> {
        let holders = self.holders.iter().filter_map(|holder| holder.expires);
        let waiters = self.queue.iter().filter_map(|waiter| waiter.expires);
        holders.chain(waiters).chain(self.latch.as_ref().map(|latch| latch.expires)).min()
    }

    /// When the last of it expires: nothing is left to remember then, but who is present and waits.
    /// `None`: there is something that never does, or nothing at all.
    pub fn last_expiry(&self) -> Option<Instant> {
        let holders = self.holders.iter().map(|holder| holder.expires);
        let waiters = self.queue.iter().filter(|waiter| !waiter.is_present());
        let waiters = waiters.map(|waiter| waiter.expires);
        let evicted = self.evicted.iter().map(|evicted| Some(evicted.until));
        let latch = self.latch.iter().map(|latch| Some(latch.expires));
        let all: Option<Vec<_>> = holders.chain(waiters).chain(evicted).chain(latch).collect();
        all?.into_iter().max()
    }

    /// Whether there is nothing but the hold of this request.
    pub fn is_only(&self, id: RequestId) -> bool {
        self.queue.is_empty()
            && self.latch.is_none()
            && self.evicted.is_empty()
            && matches!(self.holders.as_slice(), [one] if one.id == id)
    }

    /// The requests that are granted.
    pub fn held_by(&self) -> impl Iterator<Item = RequestId> {
        self.holders.iter().map(|holder| holder.id)
    }

    /// Moves every time and every token on, for a store that learns only afterwards from where they
    /// count.
    pub fn shift(&mut self, time: Duration, tokens: u64) {
        for holder in &mut self.holders {
            holder.since = holder.since + time;
            holder.expires = holder.expires.map(|at| at + time);
            holder.tokens = holder.tokens.shifted(tokens);
        }
        for waiter in &mut self.queue {
            waiter.expires = waiter.expires.map(|at| at + time);
        }
        for evicted in &mut self.evicted {
            evicted.until = evicted.until + time;
        }
        if let Some(latch) = &mut self.latch {
            latch.expires = latch.expires + time;
        }
    }

    /// Those whose death concerns this request: the holders, and whoever waits next before it, who in
    /// turn looks after those before.
    pub fn ahead_of(&self, id: RequestId) -> impl Iterator<Item = &P> {
        let next = self.queue.iter().take_while(move |waiter| waiter.id != id).last();
        self.holders.iter().map(|holder| &holder.party).chain(next.map(|waiter| &waiter.party))
    }

    /// Asks for the name. Idempotent: a repeated request finds its grant, which then lasts its full
    /// time again at least, or its place, whose lease then starts again.
    pub fn acquire(&mut self, ask: Ask<P>, world: &mut World<'_, P>) -> Answer {
        self.expire(world);
        let now = world.now;
        if let Some(mine) = self.holders.iter_mut().find(|holder| holder.id == ask.id) {
            mine.expires = mine.expires.max(ask.ttl.map(|ttl| now + ttl));
            return Answer::Granted { tokens: mine.tokens, expires: mine.expires };
        }
        if self.conflicting_family(ask.kind).is_some() || !self.may_take(&ask) {
            self.bury(world);
        }
        if let Some(family) = self.conflicting_family(ask.kind) {
            return Answer::WrongKind(family);
        }
        let in_line = self.queue.iter().any(|waiter| waiter.id == ask.id);
        if !in_line && ask.kind.is_exclusive() && self.reads(&ask.owner) {
            return Answer::Upgrade;
        }
        // Burying may have granted it to us: we were in the queue.
        if let Some(mine) = self.holders.iter_mut().find(|holder| holder.id == ask.id) {
            mine.expires = mine.expires.max(ask.ttl.map(|ttl| now + ttl));
            return Answer::Granted { tokens: mine.tokens, expires: mine.expires };
        }
        if self.may_take(&ask) {
            return self.grant(ask, world);
        }
        self.enqueue(ask, now)
    }

    /// Lets the lease end `ttl` from now; `None` where the hold never ends by itself.
    pub fn renew(
        &mut self,
        id: RequestId,
        ttl: Option<Duration>,
        world: &mut World<'_, P>,
    ) -> Result<Option<Instant>, Cause> {
        self.expire(world);
        let now = world.now;
        match self.holders.iter_mut().find(|holder| holder.id == id) {
            Some(mine) => {
                mine.expires = ttl.map(|ttl| now + ttl);
                Ok(mine.expires)
            }
            None => Err(self.why_lost(id)),
        }
    }

    /// Why a hold is not ours any more; `None` while it is.
    pub fn check(&mut self, id: RequestId, world: &mut World<'_, P>) -> Option<Cause> {
        self.expire(world);
        (!self.holders.iter().any(|holder| holder.id == id)).then(|| self.why_lost(id))
    }

    /// Gives up whatever the request has, a hold or a place; whether it was a hold.
    pub fn release(&mut self, id: RequestId, world: &mut World<'_, P>) -> bool {
        self.expire(world);
        self.evicted.retain(|evicted| evicted.id != id);
        let held = self.holders.len();
        self.holders.retain(|holder| holder.id != id);
        self.queue.retain(|waiter| waiter.id != id);
        let held = self.holders.len() < held;
        self.hand_over(world);
        held
    }

    /// Turns a hold for writing into one for reading, under the same token.
    pub fn downgrade(
        &mut self,
        id: RequestId,
        world: &mut World<'_, P>,
    ) -> Result<Option<Instant>, Cause> {
        self.expire(world);
        let Some(mine) = self.holders.iter_mut().find(|holder| holder.id == id) else {
            return Err(self.why_lost(id));
        };
        mine.kind = mine.kind.downgraded().unwrap_or(mine.kind);
        let expires = mine.expires;
        self.hand_over(world);
        Ok(expires)
    }

    /// Takes the name away from all holders and raises the token.
    pub fn evict(&mut self, reason: &str, world: &mut World<'_, P>) -> (Vec<Owner>, Token) {
        self.expire(world);
        let token = TokenBlock::issue(world.counter, 1).first();
        let evicted = std::mem::take(&mut self.holders);
        for holder in &evicted {
            self.evicted.push(Evicted {
                id: holder.id,
                reason: reason.to_owned(),
                until: holder.expires.unwrap_or(world.now + EVICTION_MEMORY),
            });
            world.news.lost.push((
                holder.party.clone(),
                holder.id,
                Cause::Evicted(reason.to_owned()),
            ));
        }
        self.hand_over(world);
        (evicted.into_iter().map(|holder| holder.owner).collect(), token)
    }

    /// Begins again after a reboot: no party lives any more, and the clock has started again.
    /// Latches stay.
    pub fn restart(&mut self, now: Instant) {
        let latch = self.latch.take();
        *self = Self::default();
        self.latch =
            latch.map(|latch| Latch { expires: now + latch.ttl, waiting: Vec::new(), ..latch });
    }

    /// Lets go of all that has expired or died.
    pub fn settle(&mut self, world: &mut World<'_, P>) {
        self.expire(world);
        self.bury(world);
    }

    /// What there is to see.
    pub fn status(&self, name: &Name, now: Instant) -> Status {
        Status {
            name: name.clone(),
            kind: self
                .kinds()
                .next()
                .map(|kind| kind.family().to_owned())
                .or(self.latch.as_ref().map(|_| "latch".to_owned())),
            holders: self.holders.iter().map(|holder| holder.show(now)).collect(),
            waiters: self.queue.iter().map(|waiter| waiter.owner.clone()).collect(),
            count: self.latch.as_ref().map(|latch| latch.count),
        }
    }

    fn why_lost(&self, id: RequestId) -> Cause {
        match self.evicted.iter().find(|evicted| evicted.id == id) {
            Some(evicted) => Cause::Evicted(evicted.reason.clone()),
            None => Cause::Gone,
        }
    }

    /// Lets go of what has run out, and hands over what that freed.
    fn expire(&mut self, world: &mut World<'_, P>) {
        let now = world.now;
        let over = |expires: Option<Instant>| expires.is_some_and(|expires| expires <= now);
        self.evicted.retain(|evicted| evicted.until > now);
        if self.latch.as_ref().is_some_and(|latch| latch.expires <= now) {
            self.open_latch(world);
        }
        if !self.holders.iter().any(|holder| over(holder.expires))
            && !self.queue.iter().any(|waiter| over(waiter.expires))
        {
            return;
        }
        self.queue.retain(|waiter| !over(waiter.expires));
        self.holders.retain(|holder| {
            let lost = over(holder.expires);
            if lost {
                world.news.lost.push((holder.party.clone(), holder.id, Cause::Expired));
            }
            !lost
        });
        self.hand_over(world);
    }

    /// Forgets the dead, and hands over what they held.
    fn bury(&mut self, world: &mut World<'_, P>) {
        self.holders.retain(|holder| (world.alive)(&holder.party));
        self.queue.retain(|waiter| (world.alive)(&waiter.party));
        self.hand_over(world);
    }

    /// Serves the queue as far as it can be served.
    fn hand_over(&mut self, world: &mut World<'_, P>) {
        let mut passed = false;
        let mut at = 0;
        while let Some(waiter) = self.queue.get(at) {
            let free = self.compatible(waiter.kind, &waiter.owner);
            let turn = free && (!passed || waiter.kind == Kind::Read);
            if !turn {
                passed = true;
                at += 1;
                continue;
            }
            let waiter = self.queue.remove(at);
            if !(world.alive)(&waiter.party) {
                continue;
            }
            world.news.granted.push((waiter.party.clone(), waiter.id));
            let ttl = waiter.ttl.map(|ttl| waiter.lease.map_or(ttl, |lease| ttl.min(lease)));
            let ask = Ask {
                id: waiter.id,
                owner: waiter.owner,
                kind: waiter.kind,
                ttl,
                tokens: waiter.tokens,
                place: Place::None,
                party: waiter.party,
            };
            self.grant(ask, world);
        }
    }

    fn grant(&mut self, ask: Ask<P>, world: &mut World<'_, P>) -> Answer {
        self.queue.retain(|waiter| waiter.id != ask.id);
        // Reading under one's own write lock is the same piece of work: it keeps the token.
        let own_write = self.holders.iter().find(|holder| holder.owner == ask.owner);
        let tokens = match own_write {
            Some(write) if ask.kind.is_shared() => write.tokens,
            _ => TokenBlock::issue(world.counter, ask.tokens),
        };
        let expires = ask.ttl.map(|ttl| world.now + ttl);
        self.holders.push(Holder {
            id: ask.id,
            owner: ask.owner,
            kind: ask.kind,
            tokens,
            since: world.now,
            expires,
            party: ask.party,
        });
        Answer::Granted { tokens, expires }
    }

    fn enqueue(&mut self, ask: Ask<P>, now: Instant) -> Answer {
        let (lease, expires) = match ask.place {
            Place::None => return Answer::Busy,
            Place::Leased(lease) => (Some(lease), Some(now + lease)),
            Place::Present(lease) => (Some(lease), None),
            Place::Kept => (None, None),
        };
        match self.queue.iter_mut().find(|waiter| waiter.id == ask.id) {
            Some(waiter) => waiter.expires = expires,
            None => self.queue.push(Waiter {
                id: ask.id,
                owner: ask.owner,
                kind: ask.kind,
                ttl: ask.ttl,
                tokens: ask.tokens,
                lease,
                expires,
                party: ask.party,
            }),
        }
        Answer::Queued
    }

    /// Whether a newcomer may have the name now.
    fn may_take(&self, ask: &Ask<P>) -> bool {
        let own_write = ask.kind.is_shared() && self.holders.iter().any(|h| h.owner == ask.owner);
        let first = self.queue.first().is_none_or(|waiter| waiter.id == ask.id);
        self.compatible(ask.kind, &ask.owner) && (first || own_write || ask.kind == Kind::Read)
    }

    /// Whether the holders leave room for one more of this kind.
    fn compatible(&self, kind: Kind, owner: &Owner) -> bool {
        match kind {
            Kind::Permit { of } => self.holders.len() < of as usize,
            Kind::Read | Kind::FairRead => {
                self.holders.iter().all(|holder| holder.kind.is_shared() || holder.owner == *owner)
            }
            _ => self.holders.is_empty(),
        }
    }

    fn reads(&self, owner: &Owner) -> bool {
        self.holders.iter().any(|holder| holder.kind.is_shared() && holder.owner == *owner)
    }

    /// What the name is in use as, if that rules out this kind.
    fn conflicting_family(&self, kind: Kind) -> Option<&'static str> {
        if self.latch.is_some() {
            return Some("latch");
        }
        let is_permit = |kind| matches!(kind, Kind::Permit { .. });
        self.kinds().find(|used| is_permit(*used) != is_permit(kind)).map(Kind::family)
    }

    /// In which ways the name is held and waited for.
    fn kinds(&self) -> impl Iterator<Item = Kind> {
        let holders = self.holders.iter().map(|holder| holder.kind);
        holders.chain(self.queue.iter().map(|waiter| waiter.kind))
    }
}

impl<P> Holder<P> {
    fn show(&self, now: Instant) -> Holding {
        Holding {
            owner: self.owner.clone(),
            token: self.tokens.first(),
            held: now.since(self.since),
            lease_left: self.expires.map(|expires| expires.since(now)),
        }
    }
}
