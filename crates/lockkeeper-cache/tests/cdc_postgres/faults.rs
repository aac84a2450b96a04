//! Connections that cannot be had, or that die.

use std::process::Command;
use std::time::Duration;

use lockkeeper_cache::cdc::postgres::Postgres;
use lockkeeper_cache::cdc::{LogError, Source};
use testkit::proxy::Proxy;
use testkit::wait::soon;

use crate::harness::{Place, until_error};

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY)";

#[tokio::test]
async fn a_url_that_makes_no_sense_is_refused_and_the_password_is_never_shown() {
    for url in ["", "x", "postgres://", "mysql://me:secret@h/d", "postgres://me:secret@h:port/d"] {
        let error = Postgres::new(url).unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
    let source = Postgres::new("postgres://me:secret@127.0.0.1:1/shop").unwrap();
    assert!(!format!("{source:?}").contains("secret"), "{source:?}");
    let error = source.open(None, &crate::harness::wanted(&[])).await.unwrap_err();
    assert!(matches!(error, LogError::Failed(_)), "{error:?}");
    assert!(!format!("{error:?} {error}").contains("secret"), "{error:?}");
}

#[tokio::test]
async fn passwords_are_checked_by_the_server_on_both_connections() {
    let place =
        Place::alone(&["-cpassword_encryption=scram-sha-256"], &[ITEMS], &["items id"]).await;
    place.sql("CREATE ROLE app LOGIN REPLICATION PASSWORD 'se%cret'");
    let hba = place.server.server.dir().join("data/pg_hba.conf");
    let lines = "host all app all scram-sha-256\nhost all postgres all trust\n";
    std::fs::write(&hba, lines).unwrap();
    place.sql("SELECT pg_reload_conf()");
    let source = |word: &str| {
        let url = place.server.url_of(&format!("app{word}"), &place.name);
        Postgres::new(&url).unwrap().slot(&place.name)
    };
    let wrong = async |word: &str| {
        soon("refused", source(word).open(None, place.wanted())).await.unwrap_err()
    };
    for word in ["", ":wrong"] {
        // It may take a moment until the server has read the file.
        let error = wrong(word).await;
        assert!(matches!(&error, LogError::Refused(_)), "{error:?}");
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    let mut log = soon("opened", source(":se%25cret").open(None, place.wanted())).await.unwrap();
    log.next().await.unwrap();
    place.sql("INSERT INTO items VALUES (1)");
    assert_eq!(place.told(&mut *log).await, ["items +1"]);
}

#[tokio::test]
async fn a_database_that_is_not_there_is_refused() {
    let place = Place::new(&[ITEMS], &["items id"]).await;
    let source = Postgres::new(&place.server.url("nowhere")).unwrap();
    let error = source.open(None, place.wanted()).await.unwrap_err();
    assert!(matches!(&error, LogError::Refused(why) if why.contains("nowhere")), "{error:?}");
}

#[tokio::test]
async fn a_connection_that_is_cut_fails_and_another_goes_on() {
    let place = Place::new(&[ITEMS], &["items id"]).await;
    let proxy = Proxy::to(place.server.server.address()).await;
    let direct = place.server.server.address().to_string();
    let url = place.url().replace(&direct, &proxy.address().to_string());
    let source = Postgres::new(&url).unwrap().slot(&place.name);
    let mut log = soon("opened", source.open(None, place.wanted())).await.unwrap();
    let position = log.next().await.unwrap().position.unwrap();
    proxy.drop_connections();
    let error = until_error(&mut *log).await;
    assert!(matches!(error, LogError::Failed(_)), "{error:?}");
    place.sql("INSERT INTO items VALUES (1)");
    let mut log = soon("opened", source.open(Some(&position), place.wanted())).await.unwrap();
    assert_eq!(place.told(&mut *log).await, ["items +1"]);
}

/// A process that stands still: nothing says that the connection is dead, and the other connection is fine.
#[tokio::test]
async fn a_stream_that_is_silent_fails_and_its_slot_cannot_be_taken() {
    let place = Place::alone(&[], &[ITEMS], &["items id"]).await;
    let (mut log, position) = place.begin().await;
    place.sql("INSERT INTO items VALUES (1)");
    assert_eq!(place.told(&mut *log).await, ["items +1"]);
    let sender = place.sql("SELECT pid FROM pg_stat_replication");
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &sender]).status().unwrap().success());
    };
    signal("-STOP");
    let error = async {
        loop {
            if let Err(error) = log.next().await {
                return error;
            }
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(60), error).await.expect("an error");
    assert!(
        matches!(&error, LogError::Failed(why) if why.to_string().contains("silent")),
        "{error:?}"
    );
    drop(log);
    let error = place.open(&position).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, LogError::Failed(_)) && text.contains("does not end"), "{text}");
    signal("-CONT");
    let mut log = place.open(&position).await.unwrap();
    assert_eq!(place.told(&mut *log).await, ["items +1"]);
}

/// The server gives up those who say nothing for 20 s.
#[tokio::test]
async fn a_follower_that_is_busy_for_long_keeps_its_connection() {
    let place = Place::new(&[ITEMS], &["items id"]).await;
    let (mut log, _) = place.begin().await;
    // More than there is room for on the way.
    place.sql("INSERT INTO items SELECT generate_series(1, 200000)");
    log.next().await.unwrap();
    tokio::time::sleep(Duration::from_secs(25)).await;
    let (told, position) = place.told_to(&mut *log).await;
    assert_eq!(told.last().map(String::as_str), Some("items +200000"));
    assert!(position.is_some());
}
