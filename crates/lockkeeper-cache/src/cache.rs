//! The cache.

use std::fmt::{self, Display, Write as _};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{BoxFuture, join, join_all};
use lockkeeper::clock::Instant;
use tokio::runtime;
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::audit::Audits;
use crate::builder::{Builder, Settings};
use crate::codec::Codec;
use crate::debt::Debt;
use crate::entry::{Entry, Invalidation, Lease, Millis, Ticket, Value};
use crate::error::{Error, Result};
use crate::events::Event;
use crate::first::Level;
use crate::flight::Flights;
use crate::freshness::Freshness;
use crate::get::Get;
use crate::guard::Guards;
use crate::hot::HotKey;
use crate::intent::Write;
use crate::load::{Decoded, Outcome, Plan};
use crate::loader::Loader;
use crate::look::Looks;
use crate::stats::{Counters, Stats};
use crate::store::{self, PENDING, Seen, Store, millis};
use crate::tags::Tags;
use crate::unreadable::Shelf;

/// Between two attempts at an invalidation that the store failed at.
const RETRY: Duration = Duration::from_millis(20);

/// Most keys are not longer, and take one allocation.
const USUAL_KEY: usize = 64;

/// Values of a database, cached. A clone is the same cache.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), lockkeeper_cache::Error> {
/// use lockkeeper_cache::{Cache, Error, Loaded, Memory};
///
/// let names = Cache::builder(Memory::new())
///     .namespace("user")
///     .build(async |id: u64| Ok::<_, Error>(Loaded::found(format!("user {id}"))))?;
/// assert_eq!(names.get(&7).await?.as_deref(), Some(&"user 7".to_owned()));
///
/// // After the change is committed:
/// names.invalidate(&[7]).await?;
/// # Ok(())
/// # }
/// ```
pub struct Cache<K, V> {
    pub(crate) inner: Arc<Inner<K, V>>,
}

pub(crate) struct Inner<K, V> {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) loader: Box<dyn Loader<K, V>>,
    pub(crate) codec: Box<dyn Codec<V>>,
    pub(crate) guards: Guards,
    pub(crate) loads: Semaphore,
    pub(crate) flights: Flights<Outcome<V>>,
    pub(crate) looks: Looks,
    /// Loads, fills and leases that are given back; closed, so that it can be waited for at any time.
    pub(crate) tasks: TaskTracker,
    /// The runtime in which this was built, if it was in one.
    pub(crate) home: Option<runtime::Id>,
    pub(crate) debt: Debt,
    pub(crate) unfiltered: Debt,
    pub(crate) first: OnceLock<Box<dyn Level<K, V>>>,
    pub(crate) tags: Option<Tags<K>>,
    pub(crate) settings: Settings,
    pub(crate) stats: Counters,
    pub(crate) audits: Audits<K>,
    pub(crate) unreadable: Shelf,
}

/// What a read got.
#[derive(Debug)]
pub struct Read<V> {
    /// The value; `None`: the database has nothing.
    pub value: Option<Arc<V>>,
    /// Its version; 0 where none is known.
    pub version: u64,
    /// When its load began, by the clock of the store: the database had it then or later.
    pub made: Millis,
    /// Where it comes from.
    pub source: Source,
}

impl<V> Clone for Read<V> {
    fn clone(&self) -> Self {
        let Self { value, version, made, source } = self;
        Self { value: value.clone(), version: *version, made: *made, source: *source }
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The [first level](crate::FirstLevel), in this process.
    First,
    /// The store.
    Hit,
    /// The store, after it was invalidated; or the first level while the store does not answer, by
    /// [`Down::Stale`](crate::Down::Stale).
    Stale,
    /// The loader.
    Loaded,
    /// The filter, which knows that the database has nothing.
    Filter,
}

/// What a look at the store means for a read.
pub(crate) enum Verdict<V> {
    /// Take it, and have it refreshed.
    Take(Read<V>, Option<Plan>),
    /// Get one. `shown`: the lease of somebody who does.
    Get(Plan, Option<Ticket>),
    /// A change waits for the database, and cannot be read: what the database has is older.
    Pending,
}

impl Cache<(), ()> {
    /// A builder for a cache in this store.
    pub fn builder(store: impl Store + 'static) -> Builder {
        Builder::new(Arc::new(store))
    }

    /// The same, in a store that several caches have in common: they share its connections.
    pub fn builder_shared(store: Arc<dyn Store>) -> Builder {
        Builder::new(store)
    }
}

impl<K, V> Cache<K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    pub(crate) fn new(inner: Inner<K, V>) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// The value under a key, from the cache or the loader; `None`: the database has none.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// A load that was begun goes on, for others.
    #[inline]
    pub fn get<'a>(
        &'a self,
        key: &'a K,
    ) -> impl Future<Output = Result<Option<Arc<V>>>> + Send + 'a {
        Get::new(self, key)
    }

    /// The same, as new as that, and with what is known about it.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] and [`Error::Panicked`] when the loader fails, [`Error::Busy`] when the database is to be
    /// spared, [`Error::Timeout`], [`Error::TooOld`], [`Error::InvalidKey`]. Never because of the store: without
    /// it, values are loaded.
    pub async fn read(&self, key: &K, freshness: Freshness) -> Result<Read<V>> {
        if let Some(read) = self.inner.first_get(key, freshness) {
            return Ok(read);
        }
        self.boxed_read(key, freshness).await
    }

    /// Apart, because moving a future of that size, or room for it on the stack, takes longer than a hit in the first
    /// level.
    #[cold]
    #[inline(never)]
    pub(crate) fn boxed_read<'a>(
        &'a self,
        key: &'a K,
        freshness: Freshness,
    ) -> BoxFuture<'a, Result<Read<V>>> {
        Box::pin(self.read_at_store(key, freshness))
    }

    /// The values under many keys, in their order. Those that are cached take one round trip together; the others are
    /// loaded at the same time, as many as [`max_loads`](Builder::max_loads) lets.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read), of the first that fails. What was loaded for the others is cached.
    pub async fn get_many(&self, keys: &[K]) -> Result<Vec<Option<Arc<V>>>> {
        let mut found = Vec::with_capacity(keys.len());
        let mut missing = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            match self.inner.first_value(key) {
                Some(value) => found.push(value),
                None => {
                    found.push(None);
                    missing.push((at, key));
                }
            }
        }
        if missing.is_empty() {
            return Ok(found);
        }
        let deadline = self.inner.deadline();
        let names: Vec<String> =
            missing.iter().map(|(_, key)| self.inner.name(key)).collect::<Result<_>>()?;
        let marks: Vec<_> = names.iter().map(|name| self.inner.mark(name)).collect();
        let turn = self.inner.flights.turn();
        let owed: Vec<bool> = names.iter().map(|name| self.inner.debt.has(name)).collect();
        let looking = async { Ok(self.inner.look_many(&refs(&names)).await) };
        let looked = self.inner.by(deadline, looking).await?;
        let reads = missing.iter().zip(&names).enumerate().map(|(at, ((_, key), name))| {
            let seen = match looked.as_ref().ok().and_then(|seen| seen.get(at)) {
                _ if owed[at] => Seen::Down,
                seen => seen.cloned().unwrap_or(Seen::Down),
            };
            let next = self.inner.decide(key, name, Freshness::Any, turn, (seen, owed[at]));
            self.inner.get_anew(key, name, Freshness::Any, turn, next, deadline)
        });
        let reads = join_all(reads).await;
        for (((at, key), mark), read) in missing.into_iter().zip(marks).zip(reads) {
            let read = read?;
            self.inner.first_put(key, &read, mark);
            found[at] = read.value;
        }
        Ok(found)
    }

    /// What is under these keys in the database has changed. To be called after the commit, and before whoever
    /// asked for the change is told that it is done. All keys take one round trip.
    ///
    /// Afterwards no read that begins gets what was there before, and no load that began before fills it.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] when the store cannot be reached for as long as [`timeout`](Builder::timeout) says: other processes
    /// may serve old values until it can be. It is tried again in the background until then, as long as this cache lives;
    /// meanwhile this process reads these keys from the database. Or when the [filter](Builder::filter) cannot be reached: then
    /// others may be told that keys which are new are absent, until it can be; that is tried again as well.
    /// [`debt`](Self::debt) says how many there are.
    ///
    /// # Cancel safety
    ///
    /// None: a future that is dropped may have invalidated nothing.
    pub async fn invalidate(&self, keys: &[K]) -> Result<()> {
        self.inner.invalidate(keys, 0).await
    }

    /// The same when the version is known that they have now: values of this version and later ones stay, and
    /// earlier ones are refused for as long as [`floor`](Builder::floor) says.
    ///
    /// # Errors
    ///
    /// As for [`invalidate`](Self::invalidate).
    pub async fn invalidate_to(&self, keys: &[K], version: u64) -> Result<()> {
        self.inner.invalidate(keys, version).await
    }

    /// Says that what is under these keys is about to change: until [`Write::settle`], reads go to the database
    /// and nothing is cached. Then no read ever gets what was there before the commit, not even between the commit and
    /// the invalidation, and a writer that dies in between leaves nothing stale behind.
    ///
    /// # Errors
    ///
    /// [`Error::Store`]: do not write, or do without this promise.
    pub async fn intend(&self, keys: &[K]) -> Result<Write<K, V>> {
        let names: Vec<String> =
            keys.iter().map(|key| self.inner.name(key)).collect::<Result<_>>()?;
        let (inner, writer) = (Arc::clone(&self.inner), Ticket::new());
        let (keys, time) = (refs(&names), inner.settings.intent);
        // Before the commit: see `announce`.
        inner.announce(&names).await?;
        let intending = inner.insist("an intent", || inner.store.intend(&keys, writer, time));
        inner.changing(&keys, intending).await?;
        Ok(Write { inner, names, writer })
    }

    /// The keys that are read most, most first, by a sample of the hits in this process: perhaps no more than a
    /// part of the traffic, so ask all processes. They are [refreshed](Builder::early) before they end. Hits of the
    /// [first level](crate::FirstLevel) do not count, only those at the store.
    pub fn hot_keys(&self) -> Vec<HotKey> {
        let hot = self.inner.guards.hot.list().into_iter();
        hot.map(|(name, hits)| HotKey { key: self.inner.key_of(&name).to_owned(), hits }).collect()
    }

    /// How many keys are still to be invalidated, and how many are still to be inserted into the [filter](Builder::filter), after the
    /// store or the filter has failed at it. `None`: more than can be remembered. After 100,000 invalidations that failed the whole
    /// namespace is invalidated, as by [`clear`](Self::clear); after 100,000 keys that the filter lacks, this process does not ask
    /// it any more, and others may be told that these keys are absent, until this cache has [loaded](Self::load_filter) it anew.
    pub fn debt(&self) -> Option<usize> {
        Some(self.inner.debt.len()? + self.inner.unfiltered.len()?)
    }

    /// Waits until nothing is under way here that reads have begun: no load, and no fill without an answer. To be called by
    /// who has made the last read and is about to end, and by tests. Not for invalidations: who calls these waits for them.
    ///
    /// A read has its value when the fill is handed to the connection; in another runtime than the one in which the cache was built,
    /// if it was in one, when it is answered. A process, or a runtime, that ends in that very moment may not have sent it: then
    /// others wait until the [lease](Builder::lease) of that load is over. Nothing is under way for longer than three times the
    /// [`timeout`](Builder::timeout), as long as the runtimes run that have read; where others go on to read, this may wait as
    /// long as they do. Never to be called by a loader, which would wait for itself.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), lockkeeper_cache::Error> {
    /// # use lockkeeper_cache::{Cache, Error, Loaded, Memory};
    /// # let store = Memory::new();
    /// let cache = Cache::builder(store)
    ///     .namespace("user")
    ///     .build(async |id: u64| Ok::<_, Error>(Loaded::found(id)))?;
    /// cache.get(&7).await?;
    /// cache.idle().await;
    /// assert_eq!(cache.stats().fills, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn idle(&self) {
        self.inner.tasks.wait().await;
    }

    /// What happened so far.
    pub fn stats(&self) -> Stats {
        let mut stats = self.inner.stats.read();
        if let Some(first) = self.inner.first.get() {
            (stats.first_hits, stats.first_flushes) = (first.hits(), first.changes().flushes());
        }
        stats
    }
}

pub(crate) fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

impl<K, V> Inner<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    pub(crate) fn name(&self, key: &K) -> Result<String>
    where
        K: Display,
    {
        let (namespace, max) = (&self.settings.namespace, self.settings.max_key);
        let mut name = String::with_capacity(namespace.len() + 1 + USUAL_KEY);
        name.push_str(namespace);
        name.push(':');
        // Fails only if the key does.
        write!(name, "{key}").map_err(|_| Error::InvalidKey("it cannot be written".into()))?;
        let length = name.len() - namespace.len() - 1;
        match length <= max {
            true => self.validate(self.key_of(&name)).map(|()| name),
            false => Err(Error::InvalidKey(format!("{length} bytes; {max} are allowed"))),
        }
    }

    pub(crate) async fn look_alone(&self, name: &str) -> store::Result<Seen> {
        let looked = self.ask_one(name).await;
        looked.inspect_err(|error| self.store_failed("looking", error))
    }

    pub(crate) async fn look_many(&self, names: &[&str]) -> store::Result<Vec<Seen>> {
        let looked = self.ask(names).await;
        looked.inspect_err(|error| self.store_failed("looking", error))
    }

    /// What came out of a load may be older than this read wants: somebody else began it, perhaps before the read.
    pub(crate) async fn satisfy(
        &self,
        key: &K,
        freshness: Freshness,
        read: Read<V>,
        after: bool,
    ) -> Result<Read<V>> {
        let fits = |read: &Read<V>, after: bool| match freshness {
            Freshness::AtLeast(wanted) => {
                let unknown = read.version == 0 && read.source == Source::Loaded;
                read.version >= wanted || (unknown && after)
            }
            Freshness::MaxAge(age) => {
                // Nothing is younger than what was loaded since, however long that took.
                let youngest = after && read.source == Source::Loaded;
                youngest || self.store.now().saturating_sub(read.made) <= millis(age)
            }
            _ => true,
        };
        if fits(&read, after) {
            return Ok(read);
        }
        let read = self.bypass(key, None).await?;
        match freshness {
            Freshness::AtLeast(wanted) if !fits(&read, true) => {
                Err(Error::TooOld { wanted, found: read.version })
            }
            _ => Ok(read),
        }
    }

    pub(crate) fn judge(&self, name: &str, seen: Seen, freshness: Freshness) -> Verdict<V> {
        let now = self.store.now();
        let shown = |lease: Lease| lease.is_live(now).then_some(lease.ticket);
        let fill = |except| Plan::Fill { except };
        match seen {
            Seen::Nothing => Verdict::Get(fill(None), None),
            Seen::Down => Verdict::Get(Plan::Down, None),
            Seen::Unreadable => {
                self.stats.unreadable.add();
                self.unreadable.keep_foreign(self.key_of(name));
                self.note(name, Event::Unreadable);
                Verdict::Get(fill(None), None)
            }
            Seen::Entry(Entry::Value(value)) => self.judge_value(name, &value, freshness, now),
            Seen::Entry(Entry::Gap(gap)) => {
                let shown = shown(gap.lease);
                if let Some(last) = gap.last.filter(|_| freshness.accepts_dead(gap.died, now))
                    && let Decoded::Read(read) = self.decode(name, &last)
                {
                    self.stats.stale_hits.add();
                    self.note(name, Event::ServedStale);
                    let read = Read { source: Source::Stale, ..read };
                    return Verdict::Take(read, shown.is_none().then_some(fill(None)));
                }
                Verdict::Get(fill(None), shown)
            }
            Seen::Entry(Entry::Intents(intents)) => {
                match intents.writers.iter().any(|by| by.is_live(now)) {
                    true => Verdict::Get(Plan::Direct, None),
                    false => Verdict::Get(fill(None), None),
                }
            }
        }
    }

    fn judge_value(
        &self,
        name: &str,
        value: &Value,
        freshness: Freshness,
        now: Millis,
    ) -> Verdict<V> {
        let anew = Plan::Fill { except: Some(value.fill) };
        let shown = value.lease.is_live(now).then_some(value.lease.ticket);
        // Nobody has anything newer than what waits for the database.
        if value.version != PENDING && !freshness.accepts(value.version, value.made, now) {
            return Verdict::Get(anew, shown);
        }
        match self.decode(name, value) {
            Decoded::Read(read) => {
                self.stats.hits.add();
                if read.value.is_none() {
                    self.stats.null_hits.add();
                }
                let due = shown.is_none() && self.is_due(name, value, now);
                Verdict::Take(read, due.then_some(anew))
            }
            Decoded::Unfit => {
                self.note(name, Event::Unreadable);
                Verdict::Get(anew, shown)
            }
            Decoded::Newer => {
                self.note(name, Event::Newer);
                Verdict::Get(Plan::Direct, None)
            }
            Decoded::Pending => {
                self.note(name, Event::Unreadable);
                Verdict::Pending
            }
        }
    }

    pub(crate) fn how(&self, floor: u64) -> Invalidation {
        let Settings { floor: remember, keep_last, .. } = self.settings;
        Invalidation { floor, floor_ms: millis(remember), keep_ms: millis(keep_last) }
    }

    pub(crate) async fn invalidate(self: &Arc<Self>, keys: &[K], floor: u64) -> Result<()>
    where
        K: Display,
    {
        let names: Vec<String> = keys.iter().map(|key| self.name(key)).collect::<Result<_>>()?;
        self.invalidate_names(&names, floor).await
    }

    pub(crate) async fn invalidate_names(
        self: &Arc<Self>,
        names: &[String],
        floor: u64,
    ) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let invalidating = self.invalidate_at_store(names, floor);
        let (invalidated, announced) = join(invalidating, self.announce_again(names)).await;
        invalidated.and(announced)
    }

    /// The same for what the filter need not be told of.
    pub(crate) async fn invalidate_at_store(
        self: &Arc<Self>,
        names: &[String],
        floor: u64,
    ) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let (keys, how) = (refs(names), self.how(floor));
        let invalidating = self.insist("an invalidation", || self.store.invalidate(&keys, how));
        self.changing_or_owe(names, floor, invalidating).await?;
        names.iter().for_each(|_| self.stats.invalidations.add());
        Ok(())
    }

    /// Tries until it is done, or there is no time left. Only for what may be done twice.
    pub(crate) async fn insist<T, F>(
        &self,
        what: &'static str,
        attempt: impl Fn() -> F + Send,
    ) -> Result<T>
    where
        F: Future<Output = store::Result<T>> + Send,
    {
        let since = Instant::now();
        loop {
            let source = match attempt().await {
                Ok(done) => return Ok(done),
                Err(source) => source,
            };
            self.store_failed(what, &source);
            if Instant::now().since(since) + RETRY > self.settings.timeout {
                return Err(Error::Store { what, source });
            }
            sleep(RETRY).await;
        }
    }
}

impl<K, V> Clone for Cache<K, V> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K, V> fmt::Debug for Cache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { store, settings, .. } = &*self.inner;
        f.debug_struct("Cache").field("store", store).field("settings", settings).finish()
    }
}
