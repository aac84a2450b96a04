//! Two who read, calculate and write back in a Redis transaction: one of the two writes is lost.

use lockkeeper::Locks;
use lockkeeper::backend::redis::optimistic::Outcome as Committed;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::bench::{Bench, Redis};
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::load::{self, Client};
use crate::outcome::{Outcome, Tally};
use crate::scene::{Actor, Scene};
use crate::servers::Program;
use crate::timeline::{Kind, State, Timeline};

/// So many pieces there are at first.
const FIRST: i64 = 10;
/// How often each program is run.
const RUNS: u32 = 5;
/// So many pieces one sells alone, to see what a sale costs.
const ALONE: usize = 50;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "lost-update",
    title: "Two transactions read the same stock, and both write it back",
    about: "Commands between MULTI and EXEC see nothing: what they are to write was read before, and may have \
            changed since. That they run without anybody in between, or come in one packet, does not help. WATCH \
            makes EXEC do nothing if a key has changed since it was read, a script reads and writes in one step, \
            and a lock keeps the others away. (Seller 2 comes after seller 1 has read; the figures are those of a \
            seller whom nobody disturbs.)",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "multi-exec",
            title: "GET; then MULTI, SET, EXEC in one packet",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(sell(bench, How::Exec)),
        },
        Variant {
            name: "watch",
            title: "The same after WATCH",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(sell(bench, How::Watch)),
        },
        Variant {
            name: "script",
            title: "A script that reads and writes",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(sell(bench, How::Script)),
        },
        Variant {
            name: "lockkeeper-lock",
            title: "Lockkeeper: under a lock",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(sell(bench, How::Lock)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: an optimistic transaction",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(sell(bench, How::Optimistic)),
        },
    ],
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Exec,
    Watch,
    Script,
    Lock,
    Optimistic,
}

const SCRIPT: &str = "local stock = tonumber(redis.call('GET', KEYS[1]))
if stock < 1 then return -1 end
redis.call('SET', KEYS[1], stock - 1)
return stock - 1";

/// One who sells, on a connection of its own.
struct Seller<'a> {
    actor: Actor,
    connection: MultiplexedConnection,
    key: &'a str,
}

impl Seller<'_> {
    async fn read(&mut self, watch: bool) -> Result<i64> {
        if watch {
            redis::cmd("WATCH").arg(self.key).query_async::<()>(&mut self.connection).await?;
        }
        let stock: i64 = self.connection.get(self.key).await?;
        let what = if watch { "WATCH, GET" } else { "GET" };
        self.actor.did(Kind::Read, format!("{what} → {stock}"));
        Ok(stock)
    }

    /// Writes back what is left; whether it was carried out.
    async fn write(&mut self, left: i64) -> Result<bool> {
        let mut pipe = redis::pipe();
        pipe.atomic().set(self.key, left);
        let done: Option<Vec<redis::Value>> = pipe.query_async(&mut self.connection).await?;
        let said = if done.is_some() { "OK" } else { "nil" };
        let kind = if done.is_some() { Kind::Wrote } else { Kind::Refused };
        self.actor.did(kind, format!("MULTI, SET {left}, EXEC → {said}"));
        Ok(done.is_some())
    }

    /// A sale that nobody disturbs.
    async fn sell(&mut self, watch: bool) -> Result<()> {
        let stock = self.read(watch).await?;
        self.write(stock - 1).await.map(drop)
    }

    async fn optimistic(&self, locks: &Locks) -> Result<()> {
        let key = self.key;
        let ended = locks.optimistic([key], |tx| async move {
            let stock: i64 = tx.read(redis::Cmd::get(key)).await?;
            tx.queue(redis::Cmd::set(key, stock - 1))
        });
        let _ = ended.await?;
        Ok(())
    }

    async fn script(&mut self) -> Result<()> {
        let script = redis::Script::new(SCRIPT);
        let left: i64 = script.key(self.key).invoke_async(&mut self.connection).await?;
        self.actor.did(Kind::Wrote, format!("script: {left} are left"));
        Ok(())
    }
}

async fn sell(bench: &Bench, how: How) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let mut tally = Tally::new();
    let key = bench.key("stock");
    for _ in 0..RUNS {
        let scene = Scene::new();
        let mut sellers = Vec::new();
        for name in ["seller 1", "seller 2"] {
            let (actor, connection) = (scene.actor(name), redis.connect().await?);
            sellers.push(Seller { actor, connection, key: &key });
        }
        let [one, two] = &mut sellers[..] else { continue };
        one.connection.set::<_, _, ()>(&key, FIRST).await?;
        match how {
            How::Exec => unwatched(one, two).await?,
            How::Watch => watched(one, two).await?,
            How::Script => {
                one.script().await?;
                two.script().await?;
            }
            How::Lock => locked(&redis, bench, one, two).await?,
            How::Optimistic => optimistic(&redis, one, two).await?,
        }
        // Each of the two sold a piece.
        let left: i64 = one.connection.get(&key).await?;
        if left != FIRST - 2 {
            let text = format!("two pieces were sold, and of {FIRST} there are {left}");
            scene.violation(&scene.actor("checker"), text);
        }
        tally.run(&scene);
    }
    measure(&redis, &bench.key("alone"), how, &mut tally).await?;
    Ok(tally.end(|line| story(how, line)))
}

/// What a sale costs when nobody else sells this.
async fn measure(redis: &Redis, key: &str, how: How, tally: &mut Tally) -> Result<()> {
    let work = |mut client: Client| async move {
        let (actor, connection) = (Scene::new().actor("seller"), redis.connect().await?);
        let key = &format!("{key}-{}", client.number);
        let mut seller = Seller { actor, connection, key };
        let locks = redis.locks().await?;
        let mutex = locks.mutex(format!("{key}:lock"));
        seller.connection.set::<_, _, ()>(key, load::in_all(ALONE)).await?;
        while client.again(ALONE).await {
            match how {
                How::Exec | How::Watch => seller.sell(how == How::Watch).await?,
                How::Script => seller.script().await?,
                How::Lock => {
                    let guard = mutex.lock().await?;
                    seller.sell(false).await?;
                    guard.release().await?;
                }
                How::Optimistic => seller.optimistic(&locks).await?,
            }
        }
        match seller.connection.get(key).await? {
            0 => Ok(client.took()),
            left => Err(Error::Other(format!("{left} pieces were not sold"))),
        }
    };
    load::measure(tally, work).await
}

async fn unwatched(one: &mut Seller<'_>, two: &mut Seller<'_>) -> Result<()> {
    let stock = one.read(false).await?;
    // The critical point: the whole sale of the other.
    two.sell(false).await?;
    one.write(stock - 1).await?;
    Ok(())
}

async fn watched(one: &mut Seller<'_>, two: &mut Seller<'_>) -> Result<()> {
    let stock = one.read(true).await?;
    let stock_of_two = two.read(true).await?;
    if !two.write(stock_of_two - 1).await? {
        return Err(Error::Other("a sale that nobody disturbed was refused".into()));
    }
    let mut done = one.write(stock - 1).await?;
    for _ in 0..9 {
        if done {
            return Ok(());
        }
        let stock = one.read(true).await?;
        done = one.write(stock - 1).await?;
    }
    Err(Error::Late("a sale without a conflict".into()))
}

async fn locked(
    redis: &Redis,
    bench: &Bench,
    one: &mut Seller<'_>,
    two: &mut Seller<'_>,
) -> Result<()> {
    let (first, second) = (redis.locks().await?, redis.locks().await?);
    let name = bench.key("lock");
    let guard = first.mutex(&name).lock().await?;
    one.actor.did(Kind::Took, "lock()");
    one.actor.believes();
    let stock = one.read(false).await?;
    // The critical point: if the lock lets the other in, its whole sale happens here.
    if let Some(too_early) = second.mutex(&name).try_lock().await? {
        two.actor.did(Kind::Took, "try_lock() → got it");
        two.actor.believes();
        two.sell(false).await?;
        two.actor.believes_no_more();
        too_early.release().await?;
        one.write(stock - 1).await?;
        one.actor.believes_no_more();
        return Ok(guard.release().await?);
    }
    two.actor.did(Kind::Refused, "try_lock() → busy");
    two.actor.begins(State::Waits);
    one.write(stock - 1).await?;
    one.actor.believes_no_more();
    guard.release().await?;
    one.actor.did(Kind::Released, "release()");
    let guard = second.mutex(&name).lock().await?;
    two.actor.ends(State::Waits);
    two.actor.did(Kind::Took, "lock()");
    two.actor.believes();
    two.sell(false).await?;
    two.actor.believes_no_more();
    guard.release().await?;
    two.actor.did(Kind::Released, "release()");
    Ok(())
}

async fn optimistic(redis: &Redis, one: &mut Seller<'_>, two: &mut Seller<'_>) -> Result<()> {
    let locks = redis.locks().await?;
    let (key, actor) = (one.key, &one.actor);
    let other = (two.actor.clone(), two.connection.clone());
    let mut attempts = 0;
    let ended = locks.optimistic([key], |tx| {
        attempts += 1;
        let (attempt, (other, connection)) = (attempts, other.clone());
        async move {
            let stock: i64 = tx.read(redis::Cmd::get(key)).await?;
            actor.did(Kind::Read, format!("attempt {attempt}: GET → {stock}"));
            if attempt == 1 {
                let mut two = Seller { actor: other, connection, key };
                let sold = two.sell(true).await;
                sold.map_err(|error| lockkeeper::Error::Config(error.to_string()))?;
            }
            tx.queue(redis::Cmd::set(key, stock - 1))?;
            Ok(stock - 1)
        }
    });
    match ended.await? {
        Committed::Committed { value, .. } => {
            actor.did(Kind::Wrote, format!("committed: {value} are left"));
            Ok(())
        }
        _ => Err(Error::Other("a transaction ended in an unforeseen way".into())),
    }
}

fn story(how: How, line: &Timeline) -> String {
    let [one, two] = ["seller 1", "seller 2"].map(|seller| line.when(seller, Kind::Wrote));
    match how {
        How::Exec => format!(
            "Both sellers read {FIRST}. Seller 2 wrote {} at {two}, and seller 1 the same at {one}: two pieces were sold, \
             and one is missing from the stock.",
            FIRST - 1
        ),
        How::Watch => format!(
            "Seller 2 wrote at {two}, after seller 1 had read. The EXEC of seller 1 at {} did nothing and said so; it read \
             again, and wrote {} at {one}.",
            line.when("seller 1", Kind::Refused),
            FIRST - 2
        ),
        How::Script => format!(
            "There is no moment between reading and writing: seller 1 at {one}, seller 2 at {two}."
        ),
        How::Lock => format!(
            "Seller 2 had to wait for the lock until {}, and read what seller 1 had written.",
            line.when("seller 1", Kind::Released)
        ),
        How::Optimistic => format!(
            "Seller 2 sold at {two}, while seller 1 was at it; what seller 1 had decided was not carried out, it was asked \
             again, and at {one} {} were left.",
            FIRST - 2
        ),
    }
}
