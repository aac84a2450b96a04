//! Writes that the database will not take.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper_cache::through::{Retried, Through};
use lockkeeper_cache::{Error, Order};
use testkit::resp::{Raw, Reply};
use testkit::server;
use testkit::wait::{eventually, soon};

use crate::fake::{Fake, Fault, applied, builder, cache, drain, queue, through, url, write};

#[tokio::test]
async fn what_is_rejected_is_a_letter_at_once_and_later_writes_go_on() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let through = through(&server, &fake).await;
    fake.is(1, Fault::Rejects);
    let consumer = through.consume();
    let bad = write(&through, 1, "bad").await;
    drain(&through).await;
    fake.is(1, None);
    let good = write(&through, 1, "good").await;
    applied(&through, good).await;
    assert_eq!(fake.history(1), ["good"]);
    let refused = through.applied(bad.order, Duration::ZERO).await;
    assert!(matches!(refused, Err(Error::Commit(_))), "{refused:?}");
    let letters = through.letters(None, 10).await.unwrap();
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    assert_eq!((letter.order, letter.attempts), (bad.order, 1));
    assert_eq!(letter.why, "rejected: a row that may not be");
    assert!(letter.at >= bad.order.ms());
    let message = letter.message.as_ref().unwrap();
    assert_eq!((message.key.as_str(), message.value.as_deref()), ("1", Some(&b"\"bad\""[..])));
    assert_eq!((through.stats().buried, through.backlog().await.unwrap().letters), (1, 1));
    // As the last one.
    let Retried::Waits(again) = through.retry(letter.id).await.unwrap() else { panic!("gone") };
    assert!(again > good.order);
    soon("applied", through.applied(again, testkit::wait::LONG)).await.unwrap();
    assert_eq!(fake.history(1), ["good", "bad"]);
    assert_eq!(through.retry(letter.id).await.unwrap(), Retried::Gone);
    assert!(!through.discard(letter.id).await.unwrap());
    assert_eq!(through.backlog().await.unwrap().letters, 0);
    consumer.stop().await;
}

#[tokio::test]
async fn a_write_at_which_the_database_panics_is_a_letter() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let through = through(&server, &fake).await;
    fake.is(1, Fault::Panics);
    let consumer = through.consume();
    let _ = write(&through, 1, "a").await;
    let other = write(&through, 2, "b").await;
    applied(&through, other).await;
    drain(&through).await;
    let letters = through.letters(None, 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].why, "the database panicked: told to");
    assert!(through.discard(letters[0].id).await.unwrap());
    consumer.stop().await;
}

#[tokio::test]
async fn what_cannot_be_read_is_a_letter() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let through = through(&server, &fake).await;
    let raw = Raw::connect(server.address()).await;
    for fields in [
        "id 1 key 1 schema 0 value nonsense",
        "id 2 key seven schema 0",
        "some thing",
        "id 3 key 1 schema x",
    ] {
        let added = raw.ask(&format!("XADD {{t}}!queue * {fields}")).await;
        assert!(matches!(added, Reply::Text(_)), "{added:?}");
    }
    let last = write(&through, 1, "good").await;
    let consumer = through.consume();
    applied(&through, last).await;
    drain(&through).await;
    let mut why: Vec<String> = Vec::new();
    // One at a time, as by pages.
    let mut after: Option<Order> = None;
    for _ in 0..10 {
        let page = through.letters(after, 1).await.unwrap();
        let Some(letter) = page.first() else { break };
        after = Some(letter.id);
        why.push(letter.why.clone());
    }
    why.sort();
    assert_eq!(
        why,
        [
            "it cannot be read",
            "it cannot be read",
            "its key cannot be read",
            "its value cannot be decoded"
        ]
    );
    assert_eq!(fake.history(1), ["good"]);
    consumer.stop().await;
}

#[tokio::test]
async fn a_database_that_is_down_is_asked_again_and_other_rows_do_not_wait() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let through = through(&server, &fake).await;
    fake.is(1, Fault::Down);
    let consumer = through.consume();
    let held = [write(&through, 1, "a").await, write(&through, 1, "b").await];
    for id in 2..200 {
        let _ = write(&through, id, "x").await;
    }
    eventually("the others are applied", async || through.stats().applied == 198).await;
    eventually("it is tried again", async || through.stats().retries > 3).await;
    assert_eq!((through.backlog().await.unwrap().pending, through.stats().buried), (2, 0));
    fake.is(1, None);
    applied(&through, held[1]).await;
    assert_eq!(fake.history(1), ["a", "b"]);
    consumer.stop().await;
}

/// It has taken it, and did not say so.
#[tokio::test]
async fn a_database_that_does_not_answer_is_asked_again_and_changes_nothing() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let through = through(&server, &fake).await;
    fake.is(1, Fault::Silent);
    let consumer = through.consume();
    let first = write(&through, 1, "a").await;
    let second = write(&through, 1, "b").await;
    eventually("it is there", async || fake.get(1).is_some()).await;
    fake.is(1, None);
    applied(&through, second).await;
    assert_eq!(fake.history(1), ["a", "b"]);
    assert!(through.stats().retries >= 1 && first.order < second.order);
    consumer.stop().await;
}

#[tokio::test]
async fn after_so_many_attempts_it_is_a_letter_if_that_is_wanted() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let through = builder(&server, &fake).await.attempts(3).build();
    fake.is(1, Fault::Down);
    let consumer = through.consume();
    let _ = write(&through, 1, "a").await;
    drain(&through).await;
    let letters = through.letters(None, 10).await.unwrap();
    assert_eq!((letters[0].attempts, letters[0].why.as_str()), (3, "no database"));
    assert_eq!(fake.stores.load(Ordering::SeqCst), 3);
    consumer.stop().await;
}

/// It may have been done, and then what was cached is old.
#[tokio::test]
async fn what_is_given_up_without_an_answer_is_told_to_the_cache() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let through = builder(&server, &fake).await.attempts(1).build();
    let consumer = through.consume();
    let first = write(&through, 1, "a").await;
    applied(&through, first).await;
    fake.is(1, Fault::Silent);
    let _second = write(&through, 1, "b").await;
    drain(&through).await;
    assert_eq!((through.stats().buried, fake.get(1).as_deref()), (1, Some("b")));
    eventually("it is cached", async || cached(&through).await.as_deref() == Some("b")).await;
    consumer.stop().await;
}

/// Of the attempt of another consumer nothing is known.
#[tokio::test]
async fn what_is_rejected_after_it_was_done_is_told_to_the_cache() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let through = through(&server, &fake).await;
    let consumer = through.consume();
    let first = write(&through, 1, "a").await;
    applied(&through, first).await;
    fake.is(1, Fault::Silent);
    let _second = write(&through, 1, "b").await;
    eventually("it is done", async || fake.get(1).as_deref() == Some("b")).await;
    consumer.stop().await;
    assert_eq!(cached(&through).await.as_deref(), Some("a"), "nobody has said so");
    fake.is(1, Fault::Rejects);
    let consumer = through.consume();
    drain(&through).await;
    assert_eq!(through.stats().buried, 1);
    eventually("it is cached", async || cached(&through).await.as_deref() == Some("b")).await;
    consumer.stop().await;
}

async fn cached(through: &Through<u32, String>) -> Option<String> {
    through.get(&1).await.ok()??.value.as_deref().cloned()
}

/// The cache is told when it is back.
#[tokio::test]
async fn what_is_rejected_is_a_letter_also_while_the_cache_is_away() {
    let [near, far] = [server::redis(&[]).await, server::redis(&[]).await];
    let fake = Fake::default();
    let cache = cache(&url(&near)).await.build(fake.clone()).unwrap();
    let through = Through::builder(queue(&url(&far)).await, cache, fake.clone()).build();
    fake.put(1, "a");
    through.preload([1], |_| {}).await;
    assert_eq!(cached(&through).await.as_deref(), Some("a"));
    fake.is(1, Fault::Rejects);
    fake.put(1, "b");
    near.pause();
    let consumer = through.consume();
    let _bad = write(&through, 1, "bad").await;
    drain(&through).await;
    assert_eq!((through.stats().buried, fake.stores.load(Ordering::SeqCst)), (1, 1));
    near.resume();
    eventually("it is cached", async || cached(&through).await.as_deref() == Some("b")).await;
    consumer.stop().await;
}

#[tokio::test]
async fn where_there_is_no_room_for_a_letter_its_key_waits() {
    let server = server::redis(&[]).await;
    let (fake, near) = (Fake::default(), url(&server));
    let cache = cache(&near).await.build(fake.clone()).unwrap();
    let queue = queue(&near).await.max_letters(2).bound(4);
    let through = Through::builder(queue, cache, fake.clone()).build();
    for id in 0..3 {
        fake.is(id, Fault::Rejects);
    }
    let consumer = through.consume();
    for id in 0..3 {
        let _ = write(&through, id, "bad").await;
    }
    let other = write(&through, 3, "good").await;
    applied(&through, other).await;
    eventually("two are letters", async || through.backlog().await.unwrap().letters == 2).await;
    let waits = write(&through, 2, "good").await;
    assert!(through.applied(waits.order, Duration::ZERO).await.is_err());
    assert_eq!(through.backlog().await.unwrap().pending, 2);
    // A letter is not taken away for a queue that is full.
    let _ = (write(&through, 2, "x").await, write(&through, 2, "y").await);
    let letters = through.letters(None, 10).await.unwrap();
    assert_eq!(through.retry(letters[0].id).await.unwrap(), Retried::Full);
    assert!(through.discard(letters[0].id).await.unwrap());
    fake.is(2, None);
    drain(&through).await;
    let backlog = through.backlog().await.unwrap();
    assert!(backlog.letters == 1 || backlog.letters == 2);
    assert!(fake.history(2).ends_with(&["good".into(), "x".into(), "y".into()]));
    consumer.stop().await;
}

/// And nobody else does.
#[tokio::test]
async fn a_write_of_another_schema_waits_for_its_program() {
    let server = server::redis(&[]).await;
    let (fake, near) = (Fake::default(), url(&server));
    let with = async |schema| {
        let cache = cache(&near).await.schema(schema).build(fake.clone()).unwrap();
        Through::builder(queue(&near).await, cache, fake.clone()).build()
    };
    for (mine, other) in [(0, 1), (1, 0)] {
        let [mine, other] = [with(mine).await, with(other).await];
        let consumer = mine.consume();
        let before = fake.history(1);
        let waits = [write(&other, 1, "a").await, write(&other, 1, "b").await];
        for id in 2..100 {
            let _ = write(&mine, id, "x").await;
        }
        eventually("the others are applied", async || mine.stats().applied == 98).await;
        assert_eq!((fake.history(1), mine.backlog().await.unwrap().letters), (before.clone(), 0));
        let second = other.consume();
        applied(&mine, waits[1]).await;
        assert_eq!(fake.history(1), [before, vec!["a".into(), "b".into()]].concat());
        second.stop().await;
        consumer.stop().await;
    }
}
