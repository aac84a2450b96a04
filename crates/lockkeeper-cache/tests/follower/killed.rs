//! Followers in processes of their own, killed and stopped at any moment. Their database is another Redis server, so that they
//! share it: its log is a list of the numbers of the rows that have changed.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::Locks;
use lockkeeper_cache::cdc::{
    Batch, Finding, Follower, Log, LogError, Position, Rule, Source, Wanted,
};
use lockkeeper_cache::{BoxError, Cache, Error, Loaded, Redis};
use rustix::process::{Pid, Signal, kill_process};
use testkit::random::Random;
use testkit::resp::{Raw, Reply};
use testkit::server::{self, Server};
use testkit::wait;
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::world::{NAME, changed};

const FOLLOWER: &str = "LOCKKEEPER_TEST_FOLLOWER";
const ROWS: u64 = 40;
const TTL: Duration = Duration::from_secs(2);

/// The database, as processes see it.
#[derive(Debug)]
struct Shared(SocketAddr);

#[derive(Debug)]
struct Reading {
    raw: Raw,
    at: i64,
    first: bool,
}

#[async_trait]
impl Source for Shared {
    async fn check(&self, _: &Wanted) -> Result<Vec<Finding>, BoxError> {
        Ok(Vec::new())
    }

    async fn open(&self, from: Option<&Position>, _: &Wanted) -> Result<Box<dyn Log>, LogError> {
        let raw = Raw::connect(self.0).await;
        let at = match from {
            Some(position) => position.0.parse().unwrap(),
            None => raw.number("LLEN log").await,
        };
        Ok(Box::new(Reading { raw, at, first: from.is_none() }))
    }
}

#[async_trait]
impl Log for Reading {
    async fn next(&mut self) -> Result<Batch, LogError> {
        let mut changes = Vec::new();
        if !std::mem::take(&mut self.first) {
            let page = self.raw.ask(&format!("LRANGE log {} {}", self.at, self.at + 9)).await;
            let Reply::Many(page) = page else { panic!("{page:?}") };
            for id in page {
                let Reply::Text(id) = id else { panic!("{id:?}") };
                changes.push(changed(id.parse().unwrap()));
                self.at += 1;
            }
            if changes.is_empty() {
                sleep(Duration::from_millis(20)).await;
            }
        }
        let position = Some(Position(self.at.to_string()));
        Ok(Batch { changes, position, ..Batch::default() })
    }

    async fn confirm(&mut self, _: &Position) -> Result<(), LogError> {
        Ok(())
    }
}

async fn cache(url: &str, database: SocketAddr) -> Cache<u64, u64> {
    let database = Arc::new(Raw::connect(database).await);
    let loader = move |id: u64| {
        let database = Arc::clone(&database);
        async move {
            let number = database.text(&format!("GET row:{id}")).await;
            Ok::<_, Error>(Loaded::from(number.map(|number| number.parse().unwrap())))
        }
    };
    Cache::builder(Redis::connect(url).await.unwrap()).namespace("user").build(loader).unwrap()
}

/// Not a test: what this binary does when it is started as a follower.
#[tokio::test]
async fn follower_main() {
    let Ok(urls) = std::env::var(FOLLOWER) else { return };
    let (url, database) = urls.split_once(' ').unwrap();
    let database: SocketAddr = database.parse().unwrap();
    let locks = Locks::connect(url).await.unwrap().ttl(TTL);
    let rule = Rule::new("public.users", "{id}").unwrap();
    let cache = cache(url, database).await;
    let builder = Follower::builder(Shared(database)).name(NAME).rule(rule, &cache);
    let follower = builder.locks(locks).start().unwrap();
    sleep(wait::CASE).await;
    follower.stop().await;
}

fn start(url: &str, database: &Server) -> Child {
    let mut follower = Command::new("/proc/self/exe");
    follower.args(["killed::follower_main", "--exact", "--nocapture"]);
    follower.env(FOLLOWER, format!("{url} {}", database.address())).env_remove("RUST_TEST_THREADS");
    follower.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap()
}

fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Writes for a while, and reads, so that there is something to be invalidated.
async fn write(database: &Raw, cache: &Cache<u64, u64>, random: &mut Random, rounds: u64) {
    for _ in 0..rounds {
        let (id, number) = (random.below(ROWS), random.below(1 << 40));
        for command in
            ["MULTI".to_owned(), format!("SET row:{id} {number}"), format!("RPUSH log {id}")]
        {
            database.ask(&command).await;
        }
        database.ask("EXEC").await;
        for _ in 0..3 {
            cache.get(&random.below(ROWS)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn nothing_is_missed_when_processes_are_killed_and_stopped() {
    wait::bounded("killed", async {
        let (redis, database) = (server::redis(&[]).await, server::redis(&[]).await);
        let url = format!("redis://{}", redis.address());
        let raw = Raw::connect(database.address()).await;
        let cache = cache(&url, database.address()).await;
        let mut random = Random::seeded();
        let mut followers = [start(&url, &database), start(&url, &database)];
        for round in 0..10 {
            let rounds = 20 + random.below(150);
            write(&raw, &cache, &mut random, rounds).await;
            let at = usize::from(random.below(2) == 1);
            if round % 4 == 3 {
                // For longer than its lock lives: it wakes up where it was, and another one has taken over.
                send(&followers[at], Signal::STOP);
                write(&raw, &cache, &mut random, rounds).await;
                sleep(TTL * 3 / 2).await;
                write(&raw, &cache, &mut random, rounds).await;
                send(&followers[at], Signal::CONT);
            } else {
                followers[at].kill().await.unwrap();
                followers[at] = start(&url, &database);
            }
        }
        write(&raw, &cache, &mut random, 50).await;
        let log = raw.number("LLEN log").await;
        let at_redis = Raw::connect(redis.address()).await;
        wait::within(Duration::from_secs(30), "they have caught up", async || {
            let saved = at_redis.text(&format!("HGET !cdc:{NAME} position")).await;
            saved.is_some_and(|saved| saved.ends_with(&format!(" {log}")))
        })
        .await;
        for id in 0..ROWS {
            let number = raw.text(&format!("GET row:{id}")).await;
            let cached = cache.get(&id).await.unwrap();
            assert_eq!(cached.map(|number| number.to_string()), number, "{id}");
        }
        let stats = cache.stats();
        assert!(stats.hits > 100 && stats.fills > 100, "{stats:?}");
    })
    .await;
}
