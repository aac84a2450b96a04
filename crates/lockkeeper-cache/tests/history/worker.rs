//! One process of the load: a session for each case, on the same few keys as the other processes; where there is a first
//! level, also one for each key that only reads.

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::{Error, Read, Source as From, Strategy};
use serde::{Deserialize, Serialize};
use testkit::random::Random;
use testkit::staleness::{Kind, Log, Source};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::cases::{Case, Table};
use crate::faults::Fault;
use crate::rows::Rows;

/// Set for processes that are workers.
pub(crate) const VARIABLE: &str = "LOCKKEEPER_TEST_WORKER";

/// A line of its input that begins so names the keys of which the next commit does not return: see [`Rows::hold`].
pub(crate) const HOLD: &str = "hold ";

/// So many things each session does, also when the time is over before that; but not for longer than this.
const LEAST: (u32, Duration) = (60, Duration::from_secs(4));

/// What a worker is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) process: u32,
    pub(crate) fault: Fault,
    pub(crate) redis: String,
    pub(crate) sql: String,
    /// Made when the worker is ready.
    pub(crate) log: PathBuf,
    pub(crate) seed: u64,
}

/// Becomes a worker, if this process was started as one: works from the first line of its input until the
/// last.
pub(crate) async fn main() {
    let Ok(task) = std::env::var(VARIABLE) else { return };
    let Task { process, fault, redis, sql, log: path, seed } = serde_json::from_str(&task).unwrap();
    let mut random = Random::from_seed(seed);
    let [ready, held] = ["ready", "held"].map(|what| path.with_extension(what));
    let log = Arc::new(Log::create(path, process).unwrap());
    let rows = Rows::connect(&sql, &log, random.fork()).await;
    let (begin, begun) = watch::channel(false);
    let over = Arc::new(AtomicU64::new(u64::MAX));
    let mut numbers = u64::from(process) * 100..;
    let mut sessions = Vec::new();
    for case in Case::under(fault) {
        let table = case.table(fault, &redis, &rows).await;
        let near = Arc::new(AtomicU64::new(0));
        let works =
            Works::of(case, fault).into_iter().zip(&mut numbers).map(|(works, number)| Session {
                table: table.clone(),
                case,
                works,
                number,
                log: Arc::clone(&log),
                over: Arc::clone(&over),
                near: Arc::clone(&near),
                random: random.fork(),
            });
        let works: Vec<_> = works.collect();
        let mut begun = begun.clone();
        sessions.push(tokio::spawn(async move {
            begun.wait_for(|begun| *begun).await.unwrap();
            let works: Vec<_> = works.into_iter().map(|one| tokio::spawn(one.run())).collect();
            for session in works {
                session.await.unwrap();
            }
            let counted = table.cache().stats().first_hits;
            assert_eq!(counted, near.load(Ordering::SeqCst), "{case}: what came from near");
        }));
    }
    std::fs::write(ready, "").unwrap();
    std::thread::spawn(move || {
        let mut lines = std::io::stdin().lock().lines();
        if lines.next().is_some() {
            let _ = begin.send(true);
        }
        while let Some(Ok(line)) = lines.next() {
            match line.strip_prefix(HOLD) {
                Some(prefix) => rows.hold(prefix.to_owned(), held.clone()),
                None => return over.store(Instant::now().as_nanos(), Ordering::SeqCst),
            }
        }
        // Nobody wants to know any more.
        std::process::exit(1);
    });
    for session in sessions {
        session.await.unwrap();
    }
}

/// What a session does.
struct Works {
    keys: Vec<String>,
    /// Out of so many things four are writes; 0: it only reads.
    writes: u64,
    /// The longest time between two of them.
    pause: Duration,
}

impl Works {
    /// Those of one process. What is changed all the time is never near, so before a first level it is changed less often;
    /// and where some do not hear of it, they leave the last key alone, so that all have copies when it is changed. Who
    /// waits for one key cannot see what the first level has of another, so somebody reads each.
    fn of(case: Case, fault: Fault) -> Vec<Self> {
        let mut keys: Vec<String> = case.keys().collect();
        let pause = Duration::from_millis(3);
        if case.first.is_none() {
            return vec![Self { keys, writes: 20, pause }];
        }
        let reads = |key| Self { keys: vec![key], writes: 0, pause: Duration::from_millis(10) };
        let mut all: Vec<_> = case.keys().map(reads).collect();
        if fault == Fault::CutOff {
            keys.pop();
        }
        all.push(Self { keys, writes: 60, pause });
        all
    }
}

struct Session {
    table: Table,
    case: Case,
    works: Works,
    number: u64,
    log: Arc<Log>,
    /// When the time was over.
    over: Arc<AtomicU64>,
    /// How many reads the first level answered.
    near: Arc<AtomicU64>,
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
            let keys = self.works.keys.len() as u64;
            let key = &self.works.keys[usize::try_from(self.random.below(keys)).unwrap()];
            let what = match self.works.writes {
                0 => u64::MAX,
                writes => self.random.below(writes),
            };
            match what {
                0 if self.case.strategy != Strategy::WriteBehind => self.write(key, None).await,
                0..4 => self.write(key, Some(self.value(done))).await,
                _ => self.read(key).await,
            }
            sleep(self.random.duration(self.works.pause)).await;
        }
    }

    /// One that nobody else writes.
    fn value(&self, number: u32) -> i64 {
        (self.number << 32).cast_signed() + i64::from(number)
    }

    async fn write(&self, key: &String, value: Option<i64>) {
        write(&self.table, key, value, &self.log, self.number).await;
    }

    async fn read(&self, key: &String) {
        let source = read(&self.table, key, &self.log, self.number, Kind::Read).await;
        self.near.fetch_add(u64::from(source == Some(Source::L1)), Ordering::SeqCst);
    }
}

/// Writes, and writes it down.
pub(crate) async fn write(
    table: &Table,
    key: &String,
    value: Option<i64>,
    log: &Log,
    session: u64,
) {
    let kind = if value.is_some() { Kind::Write } else { Kind::Delete };
    let write = log.begin(session, key, kind);
    let behind = table.strategy() == Strategy::WriteBehind;
    match table.write(key, value).await {
        // It has no version yet; what it has then is found by its value.
        Ok(_) if behind => write.wrote(value.unwrap_or_default().cast_unsigned()),
        Err(Error::Commit(_)) if behind => write.unknown(value.map(i64::cast_unsigned)),
        Ok(written) => write.wrote(written.version),
        Err(Error::Committed { version, .. }) => write.unknown(Some(version)),
        Err(Error::Commit(_)) => write.unknown(None),
        Err(_) => write.failed(),
    }
}

/// By what a read is known: the version, or where there may be none yet, the value.
pub(crate) fn seen(strategy: Strategy, found: &Read<i64>) -> u64 {
    match strategy {
        Strategy::WriteBehind => found.value.as_deref().map_or(0, |value| value.cast_unsigned()),
        _ => found.version,
    }
}

/// Reads, and writes it down; where that came from.
pub(crate) async fn read(
    table: &Table,
    key: &String,
    log: &Log,
    session: u64,
    kind: Kind,
) -> Option<Source> {
    let read = log.begin(session, key, kind);
    match table.read(key).await {
        Ok(found) => {
            let source = match found.source {
                From::First => Source::L1,
                From::Hit => Source::L2,
                From::Stale => Source::Stale,
                _ => Source::Fill,
            };
            read.found(Some(seen(table.strategy(), &found)), source);
            Some(source)
        }
        Err(_) => {
            read.failed();
            None
        }
    }
}
