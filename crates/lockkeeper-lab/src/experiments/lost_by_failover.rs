//! A master dies before its replicas have the lock.

use std::time::Duration;

use lockkeeper::Locks;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::bench::{Bench, connect, set_nx};
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::gate::{PATIENCE, within};
use crate::outcome::{Outcome, Tally};
use crate::scene::{Actor, Scene};
use crate::servers::{Program, Server};
use crate::timeline::{Kind, Timeline};

/// How long locks live: much longer than a run takes.
const TTL: Duration = Duration::from_secs(60);
/// How long a client waits for replicas, in milliseconds: where they answer, and where one does not.
const LONG: u64 = 10_000;
const SHORT: u64 = 300;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "lost-by-failover",
    title: "The master dies before a replica has the lock, and the replica takes over",
    about: "Redis answers a SET before its replicas have it. If the master dies in between, the replica that takes \
            over has never heard of the lock and grants it again. WAIT tells how many replicas have it: a client \
            that gets too few must not use the lock. But WAIT 1 with two replicas says nothing about the one \
            that is promoted. Here a master and two replicas are real servers; the link of a replica is cut \
            before the lock is taken, the master is killed, and the replica without the lock is promoted.",
    needs: &[Program::Redis],
    anywhere: false,
    fast: false,
    variants: &[
        Variant {
            name: "asynchronous",
            title: "SET NX PX, both links cut",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(home_made(bench, Waiting::No)),
        },
        Variant {
            name: "wait-1-of-2",
            title: "SET NX PX, then WAIT 1, one link cut",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(home_made(bench, Waiting::ForOne)),
        },
        Variant {
            name: "wait-for-all",
            title: "SET NX PX, then WAIT 2, one link cut",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(home_made(bench, Waiting::ForAll)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper, replicas=2: both links cut, then one, then none",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(kept(bench)),
        },
    ],
};

/// For how many replicas the client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    No,
    ForOne,
    ForAll,
}

/// A master and two replicas that follow it.
struct Replicated {
    master: Server,
    replicas: [Server; 2],
    /// To the replica that will be promoted.
    next: MultiplexedConnection,
    scene: Scene,
}

impl Replicated {
    async fn start() -> Result<Self> {
        let quick = ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"];
        let (master, a, b) =
            tokio::try_join!(Server::redis(&quick), Server::redis(&[]), Server::redis(&[]))?;
        let replicas = [a, b];
        let port = master.address().port().to_string();
        for replica in &replicas {
            follow(&mut connect(&replica.url()).await?, &["127.0.0.1", &port]).await?;
        }
        let mut asked = connect(&master.url()).await?;
        let following = async {
            while online(&info(&mut asked).await?) < replicas.len() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok::<_, Error>(())
        };
        within(PATIENCE, "the replicas", following).await??;
        asked.set::<_, _, ()>("a first write", 1).await?;
        let mut wait = redis::cmd("WAIT");
        let have: u64 = wait.arg(2).arg(LONG).query_async(&mut asked).await?;
        if have != 2 {
            return Err(Error::Late("the first write at both replicas".into()));
        }
        let next = connect(&replicas[1].url()).await?;
        Ok(Self { master, replicas, next, scene: Scene::new() })
    }

    /// Nothing of the master reaches this replica any more.
    async fn cut(&self, at: usize) -> Result<()> {
        // It stays a replica, of a server that is not there.
        let mut replica = connect(&self.replicas[at].url()).await?;
        follow(&mut replica, &["127.0.0.1", "1"]).await?;
        self.scene.actor("servers").did(Kind::Noted, format!("link of replica {} is cut", at + 1));
        Ok(())
    }

    /// The master dies, and the second replica takes over.
    async fn fail_over(&mut self) -> Result<()> {
        let servers = self.scene.actor("servers");
        self.master.kill()?;
        servers.did(Kind::Crashed, "the master dies");
        follow(&mut self.next, &["NO", "ONE"]).await?;
        servers.did(Kind::Resumed, "replica 2 takes over");
        Ok(())
    }
}

async fn follow(replica: &mut MultiplexedConnection, whom: &[&str]) -> Result<()> {
    Ok(redis::cmd("REPLICAOF").arg(whom).query_async(replica).await?)
}

async fn info(connection: &mut MultiplexedConnection) -> Result<String> {
    Ok(redis::cmd("INFO").arg("replication").query_async(connection).await?)
}

/// How many replicas have all, and get what comes, by the master's word.
fn online(info: &str) -> usize {
    info.lines().filter(|line| line.starts_with("slave") && line.contains("state=online")).count()
}

async fn home_made(bench: &Bench, waiting: Waiting) -> Result<Outcome> {
    let mut servers = Replicated::start().await?;
    let (scene, mut tally, key) = (servers.scene.clone(), Tally::new(), bench.key("lock"));
    let [one, two] = ["client 1", "client 2"].map(|name| scene.actor(name));
    if waiting == Waiting::No {
        servers.cut(0).await?;
    }
    servers.cut(1).await?;
    let mut connection = connect(&servers.master.url()).await?;
    set_nx(&mut connection, &key, "client 1", Some(TTL)).await?;
    if waits(&mut connection, &one, waiting).await? {
        one.believes();
    } else {
        connection.del::<_, ()>(&key).await?;
    }
    servers.fail_over().await?;
    if set_nx(&mut servers.next, &key, "client 2", Some(TTL)).await? {
        two.did(Kind::Took, "SET lock NX → OK");
        two.believes();
    } else {
        two.did(Kind::Refused, "SET lock NX → nil");
    }
    tally.run(&scene);
    Ok(tally.end(told))
}

/// Whether enough replicas have it.
async fn waits(
    connection: &mut MultiplexedConnection,
    one: &Actor,
    waiting: Waiting,
) -> Result<bool> {
    let (wanted, time) = match waiting {
        Waiting::No => {
            one.did(Kind::Took, "SET lock NX PX → OK");
            return Ok(true);
        }
        Waiting::ForOne => (1, LONG),
        Waiting::ForAll => (2, SHORT),
    };
    let mut wait = redis::cmd("WAIT");
    let reached: u64 = wait.arg(wanted).arg(time).query_async(connection).await?;
    let text = format!("SET lock NX PX → OK, WAIT {wanted} → {reached}");
    if reached >= wanted {
        one.did(Kind::Took, text);
    } else {
        one.did(Kind::Refused, format!("{text}: deletes it again"));
    }
    Ok(reached >= wanted)
}

async fn kept(bench: &Bench) -> Result<Outcome> {
    let mut tally = Tally::new();
    for cuts in [2, 1, 0] {
        let mut servers = Replicated::start().await?;
        let (scene, key) = (servers.scene.clone(), bench.key("lock"));
        let [one, two] = ["client 1", "client 2"].map(|name| scene.actor(name));
        for replica in (0..2).rev().take(cuts) {
            servers.cut(replica).await?;
        }
        let first = Locks::connect(&format!("{}?replicas=2", servers.master.url())).await?;
        let held = match first.lease(TTL).mutex(&key).try_lock().await {
            Ok(held) => held,
            Err(lockkeeper::Error::Replicas { wanted, reached, .. }) => {
                let text = format!("try_lock() → {reached} of {wanted} replicas have it: refused");
                one.did(Kind::Refused, text);
                None
            }
            Err(error) => return Err(error.into()),
        };
        if held.is_some() {
            one.did(Kind::Took, "try_lock() → held, both replicas have it");
            one.believes();
        }
        servers.fail_over().await?;
        let second = Locks::connect(&servers.replicas[1].url()).await?;
        match second.lease(TTL).mutex(&key).try_lock().await? {
            Some(_) => {
                two.did(Kind::Took, "try_lock() → held");
                two.believes();
            }
            None => two.did(Kind::Refused, "try_lock() → busy"),
        }
        tally.run(&scene);
        if held.is_some() != (cuts == 0) {
            return Err(Error::Other(
                "client 1 was to be refused when a link was cut, and only then".into(),
            ));
        }
    }
    Ok(tally.end(|line| {
        format!(
            "Both links were cut. {} With one link cut it was the same. In a third run, with both links whole, client 1 \
             was granted the lock, and client 2 was refused by the replica that had taken over.",
            told(line)
        )
    }))
}

fn told(line: &Timeline) -> String {
    let died = format!(
        "the master died at {}, and replica 2, which did not have the lock, took over at {}",
        line.when("servers", Kind::Crashed),
        line.when("servers", Kind::Resumed),
    );
    match line.first("client 1", Kind::Took) {
        Some(_) => format!(
            "Client 1 had the lock from {} on; {died}. It granted the lock to client 2 at {}.",
            line.when("client 1", Kind::Took),
            line.when("client 2", Kind::Took),
        ),
        None => format!(
            "Client 1 was told at {} that too few replicas had its lock, and did not use it; {died}. Client 2 got \
             the lock at {}, alone.",
            line.when("client 1", Kind::Refused),
            line.when("client 2", Kind::Took),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_that_have_all_are_counted() {
        let info = "role:master\r\nconnected_slaves:2\r\n\
                    slave0:ip=127.0.0.1,port=1,state=online,offset=14,lag=0\r\n\
                    slave1:ip=127.0.0.1,port=2,state=wait_bgsave,offset=0,lag=0\r\n";
        assert_eq!(online(info), 1);
        assert_eq!(online("role:master\r\nconnected_slaves:0\r\n"), 0);
    }
}
