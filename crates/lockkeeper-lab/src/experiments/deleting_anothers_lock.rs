//! A lock expires while its holder works; then the holder deletes the lock of the next one.

use std::time::Duration;

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

/// How often each program is run.
const RUNS: u32 = 10;
/// How long the home-made lock lives.
const TTL: Duration = Duration::from_millis(40);
/// How long that of Lockkeeper does: renewed in time also on a busy machine.
const RENEWED: Duration = Duration::from_millis(400);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "deleting-anothers-lock",
    title: "The lock expires during the work, and its holder then deletes the next one's",
    note: "000 §03 (2), 004 \"two problems\"",
    about: "A lock with a time to live frees itself when its holder dies. It also frees itself when the \
            holder is merely slow: a second client gets in, and when the first is done it deletes a lock \
            that is not its own any more, so that a third gets in as well. One delay, and nobody is \
            locked out any longer.",
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
    for _ in 0..RUNS {
        let scene = Scene::new();
        one_run(&scene, &mut connection, &key, own_only).await?;
        tally.run(&scene);
        connection.del::<_, ()>(&key).await?;
    }
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

/// The same three clients; the first works for as long as before.
async fn renewed(bench: &Bench) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let mut tally = Tally::new();
    speed::kept(&mut tally, &redis.locks().await?, &bench.key("speed")).await?;
    for _ in 0..2 {
        let scene = Scene::new();
        match one_renewed_run(&redis, &scene, &bench.key("lock")).await {
            // This machine stood still for longer than the lease: it was told, and stopped in time.
            Err(Error::Lock(lockkeeper::Error::Lost { .. })) => {}
            ended => ended?,
        }
        tally.run(&scene);
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
    let first = redis.locks().await?.ttl(RENEWED).mutex(key).lock().await?;
    one.did(Kind::Took, format!("lock(), ttl {} ms", RENEWED.as_millis()));
    one.believes();
    let working = async {
        tokio::time::sleep(2 * RENEWED).await;
        Ok::<_, Error>(())
    };
    first.protect(working).await??;
    one.did(Kind::Noted, format!("worked for {} ms; still held", 2 * RENEWED.as_millis()));
    if redis.locks().await?.ttl(RENEWED).mutex(key).try_lock().await?.is_some() {
        scene.violation(&two, "client 2 got a lock that client 1 holds");
    }
    two.did(Kind::Refused, "try_lock() → busy");
    one.believes_no_more();
    first.release().await?;
    one.did(Kind::Released, "release()");
    let third = redis.locks().await?.ttl(RENEWED).mutex(key).lock().await?;
    three.did(Kind::Took, "lock()");
    three.believes();
    three.believes_no_more();
    third.release().await?;
    three.did(Kind::Released, "release()");
    Ok(())
}
