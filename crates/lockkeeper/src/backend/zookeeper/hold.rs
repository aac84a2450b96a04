//! A hold: a node that lives with the session.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteError};

use super::RETRY;
use super::layout::{Note, Role};
use super::reasons::why_gone;
use super::session::{Ensemble, Session, answered, delete_for_good, failed, is_answer};
use crate::backend::{Hold, Kind, Release, Renewal, Term};
use crate::clock::Instant;
use crate::error::Result;
use crate::loss::{Cause, Loss};
use crate::owner::{Owner, RequestId};
use crate::token::{Token, TokenBlock};

/// A hold that is given back sooner than this is not watched: it costs two requests, not three.
const BRIEF: Duration = Duration::from_millis(20);

pub(super) struct ZooKeeperHold {
    pub(super) ensemble: Arc<Ensemble>,
    pub(super) session: Arc<Session>,
    /// The node of the lock, and ours below it.
    pub(super) dir: String,
    pub(super) place: Mutex<Held>,
    pub(super) id: RequestId,
    pub(super) owner: Owner,
    pub(super) kind: Kind,
    pub(super) token: Token,
    term: Term,
    /// When we let go of it by ourselves, and until when it was believed in, which is not longer; both
    /// later with each renewal.
    ends: AtomicU64,
    expires: AtomicU64,
    loss: Loss,
    released: AtomicBool,
    number: AtomicU64,
    minder: Mutex<Option<AbortHandle>>,
}

/// Where a hold is and what it allows; both change when it is downgraded.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) path: String,
    pub(super) role: Role,
    /// Where it is instead, for reading, if a downgrade was done whose answer nobody has read yet.
    pub(super) or: Option<String>,
}

impl Held {
    pub(super) fn at(path: String, role: Role) -> Self {
        Self { path, role, or: None }
    }

    /// Where its node may be.
    fn paths(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.path.as_str()).chain(self.or.as_deref())
    }
}

/// What a request was granted.
pub(super) struct Grant {
    pub(super) dir: String,
    pub(super) held: Held,
    pub(super) id: RequestId,
    pub(super) owner: Owner,
    pub(super) kind: Kind,
    pub(super) token: Token,
    pub(super) term: Term,
    /// When the request was sent whose answer was the grant.
    pub(super) sent: Instant,
}

impl ZooKeeperHold {
    /// Takes note of a grant, and looks after it from now on.
    pub(super) fn new(ensemble: &Arc<Ensemble>, session: &Arc<Session>, grant: Grant) -> Arc<Self> {
        let ends = grant.sent + grant.term.ttl();
        let expires = Self::bounded(grant.term, ends, session);
        let hold = Arc::new(Self {
            ensemble: Arc::clone(ensemble),
            session: Arc::clone(session),
            dir: grant.dir,
            place: Mutex::new(grant.held),
            id: grant.id,
            owner: grant.owner,
            kind: grant.kind,
            token: grant.token,
            term: grant.term,
            expires: AtomicU64::new(expires.as_nanos()),
            ends: AtomicU64::new(ends.as_nanos()),
            loss: Loss::new(),
            released: AtomicBool::new(false),
            number: AtomicU64::new(0),
            minder: Mutex::default(),
        });
        hold.number.store(session.enlist(&hold), Ordering::Release);
        let minder = ensemble.runtime.spawn(mind(Arc::clone(&hold)));
        *hold.minder.lock() = Some(minder.abort_handle());
        hold
    }

    /// A hosted hold is never believed in for longer than its session. A fixed one is not renewed, so
    /// its session is watched apart from it.
    fn bounded(term: Term, ends: Instant, session: &Session) -> Instant {
        match term {
            Term::Hosted(_) => ends.min(session.lost_at()),
            Term::Fixed(_) => ends,
        }
    }

    pub(super) fn path(&self) -> String {
        self.place.lock().path.clone()
    }

    pub(super) fn declare(&self, cause: Cause) {
        self.loss.declare(cause);
    }

    /// When its node is to go by itself: at the end of its time, or, when it is lost before that, when
    /// nobody can believe in it any more.
    fn ends(&self) -> Instant {
        let end = if self.loss.cause().is_some() { &self.expires } else { &self.ends };
        Instant::from_nanos(end.load(Ordering::Acquire))
    }

    pub(super) fn is_lost(&self) -> bool {
        self.loss().cause().is_some()
    }

    /// It is lost, and there is nothing more to look after.
    fn end(&self, cause: Cause) {
        self.declare(cause);
        self.session.strike_off(&self.dir, self.number.load(Ordering::Acquire));
    }

    /// Nobody needs to look after it any more.
    fn dismiss(&self) {
        self.session.strike_off(&self.dir, self.number.load(Ordering::Acquire));
        if let Some(minder) = self.minder.lock().take() {
            minder.abort();
        }
    }

    /// Whether it is held for reading.
    pub(super) fn reads(&self) -> bool {
        self.place.lock().role.is_shared()
    }

    /// Whether it is still ours; if not, why.
    pub(super) async fn check(&self) -> Result<Option<Cause>, ZkError> {
        if self.released.load(Ordering::Acquire) {
            return Ok(Some(Cause::Gone));
        }
        if let Some(cause) = self.loss().cause() {
            return Ok(Some(cause.clone()));
        }
        loop {
            let path = self.path();
            if answered(self.session.client.check_stat(&path)).await?.is_some() {
                return Ok(None);
            }
            if !self.is_moved(&path).await? {
                return why_gone(&self.session, &self.dir, self.id).await.map(Some);
            }
        }
    }

    /// Whether a node that is not there is only called otherwise since: a downgrade took effect.
    async fn is_moved(&self, from: &str) -> Result<bool, ZkError> {
        let held = self.place.lock().clone();
        let Some(to) = held.or.filter(|_| held.path == from) else { return Ok(held.path != from) };
        let there = answered(self.session.client.check_stat(&to)).await?.is_some();
        if there {
            *self.place.lock() = Held::at(to, Role::Read);
        }
        Ok(there)
    }

    /// Removes its node for good, whatever that is called.
    async fn remove(&self) {
        let held = self.place.lock().clone();
        for path in held.paths() {
            delete_for_good(&self.session, path).await;
        }
    }
}

/// Looks after one hold: declares its loss when its node is gone, and removes the node when its time
/// is over, whether or not anybody still cares for it.
async fn mind(hold: Arc<ZooKeeperHold>) {
    let session = &hold.session;
    tokio::time::sleep(BRIEF.min(hold.ends().since(Instant::now()))).await;
    loop {
        let path = hold.path();
        let watcher = match answered(session.client.get_and_watch_data(&path)).await {
            Ok((_, _, watcher)) => Some(watcher),
            Err(ZkError::NoNode) => match hold.is_moved(&path).await {
                Ok(true) => continue,
                Ok(false) => {
                    let cause = why_gone(session, &hold.dir, hold.id).await.unwrap_or(Cause::Gone);
                    return hold.end(cause);
                }
                Err(_) => None,
            },
            Err(_) => None,
        };
        let left = hold.ends().since(Instant::now());
        if left.is_zero() {
            hold.end(Cause::Expired);
            return hold.remove().await;
        }
        let changed = async {
            match watcher {
                Some(watcher) => drop(watcher.changed().await),
                None => tokio::time::sleep(RETRY).await,
            }
        };
        let lost = async {
            match hold.loss.cause() {
                None => drop(hold.loss.wait().await),
                Some(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed => {}
            () = lost => {}
            () = session.over() => return hold.end(Cause::Expired),
            () = tokio::time::sleep(left) => {}
        }
    }
}

#[async_trait]
impl Hold for ZooKeeperHold {
    fn tokens(&self) -> TokenBlock {
        TokenBlock::new(self.token, 1)
    }

    fn expires_at(&self) -> Option<Instant> {
        Some(Instant::from_nanos(self.expires.load(Ordering::Acquire)))
    }

    /// Asks the clock first: after a pause, the session may be over before anybody could say so.
    fn loss(&self) -> &Loss {
        if self.loss.cause().is_none()
            && !self.released.load(Ordering::Acquire)
            && Instant::now() >= self.session.lost_at()
        {
            self.loss.declare(Cause::Expired);
        }
        &self.loss
    }

    async fn renew(self: Arc<Self>, ttl: Duration) -> Result<Renewal> {
        let sent = Instant::now();
        let unknown = |error| failed("a renewal", error);
        if let Some(cause) = self.check().await.map_err(unknown)? {
            return Ok(Renewal::Lost(cause));
        }
        // The heartbeat proves the session for all holds together; here it is only read.
        self.session.prove_unless_fresh().await.map_err(unknown)?;
        let ends = sent + ttl;
        let expires = Self::bounded(self.term, ends, &self.session);
        self.ends.store(ends.as_nanos(), Ordering::Release);
        self.expires.store(expires.as_nanos(), Ordering::Release);
        Ok(Renewal::Held(Some(expires)))
    }

    async fn downgrade(self: Arc<Self>) -> Result<Renewal> {
        let unknown = |error| failed("a downgrade", error);
        let held = self.place.lock().clone();
        let stays = Renewal::Held(self.expires_at());
        if held.role != Role::Write {
            return Ok(self.check().await.map_err(unknown)?.map_or(stays, Renewal::Lost));
        }
        let path = read_beside(&self.ensemble, &held.path, self.id);
        let note = Note {
            owner: self.owner.clone(),
            family: Some(self.kind.family().to_owned()),
            ttl_ms: u64::try_from(self.term.ttl().as_millis()).ok(),
            token: Some(self.token),
        };
        // In one step: nobody gets in between.
        let mut writer = self.session.client.new_multi_writer();
        let options = self.ensemble.options(CreateMode::Ephemeral);
        let added = writer
            .add_create(&path, note.to_text().as_bytes(), &options)
            .and_then(|()| writer.add_delete(&held.path, None));
        added.map_err(unknown)?;
        // Before it is sent: whoever looks for the node meanwhile must know where it may be.
        self.place.lock().or = Some(path.clone());
        let sent = Instant::now();
        let committing = async { Ok(writer.commit().await) };
        match answered(committing).await.map_err(unknown)? {
            Ok(_) => self.session.acknowledged(sent, None),
            // An earlier try did it, and its answer was lost.
            Err(MultiWriteError::OperationFailed { source: ZkError::NodeExists, .. }) => {}
            Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. }) => {
                let cause = self.check().await.map_err(unknown)?.unwrap_or(Cause::Gone);
                return Ok(Renewal::Lost(cause));
            }
            Err(error) => return Err(unknown(error.into())),
        }
        *self.place.lock() = Held::at(path, Role::Read);
        Ok(stays)
    }

    fn park(&self) -> bool {
        false
    }

    fn unpark(&self) -> bool {
        false
    }

    async fn release(self: Arc<Self>) -> Result<Release> {
        self.released.store(true, Ordering::Release);
        self.dismiss();
        let (held, sent) = (self.place.lock().clone(), Instant::now());
        let deleting = async {
            match (self.session.client.delete(&held.path, None).await, &held.or) {
                (Err(ZkError::NoNode), Some(path)) => self.session.client.delete(path, None).await,
                (deleted, _) => deleted,
            }
        };
        match answered(deleting).await {
            Ok(()) => {
                self.session.acknowledged(sent, None);
                Ok(Release::Released)
            }
            Err(ZkError::NoNode | ZkError::SessionExpired | ZkError::ClientClosed) => {
                Ok(Release::NotHeld)
            }
            Err(error) => {
                // The node lives as long as the session does: somebody must go on trying.
                if !is_answer(&error) {
                    let hold = Arc::clone(&self);
                    self.ensemble.runtime.spawn(async move { hold.remove().await });
                }
                Err(failed("a release", error))
            }
        }
    }
}

/// Where somebody reads who has the node `path` for writing: under the same number, so ahead of all
/// who wait; as in Curator since 5.5.
pub(super) fn read_beside(ensemble: &Ensemble, path: &str, id: RequestId) -> String {
    let dialect = ensemble.address.dialect;
    let (dir, child) = path.rsplit_once('/').unwrap_or(("", path));
    let key = dialect.contender(child).map_or("", |contender| contender.key);
    format!("{dir}/{}{key}", dialect.prefix(id, Role::Read))
}

impl fmt::Debug for ZooKeeperHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperHold")
            .field("place", &*self.place.lock())
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}
