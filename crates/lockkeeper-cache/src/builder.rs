//! How a cache is made.

use std::any::Any;
use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::audit::Audits;
use crate::cache::{Cache, Inner};
use crate::codec::{Codec, Json};
use crate::debt::{self, Creditor, Debt};
use crate::error::{Error, Result};
use crate::flight::Flights;
use crate::guard::Guards;
use crate::loader::Loader;
use crate::look::Looks;
use crate::stats::Counters;
use crate::store::Store;
use crate::strategy;
use crate::tags::{self, Tags};
use crate::unreadable::Shelf;

/// What can be chosen.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) namespace: String,
    pub(crate) ttl: Duration,
    pub(crate) null_ttl: Duration,
    pub(crate) lease: Duration,
    pub(crate) timeout: Duration,
    pub(crate) queue: Duration,
    pub(crate) refresh_after: Option<Duration>,
    pub(crate) keep_last: Duration,
    pub(crate) floor: Duration,
    pub(crate) intent: Duration,
    pub(crate) max_loads: usize,
    pub(crate) max_key: usize,
    pub(crate) max_value: usize,
    pub(crate) schema: u32,
    pub(crate) keep_unreadable: usize,
}

/// Makes a [`Cache`]; from [`Cache::builder`].
#[derive(Debug)]
#[must_use = "nothing is made before build"]
pub struct Builder {
    store: Arc<dyn Store>,
    pub(crate) guards: Guards,
    /// A [`Tags`] for the type of the keys, which is not known yet.
    tags: Option<Box<dyn Any + Send + Sync>>,
    pub(crate) settings: Settings,
    pub(crate) options: strategy::Options,
}

impl Builder {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let secs = Duration::from_secs;
        let settings = Settings {
            namespace: String::new(),
            ttl: secs(600),
            null_ttl: secs(30),
            lease: secs(10),
            timeout: secs(10),
            queue: secs(1),
            refresh_after: None,
            keep_last: Duration::ZERO,
            floor: secs(60),
            intent: secs(30),
            max_loads: 64,
            max_key: 512,
            max_value: 8 << 20,
            schema: 0,
            keep_unreadable: 0,
        };
        let (guards, options) = (Guards::new(), strategy::Options::default());
        Self { store, guards, tags: None, settings, options }
    }

    /// What all names at the store begin with, before a colon and the key as its `Display` writes it: keys that are written alike
    /// are one. Needed, and without a default: two caches with one namespace at one store
    /// share their entries, and must have the same keys and values. One that continues another after a colon may, too: the key
    /// `b:c` of `a` is the key `c` of `a:b`. Nor may one continue another with `#tag`, where the tags of that one are.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// How long a value is kept. Default ten minutes. Longer: fewer loads. Shorter: an invalidation that never came
    /// does less harm.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// How long it is kept that the database has nothing. Default 30 s.
    pub fn null_ttl(mut self, ttl: Duration) -> Self {
        self.settings.null_ttl = ttl;
        self
    }

    /// How long a load may take and still fill. Default 10 s. Longer: others wait longer when a process dies in the middle
    /// of a load, or ends right after it without [`Cache::idle`]. Shorter: slow loads are done by several, and fill nothing.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How long a read may take, loads and waiting included; what it has loaded may then be on its way to the store for
    /// twice as long, of which no read knows. Default 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// A value is refreshed, by the first read after this time since it was loaded; that read and others get
    /// the old one meanwhile. Shorter than [`ttl`](Self::ttl) by more than a load takes. Default: never.
    pub fn refresh_after(mut self, after: Duration) -> Self {
        self.settings.refresh_after = Some(after);
        self
    }

    /// How long a value is kept after it was invalidated, for reads that ask for
    /// [`Freshness::Stale`](crate::Freshness::Stale). Default: not at all.
    pub fn keep_last(mut self, time: Duration) -> Self {
        self.settings.keep_last = time;
        self
    }

    /// How long an invalidation that names a version is remembered: values of smaller versions are refused for so long.
    /// Longer than replicas of the database lag. Default a minute.
    pub fn floor(mut self, time: Duration) -> Self {
        self.settings.floor = time;
        self
    }

    /// How long a writer that said it would write, and then said nothing more, is believed. Default 30 s. Longer than any
    /// write takes; for so long after the death of a writer its keys are not cached.
    pub fn intent(mut self, time: Duration) -> Self {
        self.settings.intent = time;
        self
    }

    /// How many loads may be under way at a time in this cache, whatever happens to the store. Default 64. Others wait for
    /// up to a second, or the time given here, and are then told [`Error::Busy`].
    pub fn max_loads(mut self, loads: usize, queue: Duration) -> Self {
        (self.settings.max_loads, self.settings.queue) = (loads, queue);
        self
    }

    /// Gives keys tags, by which they can be invalidated together: see [`Cache::invalidate_tag`].
    pub fn tags<K: 'static>(
        mut self,
        tags: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        self.tags = Some(Box::new(Box::new(tags) as Tags<K>));
        self
    }

    /// The longest value that is cached, encoded, in bytes. Default 8 MiB.
    pub fn max_value(mut self, bytes: usize) -> Self {
        self.settings.max_value = bytes;
        self
    }

    /// The longest key in bytes. Default 512.
    pub fn max_key(mut self, bytes: usize) -> Self {
        self.settings.max_key = bytes;
        self
    }

    /// Which form the values have: raise it when they change in a way that the codec would not notice. A program replaces
    /// values of a smaller schema, and leaves those of a larger one alone: it then goes to the database.
    pub fn schema(mut self, schema: u32) -> Self {
        self.settings.schema = schema;
        self
    }

    /// Makes it, with values as JSON.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a time or a number that makes no sense.
    pub fn build<K, V>(self, loader: impl Loader<K, V> + 'static) -> Result<Cache<K, V>>
    where
        K: Clone + Display + Send + Sync + 'static,
        V: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        self.build_with(Json, loader)
    }

    /// The same with another codec.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build).
    pub fn build_with<K, V>(
        self,
        codec: impl Codec<V> + 'static,
        loader: impl Loader<K, V> + 'static,
    ) -> Result<Cache<K, V>>
    where
        K: Clone + Display + Send + Sync + 'static,
        V: Send + Sync + 'static,
    {
        let Self { store, guards, tags, settings, options } = self;
        check(&settings)?;
        if let Some(option) = options.given() {
            let why = format!("{option} is for a strategy: make a table, with Builder::table");
            return Err(Error::Config(why));
        }
        guards.check()?;
        let tags = tags.map(tags::of).transpose()?;
        let (loader, codec) = (Box::new(loader), Box::new(codec));
        let (loads, flights) = (Semaphore::new(settings.max_loads), Flights::new());
        let (stats, audits) = (Counters::default(), Audits::default());
        let [debt, unfiltered] =
            [Creditor::Store, Creditor::Filter].map(|to| Debt::new(to, debt::MOST));
        let (first, unreadable) = (OnceLock::new(), Shelf::new(settings.keep_unreadable));
        let tasks = TaskTracker::new();
        tasks.close();
        let inner = Inner {
            store,
            loader,
            codec,
            guards,
            loads,
            flights,
            looks: Looks::default(),
            tasks,
            home: Handle::try_current().ok().map(|runtime| runtime.id()),
            debt,
            unfiltered,
            first,
            tags,
            settings,
            stats,
            audits,
            unreadable,
        };
        Ok(Cache::new(inner))
    }
}

fn check(settings: &Settings) -> Result<()> {
    let Settings { ttl, null_ttl, lease, timeout, floor, intent, .. } = *settings;
    let times = [
        ("ttl", ttl),
        ("null_ttl", null_ttl),
        ("lease", lease),
        ("timeout", timeout),
        ("floor", floor),
        ("intent", intent),
    ];
    if settings.namespace.is_empty() {
        let why = "a cache needs a name of its own, which all of its keys begin with";
        return Err(Error::Config(format!("{why}: Builder::namespace")));
    }
    if let Some((name, _)) = times.iter().find(|(_, time)| time.as_millis() == 0) {
        return Err(Error::Config(format!("{name} must be at least a millisecond")));
    }
    if settings.refresh_after.is_some_and(|after| after >= ttl) {
        return Err(Error::Config("refresh_after must be shorter than ttl".into()));
    }
    if settings.max_loads == 0 || settings.max_loads > Semaphore::MAX_PERMITS {
        return Err(Error::Config("max_loads must be at least 1".into()));
    }
    Ok(())
}
