//! Hand-over in memory between the tasks of one process.
//!
//! Only one task of a process stands in line at the store for a name; the others stand in line here.
//! When a task lets go and others wait, the hold stays and the next task takes it over with the next
//! token of the block that came with the grant: no round trip.
//!
//! # Fair to other processes
//!
//! The hold goes back to the store when nobody waits here, when its tokens are used up
//! ([`BLOCK`] passes), or when it was passed on for [`SLICE`]; whoever waits here then stands in line
//! at the store again, behind the others.
//!
//! # Cancel safety
//!
//! The request at the store belongs to the cohort, not to the task that happens to drive it. A task
//! that gives up leaves it to the next one; the last one to leave drops it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use crate::backend::{Hold, Kind, Patience, Request, Term};
use crate::clock::Instant;
use crate::error::Result;
use crate::keeper::Keeper;
use crate::lease::{Lease, Terms};
use crate::locks::Inner;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;
use crate::wait::until;

/// Tokens asked for with one grant: so often can it be passed on.
const BLOCK: u32 = 128;
/// So long can it be passed on.
const SLICE: Duration = Duration::from_millis(50);

type Acquiring = Pin<Box<dyn Future<Output = Result<Option<Arc<dyn Hold>>>> + Send>>;

/// The tasks of this process that want one name.
pub(crate) struct Cohort {
    name: Name,
    ttl: Duration,
    locks: Arc<Inner>,
    local: Arc<tokio::sync::Mutex<Remote>>,
    /// Tasks in line here. Counted before they ask for `local` and until they have it.
    waiting: AtomicUsize,
}

/// What this process has at the store.
#[derive(Default)]
struct Remote {
    lease: Option<Arc<Lease>>,
    /// How often the hold was passed on, and since when.
    passes: u32,
    since: Option<Instant>,
    /// In a mutex only so that it can be shared between threads; never locked.
    acquiring: Option<(Owner, parking_lot::Mutex<Acquiring>)>,
}

impl Cohort {
    pub(crate) fn new(locks: Arc<Inner>, name: Name, ttl: Duration) -> Arc<Self> {
        let (local, waiting) = (Arc::default(), AtomicUsize::new(0));
        Arc::new(Self { name, ttl, locks, local, waiting })
    }

    /// Gets the name for the calling task. `None`: patience ran out. Cancel safe.
    pub(crate) async fn enter(self: &Arc<Self>, patience: Patience) -> Result<Option<Turn>> {
        let Some(local) = self.line_up(patience).await else { return Ok(None) };
        let mut turn = Turn { cohort: Arc::clone(self), local: Some(local), lease: None };
        Ok(turn.secure(patience).await?.then_some(turn))
    }

    async fn line_up(self: &Arc<Self>, patience: Patience) -> Option<OwnedMutexGuard<Remote>> {
        if let Ok(local) = Arc::clone(&self.local).try_lock_owned() {
            return Some(local);
        }
        if patience == Patience::TryOnce {
            return None;
        }
        let _waiting = Waiting::new(self);
        let local = Arc::clone(&self.local).lock_owned();
        until(patience, local).await
    }

    fn request(&self, patience: Patience) -> Request {
        Request {
            name: self.name.clone(),
            kind: Kind::Mutex,
            owner: self.locks.identity.owner(),
            id: self.locks.identity.request_id(),
            term: Term::Hosted(self.ttl),
            tokens: if self.locks.backend.capabilities().token_blocks { BLOCK } else { 1 },
            patience,
        }
    }

    fn keeper(&self) -> &Arc<Keeper> {
        &self.locks.keeper
    }

    /// Gives back what nobody here is going to use. Called by whoever leaves, after leaving: of two
    /// that leave at the same moment at least one sees that nobody is left.
    fn tidy(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return;
        }
        let Ok(mut remote) = self.local.try_lock() else { return };
        remote.acquiring = None;
        if let Some(lease) = remote.lease.take() {
            lease.give_back();
        }
    }
}

/// A place in line here.
struct Waiting<'a>(&'a Cohort);

impl<'a> Waiting<'a> {
    fn new(cohort: &'a Cohort) -> Self {
        cohort.waiting.fetch_add(1, Ordering::SeqCst);
        Self(cohort)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.tidy();
        }
    }
}

/// A task's turn: nobody else in this process has the name, and the store granted it to us.
pub(crate) struct Turn {
    cohort: Arc<Cohort>,
    local: Option<OwnedMutexGuard<Remote>>,
    lease: Option<(Arc<Lease>, Token)>,
}

impl Turn {
    /// The hold and the token of this turn.
    pub(crate) fn granted(&self) -> (&Arc<Lease>, Token) {
        let (lease, token) = self.lease.as_ref().expect("secured before it is handed out");
        (lease, *token)
    }

    /// Takes over the hold that this process has, or gets one.
    async fn secure(&mut self, patience: Patience) -> Result<bool> {
        let cohort = Arc::clone(&self.cohort);
        let Some(remote) = self.local.as_deref_mut() else { return Ok(false) };
        if let Some(lease) = remote.lease.take() {
            if let Some(token) = remote.next_token(&lease) {
                remote.lease = Some(Arc::clone(&lease));
                self.lease = Some((lease, token));
                return Ok(true);
            }
            lease.give_back();
        }
        let Some((owner, hold)) = remote.acquire(&cohort, patience).await? else {
            return Ok(false);
        };
        let terms = Terms {
            name: cohort.name.clone(),
            owner,
            kind: Kind::Mutex,
            term: Term::Hosted(cohort.ttl),
            max_hold: None,
        };
        let token = hold.tokens().first();
        let lease = cohort.keeper().adopt(hold, terms);
        (remote.passes, remote.since) = (0, Some(Instant::now()));
        remote.lease = Some(Arc::clone(&lease));
        self.lease = Some((lease, token));
        Ok(true)
    }

    /// Ends the turn: passes the hold on in memory if that is fair, else gives it back.
    pub(crate) async fn release(mut self) -> Result<()> {
        let Some((lease, token)) = self.lease.take() else { return Ok(()) };
        if self.pass_on() {
            return Ok(());
        }
        let released = lease.release(token).await;
        drop(self);
        released
    }

    /// Whether the hold stays for the next task in line here. If not it is no longer in `remote`.
    fn pass_on(&mut self) -> bool {
        let Some(remote) = self.local.as_deref_mut() else { return false };
        let Some(lease) = &remote.lease else { return false };
        let fair = self.cohort.waiting.load(Ordering::SeqCst) > 0
            && !lease.is_over()
            && remote.since.is_some_and(|since| Instant::now().since(since) < SLICE)
            && lease.hold().tokens().nth(remote.passes + 1).is_some();
        if !fair {
            remote.lease = None;
        }
        fair
    }
}

impl Remote {
    /// The token for the task that takes the hold over; `None` if it is lost.
    fn next_token(&mut self, lease: &Lease) -> Option<Token> {
        if lease.cause().is_some() {
            return None;
        }
        self.passes += 1;
        lease.hold().tokens().nth(self.passes)
    }

    /// Drives the request at the store, whoever began it.
    async fn acquire(
        &mut self,
        cohort: &Cohort,
        patience: Patience,
    ) -> Result<Option<(Owner, Arc<dyn Hold>)>> {
        let begin = |patience| {
            let request = cohort.request(patience);
            let owner = request.owner.clone();
            (owner, parking_lot::Mutex::new(Arc::clone(&cohort.locks.backend).acquire(request)))
        };
        if patience == Patience::TryOnce {
            // Somebody who waits may have asked already; then it is not free.
            if self.acquiring.is_some() {
                return Ok(None);
            }
            let (owner, acquiring) = begin(patience);
            return Ok(acquiring.into_inner().await?.map(|hold| (owner, hold)));
        }
        let (_, acquiring) = self.acquiring.get_or_insert_with(|| begin(Patience::Forever));
        let Some(outcome) = until(patience, acquiring.get_mut().as_mut()).await else { return Ok(None) };
        let owner = self.acquiring.take().map(|(owner, _)| owner);
        Ok(owner.zip(outcome?))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some((lease, _)) = self.lease.take()
            && !self.pass_on()
        {
            lease.give_back();
        }
        let local = self.local.take();
        let left_behind =
            local.as_ref().is_some_and(|remote| remote.lease.is_some() || remote.acquiring.is_some());
        drop(local);
        if left_behind {
            self.cohort.tidy();
        }
    }
}

impl fmt::Debug for Cohort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cohort")
            .field("name", &self.name)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("lease", &self.lease).finish_non_exhaustive()
    }
}
