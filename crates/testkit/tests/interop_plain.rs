//! Lockkeeper in dialect `plain` and the locks of redis-py, redsync and node-redlock on one server,
//! and the lock of two commands that many wrote by hand: they exclude each other, notice each other's
//! release, and survive each other's crash.
#![cfg(feature = "interop")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Error, Guard, Locks, Name};
use testkit::checker;
use testkit::conformance::judge::accepted;
use testkit::history::History;
use testkit::party::{Answer, Ask, Ours, Party, Way};
use testkit::peer::Peer;
use testkit::resp::{Raw, Reply};
use testkit::server::{self, Server};
use testkit::taker::Taker;
use testkit::wait::{eventually, soon};

/// We notice a release of theirs within this time, and they notice ours.
const NOTICED: Duration = Duration::from_millis(500);

/// Waits for longer than any test takes: Python counts time, the others count tries.
const PATIENT: &str = "lock x ttl=60000 delay=10 wait=600000 tries=60000";

/// All ways of ours; to the others each of them is a key that is there.
const WAYS: [Way; 7] =
    [Way::Mutex, Way::Fair, Way::Read, Way::Write, Way::FairRead, Way::FairWrite, Way::Permit(2)];

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

/// One test for each of the three.
macro_rules! with_every_peer {
    ($($case:ident)+) => {$(
        mod $case {
            use super::Kind;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn python() {
                super::$case(Kind::Python).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn go() {
                super::$case(Kind::Go).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn node() {
                super::$case(Kind::Node).await;
            }
        }
    )+};
}

with_every_peer! {
    they_exclude_each_other
    they_notice_each_others_release
    a_crash_of_theirs_frees_the_lock_after_its_lease
    a_crash_of_ours_frees_the_lock_after_its_lease
    ours_is_renewed
    theirs_is_extended
    a_late_release_of_theirs_frees_nothing
    a_late_release_of_ours_frees_nothing
    tokens_grow_with_them_in_between
}

struct Scene {
    server: Server,
    raw: Raw,
    locks: Locks,
}

impl Scene {
    async fn new() -> Self {
        let server = server::redis(&[]).await;
        let raw = Raw::connect(server.address()).await;
        let locks = Locks::connect(&ours(&server)).await.unwrap();
        Self { server, raw, locks }
    }

    /// Another client of ours.
    async fn client(&self) -> Locks {
        Locks::connect(&ours(&self.server)).await.unwrap()
    }

    async fn peer(&self, kind: Kind) -> Peer {
        let url = format!("redis://{}", self.server.address());
        match kind {
            Kind::Python => Peer::python(&url).await,
            Kind::Go => Peer::go(&[url]).await,
            Kind::Node => Peer::node(&[url]).await,
        }
    }

    /// Waits until so many of ours stand in line.
    async fn in_line(&self, waiters: usize) {
        let name = x();
        eventually("in line", async || {
            self.locks.admin().show(&name).await.unwrap().waiters.len() == waiters
        })
        .await;
    }

    /// When the key ends if nobody renews it.
    async fn end(&self) -> Instant {
        // Before the server is asked, which counts whole milliseconds.
        let now = Instant::now();
        let left = self.raw.left("x").await.expect("it is held, and not for ever");
        now + left.saturating_sub(Duration::from_millis(2))
    }

    /// Nothing of ours stays for ever but the token.
    async fn only_the_token_stays(&self) {
        let left = self.raw.immortal().await;
        assert!(left.iter().all(|key| key.contains("token")), "{left:?}");
    }
}

fn ours(server: &Server) -> String {
    format!("redis://{}/?dialect=plain", server.address())
}

fn x() -> Name {
    "x".parse().unwrap()
}

fn waiting(locks: &Locks) -> tokio::task::JoinHandle<Guard> {
    let mutex = locks.mutex("x");
    tokio::spawn(async move { mutex.lock().await.unwrap() })
}

/// Awaits what must not happen before `end`, and must happen soon after it.
async fn at_the_end<T>(end: Instant, future: impl Future<Output = T> + Send) -> T {
    let done = soon("the end of the lease", future).await;
    let now = Instant::now();
    assert!(now >= end, "{:?} before its end", end.since(now));
    // Twice: the lease may have been renewed in the last moment before the crash was known.
    assert!(now.since(end) < 2 * NOTICED, "{:?} after its end", now.since(end));
    done
}

async fn noticed<T>(what: &str, future: impl Future<Output = T> + Send) -> T {
    let since = Instant::now();
    let done = soon(what, future).await;
    let took = Instant::now().since(since);
    assert!(took < NOTICED, "{what} took {took:?}");
    done
}

async fn they_exclude_each_other(kind: Kind) {
    let scene = Scene::new().await;
    let peer = scene.peer(kind).await;
    let mut ours = Ours::new(scene.locks.clone(), "x");
    peer.ask("t", "lock x ttl=60000").await;
    let value = peer.ask("t", "owner x").await;
    for way in WAYS {
        let answer = ours.ask(Ask::Try(way)).await;
        // A semaphore may also say that the name is in use as a mutex.
        let refused = answer == Answer::Busy || matches!(answer, Answer::Failed(_));
        assert!(refused && (way.is_permit() || answer == Answer::Busy), "{way:?}: {answer:?}");
    }
    assert!(!scene.locks.latch("x").close(1).await.unwrap_or(false), "nor as a latch");
    let shown = scene.locks.admin().show(&x()).await.unwrap();
    assert!(shown.holders[0].owner.to_string().contains(&value), "{shown:?} is {value}");
    assert_eq!(scene.raw.text("GET x").await, Some(value), "untouched");
    peer.ask("t", "unlock x").await;
    for way in WAYS {
        assert!(matches!(ours.ask(Ask::Try(way)).await, Answer::Has(_)), "{way:?}");
        assert_eq!(peer.ask("t", "try x").await, "false", "{way:?}");
        let left = scene.raw.left("x").await;
        assert!(left.is_some_and(|left| left <= Duration::from_secs(30)), "{way:?}: {left:?}");
        assert_eq!(ours.ask(Ask::Unlock(way)).await, Answer::Done);
        assert_eq!(peer.ask("t", "try x").await, "true", "after {way:?}");
        peer.ask("t", "unlock x").await;
    }
    // Readers together keep them out until the last one leaves.
    let mut second = Ours::new(scene.client().await, "x");
    for reader in [&mut ours, &mut second] {
        assert!(matches!(reader.ask(Ask::Try(Way::Read)).await, Answer::Has(_)));
    }
    ours.ask(Ask::Unlock(Way::Read)).await;
    assert_eq!(peer.ask("t", "try x").await, "false");
    second.ask(Ask::Unlock(Way::Read)).await;
    assert_eq!(peer.ask("t", "try x").await, "true");
    peer.ask("t", "unlock x").await;
    assert!(scene.locks.latch("x").close(1).await.unwrap());
    assert_eq!(peer.ask("t", "try x").await, "false", "a latch");
    scene.locks.latch("x").count_down().await.unwrap();
    assert_eq!(peer.ask("t", "try x").await, "true");
    peer.ask("t", "unlock x").await;
    scene.only_the_token_stays().await;
    peer.quit().await;
}

async fn they_notice_each_others_release(kind: Kind) {
    let scene = Scene::new().await;
    let (peer, other) = (scene.peer(kind).await, scene.client().await);
    for _ in 0..3 {
        peer.ask("t", "lock x ttl=60000").await;
        let waits = waiting(&scene.locks);
        scene.in_line(1).await;
        let behind = waiting(&other);
        scene.in_line(2).await;
        peer.ask("t", "unlock x").await;
        let guard = noticed("we", waits).await.unwrap();
        assert!(!behind.is_finished());
        guard.release().await.unwrap();
        let guard = noticed("the next of ours", behind).await.unwrap();
        let waits = peer.send("t", "lock x ttl=60000 delay=50");
        assert_eq!(peer.ask("u", "try x").await, "false");
        assert!(waits.waits());
        guard.release().await.unwrap();
        noticed("they", waits.value()).await;
        peer.ask("t", "unlock x").await;
    }
    peer.quit().await;
}

async fn a_crash_of_theirs_frees_the_lock_after_its_lease(kind: Kind) {
    let scene = Scene::new().await;
    let mut peer = scene.peer(kind).await;
    peer.ask("t", "lock x ttl=1500").await;
    let waits = waiting(&scene.locks);
    scene.in_line(1).await;
    let end = scene.end().await;
    peer.kill();
    let guard = at_the_end(end, waits).await.unwrap();
    guard.release().await.unwrap();
    // One that dies while it waits leaves nothing.
    let (mut peer, other) = (scene.peer(kind).await, scene.client().await);
    let guard = scene.locks.mutex("x").lock().await.unwrap();
    let dies = peer.send("t", "lock x ttl=60000 delay=5");
    assert_eq!(peer.ask("u", "try x").await, "false");
    peer.kill();
    drop(dies);
    guard.release().await.unwrap();
    noticed("free", other.mutex("x").lock()).await.unwrap().release().await.unwrap();
    scene.only_the_token_stays().await;
}

async fn a_crash_of_ours_frees_the_lock_after_its_lease(kind: Kind) {
    let scene = Scene::new().await;
    let peer = scene.peer(kind).await;
    for command in ["lock x ttl=1500", "read x ttl=1500", "permit x 3 ttl=1500"] {
        let mut taker = Taker::spawn(&ours(&scene.server)).await;
        taker.token(command).await;
        let waits = peer.send("t", PATIENT);
        assert_eq!(peer.ask("u", "try x").await, "false");
        let end = scene.end().await;
        taker.kill();
        at_the_end(end, waits.value()).await;
        // And a waiter of ours that died is not granted what it cannot use.
        let mut taker = Taker::spawn(&ours(&scene.server)).await;
        taker.send("lock x ttl=1500");
        scene.in_line(1).await;
        taker.kill();
        peer.ask("t", "unlock x").await;
        let since = Instant::now();
        let free = async || peer.ask("t", "try x ttl=60000").await == "true";
        eventually("free", free).await;
        let took = Instant::now().since(since);
        assert!(took < Duration::from_secs(6), "{took:?} for a dead waiter");
        peer.ask("t", "unlock x").await;
        eventually("its place is gone", async || {
            let shown = scene.locks.admin().show(&x()).await.unwrap();
            shown.waiters.is_empty() && shown.holders.is_empty()
        })
        .await;
    }
    peer.quit().await;
}

async fn ours_is_renewed(kind: Kind) {
    let scene = Scene::new().await;
    let peer = scene.peer(kind).await;
    let ttl = Duration::from_secs(2);
    let locks = scene.locks.ttl(ttl);
    let guard = locks.mutex("x").lock().await.unwrap();
    let waits = peer.send("t", PATIENT);
    let end = Instant::now() + 3 * ttl;
    eventually("three times the time to live", async || {
        assert_eq!(peer.ask("u", "try x").await, "false");
        Instant::now() > end
    })
    .await;
    assert!(waits.waits() && !guard.is_lost());
    guard.release().await.unwrap();
    noticed("they", waits.value()).await;
    peer.quit().await;
}

async fn theirs_is_extended(kind: Kind) {
    let scene = Scene::new().await;
    let peer = scene.peer(kind).await;
    let ttl = Duration::from_secs(2);
    peer.ask("t", "lock x ttl=2000").await;
    let waits = waiting(&scene.locks);
    scene.in_line(1).await;
    let end = Instant::now() + 3 * ttl;
    eventually("three times the time to live", async || {
        peer.ask("t", "extend x ttl=2000").await;
        Instant::now() > end
    })
    .await;
    assert!(!waits.is_finished());
    let end = scene.end().await;
    // Nobody extends it any more.
    let guard = at_the_end(end, waits).await.unwrap();
    peer.refused("t", "extend x ttl=60000").await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    peer.quit().await;
}

async fn a_late_release_of_theirs_frees_nothing(kind: Kind) {
    let scene = Scene::new().await;
    let (peer, other) = (scene.peer(kind).await, scene.client().await);
    peer.ask("t", "lock x ttl=200").await;
    let guard = soon("its end", scene.locks.mutex("x").lock()).await.unwrap();
    let value = scene.raw.text("GET x").await;
    peer.refused("t", "unlock x").await;
    peer.refused("t", "extend x ttl=60000").await;
    assert_eq!(scene.raw.text("GET x").await, value);
    assert!(other.mutex("x").try_lock().await.unwrap().is_none());
    guard.check().unwrap();
    guard.release().await.unwrap();
    peer.quit().await;
}

async fn a_late_release_of_ours_frees_nothing(kind: Kind) {
    let scene = Scene::new().await;
    let peer = scene.peer(kind).await;
    let lease = scene.locks.lease(Duration::from_millis(200));
    for released in [true, false] {
        let guard = lease.mutex("x").lock().await.unwrap();
        peer.ask("t", "lock x ttl=60000 delay=10").await;
        let value = peer.ask("t", "owner x").await;
        assert!(guard.is_lost());
        if released {
            let error = guard.release().await.unwrap_err();
            assert!(matches!(error, Error::Lost { .. }), "{error}");
        } else {
            let late = guard.renew(Duration::from_secs(60)).await.unwrap_err();
            assert!(matches!(late, Error::Lost { .. }), "{late}");
            drop(guard);
        }
        // Another one of ours asks after whatever goes on in the background.
        assert!(scene.locks.mutex("x").try_lock().await.unwrap().is_none());
        assert_eq!(scene.raw.text("GET x").await, Some(value));
        peer.ask("t", "unlock x").await;
    }
    peer.quit().await;
}

async fn tokens_grow_with_them_in_between(kind: Kind) {
    let scene = Scene::new().await;
    let (peer, other) = (scene.peer(kind).await, scene.client().await);
    let history = History::default();
    for round in 0..6 {
        let (who, locks) = if round % 2 == 0 { (0, &scene.locks) } else { (1, &other) };
        let mutex = locks.mutex("x");
        let mutex = if round % 3 == 0 { mutex.fair() } else { mutex };
        history.asks(who);
        let guard = mutex.lock().await.unwrap();
        history.has(who, guard.token().get());
        history.gives(who);
        guard.release().await.unwrap();
        peer.ask("t", "lock x").await;
        peer.ask("t", "unlock x").await;
    }
    accepted(checker::tokens_grow(&history.events()));
    accepted(checker::mutual_exclusion(&history.events()));
    scene.only_the_token_stays().await;
    peer.quit().await;
}

/// What happens to ours when somebody meddles with the key: the next renewal says so.
async fn meddled(command: &str) {
    let scene = Scene::new().await;
    let ttl = Duration::from_secs(3);
    let locks = scene.locks.ttl(ttl);
    for way in [Way::Mutex, Way::Fair, Way::Read, Way::Permit(2)] {
        let guard = match way {
            Way::Mutex => locks.mutex("x").lock().await,
            Way::Fair => locks.mutex("x").fair().lock().await,
            Way::Read => locks.rw_lock("x").read().await,
            _ => locks.semaphore("x", 2).acquire().await,
        };
        let guard = guard.unwrap();
        assert!(!matches!(scene.raw.ask(command).await, Reply::Error(_)));
        let since = Instant::now();
        assert_eq!(soon("the loss", guard.lost()).await, Cause::Gone, "{way:?}");
        let took = Instant::now().since(since);
        assert!(took < ttl / 3 + NOTICED, "{way:?}: {took:?}");
        let error = guard.release().await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        let theirs = command.starts_with("SET");
        assert_eq!(scene.raw.text("GET x").await.as_deref(), theirs.then_some("somebody"));
        let next = locks.mutex("x").try_lock().await.unwrap();
        assert_eq!(next.is_none(), theirs, "{way:?}");
        if let Some(next) = next {
            next.release().await.unwrap();
        }
        scene.raw.ask("DEL x").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_key_is_a_lost_lock() {
    meddled("DEL x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overwritten_key_is_a_lost_lock() {
    meddled("SET x somebody PX 60000").await;
}

/// `SETNX`, then `EXPIRE`; `DEL` to unlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_two_commands_excludes_and_is_excluded() {
    let scene = Scene::new().await;
    let raw = &scene.raw;
    for way in WAYS {
        let mut party = Ours::new(scene.locks.clone(), "x");
        assert!(matches!(party.ask(Ask::Try(way)).await, Answer::Has(_)), "{way:?}");
        assert_eq!(raw.number("SETNX x somebody").await, 0, "{way:?}");
        assert_eq!(party.ask(Ask::Unlock(way)).await, Answer::Done);
    }
    assert_eq!(raw.number("SETNX x somebody").await, 1);
    assert_eq!(raw.number("EXPIRE x 60").await, 1);
    assert!(scene.locks.mutex("x").try_lock().await.unwrap().is_none());
    let waits = waiting(&scene.locks);
    scene.in_line(1).await;
    assert_eq!(raw.number("DEL x").await, 1);
    noticed("its end", waits).await.unwrap().release().await.unwrap();
    // And one that dies after the second command.
    assert_eq!(raw.number("SETNX x somebody").await, 1);
    assert_eq!(raw.number("EXPIRE x 1").await, 1);
    let end = scene.end().await;
    let guard = at_the_end(end, scene.locks.mutex("x").lock()).await.unwrap();
    guard.release().await.unwrap();
    scene.only_the_token_stays().await;
}

/// One that dies between the two commands, and redis-py's lock as it is by default, last for ever: we
/// wait, say so, and somebody can clear it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_never_expires_is_shown_and_can_be_cleared() {
    let scene = Scene::new().await;
    let peer = scene.peer(Kind::Python).await;
    for python in [false, true] {
        let value = if python {
            peer.ask("t", "lock x ttl=none").await;
            peer.ask("t", "owner x").await
        } else {
            assert_eq!(scene.raw.number("SETNX x somebody").await, 1);
            "somebody".to_owned()
        };
        // Named by a server that tells it in a moment.
        let named = async || {
            let late = scene.locks.mutex("x").lock_timeout(Duration::from_millis(300)).await;
            let error = late.unwrap_err();
            let Error::Timeout { held_by, .. } = &error else { panic!("{error}") };
            assert!(held_by.iter().all(|one| one.to_string().contains(&value)), "{error}");
            held_by.len() == 1
        };
        eventually("named", named).await;
        let shown = scene.locks.admin().show(&x()).await.unwrap();
        assert_eq!(shown.holders.len(), 1, "{shown:?}");
        assert_eq!(shown.holders[0].lease_left, None, "for ever");
        let waits = waiting(&scene.locks);
        scene.in_line(1).await;
        let evicted = scene.locks.admin().evict(&x(), "dead").await.unwrap();
        assert_eq!(evicted.holders, [shown.holders[0].owner.clone()]);
        let guard = noticed("cleared", waits).await.unwrap();
        assert!(guard.token() > evicted.token);
        if python {
            peer.refused("t", "unlock x").await;
        }
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
    scene.only_the_token_stays().await;
}

/// However many of ours wait for somebody else's lock, only the first asks for it again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_first_of_ours_polls() {
    const WAITERS: usize = 60;
    let scene = Scene::new().await;
    scene.raw.ask("SET x somebody NX PX 60000").await;
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            let mutex = scene.locks.mutex("x").fair();
            tokio::spawn(async move { mutex.lock().await.unwrap().release().await })
        })
        .collect();
    scene.in_line(WAITERS).await;
    let scripts = async || {
        let stats = scene.raw.text("INFO commandstats").await.unwrap();
        let calls = stats.lines().filter(|line| line.starts_with("cmdstat_eval"));
        let calls = calls.filter_map(|line| line.split("calls=").nth(1)?.split(',').next());
        calls.map(|calls| calls.parse::<usize>().unwrap()).sum::<usize>()
    };
    let (before, until) = (scripts().await, Instant::now() + Duration::from_secs(2));
    eventually("two seconds", async || Instant::now() > until).await;
    let calls = scripts().await - before;
    // A heart-beat each every 1.7 s, and one that polls; if all polled it would be twice as many, even
    // if they did so only every 500 ms.
    assert!(calls < 3 * WAITERS, "{calls} scripts in two seconds");
    scene.raw.ask("DEL x").await;
    for waiter in waiters {
        soon("its turn", waiter).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_keys_byte_by_byte() {
    let scene = Scene::new().await;
    let peer = scene.peer(Kind::Go).await;
    for name in ["orders/{42}:x", "{a}", "a{b", "ä", "lockkeeper:{x}"] {
        let guard = scene.locks.mutex(name).lock().await.unwrap();
        assert!(scene.raw.exists(name).await, "{name}");
        assert_eq!(peer.ask("t", &format!("try {name}")).await, "false", "{name}");
        guard.release().await.unwrap();
        peer.ask("t", &format!("lock {name}")).await;
        assert!(scene.locks.mutex(name).try_lock().await.unwrap().is_none(), "{name}");
        peer.ask("t", &format!("unlock {name}")).await;
    }
}
