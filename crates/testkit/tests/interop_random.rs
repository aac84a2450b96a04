//! Random steps of Lockkeeper and an unmodified Redisson around one lock: two clients of ours, one of
//! them with an owner, a process of ours that can be killed, and two threads of a JVM that can be
//! killed too. A referee knows what every step must give.
//!
//! `TESTKIT_SEED` repeats a run, step for step as far as the scheduler allows.
#![cfg(feature = "interop")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::clock::Instant;
use lockkeeper::{Locks, Name};
use testkit::conformance::judge::accepted;
use testkit::crowd::{Crowd, Seat, Skills};
use testkit::party::{Elsewhere, Ours, Thread, Way};
use testkit::peer::{Peer, Pending, Redisson};
use testkit::random::Random;
use testkit::resp::Raw;
use testkit::server::{self, Server};
use testkit::storm::Storm;
use testkit::wait::{eventually, soon};

const NAME: &str = "x";
/// What those who crash hold lasts so long.
const TTL: Duration = Duration::from_secs(3);
/// After a crash: a waiter that died keeps its place for 5 s, may be granted the lock then, and holds
/// it for its time to live.
const OVER: Duration = Duration::from_secs(12);
/// Ours ask again after 1.7 s, theirs after what is left of the lease: so this is being woken.
const WOKEN: Duration = Duration::from_millis(1500);

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

/// Not a test: what this binary does when it is started as another process.
#[test]
fn taker_main() {
    testkit::taker::main();
}

struct Scene {
    server: Server,
    raw: Raw,
    url: String,
    which: Redisson,
    crowd: Crowd,
    random: Random,
    /// A process of ours, and both threads of the JVM.
    other: Seat,
    threads: [Seat; 2],
    reentrant: bool,
}

impl Scene {
    async fn new(which: Redisson, reentrant: bool) -> Self {
        let random = Random::seeded();
        let server = server::redis(&[]).await;
        let url = format!("redis://{}", server.address());
        let raw = Raw::connect(server.address()).await;
        let connect = async || Locks::connect(&url).await.unwrap().ttl(TTL);
        let (one, two, watch) = (connect().await, connect().await, connect().await);
        let name: Name = NAME.parse().unwrap();
        let mut crowd = Crowd::new(&watch, &name, WOKEN);
        if which == Redisson::Old {
            // Before 3.28 Redisson itself forgets to wake its threads now and then.
            crowd.others_within(TTL + WOKEN);
        }
        crowd.seat("ours", HERE, Ours::new(one, NAME));
        let two = if reentrant { two.owned_by(&two.new_owner()) } else { two };
        let owned = Skills { reentrant, ..HERE };
        crowd.seat("owned", owned, Ours::new(two, NAME));
        let other = crowd.seat("process", ELSEWHERE, Elsewhere::start(&url, NAME, TTL).await);
        let mut scene =
            Self { server, raw, url, which, crowd, random, other, threads: [other; 2], reentrant };
        scene.jvm().await;
        scene
    }

    /// Starts the other side.
    async fn jvm(&mut self) {
        let peer = Arc::new(Peer::redisson(self.which, &self.url, Some(TTL)).await);
        let (reentrant, counts) = (self.reentrant, self.reentrant);
        // A thread whose time is over may take the message with it that was to wake another one.
        let skills = Skills { reentrant, counts, bounded: false, ours: false, here: false, ..HERE };
        self.threads = ["a", "b"].map(|label| {
            let name = format!("thread {label}");
            self.crowd.seat(&name, skills, Thread::new(&peer, label, NAME))
        });
    }

    /// Until when what is held now lasts at least.
    async fn end(&self) -> Instant {
        // Before the server is asked, and it counts whole milliseconds.
        let now = Instant::now();
        let mut least = self.raw.left(NAME).await.unwrap_or_default();
        for key in self.raw.keys("*:rwlock_timeout:*").await {
            least = least.min(self.raw.left(&key).await.unwrap_or_default());
        }
        now + least.saturating_sub(Duration::from_millis(2))
    }

    async fn crash(&mut self) {
        let at_least = self.end().await;
        if self.random.below(2) == 0 {
            self.crowd.crash(&[self.other], at_least, OVER).await;
            let other = Elsewhere::start(&self.url, NAME, TTL).await;
            self.other = self.crowd.seat("process", ELSEWHERE, other);
        } else {
            self.crowd.crash(&self.threads.clone(), at_least, OVER).await;
            self.jvm().await;
        }
    }

    /// Random steps for some time, with some crashes in its first two thirds.
    async fn wander(&mut self, ways: &[Way], time: Duration, crashes: usize) {
        let since = Instant::now();
        let mut crashed = 0;
        let mut next = self.random.duration(time / 3);
        while Instant::now().since(since) < time {
            if crashed < crashes && Instant::now().since(since) > next {
                crashed += 1;
                next += time / 3;
                self.crash().await;
            }
            self.crowd.wander(&mut self.random, ways).await;
        }
        self.crowd.finish().await;
    }

    /// What is left when all is over.
    async fn nothing_is_left(&self, of_theirs: &[&str]) {
        eprintln!("{} steps", self.crowd.steps());
        assert!(self.crowd.steps() > 100, "only {} steps", self.crowd.steps());
        assert_eq!(self.raw.exists(NAME).await, !of_theirs.is_empty(), "free");
        only_tokens_stay(&self.raw, of_theirs).await;
        assert!(server::accepts(self.server.address()));
    }
}

/// No key stays for ever but the token, and what the other side made to stay.
async fn only_tokens_stay(raw: &Raw, of_theirs: &[&str]) {
    let token = format!("redisson_lock_token:{{{NAME}}}");
    let left = raw.immortal().await;
    let rest = left.iter().filter(|key| **key != token && !of_theirs.contains(&key.as_str()));
    assert_eq!(rest.collect::<Vec<_>>(), Vec::<&String>::new());
}

/// How long a run takes; `TESTKIT_SOAK` makes it so many times as long.
fn seconds(seconds: u64) -> Duration {
    let times = std::env::var("TESTKIT_SOAK").ok().and_then(|times| times.parse().ok());
    Duration::from_secs(seconds * times.unwrap_or(1))
}

async fn mutexes(which: Redisson, time: Duration, crashes: usize) {
    let mut scene = Scene::new(which, true).await;
    scene.wander(&[Way::Mutex, Way::Mutex, Way::Fenced], time, crashes).await;
    accepted(scene.crowd.verdict(None));
    scene.nothing_is_left(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_steps_around_a_mutex() {
    mutexes(Redisson::Current, seconds(9), 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_steps_around_a_mutex_with_an_old_redisson() {
    mutexes(Redisson::Old, seconds(6), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_steps_around_a_read_write_lock() {
    let mut scene = Scene::new(Redisson::Current, false).await;
    // The message that a writer has left wakes all threads of a JVM that wait, but none that is just
    // asking: that one then waits for what was left of the lease.
    scene.crowd.others_within(TTL + WOKEN);
    let ways = [Way::Read, Way::Read, Way::Write, Way::FairRead, Way::FairWrite];
    scene.wander(&ways, seconds(12), 2).await;
    accepted(scene.crowd.verdict(None));
    scene.nothing_is_left(&[]).await;
    assert_eq!(scene.raw.keys("*:rwlock_timeout:*").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_steps_around_permits() {
    const PERMITS: u32 = 2;
    let mut scene = Scene::new(Redisson::Current, false).await;
    // Theirs, so that they stay when nobody has one.
    let peer = Peer::java(&scene.url).await;
    assert_eq!(peer.ask("t", &format!("permit.trySetPermits {NAME} n={PERMITS}")).await, "true");
    // No crash: what a JVM has it has for a minute, and nobody renews it.
    scene.wander(&[Way::Permit(PERMITS)], seconds(8), 0).await;
    accepted(scene.crowd.verdict(Some(PERMITS)));
    let all = PERMITS.to_string();
    assert_eq!(peer.ask("t", &format!("permit.available {NAME}")).await, all);
    scene.nothing_is_left(&[NAME]).await;
}

/// A latch that both sides close, count down and wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_steps_around_a_latch() {
    let mut random = Random::seeded();
    let server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let raw = Raw::connect(server.address()).await;
    let peer = Peer::java(&url).await;
    let clients = [Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap()];
    let latches = clients.each_ref().map(|locks| locks.latch(NAME));
    let until = Instant::now() + seconds(4);
    let (mut left, mut ours, mut theirs, mut opened) = (0, Vec::new(), Vec::new(), 0);
    while Instant::now() < until || left > 0 {
        let latch = &latches[usize::try_from(random.below(2)).unwrap()];
        match random.below(8) {
            0 => {
                let n = 1 + u32::try_from(random.below(4)).unwrap();
                let closed = if random.below(2) == 0 {
                    latch.close(n).await.unwrap()
                } else {
                    peer.ask("t", &format!("latch.trySetCount {NAME} n={n}")).await == "true"
                };
                assert_eq!(closed, left == 0);
                left = if closed { n } else { left };
            }
            1 => assert_eq!(latch.count().await.unwrap(), left),
            2 => {
                assert_eq!(peer.ask("t", &format!("latch.getCount {NAME}")).await, left.to_string())
            }
            3 if left > 0 && ours.len() < 4 => {
                let latch = latch.clone();
                ours.push(tokio::spawn(async move { latch.wait().await }));
            }
            4 if left > 0 && theirs.len() < 2 => {
                theirs.push(peer.send(["u", "v"][theirs.len()], &format!("latch.await {NAME}")));
            }
            5 | 6 => {
                left = left.saturating_sub(1);
                assert_eq!(latch.count_down().await.unwrap(), left);
            }
            _ => {
                left = left.saturating_sub(1);
                peer.ask("t", &format!("latch.countDown {NAME}")).await;
            }
        }
        if left > 0 {
            assert!(ours.iter().all(|waits| !waits.is_finished()), "ours: {left} are left");
            assert!(theirs.iter().all(Pending::waits), "theirs: {left} are left");
            continue;
        }
        opened += 1;
        for waits in ours.drain(..) {
            woken("ours", waits).await.unwrap().unwrap();
        }
        for waits in theirs.drain(..) {
            assert_eq!(woken("theirs", waits.value()).await, "true");
        }
    }
    assert!(opened > 20, "opened only {opened} times");
    assert!(!raw.exists(NAME).await);
    only_tokens_stay(&raw, &[]).await;
}

async fn woken<T>(what: &str, future: impl Future<Output = T> + Send) -> T {
    let since = Instant::now();
    let done = soon(what, future).await;
    let took = Instant::now().since(since);
    assert!(took < WOKEN, "{what} took {took:?}");
    done
}

async fn storm(ways: &[Way], permits: Option<u32>) {
    let mut random = Random::seeded();
    let server = server::redis(&[]).await;
    let url = format!("redis://{}", server.address());
    let raw = Raw::connect(server.address()).await;
    // Where no message comes to a thread of Redisson, because it missed it or because who should have
    // sent it is dead, it comes back when the lease that it saw is over: short ones, then.
    let peer = Arc::new(Peer::redisson(Redisson::Current, &url, Some(TTL)).await);
    if let Some(permits) = permits {
        peer.ask("t", &format!("permit.trySetPermits {NAME} n={permits}")).await;
    }
    let connect = async || Locks::connect(&url).await.unwrap().ttl(TTL);
    let (one, two) = (connect().await, connect().await);
    let storm = Storm::new(NAME, seconds(4));
    let ours = [&one, &one, &two, &two].into_iter().enumerate().map(|(number, locks)| {
        storm.rounds(number, Ours::new(locks.clone(), NAME), ways, random.fork())
    });
    let ours = join_all(ours.collect::<Vec<_>>());
    let theirs = ["a", "b"].into_iter().zip(4..).map(|(label, number)| {
        storm.rounds(number, Thread::new(&peer, label, NAME), ways, random.fork())
    });
    let theirs = join_all(theirs.collect::<Vec<_>>());
    let mortal = storm.mortal(6, &url, ways, random.fork());
    let (ours, theirs, ()) = tokio::join!(ours, theirs, mortal);
    eprintln!("turns of ours {ours:?}, of theirs {theirs:?}");
    assert!(ours.iter().chain(&theirs).all(|turns| *turns >= 1), "nobody starves");
    accepted(storm.verdict(permits));
    eventually("all is free again", async || match permits {
        None => !raw.exists(NAME).await,
        Some(permits) => {
            let available = peer.ask("t", &format!("permit.available {NAME}")).await;
            available == permits.to_string()
        }
    })
    .await;
    only_tokens_stay(&raw, if permits.is_some() { &[NAME] } else { &[] }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_on_a_mutex() {
    storm(&[Way::Mutex, Way::Mutex, Way::Fenced], None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_on_a_read_write_lock() {
    storm(&[Way::Read, Way::Write], None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_on_permits() {
    storm(&[Way::Permit(3)], Some(3)).await;
}
