//! A lock whose value is the time at which it ends, by the clocks of its users.

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use super::speed::{self, DELETE_OWN, How};
use crate::bench::{Bench, set_nx};
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::outcome::{Outcome, Tally};
use crate::scene::{Actor, Scene};
use crate::servers::Program;
use crate::timeline::{Kind, Timeline};

/// How often each program is run.
const RUNS: u32 = 10;
/// How long the lock is meant to last, in milliseconds.
const TIMEOUT: u64 = 5000;
/// What a right clock says, in milliseconds. No time passes during a run but what is said here.
const NOW: u64 = 1_000_000;
/// How far the clock of client 2 is ahead.
const AHEAD: u64 = 6000;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "getset-timestamp",
    title: "SETNX with a time stamp, GETSET when it has passed, and clocks that differ",
    about: "So that a crash between SETNX and EXPIRE locks nobody out, the lock's value says when it ends; who finds \
            it passed replaces it by GETSET, and has the lock if the value was still the one it had read. The \
            time is that of each client's own machine. A client whose clock is ahead by more than the time-out \
            takes a lock that is held. With equal clocks one flaw is left: who asks in vain has replaced \
            the holder's time stamp by its own, so the holder does not know its lock again when it gives it back, \
            and it stays behind, held by nobody. The clocks of these clients are part of the program, and set as \
            needed. With SET NX PX and with Lockkeeper no client's clock is asked, so none is set here; the server's \
            counts, and what happens when that jumps is shown by redlock-clock-jump.",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "clocks-apart",
            title: "GETSET, one clock 6 s ahead",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(many(bench, clocks_apart_run, How::SetNxExpire, told_apart)),
        },
        Variant {
            name: "clocks-in-step",
            title: "GETSET, equal clocks, two ask at once; the holder deletes only its own",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(many(bench, in_step_run, How::SetNxExpire, told_in_step)),
        },
        Variant {
            name: "set-nx-px",
            title: "SET NX PX: no client's clock is asked, the server's counts",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(many(bench, by_the_server_run, How::Script, told_by_the_server)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: no client's time of day is asked, the server's clock counts",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(kept(bench)),
        },
    ],
};

/// What one run does on a scene.
type OneRun = for<'a> fn(
    &'a Scene,
    &'a MultiplexedConnection,
    &'a str,
) -> std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

async fn many(
    bench: &Bench,
    run: OneRun,
    how: How,
    told: fn(&Timeline) -> String,
) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let mut connection = redis.connect().await?;
    let mut tally = Tally::new();
    speed::home_made(&mut tally, &mut connection, &bench.key("speed"), how).await?;
    for _ in 0..RUNS {
        let (scene, key) = (Scene::new(), bench.key("lock"));
        run(&scene, &connection, &key).await?;
        tally.run(&scene);
        connection.del::<_, ()>(&key).await?;
    }
    Ok(tally.end(told))
}

/// A client of this lock, with the clock of its machine.
struct Client<'a> {
    actor: Actor,
    connection: MultiplexedConnection,
    key: &'a str,
    clock: u64,
}

impl<'a> Client<'a> {
    fn new(
        scene: &Scene,
        name: &str,
        connection: &MultiplexedConnection,
        key: &'a str,
        clock: u64,
    ) -> Self {
        Self { actor: scene.actor(name), connection: connection.clone(), key, clock }
    }

    /// `SETNX`; else what the lock says.
    async fn ask(&mut self) -> Result<Option<u64>> {
        let until = self.clock + TIMEOUT;
        if set_nx(&mut self.connection, self.key, &until.to_string(), None).await? {
            self.took(format!("SETNX lock {} → 1", seconds(until))).await?;
            return Ok(None);
        }
        let says: Option<u64> = self.connection.get(self.key).await?;
        Ok(says.filter(|until| {
            let passed = has_passed(*until, self.clock);
            let [clock, until] = [self.clock, *until].map(seconds);
            if passed {
                self.actor.did(Kind::Read, format!("clock {clock}: {until} has passed"));
            } else {
                self.actor.did(Kind::Refused, format!("clock {clock}: busy until {until}"));
            }
            passed
        }))
    }

    /// `GETSET`, after the lock said that; whether it has it.
    async fn replace(&mut self, said: u64) -> Result<bool> {
        let until = self.clock + TIMEOUT;
        let mut getset = redis::cmd("GETSET");
        let getset = getset.arg(self.key).arg(until);
        let old: Option<u64> = getset.query_async(&mut self.connection).await?;
        let got = old.is_none_or(|old| old == said);
        let text =
            format!("GETSET lock {} → {}", seconds(until), old.map_or("nil".into(), seconds));
        if got {
            self.took(text).await?;
        } else {
            self.actor.did(Kind::Refused, text);
        }
        Ok(got)
    }

    /// Deletes the lock if it still says what this client wrote; whether it did.
    async fn unlock(&mut self) -> Result<bool> {
        self.actor.believes_no_more();
        let script = redis::Script::new(DELETE_OWN);
        let mut call = script.key(self.key);
        let call = call.arg(self.clock + TIMEOUT);
        let deleted: bool = call.invoke_async(&mut self.connection).await?;
        let text = if deleted {
            "deletes its lock".into()
        } else {
            let says: Option<u64> = self.connection.get(self.key).await?;
            format!("lock says {}: not its own, left", says.map_or("nil".into(), seconds))
        };
        self.actor.did(Kind::Released, text);
        Ok(deleted)
    }

    async fn took(&mut self, text: String) -> Result<()> {
        self.actor.did(Kind::Took, text);
        self.actor.believes();
        let seconds = i64::try_from(TIMEOUT / 1000).unwrap_or(i64::MAX);
        Ok(self.connection.expire(self.key, seconds).await?)
    }
}

/// Whether a lock that says this is over, by this clock.
fn has_passed(until: u64, clock: u64) -> bool {
    clock > until
}

/// As a reader wants it: `1005.000 s`.
fn seconds(millis: u64) -> String {
    format!("{}.{:03} s", millis / 1000, millis % 1000)
}

fn clocks_apart_run<'a>(
    scene: &'a Scene,
    connection: &'a MultiplexedConnection,
    key: &'a str,
) -> std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>> {
    Box::pin(async move {
        let mut one = Client::new(scene, "client 1", connection, key, NOW);
        let mut two = Client::new(scene, "client 2", connection, key, NOW + AHEAD);
        one.ask().await?;
        if let Some(said) = two.ask().await? {
            two.replace(said).await?;
        }
        Ok(())
    })
}

/// Client 1 died after `SETNX`, and its lock is over; clients 2 and 3 both see that, 7 ms apart.
fn in_step_run<'a>(
    scene: &'a Scene,
    connection: &'a MultiplexedConnection,
    key: &'a str,
) -> std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>> {
    Box::pin(async move {
        let died = scene.actor("client 1");
        let mut two = Client::new(scene, "client 2", connection, key, NOW);
        let mut three = Client::new(scene, "client 3", connection, key, NOW + 7);
        let mut dead = connection.clone();
        set_nx(&mut dead, key, &(NOW - 1000).to_string(), None).await?;
        died.did(Kind::Crashed, "SETNX lock 999.000 s, then dies");
        let (said, also) = (two.ask().await?, three.ask().await?);
        let (Some(said), Some(also)) = (said, also) else {
            return Err(Error::Other("the dead client's lock was not over".into()));
        };
        if !two.replace(said).await? || three.replace(also).await? {
            return Err(Error::Other("not client 2 alone has the lock".into()));
        }
        if !two.unlock().await? {
            // Nobody believes to hold it any more.
            if three.ask().await?.is_none() && dead.exists(key).await? {
                let text =
                    "the lock is busy, and nobody holds it: its holder could not give it back";
                scene.violation(&three.actor, text);
            }
        }
        Ok(())
    })
}

/// Nobody's clock is asked.
fn by_the_server_run<'a>(
    scene: &'a Scene,
    connection: &'a MultiplexedConnection,
    key: &'a str,
) -> std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>> {
    Box::pin(async move {
        let mut connection = connection.clone();
        let ttl = std::time::Duration::from_millis(TIMEOUT);
        for name in ["client 1", "client 2"] {
            let actor = scene.actor(name);
            if set_nx(&mut connection, key, name, Some(ttl)).await? {
                actor.did(Kind::Took, format!("SET lock NX PX {TIMEOUT} → OK"));
                actor.believes();
            } else {
                actor.did(Kind::Refused, "SET lock NX → nil");
            }
        }
        Ok(())
    })
}

async fn kept(bench: &Bench) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let (first, second) = (redis.locks().await?, redis.locks().await?);
    let mut tally = Tally::new();
    speed::kept(&mut tally, &first, &bench.key("speed")).await?;
    for _ in 0..RUNS {
        let (scene, key) = (Scene::new(), bench.key("lock"));
        let [one, two] = ["client 1", "client 2"].map(|name| scene.actor(name));
        let held = first.mutex(&key).lock().await?;
        one.did(Kind::Took, "lock() → held");
        one.believes();
        match second.mutex(&key).try_lock().await? {
            Some(_) => {
                two.did(Kind::Took, "try_lock() → held");
                two.believes();
            }
            None => two.did(Kind::Refused, "try_lock() → busy"),
        }
        one.believes_no_more();
        held.release().await?;
        tally.run(&scene);
    }
    Ok(tally.end(|line| {
        format!(
            "{} Each client counts its own lease besides, on a clock that only runs forward.",
            told_by_the_server(line)
        )
    }))
}

fn told_apart(line: &Timeline) -> String {
    let at = line.when("client 2", Kind::Took);
    format!(
        "Client 1 had the lock, for {TIMEOUT} ms. Client 2, whose clock was {AHEAD} ms ahead, came at {at}, believed \
         that the time stamp of client 1 had passed, replaced it, and believed to hold the lock as well."
    )
}

fn told_by_the_server(line: &Timeline) -> String {
    format!(
        "Client 1 had the lock; client 2 was told at {} that it is busy. No client's clock was asked, so none was put \
         wrong: the server's counts.",
        line.when("client 2", Kind::Refused),
    )
}

fn told_in_step(line: &Timeline) -> String {
    format!(
        "Client 1 had died with the lock. Clients 2 and 3 both saw that its time was over; client 2 replaced it \
         first, at {}, and had the lock. Client 3 came too late at {}, but the lock now bears its time stamp: when \
         client 2 was done at {} it took the lock for another's and left it, and everybody was refused a lock \
         that nobody held.",
        line.when("client 2", Kind::Took),
        line.when("client 3", Kind::Refused),
        line.when("client 2", Kind::Released),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_passed_hangs_on_the_clock() {
        let until = NOW + TIMEOUT;
        assert!(!has_passed(until, NOW));
        assert!(!has_passed(until, until), "not yet");
        assert!(has_passed(until, NOW + AHEAD));
        assert_eq!(seconds(1_005_007), "1005.007 s");
    }
}
