//! RedLock, and a node whose clock jumps.

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper::clock::Instant;
use lockkeeper::fence::redis::Key;
use lockkeeper::fence::{self, Mark};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use super::home_made_redlock::{Five, RedLock};
use super::keeper::patiently;
use super::shop::Shop;
use crate::bench::{Bench, connect, gone};
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::outcome::{Outcome, Tally};
use crate::scene::{Actor, Scene};
use crate::servers::{Program, Server};
use crate::timeline::{Kind, State, Timeline};

/// How long locks live: much longer than a run takes.
const TTL: Duration = Duration::from_secs(60);
/// Which nodes the clients reach.
const FIRST: &str = "ABC";
const SECOND: &str = "CDE";

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "redlock-clock-jump",
    title: "RedLock: the clock of a node jumps, and the lock expires there",
    about: "Redis ends a key by the time of day of its own machine. Client 1 has the lock at the nodes A, B and C, \
            and cannot reach D and E. The clock of C is set forward (by hand, or by NTP), the lock is over \
            there, and client 2, which cannot reach A and B, is granted it by C, D and E. Both have a majority \
            in good time by their own clocks. Here the nodes are real servers under libfaketime, and only \
            C's clock is set. No lock that rests on Redis's expiry can prevent this, Lockkeeper's RedLock neither; a \
            fence can keep the overtaken one from writing. What counts is the piece that is sold twice; and \
            where there is a fence, what the resource says in the end is read past it and compared.",
    needs: &[Program::Redis, Program::Faketime],
    anywhere: false,
    fast: true,
    variants: &[
        Variant {
            name: "redlock",
            title: "RedLock",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(home_made(bench, false)),
        },
        Variant {
            name: "mark",
            title: "RedLock, and its random value as a mark on the resource",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(home_made(bench, true)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: two hold it, and the token of the first is refused",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(kept(bench)),
        },
    ],
};

/// The parts of a run that all variants have.
struct Stage {
    five: Five,
    /// Where the resource is.
    shop_server: Server,
    shop: MultiplexedConnection,
    scene: Scene,
    key: String,
}

impl Stage {
    async fn new(bench: &Bench) -> Result<Self> {
        let five = Five::start_with_clocks().await?;
        let shop_server = Server::redis(&[]).await?;
        let shop = connect(&shop_server.url()).await?;
        Ok(Self { five, shop_server, shop, scene: Scene::new(), key: bench.key("lock") })
    }

    fn resource(&self) -> Result<Key> {
        Key::new(format!("{}:stock", self.key)).map_err(failed)
    }

    /// Reads the resource as any client of its server can, and compares it with what was sold.
    async fn agrees(&self, shop: &Shop) -> Result<()> {
        let mut raw = connect(&self.shop_server.url()).await?;
        let says: Option<String> = raw.get(format!("{}:stock", self.key)).await?;
        shop.compare(says.as_deref());
        Ok(())
    }

    /// The clock of C, until the lock is over there.
    async fn jump(&self) -> Result<()> {
        let node = self.scene.actor("node C");
        let ahead = 2 * TTL;
        self.five.servers[2].set_clock(ahead)?;
        node.did(Kind::Noted, format!("clock jumps by {} s", ahead.as_secs()));
        let mut connection = connect(&self.five.servers[2].url()).await?;
        gone(&mut connection, &self.key).await?;
        node.did(Kind::Expired, "lock expires here");
        Ok(())
    }
}

/// What a client writes to the resource.
fn value(left: u64, actor: &Actor) -> String {
    Shop::note(left - 1, actor)
}

/// Sells a piece if the resource lets it.
fn sell(shop: &Shop, actor: &Actor, left: u64, written: fence::Result<()>) -> Result<()> {
    match written {
        Ok(()) => shop.sold(actor, left - 1),
        Err(fence::Error::Stale(stale)) => {
            let newest = stale.newest.map_or_else(String::new, |newest| newest.to_string());
            actor.did(Kind::Refused, format!("refused: token {} < {newest}", stale.token));
        }
        Err(fence::Error::Overtaken { .. }) => {
            actor.did(Kind::Refused, "refused: another's mark");
        }
        Err(error) => return Err(failed(error)),
    }
    Ok(())
}

async fn home_made(bench: &Bench, marks: bool) -> Result<Outcome> {
    let mut stage = Stage::new(bench).await?;
    let (urls, mut tally) = (stage.five.urls(), Tally::new());
    let shop = Shop::new(&stage.scene);
    let resource = stage.resource()?;
    let mut sellers = Vec::new();
    for (name, reach) in [("client 1", FIRST), ("client 2", SECOND)] {
        let actor = stage.scene.actor(name);
        let mut lock = RedLock::connect(&urls, reach, &stage.key, name, TTL).await?;
        let grant = lock.try_lock(|| Ok(())).await?;
        let grant = grant.ok_or_else(|| Error::Other(format!("{name} has no majority")))?;
        actor.did(Kind::Took, format!("lock granted by {}", grant.by));
        actor.begins(State::Holds);
        let mark = Mark::new(name.replace(' ', "-")).map_err(failed)?;
        if marks {
            resource.mark(&mark, &mut stage.shop).await.map_err(failed)?;
            actor.did(Kind::Noted, "marks the resource");
        }
        let left = shop.look(&actor);
        sellers.push((actor, mark, left, grant.until));
        if name == "client 1" {
            stage.jump().await?;
        }
    }
    // The one that was granted it last is the first to write; both are in time by their own clocks.
    for (actor, mark, left, until) in sellers.iter().rev() {
        if Instant::now() >= *until {
            return Err(Error::Late("the run".into()));
        }
        let value = value(*left, actor);
        let written =
            if marks { resource.marked(mark).set(&*value, &mut stage.shop).await } else { Ok(()) };
        sell(&shop, actor, *left, written)?;
        actor.ends(State::Holds);
    }
    if marks {
        stage.agrees(&shop).await?;
    }
    tally.run(&stage.scene);
    drop(stage.shop_server);
    Ok(tally.end(told))
}

async fn kept(bench: &Bench) -> Result<Outcome> {
    let mut stage = Stage::new(bench).await?;
    let all = stage.five.url("ABCDE");
    patiently(|| Locks::init(&all)).await?;
    let mut tally = Tally::new();
    let shop = Shop::new(&stage.scene);
    let resource = stage.resource()?;
    let mut sellers = Vec::new();
    for (name, reach) in [("client 1", FIRST), ("client 2", SECOND)] {
        let actor = stage.scene.actor(name);
        let url = stage.five.url(reach);
        let locks = patiently(|| Locks::connect(&url)).await?;
        // Not renewed, as the home-made one.
        let guard = locks.lease(TTL).mutex(&stage.key).lock().await?;
        let token = guard.token();
        resource.under(token).raise(&mut stage.shop).await.map_err(failed)?;
        actor.did(Kind::Took, format!("lock() → token {token}, shown to the resource"));
        actor.begins(State::Holds);
        let left = shop.look(&actor);
        sellers.push((actor, guard, left));
        if name == "client 1" {
            stage.jump().await?;
        }
    }
    for (actor, guard, left) in sellers.iter().rev() {
        guard.check()?;
        let value = value(*left, actor);
        let written = resource.under(guard.token()).set(&*value, &mut stage.shop).await;
        sell(&shop, actor, *left, written)?;
        actor.ends(State::Holds);
    }
    stage.agrees(&shop).await?;
    tally.run(&stage.scene);
    drop(stage.shop_server);
    Ok(tally.end(told))
}

fn told(line: &Timeline) -> String {
    let both = format!(
        "Client 1 had the lock from {} on. At {} it was over at node C, whose clock had jumped, and at {} \
         client 2 had it as well, by C, D and E. Client 2 sold a piece at {}",
        line.when("client 1", Kind::Took),
        line.when("node C", Kind::Expired),
        line.when("client 2", Kind::Took),
        line.when("client 2", Kind::Wrote),
    );
    match line.first("client 1", Kind::Wrote) {
        Some(_) => {
            let at = line.when("client 1", Kind::Wrote);
            format!("{both}, and client 1 the same piece at {at}.")
        }
        None => {
            let at = line.when("client 1", Kind::Refused);
            format!("{both}; the write of client 1 at {at} was refused by the resource.")
        }
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Other(error.to_string())
}
