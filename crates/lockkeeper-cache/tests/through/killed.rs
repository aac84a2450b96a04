//! Consumers are killed at random while others write: everything is applied once, and in its order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::clock::Instant;
use lockkeeper_cache::Error;
use testkit::database::System;
use testkit::random::Random;
use testkit::resp::Raw;
use testkit::server;
use testkit::wait::within;
use tokio::time::sleep;

use crate::rows::{self, Rows};
use crate::worker::{Task, Worker, is_ready, through};

const KEYS: u32 = 20;
const TIME: Duration = Duration::from_secs(15);

/// What is wrong with a history.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Writes that were accepted and never applied.
    pub(crate) lost: usize,
    /// Writes that were applied once more.
    pub(crate) repeated: usize,
    /// Writes that were applied after a later one.
    pub(crate) turned: usize,
}

/// The writes of each row were 1, 2, 3 and so on, up to this.
pub(crate) fn judge(history: &[(u32, i64, i64)], written: &BTreeMap<u32, i64>) -> Verdict {
    let mut verdict = Verdict::default();
    for (id, last) in written {
        let of_it: Vec<i64> =
            history.iter().filter(|(row, ..)| row == id).map(|(_, value, _)| *value).collect();
        let once: BTreeSet<i64> = of_it.iter().copied().collect();
        verdict.lost += (1..=*last).filter(|value| !once.contains(value)).count();
        verdict.repeated += of_it.len() - once.len();
        verdict.turned += of_it.windows(2).filter(|pair| pair[1] < pair[0]).count();
    }
    verdict
}

#[test]
fn a_bad_history_is_called_bad() {
    let judged = |values: &[i64]| {
        let history: Vec<_> = values.iter().map(|value| (7, *value, 0)).collect();
        let Verdict { lost, repeated, turned } = judge(&history, &BTreeMap::from([(7, 3)]));
        (lost, repeated, turned)
    };
    assert_eq!(judged(&[1, 2, 3]), (0, 0, 0));
    assert_eq!(judged(&[1, 3]), (1, 0, 0));
    assert_eq!(judged(&[1, 2, 2, 3]), (0, 1, 0));
    assert_eq!(judged(&[2, 1, 3]), (0, 0, 1));
    assert_eq!(judged(&[1, 2, 3, 1]), (0, 1, 1));
    assert_eq!(judged(&[]), (3, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_postgres_nothing_is_lost_or_turned_around() {
    killed(System::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_mariadb_nothing_is_lost_or_turned_around() {
    killed(System::MariaDb).await;
}

async fn killed(system: System) {
    let mut random = Random::seeded();
    let redis_server = server::redis(&[]).await;
    let database = system.shared().await;
    let sql = rows::make(&database, system, "killed", KEYS);
    let redis = format!("redis://{}", redis_server.address());
    let folder = tempfile::tempdir().unwrap();
    let task = |who: i64| {
        let ready = folder.path().join(who.to_string());
        let (redis, sql) = (redis.clone(), sql.clone());
        Task { redis, sql, who, heeds: true, stands: None, ready }
    };
    let mut workers: Vec<Worker> = (1..=3).map(|who| Worker::spawn(&task(who))).collect();
    for who in 1..=3 {
        is_ready(&task(who).ready).await;
    }
    let through = through(&redis, Rows::connect(&sql, 0, true, None).await).await;
    let begun = Instant::now();
    let writing = join_all((0..KEYS).map(async |id| {
        let mut last = 0;
        while Instant::now().since(begun) < TIME {
            match through.write(&id, Some(last + 1)).await {
                Ok(_) => last += 1,
                Err(Error::Busy { retry_after }) => sleep(retry_after).await,
                Err(error) => panic!("{error:?}"),
            }
        }
        (id, last)
    }));
    let killing = async {
        let mut killed = 0;
        while Instant::now().since(begun) < TIME {
            sleep(Duration::from_millis(200) + random.duration(Duration::from_millis(600))).await;
            let at = usize::try_from(random.below(3)).unwrap();
            killed += 1;
            // The old one is dead before there is a new one.
            workers[at] = {
                let _ = workers[at].child.kill();
                Worker::spawn(&task(3 + killed))
            };
        }
        killed
    };
    let (written, killed) = tokio::join!(writing, killing);
    let written: BTreeMap<u32, i64> = written.into_iter().collect();
    let empty = async || through.backlog().await.unwrap().pending == 0;
    within(Duration::from_secs(60), "everything is applied", empty).await;
    let history = rows::history(&database, "killed");
    let by: BTreeSet<i64> = history.iter().map(|(_, _, who)| *who).collect();
    let sum: i64 = written.values().sum();
    eprintln!("{system:?}: {sum} writes, {killed} killed, {} of them had applied", by.len());
    assert_eq!(judge(&history, &written), Verdict::default());
    assert_eq!(rows::values(&database, "killed"), written);
    assert!(by.len() > 3, "nobody took over");
    assert!(sum > 500, "hardly anything was written");
    // And those who read only the cache have the last ones.
    for (id, last) in written {
        let read = through.get(&id).await.unwrap().unwrap();
        assert_eq!(read.value.as_deref(), Some(&last));
    }
    assert_eq!(through.backlog().await.unwrap().letters, 0);
    // Whoever was killed, wherever: of all that is in the queue's place only the queue has no end.
    let raw = Raw::connect(redis_server.address()).await;
    assert_eq!(raw.immortal().await, ["{t}!queue"]);
}
