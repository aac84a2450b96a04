//! The id of a write: known while it waits and for a while afterwards, and then forgotten.

use std::time::Duration;

use lockkeeper_cache::Order;
use lockkeeper_cache::through::{Retried, Through};
use testkit::proxy::Proxy;
use testkit::resp::{Raw, Reply};
use testkit::server::{self, Server};
use testkit::wait::{eventually, soon};

use crate::fake::{Fake, Fault, cache, drain, queue, url};

const KEY: &str = "{t}!queue!id:id";
const WAITING: &str = "{t}!queue!waiting";

/// Longer than any test takes.
const HOUR: Duration = Duration::from_secs(3600);

/// Ids are remembered for so long; the queue is reached at this URL.
async fn at(
    server: &Server,
    url_of_queue: &str,
    fake: &Fake,
    time: Duration,
) -> Through<u32, String> {
    let cache = cache(&url(server)).await.build(fake.clone()).unwrap();
    let queue = queue(url_of_queue).await.remember(time);
    Through::builder(queue, cache, fake.clone()).build()
}

async fn remembering(server: &Server, fake: &Fake, time: Duration) -> Through<u32, String> {
    at(server, &url(server), fake, time).await
}

async fn write_as(through: &Through<u32, String>, id: &str, value: &str) -> Order {
    soon("a write", through.write_as(id, &1, Some(value.into()))).await.unwrap().order
}

async fn forgotten(raw: &Raw) {
    eventually("it is forgotten", async || !raw.exists(KEY).await).await;
}

/// As if it had been remembered for a long time already.
async fn nearly_forgotten(raw: &Raw) {
    assert_eq!(raw.number(&format!("PEXPIRE {KEY} 60000")).await, 1);
}

async fn is_remembered_anew(raw: &Raw) {
    let left = raw.left(KEY).await;
    assert!(left.is_some_and(|left| left <= HOUR && left > HOUR / 2), "{left:?}");
    assert!(!raw.exists(WAITING).await);
}

#[tokio::test]
async fn an_id_is_known_for_as_long_as_its_write_waits() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let through = remembering(&server, &fake, Duration::from_millis(50)).await;
    let raw = Raw::connect(server.address()).await;
    let first = write_as(&through, "id", "a").await;
    forgotten(&raw).await;
    // Over a write that was made since, it would come back.
    let _ = write_as(&through, "other", "b").await;
    assert_eq!(write_as(&through, "id", "a").await, first);
    assert_eq!(raw.number("XLEN {t}!queue").await, 2);
    let consumer = through.consume();
    drain(&through).await;
    assert_eq!(fake.history(1), ["a", "b"]);
    consumer.stop().await;
    // It ends its time later, and is an id like any other.
    forgotten(&raw).await;
    assert!(write_as(&through, "id", "c").await > first);
}

#[tokio::test]
async fn an_id_is_remembered_from_when_its_write_is_applied() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let through = remembering(&server, &fake, HOUR).await;
    let raw = Raw::connect(server.address()).await;
    let first = write_as(&through, "id", "a").await;
    nearly_forgotten(&raw).await;
    let consumer = through.consume();
    drain(&through).await;
    is_remembered_anew(&raw).await;
    assert_eq!(write_as(&through, "id", "a").await, first);
    assert_eq!(raw.immortal().await, ["{t}!queue"]);
    consumer.stop().await;
}

#[tokio::test]
async fn an_id_is_remembered_from_when_its_write_is_a_letter_is_retried_or_discarded() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let through = remembering(&server, &fake, HOUR).await;
    let raw = Raw::connect(server.address()).await;
    fake.is(1, Fault::Rejects);
    let first = write_as(&through, "id", "a").await;
    nearly_forgotten(&raw).await;
    let consumer = through.consume();
    drain(&through).await;
    is_remembered_anew(&raw).await;
    consumer.stop().await;

    // It waits again, in another place, and longer than it would be remembered.
    let letter = through.letters(None, 1).await.unwrap()[0].id;
    let Retried::Waits(again) = through.retry(letter).await.unwrap() else { panic!("gone") };
    assert!(again > first);
    assert_eq!(write_as(&through, "id", "a").await, again);
    assert_eq!(raw.number(&format!("DEL {KEY}")).await, 1);
    assert_eq!(write_as(&through, "id", "a").await, again);
    assert_eq!(raw.number("XLEN {t}!queue").await, 1);

    let consumer = through.consume();
    drain(&through).await;
    is_remembered_anew(&raw).await;
    nearly_forgotten(&raw).await;
    let letter = through.letters(None, 1).await.unwrap()[0].id;
    assert!(through.discard(letter).await.unwrap());
    is_remembered_anew(&raw).await;
    assert_eq!(write_as(&through, "id", "a").await, again);
    assert_eq!(raw.immortal().await, ["{t}!queue", "{t}!queue!letters"]);
    consumer.stop().await;
}

/// A step is done as a whole: who does not hear of it does it again, and nothing stays.
#[tokio::test]
async fn a_step_whose_answer_is_lost_leaves_nothing_behind() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let proxy = Proxy::to(server.address()).await;
    let far = format!("redis://{}", proxy.address());
    let through = at(&server, &far, &fake, HOUR).await;
    let raw = Raw::connect(server.address()).await;
    for fault in [None, Some(Fault::Rejects)] {
        fake.is(1, fault);
        for number in 0..10 {
            let consumer = through.consume();
            let before = through.stats();
            let _ = write_as(&through, &format!("{fault:?}{number}"), "a").await;
            proxy.lose_next_reply();
            drain(&through).await;
            eventually("it is known how it ended", async || {
                let now = through.stats();
                now.applied + now.buried > before.applied + before.buried
            })
            .await;
            consumer.stop().await;
        }
    }
    assert_eq!(fake.history(1).len(), 10);
    assert_eq!(raw.immortal().await, ["{t}!queue", "{t}!queue!buried", "{t}!queue!letters"]);
}

/// Programs that were made before know an id for a while after it was appended, and take writes out without a word of it.
#[tokio::test]
async fn beside_programs_of_before_nothing_stays_for_ever() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    let through = remembering(&server, &fake, HOUR).await;
    let raw = Raw::connect(server.address()).await;
    let theirs = async |ms: u32| {
        let added = raw.ask("XADD {t}!queue * id id key 1 schema 0 value \"a\"").await;
        let Reply::Text(order) = added else { panic!("{added:?}") };
        raw.ask(&format!("SET {KEY} {order} PX {ms}")).await;
        order
    };
    // What they have appended is known for as long as they said, and then from when it is applied.
    let order = theirs(60_000).await;
    let again = write_as(&through, "id", "a").await;
    assert_eq!(format!("{}-{}", again.ms(), again.seq()), order);
    let consumer = through.consume();
    drain(&through).await;
    is_remembered_anew(&raw).await;
    consumer.stop().await;
    // In between it is not, as it was not before; the later one is the one that is known.
    raw.number(&format!("DEL {KEY}")).await;
    let _ = theirs(1).await;
    forgotten(&raw).await;
    let second = write_as(&through, "id", "b").await;
    assert_eq!(raw.number("XLEN {t}!queue").await, 2);
    let consumer = through.consume();
    drain(&through).await;
    is_remembered_anew(&raw).await;
    assert_eq!(write_as(&through, "id", "b").await, second);
    consumer.stop().await;
    // They take out what we have appended: it is not taken for one that waits, and gone when the queue was empty.
    let third = write_as(&through, "third", "c").await;
    let order = format!("{}-{}", third.ms(), third.seq());
    assert_eq!(raw.number(&format!("XDEL {{t}}!queue {order}")).await, 1);
    assert_eq!(raw.number("DEL {t}!queue!id:third").await, 1);
    let fourth = write_as(&through, "fourth", "d").await;
    assert!(write_as(&through, "third", "c").await > fourth);
    let consumer = through.consume();
    drain(&through).await;
    assert_eq!(raw.immortal().await, ["{t}!queue"]);
    consumer.stop().await;
}
