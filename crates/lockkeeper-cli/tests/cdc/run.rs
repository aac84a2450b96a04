//! `cdc run`: what anybody writes to the database is gone from the cache; and how it ends.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::{Cache, Error, Loaded, Redis};
use rustix::process::Signal;
use testkit::database::System;
use testkit::on_both_databases;
use testkit::resp::Raw;

use super::harness::{BINARY, Running, Store};
use super::pty::Session;
use super::world::{Process, Shop, command, output, until_read};

on_both_databases! {
    a_plain_write_is_seen_through_the_cache_of_the_library
    a_signal_ends_it_and_frees_the_lock
    changes_while_nobody_followed_are_seen_afterwards
}

async fn a_plain_write_is_seen_through_the_cache_of_the_library(system: System) {
    let shop = Arc::new(Shop::open(system).await);
    let users = shop.users().await;
    let process = Process::start(&shop.file(""));
    process.until("following");
    for (id, name) in [(1, "Anna"), (2, "Bert")] {
        until_read(&users, id, name).await;
    }
    assert!(users.get(&3).await.expect("a read").is_none(), "that is cached, too");
    let loads = users.stats().loads;
    shop.sql("UPDATE users SET name = 'Carl' WHERE id = 2").await;
    shop.sql("INSERT INTO users VALUES (3, 'Dora')").await;
    until_read(&users, 2, "Carl").await;
    until_read(&users, 3, "Dora").await;
    until_read(&users, 1, "Anna").await;
    assert_eq!(users.stats().loads, loads + 2, "what did not change stays");
    shop.sql("UPDATE users SET id = 9 WHERE id = 1").await;
    until_read(&users, 9, "Anna").await;
    assert!(users.get(&1).await.expect("a read").is_none(), "the key that it had is gone as well");
    shop.sql("TRUNCATE TABLE users").await;
    testkit::wait::eventually("nobody is there", async || {
        users.get(&9).await.expect("a read").is_none()
    })
    .await;
}

async fn a_signal_ends_it_and_frees_the_lock(system: System) {
    let shop = Shop::open(system).await;
    let file = shop.file("");
    for (signal, name) in
        [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP"), (Signal::QUIT, "QUIT")]
    {
        let process = Process::start(&file);
        process.until("following");
        let lock = held(&shop);
        assert_eq!(lock["holders"].as_array().map(Vec::len), Some(1), "{lock}");
        let since = Instant::now();
        process.running.signal(signal);
        assert_eq!(process.until("stopping")["signal"], name);
        assert_eq!(process.until("stopped")["released"], true);
        assert_eq!(process.running.output().code, 0);
        assert!(Instant::now().since(since) < Duration::from_secs(5), "within a few seconds");
        let lock = held(&shop);
        assert_eq!(lock["holders"].as_array().map(Vec::len), Some(0), "{lock}");
    }
}

/// The lock of the follower, as anybody can look at it.
fn held(shop: &Shop) -> serde_json::Value {
    let url = format!("redis://{}", shop.redis.address());
    let mut show = std::process::Command::new(BINARY);
    let shown = show.args(["--url", &url, "show", "--json", "cdc:shop"]).output().expect("starts");
    serde_json::from_slice(&shown.stdout).expect("JSON")
}

async fn changes_while_nobody_followed_are_seen_afterwards(system: System) {
    let shop = Arc::new(Shop::open(system).await);
    let (users, file) = (shop.users().await, shop.file(""));
    let process = Process::start(&file);
    process.until("following");
    until_read(&users, 1, "Anna").await;
    until_read(&users, 2, "Bert").await;
    process.running.signal(Signal::KILL);
    drop(process);
    shop.sql("UPDATE users SET name = 'Carl' WHERE id = 2").await;
    until_read(&users, 2, "Bert").await;
    let loads = users.stats().loads;
    let process = Process::start(&file);
    process.until("following");
    until_read(&users, 2, "Carl").await;
    until_read(&users, 1, "Anna").await;
    assert_eq!(users.stats().loads, loads + 1, "it went on where it was, and cleared nothing");
    assert_eq!(process.pages.metric("resets_total").await, Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_longer_than_most_caches_allow_is_invalidated_as_well() {
    let shop = Shop::open(System::Postgres).await;
    shop.database.operator("here", "CREATE TABLE pages (url text PRIMARY KEY, hits bigint)");
    shop.database.operator("here", "ALTER PUBLICATION lockkeeper ADD TABLE pages");
    let (long, redis) = ("x".repeat(1000), format!("redis://{}", shop.redis.address()));
    let store = Redis::connect(&redis).await.expect("Redis");
    let builder = Cache::builder(store).namespace("page").max_key(2000);
    let pages = builder.build(async |_: String| Ok::<_, Error>(Loaded::found(1))).expect("a cache");
    let rule = "[[rule]]\ntable = 'public.pages'\nnamespace = 'page'\nkey = '{url}'";
    let process = Process::start(&shop.file(rule));
    process.until("following");
    pages.get(&long).await.expect("a read");
    shop.database.operator("here", &format!("INSERT INTO pages VALUES ('{long}', 2)"));
    testkit::wait::eventually("it is loaded once more", async || {
        pages.get(&long).await.expect("a read");
        pages.stats().loads == 2
    })
    .await;
}

/// The server would refuse it each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_too_long_for_the_server_clears_its_namespace() {
    let shop = Arc::new(Shop::open(System::Postgres).await);
    shop.sql("CREATE TABLE pages (id bigint PRIMARY KEY, url text)").await;
    shop.sql("ALTER TABLE pages REPLICA IDENTITY FULL").await;
    shop.sql("ALTER PUBLICATION lockkeeper ADD TABLE pages").await;
    let raw = Raw::connect(shop.redis.address()).await;
    assert_eq!(raw.text("CONFIG SET proto-max-bulk-len 1048576").await.as_deref(), Some("OK"));
    let store = Redis::connect(&format!("redis://{}", shop.redis.address())).await.expect("Redis");
    let pages = Cache::builder(store).namespace("page");
    let pages = pages.build(async |_: String| Ok::<_, Error>(Loaded::found(1))).expect("a cache");
    let users = shop.users().await;
    let rule = "[[rule]]\ntable = 'public.pages'\nnamespace = 'page'\nkey = '{url}'";
    let process = Process::start(&shop.file(rule));
    process.until("following");
    pages.get(&"short".to_owned()).await.expect("a read");
    until_read(&users, 2, "Bert").await;
    let loads = users.stats().loads;
    shop.sql("INSERT INTO pages SELECT 1, repeat('x', 2000000)").await;
    testkit::wait::eventually("it is loaded once more", async || {
        pages.get(&"short".to_owned()).await.expect("a read");
        pages.stats().loads == 2
    })
    .await;
    until_read(&users, 2, "Bert").await;
    assert_eq!(users.stats().loads, loads, "other namespaces stay");
    // And it goes on.
    shop.sql("UPDATE pages SET url = 'short'").await;
    testkit::wait::eventually("it is loaded once more", async || {
        pages.get(&"short".to_owned()).await.expect("a read");
        pages.stats().loads >= 3
    })
    .await;
    assert_eq!(process.pages.metric("failures_total").await, Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_it_at_once() {
    let shop = Shop::open(System::Postgres).await;
    let mut process = Process::start(&shop.file(""));
    process.until("following");
    // The lock cannot be released for now.
    shop.redis.pause();
    process.running.signal(Signal::TERM);
    process.until("stopping");
    let since = Instant::now();
    process.running.signal(Signal::INT);
    assert_eq!(process.running.code(), 130);
    assert!(Instant::now().since(since) < Duration::from_secs(3), "at once");
    shop.redis.resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_cannot_free_the_lock_is_69_and_does_not_take_long() {
    let shop = Shop::open(System::Postgres).await;
    let mut process = Process::start(&shop.file(""));
    process.until("following");
    shop.redis.pause();
    let since = Instant::now();
    process.running.signal(Signal::TERM);
    assert_eq!(process.until("stopped")["released"], false);
    assert_eq!(process.running.code(), 69);
    assert!(Instant::now().since(since) < Duration::from_secs(10));
    shop.redis.resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elsewhere_than_on_a_terminal_there_is_a_line_for_each_event_and_no_more() {
    let shop = Shop::open(System::Postgres).await;
    let file = shop.file("");
    let words = ["run", "--config", file.to_str().expect("UTF-8")];
    let running = Running::new(&mut command(&words));
    running.error_line("lockkeeper: shop is to follow 1 table; http://127.0.0.1:");
    running.error_line("lockkeeper: it is our turn");
    running.error_line("lockkeeper: following, from ");
    running.signal(Signal::TERM);
    running.error_line("lockkeeper: TERM: ending");
    let output = running.output();
    assert_eq!((output.code, output.out.as_str()), (0, ""), "{output:?}");
    assert_eq!(output.err, "lockkeeper: ended; the lock is not held\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_terminal_a_line_shows_what_it_does() {
    let shop = Arc::new(Shop::open(System::Postgres).await);
    let (file, store) = (shop.file(""), Store::new());
    let file = file.to_str().expect("UTF-8");
    let mut session = Session::start(&store, &[BINARY, "cdc", "run", "--config", file]);
    session.shows("lockkeeper: following, from ");
    session.shows("\r\u{1b}[Kfollowing, 0 changes/s, 0 changes, 0 keys");
    shop.sql("UPDATE users SET name = 'Carl' WHERE id = 2").await;
    session.shows("changes/s, 1 changes, 1 keys");
    session.type_in("\x03");
    session.shows("lockkeeper: INT: ending");
    session.shows("lockkeeper: ended; the lock is not held");
    assert_eq!(session.ends().code(), Some(0));
}

#[test]
fn the_help_is_enough_to_work_with() {
    let help = output(&["--help"]);
    assert_eq!(help.code, 0, "{help:?}");
    let parts =
        ["check", "run", "[[rule]]", "namespace", "Exit codes", "78", "server_id", "max_lag"];
    for part in parts {
        assert!(help.out.contains(part), "{part}: {}", help.out);
    }
    for command in ["check", "run"] {
        let help = output(&[command, "--help"]);
        assert_eq!(help.code, 0);
        assert!(help.out.contains("Exit codes") && help.out.contains("--config"), "{}", help.out);
        assert!(
            !help.out.contains("redis+sentinel"),
            "the locks' URL is not asked for: {}",
            help.out
        );
    }
    let page = std::process::Command::new(BINARY).arg("man").output().expect("starts");
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    for part in [".SH CDC", ".SH CDC CHECK", ".SH CDC RUN"] {
        assert!(page.lines().any(|line| line == part), "{part}");
    }
}
