//! A backend that misbehaves on command, over one that does not.
//!
//! It also counts, which makes it the witness of what the layers above ask of a store: how often,
//! and never in the wrong order. Every hold has a lease here, even a hosted one of `memory:`, so that
//! renewals really happen.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::backend::{
    Admin, Backend, Capabilities, Cell, Cells, Eviction, Hold, Latches, Release, Renewal, Request,
    Status, Term, Write,
};
use lockkeeper::clock::Instant;
use lockkeeper::{Error, Loss, Name, Result, TokenBlock};
use tokio::sync::watch;

/// How one operation behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// As it should.
    #[default]
    Pass,
    /// Does not reach the store; fails at once.
    Fail,
    /// Does not reach the store and is not answered until the mode changes; then it fails.
    Hang,
    /// Reaches the store; the reply is lost.
    LoseReply,
    /// Reaches the store; the reply comes with [`Fault::deliver`], whatever the mode is then.
    HoldReply,
}

/// One operation: its mode, and how often it was begun and carried out.
#[derive(Debug)]
pub struct Fault {
    mode: watch::Sender<Mode>,
    delivered: watch::Sender<usize>,
    begun: AtomicUsize,
    done: AtomicUsize,
    under_way: AtomicUsize,
    most: AtomicUsize,
}

/// One operation that is under way, until it ends or is given up.
struct UnderWay<'a>(&'a Fault);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Default for Fault {
    fn default() -> Self {
        let count = || AtomicUsize::new(0);
        Self {
            mode: watch::Sender::new(Mode::Pass),
            delivered: watch::Sender::new(0),
            begun: count(),
            done: count(),
            under_way: count(),
            most: count(),
        }
    }
}

impl Fault {
    /// Behaves so from now on; operations that hang see it too.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Delivers all replies that are held back.
    pub fn deliver(&self) {
        self.delivered.send_modify(|times| *times += 1);
    }

    /// How often it was begun.
    pub fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// How often the store answered.
    pub fn done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }

    /// The most that were ever under way at the same time.
    pub fn most_at_once(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    async fn run<T: Send>(&self, operation: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let _under_way = UnderWay(self);
        let mode = *self.mode.borrow();
        if mode == Mode::Hang {
            self.changed(mode).await;
        }
        if matches!(mode, Mode::Hang | Mode::Fail) {
            return Err(broken());
        }
        let mut delivered = self.delivered.subscribe();
        delivered.mark_unchanged();
        let outcome = operation.await;
        self.done.fetch_add(1, Ordering::SeqCst);
        match mode {
            Mode::LoseReply => return Err(broken()),
            Mode::HoldReply => drop(delivered.changed().await),
            _ => {}
        }
        outcome
    }

    async fn changed(&self, from: Mode) {
        // Fails only when the sender is gone, and that is us.
        let _ = self.mode.subscribe().wait_for(|mode| *mode != from).await;
    }
}

fn broken() -> Error {
    Error::Unavailable { backend: "faulty", context: "broken on command".into(), source: None }
}

fn refused() -> Error {
    Error::Unavailable { backend: "refused", context: "refused on command".into(), source: None }
}

/// What goes wrong, and what was seen.
#[derive(Debug, Default)]
pub struct Faults {
    /// [`Backend::acquire`].
    pub acquire: Fault,
    /// [`Hold::renew`].
    pub renew: Fault,
    /// [`Hold::release`].
    pub release: Fault,
    /// [`Cells::read`] and [`Cells::read_at_once`].
    pub read: Fault,
    /// [`Cells::swap`].
    pub swap: Fault,
    /// Cells cannot be read, and that does not look as if it would pass.
    pub refuses_reads: AtomicBool,
    /// A swap of more cells finds somebody else faster. Zero: no swap does.
    pub most_cells: AtomicUsize,
    /// After the next swap of several cells all others of several find somebody else faster.
    pub last_of_several: AtomicBool,
    /// [`Admin::list`].
    pub list: Fault,
    /// [`Admin::show`].
    pub show: Fault,
    renewed_after_release: AtomicUsize,
}

impl Faults {
    /// How many renewals began after the release of the same hold had begun.
    pub fn renewed_after_release(&self) -> usize {
        self.renewed_after_release.load(Ordering::SeqCst)
    }
}

/// The backend.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Backend>,
    faults: Arc<Faults>,
}

impl Faulty {
    /// Wraps a backend.
    pub fn new(inner: Arc<dyn Backend>) -> (Arc<Self>, Arc<Faults>) {
        let faults = Arc::<Faults>::default();
        (Arc::new(Self { inner, faults: Arc::clone(&faults) }), faults)
    }
}

#[async_trait]
impl Backend for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn place(&self) -> &str {
        self.inner.place()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn acquire(self: Arc<Self>, mut request: Request) -> Result<Option<Arc<dyn Hold>>> {
        request.term = Term::Fixed(request.term.ttl());
        let faults = Arc::clone(&self.faults);
        let granted = faults.acquire.run(Arc::clone(&self.inner).acquire(request)).await?;
        let released = AtomicBool::new(false);
        Ok(granted.map(|inner| Arc::new(FaultyHold { inner, faults, released }) as Arc<dyn Hold>))
    }

    fn lifeline(&self) -> io::Result<Option<OwnedFd>> {
        self.inner.lifeline()
    }

    fn admin(&self) -> &dyn Admin {
        self
    }

    fn latches(&self) -> Option<&dyn Latches> {
        self.inner.latches()
    }

    fn cells(&self) -> Option<&dyn Cells> {
        self.inner.cells().is_some().then_some(self)
    }
}

#[async_trait]
impl Cells for Faulty {
    async fn read(&self, name: &Name, count: usize) -> Result<Vec<Cell>> {
        if self.faults.refuses_reads.load(Ordering::Relaxed) {
            // That it was asked is seen.
            let refused = async { Err(refused()) };
            return self.faults.read.run(refused).await;
        }
        self.faults.read.run(self.inner.cells().unwrap().read(name, count)).await
    }

    async fn read_at_once(&self, name: &Name, count: usize) -> Result<Vec<Cell>> {
        self.faults.read.run(self.inner.cells().unwrap().read_at_once(name, count)).await
    }

    async fn swap(&self, name: &Name, writes: &[Write]) -> Result<bool> {
        let faults = &self.faults;
        let most = faults.most_cells.load(Ordering::Relaxed);
        if most > 0 && writes.len() > most {
            // As if somebody else was faster.
            return Ok(false);
        }
        if faults.last_of_several.load(Ordering::Relaxed) && writes.len() > 1 {
            faults.most_cells.store(1, Ordering::Relaxed);
        }
        faults.swap.run(self.inner.cells().unwrap().swap(name, writes)).await
    }

    fn may_pass(&self, error: &Error) -> bool {
        matches!(error, Error::Unavailable { backend: "faulty", .. })
            || self.inner.cells().unwrap().may_pass(error)
    }
}

#[async_trait]
impl Admin for Faulty {
    async fn list(&self) -> Result<Vec<Status>> {
        self.faults.list.run(self.inner.admin().list()).await
    }

    async fn show(&self, name: &Name) -> Result<Status> {
        self.faults.show.run(self.inner.admin().show(name)).await
    }

    async fn evict(&self, name: &Name, reason: &str) -> Result<Eviction> {
        self.inner.admin().evict(name, reason).await
    }
}

#[derive(Debug)]
struct FaultyHold {
    inner: Arc<dyn Hold>,
    faults: Arc<Faults>,
    released: AtomicBool,
}

#[async_trait]
impl Hold for FaultyHold {
    fn tokens(&self) -> TokenBlock {
        self.inner.tokens()
    }

    fn expires_at(&self) -> Option<Instant> {
        self.inner.expires_at()
    }

    fn loss(&self) -> &Loss {
        self.inner.loss()
    }

    fn park(&self) -> bool {
        false
    }

    fn unpark(&self) -> bool {
        false
    }

    async fn renew(self: Arc<Self>, ttl: Duration) -> Result<Renewal> {
        if self.released.load(Ordering::SeqCst) {
            self.faults.renewed_after_release.fetch_add(1, Ordering::SeqCst);
        }
        self.faults.renew.run(Arc::clone(&self.inner).renew(ttl)).await
    }

    async fn downgrade(self: Arc<Self>) -> Result<Renewal> {
        Arc::clone(&self.inner).downgrade().await
    }

    async fn release(self: Arc<Self>) -> Result<Release> {
        self.released.store(true, Ordering::SeqCst);
        self.faults.release.run(Arc::clone(&self.inner).release()).await
    }
}
