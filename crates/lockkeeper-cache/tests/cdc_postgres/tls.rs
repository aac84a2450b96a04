//! Both connections by TLS.

use std::sync::Arc;

use lockkeeper_cache::cdc::postgres::Postgres;
use lockkeeper_cache::cdc::{LogError, Source};
use testkit::authority::Authority;
use testkit::database::System;
use testkit::wait::soon;

use crate::harness::{Place, wanted};

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY)";

#[tokio::test]
async fn the_log_comes_by_tls_if_the_url_says_so() {
    let (authority, other) = (Authority::new("ours"), Authority::new("other"));
    let server = System::Postgres.start_with_tls(&authority, "localhost").await;
    // Its arguments are fixed: what else is needed goes by a statement and a restart.
    for setting in ["wal_level = 'logical'", "max_wal_senders = 20"] {
        server.operator("", &format!("ALTER SYSTEM SET {setting}"));
    }
    let mut server = server;
    server.server.restart().await;
    let place = Place::at(Arc::new(server), &[ITEMS], &["items id"]).await;
    let port = place.server.server.address().port();
    let source = |host: &str, options: &str| {
        let url = format!("postgres://postgres@{host}:{port}/{}?{options}", place.name);
        Postgres::new(&url).unwrap().slot(&place.name)
    };
    let ca = format!("sslrootcert={}", authority.ca().display());
    let wrong = format!("sslrootcert={}", other.ca().display());
    for (host, mode, works) in [
        ("localhost", format!("sslmode=verify-full&{ca}"), true),
        ("127.0.0.1", format!("sslmode=verify-full&{ca}"), false),
        ("127.0.0.1", format!("sslmode=verify-ca&{ca}"), true),
        ("127.0.0.1", format!("sslmode=verify-ca&{wrong}"), false),
        ("localhost", "sslmode=verify-full".to_owned(), false),
        ("127.0.0.1", "sslmode=require".to_owned(), true),
        ("127.0.0.1", "sslmode=prefer".to_owned(), true),
    ] {
        let opened = soon("opened", source(host, &mode).open(None, place.wanted())).await;
        match opened {
            Ok(mut log) => {
                assert!(works, "{host} {mode}");
                log.next().await.unwrap();
                let by_tls = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_replication USING (pid) \
                              WHERE ssl";
                assert_eq!(place.sql(by_tls), "1", "{host} {mode}");
                assert!(place.told(&mut *log).await.is_empty());
            }
            Err(error) => {
                assert!(!works && matches!(error, LogError::Failed(_)), "{host} {mode}: {error:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_server_without_tls_is_not_talked_to_if_the_url_wants_it() {
    let place = Place::new(&[ITEMS], &["items id"]).await;
    for mode in ["require", "verify-ca", "verify-full"] {
        let source = Postgres::new(&format!("{}?sslmode={mode}", place.url())).unwrap();
        let error = source.open(None, &wanted(&["items id"])).await.unwrap_err().to_string();
        assert!(error.to_lowercase().contains("tls"), "{error}");
    }
}
