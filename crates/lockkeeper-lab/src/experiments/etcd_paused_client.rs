//! etcd, and a client that stands still for longer than its lease lives.

use std::time::Duration;

use super::home_made::InEtcd;
use super::keeper::{Fence, Keeper};
use super::late_writer::{Pause, run, told};
use crate::bench::Bench;
use crate::error::Result;
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::outcome::{Outcome, Tally};
use crate::scene::Scene;
use crate::servers::{Program, Server};

/// How long a lease lives if nobody renews it; etcd makes no shorter ones.
const TTL: Duration = Duration::from_secs(2);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "etcd-paused-client",
    title: "etcd: the lease ends while its client stands still",
    about: "A lock in etcd is a key that is bound to a lease, and the client keeps the lease alive for as long as it \
            works. A client that stands still (a collection of garbage, a suspended machine) does not: the \
            lease runs out, etcd deletes the key and lets the next client in. The first one wakes up in \
            the middle of its work and goes on with it. What counts here is the piece that is then sold \
            twice. A client that looks after the pause whether the lock is still its own finds out, \
            with a home-made lock as well: looking is what helps, and it helps if nothing can happen between the look \
            and the write. Lockkeeper's guard looks at its own clock, without a question to the server, and protect() \
            does so before every step of the work. A pause after the last look is closed by a fence alone: see \
            fence-against-each.",
    needs: &[Program::Etcd],
    anywhere: false,
    fast: false,
    variants: &[
        Variant {
            name: "key-with-lease",
            title: "A key with a lease that is kept alive, paused at work, does not look",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |_| Box::pin(home_made(Pause::AndNeverLooks)),
        },
        Variant {
            name: "looks-after-the-pause",
            title: "The same, and asks etcd whose lease the key has before it writes",
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
    let server = Server::etcd().await?;
    let (address, scene, mut tally) = (server.address(), Scene::new(), Tally::new());
    run(&scene, pauses, move |_| async move { Ok(InEtcd::at(address, TTL)) }).await?;
    tally.run(&scene);
    Ok(tally.end(|line| told(line, "etcd ended its lease and deleted its key")))
}

async fn kept(bench: &Bench) -> Result<Outcome> {
    let server = Server::etcd().await?;
    let (url, name, scene, mut tally) =
        (server.url(), bench.key("lock"), Scene::new(), Tally::new());
    let make = move |_| {
        let (url, name) = (url.clone(), name.clone());
        async move { Keeper::connect(&url, TTL, &name, Fence::None, None).await }
    };
    run(&scene, Pause::ThenLooks, make).await?;
    tally.run(&scene);
    Ok(tally.end(|line| told(line, "etcd ended its lease and deleted its key")))
}
