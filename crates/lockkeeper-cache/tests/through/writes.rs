//! What is accepted, how often, and how much of it.

use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper_cache::through::{RedisQueue, Retried, Through};
use lockkeeper_cache::{Error, Redis};
use testkit::nodes::Cluster;
use testkit::proxy::Proxy;
use testkit::resp::Raw;
use testkit::server;
use testkit::wait::{LONG, eventually, soon};

use crate::fake::{Fake, Fault, applied, builder, cache, drain, queue, through, url, write};

#[tokio::test]
async fn what_is_written_is_applied_and_then_seen() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let [one, other] = [through(&server, &fake).await, through(&server, &fake).await];
    let first = write(&one, 1, "a").await;
    assert_eq!(fake.get(1), None, "nobody applies it");
    assert!(matches!(one.applied(first.order, Duration::ZERO).await, Err(Error::Timeout { .. })));
    let backlog = one.backlog().await.unwrap();
    assert_eq!((backlog.pending, backlog.letters), (1, 0));
    assert!(backlog.oldest.is_some_and(|age| age < LONG));
    let consumer = other.consume();
    applied(&one, first).await;
    assert_eq!(fake.get(1).as_deref(), Some("a"));
    let read = one.get(&1).await.unwrap().unwrap();
    assert_eq!(read.value.as_deref().map(String::as_str), Some("a"));
    let gone = soon("a write", one.write(&1, None)).await.unwrap();
    assert!(gone.order > first.order);
    applied(&one, gone).await;
    let read = one.get(&1).await.unwrap().unwrap();
    assert_eq!((read.value, fake.get(1)), (None, None));
    assert_eq!((other.stats().applied, one.stats().applied), (2, 0));
    assert_eq!(one.backlog().await.unwrap().oldest, None);
    consumer.stop().await;
}

#[tokio::test]
async fn no_more_wait_than_may_whoever_writes() {
    let server = server::redis(&[]).await;
    let (fake, url) = (Fake::default(), url(&server));
    let mut writers = Vec::new();
    for _ in 0..20 {
        let cache = cache(&url).await.build(fake.clone()).unwrap();
        writers.push(Through::builder(queue(&url).await.bound(7), cache, fake.clone()).build());
    }
    let written = join_all(writers.iter().map(|writer| writer.write(&1, Some("x".into())))).await;
    let (taken, refused): (Vec<_>, Vec<_>) = written.into_iter().partition(Result::is_ok);
    assert_eq!((taken.len(), refused.len()), (7, 13));
    assert!(refused.iter().all(|refused| matches!(refused, Err(Error::Busy { .. }))));
    let raw = Raw::connect(server.address()).await;
    assert_eq!(raw.number("XLEN {t}!queue").await, 7);
    // Who may wait for room gets it.
    let cache = cache(&url).await.build(fake.clone()).unwrap();
    let builder = Through::builder(queue(&url).await.bound(7), cache, fake.clone());
    let patient = builder.wait(LONG).build();
    let before = scripts(&raw).await;
    let waits = {
        let patient = patient.clone();
        tokio::spawn(async move { patient.write(&1, Some("last".into())).await })
    };
    eventually("it was refused at first", async || scripts(&raw).await > before + 2).await;
    let consumer = patient.consume();
    let last = soon("room", waits).await.unwrap().unwrap();
    applied(&patient, last).await;
    assert_eq!(fake.history(1).len(), 8);
    assert_eq!(fake.get(1).as_deref(), Some("last"));
    consumer.stop().await;
}

/// How many scripts the server has run.
async fn scripts(raw: &Raw) -> i64 {
    let stats = raw.text("INFO commandstats").await.unwrap();
    let calls =
        stats.split("cmdstat_evalsha:calls=").nth(1).and_then(|rest| rest.split(',').next());
    calls.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_there_once() {
    let server = server::redis(&[]).await;
    let (fake, near) = (Fake::default(), url(&server));
    let raw = Raw::connect(server.address()).await;
    let proxy = Proxy::to(server.address()).await;
    let queue = queue(&format!("redis://{}", proxy.address())).await;
    let cache = cache(&near).await.build(fake.clone()).unwrap();
    let through = Through::builder(queue, cache, fake.clone()).build();
    let _ = write(&through, 1, "first").await;
    for lost in 0..5 {
        let before = scripts(&raw).await;
        proxy.lose_next_reply();
        let accepted = write(&through, 1, &lost.to_string()).await;
        assert!(proxy.lost_a_reply());
        assert!(scripts(&raw).await >= before + 2, "it was not sent again");
        assert_eq!(raw.number("XLEN {t}!queue").await, lost + 2);
        assert!(soon("known", through.applied(accepted.order, Duration::ZERO)).await.is_err());
    }
    let consumer = through.consume();
    drain(&through).await;
    assert_eq!(fake.history(1), ["first", "0", "1", "2", "3", "4"]);
    consumer.stop().await;
}

/// The first one is carried out late, after its writer has given up.
#[tokio::test]
async fn after_no_answer_the_same_may_be_written_again() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let through = through(&server, &fake).await;
    let raw = Raw::connect(server.address()).await;
    let _ = write(&through, 1, "first").await;
    server.pause();
    let unknown = soon("an end", through.write_as("id", &1, Some("x".into()))).await;
    assert!(matches!(unknown, Err(Error::Commit(_))), "{unknown:?}");
    server.resume();
    let mut orders = Vec::new();
    for _ in 0..3 {
        let accepted = soon("an end", through.write_as("id", &1, Some("x".into()))).await;
        orders.push(accepted.unwrap().order);
    }
    orders.dedup();
    assert_eq!(orders.len(), 1);
    assert_eq!(raw.number("XLEN {t}!queue").await, 2);
    let consumer = through.consume();
    drain(&through).await;
    // Also when it is done; and known for as long as it is remembered.
    let again = soon("an end", through.write_as("id", &1, Some("x".into()))).await.unwrap();
    assert_eq!(again.order, orders[0]);
    drain(&through).await;
    assert_eq!(fake.history(1), ["first", "x"]);
    consumer.stop().await;
}

#[tokio::test]
async fn what_waits_is_there_after_a_restart() {
    let mut server = server::redis(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let fake = Fake::default();
    let through = through(&server, &fake).await;
    fake.is(1, Fault::Down);
    let consumer = through.consume();
    for number in 0..100 {
        let _ = write(&through, number % 2, &number.to_string()).await;
    }
    server.kill();
    server.start_again().await;
    let last = write(&through, 1, "last").await;
    fake.is(1, None);
    soon("applied", through.applied(last.order, LONG)).await.unwrap();
    drain(&through).await;
    let odd = (0..100).filter(|number| number % 2 == 1).map(|number: u32| number.to_string());
    let expected: Vec<String> = odd.chain(["last".to_owned()]).collect();
    assert_eq!(fake.history(1), expected);
    assert_eq!(fake.history(0).len(), 50);
    consumer.stop().await;
}

#[tokio::test]
async fn what_cannot_be_written_is_refused() {
    let server = server::redis(&[]).await;
    let (fake, near) = (Fake::default(), url(&server));
    let cache = cache(&near).await.max_value(10).max_key(2).build(fake.clone()).unwrap();
    let through = Through::builder(queue(&near).await, cache, fake.clone()).build();
    let refused = through.write(&1, Some("x".repeat(20))).await;
    assert!(matches!(refused, Err(Error::InvalidValue(_))), "{refused:?}");
    let refused = through.write(&100, Some("x".into())).await;
    assert!(matches!(refused, Err(Error::InvalidKey(_))), "{refused:?}");
    assert_eq!(through.backlog().await.unwrap().pending, 0);
    for name in ["", "}{"] {
        let refused = RedisQueue::connect(&near, name).await;
        assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn in_a_cluster_all_keys_of_a_queue_are_in_one_place() {
    let cluster = Cluster::shared().await;
    let (fake, near) = (Fake::default(), cluster.url());
    let store = soon("connected", Redis::connect(&near)).await.unwrap();
    let cache =
        lockkeeper_cache::Cache::builder(store).namespace("cache").build(fake.clone()).unwrap();
    let through = Through::builder(queue(&near).await, cache, fake.clone()).build();
    fake.is(7, Fault::Rejects);
    fake.is(8, Fault::Rejects);
    let consumer = through.consume();
    for id in 0..50 {
        let _ = write(&through, id, "x").await;
    }
    drain(&through).await;
    assert!((0..50).all(|id| id == 7 || id == 8 || fake.get(id).as_deref() == Some("x")));
    let letters = through.letters(None, 10).await.unwrap();
    assert_eq!(letters.len(), 2);
    assert!(through.discard(letters[0].id).await.unwrap());
    let Retried::Waits(_) = through.retry(letters[1].id).await.unwrap() else { panic!("gone") };
    drain(&through).await;
    assert_eq!(through.letters(None, 10).await.unwrap().len(), 1);
    consumer.stop().await;
}

#[tokio::test]
async fn a_builder_says_what_it_makes() {
    let server = server::redis(&[]).await;
    let builder = builder(&server, &Fake::default()).await;
    assert!(format!("{builder:?}").contains("RedisQueue"));
    assert!(format!("{:?}", builder.build()).contains("\"t\""));
}
