//! Random steps of Lockkeeper in dialect `plain` and one of redis-py, redsync and node-redlock around
//! one lock: two clients of ours, one of them with an owner, a process of ours and two owners of
//! theirs, both of which can be killed. A referee knows what every step must give.
//!
//! `TESTKIT_SEED` repeats a run, step for step as far as the scheduler allows.
#![cfg(feature = "interop")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::Locks;
use lockkeeper::clock::Instant;
use testkit::conformance::judge::accepted;
use testkit::crowd::{Crowd, Skills};
use testkit::party::{Elsewhere, Ours, Plain, Way};
use testkit::peer::Peer;
use testkit::random::Random;
use testkit::resp::Raw;
use testkit::server::{self, Server};
use testkit::storm::Storm;
use testkit::wait::eventually;

const NAME: &str = "x";
/// Much longer than anybody keeps the lock here; theirs is not renewed.
const TTL: Duration = Duration::from_secs(4);
/// After a crash: a waiter that died keeps its place for 5 s, may be granted the lock then, and holds
/// it for its time to live.
const OVER: Duration = Duration::from_secs(11);
/// Ours poll, theirs poll too.
const NOTICED: Duration = Duration::from_secs(1);

const HERE: Skills = Skills {
    reentrant: false,
    bounded: true,
    counts: false,
    tries: true,
    ours: true,
    here: true,
    mutex: false,
};
const ELSEWHERE: Skills = Skills { bounded: false, tries: false, here: false, ..HERE };
const THEIRS: Skills = Skills { ours: false, here: false, mutex: true, ..HERE };

/// Not a test: what this binary does when it is started as another process.
#[test]
fn taker_main() {
    testkit::taker::main();
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Python,
    Go,
    Node,
}

struct Scene {
    server: Server,
    raw: Raw,
    url: String,
    random: Random,
}

impl Scene {
    async fn new() -> Self {
        let random = Random::seeded();
        let server = server::redis(&[]).await;
        let raw = Raw::connect(server.address()).await;
        let url = format!("redis://{}/?dialect=plain", server.address());
        Self { server, raw, url, random }
    }

    async fn client(&self) -> Locks {
        Locks::connect(&self.url).await.unwrap()
    }

    async fn elsewhere(&self) -> Elsewhere {
        Elsewhere::start(&self.url, NAME, TTL).await
    }

    async fn peer(&self, kind: Kind) -> Arc<Peer> {
        let url = format!("redis://{}", self.server.address());
        Arc::new(match kind {
            Kind::Python => Peer::python(&url).await,
            Kind::Go => Peer::go(&[url]).await,
            Kind::Node => Peer::node(&[url]).await,
        })
    }

    async fn nothing_is_left(&self) {
        eventually("free again", async || !self.raw.exists(NAME).await).await;
        let left = self.raw.immortal().await;
        assert!(left.iter().all(|key| key.contains("token")), "{left:?}");
    }
}

async fn random_steps(kind: Kind) {
    let ways = [Way::Mutex, Way::Mutex, Way::Fair, Way::Read, Way::Write];
    let mut scene = Scene::new().await;
    let watch = scene.client().await;
    let mut crowd = Crowd::new(&watch, &NAME.parse().unwrap(), NOTICED);
    crowd.seat("ours", HERE, Ours::new(scene.client().await, NAME));
    let owned = scene.client().await;
    let owned = owned.owned_by(&owned.new_owner());
    crowd.seat("owned", Skills { reentrant: true, ..HERE }, Ours::new(owned, NAME));
    let mut process = crowd.seat("process", ELSEWHERE, scene.elsewhere().await);
    for round in 0..2 {
        let peer = scene.peer(kind).await;
        let theirs =
            ["a", "b"].map(|label| crowd.seat(label, THEIRS, Plain::new(&peer, label, NAME, TTL)));
        // From here on only they keep it alive.
        drop(peer);
        for _ in 0..400 {
            crowd.wander(&mut scene.random, &ways).await;
        }
        let dying = if round == 0 { theirs.to_vec() } else { vec![process] };
        // Before the server is asked, which counts whole milliseconds.
        let now = Instant::now();
        let left = scene.raw.left(NAME).await.unwrap_or_default();
        let end = now + left.saturating_sub(Duration::from_millis(2));
        // The key lives as long as the longest hold.
        let at_least = if crowd.are_alone(&dying) { end } else { now };
        crowd.crash(&dying, at_least, OVER).await;
        if round == 1 {
            process = crowd.seat("process", ELSEWHERE, scene.elsewhere().await);
        }
        for _ in 0..100 {
            crowd.wander(&mut scene.random, &ways).await;
        }
        crowd.finish().await;
    }
    assert!(!crowd.waits(process) && !crowd.holds(process));
    accepted(crowd.verdict(None));
    scene.nothing_is_left().await;
}

/// All at once, as fast as they can.
async fn storm(kind: Kind) {
    let mut scene = Scene::new().await;
    let (one, two) = (scene.client().await, scene.client().await);
    let peer = scene.peer(kind).await;
    let storm = Storm::new(NAME, Duration::from_secs(3));
    let ours = [&one, &one, &two, &two].into_iter().zip(0..).map(|(locks, number)| {
        let ways = if number == 3 { &[Way::Read, Way::Write] } else { &[Way::Mutex, Way::Fair] };
        storm.rounds(number, Ours::new(locks.clone(), NAME), ways, scene.random.fork())
    });
    let ours = join_all(ours.collect::<Vec<_>>());
    let theirs = ["a", "b"].into_iter().zip(4..).map(|(label, number)| {
        let party = Plain::new(&peer, label, NAME, Duration::from_secs(60));
        storm.rounds(number, party, &[Way::Mutex], scene.random.fork())
    });
    let theirs = join_all(theirs.collect::<Vec<_>>());
    let ways = [Way::Mutex, Way::Fair];
    let mortal = storm.mortal(6, &scene.url, &ways, scene.random.fork());
    let (ours, theirs, ()) = tokio::join!(ours, theirs, mortal);
    eprintln!("turns of ours {ours:?}, of theirs {theirs:?}");
    // Theirs only poll: nobody can promise them anything.
    assert!(ours.iter().all(|turns| *turns > 0), "{ours:?}");
    accepted(storm.verdict(None));
    scene.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_steps_with_python() {
    random_steps(Kind::Python).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_steps_with_go() {
    random_steps(Kind::Go).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_steps_with_node() {
    random_steps(Kind::Node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_with_python() {
    storm(Kind::Python).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_with_go() {
    storm(Kind::Go).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_with_node() {
    storm(Kind::Node).await;
}
