//! One name, asked for in one way: what all primitives have in common.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::backend::{Kind, Patience, Term};
use crate::clock::Instant;
use crate::cohort::Cohort;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::locks::{Inner, Locks, Options};
use crate::name::Name;
use crate::wait::Pauses;

#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) inner: Arc<Inner>,
    name: Result<Name, Invalid>,
    pub(crate) options: Options,
    cohort: OnceLock<Arc<Cohort>>,
}

/// A name that cannot be used; reported when it is.
#[derive(Clone, Debug)]
struct Invalid {
    name: String,
    reason: String,
}

impl Target {
    pub(crate) fn new(locks: &Locks, name: &str) -> Self {
        let name = name.parse().map_err(|error| match error {
            Error::InvalidName { name, reason } => Invalid { name, reason },
            other => Invalid { name: name.to_owned(), reason: other.to_string() },
        });
        Self {
            inner: Arc::clone(&locks.inner),
            name,
            options: locks.options.clone(),
            cohort: OnceLock::new(),
        }
    }

    pub(crate) fn name(&self) -> Result<&Name> {
        self.name.as_ref().map_err(|Invalid { name, reason }| Error::InvalidName {
            name: name.clone(),
            reason: reason.clone(),
        })
    }

    /// For how long whoever dies with it has it.
    pub(crate) fn ttl(&self) -> Duration {
        self.options.term.map_or(self.inner.ttl, |term| term.ttl())
    }

    /// Waits until it is granted.
    pub(crate) async fn lock(&self, kind: Kind) -> Result<Guard> {
        match self.acquire(kind, Patience::Forever).await? {
            Some(guard) => Ok(guard),
            // No backend does this; the type cannot say so.
            None => Err(self.timed_out(Instant::now()).await),
        }
    }

    /// Asks once.
    pub(crate) async fn try_lock(&self, kind: Kind) -> Result<Option<Guard>> {
        self.acquire(kind, Patience::TryOnce).await
    }

    /// Waits for at most this long.
    pub(crate) async fn lock_timeout(&self, kind: Kind, timeout: Duration) -> Result<Guard> {
        let since = Instant::now();
        let patience =
            if timeout.is_zero() { Patience::TryOnce } else { Patience::Until(since + timeout) };
        match self.acquire(kind, patience).await? {
            Some(guard) => Ok(guard),
            None => Err(self.timed_out(since).await),
        }
    }

    /// Asks at most so often.
    pub(crate) async fn lock_attempts(&self, kind: Kind, attempts: u32) -> Result<Guard> {
        let since = Instant::now();
        let mut pauses = Pauses::new();
        for attempt in 0..attempts {
            if attempt > 0 {
                pauses.pause().await;
            }
            if let Some(guard) = self.try_lock(kind).await? {
                return Ok(guard);
            }
        }
        Err(self.timed_out(since).await)
    }

    async fn acquire(&self, kind: Kind, patience: Patience) -> Result<Option<Guard>> {
        let name = self.name()?;
        if kind == Kind::Mutex
            && let Some(cohort) = self.cohort(name)?
        {
            if self.inner.is_open()
                && let Some(turn) = cohort.enter_now()
            {
                return Ok(Some(Guard::turn(turn)));
            }
            let entering = async { Ok(cohort.enter(patience).await?.map(Guard::turn)) };
            return self.inner.while_open(entering).await;
        }
        self.inner.acquire(name, kind, &self.options, patience).await
    }

    /// Plain hosted mutexes are passed on inside the process; whatever has a term or an owner of its
    /// own needs a hold of its own.
    fn cohort(&self, name: &Name) -> Result<Option<&Arc<Cohort>>> {
        if let Some(cohort) = self.cohort.get() {
            return Ok(Some(cohort));
        }
        let Term::Hosted(ttl) = self.inner.check(Kind::Mutex, &self.options)? else {
            return Ok(None);
        };
        if self.options.owner.is_some() || !self.options.limits.is_none() {
            return Ok(None);
        }
        Ok(Some(self.cohort.get_or_init(|| self.inner.cohort(name, ttl))))
    }

    pub(crate) async fn timed_out(&self, since: Instant) -> Error {
        match self.name() {
            Ok(name) => self.inner.timed_out(name, since).await,
            Err(error) => error,
        }
    }
}
