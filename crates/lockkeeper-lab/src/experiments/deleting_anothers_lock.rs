//! A lock expires while its holder works; then the holder deletes the lock of the next one.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use super::speed::{self, DELETE_OWN, How};
use crate::bench::{Bench, Redis, gone, set_nx};
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::outcome::{Outcome, Tally};
use crate::scene::{Actor, Scene};
use crate::servers::Program;
use crate::timeline::Kind;

/// How often each program is run, all at the same time: they mostly wait.
const RUNS: u64 = 5;
/// How often those runs are repeated in which this machine stood still for longer than a lock lives.
const TRIES: u64 = 5;
/// How long every lock here lives: long enough that one which is renewed is so in time on a busy machine.
const TTL: Duration = Duration::from_millis(300);
/// For how long client 1 works under a lock that is renewed; under one that is not, until it is gone.
const WORK: Duration = Duration::from_millis(600);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "deleting-anothers-lock",
    title: "The lock expires during the work, and its holder then deletes the next one's",
    about: "A lock with a time to live frees itself when its holder dies. It also frees itself when the \
            holder is merely slow: a second client gets in, and when the first is done it deletes a lock \
            that is not its own any more, so that a third gets in as well. One delay, and nobody is \
            locked out any longer. What keeps client 2 out is that the lock is renewed (see watchdog-long-job); \
            that a release never takes another's lock away is shown by check-then-delete.",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "set-nx-px-del",
            title: "SET NX PX, then DEL",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(expiring(bench, false)),
        },
        Variant {
            name: "delete-own-only",
            title: "SET NX PX, deleted by a script only if it is one's own",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(expiring(bench, true)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: renewed while the work goes on",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(renewed(bench)),
        },
    ],
};

/// A client of the home-made lock.
struct Client<'a> {
    actor: Actor,
    connection: &'a mut MultiplexedConnection,
    key: &'a str,
    own_only: bool,
}

impl Client<'_> {
    /// Tries once; whether it believes to hold it.
    async fn lock(&mut self) -> Result<bool> {
        let got = set_nx(self.connection, self.key, self.actor.name(), Some(TTL)).await?;
        if got {
            self.actor.did(Kind::Took, format!("SET lock NX PX {} → OK", TTL.as_millis()));
            self.actor.believes();
        } else {
            self.actor.did(Kind::Refused, "SET lock NX → nil");
        }
        Ok(got)
    }

    async fn unlock(&mut self) -> Result<()> {
        self.actor.believes_no_more();
        if self.own_only {
            let script = redis::Script::new(DELETE_OWN);
            let mut call = script.key(self.key);
            let call = call.arg(self.actor.name());
            let deleted: u64 = call.invoke_async(self.connection).await?;
            let text = if deleted == 1 { "deletes its lock" } else { "lock is not its own: left" };
            self.actor.did(Kind::Released, text);
        } else {
            let owner: Option<String> = self.connection.get(self.key).await?;
            self.connection.del::<_, ()>(self.key).await?;
            let whose = owner.unwrap_or_else(|| "nobody".into());
            self.actor.did(Kind::Deleted, format!("DEL lock, which is of {whose}"));
        }
        Ok(())
    }
}

/// Client 1 is slow; client 2 comes when the lock has expired, client 3 when client 1 is done.
async fn expiring(bench: &Bench, own_only: bool) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let mut connection = redis.connect().await?;
    let mut tally = Tally::new();
    let key = bench.key("lock");
    let how = if own_only { How::Script } else { How::SetNxPx };
    speed::home_made(&mut tally, &mut connection, &key, how).await?;
    let names: Vec<String> = (0..RUNS).map(|run| bench.key(&format!("lock-{run}"))).collect();
    let runs = names.iter().map(|key| {
        let mut connection = connection.clone();
        async move {
            let scene = Scene::new();
            one_run(&scene, &mut connection, key, own_only).await?;
            Ok::<_, Error>(scene)
        }
    });
    for scene in try_join_all(runs).await? {
        tally.run(&scene);
    }
    connection.del::<_, ()>(&names).await?;
    Ok(tally.end(|line| {
        let gone = line.when("Redis", Kind::Expired);
        let then = if own_only {
            "client 1 then left alone what was not its own, which kept client 3 out; but two were in already"
        } else {
            "client 1 then deleted what was client 2's, so client 3 got in as well"
        };
        format!(
            "Client 1 took the lock at {} and was still at work when it expired at {gone}. Client 2 got it at \
             {}; {then}.",
            line.when("client 1", Kind::Took),
            line.when("client 2", Kind::Took),
        )
    }))
}

async fn one_run(
    scene: &Scene,
    connection: &mut MultiplexedConnection,
    key: &str,
    own_only: bool,
) -> Result<()> {
    let mut others = [connection.clone(), connection.clone(), connection.clone()];
    let [first, second, third] = &mut others;
    let client =
        |name: &str, connection| Client { actor: scene.actor(name), connection, key, own_only };
    let (mut one, mut two) = (client("client 1", first), client("client 2", second));
    let mut three = client("client 3", third);
    let server = scene.actor("Redis");
    one.lock().await?;
    // The critical point: the work goes on until the lock is gone.
    gone(connection, key).await?;
    server.did(Kind::Expired, "lock expires");
    two.lock().await?;
    one.unlock().await?;
    if three.lock().await? {
        three.unlock().await?;
    }
    two.unlock().await
}

/// The same three clients and the same time to live; the first works for twice as long.
async fn renewed(bench: &Bench) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let mut tally = Tally::new();
    speed::kept(&mut tally, &redis.locks().await?, &bench.key("speed")).await?;
    for round in 0..TRIES {
        let missing = tally.runs()..RUNS;
        let names: Vec<String> =
            missing.map(|run| bench.key(&format!("lock-{round}-{run}"))).collect();
        let runs = names.iter().map(|key| async {
            let scene = Scene::new();
            let ended = one_renewed_run(&redis, &scene, key).await;
            (scene, ended)
        });
        for (scene, ended) in join_all(runs).await {
            match ended {
                // This machine stood still for longer than the lease, and client 1 was told: that says
                // nothing about renewal, so it is no run.
                Err(Error::Lock(lockkeeper::Error::Lost { .. })) if scene.violations() == 0 => {
                    continue;
                }
                ended => ended?,
            }
            tally.run(&scene);
        }
    }
    if tally.runs() < RUNS {
        let text = format!("{} of {RUNS} runs with a lock that is renewed in time", tally.runs());
        return Err(Error::Late(text));
    }
    Ok(tally.end(|line| {
        format!(
            "Client 1 worked for twice the time to live, and its lock was renewed meanwhile: client 2 was \
             refused at {}, and client 3 got it at {}, after the release at {}.",
            line.when("client 2", Kind::Refused),
            line.when("client 3", Kind::Took),
            line.when("client 1", Kind::Released),
        )
    }))
}

async fn one_renewed_run(redis: &Redis, scene: &Scene, key: &str) -> Result<()> {
    let names = ["client 1", "client 2", "client 3"];
    let [one, two, three] = names.map(|name| scene.actor(name));
    let first = redis.locks().await?.ttl(TTL).mutex(key).lock().await?;
    one.did(Kind::Took, format!("lock(), ttl {} ms", TTL.as_millis()));
    one.believes();
    let working = async {
        tokio::time::sleep(WORK).await;
        Ok::<_, Error>(())
    };
    first.protect(working).await??;
    one.did(Kind::Noted, format!("worked for {} ms; still held", WORK.as_millis()));
    match redis.locks().await?.ttl(TTL).mutex(key).try_lock().await? {
        Some(second) => {
            two.did(Kind::Took, "try_lock() → held");
            two.believes();
            two.believes_no_more();
            drop(second);
        }
        None => two.did(Kind::Refused, "try_lock() → busy"),
    }
    one.believes_no_more();
    first.release().await?;
    one.did(Kind::Released, "release()");
    let third = redis.locks().await?.ttl(TTL).mutex(key).lock().await?;
    three.did(Kind::Took, "lock()");
    three.believes();
    three.believes_no_more();
    third.release().await?;
    three.did(Kind::Released, "release()");
    Ok(())
}
