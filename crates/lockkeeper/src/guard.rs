//! Guards: what a holder has in hand.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

#[cfg(feature = "etcd")]
use crate::backend::Hold;
use crate::backend::{Kind, Term};
use crate::clock::Instant;
use crate::cohort::Turn;
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::loss::Cause;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// A lock that is held. Renewed for as long as the guard lives, unless it has a fixed lease.
///
/// # Loss
///
/// A lock can be lost while it is held: the store was out of reach for too long, somebody forced it,
/// a fixed lease ended. The guard says so *before* the store can grant the lock to anybody else:
/// [`lost`](Self::lost) resolves, [`protect`](Self::protect) stops the work. A process that is
/// stopped at the wrong moment can still act late, which is what [`token`](Self::token) is for.
///
/// # Release on drop is not immediate
///
/// Dropping the guard begins the release and lets it go on in the background, until it has succeeded
/// or the lease has ended. Call [`release`](Self::release) to wait for it and to learn how it went.
#[must_use = "if unused the lock is released at once"]
#[clippy::has_significant_drop]
pub struct Guard {
    held: Held,
}

enum Held {
    /// With the hold of the process.
    Turn(Turn),
    /// With a hold of its own at the store.
    Alone(Direct),
    /// With a hold that all guards of one owner share.
    Shared(Arc<Direct>),
}

/// A hold of its own at the store, given back when dropped.
pub(crate) struct Direct {
    lease: Arc<Lease>,
}

impl Direct {
    pub(crate) fn new(lease: Arc<Lease>) -> Self {
        Self { lease }
    }

    /// Whether it is still held, and gives what a lock of this kind gives.
    pub(crate) fn gives(&self, kind: Kind) -> bool {
        self.lease.kind().access() == kind.access() && self.lease.cause().is_none()
    }

    fn token(&self) -> Token {
        self.lease.hold().tokens().first()
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.lease.give_back();
    }
}

impl Guard {
    pub(crate) fn turn(turn: Turn) -> Self {
        Self { held: Held::Turn(turn) }
    }

    pub(crate) fn alone(direct: Direct) -> Self {
        Self { held: Held::Alone(direct) }
    }

    pub(crate) fn shared(direct: Arc<Direct>) -> Self {
        Self { held: Held::Shared(direct) }
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        match &self.held {
            Held::Turn(turn) => turn.lease(),
            Held::Alone(direct) => &direct.lease,
            Held::Shared(direct) => &direct.lease,
        }
    }

    /// The fencing token. A guard of the same [`Owner`] on the same lock has the same one.
    pub fn token(&self) -> Token {
        match &self.held {
            Held::Turn(turn) => turn.token(),
            Held::Alone(direct) => direct.token(),
            Held::Shared(direct) => direct.token(),
        }
    }

    /// The lock.
    pub fn name(&self) -> &Name {
        &self.lease().terms.name
    }

    /// Who holds it, as `lockkeeper show` prints it.
    pub fn owner(&self) -> &Owner {
        &self.lease().terms.owner
    }

    /// In which way it is held.
    pub fn kind(&self) -> Kind {
        self.lease().kind()
    }

    /// For how long it was granted.
    pub fn term(&self) -> Term {
        self.lease().terms.term
    }

    /// Waits until the lock is lost. Never returns while it is safely held. Cancel safe.
    pub async fn lost(&self) -> Cause {
        self.lease().hold().loss().wait().await.clone()
    }

    /// Whether the lock is lost. Reads the clock, so the answer is right even if this process has
    /// just been stopped for a while.
    pub fn is_lost(&self) -> bool {
        self.lease().cause().is_some()
    }

    /// An error if the lock is lost: for the places in long work where it can stop.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`].
    pub fn check(&self) -> Result<()> {
        self.lease().cause().map_or(Ok(()), |cause| Err(self.lost_because(cause)))
    }

    /// Says that the work goes on: [`stall_after`](crate::Locks::stall_after) counts from now. An
    /// error if the lock is lost, as from [`check`](Self::check); without `stall_after` it is just
    /// that. Costs a look at the clock, so call it as often as you like. With several guards of one
    /// owner the progress of any of them counts.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`].
    pub fn progress(&self) -> Result<()> {
        self.lease().progress(self.token())
    }

    /// How long the lock is safely held if nothing renews it. `None`: no lease, it lives with this
    /// process. Zero: lost.
    pub fn remaining(&self) -> Option<Duration> {
        let lease = self.lease();
        if lease.cause().is_some() {
            return Some(Duration::ZERO);
        }
        let at = lease.lost_at();
        (at != Instant::NEVER).then(|| at.since(Instant::now()))
    }

    /// When the store lets go of the lock if nothing renews it: a little after
    /// [`remaining`](Self::remaining) is over. `None`: no lease.
    pub fn expires_at(&self) -> Option<Instant> {
        self.lease().expires_at()
    }

    /// Lets the lease end `ttl` from now. A hosted lock is renewed anyway; this is for fixed leases.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when it is not ours any more, [`Error::Unknown`] when the store's answer was
    /// lost: then the lease ends at the old or at the new time, and the guard counts on the earlier.
    pub async fn renew(&self, ttl: Duration) -> Result<()> {
        Term::Fixed(ttl).check()?;
        self.lease().renew(self.token(), ttl).await
    }

    /// Runs `work` until it is done or the lock is lost; then `work` is dropped where it stands.
    ///
    /// The clock is asked before every step of the work: a process that was stopped does not take
    /// one more step after it wakes up. Work that never yields cannot be stopped: call
    /// [`check`](Self::check) in it.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]; the work may have been done in part.
    ///
    /// ```
    /// # use lockkeeper::{Locks, Result};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let locks = Locks::memory();
    /// let guard = locks.mutex("report").lock().await?;
    /// let sum = guard.protect(async { 40 + 2 }).await?;
    /// assert_eq!(sum, 42);
    /// # guard.release().await
    /// # }
    /// ```
    pub async fn protect<F>(&self, work: F) -> Result<F::Output>
    where
        F: Future + Send,
    {
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        poll_fn(|context| {
            if let Some(cause) = self.lease().cause() {
                return Poll::Ready(Err(self.lost_because(cause)));
            }
            if let Poll::Ready(cause) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(self.lost_because(cause)));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// What the store granted.
    #[cfg(feature = "etcd")]
    pub(crate) fn hold(&self) -> &dyn Hold {
        self.lease().hold().as_ref()
    }

    pub(crate) fn lost_because(&self, cause: Cause) -> Error {
        self.lease().lost(self.token(), cause)
    }

    /// Releases the lock and waits until the store has said so. With several guards of one owner the
    /// last one releases it. Cancel safe: the release goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when it was not ours any more, so the work may have overlapped with somebody
    /// else's; [`Error::Unknown`] when the store did not answer: it is tried again in the background
    /// and in any case over when the lease ends.
    pub async fn release(self) -> Result<()> {
        match self.held {
            Held::Turn(turn) => turn.release().await,
            Held::Alone(direct) => direct.lease.release(direct.token()).await,
            Held::Shared(direct) => {
                let (lease, token) = (Arc::clone(&direct.lease), direct.token());
                match Arc::into_inner(direct) {
                    Some(last) => last.lease.release(token).await,
                    None => lease.cause().map_or(Ok(()), |cause| Err(lease.lost(token, cause))),
                }
            }
        }
    }

    pub(crate) async fn downgrade(self) -> Result<Self> {
        self.lease().downgrade(self.token()).await?;
        Ok(self)
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("kind", &self.kind())
            .field("token", &self.token())
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}
