//! Who applies, one at a time, and what is left when he ends.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::Locks;
use lockkeeper_cache::through::Through;
use testkit::resp::Raw;
use testkit::server::{self, Server};
use testkit::wait::{eventually, soon};

use crate::fake::{Fake, Fault, applied, cache, drain, queue, through, url, write};

/// With a lease that nobody waits for.
async fn patient(server: &Server, fake: &Fake) -> Through<u32, String> {
    let url = url(server);
    let cache = cache(&url).await.lease(Duration::from_secs(3600)).build(fake.clone()).unwrap();
    Through::builder(queue(&url).await, cache, fake.clone()).build()
}

#[tokio::test]
async fn one_that_stops_ends_what_it_does_and_lets_another_go_on_at_once() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let [one, other] = [patient(&server, &fake).await, patient(&server, &fake).await];
    let consumer = one.consume();
    let first = write(&one, 1, "a").await;
    applied(&one, first).await;
    let next = other.consume();
    soon("an end", consumer.stop()).await;
    let second = write(&one, 1, "b").await;
    applied(&one, second).await;
    assert_eq!((one.stats().applied, other.stats().applied), (1, 1));
    // And so does one that is dropped.
    let last = one.consume();
    drop(next);
    let third = write(&other, 1, "c").await;
    applied(&other, third).await;
    assert_eq!((one.stats().applied, other.stats().applied), (2, 1));
    drop((one, other));
    drop(last);
    let raw = Raw::connect(server.address()).await;
    eventually("the right is given back", async || !raw.exists("{t}!queue!right").await).await;
    assert_eq!(fake.history(1), ["a", "b", "c"]);
}

/// Nothing is begun any more, and what could not be done is left for others.
#[tokio::test]
async fn one_that_stops_leaves_what_it_cannot_do() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let through = patient(&server, &fake).await;
    fake.is(1, Fault::Down);
    let consumer = through.consume();
    let waits = write(&through, 1, "a").await;
    eventually("it was tried", async || through.stats().retries > 1).await;
    soon("an end", consumer.stop()).await;
    let tried = fake.stores.load(Ordering::SeqCst);
    fake.is(1, None);
    assert!(through.applied(waits.order, Duration::from_millis(200)).await.is_err());
    assert_eq!(fake.stores.load(Ordering::SeqCst), tried);
    let consumer = through.consume();
    applied(&through, waits).await;
    consumer.stop().await;
}

#[tokio::test]
async fn one_applies_while_others_stand_by() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(through(&server, &fake).await);
    }
    let consumers: Vec<_> = all.iter().map(Through::consume).collect();
    join_all((0..200).map(|id| write(&all[0], id % 10, "x"))).await;
    drain(&all[0]).await;
    let mut applied: Vec<u64> = all.iter().map(|one| one.stats().applied).collect();
    applied.sort_unstable();
    assert_eq!(applied, [0, 0, 0, 200]);
    assert_eq!(fake.stores.load(Ordering::SeqCst), 200, "each once");
    drop(consumers);
}

#[tokio::test]
async fn consumers_take_turns_by_a_lock() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let locks = Locks::connect(&url(&server)).await.unwrap().ttl(Duration::from_millis(500));
    let mut all = Vec::new();
    for _ in 0..2 {
        all.push(crate::fake::builder(&server, &fake).await.locks(&locks).build());
    }
    let first = all[0].consume();
    let one = write(&all[0], 1, "a").await;
    applied(&all[0], one).await;
    let _second = all[1].consume();
    let two = write(&all[0], 1, "b").await;
    applied(&all[0], two).await;
    assert_eq!(all[1].stats().applied, 0);
    soon("an end", first.stop()).await;
    let three = write(&all[0], 1, "c").await;
    applied(&all[0], three).await;
    assert_eq!((all[0].stats().applied, all[1].stats().applied), (2, 1));
}

/// More of one key than are kept in memory, before and behind those of others.
#[tokio::test]
async fn many_writes_of_one_key_come_in_their_order() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let through = through(&server, &fake).await;
    for number in 0..400 {
        let _ = write(&through, 1, &number.to_string()).await;
        if number % 50 == 0 {
            let _ = write(&through, 2, &number.to_string()).await;
        }
    }
    let consumer = through.consume();
    drain(&through).await;
    assert_eq!(fake.history(1), (0..400).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!(fake.history(2).len(), 8);
    consumer.stop().await;
}
