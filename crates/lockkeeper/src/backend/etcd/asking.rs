//! One request: its lease, its place in line, and its turn. Undone when dropped, unless it is granted.

use std::sync::Arc;
use std::time::Duration;

use super::client::{duration, is_lease_gone, seconds};
use super::hold::EtcdHold;
use super::layout::{self, Keys};
use super::proto::mvccpb::KeyValue;
use super::queue::{self, Entry, Place, Turn, number};
use super::spare::Leased;
use super::steps::{self, Answers};
use super::watcher::{GONE, Spec, Watch};
use super::{Etcd, RETRY, Server, WAITER_LEASE};
use crate::backend::{Hold, Kind, Patience, Renewal, Request, Term};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::undo::UNDOING;

/// How often what somebody else changed in the meantime is looked at again before a pause.
const TRIES: u32 = 8;

/// How a step ended.
pub(super) enum Step {
    Granted(Arc<dyn Hold>),
    /// Not to be had now, and nobody wants to wait.
    Busy,
    /// To be looked at again then, or when there is news.
    Waits(Instant),
}

pub(super) struct Asking<'a> {
    etcd: &'a Etcd,
    request: Request,
    keys: Keys,
    /// The lease that the key is named after: one of our own, or one that was used before.
    first: i64,
    /// The lease that the key has.
    lease: i64,
    own: Vec<u8>,
    place: Place,
    /// While the lease is known to live.
    leased: Option<Leased>,
    /// Everything that was sent has been answered.
    all_answered: bool,
    /// The revision in which the place was created.
    created: Option<i64>,
    /// When the step began that is under way.
    began: Instant,
    /// It has not yet begun to wait: not even if something was lost on the way.
    is_new: bool,
    watching: Option<(Turn, Watch)>,
    /// Nothing is left to undo.
    settled: bool,
    granted: bool,
}

impl<'a> Asking<'a> {
    pub(super) fn new(etcd: &'a Etcd, request: Request) -> Self {
        let keys = Keys::of(&etcd.prefix, &request.name, request.kind);
        let leased = etcd.server.spare.take(duration(seconds(first_lease(&request))));
        let lease = leased.map_or_else(|| layout::lease(&keys, request.id, 0), |leased| leased.id);
        Self {
            own: keys.own(lease),
            place: Place::new(request.id, &request.owner, request.kind),
            etcd,
            request,
            keys,
            first: lease,
            lease,
            leased,
            all_answered: true,
            created: None,
            began: Instant::now(),
            is_new: true,
            watching: None,
            settled: false,
            granted: false,
        }
    }

    fn server(&self) -> &'a Arc<Server> {
        &self.etcd.server
    }

    /// Goes as far as possible without waiting for others. An error that may pass: do it again.
    pub(super) async fn step(&mut self, word: Option<&str>) -> Result<Step> {
        self.began = Instant::now();
        self.keep_alive().await?;
        let mut queue = match self.created {
            None => match self.line_up().await {
                Err(error) if is_lease_gone(&error) => {
                    self.leased = None;
                    return Ok(Step::Waits(Instant::now()));
                }
                queue => queue?,
            },
            Some(created) if word == Some(GONE) && self.request.kind.is_exclusive() => {
                // Most likely the predecessor is gone: then it is our turn, in one step.
                let range = self.keys.range();
                let first =
                    vec![steps::none_before(range.clone(), created), steps::none_rewritten(range)];
                match self.take(created, first, None).await? {
                    Ok(grant) => return self.granted(created, grant).await,
                    Err(queue) => queue,
                }
            }
            Some(_) => {
                let range = steps::all(self.keys.range());
                steps::queue(&self.keys, self.server().client.range(range).await?.kvs)
            }
        };
        for _ in 0..TRIES {
            let Some(me) = queue.iter().position(|entry| entry.key == self.own) else {
                // The lease has ended, or somebody took the place away.
                self.begin_again();
                return Ok(Step::Waits(Instant::now()));
            };
            self.recognise(&queue[me])?;
            let created = queue[me].created;
            self.created = Some(created);
            let owner = &self.request.owner;
            if self.is_new && self.request.kind.is_exclusive() && queue::reads(&queue, owner) {
                let (name, owner) = (self.request.name.clone(), owner.clone());
                return Err(Error::Upgrade { name, owner });
            }
            match queue::turn(&queue, me, self.is_new) {
                Turn::Holds => {
                    // Sent again, by a request that has got its longer lease already.
                    self.adopt(queue[me].lease).await?;
                    let grant = (queue[me].token(), queue[me].since());
                    return self.granted(created, grant).await;
                }
                Turn::Take { beside, token } => {
                    let beside = beside.map(|(key, revision)| steps::modified(key, revision));
                    match self.take(created, beside.into_iter().collect(), token).await? {
                        Ok(grant) => return self.granted(created, grant).await,
                        Err(now) => queue = now,
                    }
                }
                _ if self.request.patience == Patience::TryOnce => return Ok(Step::Busy),
                turn => {
                    self.watch(turn);
                    return Ok(Step::Waits(self.due()));
                }
            }
        }
        Ok(Step::Waits(Instant::now() + RETRY))
    }

    /// Makes the lease, or keeps it alive when that is due.
    async fn keep_alive(&mut self) -> Result<()> {
        let server = self.server();
        let sent = Instant::now();
        let ttl = match self.leased {
            Some(_) if sent < self.due() => return Ok(()),
            Some(_) => server.alive.keep(self.lease).await?,
            None => {
                match server.client.grant(self.lease, first_lease(&self.request)).await? {
                    Some(ttl) => ttl,
                    // Our own, made by a request whose answer was lost.
                    None => server.alive.keep(self.lease).await?,
                }
            }
        };
        self.leased = (!ttl.is_zero()).then_some(Leased { id: self.lease, sent, ttl });
        if self.leased.is_none() {
            self.begin_again();
            return Err(super::client::unanswered());
        }
        Ok(())
    }

    /// Goes to the end of the line.
    fn begin_again(&mut self) {
        (self.created, self.leased, self.is_new) = (None, None, true);
    }

    /// When the lease must be kept alive.
    fn due(&self) -> Instant {
        self.leased.map_or(Instant::from_nanos(0), |leased| leased.due())
    }

    /// Creates the place in line, or finds it; the queue.
    async fn line_up(&mut self) -> Result<Vec<Entry>> {
        let keys = &self.keys;
        let mut quiet = steps::not_otherwise(keys);
        for _ in 0..TRIES {
            let step = steps::enqueue(keys, &self.own, &self.place, self.lease, quiet);
            let answer = self.server().client.txn(step).await?;
            let revision = answer.header.map_or(0, |header| header.revision);
            if answer.succeeded {
                // Written right now, and alone.
                let (key, lease) = (self.own.clone(), self.lease);
                let place = Some(self.place.holding(None, None));
                let entry = Entry { key, created: revision, modified: revision, lease, place };
                return Ok(vec![entry]);
            }
            let (lined_up, mut answers) = Answers::of(answer.responses).nested();
            if lined_up {
                answers.skip();
                let queue = steps::queue(keys, answers.keys());
                return self.only_once(queue).await;
            }
            let queue = steps::queue(keys, answers.keys());
            if queue.iter().any(|entry| entry.key == self.own) {
                return Ok(queue);
            }
            let rivals = steps::queue(&keys.rivals(), answers.keys());
            if let Some(used_as) = used_as(&rivals, &answers.keys()) {
                return Err(wrong_kind(&self.request, used_as));
            }
            // What is there belongs to names below this one: as long as nothing is added, it is free.
            let range = keys.rivals().range();
            quiet = vec![steps::none_since(range, revision), steps::created(keys.latch().0, 0)];
        }
        Err(super::client::unanswered())
    }

    /// Goes on with the place that the same request has already, if it was sent before, and that was
    /// with another lease.
    async fn only_once(&mut self, mut queue: Vec<Entry>) -> Result<Vec<Entry>> {
        let same = |entry: &&Entry| {
            let place = entry.place.as_ref();
            entry.key != self.own && place.is_some_and(|place| place.id == self.place.id)
        };
        let Some((key, lease)) =
            queue.iter().find(same).map(|entry| (entry.key.clone(), entry.lease))
        else {
            return Ok(queue);
        };
        self.server().client.revoke(self.first).await?;
        queue.retain(|entry| entry.key != self.own);
        (self.own, self.first) = (key, lease);
        self.something_was_lost();
        self.adopt(lease).await?;
        Ok(queue)
    }

    /// Something that was sent may still be on its way: then the lease must end with this request.
    pub(super) fn something_was_lost(&mut self) {
        self.all_answered = false;
    }

    /// Goes on with the lease that the key has.
    async fn adopt(&mut self, lease: i64) -> Result<()> {
        if self.lease == lease {
            return Ok(());
        }
        let sent = Instant::now();
        let ttl = self.server().alive.keep(lease).await?;
        self.lease = lease;
        self.leased = (!ttl.is_zero()).then_some(Leased { id: lease, sent, ttl });
        Ok(())
    }

    /// Writes that we hold; the token and the revision of the grant, or the queue if something is not
    /// as it must be.
    async fn take(
        &self,
        created: i64,
        only_if: Vec<super::pb::Compare>,
        token: Option<u64>,
    ) -> Result<Result<(u64, u64), Vec<Entry>>> {
        let step = steps::take(&self.keys, &self.own, &self.place, created, only_if, token);
        let answer = self.server().client.txn(step).await?;
        if !answer.succeeded {
            let found = Answers::of(answer.responses).keys();
            return Ok(Err(steps::queue(&self.keys, found)));
        }
        let since = number(answer.header.map_or(0, |header| header.revision));
        Ok(Ok((token.unwrap_or(since), since)))
    }

    /// Two requests whose leases have the same id are as likely as not at all; but never two holders.
    fn recognise(&self, mine: &Entry) -> Result<()> {
        if mine.place.as_ref().is_some_and(|place| place.id == self.place.id) {
            return Ok(());
        }
        let key = String::from_utf8_lossy(&mine.key).into_owned();
        let context = format!("the key {key:?} is not what we wrote there");
        Err(Error::Unavailable { backend: "etcd", context, source: None })
    }

    /// Watches what stands in the way, unless it does so already.
    fn watch(&mut self, turn: Turn) {
        self.is_new = false;
        if self.watching.as_ref().is_some_and(|(watched, _)| *watched == turn) {
            return;
        }
        let (range, deletions) = match &turn {
            Turn::Gone(key) => ((key.clone(), Vec::new()), true),
            Turn::Key(key) => ((key.clone(), Vec::new()), false),
            _ => (self.keys.range(), true),
        };
        let ((key, range_end), request) = (range, self.request.id);
        let spec = Spec { request, key, range_end, deletions, from: 0 };
        self.watching = Some((turn, self.server().watcher.watch(spec)));
    }

    /// Makes the hold. One with a fixed lease must have it whole, however long ago the lease of its
    /// place began.
    async fn granted(&mut self, created: i64, (token, since): (u64, u64)) -> Result<Step> {
        let Some(leased) = self.leased else { return Ok(Step::Waits(Instant::now())) };
        let ttl = self.request.term.ttl();
        // Where the cluster's lease lasts longer than was asked for, none of the time to live is lost
        // on the way.
        let expires = (leased.sent + leased.ttl).min(Instant::now() + ttl);
        let hold = EtcdHold::new(
            Arc::clone(self.server()),
            self.keys.clone(),
            self.own.clone(),
            self.place.holding(Some(token), Some(since)),
            (self.request.id, created, expires),
            (leased, self.first),
            self.all_answered,
        );
        let whole = leased.sent + leased.ttl >= self.began + ttl;
        if matches!(self.request.term, Term::Fixed(_)) && !whole {
            match Arc::clone(&hold).renew(ttl).await? {
                Renewal::Held(Some(expires)) => hold.expires_then(expires),
                _ => {
                    self.begin_again();
                    return Ok(Step::Waits(Instant::now()));
                }
            }
        }
        (self.settled, self.granted) = (true, true);
        hold.watch();
        Ok(Step::Granted(hold))
    }

    /// Undoes it and waits for that; what fails goes on in the background.
    pub(super) async fn withdraw(&mut self) {
        let next = layout::lease(&self.keys, self.request.id, 1);
        let undone = undo(self.server(), &self.own, [self.first, next]).await;
        self.settled = undone.is_ok();
    }
}

/// Takes back whatever a request has: first the lease, so that nothing that is still on its way can
/// create the key any more.
async fn undo(server: &Server, own: &[u8], [first, next]: [i64; 2]) -> Result<()> {
    server.client.revoke(first).await?;
    let gone = vec![steps::delete((own.to_vec(), Vec::new()))];
    server.client.txn(steps::txn(Vec::new(), gone, Vec::new())).await?;
    server.client.revoke(next).await
}

/// For how long the first lease of a request is. Short even for who does not want to wait: it may die
/// before it has left the line.
fn first_lease(request: &Request) -> Duration {
    request.term.ttl().min(WAITER_LEASE)
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let requests = &self.server().requests;
        if !self.granted {
            requests.forget(self.request.id);
        }
        if self.settled {
            return;
        }
        let (server, own) = (Arc::clone(self.server()), self.own.clone());
        let leases = [self.first, layout::lease(&self.keys, self.request.id, 1)];
        let until = Instant::now() + self.request.term.ttl().max(WAITER_LEASE);
        let undoing = UNDOING.begin();
        requests.runtime().spawn(async move {
            let _undoing = undoing;
            while undo(&server, &own, leases).await.is_err() && Instant::now() < until {
                tokio::time::sleep(RETRY).await;
            }
        });
    }
}

/// What a name is in use as, by its other queue and its latch.
pub(super) fn used_as(rivals: &[Entry], latch: &[KeyValue]) -> Option<&'static str> {
    if !latch.is_empty() {
        return Some("latch");
    }
    let holder = queue::holders(rivals).first().copied().unwrap_or(0);
    rivals.get(holder).map(|entry| entry.kind().family())
}

fn wrong_kind(request: &Request, used_as: &'static str) -> Error {
    let asked = match request.kind {
        Kind::Permit { .. } => "semaphore",
        kind => kind.family(),
    };
    Error::WrongKind { name: request.name.clone(), used_as, asked }
}
