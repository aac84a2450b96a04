//! The entry point: a backend, the defaults, and the register of everything that is held.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex as SyncMutex;
use tokio::runtime::Handle;

use crate::backend::memory::Memory;
use crate::backend::{Access, Admin, Backend, Kind, Patience, Request, Term};
use crate::clock::Instant;
use crate::cohort::Cohort;
use crate::deadlock;
use crate::error::{Error, Result};
use crate::guard::{Direct, Guard};
use crate::keeper::Keeper;
use crate::lease::{Limits, Terms};
use crate::name::Name;
use crate::owner::{Identity, Owner};
use crate::primitive::{
    Job, LastRun, Latch, Multi, Mutex, RwLock, Schedule, Semaphore, Striped, StripedStock,
};
use crate::url::Url;
use crate::wait::until;

/// How long a lock lives at the store when nothing else is said: renewed every third of it.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// How long a backend may take to notice that patience has ended.
pub(crate) const OVERTIME: Duration = Duration::from_millis(50);

/// How long a caller that waited in vain waits once more to learn who holds the lock.
const WHO_HOLDS_IT: Duration = Duration::from_millis(100);

/// Locks at one store. Cheap to clone; clones share everything.
///
/// ```
/// use lockkeeper::Locks;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkeeper::Result<()> {
/// let locks = Locks::connect("memory:").await?;
/// let guard = locks.mutex("orders/42").lock().await?;
/// println!("mine, under token {}", guard.token());
/// guard.release().await
/// # }
/// ```
#[derive(Clone)]
pub struct Locks {
    pub(crate) inner: Arc<Inner>,
    pub(crate) options: Options,
}

pub(crate) struct Inner {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) identity: Identity,
    pub(crate) ttl: Duration,
    pub(crate) cohorts: SyncMutex<HashMap<(Name, Duration), Weak<Cohort>>>,
    reentrant: SyncMutex<HashMap<(Name, Access, Owner), Arc<Entered>>>,
}

/// The lock that one owner holds, found again when the owner asks again.
type Entered = tokio::sync::Mutex<Weak<Direct>>;

/// How a lock is asked for; the options that the primitives share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) term: Option<Term>,
    pub(crate) owner: Option<Owner>,
    pub(crate) limits: Limits,
    pub(crate) ignores_deadlocks: bool,
}

impl Locks {
    /// Connects to the store that the URL names: see [`Url`] for the forms. Must be called inside a
    /// tokio runtime, where everything in the background then runs.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a URL that makes no sense, [`Error::Unavailable`] when the store cannot
    /// be reached or used.
    pub async fn connect(url: &str) -> Result<Self> {
        let url: Url = url.parse()?;
        let ttl = url.ttl().unwrap_or(DEFAULT_TTL);
        Ok(Self::with_ttl(url.open().await?, ttl))
    }

    /// Prepares the store that the URL names: makes the tables in a database, which must be done once
    /// by somebody who may, or says that the nodes of a RedLock are new. Where that is done, and for
    /// every other store, there is nothing to do.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect).
    pub async fn init(url: &str) -> Result<()> {
        url.parse::<Url>()?.init().await
    }

    /// Locks inside this process that nobody else shares. Must be called inside a tokio runtime.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn memory() -> Self {
        Self::new(Memory::private())
    }

    /// Locks at this backend, with the default time to live. Must be called inside a tokio runtime.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self::with_ttl(backend, DEFAULT_TTL)
    }

    fn with_ttl(backend: Arc<dyn Backend>, ttl: Duration) -> Self {
        let inner = Inner {
            backend,
            keeper: Keeper::new(Handle::current()),
            identity: Identity::new(),
            ttl,
            cohorts: SyncMutex::default(),
            reentrant: SyncMutex::default(),
        };
        let inner = Arc::new(inner);
        deadlock::register(&inner);
        Self { inner, options: Options::default() }
    }

    /// A mutex: one holder at a time.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(self, name.as_ref())
    }

    /// A read-write lock: many readers or one writer.
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self, name.as_ref())
    }

    /// A semaphore: up to `permits` holders at a time.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        Semaphore::new(self, name.as_ref(), permits)
    }

    /// A countdown latch: opens when it has been counted down to zero.
    pub fn latch(&self, name: impl AsRef<str>) -> Latch {
        Latch::new(self, name.as_ref())
    }

    /// A stock of something in so many segments, 1 to 100: taken from by many at a time, never oversold.
    pub fn stock(&self, name: impl AsRef<str>, segments: usize) -> StripedStock {
        StripedStock::new(self, name.as_ref(), segments)
    }

    /// So many mutexes, 1 to 1024, for any number of keys.
    pub fn striped(&self, name: impl AsRef<str>, stripes: usize) -> Striped {
        Striped::new(self, name.as_ref(), stripes)
    }

    /// A job that runs once per tick on one of all nodes that ask for it.
    pub fn job(&self, name: impl AsRef<str>, schedule: Schedule) -> Job {
        Job::new(self, name.as_ref(), schedule)
    }

    /// The last run of the job of this name. `None`: there was none.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], and when the store cannot be used.
    pub async fn last_run(&self, name: impl AsRef<str> + Send) -> Result<Option<LastRun>> {
        Job::last_of(&self.inner, &name.as_ref().parse()?).await
    }

    /// Several mutexes of this store as one. For members at several stores see [`Multi::new`].
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Multi {
        Multi::new(names.into_iter().map(|name| self.mutex(name)))
    }

    /// A new owner, to make primitives reentrant with; here and at other stores.
    pub fn new_owner(&self) -> Owner {
        self.inner.identity.lasting_owner()
    }

    /// The same locks, held in the name of this owner: what it holds it can take again, without a
    /// round trip and under the same token; the last guard to go releases it.
    ///
    /// ```
    /// # use lockkeeper::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// let locks = Locks::memory();
    /// let mine = locks.owned_by(&locks.new_owner());
    /// let outer = mine.mutex("ledger").lock().await?;
    /// let inner = mine.mutex("ledger").lock().await?;
    /// assert_eq!(outer.token(), inner.token());
    /// drop(inner);
    /// assert!(locks.mutex("ledger").try_lock().await?.is_none());
    /// # outer.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn owned_by(&self, owner: &Owner) -> Self {
        self.with(|options| options.owner = Some(owner.clone()))
    }

    /// The same locks, with this time to live at the store; renewed every third of it while the
    /// guard lives. Longer: a crash blocks others for longer. Shorter: a shorter outage of the store
    /// costs the lock. Default: 30 s, or `ttl` in the URL.
    #[must_use]
    pub fn ttl(&self, ttl: Duration) -> Self {
        self.with(|options| options.term = Some(Term::Hosted(ttl)))
    }

    /// The same locks, with a lease that is never renewed: they are lost when it ends.
    #[must_use]
    pub fn lease(&self, lease: Duration) -> Self {
        self.with(|options| options.term = Some(Term::Fixed(lease)))
    }

    /// The same locks, lost after this time however well they are renewed. The lease then runs out
    /// by itself, so the work has up to a time to live to stop before anybody else can start.
    #[must_use]
    pub fn max_hold(&self, max_hold: Duration) -> Self {
        self.with(|options| options.limits.max_hold = Some(max_hold))
    }

    /// The same locks, lost when the work stands still: when [`Guard::progress`] was not called for
    /// this time. A hosted lock is otherwise renewed for as long as its guard lives, also by a program
    /// that hangs. As with [`max_hold`](Self::max_hold) the lease then runs out by itself.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lockkeeper::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// let locks = Locks::memory().stall_after(Duration::from_secs(60));
    /// let guard = locks.mutex("import").lock().await?;
    /// for _line in ["one", "two"] {
    ///     guard.progress()?; // an error when the lock is lost: the loop ends here
    /// }
    /// # guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn stall_after(&self, stall_after: Duration) -> Self {
        self.with(|options| options.limits.stall_after = Some(stall_after))
    }

    /// The same locks, and whether a wait of theirs under an [owner](Self::owned_by) looks for owners that
    /// wait for each other in a circle, and then ends with [`Error::Deadlock`]. Default: it does, from its
    /// second second on. See [`deadlock`] for what is found, what is not, and what it costs.
    ///
    /// An owner can be one at several stores, and circles through all of them are found:
    ///
    /// ```
    /// # use lockkeeper::{Error, Locks};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkeeper::Result<()> {
    /// let (stock, money) = (Locks::memory(), Locks::memory());
    /// let [one, other] = [stock.new_owner(), stock.new_owner()];
    /// let ones = stock.owned_by(&one).mutex("item").lock().await?;
    /// let others = money.owned_by(&other).mutex("account").lock().await?;
    /// let wait = tokio::spawn({
    ///     let account = money.owned_by(&one).mutex("account");
    ///     async move { account.lock().await }
    /// });
    /// match stock.owned_by(&other).mutex("item").lock().await {
    ///     Err(Error::Deadlock { cycle }) => assert_eq!(cycle.len(), 2),
    ///     _ => panic!("each waits for the other"),
    /// }
    /// others.release().await?;
    /// assert!(wait.await.is_ok_and(|granted| granted.is_ok()));
    /// # ones.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn deadlock_detection(&self, on: bool) -> Self {
        self.with(|options| options.ignores_deadlocks = !on)
    }

    fn with(&self, change: impl FnOnce(&mut Options)) -> Self {
        let mut changed = self.clone();
        change(&mut changed.options);
        changed
    }

    /// The store, for looking and forcing.
    pub fn admin(&self) -> &dyn Admin {
        self.inner.backend.admin()
    }

    /// The backend itself.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }
}

impl Inner {
    /// Gets a lock of any kind; `None` when patience ran out. The one way in for every primitive.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        name: &Name,
        kind: Kind,
        options: &Options,
        patience: Patience,
    ) -> Result<Option<Guard>> {
        let granted = async {
            match &options.owner {
                Some(owner) => {
                    let granted = self.enter_again(name, kind, owner, options, patience);
                    // Circles through permits are not looked for, so a wait for one would look in vain.
                    let never = matches!(kind, Kind::Permit { .. });
                    if never || options.ignores_deadlocks || patience == Patience::TryOnce {
                        return granted.await;
                    }
                    tokio::select! {
                        biased;
                        granted = granted => granted,
                        cycle = deadlock::found(self, name, owner) => {
                            Err(Error::Deadlock { cycle })
                        }
                    }
                }
                None => {
                    let owner = self.identity.owner();
                    let granted = self.direct(name, kind, owner, options, patience).await?;
                    Ok(granted.map(Guard::alone))
                }
            }
        };
        self.while_open(granted).await
    }

    /// Several locks in one step, all or none; `None`: not all were to be had, or the store cannot do
    /// that. Owners that enter again have to be asked one by one.
    pub(crate) async fn acquire_all(
        self: &Arc<Self>,
        wanted: Vec<(Name, Kind, Options)>,
    ) -> Result<Option<Vec<Guard>>> {
        if wanted.iter().any(|(_, _, options)| options.owner.is_some()) {
            return Ok(None);
        }
        let mut requests = Vec::with_capacity(wanted.len());
        for (name, kind, options) in &wanted {
            let (name, owner) = (name.clone(), self.identity.owner());
            let (id, term) = (self.identity.request_id(), self.check(*kind, options)?);
            let (kind, patience) = (*kind, Patience::TryOnce);
            requests.push(Request { name, kind, owner, id, term, tokens: 1, patience });
        }
        // In care before it no longer waits: at shutdown there is no moment between the two.
        let granted = async move {
            let acquiring = Arc::clone(&self.backend).acquire_all(&requests);
            let Some(holds) = acquiring.await? else { return Ok(None) };
            let guards =
                holds.into_iter().zip(requests).zip(wanted).map(|((hold, request), wanted)| {
                    let Request { name, kind, owner, term, .. } = request;
                    let terms = Terms { name, owner, kind, term, limits: wanted.2.limits };
                    Guard::alone(Direct::new(self.keeper.adopt(hold, terms)))
                });
            Ok(Some(guards.collect()))
        };
        self.while_open(granted).await
    }

    /// Not shut down.
    pub(crate) fn is_open(&self) -> bool {
        self.keeper.closing.cause().is_none()
    }

    /// Runs a wait for a lock, and ends it at shutdown.
    pub(crate) async fn while_open<T>(
        &self,
        granted: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        // Until it is dropped, and what it leaves behind is counted as that. Before it is looked whether all is over, or
        // nobody would wait for who was late in between.
        let _waiting = self.keeper.waiting.begin();
        if !self.is_open() {
            return Err(Error::ShutDown);
        }
        tokio::select! {
            biased;
            granted = granted => granted,
            _ = self.keeper.closing.wait() => Err(Error::ShutDown),
        }
    }

    /// The kind, the time to live and the capabilities fit together.
    pub(crate) fn check(&self, kind: Kind, options: &Options) -> Result<Term> {
        let what = match kind {
            Kind::Permit { of: 0 } => {
                return Err(Error::Config("a semaphore needs at least one permit".into()));
            }
            _ if self.backend.capabilities().allows(kind) => None,
            _ => Some(format!("a {kind}")),
        };
        if let Some(what) = what {
            return Err(Error::Unsupported { backend: self.backend.name(), what });
        }
        options.limits.check()?;
        options.term.unwrap_or(Term::Hosted(self.ttl)).check()
    }

    /// The same owner on the same lock gets the same hold.
    async fn enter_again(
        self: &Arc<Self>,
        name: &Name,
        kind: Kind,
        owner: &Owner,
        options: &Options,
        patience: Patience,
    ) -> Result<Option<Guard>> {
        let key = (name.clone(), kind.access(), owner.clone());
        let entered = {
            let mut reentrant = self.reentrant.lock();
            if reentrant.len() >= 64 && reentrant.len().is_power_of_two() {
                reentrant.retain(|_, entered| {
                    Arc::strong_count(entered) > 1
                        || entered.try_lock().is_ok_and(|held| held.strong_count() > 0)
                });
            }
            Arc::clone(reentrant.entry(key).or_default())
        };
        // Held while asking: two tasks of one owner share one request.
        let Some(mut held) = until(patience, entered.lock()).await else {
            return Ok(None);
        };
        if let Some(held) = held.upgrade().filter(|held| held.gives(kind)) {
            return Ok(Some(Guard::shared(held)));
        }
        let granted = self.direct(name, kind, owner.clone(), options, patience).await?;
        let granted = granted.map(Arc::new);
        if let Some(direct) = &granted {
            *held = Arc::downgrade(direct);
        }
        Ok(granted.map(Guard::shared))
    }

    /// What an owner holds here, as far as this process knows.
    pub(crate) fn held_by(&self, owner: &Owner) -> Vec<Name> {
        let is_held =
            |entered: &Entered| entered.try_lock().is_ok_and(|held| held.strong_count() > 0);
        let reentrant = self.reentrant.lock();
        let held = reentrant.iter().filter(|((_, _, of), entered)| of == owner && is_held(entered));
        held.map(|((name, ..), _)| name.clone()).collect()
    }

    /// With a hold of its own.
    async fn direct(
        self: &Arc<Self>,
        name: &Name,
        kind: Kind,
        owner: Owner,
        options: &Options,
        patience: Patience,
    ) -> Result<Option<Direct>> {
        let term = self.check(kind, options)?;
        let request = Request {
            name: name.clone(),
            kind,
            owner: owner.clone(),
            id: self.identity.request_id(),
            term,
            tokens: 1,
            patience,
        };
        let acquiring = Arc::clone(&self.backend).acquire(request);
        // The backend keeps the deadline; if it cannot, because nobody answers, we do.
        let granted = match patience {
            Patience::Until(at) => until(Patience::Until(at + OVERTIME), acquiring).await,
            _ => Some(acquiring.await),
        };
        let Some(hold) = granted.transpose()?.flatten() else { return Ok(None) };
        let terms = Terms { name: name.clone(), owner, kind, term, limits: options.limits };
        Ok(Some(Direct::new(self.keeper.adopt(hold, terms))))
    }

    /// The cohort for plain hosted mutexes of this name and time to live.
    pub(crate) fn cohort(self: &Arc<Self>, name: &Name, ttl: Duration) -> Arc<Cohort> {
        let mut cohorts = self.cohorts.lock();
        if let Some(cohort) = cohorts.get(&(name.clone(), ttl)).and_then(Weak::upgrade) {
            return cohort;
        }
        if cohorts.len() >= 64 && cohorts.len().is_power_of_two() {
            cohorts.retain(|_, cohort| cohort.strong_count() > 0);
        }
        let cohort = Cohort::new(Arc::clone(self), name.clone(), ttl);
        cohorts.insert((name.clone(), ttl), Arc::downgrade(&cohort));
        cohort
    }

    /// The error of a wait that ended without a grant, with the holder's name if the store tells it
    /// quickly.
    pub(crate) async fn timed_out(&self, name: &Name, since: Instant) -> Error {
        let waited = Instant::now().since(since);
        let shown = tokio::time::timeout(WHO_HOLDS_IT, self.backend.admin().show(name)).await;
        let held_by = match shown {
            Ok(Ok(status)) => status.holders.into_iter().map(|holding| holding.owner).collect(),
            _ => Vec::new(),
        };
        Error::Timeout { name: name.clone(), waited, held_by }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("backend", &self.backend).finish_non_exhaustive()
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("backend", &self.inner.backend).finish_non_exhaustive()
    }
}
