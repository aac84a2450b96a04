//! A job that takes longer than its lock lives.

use std::time::Duration;

use lockkeeper::clock::Instant;
use redis::aio::MultiplexedConnection;

use super::speed::{self, How};
use crate::bench::{Bench, Redis, gone, set_nx};
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::outcome::{Outcome, Tally};
use crate::scene::Scene;
use crate::servers::Program;
use crate::timeline::{Kind, Timeline};

/// How long the lock lives, and how long the job takes, in every variant.
const TTL: Duration = Duration::from_millis(600);
const JOB: Duration = Duration::from_millis(1300);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "watchdog-long-job",
    title: "A job that takes longer than its lock lives",
    about: "Nobody knows in advance how long a job takes, so whatever time to live is chosen is too short one day: \
            the lock ends during the work, and a second client gets in. A watchdog renews the lock every third \
            of its life, if it is still its own, for as long as the job runs; when the process dies, so does \
            the watchdog, and the lock ends by itself.",
    needs: &[Program::Redis],
    anywhere: true,
    fast: false,
    variants: &[
        Variant {
            name: "fixed-ttl",
            title: "SET NX PX, not renewed",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(fixed(bench)),
        },
        Variant {
            name: "watchdog",
            title: "SET NX PX, renewed every third of its life",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(watched(bench)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: renewed by its guard",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(kept(bench)),
        },
    ],
};

/// Gives the lock its whole life again if it is one's own, in one step.
const RENEW_OWN: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

/// Client 2 asks once.
async fn asks(scene: &Scene, connection: &mut MultiplexedConnection, key: &str) -> Result<()> {
    let two = scene.actor("client 2");
    if set_nx(connection, key, "client 2", Some(TTL)).await? {
        two.did(Kind::Took, "SET lock NX → OK");
        two.believes();
    } else {
        two.did(Kind::Refused, "SET lock NX → nil");
    }
    Ok(())
}

async fn fixed(bench: &Bench) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let mut connection = redis.connect().await?;
    let (mut tally, key) = (Tally::new(), bench.key("lock"));
    speed::home_made(&mut tally, &mut connection, &bench.key("speed"), How::SetNxPx).await?;
    let scene = Scene::new();
    let one = scene.actor("client 1");
    let since = Instant::now();
    set_nx(&mut connection, &key, "client 1", Some(TTL)).await?;
    one.did(Kind::Took, format!("SET lock NX PX {} → OK", TTL.as_millis()));
    one.believes();
    gone(&mut connection, &key).await?;
    scene.actor("Redis").did(Kind::Expired, "lock expires");
    asks(&scene, &mut connection, &key).await?;
    tokio::time::sleep(JOB.saturating_sub(Instant::now().since(since))).await;
    one.believes_no_more();
    one.did(Kind::Noted, "the job is done");
    tally.run(&scene);
    Ok(tally.end(|line| {
        format!(
            "Client 1 was at work from {} on. At {} its lock ended, at {} client 2 had it, and client 1 was done at {}.",
            line.when("client 1", Kind::Took),
            line.when("Redis", Kind::Expired),
            line.when("client 2", Kind::Took),
            line.when("client 1", Kind::Noted),
        )
    }))
}

async fn watched(bench: &Bench) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let mut connection = redis.connect().await?;
    let (mut tally, key) = (Tally::new(), bench.key("lock"));
    speed::home_made(&mut tally, &mut connection, &bench.key("speed"), How::Script).await?;
    let scene = Scene::new();
    let one = scene.actor("client 1");
    set_nx(&mut connection, &key, "client 1", Some(TTL)).await?;
    one.did(Kind::Took, format!("SET lock NX PX {} → OK", TTL.as_millis()));
    one.believes();
    let renewing = async {
        let mut renewed = redis.connect().await?;
        let script = redis::Script::new(RENEW_OWN);
        loop {
            tokio::time::sleep(TTL / 3).await;
            let life = u64::try_from(TTL.as_millis()).unwrap_or(u64::MAX);
            let mut call = script.key(&key);
            let ours: u64 = call.arg("client 1").arg(life).invoke_async(&mut renewed).await?;
            one.did(
                Kind::Noted,
                if ours == 1 { "watchdog: renews" } else { "watchdog: not its own" },
            );
        }
    };
    let job = async {
        tokio::time::sleep(JOB).await;
        asks(&scene, &mut connection, &key).await
    };
    tokio::select! {
        result = renewing => return result,
        result = job => result?,
    }
    one.believes_no_more();
    one.did(Kind::Released, "the job is done");
    tally.run(&scene);
    Ok(tally.end(told))
}

async fn kept(bench: &Bench) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let (mut tally, key) = (Tally::new(), bench.key("lock"));
    speed::kept(&mut tally, &redis.locks().await?, &bench.key("speed")).await?;
    let scene = Scene::new();
    long_job(&redis, &scene, &key).await?;
    tally.run(&scene);
    Ok(tally.end(told))
}

async fn long_job(redis: &Redis, scene: &Scene, key: &str) -> Result<()> {
    let [one, two] = ["client 1", "client 2"].map(|name| scene.actor(name));
    let (first, second) = (redis.locks().await?.ttl(TTL), redis.locks().await?.ttl(TTL));
    let held = first.mutex(key).lock().await?;
    one.did(Kind::Took, format!("lock(), ttl {} ms", TTL.as_millis()));
    one.believes();
    let job = async {
        tokio::time::sleep(JOB).await;
        Ok::<_, Error>(())
    };
    held.protect(job).await??;
    match second.mutex(key).try_lock().await? {
        Some(_) => {
            two.did(Kind::Took, "try_lock() → held");
            two.believes();
        }
        None => two.did(Kind::Refused, "try_lock() → busy"),
    }
    one.believes_no_more();
    held.release().await?;
    one.did(Kind::Released, "the job is done: release()");
    Ok(())
}

fn told(line: &Timeline) -> String {
    format!(
        "Client 1 took a lock of {} ms at {} and was at work until {}. Client 2 asked shortly before that, at {}, and \
         was refused: the lock had been renewed all the time.",
        TTL.as_millis(),
        line.when("client 1", Kind::Took),
        line.when("client 1", Kind::Released),
        line.when("client 2", Kind::Refused),
    )
}
