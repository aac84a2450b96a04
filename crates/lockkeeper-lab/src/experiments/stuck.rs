//! What the experiments with a dead holder have in common: somebody else waits, and not for ever.

mod cut;

use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Locks, Mutex};
use redis::AsyncCommands;

use self::cut::Way;
use super::speed::{self, How};
use crate::bench::{Bench, Redis, set_nx};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::gate::within;
use crate::outcome::{Outcome, Tally};
use crate::scene::{Actor, Scene};
use crate::servers::Server;
use crate::timeline::{Kind, State, Timeline};

/// How often each program is run, all at the same time: they mostly wait.
const RUNS: u32 = 5;
/// After how many commands at most a client is cut off, and how often that is tried: a machine that stands
/// still for longer than a lease misses the critical point.
const CUTS: u32 = 3;
const ROUNDS: u32 = 5;
/// The time to live, for those that have one.
pub(super) const TTL: Duration = Duration::from_millis(200);
/// That of Lockkeeper.
const LEASE: Duration = Duration::from_millis(300);
/// Who does not get the lock of a dead client within this time is stuck.
const BOUND: Duration = Duration::from_millis(1200);

/// What the client does before it dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taking {
    /// `SETNX`, and is killed at work.
    SetNx,
    /// The same, and would delete it in a `finally` that a dead process does not reach.
    Finally,
    /// `SETNX`, and is killed before `EXPIRE`.
    BeforeExpire,
    /// `SET NX PX`, and is killed at work.
    InOneStep,
}

/// Client 1 dies with the lock; client 2 wants it.
pub(super) async fn home_made(bench: &Bench, taking: Taking) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let mut tally = Tally::new();
    let mut connection = redis.connect().await?;
    let how = match taking {
        Taking::SetNx | Taking::Finally => How::SetNx,
        Taking::BeforeExpire => How::SetNxExpire,
        Taking::InOneStep => How::SetNxPx,
    };
    speed::home_made(&mut tally, &mut connection, &bench.key("speed"), how).await?;
    let names: Vec<String> = (0..RUNS).map(|run| bench.key(&format!("lock-{run}"))).collect();
    let runs = names.iter().map(|key| one_run(&redis, key, taking));
    count(&mut tally, all(runs).await)?;
    connection.del::<_, ()>(&names).await?;
    Ok(tally.end(tell))
}

/// Counts the runs, and how long the one who had to wait longest did.
fn count(tally: &mut Tally, runs: Vec<Result<(Scene, Option<Duration>)>>) -> Result<()> {
    let mut longest = Duration::ZERO;
    for ended in runs {
        let (scene, waited) = ended?;
        tally.run(&scene);
        longest = longest.max(waited.unwrap_or(BOUND));
    }
    tally.figure(
        "Locked out after the crash (until given up)",
        longest.as_secs_f64() * 1000.0,
        "ms",
    );
    Ok(())
}

fn tell(line: &Timeline) -> String {
    let died = line.when("client 1", Kind::Crashed);
    match line.violation() {
        Some(_) => format!(
            "Client 1 died at {died} with the lock in its hands, which has no time to live. Client 2 gave up \
             after {} ms; it would never have got it.",
            BOUND.as_millis()
        ),
        None => format!(
            "Client 1 died at {died} with the lock in its hands. It ended by itself, and client 2 had it at {}.",
            line.when("client 2", Kind::Took)
        ),
    }
}

/// What is counted is how long client 2 had to wait; nothing if in vain.
async fn one_run(redis: &Redis, key: &str, taking: Taking) -> Result<(Scene, Option<Duration>)> {
    let (dies, mut connection) = (redis.connect().await?, redis.connect().await?);
    let scene = Scene::new();
    let (one, two) = (scene.actor("client 1"), scene.actor("client 2"));
    {
        let mut connection = dies;
        let ttl = (taking == Taking::InOneStep).then_some(TTL);
        if !set_nx(&mut connection, key, "client 1", ttl).await? {
            return Err(Error::Other(format!("{key} was there already")));
        }
        let command = match ttl {
            Some(ttl) => format!("SET lock NX PX {} → OK", ttl.as_millis()),
            None => "SETNX lock → 1".into(),
        };
        one.believes();
        one.did(Kind::Took, command);
        // Its work, or the way to EXPIRE.
        tokio::time::sleep(Duration::from_millis(5)).await;
        one.did(Kind::Crashed, killed(taking));
        one.believes_no_more();
    }
    two.did(Kind::Noted, "wants the lock");
    two.begins(State::Waits);
    let since = Instant::now();
    while Instant::now().since(since) < BOUND {
        if set_nx(&mut connection, key, "client 2", Some(TTL)).await? {
            two.ends(State::Waits);
            two.did(Kind::Took, "SET lock NX → OK");
            two.believes();
            return Ok((scene, Some(Instant::now().since(since))));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let left: i64 = connection.pttl(key).await?;
    let left = if left < 0 { "never ends".into() } else { format!("ends in {left} ms") };
    two.did(Kind::Refused, format!("SET lock NX → nil for {} ms", BOUND.as_millis()));
    scene.actor("Redis").did(Kind::Noted, format!("PTTL lock: {left}"));
    stuck(&scene, &two);
    Ok((scene, None))
}

fn killed(taking: Taking) -> &'static str {
    match taking {
        Taking::SetNx | Taking::InOneStep => "killed at work",
        Taking::Finally => "killed at work, before finally",
        Taking::BeforeExpire => "killed before EXPIRE",
    }
}

fn stuck(scene: &Scene, who: &Actor) {
    scene.violation(
        who,
        format!("nobody gets the lock of a dead client in {} ms", BOUND.as_millis()),
    );
}

/// The same with Lockkeeper.
pub(super) async fn kept(bench: &Bench) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let mut tally = Tally::new();
    speed::kept(&mut tally, &redis.locks().await?, &bench.key("speed")).await?;
    let names: Vec<String> = (0..RUNS).map(|run| bench.key(&format!("lock-{run}"))).collect();
    count(&mut tally, all(names.iter().map(|key| one_kept_run(&redis, key))).await)?;
    Ok(tally.end(tell))
}

async fn one_kept_run(redis: &Redis, key: &str) -> Result<(Scene, Option<Duration>)> {
    let scene = Scene::new();
    let (dying, two) = (scene.actor("client 1"), scene.actor("client 2"));
    let (url, name) = (redis.url().to_owned(), key.to_owned());
    let client = Client::start(move || async move {
        let guard = Locks::connect(&url).await?.ttl(LEASE).mutex(name).lock().await?;
        dying.believes();
        dying.did(Kind::Took, format!("lock(), ttl {} ms", LEASE.as_millis()));
        tokio::time::sleep(Duration::from_millis(5)).await;
        // Dead before it could give it back.
        std::mem::forget(guard);
        dying.did(Kind::Crashed, "killed at work");
        dying.believes_no_more();
        Ok(())
    });
    client?.end().await?;
    let mutex = redis.locks().await?.ttl(LEASE).mutex(key);
    let waited = comes(&scene, &two, &mutex).await?;
    Ok((scene, waited))
}

/// Client 2 wants the lock; how long it had to wait, and nothing if in vain.
async fn comes(scene: &Scene, two: &Actor, mutex: &Mutex) -> Result<Option<Duration>> {
    two.did(Kind::Noted, "wants the lock");
    two.begins(State::Waits);
    let since = Instant::now();
    match within(BOUND, "the lock", mutex.lock()).await {
        Ok(guard) => {
            two.ends(State::Waits);
            two.did(Kind::Took, "lock()");
            two.believes();
            let waited = Instant::now().since(since);
            guard?.release().await?;
            Ok(Some(waited))
        }
        Err(_) => {
            stuck(scene, two);
            Ok(None)
        }
    }
}

/// Client 1 dies after its first command since it asked for the lock, after its second, after its third: the
/// server has carried it out, and the client does not know.
pub(super) async fn cut_off(bench: &Bench) -> Result<Outcome> {
    let server = Server::redis(&[]).await?;
    let locks = Locks::connect(&server.url()).await?;
    let mut tally = Tally::new();
    speed::kept(&mut tally, &locks, &bench.key("speed")).await?;
    for round in 0..ROUNDS {
        let names: Vec<(u32, String)> =
            (1..=CUTS).map(|at| (at, bench.key(&format!("lock-{round}-{at}")))).collect();
        let runs = names.iter().map(|(at, key)| one_cut_run(&server, key, *at));
        let (mut between, mut ended) = (0, Vec::new());
        for run in all(runs).await {
            let (scene, waited, cut) = run?;
            between += u32::from(cut);
            ended.push(Ok((scene, waited)));
        }
        // Else nobody was cut off where it matters, and there would be nothing to show.
        if between > 0 {
            count(&mut tally, ended)?;
            return Ok(tally.end(|line| tell_cut(line, between)));
        }
    }
    Err(Error::Late("a client that is cut off when it has the lock and does not know".into()))
}

/// Whether client 1 had the lock and did not know is told besides.
async fn one_cut_run(
    server: &Server,
    key: &str,
    commands: u32,
) -> Result<(Scene, Option<Duration>, bool)> {
    let scene = Scene::new();
    let (dying, two) = (scene.actor("client 1"), scene.actor("client 2"));
    let (way, name) = (Way::to(server.address()).await?, key.to_owned());
    let client = Client::start(move || async move { dies(&dying, way, name, commands).await });
    let knew = client?.end().await?;
    let mutex = Locks::connect(&server.url()).await?.ttl(LEASE).mutex(key);
    let free = mutex.try_lock().await?;
    let busy = free.is_none();
    if let Some(free) = free {
        free.release().await?;
    } else {
        two.did(Kind::Refused, "try_lock() → busy");
    }
    let waited = comes(&scene, &two, &mutex).await?;
    Ok((scene, waited, busy && !knew))
}

/// Whether client 1 knew that it had the lock.
async fn dies(dying: &Actor, way: Way, name: String, commands: u32) -> Result<bool> {
    let locks = Locks::connect(&format!("redis://{}", way.address())).await?.ttl(LEASE);
    let mutex = locks.mutex(name);
    dying.did(Kind::Noted, format!("lock(), ttl {} ms", LEASE.as_millis()));
    way.cut_after(commands);
    let guard = tokio::select! {
        guard = within(BOUND, "an answer", mutex.lock()) => guard?.ok(),
        () = way.over() => None,
    };
    way.cut();
    let knew = guard.is_some();
    let text = if knew {
        "killed at work".into()
    } else {
        format!("killed after command {commands}, before the answer")
    };
    dying.did(Kind::Crashed, text);
    // Dead before it could give it back.
    std::mem::forget(guard);
    Ok(knew)
}

/// So many were cut off when they had the lock and did not know.
fn tell_cut(line: &Timeline, between: u32) -> String {
    if line.violation().is_some() {
        return tell(line);
    }
    format!(
        "{} Client 1 was cut off after its first command since it asked for the lock, in other runs after its second and \
         its third if there was one: in {between} of {CUTS} runs the server had given it the lock, and it did not \
         know. The lock had its time to live each time.",
        tell(line)
    )
}

/// Waits for all of them, at the same time.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    futures_util::future::join_all(futures).await
}
