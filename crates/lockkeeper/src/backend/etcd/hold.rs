//! One hold in an etcd cluster.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::client::{is_lease_gone, seconds, unanswered};
use super::layout::{self, Keys};
use super::queue::{Place, number, token};
use super::spare::Leased;
use super::steps::{self, Answers};
use super::watcher::{Spec, Watch};
use super::{RETRY, Server, pb};
use crate::backend::register::Check;
use crate::backend::{Hold, Release, Renewal};
use crate::clock::Instant;
use crate::error::Result;
use crate::loss::{Cause, Loss};
use crate::owner::RequestId;
use crate::token::TokenBlock;

/// How often what is in the key is looked at again before a write is given up.
const TRIES: u32 = 8;
/// A hold that is given back sooner than this is not watched: that would be two more messages.
const BRIEF: Duration = Duration::from_millis(20);

pub(super) struct EtcdHold {
    server: Arc<Server>,
    keys: Keys,
    own: Vec<u8>,
    id: RequestId,
    created: i64,
    token: u64,
    /// The revision of the grant.
    since: i64,
    registered: AtomicBool,
    expires: AtomicU64,
    loss: Loss,
    /// What is in the key. One writes at a time.
    written: Mutex<Written>,
    /// Every lease that may still live.
    leases: parking_lot::Mutex<Vec<i64>>,
    /// The first lease, if it can be used again when it has nothing to do with this hold any more.
    spare: Option<Leased>,
    watch: parking_lot::Mutex<Watching>,
}

enum Watching {
    NotYet,
    Now(#[allow(dead_code, reason = "ends when dropped")] Watch),
    NoMore,
}

struct Written {
    place: Place,
    /// The revision in which we wrote it last, as far as we know.
    modified: i64,
    lease: i64,
    /// How long the lease lasts when it is kept alive: it cannot be changed.
    ttl: Duration,
    generation: u32,
    /// The key may have the next lease already: the answer is not known.
    moving: bool,
}

impl EtcdHold {
    pub(super) fn new(
        server: Arc<Server>,
        keys: Keys,
        own: Vec<u8>,
        place: Place,
        (id, created, expires): (RequestId, i64, Instant),
        (leased, first): (Leased, i64),
        all_answered: bool,
    ) -> Arc<Self> {
        let (lease, ttl) = (leased.id, leased.ttl);
        let token = place.held.and_then(|held| held.token).unwrap_or(0);
        let since = place.held.and_then(|held| held.since).and_then(|at| i64::try_from(at).ok());
        // A grant that is found again may have come far: its next lease is none of those it had.
        let generation = if lease == first { 0 } else { layout::generation(&keys, id, lease) };
        let since = since.unwrap_or(created);
        let modified = since;
        Arc::new(Self {
            server,
            keys,
            own,
            id,
            created,
            token,
            since,
            registered: AtomicBool::new(false),
            expires: AtomicU64::new(expires.as_nanos()),
            loss: Loss::new(),
            written: Mutex::new(Written { place, modified, lease, ttl, generation, moving: false }),
            leases: parking_lot::Mutex::new(vec![lease]),
            spare: (all_answered && lease == first).then_some(leased),
            watch: parking_lot::Mutex::new(Watching::NotYet),
        })
    }

    /// Hears when the key goes, from when it was created on; if it is held for more than a moment.
    pub(super) fn watch(self: &Arc<Self>) {
        self.server.requests.hold(self.id, self);
        self.registered.store(true, Ordering::Release);
        let hold = Arc::downgrade(self);
        self.server.requests.runtime().spawn(async move {
            tokio::time::sleep(BRIEF).await;
            let Some(hold) = hold.upgrade() else { return };
            let mut watch = hold.watch.lock();
            if matches!(*watch, Watching::NotYet) {
                let (key, from) = (hold.own.clone(), hold.since + 1);
                let (request, range_end) = (hold.id, Vec::new());
                let spec = Spec { request, key, range_end, deletions: true, from };
                *watch = Watching::Now(hold.server.watcher.watch(spec));
            }
        });
    }

    pub(super) fn expires_then(&self, at: Instant) {
        self.expires.store(at.as_nanos(), Ordering::Release);
    }

    /// Why the hold is not ours any more; `None` while it is.
    pub(super) async fn cause(&self) -> Result<Option<Cause>> {
        Ok(self.look().await?.0)
    }

    /// The same, and who answered.
    async fn look(&self) -> Result<(Option<Cause>, Option<pb::ResponseHeader>)> {
        let look = steps::look(&self.keys, &self.own);
        let answer = self.server.client.txn(look).await?;
        Ok((self.judge(&mut Answers::of(answer.responses)).err(), answer.header))
    }

    /// Reads the answers about the key and about an eviction: when it was last written, or why it is
    /// not ours any more.
    fn judge(&self, answers: &mut Answers) -> Result<i64, Cause> {
        let own = answers.keys();
        if let Some(own) = own.first().filter(|own| own.create_revision == self.created) {
            return Ok(own.mod_revision);
        }
        Err(match answers.keys().first() {
            Some(why) => Cause::Evicted(String::from_utf8_lossy(&why.value).into_owned()),
            None => Cause::Gone,
        })
    }

    /// Writes the key anew if it is still ours. Whatever was sent before and given up on is too late
    /// from then on: it was to follow another write.
    async fn write(
        &self,
        modified: &mut i64,
        place: &Place,
        lease: Option<i64>,
    ) -> Result<Option<Cause>> {
        let own = || self.own.clone();
        for _ in 0..TRIES {
            let step = steps::txn(
                vec![steps::modified(own(), *modified)],
                vec![steps::put(own(), place.to_value(), lease)],
                vec![steps::get(own()), steps::get(self.keys.evicted(&self.own))],
            );
            let answer = self.server.client.txn(step).await?;
            if answer.succeeded {
                *modified = answer.header.map_or(0, |header| header.revision);
                return Ok(None);
            }
            match self.judge(&mut Answers::of(answer.responses)) {
                // Our own, whose answer was lost.
                Ok(written) => *modified = written,
                Err(cause) => return Ok(Some(cause)),
            }
        }
        Err(unanswered())
    }

    /// Writes anything if the key is still ours; the revision in which it did.
    pub(super) async fn write_all(&self, writes: Vec<pb::RequestOp>) -> Result<Option<u64>> {
        let ours = vec![steps::created(self.own.clone(), self.created)];
        let answer = self.server.client.txn(steps::txn(ours, writes, Vec::new())).await?;
        let revision = number(answer.header.map_or(0, |header| header.revision));
        Ok(answer.succeeded.then_some(revision))
    }

    /// Gives the key a lease that lasts longer.
    async fn lease_for(&self, written: &mut Written, ttl: Duration) -> Result<Renewal> {
        let generation = written.generation + 1;
        let lease = layout::lease(&self.keys, self.id, generation);
        self.leases.lock().push(lease);
        written.moving = true;
        let sent = Instant::now();
        let lasts = match self.server.client.grant(lease, ttl).await? {
            Some(lasts) => lasts,
            // Our own, made by a request whose answer was lost; but perhaps for another time.
            None => self.server.alive.keep(lease).await?,
        };
        match self.write(&mut written.modified, &written.place, Some(lease)).await {
            Ok(None) => {}
            Ok(Some(cause)) => return Ok(Renewal::Lost(cause)),
            Err(error) => {
                if is_lease_gone(&error) {
                    // It ended before it was used: the next attempt makes another one.
                    written.generation = generation;
                }
                return Err(error);
            }
        }
        let before = std::mem::replace(&mut written.lease, lease);
        (written.ttl, written.generation, written.moving) = (lasts, generation, false);
        self.leases.lock().retain(|kept| *kept != before);
        self.end_leases(&[before]);
        Ok(Renewal::Held(Some((sent + lasts).min(Instant::now() + ttl))))
    }

    /// Ends leases in the background. One that cannot be ended ends by itself.
    fn end_leases(&self, leases: &[i64]) {
        for lease in leases.iter().copied() {
            let client = Arc::clone(&self.server.client);
            self.server.requests.runtime().spawn(async move {
                for _ in 0..20 {
                    if client.revoke(lease).await.is_ok() {
                        return;
                    }
                    tokio::time::sleep(RETRY).await;
                }
            });
        }
    }
}

#[async_trait]
impl Check for EtcdHold {
    async fn check(&self) {
        // A hold that is never renewed has nobody else to ask: not the first failure decides.
        for _ in 0..50 {
            match self.cause().await {
                Ok(None) => return,
                Ok(Some(cause)) => return self.loss.declare(cause),
                Err(error) => tracing::debug!(%error, "could not check a hold"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

#[async_trait]
impl Hold for EtcdHold {
    fn tokens(&self) -> TokenBlock {
        TokenBlock::new(token(self.token), 1)
    }

    fn expires_at(&self) -> Option<Instant> {
        Some(Instant::from_nanos(self.expires.load(Ordering::Acquire)))
    }

    fn loss(&self) -> &Loss {
        &self.loss
    }

    async fn renew(self: Arc<Self>, ttl: Duration) -> Result<Renewal> {
        let mut written = self.written.lock().await;
        // Once it has begun to move it must arrive, or nobody knows which lease to keep alive.
        if written.moving || seconds(ttl) > seconds(written.ttl) {
            return self.lease_for(&mut written, ttl).await;
        }
        let sent = Instant::now();
        let kept = self.server.alive.ask(written.lease).await?;
        // The lease may live on without the key, when somebody took that away.
        let (cause, header) = self.look().await?;
        if let Some(cause) = cause {
            return Ok(Renewal::Lost(cause));
        }
        Ok(match kept.confirmed_by(header.as_ref())? {
            Duration::ZERO => Renewal::Lost(Cause::Gone),
            lasts => Renewal::Held(Some((sent + lasts).min(Instant::now() + ttl))),
        })
    }

    async fn downgrade(self: Arc<Self>) -> Result<Renewal> {
        let mut written = self.written.lock().await;
        let mut place = written.place.clone();
        place.kind = place.kind.downgraded().unwrap_or(place.kind);
        Ok(match self.write(&mut written.modified, &place, None).await? {
            Some(cause) => Renewal::Lost(cause),
            None => {
                written.place = place;
                Renewal::Held(self.expires_at())
            }
        })
    }

    fn park(&self) -> bool {
        false
    }

    fn unpark(&self) -> bool {
        false
    }

    async fn release(self: Arc<Self>) -> Result<Release> {
        *self.watch.lock() = Watching::NoMore;
        let own = || (self.own.clone(), Vec::new());
        // Whoever takes it away says why in the same step: where it is still ours there is nothing.
        let why = steps::delete((self.keys.evicted(&self.own), Vec::new()));
        let ours = vec![steps::created(own().0, self.created)];
        let step = steps::txn(ours, vec![steps::delete(own())], vec![why]);
        let released = self.server.client.txn(step).await?.succeeded;
        // From here on they are nothing to do with this hold.
        let leases = std::mem::take(&mut *self.leases.lock());
        let spare = self.spare.filter(|spare| released && leases == [spare.id]);
        if !spare.is_some_and(|spare| self.server.spare.put(spare)) {
            self.end_leases(&leases);
        }
        Ok(if released { Release::Released } else { Release::NotHeld })
    }
}

impl Drop for EtcdHold {
    fn drop(&mut self) {
        if self.registered.load(Ordering::Acquire) {
            self.server.requests.forget(self.id);
        }
    }
}

impl fmt::Debug for EtcdHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdHold")
            .field("key", &String::from_utf8_lossy(&self.own))
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}
