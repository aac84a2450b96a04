//! The connections of locks: each belongs to one lock at a time, and is used again.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::RETRY;
use super::super::fault::{Fault, STATEMENT_TIME};
use super::super::pool::{Pool, statement};
use super::ties::{SPARE, Ties};
use crate::clock::Instant;
use crate::undo::UNDOING;

pub(super) struct Sessions<D: Ties> {
    /// For everything that needs no session.
    pub(super) pool: Arc<Pool<D>>,
    permits: Arc<Semaphore>,
    spare: Mutex<Vec<Spare<D>>>,
    /// Where connections are made, and live.
    pub(super) runtime: Handle,
}

struct Spare<D: Ties> {
    session: D::Session,
    number: u64,
    since: Instant,
}

impl<D: Ties> Sessions<D> {
    pub(super) fn new(pool: Arc<Pool<D>>, sessions: usize) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(sessions));
        Arc::new(Self { pool, permits, spare: Mutex::default(), runtime: Handle::current() })
    }

    /// A place for one more. `None`: not within this time.
    pub(super) async fn permit(&self, until: Instant) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.permits).acquire_owned();
        let wait = until.since(Instant::now());
        tokio::time::timeout(wait, permit).await.ok()?.ok()
    }

    /// The session that was used last, or a new one.
    pub(super) async fn tie(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Tied<D>, Fault> {
        let used = {
            let mut spare = self.spare.lock();
            let now = Instant::now();
            // The server ends them after twice this time.
            spare.retain(|spare| now.since(spare.since) < SPARE / 2);
            spare.pop()
        };
        let fresh = used.is_none();
        let (session, number) = match used {
            Some(Spare { session, number, .. }) => (session, number),
            None => self.open().await?,
        };
        let (home, session) = (Arc::clone(self), Some(session));
        Ok(Tied {
            session,
            number,
            fresh,
            busy: false,
            aim: None,
            held: false,
            home,
            _permit: permit,
        })
    }

    pub(super) async fn open(self: &Arc<Self>) -> Result<(D::Session, u64), Fault> {
        let pool = Arc::clone(&self.pool);
        let opening = async move {
            let opening = pool.dialect.open();
            let opened = tokio::time::timeout(2 * STATEMENT_TIME, opening).await;
            opened.map_err(|_| Fault::Silent)?.map_err(D::fault)
        };
        // Not in the runtime of whoever asks, which may end before the lock does.
        self.runtime.spawn(opening).await.map_err(|_| Fault::Dropped)?
    }

    async fn end(&self, session: u64, key: &[u8], held: bool, since: Instant) -> Result<(), Fault> {
        statement!(self.pool, end, session, key, held, Instant::now().since(since))
    }

    /// Ends a session that may have or get a lock which nobody wants, until the server does so itself.
    fn end_at_last(self: &Arc<Self>, session: u64, Aim { key, ttl }: Aim, held: bool) {
        let (home, since) = (Arc::clone(self), Instant::now());
        let undoing = UNDOING.begin();
        self.runtime.spawn(async move {
            let _undoing = undoing;
            while let Err(fault) = home.end(session, &key, held, since).await {
                tracing::debug!(%fault, "could not end a session; trying again");
                if !fault.may_pass() || Instant::now() >= since + ttl {
                    break;
                }
                tokio::time::sleep(RETRY).await;
            }
        });
    }
}

/// What a session is for.
#[derive(Clone)]
pub(super) struct Aim {
    /// The lock.
    pub(super) key: Vec<u8>,
    /// The server ends the session after so long.
    pub(super) ttl: Duration,
}

/// A session in use. Closed when dropped, because nobody knows what it still has.
pub(super) struct Tied<D: Ties> {
    pub(super) session: Option<D::Session>,
    /// The server's number for it.
    pub(super) number: u64,
    /// It was not used before.
    pub(super) fresh: bool,
    /// A statement has been sent and not answered.
    pub(super) busy: bool,
    /// What it may have or get, if anything.
    pub(super) aim: Option<Aim>,
    /// It has it.
    pub(super) held: bool,
    home: Arc<Sessions<D>>,
    _permit: OwnedSemaphorePermit,
}

impl<D: Ties> Tied<D> {
    /// Another connection instead of one that has ended.
    pub(super) async fn renew(&mut self) -> Result<(), Fault> {
        self.session = None;
        if let Some(aim) = &self.aim {
            self.home.end_at_last(self.number, aim.clone(), false);
        }
        // Most likely the others have ended as well.
        self.home.spare.lock().clear();
        let (session, number) = self.home.open().await?;
        (self.session, self.number, self.fresh) = (Some(session), number, true);
        Ok(())
    }

    /// Keeps the session for another lock: it has none now.
    pub(super) fn give_back(mut self) {
        if let Some(session) = self.session.take() {
            let (number, since) = (self.number, Instant::now());
            self.home.spare.lock().push(Spare { session, number, since });
        }
    }
}

impl<D: Ties> Drop for Tied<D> {
    fn drop(&mut self) {
        // The server does not see that we have gone while the session waits for a lock there; and who has
        // one must not keep it until the connection happens to be closed.
        if self.session.is_none() || !(self.busy || self.held) {
            return;
        }
        if let Some(aim) = self.aim.take() {
            self.home.end_at_last(self.number, aim, self.held);
        }
    }
}

/// One round trip on a session.
macro_rules! ask {
    ($tied:expr, $within:expr, $method:ident $(, $argument:expr)*) => {{
        let tied = &mut *$tied;
        match tied.session.as_mut() {
            None => Err(Fault::Dropped),
            Some(session) => {
                tied.busy = true;
                let asked = async {
                    D::$method(D::connection(session).await? $(, $argument)*).await
                };
                let answer = tokio::time::timeout($within, asked).await;
                let answer = answer.map_err(|_| Fault::Silent);
                let answer = answer.and_then(|answer| answer.map_err(D::fault));
                // The other end of a connection that broke may not know.
                tied.busy = matches!(answer, Err(Fault::Silent | Fault::Broken(_)));
                answer
            }
        }
    }};
}
pub(super) use ask;
