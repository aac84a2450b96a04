//! Processes whose clocks do not agree.
//!
//! The other process runs under libfaketime: its wall clock is an hour off. Nothing may depend on that: the time is that of
//! the server, carried on by a clock that only counts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_cache::{Cache, Freshness, Loaded, Redis, Source};
use testkit::resp::{Raw, Reply};
use testkit::server::{self, Server};
use testkit::wait::eventually;

use crate::processes::{Process, say, told};

const MINUTE: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(600);

/// The database is a number at the server, which is nothing to the cache.
const ROW: &str = "row";

async fn cache(server: &str) -> Cache<u32, u64> {
    let store = Redis::connect(&format!("redis://{server}")).await.unwrap();
    let address: std::net::SocketAddr = server.parse().unwrap();
    let loader = move |_: u32| async move {
        let row = Raw::connect(address).await.text(&format!("GET {ROW}")).await;
        let row = row.unwrap_or_default().parse::<u64>()?;
        Ok::<_, std::num::ParseIntError>(Loaded::found(row).version(row))
    };
    let builder = Cache::builder(store).namespace("cache").ttl(TTL).refresh_after(TTL / 2);
    builder.build(loader).unwrap()
}

async fn commit(server: &str, row: u64) {
    Raw::connect(server.parse().unwrap()).await.ask(&format!("SET {ROW} {row}")).await;
}

#[allow(clippy::disallowed_methods, reason = "that it is wrong is what it is about")]
fn wall() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// The other process: does what it is told.
pub(crate) async fn child(server: &str) {
    let cache = cache(server).await;
    say("ready");
    loop {
        let order = told().await;
        let (what, number) = order.split_once(' ').unwrap_or((&order, "0"));
        let number: u64 = number.parse().unwrap();
        let freshness = match what {
            "wall" => {
                say(wall());
                continue;
            }
            "refreshes" => {
                say(cache.stats().refreshes);
                continue;
            }
            "write" => {
                commit(server, number).await;
                cache.invalidate(&[1]).await.unwrap();
                say("written");
                continue;
            }
            "any" => Freshness::Any,
            "age" => Freshness::MaxAge(Duration::from_millis(number)),
            other => panic!("{other}"),
        };
        let read = cache.read(&1, freshness).await.unwrap();
        // What it has loaded is cached when it says so.
        cache.idle().await;
        say(format_args!("{} {:?}", read.value.unwrap(), read.source));
    }
}

async fn asked(process: &mut Process, order: &str) -> String {
    process.tell(order);
    process.says().await
}

/// In milliseconds.
async fn time_of(server: &Server) -> u64 {
    let Reply::Many(parts) = Raw::connect(server.address()).await.ask("TIME").await else {
        panic!("no time")
    };
    let [Reply::Text(secs), Reply::Text(micros)] = &parts[..] else { panic!("{parts:?}") };
    secs.parse::<u64>().unwrap() * 1000 + micros.parse::<u64>().unwrap() / 1000
}

async fn off_by(offset: i64) {
    let server = server::redis(&[]).await;
    let address = server.address().to_string();
    let here = cache(&address).await;
    let fake = format!("{offset:+}s");
    let mut there = Process::start_under(
        &format!("skew {address} -"),
        &[
            ("LD_PRELOAD", "/usr/$LIB/faketime/libfaketimeMT.so.1"),
            ("FAKETIME", &fake),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ],
    );
    assert_eq!(there.says().await, "ready");
    let theirs: i64 = asked(&mut there, "wall").await.parse().unwrap();
    let off = theirs - i64::try_from(wall()).unwrap();
    assert!((off - offset).abs() < 60, "its clock is right: off by {off}");

    // What it fills lives as long as it should, and is as old as it is.
    commit(&address, 1).await;
    let before = time_of(&server).await;
    assert_eq!(asked(&mut there, "any").await, "1 Loaded");
    let after = time_of(&server).await;
    let left = Raw::connect(server.address()).await.left("cache:1").await.unwrap();
    assert!((TTL * 9 / 10 - MINUTE..=TTL).contains(&left), "{left:?}");
    let read = here.read(&1, Freshness::MaxAge(30 * MINUTE)).await.unwrap();
    assert_eq!((read.value.as_deref(), read.source), (Some(&1), Source::Hit));
    assert!((before..=after).contains(&read.made), "{before} {} {after}", read.made);

    // What others fill is as young to it as it is, and is not due.
    here.invalidate(&[1]).await.unwrap();
    assert_eq!(here.read(&1, Freshness::Any).await.unwrap().source, Source::Loaded);
    for order in ["any", "age 1800000"] {
        assert_eq!(asked(&mut there, order).await, "1 Hit", "{order}");
    }
    assert_eq!(asked(&mut there, "refreshes").await, "0");
    // And as old: a value of which nobody knows that it has changed is too old after a while.
    commit(&address, 2).await;
    let mut process = there;
    let there = tokio::sync::Mutex::new(&mut process);
    eventually("it is too old", async || asked(*there.lock().await, "age 200").await == "2 Loaded")
        .await;
    let there = there.into_inner();

    // No stale reads, neither way.
    commit(&address, 3).await;
    here.invalidate(&[1]).await.unwrap();
    assert_eq!(asked(there, "any").await, "3 Loaded");
    assert_eq!(here.get(&1).await.unwrap().as_deref(), Some(&3));
    assert_eq!(asked(there, "write 4").await, "written");
    assert_eq!(here.get(&1).await.unwrap().as_deref(), Some(&4));
    // Who is about to write is believed as long as he should be.
    let write = here.intend(&[1]).await.unwrap();
    for _ in 0..2 {
        assert_eq!(asked(there, "any").await, "4 Loaded", "nothing is cached meanwhile");
    }
    commit(&address, 5).await;
    assert_eq!(asked(there, "any").await, "5 Loaded");
    write.settle(None).await.unwrap();
    for source in ["Loaded", "Hit"] {
        assert_eq!(asked(there, "any").await, format!("5 {source}"));
    }
}

#[tokio::test]
async fn a_process_whose_clock_is_an_hour_ahead_is_none_the_worse() {
    off_by(3600).await;
}

#[tokio::test]
async fn a_process_whose_clock_is_an_hour_behind_is_none_the_worse() {
    off_by(-3600).await;
}
