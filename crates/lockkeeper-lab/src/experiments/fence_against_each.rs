//! A holder that stands still between its last look and its write, in every store, with and without a fence.

use std::time::Duration;

use lockkeeper::Locks;

use super::home_made::InRedis;
use super::home_made_redlock::Five;
use super::keeper::{Fence, Keeper, RESOURCE, patiently};
use super::late_writer::{Pause, run, told};
use crate::bench::Bench;
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::outcome::{Outcome, Tally};
use crate::scene::Scene;
use crate::servers::{Program, Server};

/// How long locks live in Redis, and in the others, which have no shorter ones.
const SHORT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(2);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "fence-against-each",
    title: "Paused between the last look and the write: only the resource can refuse it",
    note: "002 §4.4.2.4, 004 \"fencing token\"",
    about: "However good a lock is, its holder can be stopped after it has looked and before its write arrives. \
            So each store is shown twice with the same client, which looks at the very last moment. Without a \
            fence the write lands, also with Lockkeeper's own locks. With one, the resource refuses it: \
            because it has seen a newer token, because it bears the mark of another holder, or because etcd \
            or ZooKeeper itself checks the lock in the same step. What counts is the piece that is sold twice.",
    needs: &[Program::Redis, Program::Etcd, Program::ZooKeeper],
    anywhere: false,
    fast: false,
    variants: &[
        broken("set-nx-px", "Redis: SET NX PX, looks by GET", Role::Naive, |bench| {
            Box::pin(home_made(bench))
        }),
        broken("redis-unfenced", "Redis: a guard of Lockkeeper, no fence", Role::Repair, |bench| {
            Box::pin(in_redis(bench, Fence::None))
        }),
        broken("redlock-unfenced", "RedLock: the same", Role::Repair, |bench| {
            Box::pin(in_redlock(bench, Fence::None))
        }),
        broken("etcd-unfenced", "etcd: the same", Role::Repair, |bench| {
            Box::pin(in_etcd(bench, Fence::None))
        }),
        broken("zookeeper-unfenced", "ZooKeeper: the same", Role::Repair, |bench| {
            Box::pin(in_zookeeper(bench, Fence::None))
        }),
        Variant {
            name: "mark",
            title: "Redis: the lock's random value as a mark on the resource",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(in_redis(bench, Fence::Mark)),
        },
        sound("lockkeeper-redis", "Lockkeeper, Redis: a token", |bench| {
            Box::pin(in_redis(bench, Fence::Token))
        }),
        sound("lockkeeper-redlock", "Lockkeeper, RedLock: a token", |bench| {
            Box::pin(in_redlock(bench, Fence::Token))
        }),
        sound("lockkeeper-etcd", "Lockkeeper, etcd: a guarded transaction", |bench| {
            Box::pin(in_etcd(bench, Fence::Etcd))
        }),
        sound("lockkeeper-zookeeper", "Lockkeeper, ZooKeeper: a guarded write", |bench| {
            Box::pin(in_zookeeper(bench, Fence::ZooKeeper))
        }),
    ],
};

const fn broken(
    name: &'static str,
    title: &'static str,
    role: Role,
    run: crate::experiment::Run,
) -> Variant {
    Variant { name, title, role, expect: Expect::Broken, run }
}

const fn sound(name: &'static str, title: &'static str, run: crate::experiment::Run) -> Variant {
    Variant { name, title, role: Role::Lockkeeper, expect: Expect::Sound, run }
}

async fn home_made(bench: &Bench) -> Result<Outcome> {
    let server = Server::redis(&[]).await?;
    let (url, key) = (server.url(), bench.key("lock"));
    let (scene, mut tally) = (Scene::new(), Tally::new());
    let make = move |who| {
        let (url, key) = (url.clone(), key.clone());
        async move { InRedis::connect(&url, &key, who, SHORT).await }
    };
    run(&scene, Pause::AfterLooking, make).await?;
    tally.run(&scene);
    Ok(tally.end(|line| told(line, "Its key expired")))
}

async fn in_redis(bench: &Bench, fence: Fence) -> Result<Outcome> {
    let server = Server::redis(&[]).await?;
    kept(bench, &server.url(), SHORT, fence, "Its lease ended").await
}

async fn in_redlock(bench: &Bench, fence: Fence) -> Result<Outcome> {
    let five = Five::start(&[]).await?;
    let url = five.url("ABCDE");
    patiently(|| Locks::init(&url)).await?;
    kept(bench, &url, SHORT, fence, "Its leases ended at all five nodes").await
}

async fn in_etcd(bench: &Bench, fence: Fence) -> Result<Outcome> {
    let server = Server::etcd().await?;
    kept(bench, &server.url(), LONG, fence, "Its lease ended").await
}

async fn in_zookeeper(bench: &Bench, fence: Fence) -> Result<Outcome> {
    let server = Server::zookeeper().await?;
    let failed = |error: zookeeper_client::Error| Error::Other(error.to_string());
    let address = server.address().to_string();
    let client = zookeeper_client::Client::connect(&address).await.map_err(failed)?;
    let options = zookeeper_client::CreateMode::Persistent;
    let options = options.with_acls(zookeeper_client::Acls::anyone_all());
    client.create(RESOURCE, b"10", &options).await.map_err(failed)?;
    let url = format!("{}?ttl={}s", server.url(), LONG.as_secs());
    kept(bench, &url, LONG, fence, "Its session ended").await
}

/// Lockkeeper; the resource is in Redis, or where the lock is.
async fn kept(
    bench: &Bench,
    url: &str,
    ttl: Duration,
    fence: Fence,
    why: &'static str,
) -> Result<Outcome> {
    let shop = Server::redis(&[]).await?;
    let (url, name, shop_url) = (url.to_owned(), bench.key("lock"), shop.url());
    let (scene, mut tally) = (Scene::new(), Tally::new());
    let make = move |_| {
        let (url, name, shop) = (url.clone(), name.clone(), shop_url.clone());
        async move { Keeper::connect(&url, ttl, &name, fence, Some(&shop)).await }
    };
    run(&scene, Pause::AfterLooking, make).await?;
    tally.run(&scene);
    Ok(tally.end(|line| told(line, why)))
}
