use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};

use ::redis::{FromRedisValue, cmd};
use futures_util::{Stream, StreamExt, stream};
use lockkeeper::clock::Instant;
use testkit::server::{self, Server as Process};
use testkit::wait::{eventually, soon};

use super::build::LEASE;
use super::*;
use crate::filter::{LocalFilter, Plan, rebuild};

const NONE: [u32; 0] = [];

/// Another process, which knows nothing yet.
async fn client(server: &Process) -> RedisFilter {
    RedisFilter::connect(&format!("redis://{}", server.address()), "users").await.unwrap()
}

fn plan(keys: u64) -> Plan {
    Plan::new(Shape::for_keys(keys, 0.01).unwrap()).settle(Duration::ZERO)
}

fn users(ids: std::ops::Range<u32>) -> impl Stream<Item = Result<String, Infallible>> {
    stream::iter(ids.map(|id| Ok(format!("user:{id}"))))
}

async fn load(filter: &RedisFilter, ids: std::ops::Range<u32>) {
    let source = || users(ids);
    rebuild(filter, plan(1000), source, |_| {}).await.unwrap();
}

/// Those of them that are absent.
async fn absent(filter: &RedisFilter, ids: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let ids: Vec<_> = ids.into_iter().collect();
    let names: Vec<_> = ids.iter().map(|id| format!("user:{id}")).collect();
    let keys: Vec<_> = names.iter().map(String::as_bytes).collect();
    let said = soon("a look", filter.look(&keys)).await;
    assert_eq!(said.len(), keys.len());
    let said = ids.into_iter().zip(said);
    said.filter(|(_, verdict)| *verdict == Verdict::Absent).map(|(id, _)| id).collect()
}

async fn ask<T: FromRedisValue + Send>(
    filter: &RedisFilter,
    command: &str,
    key: usize,
    words: &[&str],
) -> T {
    let (mut command, Place { servers, keys }) = (cmd(command), &filter.place);
    command.arg(&keys[key]).arg(words);
    servers.keyspace.query(&keys[key], &command).await.unwrap()
}

#[tokio::test]
async fn says_maybe_until_it_is_loaded_and_then_the_same_to_all() {
    let server = server::redis(&[]).await;
    let (one, other) = (client(&server).await, client(&server).await);
    one.insert(&[b"user:1"]).await.unwrap();
    assert_eq!(absent(&one, 0..300).await, NONE, "nothing is known yet");
    let build = one.begin(plan(1000).shape).await.unwrap();
    assert_eq!(absent(&other, 0..300).await, NONE, "half loaded");
    drop(build);
    eventually("room for another", || async { one.begin(plan(1).shape).await.is_ok() }).await;
    other.forget().await.unwrap();

    load(&one, 0..1000).await;
    for filter in [&one, &other] {
        assert_eq!(absent(filter, 0..1000).await, NONE);
        let unknown = absent(filter, 1000..4000).await.len();
        assert!(unknown > 2930, "{unknown} of 3000");
    }
    other.insert(&[b"user:2000", b"user:2001"]).await.unwrap();
    assert_eq!(absent(&one, 2000..2002).await, NONE);
    one.forget().await.unwrap();
    assert_eq!(absent(&other, 1000..1100).await, NONE);
}

#[tokio::test]
async fn has_the_same_bits_as_one_in_process() {
    let server = server::redis(&[]).await;
    let (shared, local) = (client(&server).await, LocalFilter::new());
    load(&shared, 0..500).await;
    rebuild(&local, plan(1000), || users(0..500), |_| {}).await.unwrap();
    for id in 500..600 {
        let key = format!("user:{id}");
        shared.insert(&[key.as_bytes()]).await.unwrap();
        local.put(key.as_bytes());
    }
    let used: String = ask(&shared, "HGET", 0, &["used"]).await;
    let slot = if used == "a" { 1 } else { 2 };
    let mut bits: Vec<u8> = ask(&shared, "GET", slot, &[]).await;
    assert_eq!(bits.pop(), Some(0x80), "the one bit more");
    assert_eq!(Some(bits), local.bitmap());
}

#[tokio::test]
async fn inserts_of_all_go_to_both_while_it_is_rebuilt() {
    let server = server::redis(&[]).await;
    let (builder, writer) = (client(&server).await, client(&server).await);
    load(&builder, 0..10).await;
    // It knows the head from before.
    assert_eq!(absent(&writer, [5, 12]).await, [12]);
    let (inside, go_on) = (tokio::sync::oneshot::channel(), tokio::sync::oneshot::channel());
    let rebuilt = builder.clone();
    let task = tokio::spawn(async move {
        let source = || {
            stream::once(async move {
                inside.0.send(()).unwrap();
                go_on.1.await.unwrap();
                Ok::<_, Infallible>("user:11")
            })
            .boxed()
        };
        rebuild(&rebuilt, plan(5000), source, |_| {}).await
    });
    soon("the source is read", inside.1).await.unwrap();
    writer.insert(&[b"user:12"]).await.unwrap();
    assert_eq!(absent(&builder, [5, 11, 12]).await, [11]);
    go_on.0.send(()).unwrap();
    soon("the rebuild", task).await.unwrap().unwrap();
    assert_eq!(absent(&builder, [5, 11, 12]).await, [5], "5 was deleted");
    assert_eq!(absent(&writer, [5, 11, 12]).await, [5]);
}

/// Processes write and look while it is rebuilt again and again, each time with another size.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_that_was_inserted_is_ever_absent() {
    let server = server::redis(&[]).await;
    let (filter, done) = (client(&server).await, Arc::new(AtomicBool::new(false)));
    let rows = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut writers = Vec::new();
    for writer in 0..3_u32 {
        let (filter, done, rows) = (client(&server).await, Arc::clone(&done), Arc::clone(&rows));
        writers.push(tokio::spawn(async move {
            for written in 0_u32.. {
                let key = format!("{writer}:{written}");
                // Without time to settle: after the commit.
                rows.lock().push(key.clone());
                // Again after no answer in time, as whoever is told of it does.
                let insert = async || filter.insert(&[key.as_bytes()]).await.is_ok();
                eventually("it is inserted", insert).await;
                assert_ne!(filter.look(&[key.as_bytes()]).await, [Verdict::Absent], "{key}");
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        }));
    }
    eventually("somebody writes", async || !rows.lock().is_empty()).await;
    for round in 0..20 {
        let table = || stream::iter(rows.lock().clone().into_iter().map(Ok::<_, Infallible>));
        rebuild(&filter, plan(1000 + round * 500), table, |_| {}).await.unwrap();
    }
    done.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    let rows = rows.lock().clone();
    let keys: Vec<_> = rows.iter().map(String::as_bytes).collect();
    let said = filter.look(&keys).await;
    assert!(said.iter().all(|verdict| *verdict == Verdict::Maybe), "of {} keys", keys.len());
    assert_eq!(filter.look(&[b"made up 1"]).await, [Verdict::Absent]);
}

#[tokio::test]
async fn one_that_was_evicted_says_maybe_and_does_not_come_back_empty() {
    let server = server::redis(&[]).await;
    let filter = client(&server).await;
    for key in [1, 2, 0] {
        load(&filter, 0..10).await;
        assert_eq!(absent(&filter, 10..20).await.len(), 10);
        let evicted: u32 = ask(&filter, "DEL", key, &[]).await;
        assert_eq!(evicted, 1, "the slots are used in turn");
        assert_eq!(absent(&filter, 10..20).await, NONE);
        filter.insert(&[b"user:10"]).await.unwrap();
        assert_eq!(absent(&filter, 11..20).await, NONE);
        assert!(!ask::<bool>(&filter, "EXISTS", key, &[]).await, "made anew by an insert");
    }
    load(&filter, 0..10).await;
    testkit::nodes::ask(server.address(), "FLUSHALL").await;
    assert_eq!(absent(&filter, 10..20).await, NONE);
}

#[tokio::test]
async fn one_builds_at_a_time_and_a_dead_one_is_replaced() {
    let server = server::redis(&[]).await;
    let (first, second) = (client(&server).await, client(&server).await);
    let mut old = first.begin(plan(100).shape).await.unwrap();
    let busy = second.begin(plan(100).shape).await;
    assert!(matches!(busy, Err(FilterError::Busy { left }) if left > LEASE / 2), "{busy:?}");
    old.keep().await.unwrap();
    let _: i64 = ask(&first, "HSET", 0, &["until", "1"]).await;
    let mut new = second.begin(plan(200).shape).await.unwrap();
    assert!(matches!(old.keep().await, Err(FilterError::Gone)));
    assert!(matches!(old.finish().await, Err(FilterError::Gone)));
    new.add(b"user:1");
    new.finish().await.unwrap();
    assert_eq!(absent(&first, [1, 2]).await, [2]);
}

#[tokio::test]
async fn what_is_evicted_while_it_is_built_is_noticed() {
    let server = server::redis(&[]).await;
    let filter = client(&server).await;
    load(&filter, 0..10).await;
    let shape = Shape::of(64 * 4, 3).unwrap();

    let build = begun(&filter, shape).await;
    build.upload(0, &[0xff; 16]).await.unwrap();
    let _: i64 = ask(&filter, "DEL", 3, &[]).await;
    let more = build.upload(16, &[0xff; 16]).await;
    assert!(matches!(more, Err(FilterError::Gone)), "{more:?}");

    for key in [1, 2, 3] {
        let build = begun(&filter, shape).await;
        build.upload(0, &[0xff; 32]).await.unwrap();
        let used: String = ask(&filter, "HGET", 0, &["used"]).await;
        if key == if used == "a" { 1 } else { 2 } {
            continue;
        }
        let _: i64 = ask(&filter, "DEL", key, &[]).await;
        for _ in 0..2 {
            let gone = build.swap().await;
            assert!(matches!(gone, Err(FilterError::Gone)), "also when it is asked again");
        }
        assert_eq!(absent(&filter, [5, 12]).await, [12], "the old one stays");
    }
}

/// Because an answer was lost: also when the first request was only late, and somebody else goes on already.
#[tokio::test]
async fn steps_can_be_sent_again() {
    let server = server::redis(&[]).await;
    let filter = client(&server).await;
    let shape = Shape::of(64 * 4, 3).unwrap();
    let build = begun(&filter, shape).await;
    filter.insert(&[b"user:1"]).await.unwrap();
    begin_again(&build, shape).await;
    for _ in 0..2 {
        build.upload(0, &[0; 16]).await.unwrap();
    }
    for _ in 0..2 {
        build.upload(16, &[0; 16]).await.unwrap();
    }
    let late = build.upload(0, &[0; 16]).await;
    assert!(matches!(late, Err(FilterError::Gone)), "nothing is uploaded twice: {late:?}");
    for _ in 0..2 {
        build.swap().await.unwrap();
    }
    assert_eq!(absent(&filter, [1, 2]).await, [2]);
    begin_again(&build, shape).await;
    assert!(!ask::<bool>(&filter, "HEXISTS", 0, &["built"]).await, "it is over");
    let other = begun(&filter, shape).await;
    build.swap().await.unwrap();
    begin_again(&build, shape).await;
    other.upload(0, &[0; 32]).await.unwrap();
    other.swap().await.unwrap();
    assert_eq!(absent(&filter, [1, 2]).await, [1, 2], "the other one has none of them");
}

async fn begin_again(build: &RedisBuild, shape: Shape) {
    let (builder, shape) = (build.builder.as_bytes(), head::written(shape));
    let words = [builder, b"1000", b"again", shape.as_bytes()];
    assert_eq!(build.place.call::<i64>(&BEGIN, &words).await.unwrap(), 0);
}

/// A build of which the test does every step.
async fn begun(filter: &RedisFilter, shape: Shape) -> RedisBuild {
    // An earlier one may still be on its way out.
    let _: i64 = ask(filter, "HDEL", 0, &["builder"]).await;
    let mut build = RedisBuild::begin(filter.place.clone(), shape).await.unwrap();
    // As if it were done: nothing happens when it is dropped.
    build.done = true;
    build
}

/// Nobody may take the head that a late request makes for one that he knows from before: other slots were used then.
#[tokio::test]
async fn a_head_that_was_there_before_does_not_come_back() {
    let server = server::redis(&[]).await;
    let (filter, other) = (client(&server).await, client(&server).await);
    let shape = Shape::of(64 * 4, 3).unwrap();
    load(&filter, 0..10).await;
    let build = begun(&filter, shape).await;
    give_up(&build).await;
    begin_again(&build, shape).await;
    assert_eq!(absent(&other, [5, 12]).await, [12]);
    give_up(&build).await;
    rebuild(&filter, plan(5000), || users(0..10), |_| {}).await.unwrap();
    begin_again(&build, shape).await;
    assert_eq!(absent(&other, 0..10).await, NONE);
    other.insert(&[b"user:12"]).await.unwrap();
    assert_eq!(absent(&filter, [5, 12, 13]).await, [13]);
}

async fn give_up(build: &RedisBuild) {
    let words = [build.builder.as_bytes(), b"over"];
    assert_eq!(build.place.call::<i64>(&GIVE_UP, &words).await.unwrap(), 1);
}

/// As if another server had taken in what is there.
async fn of_another_server(filter: &RedisFilter) {
    let _: i64 = ask(filter, "HSET", 0, &["by", "another!"]).await;
}

#[tokio::test]
async fn what_another_server_has_taken_in_is_not_known_and_goes_no_further() {
    let server = server::redis(&[]).await;
    let (filter, shape) = (client(&server).await, Shape::of(64 * 4, 3).unwrap());
    load(&filter, 0..10).await;
    assert_eq!(absent(&filter, 10..20).await.len(), 10);
    of_another_server(&filter).await;
    assert_eq!(absent(&filter, 10..20).await, NONE);

    // One that was begun there, with all that it had uploaded.
    let build = begun(&filter, shape).await;
    build.upload(0, &[0; 32]).await.unwrap();
    of_another_server(&filter).await;
    for _ in 0..2 {
        let more = build.upload(0, &[]).await;
        assert!(matches!(more, Err(FilterError::Gone)), "{more:?}");
        let swapped = build.swap().await;
        assert!(matches!(swapped, Err(FilterError::Gone)), "{swapped:?}");
    }
    // Nobody waits for it.
    let mut next = filter.begin(plan(100).shape).await.unwrap();
    next.add(b"user:1");
    assert_eq!(absent(&filter, 0..20).await, NONE, "nothing of the old one is there");
    filter.insert(&[b"user:2"]).await.unwrap();
    next.finish().await.unwrap();
    assert_eq!(absent(&filter, 0..4).await, [0, 3]);
}

/// Whoever has not heard yet which server it is must not lose what he inserts.
#[tokio::test]
async fn what_is_inserted_is_there_whichever_server_it_was_meant_for() {
    let server = server::redis(&[]).await;
    let filter = client(&server).await;
    load(&filter, 0..10).await;
    let by: Vec<u8> = ask(&filter, "HGET", 0, &["by"]).await;
    of_another_server(&filter).await;
    filter.insert(&[b"user:12"]).await.unwrap();
    let Place { servers, keys } = &filter.place;
    let mut back = cmd("HSET");
    back.arg(&keys[0]).arg("by").arg(by);
    servers.keyspace.query::<i64>(&keys[0], &back).await.unwrap();
    assert_eq!(absent(&filter, [12, 13]).await, [13]);
}

#[tokio::test]
async fn a_server_that_is_slow_or_down_makes_it_say_maybe_in_time() {
    let mut server = server::redis(&[]).await;
    let filter = client(&server).await;
    load(&filter, 0..10).await;
    assert_eq!(absent(&filter, [12]).await, [12]);
    server.pause();
    let since = Instant::now();
    assert_eq!(absent(&filter, [12]).await, NONE);
    assert!(Instant::now().since(since) >= Duration::from_millis(900));
    assert!(filter.insert(&[b"user:12"]).await.is_err());
    server.resume();
    eventually("it answers", || async { !absent(&filter, [13]).await.is_empty() }).await;
    server.kill();
    assert_eq!(absent(&filter, [13]).await, NONE);
    assert!(filter.insert(&[b"user:13"]).await.is_err());
}

#[tokio::test]
async fn a_foreign_value_is_an_error_and_maybe() {
    let server = server::redis(&[]).await;
    let filter = client(&server).await;
    let _: String = ask(&filter, "SET", 0, &["something else"]).await;
    assert_eq!(absent(&filter, 0..3).await, NONE);
    assert!(filter.insert(&[b"user:1"]).await.is_err());
    assert!(matches!(filter.begin(plan(1).shape).await, Err(FilterError::Store(_))));
    for name in ["", "a{b", "}"] {
        let odd = RedisFilter::connect(&format!("redis://{}", server.address()), name).await;
        assert!(matches!(odd, Err(FilterError::Name(_))), "{name:?}");
    }
}
