//! A database of one row, a store in front of it, and tables of any strategy that stop before each thing they do to
//! either.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use lockkeeper::Locks;
use lockkeeper::clock::Instant;
use lockkeeper_cache::entry::{Entry, Lease, Ticket, Value};
use lockkeeper_cache::{
    BoxError, Cache, Database, Error, Loaded, Loader, Memory, Order, Seen, Source as From, Store,
    Strategy, Table,
};
use parking_lot::Mutex;
use testkit::staleness::lab::At;
use testkit::staleness::{Kind, Operation, Outcome, Report, Source, check};

use crate::gate::{Gate, Mutant};

/// The one key.
pub(crate) const KEY: &str = "k";

/// Its name at the store.
pub(crate) const NAME: &str = "cache:k";

/// For how long values are kept, by the clock of the store.
pub(crate) const TTL: Duration = Duration::from_secs(60);

/// How long after the commit a second delete comes, by the same clock.
pub(crate) const SECOND_DELETE: Duration = Duration::from_secs(1);

/// How long a writer is believed that says nothing more, by the same clock.
pub(crate) const INTENT: Duration = Duration::from_secs(10);

/// Nothing shall give up because of the time.
const NEVER: Duration = Duration::from_secs(100_000);

/// Everything. A clone is the same.
#[derive(Clone, Debug)]
pub(crate) struct World {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Memory,
    /// Milliseconds, for the store.
    time: Arc<AtomicU64>,
    row: Mutex<Row>,
    locks: Locks,
    history: Mutex<Vec<Operation>>,
    /// Ticks with every look at it.
    clock: AtomicU64,
}

#[derive(Debug)]
struct Row {
    /// The value of each version, from 1.
    values: Vec<u64>,
    /// What loads see, while that is not the same.
    replica: Option<u64>,
    /// Commits fail.
    fails: bool,
}

impl Row {
    fn version(&self) -> u64 {
        self.values.len() as u64
    }

    /// The value of a version; `None` if it was not committed, or not yet.
    fn committed(&self, version: u64) -> Option<u64> {
        let place = usize::try_from(version).unwrap().checked_sub(1)?;
        self.values.get(place).copied()
    }

    fn value(&self, version: u64) -> u64 {
        self.committed(version).unwrap()
    }
}

impl World {
    /// The row has version 1, and nothing is cached.
    pub(crate) fn new() -> Self {
        let time = Arc::new(AtomicU64::new(1000));
        let clock = Arc::clone(&time);
        let store = Memory::with_clock(100, move || clock.load(SeqCst));
        let row = Mutex::new(Row { values: vec![0], replica: None, fails: false });
        let (history, clock) = (Mutex::default(), AtomicU64::new(0));
        let locks = Locks::memory();
        let world = Self { shared: Arc::new(Shared { store, time, row, locks, history, clock }) };
        let first = world.begin(0, Kind::Write);
        world.end(first, Outcome::Ok, 1, None);
        world
    }

    /// A table as in a process of its own. With an actor, it stops wherever that can be stopped.
    pub(crate) fn table(
        &self,
        strategy: Strategy,
        at: Option<At>,
        mutant: Option<Mutant>,
    ) -> Table<String, u64> {
        let store = Gate::new(self.store(), at.clone(), mutant);
        let builder = Cache::builder(store)
            .namespace("cache")
            .ttl(TTL)
            .timeout(NEVER)
            .lease(NEVER)
            .intent(INTENT)
            .floor(NEVER);
        builder
            .locks(self.shared.locks.clone())
            .second_delete(SECOND_DELETE)
            .keep_last(Duration::from_secs(1))
            .table(strategy, Rows { world: self.clone(), at })
            .unwrap()
    }

    pub(crate) fn store(&self) -> Memory {
        self.shared.store.clone()
    }

    /// The value is cached, as somebody filled it before.
    pub(crate) fn warm(self) -> Self {
        let value = self.entry(1);
        self.store().put(NAME, &value, TTL).now_or_never().unwrap().unwrap();
        self
    }

    /// What is cached of this version.
    pub(crate) fn entry(&self, version: u64) -> Value {
        let value = self.shared.row.lock().value(version);
        let payload = Some(value.to_string().into_bytes().into());
        let (lease, fill) = (Lease::NONE, Ticket::new());
        Value { lease, fill, version, made: 0, soft: u64::MAX, cost: 0, schema: 0, payload }
    }

    /// What a writer caches that counts on being the next one to commit.
    pub(crate) fn next_entry(&self, value: u64) -> Value {
        let payload = Some(value.to_string().into_bytes().into());
        let version = self.shared.row.lock().version() + 1;
        Value { version, payload, ..self.entry(1) }
    }

    /// The value that is cached.
    pub(crate) async fn cached(&self) -> Option<u64> {
        match &self.store().get(&[NAME]).await.unwrap()[..] {
            [Seen::Entry(Entry::Value(Value { payload: Some(bytes), .. }))] => {
                Some(serde_json::from_slice(bytes).unwrap())
            }
            _ => None,
        }
    }

    /// The value that the row has.
    pub(crate) fn truth(&self) -> u64 {
        let row = self.shared.row.lock();
        row.value(row.version())
    }

    /// Time passes at the store.
    pub(crate) fn pass(&self, time: Duration) {
        self.shared.time.fetch_add(u64::try_from(time.as_millis()).unwrap(), SeqCst);
    }

    /// Loads see what is there now, until it catches up.
    pub(crate) fn replica_lags(&self) {
        let mut row = self.shared.row.lock();
        row.replica = Some(row.version());
    }

    pub(crate) fn replica_catches_up(&self) {
        self.shared.row.lock().replica = None;
    }

    /// Commits fail from now on.
    pub(crate) fn commit_fails(&self) {
        self.shared.row.lock().fails = true;
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.shared.clock.fetch_add(1, SeqCst))
    }

    /// It is unknown what becomes of it until it ends.
    pub(crate) fn begin(&self, session: u64, kind: Kind) -> usize {
        let inv = self.now();
        let mut history = self.shared.history.lock();
        let at = history.len();
        history.push(Operation {
            process: 0,
            number: at as u64,
            session,
            key: KEY.to_owned(),
            kind,
            inv,
            res: Instant::NEVER,
            outcome: Outcome::Unknown,
            version: None,
            source: None,
        });
        at
    }

    pub(crate) fn end(&self, at: usize, outcome: Outcome, version: u64, source: Option<Source>) {
        let res = self.now();
        let operation = &mut self.shared.history.lock()[at];
        (operation.res, operation.outcome, operation.source) = (res, outcome, source);
        operation.version = (outcome == Outcome::Ok).then_some(version);
    }

    /// Reads through the table, and writes down what came of it; then waits for its fill. In a task, because it ends when it
    /// has its value, and not when the fill is let go on.
    pub(crate) async fn read(&self, table: &Table<String, u64>, session: u64, kind: Kind) -> u64 {
        let (world, reads) = (self.clone(), table.clone());
        let reading = tokio::spawn(async move { world.read_only(&reads, session, kind).await });
        let version = reading.await.unwrap();
        table.cache().idle().await;
        version
    }

    async fn read_only(&self, table: &Table<String, u64>, session: u64, kind: Kind) -> u64 {
        let begun = self.begin(session, kind);
        let found = table.read(&KEY.to_owned()).await.unwrap();
        let committed = self.shared.row.lock().committed(found.version);
        // What was never committed is for the referee to judge.
        if let Some(value) = committed {
            assert_eq!(found.value.as_deref(), Some(&value), "version {}", found.version);
        }
        let source = match found.source {
            From::Hit => Source::L2,
            From::Stale => Source::Stale,
            _ => Source::Fill,
        };
        self.end(begun, Outcome::Ok, found.version, Some(source));
        found.version
    }

    /// Writes through the table, and writes down what came of it.
    pub(crate) async fn write(&self, table: &Table<String, u64>, session: u64) {
        let begun = self.begin(session, Kind::Write);
        match table.write(&KEY.to_owned(), Some(session)).await {
            Ok(written) => self.end(begun, Outcome::Ok, written.version, None),
            Err(Error::Commit(_)) => self.end(begun, Outcome::Fail, 0, None),
            Err(error) => panic!("{error}"),
        }
    }

    /// What happened, judged, with a last look through a table of this strategy and at the row.
    pub(crate) async fn report(&self, strategy: Strategy) -> Report {
        // As double delete reads, and nothing more.
        let strategy = match strategy {
            Strategy::DoubleDelete => Strategy::UpdateThenDelete,
            strategy => strategy,
        };
        self.read(&self.table(strategy, None, None), 98, Kind::Final).await;
        let truth = self.begin(99, Kind::Truth);
        let version = self.shared.row.lock().version();
        self.end(truth, Outcome::Ok, version, Some(Source::Db));
        let end = self.now();
        let mut history = self.shared.history.lock().clone();
        // Who was killed is dead by now.
        history.iter_mut().for_each(|operation| operation.res = operation.res.min(end));
        check(&history).unwrap()
    }
}

/// The database, as one process sees it.
#[derive(Debug)]
pub(crate) struct Rows {
    world: World,
    at: Option<At>,
}

impl Rows {
    /// It stops where the actor can be stopped, if there is one.
    pub(crate) fn new(world: &World, at: Option<At>) -> Self {
        Self { world: world.clone(), at }
    }

    /// Commits, and the version it has now.
    pub(crate) async fn commit(&self, value: u64) -> Result<u64, BoxError> {
        stop(self.at.as_ref(), "commit").await;
        let mut row = self.world.shared.row.lock();
        if row.fails {
            return Err("the database refuses".into());
        }
        row.values.push(value);
        Ok(row.version())
    }
}

/// Stands still, if it is an actor.
pub(crate) async fn stop(at: Option<&At>, place: &'static str) {
    if let Some(at) = at {
        at.step(place).await;
    }
}

#[async_trait]
impl Loader<String, u64> for Rows {
    async fn load(&self, _: &String) -> Result<Loaded<u64>, BoxError> {
        stop(self.at.as_ref(), "load").await;
        let row = self.world.shared.row.lock();
        let version = row.replica.unwrap_or(row.version());
        Ok(Loaded::found(row.value(version)).version(version))
    }
}

#[async_trait]
impl Database<String, u64> for Rows {
    async fn store(
        &self,
        _: &String,
        value: Option<&u64>,
        _: Option<Order>,
    ) -> Result<u64, BoxError> {
        self.commit(*value.expect("nobody deletes here")).await
    }
}
