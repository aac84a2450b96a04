//! One run: eight processes work, something is done to Redis or to them, and then everything that happened is judged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::clock::Instant;
use lockkeeper_cache::Strategy;
use testkit::database::Database;
use testkit::random::Random;
use testkit::staleness::{Kind, Log, Operation, Outcome, Report, Source, check, read};
use testkit::wait::soon;
use tokio::time::sleep;

use crate::cases::{BOUND, Case, Table};
use crate::faults::{Fault, Servers};
use crate::rows::Rows;
use crate::worker::{self, Task};
use crate::workers::Workers;

const PROCESSES: u32 = 8;

/// So long after the last write a key may be behind the database before it counts as stuck.
const SETTLE: Duration = Duration::from_millis(600);

/// What each case did.
pub(crate) async fn run(database: &Database, fault: Fault, time: Duration) -> Vec<(Case, Report)> {
    let mut random = Random::seeded();
    let folder = tempfile::tempdir().unwrap();
    let mut servers = Servers::start(fault).await;
    let (redis, sql) = (format!("redis://{}", servers.address()), database.url("here"));
    let tasks = (1..=PROCESSES).map(|process| {
        let (redis, sql) = (format!("redis://{}", servers.way(process)), sql.clone());
        let (log, seed) = (folder.path().join(process.to_string()), random.below(u64::MAX));
        Task { process, fault, redis, sql, log, seed }
    });
    let tasks: Vec<Task> = tasks.collect();
    let own = folder.path().join("0");
    let log = Arc::new(Log::create(&own, 0).unwrap());
    let rows = Rows::connect(&sql, &log, random.fork()).await;
    let keys: Vec<String> = Case::under(fault).flat_map(Case::keys).collect();
    let first: Vec<_> = keys.iter().map(|key| log.begin(0, key, Kind::Write)).collect();
    rows.make(&keys).await;
    first.into_iter().for_each(|write| write.wrote(1));

    let mut workers = Workers::start(tasks).await;
    match fault {
        Fault::CutOff => {
            let tables = join_all(
                [Case::FIRST, Case::LOOSE]
                    .map(async |case| (case, case.table(fault, &redis, &rows).await)),
            );
            let tables = tables.await;
            servers.cut_off(time, BOUND * 2, async || write_all(&tables, &log).await).await;
        }
        Fault::WorkerKilled => workers.kill(time, &mut random, &log).await,
        _ => servers.play(time).await,
    }
    let logs = workers.end().await;
    join_all(Case::under(fault).map(|case| look_again(case, fault, &redis, &rows, &log))).await;
    let mut history = read(logs.iter().chain([&own])).unwrap();
    let lost = name_versions(&mut history, &rows.changes().await);
    let report = |case: Case| {
        let prefix = format!("{case}/");
        let ours = history.iter().filter(|operation| operation.key.starts_with(&prefix));
        let mut ours: Vec<_> = ours.cloned().collect();
        if case.first.is_some() {
            // What one session has written no other of its process misses either.
            ours.iter_mut().for_each(|one| one.session = u64::from(one.process));
        }
        let mut report = check(&ours).unwrap();
        if case.strategy == Strategy::WriteBehind {
            report.lost += lost;
        }
        (case, report)
    };
    Case::under(fault).map(report).collect()
}

/// A write of each key of these. Who has copies and does not hear of it has old ones from now on.
async fn write_all(tables: &[(Case, Table)], log: &Log) {
    let writes = tables.iter().flat_map(|(case, table)| {
        case.keys().map(async move |key| worker::write(table, &key, Some(0), log, 0).await)
    });
    join_all(writes).await;
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
    let prefix = format!("{}/", Strategy::WriteBehind);
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
async fn look_again(case: Case, fault: Fault, redis: &str, rows: &Rows, log: &Log) {
    let (strategy, table) = (case.strategy, case.table(fault, redis, rows).await);
    if strategy == Strategy::WriteBehind {
        soon("all changes are in the database", table.flush()).await.unwrap();
    }
    for key in case.keys() {
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
