//! A read at the store. Most are hits, so what only others need is kept apart: a future is moved as a whole, with the room
//! for all that it may have to do.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use crate::cache::{Cache, Inner, Read, Source, Verdict};
use crate::entry::{Entry, Ticket};
use crate::error::{Error, Result, StoreError};
use crate::events::Event;
use crate::flight::{Fill, Flight, Role, Turn};
use crate::freshness::Freshness;
use crate::load::{Outcome, PENDING_FOR, Plan};
use crate::store::Seen;

/// So often a value is loaded for who is to say that the store has it.
const FILLS: usize = 3;

/// A clock cannot count to any time that a duration can be.
const NEVER: Duration = Duration::from_secs(10 * 366 * 86_400);

/// What becomes of a read.
pub(crate) enum Next<V> {
    /// This is what it gets.
    Done(Result<Read<V>>),
    /// It goes to the database.
    Bypass,
    /// It is loaded, or somebody loads it: as for a [`Verdict`].
    Get(Plan, Option<Ticket>),
}

impl<K, V> Cache<K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// What is cached under a key, in the first level or at the store; `None`: nothing is, or it may be out of date. The
    /// loader is never called, and nothing is refreshed: for those who must not reach the database. That the database has
    /// nothing may be cached as well, and is then a [`Read`] without a value. What a read has just loaded may be on its way to the
    /// store, and is found a moment later ([`idle`](Self::idle)).
    ///
    /// # Errors
    ///
    /// [`Error::Store`] when the store does not answer, [`Error::Timeout`], [`Error::InvalidKey`]; [`Error::Busy`] where a change
    /// waits that this program cannot read.
    pub async fn peek(&self, key: &K) -> Result<Option<Read<V>>> {
        let inner = &self.inner;
        if let Some(read) = inner.first_get(key, Freshness::Any) {
            return Ok(Some(read));
        }
        let name = inner.name(key)?;
        let mark = inner.mark(&name);
        // Who has not told the store of a change yet does not believe it.
        if inner.debt.has(&name) {
            inner.stats.misses.add();
            return Ok(None);
        }
        let seen = inner.in_time(async { Ok(inner.look(&name).await) }).await?;
        let down = |source| Error::Store { what: "a look", source };
        let seen = match seen.map_err(down)? {
            Seen::Down => return Err(down(StoreError::new("store", "it does not answer"))),
            seen => seen,
        };
        match inner.judge(&name, seen, Freshness::Any) {
            Verdict::Take(read, _) => {
                inner.audits.sample(key, &name, read.source);
                inner.first_put(key, &read, mark);
                Ok(Some(read))
            }
            Verdict::Get(..) => {
                inner.stats.misses.add();
                inner.first_drop(key);
                Ok(None)
            }
            Verdict::Pending => Err(Error::Busy { retry_after: PENDING_FOR }),
        }
    }

    /// Has the value under a key loaded, unless it is cached; returns when the store has it, for who then says so. `false`: it is too
    /// large for the store, or a newer program has cached it in a way that is not ours to read.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read); [`Error::Store`] when the store does not say whether it has the value; [`Error::Busy`] when somebody
    /// writes it, or each time it was loaded somebody changed it, or the database had only an older one.
    pub(crate) async fn load_into_store(&self, key: &K) -> Result<bool> {
        let name = self.inner.name(key)?;
        self.inner.in_time(self.inner.into_store(key, &name)).await
    }

    /// A read for which the first level has nothing.
    pub(crate) async fn read_at_store(&self, key: &K, freshness: Freshness) -> Result<Read<V>> {
        let (inner, deadline) = (&self.inner, self.inner.deadline());
        let name = inner.name(key)?;
        let mark = inner.mark(&name);
        let turn = inner.flights.turn();
        let owed = inner.debt.has(&name);
        let seen = match freshness {
            Freshness::Latest => Ok(Seen::Down),
            _ if owed => Ok(Seen::Down),
            // It has a timer already, and a second one for each hit would be for nothing.
            _ if inner.store_is_in_time() => inner.look(&name).await,
            _ => Box::pin(inner.by(deadline, async { Ok(inner.look(&name).await) })).await?,
        };
        let seen = (seen.unwrap_or(Seen::Down), owed);
        let read = match inner.decide(key, &name, freshness, turn, seen) {
            Next::Done(done) => done?,
            // Apart, because it is rare beside hits, and large.
            next => Box::pin(inner.get_anew(key, &name, freshness, turn, next, deadline)).await?,
        };
        inner.first_put(key, &read, mark);
        Ok(read)
    }
}

impl<K, V> Inner<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// When a read has to be over that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.settings.timeout.min(NEVER)
    }

    pub(crate) async fn by<T>(
        &self,
        deadline: Instant,
        doing: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let waited = self.settings.timeout;
        timeout_at(deadline, doing).await.unwrap_or(Err(Error::Timeout { waited }))
    }

    pub(crate) async fn in_time<T>(
        &self,
        doing: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.by(self.deadline(), doing).await
    }

    /// Whether a look at the store is over before a read has to be.
    fn store_is_in_time(&self) -> bool {
        self.store.answers_within().is_some_and(|time| time <= self.settings.timeout)
    }

    /// What becomes of a read that began then and saw this; `owed`: the store was not asked, because an invalidation is
    /// still owed to it.
    pub(crate) fn decide(
        self: &Arc<Self>,
        key: &K,
        name: &str,
        freshness: Freshness,
        turn: Turn,
        (seen, owed): (Seen, bool),
    ) -> Next<V> {
        if freshness == Freshness::Latest {
            return Next::Bypass;
        }
        let down = seen == Seen::Down;
        if down
            && !owed
            && let Some(copy) = self.stale_copy(key, freshness)
        {
            self.note(name, Event::StoreDown);
            self.stats.down_reads.add();
            self.stats.down_stale.add();
            return Next::Done(Ok(copy));
        }
        let (plan, shown) = match self.judge(name, seen, freshness) {
            Verdict::Take(read, refresh) => {
                self.audits.sample(key, name, read.source);
                if let Some(plan) = refresh
                    && let Role::First(flight) = self.flights.join(name, turn, None)
                {
                    self.start(key.clone(), name, flight, plan);
                }
                return Next::Done(Ok(read));
            }
            Verdict::Get(_, shown) if owed => (Plan::Owed, shown),
            Verdict::Get(plan, shown) => (plan, shown),
            Verdict::Pending => return Next::Done(Err(Error::Busy { retry_after: PENDING_FOR })),
        };
        self.stats.misses.add();
        if !down {
            // What the store does not show any more is not to come back when it is down.
            self.first_drop(key);
        }
        Next::Get(plan, shown)
    }

    async fn into_store(self: &Arc<Self>, key: &K, name: &str) -> Result<bool> {
        let down = || {
            let source = StoreError::new("store", "it does not answer");
            Error::Store { what: "a fill", source }
        };
        for _ in 0..FILLS {
            let turn = self.flights.turn();
            let seen = match self.debt.has(name) {
                true => Seen::Down,
                false => self.look(name).await.unwrap_or(Seen::Down),
            };
            if seen == Seen::Down {
                return Err(down());
            }
            let is_written = matches!(seen, Seen::Entry(Entry::Intents(_)));
            let (plan, shown) = match self.decide(key, name, Freshness::Any, turn, (seen, false)) {
                Next::Done(done) => return done.map(|_| true),
                Next::Get(plan @ Plan::Fill { .. }, shown) => (plan, shown),
                Next::Get(..) | Next::Bypass if is_written => break,
                Next::Get(..) | Next::Bypass => return Ok(false),
            };
            let flight = self.flight(key, name, turn, plan, shown);
            let waited = self.settings.timeout;
            let read = flight.outcome().await.unwrap_or(Err(Error::Timeout { waited }))?;
            match flight.filled().await {
                Fill::Done => return Ok(true),
                Fill::Unfit => return Ok(false),
                Fill::Failed => return Err(down()),
                // What surely is not there need not be cached to be known.
                Fill::Other | Fill::UnderWay if read.source == Source::Filter => return Ok(true),
                Fill::Other | Fill::UnderWay => {}
            }
        }
        Err(Error::Busy { retry_after: PENDING_FOR })
    }

    /// The rest of such a read.
    pub(crate) async fn get_anew(
        self: &Arc<Self>,
        key: &K,
        name: &str,
        freshness: Freshness,
        turn: Turn,
        next: Next<V>,
        deadline: Instant,
    ) -> Result<Read<V>> {
        let (plan, shown) = match next {
            Next::Done(done) => return done,
            Next::Bypass => return self.by(deadline, self.bypass(key, None)).await,
            Next::Get(plan, shown) => (plan, shown),
        };
        let flight = self.flight(key, name, turn, plan, shown);
        let getting = async {
            let waited = self.settings.timeout;
            let read = flight.outcome().await.unwrap_or(Err(Error::Timeout { waited }))?;
            self.satisfy(key, freshness, read, flight.is_after(turn)).await
        };
        let read = self.by(deadline, getting).await?;
        if !self.is_home() {
            // See `fill`. However it ends, and if it does not: the value is as good.
            let _ = timeout_at(deadline, flight.filled()).await;
        }
        Ok(read)
    }

    /// Whether this is the runtime in which the cache was built.
    fn is_home(&self) -> bool {
        let here = Handle::try_current().ok().map(|runtime| runtime.id());
        here.is_some() && here == self.home
    }

    /// One that is under way and will do, or a new one.
    fn flight(
        self: &Arc<Self>,
        key: &K,
        name: &str,
        turn: Turn,
        plan: Plan,
        shown: Option<Ticket>,
    ) -> Arc<Flight<Outcome<V>>> {
        let role = match plan {
            Plan::Fill { .. } => self.flights.join(name, turn, shown),
            // Apart from those who asked the store: what they get may come from there. No name begins so but those
            // of a namespace that does, and then these have one more.
            Plan::Owed => self.flights.join_direct(&format!("\0{name}"), turn),
            Plan::Direct | Plan::Down => self.flights.join_direct(name, turn),
        };
        match role {
            Role::Joined(flight) => {
                self.stats.joined.add();
                flight
            }
            Role::First(flight) => {
                self.start(key.clone(), name, Arc::clone(&flight), plan);
                flight
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use futures_util::future::join_all;
    use tokio::time::sleep;

    use super::*;
    use crate::entry::{Begun, Filled, Invalidation, Millis, Settled, Value};
    use crate::loader::Loaded;
    use crate::store::{Result as StoreResult, Store};

    /// Takes that long to fail, and says so or not.
    #[derive(Debug)]
    struct Slow {
        takes: Duration,
        says: bool,
    }

    fn no<T>() -> StoreResult<T> {
        Err(StoreError::new("slow", "no"))
    }

    #[async_trait]
    impl Store for Slow {
        fn now(&self) -> Millis {
            0
        }

        async fn get(&self, _: &[&str]) -> StoreResult<Vec<Seen>> {
            sleep(self.takes).await;
            no()
        }

        fn answers_within(&self) -> Option<Duration> {
            self.says.then_some(self.takes)
        }

        async fn begin(
            &self,
            _: &str,
            _: Ticket,
            _: Duration,
            _: Option<Ticket>,
        ) -> StoreResult<Begun> {
            no()
        }

        async fn fill(&self, _: &str, _: &Value, _: Duration) -> StoreResult<Filled> {
            no()
        }

        async fn put(&self, _: &str, _: &Value, _: Duration) -> StoreResult<()> {
            no()
        }

        async fn give_up(&self, _: &str, _: Ticket) -> StoreResult<()> {
            no()
        }

        async fn invalidate(&self, _: &[&str], _: Invalidation) -> StoreResult<()> {
            no()
        }

        async fn intend(&self, _: &[&str], _: Ticket, _: Duration) -> StoreResult<()> {
            no()
        }

        async fn settle(&self, _: &[&str], _: Ticket, _: Invalidation) -> StoreResult<Settled> {
            no()
        }
    }

    /// The look at the store and the load have one deadline together, whoever watches over the look.
    #[tokio::test(start_paused = true)]
    async fn a_read_has_one_deadline() {
        let time = Duration::from_secs(3);
        for (takes, says) in [(1, false), (1, true), (3, true), (4, false), (4, true)] {
            let store = Slow { takes: Duration::from_secs(takes), says };
            let cache =
                Cache::builder(store).namespace("cache").timeout(time).build(async |_: u8| {
                    std::future::pending::<()>().await;
                    Ok::<_, Error>(Loaded::found(1_u8))
                });
            let (cache, since) = (cache.unwrap(), Instant::now());
            let one = async {
                let ended = cache.read(&1, Freshness::Any).await;
                assert!(matches!(ended, Err(Error::Timeout { .. })), "{takes} {says}: {ended:?}");
                since.elapsed().as_secs()
            };
            let many = async {
                let ended = cache.get_many(&[1, 2]).await;
                assert!(matches!(ended, Err(Error::Timeout { .. })), "{takes} {says}: {ended:?}");
                since.elapsed().as_secs()
            };
            assert_eq!(tokio::join!(one, many), (3, 3), "{takes} {says}");
        }
    }

    /// Looks that wait for each other do not take the time that is needed for loads.
    #[tokio::test(start_paused = true)]
    async fn a_crowd_has_time_for_the_database_when_the_store_hangs() {
        let store = Slow { takes: Duration::from_secs(2), says: true };
        let builder = Cache::builder(store).namespace("cache").timeout(Duration::from_secs(3));
        let cache = builder.build(async |_: u8| Ok::<_, Error>(Loaded::found(1_u8))).unwrap();
        let reads = join_all((0..200).map(|_| cache.get(&1))).await;
        for read in reads {
            assert_eq!(read.unwrap().as_deref(), Some(&1));
        }
    }
}
