//! Fair mutexes of Lockkeeper and of an unmodified Redisson stand in one line, that of Redisson's
//! `RFairLock`: grants come in the order of arrival, whoever is whose, and nobody who is gone holds up
//! the others.
#![cfg(feature = "interop")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::clock::Instant;
use lockkeeper::{Guard, Locks};
use testkit::checker;
use testkit::conformance::judge::accepted;
use testkit::history::{History, Op, Stage};
use testkit::party::{Ours, Thread, Way};
use testkit::peer::{Peer, Pending, Redisson};
use testkit::random::Random;
use testkit::resp::Raw;
use testkit::server::{self, Server};
use testkit::storm::Storm;
use testkit::taker::Taker;
use testkit::wait::{eventually, soon};
use tokio::task::JoinHandle;

const LINE: &str = "redisson_lock_queue:{x}";
const ENDS: &str = "redisson_lock_timeout:{x}";
/// What locks of Redisson without a lease live for; renewed every third of it.
const WATCHDOG: Duration = Duration::from_secs(3);
/// Woken, not found by asking again: that takes 1.7 s on our side.
const WOKEN: Duration = Duration::from_secs(1);
/// What being woken takes at its best.
const QUICK: Duration = Duration::from_millis(200);
/// A waiter of ours that is gone keeps its place for 5 s.
const SKIPPED: Duration = Duration::from_millis(6500);

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
    ours: [Locks; 2],
    peer: Arc<Peer>,
}

/// Somebody in line, or already served.
enum Waiter {
    Ours(JoinHandle<Guard>),
    Theirs(String, Pending),
}

/// Somebody who has the lock.
enum Holder {
    Ours(Guard),
    Theirs(String),
}

impl Waiter {
    fn waits(&self) -> bool {
        match self {
            Self::Ours(task) => !task.is_finished(),
            Self::Theirs(_, pending) => pending.waits(),
        }
    }

    /// Has the lock soon.
    async fn served(self) -> Holder {
        match self {
            Self::Ours(task) => Holder::Ours(soon("ours", task).await.unwrap()),
            Self::Theirs(label, pending) => {
                pending.value().await;
                Holder::Theirs(label)
            }
        }
    }
}

impl Scene {
    async fn new(which: Redisson) -> Self {
        let server = server::redis(&[]).await;
        let url = format!("redis://{}", server.address());
        let raw = Raw::connect(server.address()).await;
        let ours = [Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap()];
        let peer = Arc::new(Peer::redisson(which, &url, Some(WATCHDOG)).await);
        Self { server, raw, url, which, ours, peer }
    }

    /// Another JVM, to be killed.
    async fn mortal(&self) -> Peer {
        Peer::redisson(self.which, &self.url, Some(WATCHDOG)).await
    }

    async fn in_line(&self, waiters: usize) {
        let length = format!("LLEN {LINE}");
        let waiters = i64::try_from(waiters).unwrap();
        let what = format!("{waiters} in line");
        eventually(&what, async || self.raw.number(&length).await == waiters).await;
    }

    /// Asks for the lock: one of ours for an even number, one of theirs for an odd one.
    fn ask(&self, number: usize) -> Waiter {
        if number.is_multiple_of(2) {
            let mutex = self.ours[number / 2 % 2].mutex("x").fair();
            Waiter::Ours(tokio::spawn(async move { mutex.lock().await.unwrap() }))
        } else {
            let label = format!("t{number}");
            let pending = self.peer.send(&label, "fair.lock x");
            Waiter::Theirs(label, pending)
        }
    }

    /// Has the lock, which is free.
    async fn hold(&self, number: usize) -> Holder {
        self.ask(number).served().await
    }

    /// Asks for the lock, and is in line then, as the last of so many, and can be woken: a client of
    /// Redisson that does not listen yet looks like one that is gone.
    async fn line_up(&self, number: usize, place: usize) -> Waiter {
        let label = format!("t{number}");
        let owner = match number % 2 {
            0 => None,
            _ => Some(self.peer.ask(&label, "owner").await),
        };
        let waiter = self.ask(number);
        self.in_line(place).await;
        if let Some(owner) = owner {
            let channel = format!("redisson_lock__channel:{{x}}:{owner}");
            let listens = async || self.raw.listeners(&channel).await == 1;
            eventually("they listen", listens).await;
        }
        waiter
    }

    async fn release(&self, holder: Holder) {
        match holder {
            Holder::Ours(guard) => guard.release().await.unwrap(),
            Holder::Theirs(label) => drop(self.peer.ask(&label, "fair.unlock x").await),
        }
    }

    /// In the end nothing stays for ever but the token.
    async fn nothing_stays(&self) {
        eventually("only the token stays", async || {
            let left = self.raw.immortal().await;
            left.iter().all(|key| key == "redisson_lock_token:{x}")
        })
        .await;
    }

    /// The line is gone, and nothing stays for ever but the token.
    async fn nothing_is_left(&self) {
        assert_eq!(self.raw.keys("redisson_lock_[qt][ui]*").await, Vec::<String>::new());
        assert!(!self.raw.exists("x").await);
        let left = self.raw.immortal().await;
        assert!(left.iter().all(|key| key == "redisson_lock_token:{x}"), "{left:?}");
        assert!(server::accepts(self.server.address()));
    }
}

/// Waiters of both sides in turn, behind a holder of either side.
async fn in_order(which: Redisson, first: usize) {
    const WAITERS: usize = 6;
    let scene = Scene::new(which).await;
    let history = History::default();
    let who = |number: usize| u32::try_from(number).unwrap();
    let mut holder = scene.hold(first).await;
    let mut line = VecDeque::new();
    for number in first + 1..=first + WAITERS {
        history.asks(who(number));
        line.push_back((number, scene.line_up(number, line.len() + 1).await));
    }
    while let Some((number, next)) = line.pop_front() {
        assert!(next.waits());
        scene.release(holder).await;
        holder = next.served().await;
        history.has(who(number), number as u64);
        history.gives(who(number));
        assert!(line.iter().all(|(_, later)| later.waits()), "one at a time");
    }
    scene.release(holder).await;
    let events = history.events();
    accepted(checker::first_come_first_served(&events));
    accepted(checker::mutual_exclusion(&events));
    scene.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_come_in_the_order_of_arrival_behind_one_of_ours() {
    in_order(Redisson::Current, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_come_in_the_order_of_arrival_behind_one_of_theirs() {
    in_order(Redisson::Current, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_come_in_the_order_of_arrival_with_an_old_redisson() {
    in_order(Redisson::Old, 0).await;
    in_order(Redisson::Old, 1).await;
}

/// How long the next one takes to have it.
async fn hand_over(scene: &Scene, holder: usize, heir: usize) -> Duration {
    let holder = scene.hold(holder).await;
    let next = scene.line_up(heir, 1).await;
    let since = Instant::now();
    scene.release(holder).await;
    let heir = next.served().await;
    let took = Instant::now().since(since);
    assert!(took < WOKEN, "{took:?}");
    scene.release(heir).await;
    took
}

async fn wake(which: Redisson) {
    let scene = Scene::new(which).await;
    for (holder, heir) in [(0, 1), (1, 0), (0, 2), (1, 3)] {
        let mut best = WOKEN;
        for _ in 0..5 {
            best = best.min(hand_over(&scene, holder, heir).await);
        }
        assert!(best < QUICK, "{holder} to {heir}: {best:?}");
    }
    scene.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_wake_each_other() {
    wake(Redisson::Current).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_wake_each_other_with_an_old_redisson() {
    wake(Redisson::Old).await;
}

/// Longer than a waiter of ours would be kept if it did not ask again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_wait_costs_nobody_his_place() {
    let scene = Scene::new(Redisson::Current).await;
    let holder = scene.hold(1).await;
    let mut line = Vec::new();
    for number in 2..5 {
        line.push(scene.line_up(number, line.len() + 1).await);
    }
    let order = format!("LRANGE {LINE} 0 -1");
    let (before, until) = (scene.raw.ask(&order).await, Instant::now() + Duration::from_secs(8));
    eventually("a long time", async || Instant::now() > until).await;
    assert_eq!(scene.raw.ask(&order).await, before);
    let mut holder = holder;
    for next in line {
        scene.release(holder).await;
        holder = next.served().await;
    }
    scene.release(holder).await;
    scene.nothing_is_left().await;
}

/// A waiter of ours is killed; one of each side stands behind it.
async fn a_dead_waiter_of_ours(which: Redisson, holder: usize, heir: usize) {
    let scene = Scene::new(which).await;
    let holder = scene.hold(holder).await;
    let mut taker = Taker::spawn(&scene.url).await;
    taker.send("fair x ttl=2000");
    scene.in_line(1).await;
    let next = scene.line_up(heir, 2).await;
    taker.kill();
    let since = Instant::now();
    scene.release(holder).await;
    let heir = next.served().await;
    let took = Instant::now().since(since);
    assert!(took < SKIPPED, "{took:?}");
    scene.release(heir).await;
    // Its place may outlast all this.
    scene.nothing_stays().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_of_ours_holds_up_nobody_for_long() {
    let pairs = [(0, 3), (1, 3), (0, 2), (1, 2)];
    join_all(pairs.map(|(holder, heir)| a_dead_waiter_of_ours(Redisson::Current, holder, heir)))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_of_ours_does_not_hold_up_an_old_redisson() {
    a_dead_waiter_of_ours(Redisson::Old, 1, 3).await;
}

/// Alone in line, and nobody comes after it: what it leaves does not stay for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_of_ours_leaves_nothing_for_ever() {
    let scene = Scene::new(Redisson::Current).await;
    let holder = scene.hold(0).await;
    let mut taker = Taker::spawn(&scene.url).await;
    taker.send("fair x ttl=1000");
    scene.in_line(1).await;
    taker.kill();
    scene.release(holder).await;
    scene.nothing_stays().await;
}

/// A waiter of theirs is killed with its JVM; ours stands behind it.
async fn a_dead_waiter_of_theirs(which: Redisson, holder: usize, within: Duration) {
    let scene = Scene::new(which).await;
    let mut mortal = scene.mortal().await;
    let holder = scene.hold(holder).await;
    let dies = mortal.send("t", "fair.lock x");
    scene.in_line(1).await;
    let next = scene.line_up(2, 2).await;
    mortal.kill();
    drop(dies);
    let line = scene.raw.ask(&format!("LRANGE {LINE} 0 -1")).await;
    let since = Instant::now();
    scene.release(holder).await;
    let heir = next.served().await;
    let took = Instant::now().since(since);
    assert!(took < within, "{took:?}; in line were {line:?}");
    scene.release(heir).await;
    // It may still be in line: Redisson gives it five minutes. Ours does not stay.
    let left = scene.raw.number(&format!("LLEN {LINE}")).await;
    assert!(left <= 1 && !scene.raw.exists("x").await, "{left} in line");
    assert_eq!(scene.raw.number(&format!("ZCARD {ENDS}")).await, left);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_of_theirs_does_not_hold_up_ours() {
    // Behind one of ours we learn of it in the same step; behind one of theirs when we ask again,
    // because Redisson tells nobody but the dead one.
    a_dead_waiter_of_theirs(Redisson::Current, 0, WOKEN).await;
    a_dead_waiter_of_theirs(Redisson::Current, 1, Duration::from_secs(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_of_an_old_redisson_does_not_hold_up_ours() {
    a_dead_waiter_of_theirs(Redisson::Old, 0, WOKEN).await;
}

/// A waiter that gives up leaves its place at once.
async fn cancelled(which: Redisson) {
    let scene = Scene::new(which).await;
    for (holder, heir) in [(0, 1), (1, 2), (0, 2), (1, 3)] {
        let holder = scene.hold(holder).await;
        // Ours is dropped while it waits.
        let Waiter::Ours(task) = scene.line_up(4, 1).await else {
            unreachable!("even numbers are ours")
        };
        // Theirs waits for a moment only.
        let gives_up = scene.peer.send("impatient", "fair.tryLock x wait=400");
        scene.in_line(2).await;
        let next = scene.line_up(heir, 3).await;
        task.abort();
        assert_eq!(gives_up.value().await, "false");
        scene.in_line(1).await;
        assert!(next.waits());
        let since = Instant::now();
        scene.release(holder).await;
        let heir = next.served().await;
        let took = Instant::now().since(since);
        assert!(took < WOKEN, "{took:?}");
        scene.release(heir).await;
        scene.nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_gives_up_is_skipped() {
    cancelled(Redisson::Current).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_gives_up_is_skipped_with_an_old_redisson() {
    cancelled(Redisson::Old).await;
}

/// What a crashed holder held goes to the first in line when its lease is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_holder_is_followed_by_the_first_in_line() {
    let scene = Scene::new(Redisson::Current).await;
    for (mortal_is_ours, first) in [(true, 1), (true, 2), (false, 3), (false, 4)] {
        let (mut taker, mut mortal) = (None, None);
        if mortal_is_ours {
            let mut process = Taker::spawn(&scene.url).await;
            process.token("fair x ttl=1500").await;
            taker = Some(process);
        } else {
            let jvm = scene.mortal().await;
            jvm.ask("t", "fair.lock x lease=1500").await;
            mortal = Some(jvm);
        }
        let next = scene.line_up(first, 1).await;
        let second = scene.line_up(first + 1, 2).await;
        // Before the server is asked, which counts whole milliseconds.
        let now = Instant::now();
        let end = now + scene.raw.left("x").await.unwrap().saturating_sub(Duration::from_millis(2));
        drop((taker, mortal));
        let heir = next.served().await;
        let now = Instant::now();
        assert!(now >= end, "{:?} too early", end.since(now));
        assert!(now.since(end) < Duration::from_secs(3), "{:?} too late", now.since(end));
        assert!(second.waits());
        scene.release(heir).await;
        let heir = second.served().await;
        scene.release(heir).await;
        scene.nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfair_locks_of_both_sides_are_excluded_too() {
    let scene = Scene::new(Redisson::Current).await;
    let (locks, peer) = (&scene.ours[0], &scene.peer);
    let ours = scene.hold(0).await;
    assert_eq!(peer.ask("u", "tryLock x").await, "false");
    assert_eq!(peer.ask("u", "fair.tryLock x").await, "false");
    assert!(scene.ours[1].mutex("x").try_lock().await.unwrap().is_none());
    scene.release(ours).await;
    let theirs = scene.hold(1).await;
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    assert!(locks.mutex("x").fair().try_lock().await.unwrap().is_none());
    scene.release(theirs).await;
    for command in ["lock x", "fenced.lock x"] {
        peer.ask("u", command).await;
        assert!(locks.mutex("x").fair().try_lock().await.unwrap().is_none(), "{command}");
        assert_eq!(peer.ask("t", "fair.tryLock x").await, "false");
        let waits = scene.line_up(2, 1).await;
        peer.ask("u", "unlock x").await;
        let guard = waits.served().await;
        assert_eq!(peer.ask("u", "tryLock x").await, "false");
        scene.release(guard).await;
    }
    let plain = locks.mutex("x").lock().await.unwrap();
    assert_eq!(peer.ask("t", "fair.tryLock x").await, "false");
    let waits = scene.line_up(3, 1).await;
    plain.release().await.unwrap();
    let since = Instant::now();
    let theirs = waits.served().await;
    assert!(Instant::now().since(since) < WOKEN, "our unfair holder wakes their fair waiter");
    scene.release(theirs).await;
    scene.nothing_is_left().await;
}

/// Fair and unfair ones of both sides at once, as fast as they can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_fair_and_unfair_ones() {
    let mut random = Random::seeded();
    let scene = Scene::new(Redisson::Current).await;
    let storm = Storm::new("x", Duration::from_secs(4));
    let (fair, unfair) = ([Way::Fair], [Way::Mutex]);
    let ours = [(0, &fair), (0, &unfair), (1, &fair), (1, &unfair)];
    // What a waiter of Redisson sleeps for when nobody is left to wake it is what was left of the lease
    // when it asked last.
    let ours = ours.into_iter().enumerate().map(|(number, (client, ways))| {
        let locks = scene.ours[client].ttl(WATCHDOG);
        storm.rounds(number, Ours::new(locks, "x"), ways, random.fork())
    });
    let ours = join_all(ours.collect::<Vec<_>>());
    // Only fair ones: an unfair one of Redisson does not wake them, and they would wait for its lease.
    let theirs = [("a", &fair), ("b", &fair)];
    let theirs = theirs.into_iter().zip(4..).map(|((label, ways), number)| {
        storm.rounds(number, Thread::new(&scene.peer, label, "x"), ways, random.fork())
    });
    let theirs = join_all(theirs.collect::<Vec<_>>());
    let mortal = storm.mortal(7, &scene.url, &fair, random.fork());
    let (ours, theirs, ()) = tokio::join!(ours, theirs, mortal);
    eprintln!("turns of ours {ours:?}, of theirs {theirs:?}");
    assert!(ours.iter().all(|turns| *turns >= 3), "all of ours had their turns");
    accepted(storm.verdict(None));
    eventually("free again", async || !scene.raw.exists("x").await).await;
}

/// Random arrivals, departures and releases: the line is always the one that the test keeps too.
async fn random_line(which: Redisson, steps: usize) {
    let mut random = Random::seeded();
    let scene = Scene::new(which).await;
    let history = History::default();
    let mut holder: Option<Holder> = None;
    let mut line: VecDeque<(u32, Waiter)> = VecDeque::new();
    for number in 0..u32::try_from(steps).unwrap() {
        match random.below(7) {
            0..3 if line.len() < 6 => {
                history.asks(number);
                let asks = 2 * number as usize + usize::from(random.below(2) == 0);
                if holder.is_some() {
                    let waiter = scene.line_up(asks, line.len() + 1).await;
                    line.push_back((number, waiter));
                } else {
                    holder = Some(scene.hold(asks).await);
                    history.has(number, u64::from(number) + 1);
                    history.gives(number);
                }
            }
            3 => {
                let ours = |(_, waiter): &(u32, Waiter)| matches!(waiter, Waiter::Ours(_));
                let place = line.iter().position(ours);
                if let Some((who, Waiter::Ours(task))) = place.and_then(|at| line.remove(at)) {
                    history.record(who, Op::Acquire, Stage::Fail);
                    task.abort();
                }
            }
            _ => {
                let Some(leaves) = holder.take() else { continue };
                scene.release(leaves).await;
                if let Some((who, next)) = line.pop_front() {
                    let since = Instant::now();
                    holder = Some(next.served().await);
                    let took = Instant::now().since(since);
                    assert!(took < WOKEN, "{who}: {took:?}");
                    history.has(who, u64::from(who) + 1);
                    history.gives(who);
                }
            }
        }
        scene.in_line(line.len()).await;
        assert!(line.iter().all(|(_, waiter)| waiter.waits()), "nobody overtakes");
    }
    while let Some(leaves) = holder.take() {
        scene.release(leaves).await;
        if let Some((who, next)) = line.pop_front() {
            holder = Some(next.served().await);
            history.has(who, u64::from(who) + 1);
            history.gives(who);
        }
    }
    accepted(checker::first_come_first_served(&history.events()));
    scene.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_random_line_is_served_in_order() {
    random_line(Redisson::Current, 400).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_random_line_is_served_in_order_with_an_old_redisson() {
    random_line(Redisson::Old, 200).await;
}
