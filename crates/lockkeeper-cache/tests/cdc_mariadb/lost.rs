//! Logs that are not there any more, and servers that go away.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_cache::cdc::{LogError, MariaDb, Position, Source};

use crate::reader::{Place, start};

const T: &str = "CREATE TABLE t (id INT PRIMARY KEY)";

async fn place() -> Place {
    Place::new(Arc::new(start(&[]).await), &["t id"], T)
}

async fn is_lost(place: &Place, position: Option<&Position>) {
    match place.try_open(position).await.map(|_| ()) {
        Err(LogError::Lost(_)) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purged_log_is_lost() {
    let place = place().await;
    let mut reader = place.open(None).await;
    place.sql("INSERT INTO t VALUES (1)");
    reader.told(&place).await;
    let position = reader.position.clone();
    drop(reader);
    place.sql("INSERT INTO t VALUES (2); FLUSH BINARY LOGS; INSERT INTO t VALUES (3)");
    testkit::wait::eventually("it is purged", || async {
        place.sql("PURGE BINARY LOGS TO 'bin.000002'");
        place.sql("SHOW BINARY LOGS").lines().count() == 1
    })
    .await;
    is_lost(&place, position.as_ref()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_was_begun_anew_is_lost_though_it_has_come_as_far() {
    let place = place().await;
    // The same transactions at the same places.
    place.sql("RESET MASTER; INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)");
    let position = place.open(None).await.position;
    drop(place.open(position.as_ref()).await);
    let second = place.sql("SELECT UNIX_TIMESTAMP()");
    testkit::wait::eventually("a second passes", || async {
        place.sql("SELECT UNIX_TIMESTAMP()") != second
    })
    .await;
    place.sql("DELETE FROM t; RESET MASTER; INSERT INTO t VALUES (1)");
    is_lost(&place, position.as_ref()).await;
    place.sql("INSERT INTO t VALUES (2)");
    is_lost(&place, position.as_ref()).await;
    place.sql("INSERT INTO t VALUES (3)");
    is_lost(&place, position.as_ref()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_is_another_log() {
    let place = place().await;
    let position = place.open(None).await.position.unwrap();
    let other = Position(position.0.replacen("mariadb 1 1 ", "mariadb 1 2 ", 1));
    assert_ne!(position, other);
    is_lost(&place, Some(&other)).await;
    is_lost(&place, Some(&Position("0/16B3748".into()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_files_and_restarts_do_not_matter() {
    let place = place().await;
    let mut reader = place.open(None).await;
    place.sql(
        "INSERT INTO t VALUES (1); FLUSH BINARY LOGS; INSERT INTO t VALUES (2); FLUSH BINARY LOGS",
    );
    assert_eq!(reader.told(&place).await, ["t +1", "t +2"]);
    place.sql("FLUSH BINARY LOGS");
    let mut place = place;
    Arc::get_mut(&mut place.database).unwrap().server.restart().await;
    match reader.error().await {
        LogError::Failed(_) => {}
        other => panic!("{other}"),
    }
    place.sql("INSERT INTO t VALUES (3)");
    let mut reader = place.open(reader.position.as_ref()).await;
    assert_eq!(reader.told(&place).await, ["t +3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_readers_with_one_number_throw_each_other_out() {
    let place = place().await;
    let open = || async {
        let source = MariaDb::new(&place.database.url("")).unwrap().server_id(4_000_000_000);
        source.open(None, &place.wanted).await.unwrap()
    };
    let mut first = open().await;
    first.next().await.unwrap();
    let mut second = open().await;
    second.next().await.unwrap();
    let mut error = None;
    for _ in 0..20 {
        if let Err(failed) = first.next().await {
            error = Some(failed);
            break;
        }
    }
    let error = error.expect("the older one is thrown out");
    assert!(error.to_string().contains("server_id"), "{error}");
    place.sql("INSERT INTO t VALUES (1)");
    while second.next().await.unwrap().changes.is_empty() {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_noticed() {
    let place = place().await;
    let mut reader = place.open(None).await;
    reader.told(&place).await;
    place.database.server.pause();
    let since = lockkeeper::clock::Instant::now();
    let error = reader.error().await;
    place.database.server.resume();
    assert!(matches!(error, LogError::Failed(_)), "{error}");
    assert!(lockkeeper::clock::Instant::now().since(since) < Duration::from_secs(30));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_refused_and_not_shown() {
    let place = place().await;
    place.sql("CREATE USER app IDENTIFIED BY 'right'");
    let source = MariaDb::new(&place.database.url_of("app:verysecret", "")).unwrap();
    let error = source.open(None, &place.wanted).await.unwrap_err();
    assert!(matches!(error, LogError::Refused(_)), "{error}");
    assert!(!format!("{error} {error:?} {source:?}").contains("verysecret"));
    let bad = MariaDb::new("mysql://app:verysecret@[/x").unwrap_err();
    assert!(!format!("{bad} {bad:?}").contains("verysecret"));
}
