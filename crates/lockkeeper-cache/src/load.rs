//! What a miss does: ask for the lease, load, send the fill; or wait for who has it.

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join;
use lockkeeper::clock::Instant;
use tokio::time::{sleep, timeout};
use tracing::Instrument;

use crate::cache::{Inner, Read, Source};
use crate::entry::{Begun, Entry, Lease, Millis, Ticket, Value};
use crate::error::{Error, Result, StoreError};
use crate::fill::Held;
use crate::flight::{Fill, Flight};
use crate::limit::Limit;
use crate::loader::Loaded;
use crate::stats::Counter;
use crate::store::{PENDING, Seen, millis};

/// Between two looks at a key that somebody else loads: at first, and at most.
const LOOKS: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// So many leases of others are waited for. More are only seen where a key is invalidated all the time.
const ROUNDS: usize = 8;

/// When to ask again for what waits for the database and cannot be read.
pub(crate) const PENDING_FOR: Duration = Duration::from_millis(200);

/// What comes of a load, for all who waited for it.
pub(crate) type Outcome<V> = Result<Read<V>>;

/// How to get a value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    /// With a lease, and fill. A value that was filled under this ticket does not do.
    Fill { except: Option<Ticket> },
    /// From the database alone.
    Direct,
    /// Without the store, which does not answer.
    Down,
    /// The same, because an invalidation is still owed to it.
    Owed,
}

/// What waiting for somebody else came to.
enum Waited<V> {
    Found(Read<V>),
    /// Nobody loads it any more.
    Again,
    /// Nothing is to be filled now.
    Direct,
    /// The store does not answer.
    Down,
    /// A change waits for the database, and cannot be read.
    Pending,
}

/// What a value that is there is worth to us.
pub(crate) enum Decoded<V> {
    Read(Read<V>),
    /// Not readable: to be replaced.
    Unfit,
    /// Of a newer program: to be left alone.
    Newer,
    /// Not readable, and the database does not have it yet: what it has is older.
    Pending,
}

impl<K, V> Inner<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Does a flight, in a task of its own, so that it goes on when who began it gives up.
    pub(crate) fn start(
        self: &Arc<Self>,
        key: K,
        name: &str,
        flight: Arc<Flight<Outcome<V>>>,
        plan: Plan,
    ) {
        // Where nobody listens to it, the loader still speaks in the span of the read that begins it.
        let span = tracing::debug_span!("load", key = %name.escape_debug()).or_current();
        let (inner, name) = (Arc::clone(self), name.to_owned());
        let landing = Landing { inner: Arc::clone(self), flight: Some(Arc::clone(&flight)) };
        let flown = async move {
            let flying = async {
                inner.flights.take_off(&flight, inner.settings.queue).await;
                inner.fly(&key, &name, &flight, plan).await
            };
            let flying = AssertUnwindSafe(flying).catch_unwind();
            let waited = inner.settings.timeout;
            let outcome = match timeout(waited, flying).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(panic)) => Err(Error::Panicked(message(&*panic))),
                Err(_) => Err(Error::Timeout { waited }),
            };
            if let Err(error) = &outcome {
                inner.failed(&name, error);
            }
            landing.land(outcome);
        };
        self.tasks.spawn(flown.instrument(span));
    }

    async fn fly(
        self: &Arc<Self>,
        key: &K,
        name: &str,
        flight: &Arc<Flight<Outcome<V>>>,
        plan: Plan,
    ) -> Outcome<V> {
        // Where somebody knows of the key, a filter that does not is behind the times.
        if matches!(plan, Plan::Fill { except: None } | Plan::Down | Plan::Owed)
            && let Some(nothing) = self.absent(name).await
        {
            return Ok(nothing);
        }
        let mut except = match plan {
            Plan::Fill { except } => except,
            Plan::Direct => return self.bypass(key, None).await,
            Plan::Down | Plan::Owed => return self.without_store(key, name, flight).await,
        };
        let mut pause = LOOKS.0;
        for _ in 0..ROUNDS {
            // A new one each time: see the rules of `entry`.
            let ticket = Ticket::new();
            let mut held = Held::new(self, flight, name, ticket);
            let lease = self.settings.lease;
            let begin = self.store.begin(name, ticket, lease, except);
            let (begun, tagged) = join(begin, self.tag(key, name)).await;
            let there = match begun {
                // Its tags would not find it.
                Ok(Begun::Granted { .. }) if tagged.is_err() => {
                    flight.set_fill(Fill::Failed);
                    return self.bypass(key, None).await;
                }
                Ok(Begun::Granted { now, .. }) => {
                    if except.is_some() {
                        self.stats.refreshes.add();
                    }
                    return self.load_and_fill(key, held, now).await;
                }
                Ok(Begun::There(entry)) => entry,
                Err(error) => {
                    self.store_failed("asking for a lease", &error);
                    // It may be granted late, after an invalidation that this load is older than: who sees that
                    // lease then must not join.
                    flight.set_ticket(Ticket::NONE);
                    return self.without_store(key, name, flight).await;
                }
            };
            held.disarm();
            match self.wait(name, there, &mut except, &mut pause).await {
                Waited::Found(read) => return Ok(read),
                Waited::Again => {}
                Waited::Direct => break,
                Waited::Down => return self.without_store(key, name, flight).await,
                Waited::Pending => return Err(Error::Busy { retry_after: PENDING_FOR }),
            }
        }
        self.bypass(key, None).await
    }

    async fn without_store(
        self: &Arc<Self>,
        key: &K,
        name: &str,
        flight: &Flight<Outcome<V>>,
    ) -> Outcome<V> {
        flight.set_fill(Fill::Failed);
        self.down(key, name).await
    }

    /// Waits for who loads it.
    async fn wait(
        self: &Arc<Self>,
        name: &str,
        there: Entry,
        except: &mut Option<Ticket>,
        pause: &mut Duration,
    ) -> Waited<V> {
        let mut there = Seen::Entry(there);
        let mut waited = false;
        loop {
            let now = self.store.now();
            let busy = match there {
                Seen::Entry(Entry::Value(value)) if Some(value.fill) != *except => {
                    match self.decode(name, &value) {
                        Decoded::Read(read) => return Waited::Found(read),
                        Decoded::Newer => return Waited::Direct,
                        Decoded::Pending => return Waited::Pending,
                        Decoded::Unfit => *except = Some(value.fill),
                    }
                    return Waited::Again;
                }
                Seen::Entry(Entry::Value(Value { lease, .. })) => lease.is_live(now),
                Seen::Entry(Entry::Gap(gap)) => gap.lease.is_live(now),
                Seen::Entry(Entry::Intents(_)) => return Waited::Direct,
                Seen::Nothing | Seen::Unreadable => false,
                Seen::Down => return Waited::Down,
            };
            // Once in any case: our idea of the time is a little ahead.
            if !busy && waited {
                return Waited::Again;
            }
            if !waited {
                self.stats.waits.add();
            }
            waited = true;
            sleep(jitter(*pause)).await;
            *pause = (*pause * 3 / 2).min(LOOKS.1);
            there = match self.look(name).await {
                Ok(seen) => seen,
                Err(_) => return Waited::Down,
            };
        }
    }

    async fn load_and_fill(&self, key: &K, held: Held<K, V>, made: Millis) -> Outcome<V> {
        let begun = Instant::now();
        let loaded = match self.load(key, None).await {
            Ok(loaded) => loaded,
            Err(error) => {
                // Who asks next is to find it free.
                held.give_up().await;
                return Err(error);
            }
        };
        let cost = millis(Instant::now().since(begun));
        let (value, version) = (loaded.value.map(Arc::new), loaded.version);
        let read = Read { value, version, made, source: Source::Loaded };
        let Some(payload) = self.encode(read.value.as_deref()) else {
            held.unfit();
            return Ok(read);
        };
        let ttl = self.lifetime(payload.is_none(), held.ticket());
        let soft = self
            .settings
            .refresh_after
            .map_or(u64::MAX, |after| made + millis(self.guards.shorten(after, held.ticket())));
        let (cost, schema) = (u32::try_from(cost).unwrap_or(u32::MAX), self.settings.schema);
        let (lease, fill) = (Lease::NONE, held.ticket());
        let value = Value { lease, fill, version, made, soft, cost, schema, payload };
        held.fill(value, ttl).await;
        Ok(read)
    }

    /// What is to be stored of a value; nothing of one that is unfit for it.
    #[expect(clippy::option_option, reason = "what is stored for nothing is nothing")]
    pub(crate) fn encode(&self, value: Option<&V>) -> Option<Option<Bytes>> {
        let Some(value) = value else { return Some(None) };
        match self.codec.encode(value) {
            Ok(bytes) if bytes.len() <= self.settings.max_value => Some(Some(bytes.into())),
            Ok(bytes) => {
                self.stats.unfit_values.add();
                tracing::debug!(bytes = bytes.len(), "a value is too large to be cached");
                None
            }
            Err(error) => {
                self.stats.unfit_values.add();
                tracing::warn!(%error, "a value cannot be encoded, and is not cached");
                None
            }
        }
    }

    /// The value of an entry, which is under this key.
    pub(crate) fn decode(&self, name: &str, value: &Value) -> Decoded<V> {
        let (found, ours) = (value.schema, self.settings.schema);
        if found != ours {
            self.stats.unreadable.add();
            if found > ours && value.version != PENDING {
                return Decoded::Newer;
            }
            self.keep(name, value, &format_args!("it is of schema {found}, and ours is {ours}"));
            return if value.version == PENDING { Decoded::Pending } else { Decoded::Unfit };
        }
        let decoded = match value.payload.as_deref().map(|bytes| self.codec.decode(bytes)) {
            None => None,
            Some(Ok(decoded)) => Some(Arc::new(decoded)),
            Some(Err(error)) => {
                self.stats.unreadable.add();
                self.keep(name, value, &error);
                if value.version == PENDING {
                    return Decoded::Pending;
                }
                // Without the error, which may repeat the value.
                let (key, bytes) = (name.escape_debug(), value.payload.as_deref().map(<[u8]>::len));
                tracing::debug!(%key, bytes, "a value cannot be decoded, and is loaded again");
                return Decoded::Unfit;
            }
        };
        let Value { version, made, .. } = *value;
        Decoded::Read(Read { value: decoded, version, made, source: Source::Hit })
    }

    /// For who wants to know why it could not be read.
    fn keep(&self, name: &str, value: &Value, error: &dyn fmt::Display) {
        self.unreadable.keep(self.key_of(name), value, error);
    }

    /// From the database, and nothing is filled.
    pub(crate) async fn bypass(&self, key: &K, besides: Option<&Limit>) -> Outcome<V> {
        self.stats.bypasses.add();
        let made = self.store.now();
        let Loaded { value, version } = self.load(key, besides).await?;
        Ok(Read { value: value.map(Arc::new), version, made, source: Source::Loaded })
    }

    /// Calls the loader, if that is admitted; `besides`: by this limit, too.
    pub(crate) async fn load(&self, key: &K, besides: Option<&Limit>) -> Result<Loaded<V>> {
        let admitted = self.admit(besides).await.map_err(|retry_after| {
            self.stats.refused_loads.add();
            Error::Busy { retry_after }
        })?;
        self.stats.loads.add();
        let timed = Timed { begun: Instant::now(), micros: &self.stats.load_micros };
        let loaded = AssertUnwindSafe(self.loader.load(key)).catch_unwind().await;
        drop(timed);
        admitted.over(matches!(loaded, Ok(Ok(_))));
        let failed = match loaded {
            Ok(Ok(loaded)) => return Ok(loaded),
            Ok(Err(error)) => Error::Load(error.into()),
            Err(panic) => Error::Panicked(message(&*panic)),
        };
        self.stats.load_errors.add();
        Err(failed)
    }

    pub(crate) fn store_failed(&self, what: &str, error: &StoreError) {
        self.stats.store_errors.add();
        let cause = std::error::Error::source(error).map(ToString::to_string);
        tracing::warn!(cause, "{what}: {error}");
    }
}

/// Counts how long a load takes, or has taken when it is dropped: those that are cut off are the slowest.
struct Timed<'a> {
    begun: Instant,
    micros: &'a Counter,
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        let micros = Instant::now().since(self.begun).as_micros();
        self.micros.add_many(u64::try_from(micros).unwrap_or(u64::MAX));
    }
}

/// Ends a flight whose task is dropped with its runtime: nobody else would, and those who wait for it would wait in vain.
struct Landing<K, V> {
    inner: Arc<Inner<K, V>>,
    flight: Option<Arc<Flight<Outcome<V>>>>,
}

impl<K, V> Landing<K, V> {
    fn land(mut self, outcome: Outcome<V>) {
        if let Some(flight) = self.flight.take() {
            self.inner.flights.land(&flight, outcome);
        }
    }
}

impl<K, V> Drop for Landing<K, V> {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            let waited = self.inner.settings.timeout;
            self.inner.flights.land(&flight, Err(Error::Timeout { waited }));
        }
    }
}

pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "?".to_owned())
}

/// Between half of it and all of it, so that those who wait do not all look at once.
fn jitter(pause: Duration) -> Duration {
    pause / 2 + pause * fastrand::u32(0..1024) / 2048
}
