//! A holder that stands still between its last look and its write, in every store, with and without a fence.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Locks;

use super::home_made::InRedis;
use super::home_made_redlock::Five;
use super::keeper::{Fence, Keeper, NODE_GONE, RESOURCE, compare, patiently};
use super::late_writer::{Pause, run, told};
use crate::bench::Bench;
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::outcome::{Outcome, Tally};
use crate::scene::Scene;
use crate::servers::{Program, Server};
use crate::timeline::Kind;

/// How long locks live in Redis, and in the others, which have no shorter ones.
const SHORT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(2);
/// How long a session lives that is not to end.
const AGES: Duration = Duration::from_secs(30);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "fence-against-each",
    title: "Paused between the last look and the write: only the resource can refuse it",
    about: "However good a lock is, its holder can be stopped after it has looked and before its write arrives. \
            So each store is shown twice with the same client, which looks at the very last moment. Without a \
            fence the write lands, also with Lockkeeper's own locks. With one, the resource refuses it: \
            because it has seen a newer token, because it bears the mark of another holder, or because etcd \
            or ZooKeeper itself checks the lock in the same step. In ZooKeeper a lock that is lost by a pause \
            is lost with its session, so the write is refused before it comes to that check; so the check is \
            shown besides, with a lock whose node somebody deletes while its session lives. What counts is \
            the piece that is sold twice; and where there is a fence, what the resource says in the end is \
            read past it and compared with what its writers were told.",
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
            Box::pin(in_zookeeper(bench, Fence::None, Ends::Session))
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
        sound(
            "lockkeeper-zookeeper",
            "Lockkeeper, ZooKeeper: a guarded write, refused with its session",
            |bench| Box::pin(in_zookeeper(bench, Fence::ZooKeeper, Ends::Session)),
        ),
        sound(
            "lockkeeper-zookeeper-node",
            "Lockkeeper, ZooKeeper: a guarded write, refused by the check of the lock's node",
            |bench| Box::pin(in_zookeeper(bench, Fence::ZooKeeper, Ends::Node)),
        ),
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
    let lock = Lock { url: server.url(), address: server.address(), ttl: SHORT };
    kept(bench, lock, fence, "Its lease ended", no_one).await.map(ended)
}

async fn in_redlock(bench: &Bench, fence: Fence) -> Result<Outcome> {
    let five = Five::start(&[]).await?;
    let url = five.url("ABCDE");
    patiently(|| Locks::init(&url)).await?;
    let lock = Lock { url, address: five.servers[0].address(), ttl: SHORT };
    kept(bench, lock, fence, "Its leases ended at all five nodes", no_one).await.map(ended)
}

async fn in_etcd(bench: &Bench, fence: Fence) -> Result<Outcome> {
    let server = Server::etcd().await?;
    let lock = Lock { url: server.url(), address: server.address(), ttl: LONG };
    kept(bench, lock, fence, "Its lease ended", no_one).await.map(ended)
}

/// How a lock in ZooKeeper ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// With the session of its client, which stands still for too long.
    Session,
    /// Somebody deletes its node; the session lives on.
    Node,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Other(error.to_string())
}

/// Deletes every node that ends with a session.
async fn delete_locks(address: SocketAddr) -> Result<()> {
    let client = zookeeper_client::Client::connect(&address.to_string()).await.map_err(failed)?;
    let (mut paths, mut deleted) = (vec![String::new()], 0);
    while let Some(path) = paths.pop() {
        let named = if path.is_empty() { "/" } else { &path };
        let children = client.list_children(named).await.map_err(failed)?;
        paths.extend(children.iter().map(|child| format!("{path}/{child}")));
        let stat = client.check_stat(named).await.map_err(failed)?;
        if stat.is_some_and(|stat| stat.ephemeral_owner != 0) {
            client.delete(named, None).await.map_err(failed)?;
            deleted += 1;
        }
    }
    if deleted == 0 { Err(failed("there was no lock to delete")) } else { Ok(()) }
}

async fn in_zookeeper(bench: &Bench, fence: Fence, ends: Ends) -> Result<Outcome> {
    let server = Server::zookeeper().await?;
    let address = server.address().to_string();
    let client = zookeeper_client::Client::connect(&address).await.map_err(failed)?;
    let options = zookeeper_client::CreateMode::Persistent;
    let options = options.with_acls(zookeeper_client::Acls::anyone_all());
    client.create(RESOURCE, b"10", &options).await.map_err(failed)?;
    // Where nobody waits for the end of a session, it is to live for longer than the run takes.
    let ttl = if ends == Ends::Session { LONG } else { AGES };
    let url = format!("{}?ttl={}s", server.url(), ttl.as_secs());
    let address = server.address();
    let lock = Lock { url, address, ttl };
    if ends == Ends::Session {
        return kept(bench, lock, fence, "Its session ended", no_one).await.map(ended);
    }
    let deleting = move || delete_locks(address);
    let (outcome, refused) =
        kept(bench, lock, fence, "Somebody deleted its node", deleting).await?;
    if refused.as_deref() != Some(NODE_GONE) {
        return Err(Error::Other(format!(
            "it was to be refused by the check, and not: {refused:?}"
        )));
    }
    Ok(outcome)
}

/// A lock, and where a server of it is.
struct Lock {
    url: String,
    address: SocketAddr,
    ttl: Duration,
}

/// Nobody ends the lock of client 1 but the pause.
async fn no_one() -> Result<()> {
    Ok(())
}

fn ended((outcome, _): (Outcome, Option<String>)) -> Outcome {
    outcome
}

/// Lockkeeper; the resource is in Redis, or where the lock is. `meanwhile` happens before client 2 comes.
/// How client 1 was refused is told besides.
async fn kept<M, F>(
    bench: &Bench,
    lock: Lock,
    fence: Fence,
    why: &'static str,
    meanwhile: M,
) -> Result<(Outcome, Option<String>)>
where
    M: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = Result<()>> + Send,
{
    let shop = Server::redis(&[]).await?;
    let (url, ttl, name) = (lock.url, lock.ttl, bench.key("lock"));
    let (its_name, shop_url) = (name.clone(), shop.url());
    let (scene, mut tally) = (Scene::new(), Tally::new());
    let meanwhile = Arc::new(meanwhile);
    let make = move |who| {
        let (url, name, shop) = (url.clone(), its_name.clone(), shop_url.clone());
        let meanwhile = Arc::clone(&meanwhile);
        async move {
            if who == "client 2" {
                meanwhile().await?;
            }
            Keeper::connect(&url, ttl, &name, fence, Some(&shop)).await
        }
    };
    let sold = run(&scene, Pause::AfterLooking, make).await?;
    compare(&sold, fence, &name, &shop.url(), lock.address).await?;
    tally.run(&scene);
    let line = scene.end();
    let refused =
        line.events.iter().rfind(|event| event.kind == Kind::Refused && event.actor == "client 1");
    let refused = refused.map(|event| event.text.clone());
    Ok((tally.end(|line| told(line, why)), refused))
}
