//! A consumer that stands still in the middle of a write, and goes on when others have overtaken it.

use std::collections::BTreeMap;
use std::time::Duration;

use testkit::database::System;
use testkit::server;
use testkit::signal;
use testkit::wait::{LONG, eventually, soon};

use crate::killed::{Verdict, judge};
use crate::rows::{self, Rows, go_on, made};
use crate::worker::{Task, Worker, is_ready, through};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_wakes_up_late_changes_nothing_in_postgres() {
    let (verdict, value) = late(System::Postgres, true).await;
    assert_eq!((verdict, value), (Verdict::default(), 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_wakes_up_late_changes_nothing_in_mariadb() {
    let (verdict, value) = late(System::MariaDb, true).await;
    assert_eq!((verdict, value), (Verdict::default(), 3));
}

/// Else we would be blind: the same, with a database that does not compare orders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_would_if_the_database_ignored_the_order() {
    for system in [System::Postgres, System::MariaDb] {
        let (verdict, value) = late(system, false).await;
        assert_eq!(verdict, Verdict { lost: 0, repeated: 1, turned: 1 });
        assert_eq!(value, 1, "the first write has come back");
    }
}

async fn late(system: System, heeds: bool) -> (Verdict, i64) {
    let redis_server = server::redis(&[]).await;
    let database = system.shared().await;
    let name = format!("late_{heeds}");
    let sql = rows::make(&database, system, &name, 1);
    let redis = format!("redis://{}", redis_server.address());
    let folder = tempfile::tempdir().unwrap();
    let stands = folder.path().join("stands");
    let task = |who: i64, stands| {
        let ready = folder.path().join(who.to_string());
        Task { redis: redis.clone(), sql: sql.clone(), who, heeds, stands, ready }
    };
    let through = through(&redis, Rows::connect(&sql, 0, heeds, None).await).await;
    let old = Worker::spawn(&task(1, Some(stands.clone())));
    let first = through.write(&0, Some(1)).await.unwrap();
    eventually("it is in the middle of a write", async || stands.exists()).await;
    signal::stop(&old.child);
    let _new = Worker::spawn(&task(2, None));
    is_ready(&task(2, None).ready).await;
    for value in 2..=3 {
        let accepted = through.write(&0, Some(value)).await.unwrap();
        soon("another one goes on", through.applied(accepted.order, LONG)).await.unwrap();
    }
    through.applied(first.order, Duration::ZERO).await.unwrap();
    std::fs::write(go_on(&stands), "").unwrap();
    signal::go_on(&old.child);
    eventually("it has woken up", async || made(&stands).exists()).await;
    let verdict = judge(&rows::history(&database, &name), &BTreeMap::from([(0, 3)]));
    // Whatever it told the cache, those who read only that get what the database has.
    let value = rows::values(&database, &name)[&0];
    if heeds {
        let agrees = async || {
            let read = through.get(&0).await.unwrap();
            read.is_some_and(|read| read.value.as_deref() == Some(&value))
        };
        eventually("the cache has it", agrees).await;
    }
    (verdict, value)
}
