//! What stands between a read and the database.
//!
//! In this order, each only where it was asked for:
//!
//! 1. The [validator](Builder::validate), at the door: nothing is asked for a key that it refuses.
//! 2. The store. While it does not answer it is left alone, except by one read from time to time, and
//!    [`Down`] says what the others get.
//! 3. The [filter](Builder::filter), before a load: what surely is not there is not loaded.
//! 4. The [breaker](Builder::breaker), how many may be [under way](Builder::max_loads), and the
//!    [limit](Builder::limit): who is not admitted is told [`Error::Busy`].

mod early;
pub(crate) mod health;

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use lockkeeper::clock::Instant;
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use self::health::Health;
use crate::breaker::{Gate, Pass, Policy};
use crate::builder::Builder;
use crate::cache::{Cache, Inner, Read, Source};
use crate::entry::Ticket;
use crate::error::{BoxError, Error, Result, StoreError};
use crate::events::{Event, Events};
use crate::filter::{self, Filter, FilterError, Verdict};
use crate::freshness::Freshness;
use crate::hash::hash;
use crate::hot::Hot;
use crate::jitter::{Early, Jitter};
use crate::limit::Limit;
use crate::load::Outcome;
use crate::store::{self, Seen};

/// A filter that takes longer than this does not answer.
const FILTER_TIME: Duration = Duration::from_secs(1);

/// What a read gets while the store does not answer.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Down {
    /// A load, within the limits that always count.
    #[default]
    Load,
    /// A load, and besides no more of them than this: a database that serves the few that miss may not be
    /// able to serve everybody.
    LoadAtMost(Limit),
    /// What the [first level](crate::FirstLevel) still has, although nobody knows whether it is still so; with
    /// [`Source::Stale`].
    ///
    /// What is served that way was at the store no longer ago than `bound`, which counts from when it was last read
    /// there; and neither had this process changed it since, nor had it heard or seen that others did. What others
    /// have changed while the store was down is not heard of. [`Freshness`](crate::Freshness) holds: a read that asks for a
    /// version, an age or the latest gets that, or a load.
    ///
    /// It needs [`with_first_level`](crate::Cache::with_first_level): without one there are no copies. Where one store of a
    /// [group](crate::Grouped) is down, this is for its keys alone.
    Stale {
        /// How long ago the store may have had it.
        bound: Duration,
        /// What reads get where there is no copy: a load, and no more of them than this; `None`: [`Error::Busy`].
        otherwise: Option<Limit>,
    },
    /// [`Error::Busy`].
    Busy,
}

type Validate = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// All of them.
pub(crate) struct Guards {
    validate: Option<Validate>,
    filter: Option<Arc<dyn Filter>>,
    limit: Option<Limit>,
    breaker: Option<Gate>,
    down: Down,
    pub(crate) store: Health,
    /// Of the filter.
    shared: Health,
    jitter: Jitter,
    pub(crate) early: Option<Early>,
    pub(crate) hot: Hot,
    pub(crate) events: Events,
    /// What makes no sense.
    wrong: Option<&'static str>,
}

impl Guards {
    pub(crate) fn new() -> Self {
        Self {
            validate: None,
            filter: None,
            limit: None,
            breaker: None,
            down: Down::default(),
            store: Health::new("the store"),
            shared: Health::new("the filter"),
            jitter: Jitter::default(),
            early: Some(Early::default()),
            hot: Hot::new(),
            events: Events::default(),
            wrong: None,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let wrong = match &self.down {
            Down::Stale { bound, .. } if bound.is_zero() => Some("when_down: bound must be longer"),
            _ => self.wrong,
        };
        wrong.map_or(Ok(()), |wrong| Err(Error::Config(wrong.to_owned())))
    }

    pub(crate) fn filter(&self) -> Option<&dyn Filter> {
        self.filter.as_deref()
    }

    pub(crate) fn breaker(&self) -> Option<&Gate> {
        self.breaker.as_ref()
    }

    pub(crate) fn down(&self) -> &Down {
        &self.down
    }

    /// A time, a little shorter: by the same for the same ticket, so that everybody can tell.
    pub(crate) fn shorten(&self, time: Duration, ticket: Ticket) -> Duration {
        self.jitter.shorten(time, hash(&ticket.to_bytes()))
    }
}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { filter, limit, breaker, down, jitter, early, .. } = self;
        let shown = &mut f.debug_struct("Guards");
        shown.field("filter", filter).field("limit", limit).field("breaker", breaker);
        shown.field("down", down).field("jitter", jitter).field("early", early);
        shown.finish_non_exhaustive()
    }
}

impl Builder {
    /// Refuses keys before anything is asked, with the reason in [`Error::InvalidKey`]. It gets the key as it
    /// is written, and should be quick.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), lockkeeper_cache::Error> {
    /// use lockkeeper_cache::{Cache, Error, Loaded, Memory};
    ///
    /// let articles = Cache::builder(Memory::new())
    ///     .namespace("article")
    ///     .validate(|key| match key.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
    ///         true => Ok(()),
    ///         false => Err("letters and digits only".to_owned()),
    ///     })
    ///     .build(async |article: String| Ok::<_, Error>(Loaded::found(article.len())))?;
    /// let refused = articles.get(&"' OR 1=1".to_owned()).await;
    /// assert!(matches!(refused, Err(Error::InvalidKey(_))));
    /// assert_eq!(articles.stats().loads, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn validate(
        mut self,
        check: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.guards.validate = Some(Arc::new(check));
        self
    }

    /// Asks this filter before every load of a key that is not cached, and answers what surely is not there
    /// without a load; see [`filter`](crate::filter) for what it costs and when it breaks.
    ///
    /// It is asked for the key as it is written, without the namespace, unless the store knows of a value or of a
    /// writer. Keys are inserted by every [intent](crate::Cache::intend) and by every write of a
    /// [table](crate::Table) before the commit, and again when an intent is [settled](crate::Write::settle), and by every
    /// [invalidation](crate::Cache::invalidate) and [update](crate::Cache::set_many), before these return: who was told that
    /// a key was written is never told that it is absent. If the filter cannot be reached, these fail with
    /// [`Error::Store`], and reads ask the database. What could not be inserted after a commit is inserted later, as long as
    /// [`debt`](crate::Cache::debt) knows which keys these are, and this process does not ask the filter about them until then.
    /// Where it does not, load the filter anew, as after a [`clear`](crate::Cache::clear) for rows that came without a writer.
    pub fn filter(mut self, filter: impl Filter + 'static) -> Self {
        self.guards.filter = Some(Arc::new(filter));
        self
    }

    /// No more loads a second than this, of this cache in this process. A load waits for its turn for as
    /// long as [`max_loads`](Self::max_loads) says, and is then refused with [`Error::Busy`]. Default: no limit
    /// on how many begin, only on how many are under way.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.guards.limit = Some(limit);
        self
    }

    /// Leaves the database alone for a while after many loads failed or were not done in time: reads that
    /// would load get [`Error::Busy`] at once. Then one load tries. Default: loads are always tried.
    pub fn breaker(mut self, policy: Policy) -> Self {
        let Policy { window, open, probe, percent, .. } = policy;
        let never = window.is_zero() || open.is_zero() || probe.is_zero();
        self.guards.wrong = match percent {
            1..=100 if !never => None,
            1..=100 => Some("breaker: window, open and probe must be longer"),
            _ => Some("breaker: percent must be from 1 to 100"),
        };
        self.guards.breaker = Some(Gate::new(policy));
        self
    }

    /// What reads get while the store does not answer. Default [`Down::Load`]; always [`Down::Busy`] for a table that is
    /// [written behind](crate::strategy::write_behind).
    ///
    /// A store that did not answer three looks, one after the other, is left alone for half a second, then one read tries
    /// again, and so on, up to five seconds apart. Invalidations are always tried.
    pub fn when_down(mut self, down: Down) -> Self {
        self.guards.down = down;
        self
    }

    /// How much of [`ttl`](Self::ttl), [`null_ttl`](Self::null_ttl) and [`refresh_after`](Self::refresh_after) is
    /// left to chance, so that what was filled together does not end together. Default: up to a tenth is taken off.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.guards.jitter = jitter;
        self
    }

    /// How early the [keys that are read most](crate::Cache::hot_keys) are loaded anew before they end;
    /// `None`: not at all. By default as [`Early`] does: the sooner the longer the load took. Others are not.
    pub fn early(mut self, early: Option<Early>) -> Self {
        self.guards.early = early;
        self
    }
}

impl<K, V> Cache<K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Loads the [filter](Builder::filter) with all keys that exist, the first time and later while it is used; see
    /// [`rebuild`](crate::filter::rebuild) for the order of things.
    ///
    /// # Errors
    ///
    /// [`FilterError`]: when there is no filter, the source or the store of the filter fails, or somebody else loads it.
    pub async fn load_filter<S, E>(
        &self,
        plan: filter::Plan,
        source: impl FnOnce() -> S + Send,
        progress: impl FnMut(filter::Progress) + Send,
    ) -> Result<filter::Loaded, FilterError>
    where
        S: Stream<Item = Result<K, E>> + Send,
        E: Into<BoxError> + Send,
    {
        let filter = self.inner.guards.filter().ok_or(FilterError::Size("there is no filter"))?;
        let written = |key: Result<K, E>| key.map(|key| key.to_string());
        let lacked = self.inner.unfiltered.all();
        let loaded = filter::rebuild(filter, plan, || source().map(written), progress).await?;
        self.inner.unfiltered.forgive(lacked);
        Ok(loaded)
    }
}

impl<K, V> Inner<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// The key as it is written.
    pub(crate) fn key_of<'a>(&self, name: &'a str) -> &'a str {
        name.get(self.settings.namespace.len() + 1..).unwrap_or("")
    }

    pub(crate) fn validate(&self, key: &str) -> Result<()> {
        match &self.guards.validate {
            Some(validate) => validate(key).map_err(Error::InvalidKey),
            None => Ok(()),
        }
    }

    pub(crate) fn note(&self, name: &str, event: Event) {
        self.guards.events.note(name, event);
    }

    /// What the store has under a key, unless it is left alone.
    pub(crate) async fn ask_one(&self, key: &str) -> store::Result<Seen> {
        if self.store.leaves_alone() {
            return self.store.get_one(key).await;
        }
        let Ok(look) = self.guards.store.enter() else { return Ok(Seen::Down) };
        let found = self.store.get_one(key).await;
        look.answered(found.is_ok());
        found
    }

    /// The same for several.
    pub(crate) async fn ask(&self, keys: &[&str]) -> store::Result<Vec<Seen>> {
        if self.store.leaves_alone() {
            return self.store.get(keys).await;
        }
        let Ok(look) = self.guards.store.enter() else {
            return Ok(vec![Seen::Down; keys.len()]);
        };
        let found = self.store.get(keys).await;
        look.answered(found.is_ok());
        found
    }

    /// A copy that may be old, while the store does not answer.
    pub(crate) fn stale_copy(&self, key: &K, freshness: Freshness) -> Option<Read<V>> {
        let Down::Stale { bound, .. } = self.guards.down else { return None };
        self.first.get()?.get_stale(key, freshness, bound, self.now_for(freshness))
    }

    /// The answer while the store does not give one.
    pub(crate) async fn down(&self, key: &K, name: &str) -> Outcome<V> {
        self.note(name, Event::StoreDown);
        self.stats.down_reads.add();
        match &self.guards.down {
            Down::Load => self.bypass(key, None).await,
            Down::LoadAtMost(limit) | Down::Stale { otherwise: Some(limit), .. } => {
                self.bypass(key, Some(limit)).await
            }
            Down::Busy | Down::Stale { otherwise: None, .. } => {
                Err(Error::Busy { retry_after: self.guards.store.retry_after() })
            }
        }
    }

    /// Whether the filter knows that there is nothing.
    pub(crate) async fn absent(&self, name: &str) -> Option<Read<V>> {
        let filter = self.guards.filter()?;
        if self.unfiltered.has(name) {
            self.stats.unfiltered.add();
            return None;
        }
        // When its own store hangs, it takes its time to find out.
        let Ok(look) = self.guards.shared.enter() else {
            self.stats.unfiltered.add();
            return None;
        };
        let verdicts = filter.look(&[self.key_of(name).as_bytes()]).await;
        match verdicts.first() {
            Some(Verdict::Absent) => look.answered(true),
            Some(Verdict::Maybe) => {
                look.answered(true);
                return None;
            }
            // One that merely is not loaded says so at once.
            Some(Verdict::Unknown) | None => {
                look.answered_within(FILTER_TIME);
                self.stats.unfiltered.add();
                return None;
            }
        }
        self.stats.filtered.add();
        let made = self.store.now();
        Some(Read { value: None, version: 0, made, source: Source::Filter })
    }

    /// These keys are about to be written, or were: the filter must not call them absent any more. To be done
    /// before the commit, so that no crash leaves a row that the filter does not know of; or at least before
    /// the writer is told that it is done.
    pub(crate) async fn announce(&self, names: &[String]) -> Result<()> {
        const WHAT: &str = "inserting into the filter";
        self.insert(names).await.map_err(|source| {
            self.store_failed(WHAT, &source);
            Error::Store { what: WHAT, source }
        })
    }

    /// The same after the commit. What fails is made up for: there is nobody left who could do without the write.
    pub(crate) async fn announce_again(self: &Arc<Self>, names: &[String]) -> Result<()> {
        self.announce(names).await.inspect_err(|_| self.owe_filter(names))
    }

    /// The same, to be tried again by who has to.
    pub(crate) async fn insert(&self, names: &[String]) -> store::Result<()> {
        let Some(filter) = self.guards.filter() else { return Ok(()) };
        let keys: Vec<&[u8]> = names.iter().map(|name| self.key_of(name).as_bytes()).collect();
        let inserting = timeout(self.settings.timeout, filter.insert(&keys));
        let error: BoxError = match inserting.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.into(),
            Err(late) => late.into(),
        };
        Err(StoreError::new("filter", error))
    }

    /// Waits until a load may begin.
    pub(crate) async fn admit(&self, besides: Option<&Limit>) -> Result<Admitted<'_>, Duration> {
        let (queue, since) = (self.settings.queue, Instant::now());
        let pass = match &self.guards.breaker {
            Some(gate) => Some(gate.enter().map_err(|refused| refused.retry_after)?),
            None => None,
        };
        let Ok(Ok(permit)) = timeout(queue, self.loads.acquire()).await else {
            return Err(queue);
        };
        // Last, so that what is admitted begins now and not together with what was admitted before.
        for limit in [self.guards.limit.as_ref(), besides].into_iter().flatten() {
            let left = queue.saturating_sub(Instant::now().since(since));
            limit.admit(left).await.map_err(|limited| limited.retry_after)?;
        }
        let slow = self.settings.timeout / 2;
        Ok(Admitted { pass, since: Instant::now(), slow, _permit: permit })
    }
}

/// A load that may begin.
pub(crate) struct Admitted<'a> {
    pass: Option<Pass>,
    since: Instant,
    slow: Duration,
    _permit: SemaphorePermit<'a>,
}

impl Admitted<'_> {
    pub(crate) fn over(mut self, ok: bool) {
        match self.pass.take() {
            Some(pass) if ok => pass.succeeded(),
            Some(pass) => pass.failed(),
            None => {}
        }
    }
}

impl Drop for Admitted<'_> {
    /// A load that nobody waits for any more counts only if it took long: else a database that hangs would never be
    /// left alone.
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take()
            && Instant::now().since(self.since) >= self.slow
        {
            pass.failed();
        }
    }
}
