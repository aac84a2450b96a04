//! A holder that is stopped past its lease, in a process of its own, and goes on with its next write.

use std::io::Write;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use axum::body::Body;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use lockkeeper::fence::file::FencedFile;
use lockkeeper::fence::http::{AttachLayer, http::Request, newest};
use lockkeeper::fence::redis::{Key, Script};
use lockkeeper::fence::{Error, Mark, Result};
use lockkeeper::{Guard, Locks};
use testkit::random::Random;
use testkit::server::Server;
use testkit::taker::{MARK, Taker};
use testkit::wait::soon;
use tower::{Layer, ServiceExt};

/// Its lease.
const SHORT: Duration = Duration::from_secs(1);

/// Who writes without asking whether the lock is lost, over connections that were there before.
pub(crate) struct Writer {
    redis: MultiplexedConnection,
    http: Client<HttpConnector, Body>,
    /// A key, a path or a URI.
    target: String,
}

impl Writer {
    pub(crate) async fn connect(server: &str, target: &str) -> Self {
        let client = ::redis::Client::open(server).unwrap();
        let redis = client.get_multiplexed_async_connection().await.unwrap();
        let http = Client::builder(TokioExecutor::new()).build_http();
        Self { redis, http, target: target.to_owned() }
    }

    /// In this way.
    pub(crate) async fn write(&mut self, how: &str, guard: &Guard, value: &str) -> Result<()> {
        let token = guard.token();
        match how {
            "file" => {
                return FencedFile::new(&self.target)?.write(token, value).await;
            }
            "http" => return self.put(guard, value).await,
            _ => {}
        }
        let (key, redis) = (Key::new(&self.target)?, &mut self.redis);
        match how {
            "set" => key.under(token).set(value, redis).await,
            "hset" => key.under(token).hset("field", value, redis).await,
            "delete" => key.under(token).delete(redis).await.map(drop),
            "script" => {
                let append = Script::new("return redis.call('APPEND', KEYS[1], ARGV[1])");
                key.under(token).run(&append, &[], &[value], redis).await
            }
            "mark" => key.mark(&Mark::of(guard), redis).await,
            "marked" => key.marked(&Mark::of(guard)).set(value, redis).await,
            other => panic!("unknown way {other}"),
        }
    }

    /// To a service.
    async fn put(&self, guard: &Guard, value: &str) -> Result<()> {
        let client = AttachLayer::of(guard).layer(self.http.clone());
        let request = Request::put(&self.target).body(Body::from(value.to_owned())).unwrap();
        let response = client.oneshot(request).await.unwrap();
        match (response.status().as_u16(), newest(response.headers())) {
            (200, None) => Ok(()),
            (412, Some(newest)) => Err(Error::Invalid(format!("stale {newest}"))),
            other => panic!("{other:?}"),
        }
    }
}

fn answer(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}ok {text}").and_then(|()| out.flush()).unwrap();
}

/// The other process, if this is it.
pub(crate) fn main() {
    let Ok(told) = std::env::var("TESTKIT_TAKER") else { return };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(serve(&told));
    std::process::exit(0);
}

async fn serve(told: &str) {
    let (server, target) = told.split_once(' ').unwrap();
    let locks = Locks::connect(server).await.unwrap().ttl(SHORT);
    let mut writer = Writer::connect(server, target).await;
    let mut guard: Option<Guard> = None;
    answer("ready");
    // This thread has nothing else to do than to wait for the next command.
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).unwrap() > 0 {
        let command = std::mem::take(&mut line);
        if command == "lock\n" {
            let taken = guard.insert(locks.mutex("it").lock().await.unwrap());
            answer(&taken.token().to_string());
            continue;
        }
        if command == "storm\n" {
            storm(target).await;
            answer("done");
            continue;
        }
        if command == "storm without end\n" {
            climb(target).await;
        }
        let guard = guard.as_ref().unwrap();
        answer(&match writer.write(command.trim_end(), guard, "late").await {
            Ok(()) => "written".to_owned(),
            Err(Error::Stale(late)) => format!("stale {}", late.newest.unwrap()),
            Err(Error::Overtaken { .. }) => "overtaken".to_owned(),
            Err(other) => other.to_string(),
        });
    }
}

/// Writes to a file under whatever tokens.
async fn storm(path: &str) {
    let (mut random, file) = (Random::seeded(), FencedFile::new(path).unwrap());
    for _ in 0..20 {
        let under = 1 + random.below(1000);
        let content = format!("{under} ").repeat(500);
        match file.write(crate::token(under), content).await {
            Ok(()) => {}
            Err(error) => assert!(error.stale().is_some(), "{error:?}"),
        }
    }
}

/// Writes to a file, each time under a newer token, until it is killed.
async fn climb(path: &str) {
    let file = FencedFile::new(path).unwrap();
    let first = file.newest().await.unwrap().unwrap().get() + 1;
    for under in first.. {
        let content = format!("{under} ").repeat(3000);
        file.write(crate::token(under), content).await.unwrap();
    }
}

/// One that wrote in these ways in time, was stopped, and was overtaken by the guard.
pub(crate) async fn overtaken(
    server: &Server,
    target: &str,
    ways: &[&str],
) -> (Taker, Guard, Writer) {
    let url = format!("redis://{}", server.address());
    let locks = Locks::connect(&url).await.unwrap();
    let mut late = Taker::spawn(&format!("{url} {target}")).await;
    let first = late.token("lock").await;
    for way in ways {
        assert_eq!(late.ask(way).await, "written", "in time, by {way}");
    }
    late.stop();
    let guard = soon("its lease has ended", locks.mutex("it").lock()).await.unwrap();
    assert!(guard.token().get() > first);
    (late, guard, Writer::connect(&url, target).await)
}
