//! ZooKeeper, and a client that stands still for longer than its session lives.

use std::time::Duration;

use super::home_made::InZooKeeper;
use super::keeper::{Fence, Keeper};
use super::late_writer::{Pause, run, told};
use crate::bench::Bench;
use crate::error::Result;
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::outcome::{Outcome, Tally};
use crate::scene::Scene;
use crate::servers::{Program, Server};

/// How long a session lives without a sign of life.
const SESSION: Duration = Duration::from_secs(4);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "zookeeper-paused-client",
    title: "ZooKeeper: the session ends while its client stands still",
    about: "A lock in ZooKeeper has no time to live: it is an ephemeral node, which is there for as long as the \
            session of its creator. But the session lives by heartbeats, and a client that stands still (a \
            collection of garbage, a suspended machine) sends none. The server ends the session, deletes the \
            node and lets the next client in. The first one wakes up in the middle of its work and goes on \
            with it. What counts here is the piece that is then sold twice. A client that looks after the pause whether the lock is still its own finds out, \
            with a home-made lock as well: looking is what helps, and it helps if nothing can happen between the look \
            and the write. Lockkeeper's guard looks at its own clock, without a question to the server, and protect() \
            does so before every step of the work. A pause after the last look is closed by a fence alone: see \
            fence-against-each.",
    needs: &[Program::ZooKeeper],
    anywhere: false,
    fast: false,
    variants: &[
        Variant {
            name: "ephemeral-node",
            title: "An ephemeral node, paused at work, does not look",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |_| Box::pin(home_made(Pause::AndNeverLooks)),
        },
        Variant {
            name: "looks-after-the-pause",
            title: "An ephemeral node, paused at work, asks ZooKeeper whose it is before it writes",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |_| Box::pin(home_made(Pause::ThenLooks)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: paused at work, looks at its guard before it writes",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(kept(bench)),
        },
    ],
};

async fn home_made(pauses: Pause) -> Result<Outcome> {
    let server = Server::zookeeper().await?;
    let (address, scene, mut tally) = (server.address(), Scene::new(), Tally::new());
    run(&scene, pauses, move |_| InZooKeeper::connect(address, SESSION)).await?;
    tally.run(&scene);
    Ok(tally.end(|line| told(line, "ZooKeeper ended its session and deleted its node")))
}

async fn kept(bench: &Bench) -> Result<Outcome> {
    let server = Server::zookeeper().await?;
    let url = format!("{}?ttl={}s", server.url(), SESSION.as_secs());
    let (name, scene, mut tally) = (bench.key("lock"), Scene::new(), Tally::new());
    let make = move |_| {
        let (url, name) = (url.clone(), name.clone());
        async move { Keeper::connect(&url, SESSION, &name, Fence::None, None).await }
    };
    run(&scene, Pause::ThenLooks, make).await?;
    tally.run(&scene);
    Ok(tally.end(|line| told(line, "ZooKeeper ended its session and deleted its node")))
}
