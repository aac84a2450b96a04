//! One process of the load: a session for each strategy, on the same few keys as the other processes.

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper::clock::Instant;
use lockkeeper_cache::{Cache, Error, Read, Redis, Source as From, Strategy};
use serde::{Deserialize, Serialize};
use testkit::random::Random;
use testkit::staleness::{Kind, Log, Source};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::rows::Rows;

/// Those that are compared.
pub(crate) const STRATEGIES: [Strategy; 11] = [
    Strategy::FillLease,
    Strategy::Strong,
    Strategy::BoundedStale,
    Strategy::UpdateThenDelete,
    Strategy::DeleteThenUpdate,
    Strategy::DoubleDelete,
    Strategy::WriteThrough,
    Strategy::ReadWriteLock,
    Strategy::WriteBehind,
    Strategy::TtlOnly,
    Strategy::Bypass,
];

pub(crate) type Table = lockkeeper_cache::Table<String, i64>;

/// Set for processes that are workers.
pub(crate) const VARIABLE: &str = "LOCKKEEPER_TEST_WORKER";

/// So many keys each strategy has: few, so that everybody meets.
pub(crate) const KEYS: u64 = 2;

/// So many things each session does, also when the time is over before that; but not for longer than this.
const LEAST: (u32, Duration) = (60, Duration::from_secs(4));

/// How old a value may be that the strategies give which have a bound.
pub(crate) const BOUND: Duration = Duration::from_millis(200);

/// How long a load may take and still fill.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// What a worker is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) process: u32,
    pub(crate) redis: String,
    pub(crate) sql: String,
    /// Made when the worker is ready.
    pub(crate) log: PathBuf,
    pub(crate) seed: u64,
}

pub(crate) fn key(strategy: Strategy, number: u64) -> String {
    format!("{strategy}/{number}")
}

/// The keys of a strategy.
pub(crate) fn keys(strategy: Strategy) -> impl Iterator<Item = String> {
    (0..KEYS).map(move |number| key(strategy, number))
}

/// A table with this strategy, with connections of its own.
pub(crate) async fn table(strategy: Strategy, redis: &str, rows: &Rows) -> Table {
    // What waits for the database must count after a fail-over.
    let store = match strategy {
        Strategy::WriteBehind => Redis::connect_warm(redis).await.unwrap(),
        _ => Redis::connect(redis).await.unwrap(),
    };
    let ttl = if strategy == Strategy::TtlOnly { BOUND } else { Duration::from_secs(60) };
    let builder = Cache::builder(store)
        .namespace(strategy.to_string())
        .ttl(ttl)
        .null_ttl(ttl)
        .keep_last(BOUND)
        .lease(LEASE)
        .second_delete(BOUND)
        .timeout(Duration::from_secs(3));
    let builder = match strategy {
        Strategy::WriteThrough | Strategy::ReadWriteLock => {
            // A fail-over brings locks back that were released.
            builder.locks(Locks::connect(&format!("{redis}?ttl=1s")).await.unwrap())
        }
        _ => builder,
    };
    builder.table(strategy, rows.clone()).unwrap()
}

/// Becomes a worker, if this process was started as one: works from the first line of its input until the second.
pub(crate) async fn main() {
    let Ok(task) = std::env::var(VARIABLE) else { return };
    let Task { process, redis, sql, log: path, seed } = serde_json::from_str(&task).unwrap();
    let mut random = Random::from_seed(seed);
    let ready = path.with_extension("ready");
    let log = Arc::new(Log::create(path, process).unwrap());
    let rows = Rows::connect(&sql, &log, random.fork()).await;
    let (begin, begun) = watch::channel(false);
    let over = Arc::new(AtomicU64::new(u64::MAX));
    let mut sessions = Vec::new();
    for (number, strategy) in (1..).zip(STRATEGIES) {
        let session = Session {
            table: table(strategy, &redis, &rows).await,
            strategy,
            number: u64::from(process) * 100 + number,
            log: Arc::clone(&log),
            over: Arc::clone(&over),
            random: random.fork(),
        };
        let mut begun = begun.clone();
        sessions.push(tokio::spawn(async move {
            begun.wait_for(|begun| *begun).await.unwrap();
            session.run().await;
        }));
    }
    std::fs::write(ready, "").unwrap();
    std::thread::spawn(move || {
        let mut lines = std::io::stdin().lock().lines();
        if lines.next().is_some() {
            let _ = begin.send(true);
        }
        if lines.next().is_none() {
            // Nobody wants to know any more.
            std::process::exit(1);
        }
        over.store(Instant::now().as_nanos(), Ordering::SeqCst);
    });
    for session in sessions {
        session.await.unwrap();
    }
}

struct Session {
    table: Table,
    strategy: Strategy,
    number: u64,
    log: Arc<Log>,
    /// When the time was over.
    over: Arc<AtomicU64>,
    random: Random,
}

impl Session {
    async fn run(mut self) {
        // On a slow machine time alone would prove little.
        for done in 0_u32.. {
            let over = Instant::from_nanos(self.over.load(Ordering::SeqCst));
            let now = Instant::now();
            if now > over && (done >= LEAST.0 || now > over + LEAST.1) {
                return;
            }
            let key = key(self.strategy, self.random.below(KEYS));
            match self.random.below(20) {
                0 if self.strategy != Strategy::WriteBehind => self.write(&key, None).await,
                0..4 => self.write(&key, Some(self.value(done))).await,
                _ => self.read(&key).await,
            }
            sleep(self.random.duration(Duration::from_millis(3))).await;
        }
    }

    /// One that nobody else writes.
    fn value(&self, number: u32) -> i64 {
        (self.number << 32).cast_signed() + i64::from(number)
    }

    async fn write(&self, key: &String, value: Option<i64>) {
        let kind = if value.is_some() { Kind::Write } else { Kind::Delete };
        let write = self.log.begin(self.number, key, kind);
        let behind = self.strategy == Strategy::WriteBehind;
        match self.table.write(key, value).await {
            // It has no version yet; what it has then is found by its value.
            Ok(_) if behind => write.wrote(value.unwrap_or_default().cast_unsigned()),
            Err(Error::Commit(_)) if behind => write.unknown(value.map(i64::cast_unsigned)),
            Ok(written) => write.wrote(written.version),
            Err(Error::Committed { version, .. }) => write.unknown(Some(version)),
            Err(Error::Commit(_)) => write.unknown(None),
            Err(_) => write.failed(),
        }
    }

    async fn read(&self, key: &String) {
        read(&self.table, key, &self.log, self.number, Kind::Read).await;
    }
}

/// By what a read is known: the version, or where there may be none yet, the value.
pub(crate) fn seen(strategy: Strategy, found: &Read<i64>) -> u64 {
    match strategy {
        Strategy::WriteBehind => found.value.as_deref().map_or(0, |value| value.cast_unsigned()),
        _ => found.version,
    }
}

/// Reads, and writes it down.
pub(crate) async fn read(table: &Table, key: &String, log: &Log, session: u64, kind: Kind) {
    let read = log.begin(session, key, kind);
    match table.read(key).await {
        Ok(found) => {
            let source = match found.source {
                From::Hit => Source::L2,
                From::Stale => Source::Stale,
                _ => Source::Fill,
            };
            read.found(Some(seen(table.strategy(), &found)), source);
        }
        Err(_) => read.failed(),
    }
}
