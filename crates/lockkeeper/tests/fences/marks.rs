//! Marks instead of tokens, in Redis.

use lockkeeper::fence::redis::{Key, Script};
use lockkeeper::fence::{Error, Mark};
use testkit::nodes::ask;
use testkit::server;

use crate::late::overtaken;
use crate::redis::connect;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_whose_mark_is_gone_is_refused_by_redis() {
    let server = server::redis(&[]).await;
    let (mut late, guard, mut writer) = overtaken(&server, "x", &["mark", "marked"]).await;
    writer.write("mark", &guard, "").await.unwrap();
    writer.write("marked", &guard, "new").await.unwrap();
    late.go_on();
    assert_eq!(late.ask("marked").await, "overtaken");
    assert_eq!(ask(server.address(), "GET x").await, "new", "the new holder's value is intact");
}

/// What marks cannot do and tokens can: there is no order. But nobody's update is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_that_marks_late_stops_the_rightful_one() {
    let server = server::redis(&[]).await;
    let (mut late, guard, mut writer) = overtaken(&server, "x", &[]).await;
    writer.write("mark", &guard, "").await.unwrap();
    late.go_on();
    assert_eq!(late.ask("mark").await, "written");
    let refused = writer.write("marked", &guard, "new").await;
    assert!(matches!(refused, Err(Error::Overtaken { resource }) if resource == "x"));
    assert_eq!(late.ask("marked").await, "written");
    assert_eq!(ask(server.address(), "GET x").await, "late");
    // Who has the lock begins again, with what is there now.
    writer.write("mark", &guard, "").await.unwrap();
    writer.write("marked", &guard, "new").await.unwrap();
    assert_eq!(late.ask("marked").await, "overtaken");
    assert_eq!(ask(server.address(), "GET x").await, "new");
}

#[tokio::test]
async fn only_who_has_marked_redis_writes() {
    let server = server::redis(&[]).await;
    let mut client = connect(&server).await;
    let [one, two] = ["one", "two"].map(|mark| Mark::new(mark).unwrap());
    let key = Key::new("x").unwrap();
    let refused = key.marked(&one).set("a", &mut client).await;
    assert!(matches!(refused, Err(Error::Overtaken { .. })), "never marked: {refused:?}");
    key.mark(&one, &mut client).await.unwrap();
    key.marked(&one).set("a", &mut client).await.unwrap();
    key.marked(&one).raise(&mut client).await.unwrap();
    assert!(matches!(key.marked(&two).delete(&mut client).await, Err(Error::Overtaken { .. })));
    key.mark(&two, &mut client).await.unwrap();
    let append = Script::new("return redis.call('APPEND', KEYS[1], ARGV[1])");
    let length = key.marked(&two).run::<i64>(&append, &[], &["b"], &mut client).await;
    assert_eq!(length.unwrap(), 2);
    let late = key.marked(&one).run::<i64>(&append, &[], &["c"], &mut client).await;
    assert!(matches!(late, Err(Error::Overtaken { .. })), "{late:?}");
    assert_eq!(ask(server.address(), "GET x").await, "ab");
}
