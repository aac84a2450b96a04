//! `/metrics` and `/health`: what they say when something is wrong, and when it is not any more.

use std::sync::Arc;

use testkit::database::System;
use testkit::{on_both_databases, server, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::world::{Pages, Process, Shop, until_read};

on_both_databases! {
    a_database_that_is_away_at_the_start_is_waited_for
}

async fn a_database_that_is_away_at_the_start_is_waited_for(system: System) {
    let mut shop = Shop::open(system).await;
    let file = shop.file("");
    shop.database.server.kill();
    let process = Process::start(&file);
    process.pages.until_healthy(503, "waiting").await;
    let (_, health) = process.pages.health().await;
    assert!(health["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{health}");
    assert!(process.pages.metric("failures_total").await > Some(0.0));
    assert!(process.pages.metric("takeovers_total").await > Some(0.0));
    shop.database.server.start_again().await;
    process.until("following");
    process.pages.until_healthy(200, "following").await;
    let shop = Arc::new(shop);
    let users = shop.users().await;
    until_read(&users, 1, "Anna").await;
    shop.sql("UPDATE users SET name = 'Carl' WHERE id = 1").await;
    until_read(&users, 1, "Carl").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_that_is_away_at_the_start_is_waited_for() {
    let mut shop = Shop::open(System::Postgres).await;
    let file = shop.file("");
    shop.redis.kill();
    let process = Process::start(&file);
    let unreachable = process.until("unreachable");
    assert!(unreachable["reason"].as_str().is_some_and(|why| why.starts_with("the cache: ")));
    process.pages.until_healthy(503, "connecting").await;
    shop.redis.start_again().await;
    process.until("following");
    process.pages.until_healthy(200, "following").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_refuses_is_said_with_what_to_do_and_looked_at_again() {
    let shop = Shop::open(System::Postgres).await;
    shop.database.operator("here", "DROP PUBLICATION lockkeeper");
    let process = Process::start(&shop.file(""));
    let waiting = process.until("waiting");
    let reason = waiting["reason"].as_str().expect("a reason");
    assert!(reason.contains("CREATE PUBLICATION"), "{reason}");
    process.pages.until_healthy(503, "waiting").await;
    shop.database.operator("here", "CREATE PUBLICATION lockkeeper FOR TABLE users");
    process.pages.until_healthy(200, "following").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_numbers_say_what_happens() {
    let shop = Arc::new(Shop::open(System::Postgres).await);
    let process = Process::start(&shop.file(""));
    process.until("following");
    let (_, text) = process.pages.page("/metrics").await;
    assert!(
        text.contains("lockkeeper_cdc_state{follower=\"shop\",state=\"following\"} 1\n"),
        "{text}"
    );
    assert_eq!(process.pages.metric("changes_total").await, Some(0.0));
    assert_eq!(
        process.pages.metric("resets_total").await,
        Some(1.0),
        "it began for the first time"
    );
    shop.sql("UPDATE users SET name = 'Carl' WHERE id <= 2").await;
    wait::eventually("two changes of two keys", async || {
        process.pages.metric("changes_total").await == Some(2.0)
            && process.pages.metric("invalidated_keys_total").await == Some(2.0)
    })
    .await;
    let cleared = process.pages.metric("cleared_total").await;
    shop.sql("TRUNCATE TABLE users").await;
    wait::eventually("a namespace is cleared", async || {
        process.pages.metric("cleared_total").await > cleared
    })
    .await;
    wait::eventually("lag and position are known", async || {
        process.pages.metric("lag_bytes").await.is_some()
            && process.pages.metric("position_age_seconds").await < Some(20.0)
            && process.pages.metric("position_age_seconds").await.is_some()
    })
    .await;
    wait::eventually("what the slot keeps is known", async || {
        process.pages.metric("retained_bytes").await.is_some()
    })
    .await;
    // The same for programs that listen.
    let status = process.until("status");
    assert_eq!((&status["state"], &status["resets"]), (&"following".into(), &1.into()), "{status}");
    for key in ["position", "position_age_ms", "lag_ms", "lag_bytes", "retained_bytes", "changes"] {
        assert!(status.get(key).is_some(), "{key}: {status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_that_is_lost_is_said_and_counted() {
    let shop = Shop::open(System::Postgres).await;
    let file = shop.file("");
    let process = Process::start(&file);
    process.until("following");
    process.running.signal(rustix::process::Signal::KILL);
    drop(process);
    wait::eventually("the slot can be dropped", async || {
        let free = "SELECT count(*) FROM pg_replication_slots WHERE NOT active";
        shop.database.operator("here", free) == "1"
    })
    .await;
    shop.database.operator("here", "SELECT pg_drop_replication_slot('lockkeeper_shop')");
    let process = Process::start(&file);
    process.until("reset");
    process.until("following");
    assert_eq!(process.pages.metric("resets_total").await, Some(1.0));
    assert!(process.pages.metric("cleared_total").await > Some(0.0));
}

/// What is answered to these bytes.
async fn answer(pages: Pages, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(pages.http).await.expect("connects");
    stream.write_all(request).await.expect("sent");
    let mut answer = Vec::new();
    // Cut off is an answer, too.
    let _ = wait::soon("an answer", stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_keeps_others_from_asking() {
    let redis = server::redis(&[]).await;
    let folder = tempfile::TempDir::new().expect("a folder");
    let path = folder.path().join("shop.toml");
    let text = format!(
        "name = 'shop'\ndatabase = 'postgres://cdc@127.0.0.1:1/shop'\ncache = 'redis://{}'\n\
         listen = '127.0.0.1:0'\n[[rule]]\ntable = 'a.b'\nnamespace = 'x'\nkey = '{{id}}'\n",
        redis.address()
    );
    std::fs::write(&path, text).expect("write");
    let process = Process::start(&path);
    assert!(
        answer(process.pages, b"POST /health HTTP/1.1\r\nHost: x\r\n\r\n").await.contains(" 405 ")
    );
    assert!(
        answer(process.pages, b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n").await.contains(" 404 ")
    );
    assert!(
        answer(process.pages, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .ends_with("\r\n\r\n")
    );
    let endless = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &[b'x'; 100_000]].concat();
    assert!(!answer(process.pages, &endless).await.contains(" 200 "));
    // So many that say nothing are put up with; they are cut off after a while, and more are not let in.
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(process.pages.http).await.expect("connects"));
    }
    wait::eventually("others are answered again", async || {
        server::http_get(process.pages.http, "/metrics")
            .await
            .is_ok_and(|text| text.contains(" 200 "))
    })
    .await;
}
