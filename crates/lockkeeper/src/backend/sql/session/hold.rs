//! A hold that lives with a session, and the task that keeps it.
//!
//! The task has the connection. It asks every [`BEAT`] whether all is well, which is also the
//! sign of life that keeps the server from ending the session; it hears at once that the connection has
//! ended, where the driver can; and it does what the hold is asked to do, so that nobody who gives up
//! leaves a statement half sent.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::super::fault::{Fault, STATEMENT_TIME};
use super::sessions::{Tied, ask};
use super::ties::{BEAT, Held, Ties};
use crate::backend::{Hold, Kind, Release, Renewal};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::loss::{Cause, Loss};
use crate::name::Name;
use crate::owner::{Owner, RequestId};
use crate::token::TokenBlock;

/// A connection that does not answer for so long is lost, however long the lease.
const SILENCE: Duration = Duration::from_secs(60);

/// What the hold and its task both know.
pub(super) struct Facts {
    pub(super) name: Name,
    pub(super) owner: Owner,
    pub(super) kind: Mutex<Kind>,
    pub(super) tokens: TokenBlock,
    pub(super) expires: Instant,
    pub(super) loss: Loss,
}

pub(super) struct SessionHold {
    backend: &'static str,
    pub(super) facts: Arc<Facts>,
    orders: mpsc::UnboundedSender<Order>,
}

enum Order {
    Renew(Duration, oneshot::Sender<Renewal>),
    Share(oneshot::Sender<Result<Renewal, Fault>>),
    Release(oneshot::Sender<Result<Release, Fault>>),
}

/// The requests of this client that have a hold, for those who ask again.
pub(super) type Book = Arc<Mutex<HashMap<RequestId, Weak<SessionHold>>>>;

/// What the task looks after.
pub(super) struct Care<D: Ties> {
    pub(super) facts: Arc<Facts>,
    pub(super) tied: Option<Tied<D>>,
    /// What the server calls the lock.
    pub(super) lock: String,
    pub(super) shared: bool,
    /// The name of the row.
    pub(super) row: Vec<u8>,
    /// When the server may end the session.
    pub(super) ends: Instant,
    pub(super) book: (Book, RequestId),
}

impl SessionHold {
    /// Puts it under the care of a task.
    pub(super) fn start<D: Ties>(care: Care<D>, runtime: &tokio::runtime::Handle) -> Arc<Self> {
        let (orders, given) = mpsc::unbounded_channel();
        let facts = Arc::clone(&care.facts);
        let hold = Arc::new(Self { backend: D::NAME, facts, orders });
        let (book, id) = &care.book;
        book.lock().insert(*id, Arc::downgrade(&hold));
        runtime.spawn(keep(care, given));
        hold
    }

    async fn order<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> Order + Send) -> Option<T> {
        let (tell, told) = oneshot::channel();
        self.orders.send(order(tell)).ok()?;
        told.await.ok()
    }

    /// Nobody keeps it any more.
    fn gone(&self) -> Renewal {
        Renewal::Lost(self.facts.loss.cause().cloned().unwrap_or(Cause::Gone))
    }

    fn error(&self, fault: Fault, doing: &str) -> Error {
        Arc::new(fault).error(self.backend, doing)
    }
}

impl<D: Ties> Care<D> {
    /// Shows a sign of life that is good for this long. `Some`: lost.
    async fn beat(&mut self, left: Duration) -> Option<Cause> {
        let left = left.min(D::LONGEST);
        let sent = Instant::now();
        let Some(tied) = &mut self.tied else { return Some(Cause::Gone) };
        let patience = self.ends.since(sent).min(SILENCE);
        let row = self.row.as_slice();
        match ask!(tied, patience, beat, row, left) {
            // A pooler that was not found out.
            Ok((number, _)) if number != tied.number => Some(Cause::Gone),
            Ok((_, row)) => {
                self.ends = sent + left;
                let held = row.and_then(|row| serde_json::from_slice::<Held>(&row).ok());
                held.and_then(|held| held.evicted).map(Cause::Evicted)
            }
            Err(Fault::Silent) => Some(Cause::Expired),
            Err(Fault::Broken(_) | Fault::Dropped) => Some(Cause::Gone),
            Err(fault) => {
                tracing::debug!(name = %self.facts.name, %fault, "asking again whether it is held");
                None
            }
        }
    }

    async fn release(mut self) -> Result<Release, Fault> {
        let Some(mut tied) = self.tied.take() else { return Ok(Release::NotHeld) };
        let (lock, shared, row) = (self.lock.as_str(), self.shared, self.row.as_slice());
        // If it fails the session is closed, and with it goes the lock.
        let ours = ask!(&mut tied, STATEMENT_TIME, unlock, lock, shared, row)?;
        if !ours {
            return Ok(Release::NotHeld);
        }
        tied.give_back();
        Ok(Release::Released)
    }

    async fn share(&mut self) -> Result<Renewal, Fault> {
        let Some(tied) = &mut self.tied else { return Ok(Renewal::Lost(Cause::Gone)) };
        let lock = self.lock.as_str();
        if !ask!(tied, STATEMENT_TIME, share, lock)? {
            return Ok(Renewal::Lost(Cause::Gone));
        }
        self.shared = true;
        let mut kind = self.facts.kind.lock();
        *kind = kind.downgraded().unwrap_or(*kind);
        Ok(Renewal::Held(Some(self.ends)))
    }

    /// Lets go of what is lost: told first, then free for others.
    async fn lose(self, cause: Cause) {
        let ended = cause == Cause::Gone;
        self.facts.loss.declare(cause);
        // Whatever comes of it: the session is over in any case, also if only our end of it has heard so.
        if !ended {
            drop(self.release().await);
        }
    }
}

impl<D: Ties> Drop for Care<D> {
    fn drop(&mut self) {
        // Before the connection is closed. Who has released it does not ask any more.
        self.facts.loss.declare(Cause::Gone);
        self.book.0.lock().remove(&self.book.1);
    }
}

async fn keep<D: Ties>(mut care: Care<D>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let beat = BEAT.min(care.ends.since(Instant::now()) / 3);
    let mut next = Instant::now() + beat;
    loop {
        let now = Instant::now();
        if now >= care.ends {
            return care.lose(Cause::Expired).await;
        }
        let pause = next.min(care.ends).since(now);
        let Some(session) = care.tied.as_mut().and_then(|tied| tied.session.as_mut()) else {
            return;
        };
        let lost = tokio::select! {
            biased;
            order = orders.recv() => match order {
                None => return drop(care.release().await),
                Some(Order::Release(tell)) => return drop(tell.send(care.release().await)),
                Some(Order::Renew(ttl, tell)) => {
                    let lost = care.beat(ttl).await;
                    next = Instant::now() + beat;
                    let renewal = lost.clone().map_or(Renewal::Held(Some(care.ends)), Renewal::Lost);
                    let _ = tell.send(renewal);
                    lost
                }
                Some(Order::Share(tell)) => {
                    let shared = care.share().await;
                    let lost = match &shared {
                        Ok(Renewal::Held(_)) => None,
                        _ => Some(Cause::Gone),
                    };
                    let _ = tell.send(shared);
                    lost
                }
            },
            () = D::hear_the_end(session) => Some(Cause::Gone),
            () = tokio::time::sleep(pause) => {
                next = Instant::now() + beat;
                let left = care.ends.since(Instant::now());
                if left.is_zero() { Some(Cause::Expired) } else { care.watch(left).await }
            }
        };
        if let Some(cause) = lost {
            return care.lose(cause).await;
        }
    }
}

impl<D: Ties> Care<D> {
    /// A sign of life that does not make the lease any longer.
    async fn watch(&mut self, left: Duration) -> Option<Cause> {
        let ends = self.ends;
        let lost = self.beat(left).await;
        self.ends = ends;
        lost
    }
}

#[async_trait]
impl Hold for SessionHold {
    fn tokens(&self) -> TokenBlock {
        self.facts.tokens
    }

    fn expires_at(&self) -> Option<Instant> {
        Some(self.facts.expires)
    }

    fn loss(&self) -> &Loss {
        &self.facts.loss
    }

    async fn renew(self: Arc<Self>, ttl: Duration) -> Result<Renewal> {
        let renewed = self.order(|tell| Order::Renew(ttl, tell)).await;
        Ok(renewed.unwrap_or_else(|| self.gone()))
    }

    async fn downgrade(self: Arc<Self>) -> Result<Renewal> {
        match self.order(Order::Share).await {
            Some(shared) => shared.map_err(|fault| self.error(fault, "downgrading")),
            None => Ok(self.gone()),
        }
    }

    fn park(&self) -> bool {
        false
    }

    fn unpark(&self) -> bool {
        false
    }

    async fn release(self: Arc<Self>) -> Result<Release> {
        // The task may be waiting for an answer to something else for much longer. It does this next.
        let told = tokio::time::timeout(2 * STATEMENT_TIME, self.order(Order::Release)).await;
        match told.unwrap_or(Some(Err(Fault::Silent))) {
            Some(released) => released.map_err(|fault| self.error(fault, "releasing")),
            None => Ok(Release::NotHeld),
        }
    }
}

impl fmt::Debug for SessionHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionHold").field("name", &self.facts.name).finish_non_exhaustive()
    }
}
