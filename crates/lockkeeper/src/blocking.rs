//! The same locks for code without an async runtime.
//!
//! A runtime with one thread runs in the background and renews what is held. Guards release when they
//! are dropped, and wait for it, up to a second.
//!
//! ```
//! # fn main() -> lockkeeper::Result<()> {
//! let locks = lockkeeper::blocking::Locks::connect("memory:")?;
//! let guard = locks.mutex("orders/42").lock()?;
//! assert!(!guard.is_lost());
//! guard.release()
//! # }
//! ```

mod job;

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

pub use self::job::{Job, Run};
use crate::error::{Error, Result};
use crate::owner::Owner;

/// How long a guard that is dropped waits for its release.
const RELEASE_TIME: Duration = Duration::from_secs(1);

/// The thread in the background. Ends with the last lock and guard.
#[derive(Clone, Debug)]
struct Background(Arc<Thread>);

#[derive(Debug)]
struct Thread(Option<Runtime>);

impl Drop for Thread {
    fn drop(&mut self) {
        // Not waited for: the last guard may be dropped inside somebody else's runtime.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Background {
    fn start() -> Result<Self> {
        outside_a_runtime()?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lockkeeper")
            .enable_all()
            .build()
            .map_err(|error| Error::Config(format!("no background thread to be had: {error}")))?;
        Ok(Self(Arc::new(Thread(Some(runtime)))))
    }

    fn run<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        outside_a_runtime()?;
        self.0.0.as_ref().expect("present until dropped").block_on(future)
    }

    fn of<T>(&self, value: T) -> Blocking<T> {
        Blocking { value, background: self.clone() }
    }

    fn guard(&self, guard: crate::Guard) -> Guard {
        Guard { guard: Some(guard), background: self.clone() }
    }
}

/// Blocking inside a runtime would stop that runtime, and perhaps the very task it waits for.
fn outside_a_runtime() -> Result<()> {
    match Handle::try_current() {
        Err(error) if error.is_missing_context() => Ok(()),
        _ => Err(Error::Config(
            "lockkeeper::blocking was called inside an async runtime: use the async interface there"
                .into(),
        )),
    }
}

/// Something of the async interface, with its waiting methods made blocking.
#[derive(Clone, Debug)]
pub struct Blocking<T> {
    value: T,
    background: Background,
}

/// See [`crate::Locks`].
pub type Locks = Blocking<crate::Locks>;
/// See [`crate::Mutex`].
pub type Mutex = Blocking<crate::Mutex>;
/// See [`crate::RwLock`].
pub type RwLock = Blocking<crate::RwLock>;
/// See [`crate::Semaphore`].
pub type Semaphore = Blocking<crate::Semaphore>;
/// See [`crate::Latch`].
pub type Latch = Blocking<crate::Latch>;
/// See [`crate::StripedStock`].
pub type StripedStock = Blocking<crate::StripedStock>;
/// See [`crate::Striped`].
pub type Striped = Blocking<crate::Striped>;

impl Locks {
    /// See [`crate::Locks::connect`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn connect(url: &str) -> Result<Self> {
        let background = Background::start()?;
        let value = background.run(crate::Locks::connect(url))?;
        Ok(Self { value, background })
    }

    fn with(&self, value: crate::Locks) -> Self {
        self.background.of(value)
    }

    /// See [`crate::Locks::ttl`].
    #[must_use]
    pub fn ttl(&self, ttl: Duration) -> Self {
        self.with(self.value.ttl(ttl))
    }

    /// See [`crate::Locks::lease`].
    #[must_use]
    pub fn lease(&self, lease: Duration) -> Self {
        self.with(self.value.lease(lease))
    }

    /// See [`crate::Locks::max_hold`].
    #[must_use]
    pub fn max_hold(&self, max_hold: Duration) -> Self {
        self.with(self.value.max_hold(max_hold))
    }

    /// See [`crate::Locks::stall_after`].
    #[must_use]
    pub fn stall_after(&self, stall_after: Duration) -> Self {
        self.with(self.value.stall_after(stall_after))
    }

    /// See [`crate::Locks::owned_by`].
    #[must_use]
    pub fn owned_by(&self, owner: &Owner) -> Self {
        self.with(self.value.owned_by(owner))
    }

    /// See [`crate::Locks::deadlock_detection`].
    #[must_use]
    pub fn deadlock_detection(&self, on: bool) -> Self {
        self.with(self.value.deadlock_detection(on))
    }

    /// See [`crate::Locks::new_owner`].
    pub fn new_owner(&self) -> Owner {
        self.value.new_owner()
    }

    /// See [`crate::Locks::mutex`].
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        self.background.of(self.value.mutex(name))
    }

    /// See [`crate::Locks::rw_lock`].
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        self.background.of(self.value.rw_lock(name))
    }

    /// See [`crate::Locks::semaphore`].
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        self.background.of(self.value.semaphore(name, permits))
    }

    /// See [`crate::Locks::latch`].
    pub fn latch(&self, name: impl AsRef<str>) -> Latch {
        self.background.of(self.value.latch(name))
    }

    /// See [`crate::Locks::stock`].
    pub fn stock(&self, name: impl AsRef<str>, segments: usize) -> StripedStock {
        self.background.of(self.value.stock(name, segments))
    }

    /// See [`crate::Locks::striped`].
    pub fn striped(&self, name: impl AsRef<str>, stripes: usize) -> Striped {
        self.background.of(self.value.striped(name, stripes))
    }

    /// Waits for something that a store has besides.
    #[cfg(feature = "redis")]
    pub(crate) fn wait_for<'a, T, F: Future<Output = Result<T>>>(
        &'a self,
        begin: impl FnOnce(&'a crate::Locks) -> F,
    ) -> Result<T> {
        self.background.run(begin(&self.value))
    }

    /// See [`crate::Locks::shutdown`].
    ///
    /// # Errors
    ///
    /// [`Error::Config`] inside an async runtime.
    pub fn shutdown(&self, grace: Duration) -> Result<crate::Shutdown> {
        self.background.run(async { Ok(self.value.shutdown(grace).await) })
    }

    /// See [`crate::Locks::release_on_signal`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn release_on_signal(&self) -> Result<()> {
        self.value.release_on_signal()
    }
}

impl Mutex {
    /// See [`crate::Mutex::fair`].
    #[must_use]
    pub fn fair(self) -> Self {
        Self { value: self.value.fair(), background: self.background }
    }

    /// See [`crate::Mutex::lock`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn lock(&self) -> Result<Guard> {
        self.background.run(self.value.lock()).map(|guard| self.background.guard(guard))
    }

    /// See [`crate::Mutex::try_lock`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn try_lock(&self) -> Result<Option<Guard>> {
        let tried = self.background.run(self.value.try_lock())?;
        Ok(tried.map(|guard| self.background.guard(guard)))
    }

    /// See [`crate::Mutex::lock_timeout`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn lock_timeout(&self, timeout: Duration) -> Result<Guard> {
        let locking = self.value.lock_timeout(timeout);
        self.background.run(locking).map(|guard| self.background.guard(guard))
    }
}

impl RwLock {
    /// See [`crate::RwLock::fair`].
    #[must_use]
    pub fn fair(self) -> Self {
        Self { value: self.value.fair(), background: self.background }
    }

    /// See [`crate::RwLock::read`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn read(&self) -> Result<Guard> {
        self.background.run(self.value.read()).map(|guard| self.background.guard(guard))
    }

    /// See [`crate::RwLock::read_timeout`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn read_timeout(&self, timeout: Duration) -> Result<Guard> {
        let reading = self.value.read_timeout(timeout);
        self.background.run(reading).map(|guard| self.background.guard(guard))
    }

    /// See [`crate::RwLock::write`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn write(&self) -> Result<Guard> {
        self.background.run(self.value.write()).map(|guard| self.background.guard(guard.into()))
    }

    /// See [`crate::RwLock::write_timeout`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn write_timeout(&self, timeout: Duration) -> Result<Guard> {
        let writing = self.value.write_timeout(timeout);
        self.background.run(writing).map(|guard| self.background.guard(guard.into()))
    }
}

impl Semaphore {
    /// See [`crate::Semaphore::acquire`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn acquire(&self) -> Result<Guard> {
        self.background.run(self.value.acquire()).map(|guard| self.background.guard(guard))
    }

    /// See [`crate::Semaphore::acquire_timeout`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Guard> {
        let acquiring = self.value.acquire_timeout(timeout);
        self.background.run(acquiring).map(|guard| self.background.guard(guard))
    }
}

impl Latch {
    /// See [`crate::Latch::close`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn close(&self, count: u32) -> Result<bool> {
        self.background.run(self.value.close(count))
    }

    /// See [`crate::Latch::count_down`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn count_down(&self) -> Result<u32> {
        self.background.run(self.value.count_down())
    }

    /// See [`crate::Latch::wait_timeout`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.background.run(self.value.wait_timeout(timeout))
    }
}

impl StripedStock {
    /// See [`crate::StripedStock::take`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn take(&self, amount: u64) -> Result<bool> {
        self.background.run(self.value.take(amount))
    }

    /// See [`crate::StripedStock::restock`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn restock(&self, amount: u64) -> Result<()> {
        self.background.run(self.value.restock(amount))
    }

    /// See [`crate::StripedStock::restock_first`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn restock_first(&self, amount: u64) -> Result<bool> {
        self.background.run(self.value.restock_first(amount))
    }

    /// See [`crate::StripedStock::remaining`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn remaining(&self) -> Result<u64> {
        self.background.run(self.value.remaining())
    }

    /// See [`crate::StripedStock::segments`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn segments(&self) -> Result<Vec<u64>> {
        self.background.run(self.value.segments())
    }
}

impl Striped {
    /// See [`crate::Striped::stripe`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn stripe(&self, key: impl AsRef<[u8]>) -> Result<Mutex> {
        Ok(self.background.of(self.value.stripe(key)?))
    }

    /// See [`crate::Striped::lock`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Result<Guard> {
        self.stripe(key)?.lock()
    }
}

/// A [`crate::Guard`] whose release is waited for when it is dropped, up to a second.
#[must_use = "if unused the lock is released at once"]
#[derive(Debug)]
pub struct Guard {
    /// Taken out only when the guard ends.
    guard: Option<crate::Guard>,
    background: Background,
}

impl Guard {
    /// See [`crate::Guard::renew`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn renew(&self, ttl: Duration) -> Result<()> {
        self.background.run((**self).renew(ttl))
    }

    /// See [`crate::Guard::release`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime, where it is dropped.
    pub fn release(mut self) -> Result<()> {
        match self.guard.take() {
            Some(guard) => self.background.run(guard.release()),
            None => Ok(()),
        }
    }
}

impl Deref for Guard {
    type Target = crate::Guard;

    fn deref(&self) -> &crate::Guard {
        self.guard.as_ref().expect("present until the guard ends")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        let released = self.background.run(async {
            // Late or lost: dropping it goes on in the background, and nobody is left to tell.
            let _ = tokio::time::timeout(RELEASE_TIME, guard.release()).await;
            Ok(())
        });
        if released.is_err() {
            tracing::debug!("a blocking guard was dropped inside a runtime; not waited for");
        }
    }
}
