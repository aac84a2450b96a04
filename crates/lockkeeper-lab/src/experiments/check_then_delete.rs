//! A lock is compared and then deleted, in two commands; between them it becomes another's.

use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use super::speed::{self, DELETE_OWN, How};
use crate::bench::{Bench, Redis, gone, set_nx};
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::outcome::{Outcome, Tally};
use crate::scene::Scene;
use crate::servers::Program;
use crate::timeline::Kind;

/// How often each program is run.
const RUNS: u64 = 5;
/// How often it is tried: a machine that stands still too early misses the critical point.
const TRIES: u32 = 20;
/// How long the lock of client 1 lives, which is slow.
const SHORT: Duration = Duration::from_millis(60);
/// How long those of the others do.
const LONG: Duration = Duration::from_secs(10);
/// The lease of client 1 with Lockkeeper.
const LEASE: Duration = Duration::from_millis(200);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "check-then-delete",
    title: "The owner is checked and the lock deleted in two commands",
    about: "To delete only one's own lock, a client writes its name into it and looks before it deletes. \
            Between looking and deleting the lock may expire and become another's, which is then deleted all \
            the same: the one who holds it is not alone any more. Comparing and deleting must be one step.",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "get-del",
            title: "GET, compare, DEL",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(home_made(bench, false)),
        },
        Variant {
            name: "script",
            title: "Compare and delete in one script",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(home_made(bench, true)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: release() of a lease that is over",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(kept(bench)),
        },
    ],
};

/// Client 1 is done and unlocks; in the middle of that its lock expires and client 2 takes it. Then
/// client 3 comes.
async fn home_made(bench: &Bench, script: bool) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let mut connection = redis.connect().await?;
    let key = bench.key("lock");
    let mut tally = Tally::new();
    let how = if script { How::Script } else { How::GetDel };
    speed::home_made(&mut tally, &mut connection, &key, how).await?;
    let mut tries = 0;
    while tally.runs() < RUNS {
        tries += 1;
        if tries > TRIES {
            return Err(Error::Late("looking at the lock before it expires".into()));
        }
        let scene = Scene::new();
        if one_run(&scene, &mut connection, &key, script).await? {
            tally.run(&scene);
        }
        connection.del::<_, ()>(&key).await?;
    }
    Ok(tally.end(|line| {
        let (looked, gone) = (line.when("client 1", Kind::Read), line.when("Redis", Kind::Expired));
        let two = line.when("client 2", Kind::Took);
        if script {
            return format!(
                "The lock of client 1 ended at {gone}, before its script ran; the script found that of client \
                 2, taken at {two}, and left it alone, so client 3 stayed out."
            );
        }
        format!(
            "Client 1 looked at {looked}, when the lock was still its own. It ended at {gone}, client 2 took \
             it at {two}, and client 1, sure of itself, deleted it at {}: client 3 got in beside client 2.",
            line.when("client 1", Kind::Deleted)
        )
    }))
}

/// Whether it came to the critical point.
async fn one_run(
    scene: &Scene,
    connection: &mut MultiplexedConnection,
    key: &str,
    script: bool,
) -> Result<bool> {
    let [one, two, three] = ["client 1", "client 2", "client 3"].map(|name| scene.actor(name));
    let server = scene.actor("Redis");
    set_nx(connection, key, one.name(), Some(SHORT)).await?;
    one.did(Kind::Took, format!("SET lock \"1\" NX PX {}", SHORT.as_millis()));
    one.believes();
    one.believes_no_more();
    if !script {
        let owner: Option<String> = connection.get(key).await?;
        if owner.as_deref() != Some(one.name()) {
            return Ok(false);
        }
        one.did(Kind::Read, "GET lock → \"1\", its own");
    }
    // The critical point.
    gone(connection, key).await?;
    server.did(Kind::Expired, "lock expires");
    set_nx(connection, key, two.name(), Some(LONG)).await?;
    two.did(Kind::Took, "SET lock \"2\" NX → OK");
    two.believes();
    if script {
        let script = redis::Script::new(DELETE_OWN);
        let deleted: u64 = script.key(key).arg(one.name()).invoke_async(connection).await?;
        one.did(Kind::Released, format!("script: {deleted} deleted"));
    } else {
        connection.del::<_, ()>(key).await?;
        one.did(Kind::Deleted, "DEL lock");
    }
    if set_nx(connection, key, three.name(), Some(LONG)).await? {
        three.did(Kind::Took, "SET lock \"3\" NX → OK");
        three.believes();
        three.believes_no_more();
    } else {
        three.did(Kind::Refused, "SET lock \"3\" NX → nil");
    }
    two.believes_no_more();
    Ok(true)
}

async fn kept(bench: &Bench) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let mut tally = Tally::new();
    speed::kept(&mut tally, &redis.locks().await?, &bench.key("speed")).await?;
    for _ in 0..RUNS {
        let scene = Scene::new();
        one_kept_run(&redis, &scene, &bench.key("lock")).await?;
        tally.run(&scene);
    }
    Ok(tally.end(|line| {
        format!(
            "The lease of client 1 ended, and client 2 had the lock at {}. The release of client 1 at {} was \
             answered with \"lost\" and took nothing away: client 3 was refused at {}.",
            line.when("client 2", Kind::Took),
            line.when("client 1", Kind::Refused),
            line.when("client 3", Kind::Refused),
        )
    }))
}

async fn one_kept_run(redis: &Redis, scene: &Scene, key: &str) -> Result<()> {
    let [one, two, three] = ["client 1", "client 2", "client 3"].map(|name| scene.actor(name));
    let first = redis.locks().await?.lease(LEASE).mutex(key).lock().await?;
    one.did(Kind::Took, format!("lock(), lease {} ms", LEASE.as_millis()));
    one.believes();
    let cause = first.lost().await;
    one.believes_no_more();
    one.did(Kind::Expired, format!("is told: {cause}"));
    let second = redis.locks().await?.ttl(LONG).mutex(key).lock().await?;
    two.did(Kind::Took, "lock()");
    two.believes();
    match first.release().await {
        Err(lockkeeper::Error::Lost { .. }) => one.did(Kind::Refused, "release() → lost"),
        other => {
            other?;
            one.did(Kind::Released, "release() → ok");
        }
    }
    if let Some(third) = redis.locks().await?.ttl(LONG).mutex(key).try_lock().await? {
        three.did(Kind::Took, "try_lock() → ok");
        three.believes();
        third.release().await?;
        three.believes_no_more();
    } else {
        three.did(Kind::Refused, "try_lock() → busy");
    }
    two.believes_no_more();
    second.release().await?;
    two.did(Kind::Released, "release()");
    Ok(())
}
