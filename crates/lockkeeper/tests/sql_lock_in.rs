//! Locks that end with the caller's transaction.
#![cfg(all(feature = "mysql", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Error, Locks};
use testkit::database::{Database, System};
use testkit::wait::{LONG, eventually, soon};

/// The cases on one system: sqlx has a type for each.
macro_rules! on {
    ($module:ident, $system:expr, $options:ty, $pool:ty, $setting:expr) => {
        mod $module {
            use super::*;

            /// Locks, a pool of the caller's, and the server.
            async fn start(prefix: &str) -> (Locks, $pool, Arc<Database>) {
                let database = $system.shared().await;
                let url = database.url("here");
                Locks::init(&url).await.unwrap();
                let options: $options = url.parse().unwrap();
                let locks = format!("{url}?mode=session&prefix={}/{prefix}/", stringify!($module));
                let pool = <$pool>::connect_with(options).await.unwrap();
                (Locks::connect(&locks).await.unwrap(), pool, database)
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn the_end_of_a_transaction_frees_its_lock() {
                let (locks, pool, _database) = start("end").await;
                let mut last = None;
                for end in 0..3 {
                    let mut one = pool.begin().await.unwrap();
                    let token = locks.lock_in(&mut one, "x", Duration::ZERO).await.unwrap();
                    // Also when the one before was rolled back.
                    assert!(last < Some(token), "{last:?} {token}");
                    let mut two = pool.begin().await.unwrap();
                    let busy = locks.lock_in(&mut two, "x", Duration::ZERO).await;
                    assert!(matches!(busy, Err(Error::Timeout { .. })), "{busy:?}");
                    let again = locks.lock_in(&mut one, "x", Duration::ZERO).await.unwrap();
                    assert!(again > token, "it may take it twice");
                    let locks = locks.clone();
                    let waiting = tokio::spawn(async move {
                        let token = locks.lock_in(&mut two, "x", LONG).await.unwrap();
                        two.commit().await.unwrap();
                        token
                    });
                    match end {
                        0 => one.commit().await.unwrap(),
                        1 => one.rollback().await.unwrap(),
                        // The connection is closed with the transaction open.
                        _ => drop(one),
                    }
                    let next = soon("free", waiting).await.unwrap();
                    assert!(next > again);
                    last = Some(next);
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_deadline_is_kept_and_the_transaction_goes_on() {
                let (locks, pool, _database) = start("deadline").await;
                let mut one = pool.begin().await.unwrap();
                locks.lock_in(&mut one, "x", Duration::ZERO).await.unwrap();
                let mut two = pool.begin().await.unwrap();
                sqlx::raw_sql("CREATE TEMPORARY TABLE work (n INT)")
                    .execute(&mut *two)
                    .await
                    .unwrap();
                sqlx::raw_sql("INSERT INTO work VALUES (1)").execute(&mut *two).await.unwrap();
                let setting = async |two: &mut sqlx::Transaction<'_, _>| -> String {
                    let row = sqlx::raw_sql($setting).fetch_one(&mut **two).await.unwrap();
                    sqlx::Row::get(&row, 0)
                };
                let before = setting(&mut two).await;
                for millis in [100, 1300] {
                    let wait = Duration::from_millis(millis);
                    let since = Instant::now();
                    let error = locks.lock_in(&mut two, "x", wait).await.unwrap_err();
                    let took = Instant::now().since(since);
                    assert!(matches!(error, Error::Timeout { .. }), "{error}");
                    assert!(took >= wait && took < wait + Duration::from_secs(1), "{took:?}");
                    assert_eq!(setting(&mut two).await, before, "as it was");
                }
                one.commit().await.unwrap();
                locks.lock_in(&mut two, "x", LONG).await.unwrap();
                assert_eq!(setting(&mut two).await, before, "as it was");
                let row = sqlx::raw_sql("SELECT n FROM work").fetch_one(&mut *two).await.unwrap();
                assert_eq!(sqlx::Row::get::<i32, _>(&row, 0), 1, "nothing is lost");
                two.commit().await.unwrap();
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn never_two_transactions_at_once() {
                let (locks, pool, _database) = start("crowd").await;
                let inside = Arc::new(tokio::sync::Mutex::new(0));
                let workers: Vec<_> = (0..6)
                    .map(|at: usize| {
                        let (locks, pool, inside) = (locks.clone(), pool.clone(), inside.clone());
                        tokio::spawn(async move {
                            for round in 0..10 {
                                let mut mine = pool.begin().await.unwrap();
                                let token = locks.lock_in(&mut mine, "x", LONG).await.unwrap();
                                let mut last = inside.try_lock().expect("alone");
                                assert!(token.get() > *last, "{token} after {last}");
                                *last = token.get();
                                drop(last);
                                match (at + round) % 2 {
                                    0 => mine.commit().await.unwrap(),
                                    _ => mine.rollback().await.unwrap(),
                                }
                            }
                        })
                    })
                    .collect();
                for worker in workers {
                    soon("all of them", worker).await.unwrap();
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn the_victim_of_a_deadlock_is_told_what_to_do() {
                let (locks, pool, _database) = start("circle").await;
                let (mut one, mut two) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
                locks.lock_in(&mut one, "a", LONG).await.unwrap();
                locks.lock_in(&mut two, "b", LONG).await.unwrap();
                let (first, second) = {
                    let first = async {
                        let first = locks.lock_in(&mut one, "b", LONG).await;
                        one.rollback().await.unwrap();
                        first
                    };
                    let second = async {
                        let second = locks.lock_in(&mut two, "a", LONG).await;
                        two.rollback().await.unwrap();
                        second
                    };
                    soon("one of them", async { tokio::join!(first, second) }).await
                };
                let error = match (first, second) {
                    (Err(error), Ok(_)) | (Ok(_), Err(error)) => error.to_string(),
                    both => panic!("{both:?}"),
                };
                assert!(error.contains("deadlock") && error.contains("begin again"), "{error}");
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn what_does_not_fit_is_refused() {
                let (locks, pool, _database) = start("fit").await;
                let database = $system.shared().await;
                let mut mine = pool.begin().await.unwrap();
                let lease = Locks::connect(&database.url("here")).await.unwrap();
                let error = lease.lock_in(&mut mine, "x", LONG).await.unwrap_err();
                assert!(matches!(error, Error::Unsupported { .. }), "{error}");
                assert!(error.to_string().contains("mode=session"), "{error}");
                let url = database.url("elsewhere");
                Locks::init(&url).await.unwrap();
                let elsewhere = Locks::connect(&format!("{url}?mode=session")).await.unwrap();
                let error = elsewhere.lock_in(&mut mine, "x", LONG).await.unwrap_err();
                assert!(matches!(error, Error::Config(_)), "{error}");
                let error = Locks::memory().lock_in(&mut mine, "x", LONG).await.unwrap_err();
                assert!(matches!(error, Error::Unsupported { .. }), "{error}");
                let error = locks.lock_in(&mut mine, "../x", LONG).await.unwrap_err();
                assert!(matches!(error, Error::InvalidName { .. }), "{error}");
                locks.lock_in(&mut mine, "x", LONG).await.unwrap();
            }
        }
    };
}

on!(
    postgres,
    System::Postgres,
    sqlx::postgres::PgConnectOptions,
    sqlx::PgPool,
    "SELECT current_setting('lock_timeout')"
);
on!(
    mariadb,
    System::MariaDb,
    sqlx::mysql::MySqlConnectOptions,
    sqlx::MySqlPool,
    "SELECT CAST(@@innodb_lock_wait_timeout AS CHAR)"
);

/// In PostgreSQL a transaction and a guard exclude each other, both ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_and_guards_exclude_each_other() {
    let database = System::Postgres.shared().await;
    let url = database.url("here");
    Locks::init(&url).await.unwrap();
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let locks = Locks::connect(&format!("{url}?mode=session&prefix=both/")).await.unwrap();
    let guard = locks.mutex("x").lock().await.unwrap();
    let mut mine = pool.begin().await.unwrap();
    // By a server that tells it in a moment.
    let named = async {
        loop {
            let busy = locks.lock_in(&mut mine, "x", Duration::ZERO).await.unwrap_err();
            let Error::Timeout { held_by, .. } = busy else { panic!("{busy}") };
            if !held_by.is_empty() {
                return held_by;
            }
        }
    };
    assert_eq!(soon("the holder is named", named).await, [guard.owner().clone()]);
    let token = guard.token();
    guard.release().await.unwrap();
    let ours = locks.lock_in(&mut mine, "x", LONG).await.unwrap();
    assert!(ours > token);
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    assert!(locks.rw_lock("x").try_read().await.unwrap().is_none());
    let mutex = locks.mutex("x");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let name = "x".parse().unwrap();
    let queued = async || locks.admin().show(&name).await.unwrap().waiters.len() == 1;
    eventually("in line", queued).await;
    mine.commit().await.unwrap();
    let next = soon("its turn", waiting).await.unwrap().unwrap();
    assert!(next.token() > ours);
    next.release().await.unwrap();
}
