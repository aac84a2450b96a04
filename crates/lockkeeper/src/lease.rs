//! A hold under the keeper's care: renewed, watched, and given back exactly once.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Mutex, oneshot};

use crate::backend::{Hold, Kind, Release, Renewal, Term};
use crate::clock::Instant;
use crate::error::{BoxError, Error, Result};
use crate::keeper::{Keeper, Leaving};
use crate::loss::Cause;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// A lease is declared lost this part of its time to live before it ends, so that the work can stop
/// before anybody else can start.
const MARGIN_PART: u32 = 10;
/// The margin is never longer than this.
const MARGIN_MAX: Duration = Duration::from_secs(5);
/// When a hold that begins with a short lease is renewed first.
const FIRST_RENEWAL: Duration = Duration::from_millis(50);
/// First and longest pause between two tries to give a hold back.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// What is asked for when a hold is put under care.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    pub(crate) kind: Kind,
    pub(crate) term: Term,
    pub(crate) limits: Limits,
}

/// What ends a hold however well it is renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Held for so long.
    pub(crate) max_hold: Option<Duration>,
    /// No progress for so long.
    pub(crate) stall_after: Option<Duration>,
}

impl Limits {
    /// Whether there are none.
    pub(crate) fn is_none(self) -> bool {
        self == Self::default()
    }

    /// Refuses what cannot be meant.
    pub(crate) fn check(self) -> Result<()> {
        for (limit, what) in [(self.max_hold, "max_hold"), (self.stall_after, "stall_after")] {
            if limit.is_some_and(|limit| limit.is_zero()) {
                return Err(Error::Config(format!("a {what} of zero cannot be meant")));
            }
        }
        Ok(())
    }
}

/// One hold that the keeper looks after. Dropped, it is given back in the background.
pub(crate) struct Lease {
    pub(crate) terms: Terms,
    hold: Arc<dyn Hold>,
    keeper: Arc<Keeper>,
    /// The keeper's number for it.
    number: u64,
    expires: AtomicU64,
    lost_at: AtomicU64,
    renew_at: AtomicU64,
    /// The longest time, in nanoseconds, that the store was ever asked for.
    longest: AtomicU64,
    /// When `max_hold` is over.
    last_at: Instant,
    /// When it is lost unless there is progress before.
    stalled_at: AtomicU64,
    retired: AtomicBool,
    downgraded: AtomicBool,
    /// Held while a renewal begins and while the lease is retired: the one never follows the other.
    gate: parking_lot::Mutex<()>,
    /// One renewal at a time: of two on their way nobody knows which one the store sees last.
    renewing: Mutex<()>,
}

impl Lease {
    pub(crate) fn new(hold: Arc<dyn Hold>, terms: Terms, keeper: Arc<Keeper>, number: u64) -> Self {
        let from_now =
            |limit: Option<_>| limit.map_or(Instant::NEVER, |time| Instant::now() + time);
        let last_at = from_now(terms.limits.max_hold);
        let stalled_at = AtomicU64::new(from_now(terms.limits.stall_after).as_nanos());
        let expires = hold.expires_at();
        let longest = AtomicU64::new(nanos(terms.term.ttl()));
        let lease = Self {
            terms,
            hold,
            keeper,
            number,
            expires: AtomicU64::new(0),
            lost_at: AtomicU64::new(0),
            renew_at: AtomicU64::new(0),
            longest,
            last_at,
            stalled_at,
            retired: AtomicBool::new(false),
            gate: parking_lot::Mutex::default(),
            downgraded: AtomicBool::new(false),
            renewing: Mutex::new(()),
        };
        // A hold that was handed over may begin with a lease shorter than its own: renewed soon, but
        // not for the sake of those who give it back at once.
        let (ttl, now) = (lease.terms.term.ttl(), Instant::now());
        let first = expires.map_or(ttl, |at| at.since(now).min(ttl));
        lease.ends(expires, first);
        if first < ttl / 2 && matches!(lease.terms.term, Term::Hosted(_)) {
            let soon = now + FIRST_RENEWAL.min(first / 3);
            lease.renew_at.store(soon.as_nanos(), Ordering::Release);
        }
        lease
    }

    pub(crate) fn hold(&self) -> &Arc<dyn Hold> {
        &self.hold
    }

    /// In which way it is held now.
    pub(crate) fn kind(&self) -> Kind {
        let kind = self.terms.kind;
        let down = self.downgraded.load(Ordering::Acquire);
        if down { kind.downgraded().unwrap_or(kind) } else { kind }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// When the store lets go of it unless it is renewed.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        let at = Instant::from_nanos(self.expires.load(Ordering::Acquire));
        (at != Instant::NEVER).then_some(at)
    }

    /// When it is lost unless it is renewed: safely before it expires, and not after its limits.
    pub(crate) fn lost_at(&self) -> Instant {
        Instant::from_nanos(self.lost_at.load(Ordering::Acquire)).min(self.limited_at())
    }

    /// Until when the store may answer a renewal. The next progress puts a stall off, so it is no matter here.
    fn renewable_until(&self) -> Instant {
        Instant::from_nanos(self.lost_at.load(Ordering::Acquire)).min(self.last_at)
    }

    /// The longest time that it was ever held or renewed for, also if no answer came.
    pub(crate) fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest.load(Ordering::Acquire))
    }

    /// When its limits end it.
    fn limited_at(&self) -> Instant {
        Instant::from_nanos(self.stalled_at.load(Ordering::Acquire)).min(self.last_at)
    }

    /// The work goes on. The keeper need not be told: it finds out when it looks for the stall.
    pub(crate) fn progress(&self, token: Token) -> Result<()> {
        if let Some(cause) = self.cause() {
            return Err(self.lost(token, cause));
        }
        if let Some(stall_after) = self.terms.limits.stall_after {
            let at = Instant::now() + stall_after;
            // Of two threads the later one counts.
            self.stalled_at.fetch_max(at.as_nanos(), Ordering::AcqRel);
        }
        Ok(())
    }

    /// Why it is lost, if it is. Asks the clock, so it is right even before the keeper could act.
    pub(crate) fn cause(&self) -> Option<Cause> {
        if let Some(cause) = self.hold.loss().cause() {
            return Some(cause.clone());
        }
        let at = self.lost_at();
        if at == Instant::NEVER || Instant::now() < at {
            return None;
        }
        self.declare_over();
        self.hold.loss().cause().cloned()
    }

    /// Declares it lost because its time is up.
    fn declare_over(&self) {
        let now = Instant::now();
        let cause = match () {
            () if now >= self.last_at => Cause::MaxHold,
            () if now >= self.limited_at() => Cause::Stalled,
            () => Cause::Expired,
        };
        self.hold.loss().declare(cause);
    }

    pub(crate) fn lost(&self, token: Token, cause: Cause) -> Error {
        Error::Lost { name: self.terms.name.clone(), token, cause }
    }

    /// Takes note of when the store lets go of it.
    fn ends(&self, expires: Option<Instant>, ttl: Duration) {
        // A hold that was handed over, or that lives with a session, may have less than it asked for.
        let ttl = expires.map_or(ttl, |at| at.since(Instant::now()).min(ttl));
        let expires = expires.unwrap_or(Instant::NEVER);
        let margin = (ttl / MARGIN_PART).min(MARGIN_MAX);
        let lost_at = if expires == Instant::NEVER { expires } else { expires.before(margin) };
        self.expires.store(expires.as_nanos(), Ordering::Release);
        self.lost_at.store(lost_at.as_nanos(), Ordering::Release);
        let renew_at = match self.terms.term {
            Term::Hosted(_) if expires != Instant::NEVER => expires.before(ttl / 3 * 2),
            _ => Instant::NEVER,
        };
        self.renew_at.store(renew_at.as_nanos(), Ordering::Release);
    }

    /// When the keeper must look at it next.
    pub(crate) fn due(&self) -> Instant {
        if self.retired.load(Ordering::Acquire) {
            return Instant::NEVER;
        }
        if self.hold.loss().cause().is_some() {
            return self.ended_at();
        }
        let renew_at = Instant::from_nanos(self.renew_at.load(Ordering::Acquire));
        renew_at.min(self.lost_at())
    }

    /// When a hold that is lost is over at the store too. Where no lease does that, its holder has as
    /// long to stop, and then it is taken away.
    fn ended_at(&self) -> Instant {
        match self.expires_at() {
            None => self.limited_at() + self.terms.term.ttl(),
            // Its guard is waited for, however long ago it ended.
            Some(_) if self.keeper.closing.cause().is_some() => Instant::NEVER,
            // A renewal whose answer was lost may have been the last.
            Some(expires) => expires + self.longest(),
        }
    }

    /// The keeper's visit: declares loss when it is time, or says that a renewal is due. A renewal
    /// that is under way is not due again until it has ended.
    pub(crate) fn visit(&self, now: Instant) -> bool {
        if self.is_over() {
            if now >= self.ended_at() {
                match self.expires_at() {
                    None => drop(self.give_back()),
                    Some(_) => self.keeper.dismiss(self),
                }
            }
            return false;
        }
        if now >= self.lost_at() {
            self.declare_over();
            return false;
        }
        let due = now.as_nanos() >= self.renew_at.load(Ordering::Acquire);
        if due {
            self.renew_at.store(Instant::NEVER.as_nanos(), Ordering::Release);
        }
        due
    }

    /// Given back or lost: nothing more to care for.
    pub(crate) fn is_over(&self) -> bool {
        self.retired.load(Ordering::Acquire) || self.hold.loss().cause().is_some()
    }

    /// The keeper's renewal. An outcome that is not known is tried again while there is time.
    pub(crate) async fn renew_hosted(self: Arc<Self>) -> Arc<Self> {
        let ttl = self.terms.term.ttl();
        if let Err(error) = self.attempt(ttl, ttl / 6).await {
            tracing::warn!(name = %self.terms.name, %error, "renewal failed; trying again");
            let now = Instant::now();
            let left = self.renewable_until().since(now);
            let pause = (ttl / 20).min(Duration::from_secs(1)).min(left / 8);
            let soon = now + pause.max(Duration::from_millis(10));
            self.renew_at.store(soon.as_nanos(), Ordering::Release);
        }
        self
    }

    /// The holder's own renewal.
    pub(crate) async fn renew(&self, token: Token, ttl: Duration) -> Result<()> {
        if let Some(cause) = self.cause() {
            return Err(self.lost(token, cause));
        }
        // Not to the end: if the answer is lost, the keeper still has time to try.
        let patience = self.renewable_until().since(Instant::now()) / 2;
        let outcome = self.attempt(ttl, patience.min(ttl)).await;
        self.keeper.reschedule(self);
        outcome.map_err(|source| self.unknown("the renewal", source))?;
        match self.cause() {
            Some(cause) => Err(self.lost(token, cause)),
            None => Ok(()),
        }
    }

    /// Renews once. An error means that the outcome is not known.
    async fn attempt(&self, ttl: Duration, patience: Duration) -> Result<()> {
        let attempt = async {
            let alone = self.renewing.lock().await;
            self.longest.fetch_max(nanos(ttl), Ordering::AcqRel);
            // Whatever becomes of the answer: the store may have taken it for a shorter time.
            let end = Instant::now() + ttl;
            if self.expires_at().is_some_and(|expires| end < expires) {
                self.ends(Some(end), ttl);
            }
            // Kept until the answer is noted, or the next one could be noted first.
            let mut renewal = Arc::clone(&self.hold).renew(ttl);
            let mut begun = false;
            let renewal = poll_fn(|context| {
                let gate = (!begun).then(|| self.gate.lock());
                if gate.is_some() && self.retired.load(Ordering::Acquire) {
                    return Poll::Ready(Ok(Renewal::Lost(Cause::Gone)));
                }
                begun = true;
                renewal.as_mut().poll(context)
            });
            (renewal.await, alone)
        };
        let unanswered = |_| Error::Unavailable {
            backend: "the store",
            context: format!("no answer within {patience:?}"),
            source: None,
        };
        let (renewal, _alone) =
            tokio::time::timeout(patience, attempt).await.map_err(unanswered)?;
        match renewal? {
            Renewal::Held(expires) => self.ends(expires, ttl),
            Renewal::Lost(_) if self.retired.load(Ordering::Acquire) => {}
            Renewal::Lost(cause) => self.hold.loss().declare(cause),
        }
        Ok(())
    }

    /// Turns a write hold into a read hold.
    pub(crate) async fn downgrade(&self, token: Token) -> Result<()> {
        match Arc::clone(&self.hold).downgrade().await {
            Ok(Renewal::Held(_)) => {
                self.downgraded.store(true, Ordering::Release);
                Ok(())
            }
            Ok(Renewal::Lost(cause)) => {
                self.hold.loss().declare(cause.clone());
                Err(self.lost(token, cause))
            }
            Err(source) => {
                let error = self.unknown("the downgrade", source);
                // Perhaps others read already: nobody may go on as if it were alone.
                if matches!(error, Error::Unknown { .. }) {
                    self.downgraded.store(true, Ordering::Release);
                }
                Err(error)
            }
        }
    }

    /// Gives the hold back and says how that went. Goes on in the background if it is cancelled, or
    /// if the outcome is not known.
    pub(crate) async fn release(&self, token: Token) -> Result<()> {
        let cause = self.hold.loss().cause().cloned();
        let outcome = match self.give_back() {
            None => return Ok(()),
            Some(GiveBack::Done(outcome)) => outcome,
            Some(GiveBack::Going(going)) => going.outcome().await,
        };
        match (outcome, cause) {
            (Err(source), _) => Err(self.unknown("the release", source)),
            (Ok(_), Some(cause)) => Err(self.lost(token, cause)),
            (Ok(Release::NotHeld), None) => Err(self.lost(token, Cause::Gone)),
            (Ok(Release::Released), None) => Ok(()),
        }
    }

    /// Begins to give the hold back; `None` if that was done before.
    pub(crate) fn give_back(&self) -> Option<GiveBack> {
        let gate = self.gate.lock();
        if self.retired.swap(true, Ordering::AcqRel) {
            return None;
        }
        drop(gate);
        // Before it is out of the book: at no moment is it nowhere.
        let leaving = self.keeper.leaving();
        self.keeper.dismiss(self);
        let until = self.expires_at().unwrap_or(Instant::NEVER);
        Some(give_back(Arc::clone(&self.hold), self.keeper.runtime(), until, leaving))
    }

    fn unknown(&self, operation: &'static str, source: Error) -> Error {
        match source {
            // Not sent at all, or no doubt about the answer: not a matter of outcome.
            source @ (Error::Unsupported { .. } | Error::Lost { .. }) => source,
            source => Error::Unknown {
                name: self.terms.name.clone(),
                operation,
                within: self.expires_at().map_or(Duration::ZERO, |at| at.since(Instant::now())),
                source: BoxError::from(source),
            },
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// How giving back goes.
pub(crate) enum GiveBack {
    /// At once.
    Done(Result<Release>),
    /// The store has been asked.
    Going(Going),
}

type Releasing = Pin<Box<dyn Future<Output = Result<Release>> + Send>>;

/// Gives a hold back: at once where the store can.
fn give_back(hold: Arc<dyn Hold>, runtime: &Handle, until: Instant, leaving: Leaving) -> GiveBack {
    // A guard in a thread-local may outlive tokio's own: entering would abort the process.
    let late = Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed());
    let _inside = (!late).then(|| runtime.enter());
    let mut first: Releasing = Arc::clone(&hold).release();
    match first.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome @ Ok(_)) => GiveBack::Done(outcome),
        polled => {
            let first: Releasing = match polled {
                Poll::Ready(failed) => Box::pin(std::future::ready(failed)),
                Poll::Pending => first,
            };
            let runtime = runtime.clone();
            let leaving = Some(leaving);
            GiveBack::Going(Going { first: Some(first), hold, runtime, until, leaving })
        }
    }
}

/// A hold that is being given back. Goes on in the background when it is dropped, and tries again
/// until the lease would have ended anyway.
pub(crate) struct Going {
    first: Option<Releasing>,
    hold: Arc<dyn Hold>,
    runtime: Handle,
    until: Instant,
    leaving: Option<Leaving>,
}

impl Going {
    /// The outcome of the first try. Cancel safe.
    async fn outcome(mut self) -> Result<Release> {
        let at_home = Handle::try_current().is_ok_and(|here| here.id() == self.runtime.id());
        let Some(first) = self.first.as_mut().filter(|_| at_home) else {
            // What it waits for may belong to the runtime: there it must run.
            let (tell, outcome) = oneshot::channel();
            self.in_background(Some(tell));
            return outcome.await.unwrap_or_else(|_| Err(Error::ShutDown));
        };
        let outcome = first.await;
        // What did not succeed is tried again in the background.
        self.first = outcome.is_err().then(|| Arc::clone(&self.hold).release());
        outcome
    }

    fn in_background(&mut self, tell: Option<oneshot::Sender<Result<Release>>>) {
        let Some(first) = self.first.take() else { return };
        let (hold, until, leaving) = (Arc::clone(&self.hold), self.until, self.leaving.take());
        self.runtime.spawn(async move {
            let _leaving = leaving;
            let result = first.await;
            let mut done = result.is_ok();
            if let Some(tell) = tell {
                // Nobody listens when the guard was dropped: then there is nobody to tell.
                let _ = tell.send(result);
            }
            let mut pause = RETRY.0;
            while !done && Instant::now() < until {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY.1);
                done = Arc::clone(&hold).release().await.is_ok();
            }
        });
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.in_background(None);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("terms", &self.terms)
            .field("cause", &self.hold.loss().cause())
            .finish_non_exhaustive()
    }
}
