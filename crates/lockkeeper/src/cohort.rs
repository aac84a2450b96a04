//! Hand-over in memory between the tasks of one process.
//!
//! Only one task of a process stands in line at the store for a name; the others stand in line here.
//! When a task lets go and others wait, the hold stays and the next task takes it over with the next
//! token of the block that came with the grant: no round trip. Where nobody waits, the hold is given
//! back, or parked where the store can take a parked hold away by itself.
//!
//! # Fair to other processes
//!
//! The hold goes back to the store when its tokens are used up ([`BLOCK`] passes), or when it was
//! passed on for [`SLICE`]; whoever waits here then stands in line at the store again, behind the
//! others.
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

use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::backend::{Hold, Kind, Patience, Request, Term};
use crate::clock::Instant;
use crate::error::Result;
use crate::lease::{Lease, Limits, Terms};
use crate::locks::Inner;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::{Token, TokenBlock};
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
    local: Arc<Mutex<Remote>>,
    waiting: Arc<AtomicUsize>,
}

/// What this process has at the store. Whoever has it locked has the turn.
struct Remote {
    lease: Option<Arc<Lease>>,
    /// The store may have taken it away without a word.
    parked: bool,
    /// The tokens of the hold, how often it was passed on, and since when.
    tokens: Option<TokenBlock>,
    passes: u32,
    since: Instant,
    /// In a mutex only so that it can be shared between threads; never locked.
    acquiring: Option<(Owner, parking_lot::Mutex<Acquiring>)>,
    /// Where it was begun: its timers live there.
    begun_in: Option<tokio::runtime::Id>,
    /// Tasks in line here: counted before they ask for the turn and until they have it.
    waiting: Arc<AtomicUsize>,
}

impl Cohort {
    pub(crate) fn new(locks: Arc<Inner>, name: Name, ttl: Duration) -> Arc<Self> {
        let waiting = Arc::new(AtomicUsize::new(0));
        let remote = Remote {
            lease: None,
            parked: false,
            tokens: None,
            passes: 0,
            since: Instant::NEVER,
            acquiring: None,
            begun_in: None,
            waiting: Arc::clone(&waiting),
        };
        Arc::new(Self { name, ttl, locks, local: Arc::new(Mutex::new(remote)), waiting })
    }

    /// Gets the name for the calling task if this process has it and nobody uses it. `None`: ask
    /// with [`enter`](Self::enter).
    pub(crate) fn enter_now(&self) -> Option<Turn> {
        let local = Arc::clone(&self.local).try_lock_owned().ok()?;
        let mut turn = Turn { local: Some(local) };
        turn.local.as_deref_mut()?.take_over().then_some(turn)
    }

    /// Gets the name for the calling task. `None`: patience ran out. Cancel safe.
    pub(crate) async fn enter(&self, patience: Patience) -> Result<Option<Turn>> {
        let local = match Arc::clone(&self.local).try_lock_owned() {
            Ok(local) => local,
            Err(_) if patience == Patience::TryOnce => return Ok(None),
            Err(_) => {
                let _waiting = Waiting::new(self);
                let turn = Arc::clone(&self.local).lock_owned();
                let Some(local) = until(patience, turn).await else { return Ok(None) };
                local
            }
        };
        // From here on: dropping it leaves the place in good order.
        let mut turn = Turn { local: Some(local) };
        let Some(remote) = turn.local.as_deref_mut() else { return Ok(None) };
        let secured = remote.take_over() || remote.acquire(self, patience).await?;
        Ok(secured.then_some(turn))
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

    /// Gives back what nobody here is using. `false`: somebody is here.
    pub(crate) fn tidy(&self) -> bool {
        tidy(&self.local, &self.waiting)
    }
}

/// Gives back what nobody here is using. Called by whoever leaves, after leaving: of two that leave
/// at the same moment at least one sees that nobody is left.
fn tidy(local: &Mutex<Remote>, waiting: &AtomicUsize) -> bool {
    if waiting.load(Ordering::SeqCst) > 0 {
        return false;
    }
    let Ok(mut remote) = local.try_lock() else { return false };
    (remote.acquiring, remote.parked) = (None, false);
    if let Some(lease) = remote.lease.take() {
        lease.give_back();
    }
    true
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

impl Remote {
    /// Goes on with the hold that this process has, under its next token.
    fn take_over(&mut self) -> bool {
        let Some(lease) = &self.lease else { return false };
        let parked = std::mem::take(&mut self.parked);
        let ours = !parked || lease.hold().unpark();
        if ours && self.next_token().is_some() && lease.cause().is_none() {
            self.passes += 1;
            return true;
        }
        lease.give_back();
        self.lease = None;
        false
    }

    /// Gets a hold from the store, driving the request on, whoever began it.
    async fn acquire(&mut self, cohort: &Cohort, patience: Patience) -> Result<bool> {
        let begin = |patience| {
            let request = cohort.request(patience);
            let owner = request.owner.clone();
            (owner, parking_lot::Mutex::new(Arc::clone(&cohort.locks.backend).acquire(request)))
        };
        let granted = if patience == Patience::TryOnce {
            // Somebody who waits may have asked already; then it is not free.
            if self.acquiring.is_some() {
                return Ok(false);
            }
            let (owner, acquiring) = begin(patience);
            acquiring.into_inner().await?.map(|hold| (owner, hold))
        } else {
            let here = Handle::try_current().ok().map(|runtime| runtime.id());
            if std::mem::replace(&mut self.begun_in, here) != here {
                self.acquiring = None;
            }
            let (_, acquiring) = self.acquiring.get_or_insert_with(|| begin(Patience::Forever));
            let Some(outcome) = until(patience, acquiring.get_mut().as_mut()).await else {
                return Ok(false);
            };
            let owner = self.acquiring.take().map(|(owner, _)| owner);
            owner.zip(outcome?)
        };
        let Some((owner, hold)) = granted else { return Ok(false) };
        let (name, kind, term) = (cohort.name.clone(), Kind::Mutex, Term::Hosted(cohort.ttl));
        let terms = Terms { name, owner, kind, term, limits: Limits::default() };
        let tokens = Some(hold.tokens());
        self.lease = Some(cohort.locks.keeper.adopt(hold, terms));
        (self.passes, self.parked, self.since) = (0, false, Instant::now());
        self.tokens = tokens;
        Ok(true)
    }

    /// Ends a turn. Some: a hold to be given back. None: it stays here, passed on or parked.
    fn leave(&mut self) -> Option<Arc<Lease>> {
        let lease = self.lease.as_ref()?;
        let usable = self.next_token().is_some() && lease.cause().is_none();
        let stays = usable
            && if self.is_wanted() {
                Instant::now().since(self.since) < SLICE
            } else {
                self.parked = lease.hold().park();
                self.parked
            };
        if stays { None } else { self.lease.take() }
    }

    /// The token of the next turn, while the block lasts.
    fn next_token(&self) -> Option<Token> {
        self.tokens.and_then(|tokens| tokens.nth(self.passes + 1))
    }

    fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }
}

/// A task's turn: nobody else in this process has the name, and the store granted it to us.
pub(crate) struct Turn {
    /// Taken out only when the turn ends.
    local: Option<OwnedMutexGuard<Remote>>,
}

impl Turn {
    fn remote(&self) -> &Remote {
        self.local.as_deref().expect("present until the turn ends")
    }

    /// The hold of this turn.
    pub(crate) fn lease(&self) -> &Arc<Lease> {
        self.remote().lease.as_ref().expect("secured before it is handed out")
    }

    /// The token of this turn.
    pub(crate) fn token(&self) -> Token {
        let remote = self.remote();
        let token = remote.tokens.and_then(|tokens| tokens.nth(remote.passes));
        token.expect("secured before it is handed out")
    }

    /// Ends the turn, and waits until the store has the hold back if it goes there.
    pub(crate) async fn release(mut self) -> Result<()> {
        let token = self.token();
        let leaving = self.local.as_deref_mut().and_then(Remote::leave);
        match leaving {
            // Whoever comes next here asks the store only after this.
            Some(lease) => lease.release(token).await,
            None => Ok(()),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(mut local) = self.local.take() else { return };
        // After `release` there is nothing left to leave, or it is parked already.
        if !local.parked
            && let Some(lease) = local.leave()
        {
            lease.give_back();
        }
        let left = local.acquiring.is_some() || (local.lease.is_some() && !local.parked);
        if !left {
            return;
        }
        let place = Arc::clone(OwnedMutexGuard::mutex(&local));
        let waiting = Arc::clone(&local.waiting);
        drop(local);
        tidy(&place, &waiting);
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;
    use crate::locks::{DEFAULT_TTL, Locks};
    use crate::loss::Cause;

    /// A guard that is dropped on another thread: it has parked its hold, for it had not heard of the end, and has the
    /// turn until everything was looked through. The clock jumps, so that to wait in vain costs no time.
    #[tokio::test(start_paused = true)]
    async fn what_is_parked_while_it_shuts_down_goes_back_at_once() {
        let (locks, grace) = (Locks::memory(), Duration::from_secs(60));
        let cohort = locks.inner.cohort(&"x".parse().unwrap(), DEFAULT_TTL);
        let mut turn = cohort.enter(Patience::Forever).await.unwrap().expect("free");
        let remote = turn.local.as_deref_mut().unwrap();
        assert!(remote.leave().is_none() && remote.parked);
        let since = tokio::time::Instant::now();
        let mut shutting_down = pin!(locks.shutdown(grace));
        assert_eq!(shutting_down.as_mut().now_or_never(), None);
        assert_eq!(turn.lease().cause(), Some(Cause::ShutDown));
        drop(turn);
        let report = shutting_down.await;
        assert_eq!((report.released, report.left), (0, 0));
        assert!(since.elapsed() < grace / 2, "nobody holds anything");
    }
}
