//! RedLock, and a node that is restarted without its data.

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper::clock::Instant;

use super::home_made_redlock::{Five, RedLock};
use super::keeper::patiently;
use crate::bench::Bench;
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::outcome::{Outcome, Tally};
use crate::scene::{Actor, Scene};
use crate::servers::Program;
use crate::timeline::{Kind, State, Timeline};

/// How long locks live where nobody waits for their end.
const TTL: Duration = Duration::from_secs(60);
/// And where somebody does.
const SHORT: Duration = Duration::from_millis(500);
/// Which nodes the clients reach.
const FIRST: &str = "ABC";
const SECOND: &str = "CDE";
/// How often client 2 asks.
const TRIES: u32 = 5;
/// For how long it does, each time.
const PATIENCE: Duration = Duration::from_millis(300);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "redlock-restarted-node",
    title: "RedLock: a node is restarted, and has forgotten the lock",
    about: "Client 1 has the lock at the nodes A, B and C, and cannot reach D and E. C crashes and comes back empty: \
            it votes for client 2, and so do D and E. There are two ways out: every write of a node is on \
            disk before it is answered (appendfsync always), or a node that crashed stays away for longer \
            than any lock lives. Here a node crashes by SIGKILL, which leaves what was written in the memory \
            of the system: what a power cut does to appendfsync everysec is not shown. Lockkeeper lets no \
            node vote that has forgotten, until all leases are over that it may have voted for.",
    needs: &[Program::Redis],
    anywhere: false,
    fast: true,
    variants: &[
        Variant {
            name: "redlock",
            title: "RedLock, restarted at once and empty",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(home_made(bench, Restart::Empty)),
        },
        Variant {
            name: "fsync-always",
            title: "RedLock, appendfsync always at every node",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(home_made(bench, Restart::WithData)),
        },
        Variant {
            name: "delayed-restart",
            title: "RedLock, restarted when every lock is over",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(home_made(bench, Restart::Delayed)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper, restarted at once and empty",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(kept(bench)),
        },
    ],
};

/// How the node comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restart {
    /// At once, without its data.
    Empty,
    /// At once, with all that it has answered.
    WithData,
    /// Without its data, when every lock is over.
    Delayed,
}

async fn home_made(bench: &Bench, restart: Restart) -> Result<Outcome> {
    let arguments: &[&str] = match restart {
        Restart::WithData => &["--appendonly", "yes", "--appendfsync", "always"],
        Restart::Empty | Restart::Delayed => &[],
    };
    let ttl = if restart == Restart::Delayed { SHORT } else { TTL };
    let mut five = Five::start(arguments).await?;
    let (urls, key) = (five.urls(), bench.key("lock"));
    let (scene, mut tally) = (Scene::new(), Tally::new());
    let [one, two] = ["client 1", "client 2"].map(|name| scene.actor(name));
    let node = scene.actor("node C");
    let mut first = RedLock::connect(&urls, FIRST, &key, "client 1", ttl).await?;
    let grant = first.try_lock(|| Ok(())).await?;
    let grant = grant.ok_or_else(|| Error::Other("client 1 has no majority".into()))?;
    one.did(Kind::Took, format!("lock granted by {}", grant.by));
    one.believes();
    crash(&mut five, &node)?;
    if restart == Restart::Delayed {
        // The client knows until when it may work, and the node's operator how long locks live.
        tokio::time::sleep(grant.until.since(Instant::now())).await;
        one.believes_no_more();
        one.did(Kind::Expired, format!("{} ms are over: stops", ttl.as_millis()));
        tokio::time::sleep(ttl / 10).await;
    }
    five.servers[2].start_again().await?;
    node.did(Kind::Noted, "is back");
    let mut second = RedLock::connect(&urls, SECOND, &key, "client 2", ttl).await?;
    two.begins(State::Waits);
    let asked = Instant::now();
    let mut granted = second.try_lock(|| Ok(())).await?;
    while granted.is_none() && Instant::now().since(asked) < PATIENCE {
        tokio::time::sleep(Duration::from_millis(20)).await;
        granted = second.try_lock(|| Ok(())).await?;
    }
    two.ends(State::Waits);
    match granted {
        Some(grant) => {
            two.did(Kind::Took, format!("lock granted by {}", grant.by));
            two.believes();
            two.believes_no_more();
        }
        None => two.did(Kind::Refused, "no majority: C still has client 1's lock"),
    }
    if restart != Restart::Delayed {
        one.believes_no_more();
    }
    tally.run(&scene);
    Ok(tally.end(told))
}

fn crash(five: &mut Five, node: &Actor) -> Result<()> {
    five.servers[2].kill()?;
    node.did(Kind::Crashed, "crashes");
    Ok(())
}

async fn kept(bench: &Bench) -> Result<Outcome> {
    let mut five = Five::start(&[]).await?;
    let all = five.url("ABCDE");
    patiently(|| Locks::init(&all)).await?;
    let (scene, mut tally, key) = (Scene::new(), Tally::new(), bench.key("lock"));
    let [one, two] = ["client 1", "client 2"].map(|name| scene.actor(name));
    let node = scene.actor("node C");
    let (to_first, to_second) = (five.url(FIRST), five.url(SECOND));
    let first = patiently(|| Locks::connect(&to_first)).await?;
    // Client 2 can be granted a lock by C, D and E, or its refusal would say nothing.
    let control = patiently(|| Locks::connect(&to_second)).await?;
    let another = control.lease(TTL).mutex(bench.key("another")).lock().await?;
    another.release().await?;
    two.did(Kind::Noted, "another lock: granted by C, D and E, and given back");
    let held = first.lease(TTL).mutex(&key).lock().await?;
    one.did(Kind::Took, "lock() → held, by A, B and C");
    one.believes();
    crash(&mut five, &node)?;
    five.servers[2].start_again().await?;
    node.did(Kind::Noted, "is back, and empty");
    // Whoever connects needs a majority that answers, not one that votes.
    let second = patiently(|| Locks::connect(&to_second)).await?;
    two.begins(State::Waits);
    let mutex = second.lease(TTL).mutex(&key);
    for asked in 1.. {
        match mutex.lock_timeout(PATIENCE).await {
            Ok(guard) => {
                two.did(Kind::Took, "lock() → held");
                two.believes();
                two.believes_no_more();
                guard.release().await?;
                break;
            }
            // No other reason will do: A and B are silent, D and E say yes.
            Err(error) if abstains(&error) => {
                two.did(Kind::Refused, "lock_timeout() → no majority: a node does not vote yet");
                break;
            }
            // On a busy machine an answer of C, D or E may be late.
            Err(error) if error.is_transient() && asked < TRIES => {}
            Err(error) => return Err(error.into()),
        }
    }
    two.ends(State::Waits);
    held.check()?;
    one.did(Kind::Noted, "still held");
    one.believes_no_more();
    tally.run(&scene);
    Ok(tally.end(told))
}

/// Whether a node of those that answered is waiting until it may vote again.
fn abstains(error: &lockkeeper::Error) -> bool {
    let says = |context: &str| {
        ["does not vote yet", "votes again in"].iter().any(|text| context.contains(text))
    };
    matches!(error, lockkeeper::Error::Unavailable { context, .. } if says(context))
}

fn told(line: &Timeline) -> String {
    let crashed = format!(
        "Client 1 had the lock from {} on, by A, B and C. C crashed at {} and was back at {}",
        line.when("client 1", Kind::Took),
        line.when("node C", Kind::Crashed),
        line.when("node C", Kind::Noted),
    );
    let (stopped, took) =
        (line.first("client 1", Kind::Expired), line.first("client 2", Kind::Took));
    match (stopped, took) {
        (Some(_), _) => format!(
            "{crashed}, after client 1 had stopped at {}; client 2 got the lock at {}.",
            line.when("client 1", Kind::Expired),
            line.when("client 2", Kind::Took),
        ),
        (None, Some(_)) => format!(
            "{crashed}, without the lock. So it voted for client 2 at {}, as D and E did: two believed to hold it.",
            line.when("client 2", Kind::Took),
        ),
        (None, None) => format!(
            "{crashed}. It did not vote for client 2, which gave up at {}.",
            line.when("client 2", Kind::Refused),
        ),
    }
}
