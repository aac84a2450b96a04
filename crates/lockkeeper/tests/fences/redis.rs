//! Keys of Redis.

use std::time::Duration;

use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use lockkeeper::fence::redis::{Key, RedisTokens, Script};
use lockkeeper::fence::{Error, TokenStore};
use testkit::nodes::{Cluster, ask};
use testkit::proxy::Proxy;
use testkit::random::Random;
use testkit::server::{self, Server};
use testkit::wait::soon;

use crate::late::overtaken;
use crate::{stale, token};

pub(crate) async fn connect(server: &Server) -> MultiplexedConnection {
    let client = ::redis::Client::open(format!("redis://{}", server.address())).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

async fn tell(server: &Server, command: &str) -> String {
    ask(server.address(), command).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_that_writes_late_to_redis_is_refused() {
    let server = server::redis(&[]).await;
    let ways = ["set", "script"];
    let (mut late, guard, mut writer) = overtaken(&server, "account:1", &ways).await;
    writer.write("set", &guard, "new").await.unwrap();
    late.go_on();
    for way in ["set", "script", "delete", "hset"] {
        assert_eq!(late.ask(way).await, format!("stale {}", guard.token()), "by {way}");
    }
    assert_eq!(tell(&server, "GET account:1").await, "new", "the new holder's value is intact");
    writer.write("delete", &guard, "").await.unwrap();
    assert_eq!(late.ask("set").await, format!("stale {}", guard.token()), "its fence stays");
    guard.release().await.unwrap();
    let (mut late, guard, mut writer) = overtaken(&server, "{a}hash", &["hset"]).await;
    writer.write("hset", &guard, "new").await.unwrap();
    late.go_on();
    assert_eq!(late.ask("hset").await, format!("stale {}", guard.token()));
    assert_eq!(tell(&server, "HGET {a}hash field").await, "new");
}

#[tokio::test]
async fn under_one_token_redis_is_written_as_often_as_one_likes() {
    let server = server::redis(&[]).await;
    let mut client = connect(&server).await;
    let key = Key::new("x").unwrap();
    assert_eq!(key.newest(&mut client).await.unwrap(), None);
    for value in ["a", "a", "b"] {
        key.under(token(3)).set(value, &mut client).await.unwrap();
    }
    assert_eq!(tell(&server, "GET x").await, "b");
    stale(key.under(token(2)).set("late", &mut client).await, "x", 2, 3);
    key.under(token(9)).raise(&mut client).await.unwrap();
    stale(key.under(token(3)).delete(&mut client).await, "x", 3, 9);
    assert_eq!(tell(&server, "GET x").await, "b", "only raised");
    assert!(key.under(token(9)).delete(&mut client).await.unwrap());
    assert!(!key.under(token(9)).delete(&mut client).await.unwrap());
    stale(key.under(token(8)).set("late", &mut client).await, "x", 8, 9);
    assert_eq!(key.newest(&mut client).await.unwrap(), Some(token(9)));
    let time = Duration::from_secs(50);
    key.under(token(9)).set_for("for a while", time, &mut client).await.unwrap();
    let left: i64 = tell(&server, "PTTL x").await.parse().unwrap();
    assert!((1..=50_000).contains(&left), "{left}");
}

#[tokio::test]
async fn tokens_are_compared_as_numbers_however_large() {
    let server = server::redis(&[]).await;
    let mut client = connect(&server).await;
    let key = Key::new("x").unwrap();
    // Those beyond 2^53 differ by less than Lua's numbers can tell.
    let mut last = 1;
    for next in [2, 9, 10, 99, 100, 1 << 53, (1 << 53) + 1, u64::MAX - 1, u64::MAX] {
        key.under(token(next)).set(next, &mut client).await.unwrap();
        stale(key.under(token(last)).set("late", &mut client).await, "x", last, next);
        last = next;
    }
    assert_eq!(tell(&server, "GET x").await, u64::MAX.to_string());
}

#[tokio::test]
async fn a_script_sees_its_own_keys_and_arguments_only() {
    let server = server::redis(&[]).await;
    let mut client = connect(&server).await;
    let key = Key::new("{a}1").unwrap();
    let echo = Script::new("return {#KEYS, KEYS[1], KEYS[2], #ARGV, ARGV[1], ARGV[2]}");
    let seen: (u8, String, String, u8, String, i64) =
        key.under(token(1)).run(&echo, &["{a}2"], &["x", "7"], &mut client).await.unwrap();
    assert_eq!(seen, (2, "{a}1".into(), "{a}2".into(), 2, "x".into(), 7));
    let nothing: [&str; 0] = [];
    let count = Script::new("#!lua flags=allow-oom\nreturn redis.call('INCR', KEYS[1])");
    for expected in 1..=3_i64 {
        let run = key.under(token(2)).run::<i64>(&count, &[], &nothing, &mut client).await;
        assert_eq!(run.unwrap(), expected);
    }
    let run = key.under(token(1)).run::<i64>(&count, &[], &nothing, &mut client).await;
    stale(run, "{a}1", 1, 2);
    assert_eq!(tell(&server, "GET {a}1").await, "3");
    // What the script itself fails with is not taken for a refusal.
    for lua in ["return redis.error_reply('MINE 5')", "this is no Lua", "error('oops')"] {
        let (write, broken) = (key.under(token(2)), Script::new(lua));
        let run = write.run::<()>(&broken, &[], &nothing, &mut client).await;
        let error = run.unwrap_err();
        assert!(matches!(error, Error::Store { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_server_that_has_forgotten_a_script_gets_it_again() {
    let server = server::redis(&[]).await;
    let mut client = connect(&server).await;
    let key = Key::new("x").unwrap();
    for value in 0..3 {
        key.under(token(5)).set(value, &mut client).await.unwrap();
        assert_eq!(tell(&server, "SCRIPT FLUSH").await, "OK");
    }
    stale(key.under(token(4)).set("late", &mut client).await, "x", 4, 5);
    assert_eq!(tell(&server, "GET x").await, "2");
}

#[tokio::test]
async fn wrong_types_change_nothing() {
    let server = server::redis(&[]).await;
    let mut client = connect(&server).await;
    tell(&server, "RPUSH x 1").await;
    let key = Key::new("x").unwrap();
    let error = key.under(token(3)).hset("field", "value", &mut client).await.unwrap_err();
    let text = format!("{error:?}");
    assert!(matches!(error, Error::Store { .. }) && text.contains("WRONGTYPE"), "{text}");
    assert_eq!(tell(&server, "TYPE x").await, "list");
    key.under(token(3)).set("whatever it was", &mut client).await.unwrap();
    // A fence that is none lets nothing pass.
    for (odd, wrong) in [("SET", "seven"), ("SET", "07"), ("SET", "-1"), ("RPUSH", "1")] {
        tell(&server, "DEL lockkeeper:fence:{x}").await;
        tell(&server, &format!("{odd} lockkeeper:fence:{{x}} {wrong}")).await;
        let error = key.under(token(9)).set("late", &mut client).await.unwrap_err();
        match odd {
            "SET" => assert!(matches!(error, Error::Invalid(_)), "{error:?}"),
            _ => assert!(matches!(error, Error::Store { .. }), "{error:?}"),
        }
        assert_eq!(tell(&server, "GET x").await, "whatever it was");
    }
}

#[tokio::test]
async fn a_fence_is_forgotten_only_if_asked_for() {
    let server = server::redis(&[]).await;
    let mut client = connect(&server).await;
    let key = Key::new("x").unwrap();
    key.under(token(3)).set("a", &mut client).await.unwrap();
    assert_eq!(tell(&server, "PTTL lockkeeper:fence:{x}").await, "-1");
    let key = key.keep(Duration::from_secs(60)).unwrap();
    for _ in 0..2 {
        key.under(token(3)).set("b", &mut client).await.unwrap();
        let left: i64 = tell(&server, "PTTL lockkeeper:fence:{x}").await.parse().unwrap();
        assert!((1..=60_000).contains(&left), "{left}");
        tell(&server, "PEXPIRE lockkeeper:fence:{x} 70000").await;
    }
    stale(key.under(token(2)).set("late", &mut client).await, "x", 2, 3);
    // Who wants it for ever gets it for ever, whoever was there before.
    let key = Key::new("x").unwrap();
    key.under(token(3)).set("c", &mut client).await.unwrap();
    assert_eq!(tell(&server, "PTTL lockkeeper:fence:{x}").await, "-1");
}

/// The script runs and its answer is lost: that is neither a success nor a failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_redis_that_is_lost_is_not_known() {
    let server = server::redis(&[]).await;
    let proxy = Proxy::to(server.address()).await;
    let client = ::redis::Client::open(format!("redis://{}", proxy.address())).unwrap();
    let mut client = client.get_multiplexed_async_connection().await.unwrap();
    let (key, count) = (Key::new("x").unwrap(), Script::new("return redis.call('INCR', KEYS[1])"));
    let none: [&str; 0] = [];
    key.under(token(3)).run::<i64>(&count, &[], &none, &mut client).await.unwrap();
    proxy.lose_next_reply();
    let lost = async { key.under(token(3)).run::<i64>(&count, &[], &none, &mut client).await };
    let error = soon("told", lost).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { source: Some(_), .. }), "{error:?}");
    assert_eq!(tell(&server, "GET x").await, "2", "it was done, and once");
    // Nothing was sent: that is known.
    let (address, mut client) = (server.address(), connect_in_vain(&server));
    drop(server);
    let refused = key.under(token(3)).set("y", &mut client).await;
    assert!(matches!(refused, Err(Error::Store { .. })), "{address}: {refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_storm_the_largest_token_wins_in_redis() {
    let server = server::redis(&[]).await;
    let mut random = Random::seeded();
    let key = Key::new("x").unwrap();
    let record = Script::new("redis.call('RPUSH', KEYS[1], ARGV[1])");
    let record = std::sync::Arc::new(record);
    let mut writers = Vec::new();
    for _ in 0..6 {
        let (mut client, mut random) = (connect(&server).await, random.fork());
        let (key, record) = (key.clone(), std::sync::Arc::clone(&record));
        writers.push(tokio::spawn(async move {
            for step in 0..60 {
                let under = token(step * 3 + 1 + random.below(20));
                let text = under.to_string();
                match key.under(under).run::<()>(&record, &[], &[text], &mut client).await {
                    Ok(()) => {}
                    Err(error) => assert!(error.stale().is_some(), "{error:?}"),
                }
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let written = tell(&server, "LRANGE x 0 -1").await;
    let written: Vec<u64> = written.lines().map(|line| line.parse().unwrap()).collect();
    assert!(written.is_sorted(), "{written:?}");
    assert_eq!(
        tell(&server, "GET lockkeeper:fence:{x}").await,
        written.last().unwrap().to_string()
    );
}

/// Who cannot read the answer does not know what it says, but the script has run: it is not to be taken for one
/// that has not.
#[tokio::test]
async fn an_answer_of_redis_that_cannot_be_read_is_not_known() {
    let server = server::redis(&[]).await;
    let (mut client, key) = (connect(&server).await, Key::new("x").unwrap());
    let add = Script::new("redis.call('INCR', KEYS[1]) return 'done'");
    let none: [&str; 0] = [];
    let answer = key.under(token(7)).run::<i64>(&add, &[], &none, &mut client).await;
    assert!(matches!(answer, Err(Error::Unknown { .. })), "{answer:?}");
    assert_eq!(tell(&server, "GET x").await, "1");
}

/// The same by a client of a cluster: fence, mark and value are in one slot, wherever that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_a_fence_is_where_its_key_is() {
    let cluster = Cluster::shared().await;
    let nodes = cluster.servers.iter().map(|server| format!("redis://{}", server.address()));
    let client = ::redis::cluster::ClusterClient::new(nodes).unwrap();
    let mut client = client.get_async_connection().await.unwrap();
    for at in 0..12 {
        for name in [format!("fenced{at}"), format!("{{fenced{at}}}x"), format!("a{{{at}")] {
            let key = Key::new(&name).unwrap();
            key.under(token(7)).set("new", &mut client).await.unwrap();
            stale(key.under(token(6)).set("late", &mut client).await, &name, 6, 7);
            let value: String =
                ::redis::cmd("GET").arg(&name).query_async(&mut client).await.unwrap();
            assert_eq!(value, "new");
        }
    }
    let key = Key::new("fenced0").unwrap();
    let both = Script::new("return redis.call('MSET', KEYS[1], 1, KEYS[2], 2)");
    let none: [&str; 0] = [];
    let crossing = key.under(token(8)).run::<()>(&both, &["elsewhere"], &none, &mut client).await;
    assert!(format!("{crossing:?}").to_lowercase().contains("slot"), "{crossing:?}");
    tokens_of(RedisTokens::new(client)).await;
}

#[tokio::test]
async fn tokens_in_redis_are_those_of_their_names() {
    let server = server::redis(&[]).await;
    tokens_of(RedisTokens::new(connect(&server).await)).await;
    server.pause();
    let tokens = RedisTokens::new(connect_in_vain(&server));
    let silent = tokens.raise(&"x".parse().unwrap(), token(9)).await;
    assert!(matches!(silent, Err(Error::Unknown { .. })), "{silent:?}");
    server.resume();
}

/// A connection that is made when it is needed, in vain.
fn connect_in_vain(server: &Server) -> impl ConnectionLike + Clone + Send + Sync + 'static + use<> {
    let client = ::redis::Client::open(format!("redis://{}", server.address())).unwrap();
    let config = ::redis::aio::ConnectionManagerConfig::new()
        .set_connection_timeout(Some(Duration::from_millis(200)))
        .set_response_timeout(Some(Duration::from_millis(200)))
        .set_number_of_retries(0);
    ::redis::aio::ConnectionManager::new_lazy_with_config(client, config).unwrap()
}

/// Also of names that would be another slot, or another key, if they were taken as they are.
async fn tokens_of(tokens: impl TokenStore) {
    for name in ["plain", "a}b", "{a}b", "{a", "a%7Db", "日本"] {
        let of = name.parse().unwrap();
        tokens.raise(&of, token(7)).await.unwrap();
        tokens.raise(&of, token(7)).await.unwrap();
        stale(tokens.raise(&of, token(6)).await, name, 6, 7);
        tokens.raise(&of, token(8)).await.unwrap();
        stale(tokens.raise(&of, token(7)).await, name, 7, 8);
    }
}
