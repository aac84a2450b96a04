//! Several mutexes as one.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{join_all, select_all};

use super::mutex::Mutex;
use crate::backend::Patience;
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::loss::Cause;
use crate::name::Name;
use crate::token::Token;
use crate::wait::until;

/// Several mutexes taken as one, all or none; members may be at different stores.
///
/// Where all members are free at one store that can do it (`redis:`), they are taken in one atomic step
/// and one round trip. Otherwise one after the other in an order that is the same for everybody
/// (store, then name), so two multi-locks cannot wait for each other in a circle. A member named
/// twice counts once. One deadline holds for the whole.
///
/// ```
/// # use lockkeeper::{Locks, Result};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let locks = Locks::memory();
/// let both = locks.multi(["account/7", "account/3"]).lock().await?;
/// assert!(locks.mutex("account/3").try_lock().await?.is_none());
/// both.release().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Multi {
    members: Vec<Mutex>,
}

impl Multi {
    /// These mutexes as one.
    pub fn new(members: impl IntoIterator<Item = Mutex>) -> Self {
        Self { members: members.into_iter().collect() }
    }

    /// Waits until all are granted. Cancel safe: dropping the future releases what it had.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] without members; else the error of the member that failed, with all others
    /// released.
    pub async fn lock(&self) -> Result<MultiGuard> {
        self.take(None).await
    }

    /// Asks once for each; `None` when one is taken.
    ///
    /// # Errors
    ///
    /// As for [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>> {
        let members = self.sorted()?;
        if let Some(guards) = Self::at_once(&members).await? {
            return Ok(Some(MultiGuard { guards }));
        }
        let mut guards = Vec::with_capacity(members.len());
        for member in members {
            match member.try_lock().await? {
                Some(guard) => guards.push(guard),
                None => return Ok(None),
            }
        }
        Ok(Some(MultiGuard { guards }))
    }

    /// Waits for at most `timeout` for all of them together.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] with the member that was not to be had; as for [`lock`](Self::lock)
    /// otherwise.
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<MultiGuard> {
        self.take(Some(Instant::now() + timeout)).await
    }

    /// Takes the members in order. What was taken is released when a later one fails: its guard is
    /// dropped here.
    async fn take(&self, deadline: Option<Instant>) -> Result<MultiGuard> {
        let members = self.sorted()?;
        let patience = deadline.map_or(Patience::Forever, Patience::Until);
        if let Some(guards) = until(patience, Self::at_once(&members)).await.transpose()?.flatten()
        {
            return Ok(MultiGuard { guards });
        }
        let mut guards = Vec::with_capacity(members.len());
        for member in members {
            guards.push(match deadline {
                None => member.lock().await?,
                Some(at) => member.lock_timeout(at.since(Instant::now())).await?,
            });
        }
        Ok(MultiGuard { guards })
    }

    /// All of them in one step, if they are at one store that can do that and has them free.
    async fn at_once(members: &[&Mutex]) -> Result<Option<Vec<Guard>>> {
        let Some(first) = members.first() else { return Ok(None) };
        let same = |member: &&Mutex| Arc::ptr_eq(first.inner(), member.inner());
        if members.len() < 2 || !members.iter().all(same) {
            return Ok(None);
        }
        let wanted: Result<Vec<_>> = members.iter().map(|member| member.wanted()).collect();
        first.inner().acquire_all(wanted?).await
    }

    fn sorted(&self) -> Result<Vec<&Mutex>> {
        let mut ranked = Vec::with_capacity(self.members.len());
        for member in &self.members {
            ranked.push((member.rank()?, member));
        }
        if ranked.is_empty() {
            return Err(Error::Config("a multi-lock needs at least one member".into()));
        }
        ranked.sort_by(|(one, _), (two, _)| one.cmp(two));
        ranked.dedup_by(|(one, _), (two, _)| one == two);
        Ok(ranked.into_iter().map(|(_, member)| member).collect())
    }
}

/// Several locks that are held as one: lost when any of them is lost.
#[must_use = "if unused the locks are released at once"]
#[clippy::has_significant_drop]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl MultiGuard {
    /// The members, in the order in which they were taken.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// The token of one member.
    pub fn token(&self, name: &Name) -> Option<Token> {
        self.guards.iter().find(|guard| guard.name() == name).map(Guard::token)
    }

    /// Waits until a member is lost, and says which. Cancel safe.
    pub async fn lost(&self) -> (&Name, Cause) {
        let any = self.guards.iter().map(|guard| Box::pin(guard.lost()));
        let (cause, at, _) = select_all(any).await;
        (self.guards[at].name(), cause)
    }

    /// Whether any member is lost.
    pub fn is_lost(&self) -> bool {
        self.guards.iter().any(Guard::is_lost)
    }

    /// An error if any member is lost: for the places in long work where it can stop.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`].
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(Guard::check)
    }

    /// Says for every member that the work goes on; see [`Guard::progress`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if any member is lost.
    pub fn progress(&self) -> Result<()> {
        self.guards.iter().try_for_each(Guard::progress)
    }

    /// How long all of them are safely held if nothing renews them.
    pub fn remaining(&self) -> Option<Duration> {
        self.guards.iter().filter_map(Guard::remaining).min()
    }

    /// Lets every lease end `ttl` from now.
    ///
    /// # Errors
    ///
    /// The first error; the other members were renewed all the same.
    pub async fn renew(&self, ttl: Duration) -> Result<()> {
        let mut result = Ok(());
        for guard in &self.guards {
            result = result.and(guard.renew(ttl).await);
        }
        result
    }

    /// Runs `work` until it is done or any member is lost; see [`Guard::protect`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`].
    pub async fn protect<F: Future + Send>(&self, work: F) -> Result<F::Output> {
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        poll_fn(|context| {
            let announced = lost.as_mut().poll(context).is_ready();
            if let Err(error) = self.check() {
                return Poll::Ready(Err(error));
            }
            debug_assert!(!announced, "a member is lost, so its check fails");
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Releases every member, also when one of them fails. Cancel safe.
    ///
    /// # Errors
    ///
    /// The error of the one that failed, or [`Error::Multi`] with all of them.
    pub async fn release(self) -> Result<()> {
        let released = join_all(self.guards.into_iter().rev().map(Guard::release)).await;
        let mut errors: Vec<Error> = released.into_iter().filter_map(Result::err).collect();
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Multi { first: Box::new(errors.remove(0)), rest: errors }),
        }
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
