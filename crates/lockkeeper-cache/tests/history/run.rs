//! One run: eight processes work, something is done to Redis, and then everything that happened is judged.

use std::collections::HashMap;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::clock::Instant;
use lockkeeper_cache::Strategy;
use testkit::database::Database;
use testkit::random::Random;
use testkit::staleness::{Kind, Log, Operation, Outcome, Row, Source, check, read};
use testkit::wait::{eventually, soon};
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::faults::{Fault, Servers};
use crate::rows::Rows;
use crate::worker::{self, STRATEGIES, Task};

const PROCESSES: u32 = 8;

/// So long after the last write a key may be behind the database before it counts as stuck.
const SETTLE: Duration = Duration::from_millis(600);

fn spawn(task: &Task) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker_in_a_process_of_its_own", "--nocapture"])
        .env(worker::VARIABLE, serde_json::to_string(task).unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Who works. Their input ends with us, and so do they.
struct Workers(Vec<Child>);

impl Workers {
    async fn start(tasks: &[Task]) -> Self {
        let mut workers = Self(tasks.iter().map(spawn).collect());
        for task in tasks {
            let ready = task.log.with_extension("ready");
            eventually("a worker is ready", async || ready.exists()).await;
        }
        for worker in &mut workers.0 {
            worker.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        }
        workers
    }

    async fn end(self) {
        let mut workers = self.0;
        for worker in &mut workers {
            worker.stdin.as_mut().unwrap().write_all(b"stop\n").unwrap();
        }
        for worker in workers {
            let worker = Mutex::new(worker);
            let ended = async || worker.lock().await.try_wait().unwrap();
            eventually("a worker ends", async || ended().await.is_some()).await;
            assert!(ended().await.unwrap().success());
        }
    }
}

/// What each strategy did.
pub(crate) async fn run(database: &Database, fault: Fault, time: Duration) -> Vec<Row> {
    let mut random = Random::seeded();
    let folder = tempfile::tempdir().unwrap();
    let mut servers = Servers::start(fault).await;
    let (redis, sql) = (format!("redis://{}", servers.address()), database.url("here"));
    let tasks: Vec<Task> = (1..=PROCESSES)
        .map(|process| {
            let (redis, sql, log) =
                (redis.clone(), sql.clone(), folder.path().join(process.to_string()));
            Task { process, redis, sql, log, seed: random.below(u64::MAX) }
        })
        .collect();
    let own = folder.path().join("0");
    let log = Arc::new(Log::create(&own, 0).unwrap());
    let rows = Rows::connect(&sql, &log, random).await;
    let keys: Vec<String> = STRATEGIES.into_iter().flat_map(worker::keys).collect();
    let first: Vec<_> = keys.iter().map(|key| log.begin(0, key, Kind::Write)).collect();
    rows.make(&keys).await;
    first.into_iter().for_each(|write| write.wrote(1));

    let workers = Workers::start(&tasks).await;
    servers.play(time).await;
    workers.end().await;
    join_all(STRATEGIES.map(|strategy| look_again(strategy, &redis, &rows, &log))).await;
    let mut history = read(tasks.iter().map(|task| &task.log).chain([&own])).unwrap();
    let lost = name_versions(&mut history, &rows.changes().await);
    let report = |strategy: Strategy| {
        let prefix = format!("{strategy}/");
        let ours = history.iter().filter(|operation| operation.key.starts_with(&prefix));
        let mut report = check(&ours.cloned().collect::<Vec<_>>()).unwrap();
        if strategy == Strategy::WriteBehind {
            report.lost += lost;
        }
        Row { strategy: strategy.to_string(), fault: fault.to_string(), report }
    };
    STRATEGIES.into_iter().map(report).collect()
}

/// Gives what was known by its value the version that the database gave it: its place among the changes of the key. How
/// many writes were acknowledged and never came there.
fn name_versions(history: &mut [Operation], changes: &[(String, i64)]) -> u64 {
    let mut versions: HashMap<(&str, u64), u64> = HashMap::new();
    let (mut key, mut version) = ("", 0);
    for (of, value) in changes {
        version = if of == key { version + 1 } else { 2 };
        key = of;
        versions.insert((key, value.cast_unsigned()), version);
    }
    let mut lost = 0;
    let prefix = worker::key(Strategy::WriteBehind, 0).replace('0', "");
    for operation in history.iter_mut().filter(|operation| operation.key.starts_with(&prefix)) {
        let known = match operation.version {
            // What was there at first, as it is written and as it is read.
            Some(0 | 1) => Some(1),
            Some(value) => versions.get(&(operation.key.as_str(), value)).copied(),
            None => continue,
        };
        if known.is_none() && operation.kind.writes() {
            lost += u64::from(operation.outcome == Outcome::Ok);
            operation.outcome = Outcome::Fail;
        }
        // A read of what never came to the database stays what it is: nobody wrote that.
        if known.is_some() || operation.kind.writes() || operation.kind == Kind::Load {
            operation.version = known;
        }
    }
    lost
}

/// The last look at each key, through the cache and past it, when all is quiet. What is not in order by then stays so
/// until it is no longer kept.
async fn look_again(strategy: Strategy, redis: &str, rows: &Rows, log: &Log) {
    let table = worker::table(strategy, redis, rows).await;
    if strategy == Strategy::WriteBehind {
        soon("all changes are in the database", table.flush()).await.unwrap();
    }
    for key in worker::keys(strategy) {
        let since = Instant::now();
        let truth = loop {
            let (version, value) = rows.read(&key).await.unwrap();
            let truth = match strategy {
                Strategy::WriteBehind => value.unwrap_or_default().cast_unsigned(),
                _ => version.cast_unsigned(),
            };
            let found = table.read(&key).await;
            let behind = found.is_ok_and(|found| worker::seen(strategy, &found) != truth);
            if !behind || Instant::now().since(since) > SETTLE {
                break truth;
            }
            sleep(Duration::from_millis(10)).await;
        };
        worker::read(&table, &key, log, 1, Kind::Final).await;
        log.begin(1, &key, Kind::Truth).found(Some(truth), Source::Db);
    }
}
