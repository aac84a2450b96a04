//! One session for all holds of a client, with its heartbeat, and the next one when it is over.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use zookeeper_client::{
    Acls, Client, CreateMode, CreateOptions, Error as ZkError, MultiWriteError, SessionState, Stat,
};

use super::address::Address;
use super::hold::ZooKeeperHold;
use super::vitality::Vitality;
use super::{BACKEND, OUTAGE, RETRY};
use crate::backend::Kind;
use crate::clock::{Alarm, Instant};
use crate::error::{Error, Result};
use crate::loss::{Cause, Loss};
use crate::owner::Owner;

/// While anything is held or waited for, so often in a session's timeout its life is proven.
const BEATS: u32 = 8;

/// Where the servers are, and the session that there is with them.
pub(super) struct Ensemble {
    pub(super) address: Address,
    pub(super) runtime: Handle,
    session: tokio::sync::Mutex<Door>,
}

/// The session that there is, and when the last try to get one failed, and how.
#[derive(Default)]
struct Door {
    session: Option<Arc<Session>>,
    failed: Option<(Instant, String)>,
}

impl Ensemble {
    /// Must be called inside a tokio runtime, where the sessions then live.
    pub(super) fn new(address: Address) -> Arc<Self> {
        let runtime = Handle::current();
        Arc::new(Self { address, runtime, session: tokio::sync::Mutex::default() })
    }

    /// The session, or a new one if it is over.
    pub(super) async fn session(self: &Arc<Self>) -> Result<Arc<Session>> {
        let asked = Instant::now();
        let mut door = self.session.lock().await;
        if let Some(session) = door.session.as_ref().filter(|session| !session.is_over()) {
            return Ok(Arc::clone(session));
        }
        // What failed while we waited for it failed for us too: or each would try in turn.
        if let Some((_, context)) = door.failed.as_ref().filter(|(at, _)| *at >= asked) {
            let context = context.clone();
            return Err(Error::Unavailable { backend: BACKEND, context, source: None });
        }
        let ensemble = Arc::clone(self);
        // In our own runtime: what serves the connection must live as long as we do.
        let connecting = self.runtime.spawn(async move { ensemble.address.connect().await });
        let client = connecting.await.map_err(|_| Error::ShutDown)?.inspect_err(|error| {
            if let Error::Unavailable { context, .. } = error {
                door.failed = Some((Instant::now(), context.clone()));
            }
        })?;
        let session = Session::new(client, &self.runtime);
        door.session = Some(Arc::clone(&session));
        Ok(session)
    }

    /// In which way nodes may be used by others.
    pub(super) fn acls(&self) -> Acls<'static> {
        self.address.acls()
    }

    pub(super) fn options(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(self.acls())
    }
}

/// A session. All that it holds ends with it.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) timeout: Duration,
    vitality: Mutex<Vitality>,
    /// What is held, and how many wait.
    book: Mutex<Book>,
    bell: Arc<Notify>,
    granted: Notify,
    over: Loss,
    /// What the leader's clock said, and when it said so.
    clock: Mutex<Option<(i64, Instant)>>,
}

#[derive(Default)]
struct Book {
    next: u64,
    /// By the node of the lock.
    holds: HashMap<String, Vec<(u64, Weak<ZooKeeperHold>)>>,
    waiting: usize,
}

impl Session {
    fn new(client: Client, runtime: &Handle) -> Arc<Self> {
        let timeout = client.session_timeout();
        let session = Arc::new(Self {
            timeout,
            vitality: Mutex::new(Vitality::new(timeout)),
            book: Mutex::default(),
            bell: Arc::default(),
            granted: Notify::new(),
            over: Loss::new(),
            clock: Mutex::default(),
            client,
        });
        runtime.spawn(beat(Arc::downgrade(&session)));
        session
    }

    pub(super) fn id(&self) -> i64 {
        self.client.session_id().0
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.cause().is_some() || self.client.state().is_terminated()
    }

    /// Waits until the session is over. Cancel safe.
    pub(super) async fn over(&self) {
        self.over.wait().await;
    }

    /// The session lives at least until a little after this: time to stop the work.
    pub(super) fn lost_at(&self) -> Instant {
        self.vitality.lock().alive_until().before(self.timeout / 20)
    }

    /// When the session's life is to be proven again.
    fn next_proof(&self, pause: Duration) -> Instant {
        self.vitality.lock().last().map_or(Instant::from_nanos(0), |last| last + pause)
    }

    /// A write that was sent then has been answered. Where the answer has a time, it is the leader's.
    pub(super) fn acknowledged(&self, sent: Instant, stat: Option<&Stat>) {
        self.vitality.lock().acknowledged(sent);
        if let Some(stat) = stat.filter(|stat| !stat.is_invalid()) {
            *self.clock.lock() = Some((stat.mtime, Instant::now()));
        }
    }

    /// The leader's clock in milliseconds, as far as it is known.
    pub(super) fn leader_time(&self) -> Option<i64> {
        let (then, at) = (*self.clock.lock())?;
        let passed = Instant::now().since(at).as_millis();
        Some(then.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX)))
    }

    /// Proves that the session lives: a write that changes nothing. Any answer is one.
    pub(super) async fn prove(&self) -> Result<(), ZkError> {
        let sent = Instant::now();
        let mut writer = self.client.new_multi_writer();
        writer.add_check_version("/", -1)?;
        match writer.commit().await {
            Ok(_) | Err(MultiWriteError::OperationFailed { .. }) => {
                self.acknowledged(sent, None);
                Ok(())
            }
            Err(MultiWriteError::RequestFailed { source }) if is_answer(&source) => {
                self.acknowledged(sent, None);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes sure that there is time left: before a hold is granted whose request was sent long ago.
    pub(super) async fn prove_unless_fresh(&self) -> Result<(), ZkError> {
        if self.lost_at() > Instant::now() + self.timeout / 4 {
            return Ok(());
        }
        answered(self.prove()).await
    }

    /// Takes note of a hold; told when the session may be over.
    pub(super) fn enlist(&self, hold: &Arc<ZooKeeperHold>) -> u64 {
        let mut book = self.book.lock();
        book.next += 1;
        let number = book.next;
        let here = book.holds.entry(hold.dir.clone()).or_default();
        here.push((number, Arc::downgrade(hold)));
        drop(book);
        self.bell.notify_one();
        self.granted.notify_waiters();
        number
    }

    pub(super) fn strike_off(&self, dir: &str, number: u64) {
        let mut book = self.book.lock();
        let Some(here) = book.holds.get_mut(dir) else { return };
        here.retain(|(other, _)| *other != number);
        if here.is_empty() {
            book.holds.remove(dir);
        }
    }

    /// What this owner holds of a lock, permits aside.
    pub(super) fn held_by(&self, dir: &str, owner: &Owner) -> Vec<Arc<ZooKeeperHold>> {
        let book = self.book.lock();
        let here = book.holds.get(dir).into_iter().flatten();
        let mut holds: Vec<_> = here.filter_map(|(_, hold)| hold.upgrade()).collect();
        drop(book);
        let permit = |hold: &ZooKeeperHold| matches!(hold.kind, Kind::Permit { .. });
        holds.retain(|hold| hold.owner == *owner && !permit(hold) && !hold.is_lost());
        holds
    }

    /// Waits until something is granted here. Registered with the call, not with the first poll.
    pub(super) fn next_grant(&self) -> impl Future<Output = ()> + Send + '_ {
        self.granted.notified()
    }

    /// Keeps the heart beating while somebody waits.
    pub(super) fn wait(self: &Arc<Self>) -> Waiting {
        self.book.lock().waiting += 1;
        self.bell.notify_one();
        Waiting(Arc::clone(self))
    }

    fn is_used(&self) -> bool {
        let book = self.book.lock();
        book.waiting > 0 || !book.holds.is_empty()
    }

    /// Nothing that was held is ours any more, or it may be somebody else's soon.
    fn lose(&self) {
        let book = self.book.lock();
        let all = book.holds.values().flatten();
        let holds: Vec<_> = all.filter_map(|(_, hold)| hold.upgrade()).collect();
        drop(book);
        holds.iter().for_each(|hold| hold.declare(Cause::Expired));
    }
}

pub(super) struct Waiting(Arc<Session>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.book.lock().waiting -= 1;
    }
}

/// The heartbeat: proves the session's life while it is used, and declares the loss of what it holds
/// when the proof is too old. Ends with the session or its last user.
async fn beat(session: Weak<Session>) {
    let Some(first) = session.upgrade() else { return };
    let (mut states, bell, pause) =
        (first.client.state_watcher(), Arc::clone(&first.bell), first.timeout / BEATS);
    drop(first);
    // Without a timer nothing can be promised: then every deadline counts as over.
    let alarm = Alarm::new();
    loop {
        let Some(present) = session.upgrade() else { return };
        if present.client.state().is_terminated() {
            present.lose();
            present.over.declare(Cause::Expired);
            return;
        }
        let used = present.is_used();
        // What was taken or given back a moment ago is a proof as good as any.
        if used && present.next_proof(pause) <= Instant::now() {
            let left = present.lost_at().since(Instant::now());
            let limit = if left.is_zero() { pause } else { left.min(pause) };
            let proof = tokio::time::timeout(limit, present.prove());
            if !matches!(proof.await, Ok(Ok(()))) {
                tracing::debug!(session = present.id(), "the session could not be proven alive");
            }
        }
        let deadline = if used { present.lost_at() } else { Instant::NEVER };
        let due = present.next_proof(pause).since(Instant::now());
        // One that failed is not tried again at once.
        let rest = if due.is_zero() { pause } else { due };
        if Instant::now() >= deadline || alarm.is_err() {
            present.lose();
        }
        let next = if Instant::now() >= deadline { Instant::NEVER } else { deadline };
        drop(present);
        let rings = async {
            match &alarm {
                Ok(alarm) => drop(alarm.rings_at(next).await),
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            () = rings => {}
            () = tokio::time::sleep(rest) => {}
            () = bell.notified() => {}
            SessionState::Expired | SessionState::Closed | SessionState::AuthFailed = states.changed() => {}
        }
    }
}

/// Whether this is the server's word, and not a failure to get one.
pub(super) fn is_answer(error: &ZkError) -> bool {
    matches!(
        error,
        ZkError::NoNode
            | ZkError::NoAuth
            | ZkError::BadVersion
            | ZkError::NoChildrenForEphemerals
            | ZkError::NodeExists
            | ZkError::NotEmpty
            | ZkError::InvalidAcl
            | ZkError::BadArguments(_)
            | ZkError::QuotaExceeded
            | ZkError::Unimplemented
            | ZkError::MarshallingError
    )
}

/// Waits for an answer, but not longer than an outage may take.
pub(super) async fn answered<T>(
    asking: impl Future<Output = Result<T, ZkError>> + Send,
) -> Result<T, ZkError> {
    tokio::time::timeout(OUTAGE, asking).await.unwrap_or(Err(ZkError::Timeout))
}

/// Deletes a node until that is certain, or the session is over and has taken the node with it.
pub(super) async fn delete_for_good(session: &Session, path: &str) {
    while !session.is_over() {
        let sent = Instant::now();
        match answered(session.client.delete(path, None)).await {
            Ok(()) => return session.acknowledged(sent, None),
            Err(error) if is_answer(&error) => return,
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

/// What the caller can do about an error of the driver.
pub(super) fn failed(doing: &str, error: ZkError) -> Error {
    let context = match &error {
        ZkError::NoAuth => format!(
            "{doing} is not allowed: give user:password@ in the URL, or an ACL that allows it"
        ),
        ZkError::AuthFailed => "the server refused user:password@ of the URL".to_owned(),
        _ => format!("{doing} failed"),
    };
    Error::unavailable(BACKEND, context, error)
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id()).finish_non_exhaustive()
    }
}
