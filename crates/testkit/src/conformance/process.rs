//! Other processes: that exclude, wait, die and stand still.

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper::clock::Instant;

use super::{Harness, can, idle, in_order, name, queued, show};
use crate::register::FileRegister;
use crate::taker::Taker;
use crate::wait::{LONG, eventually, soon};

/// What must not wait for a lease must happen within this time: less than the shortest one, which is
/// the five seconds for which a waiter that does not ask again keeps its place.
const AT_ONCE: Duration = Duration::from_secs(4);

fn url(harness: &dyn Harness) -> String {
    harness.url().expect("the marker says that other processes can use it")
}

async fn taker(harness: &dyn Harness) -> Taker {
    Taker::spawn(&url(harness)).await
}

/// Awaits what must not wait for a lease of 30 s.
async fn at_once<T>(what: &str, future: impl Future<Output = T> + Send) -> T {
    let since = Instant::now();
    let done = soon(what, future).await;
    let took = Instant::now().since(since);
    assert!(took < AT_ONCE, "{what} took {took:?}");
    done
}

/// How the death of a process is noticed: at once where the store sees it, else when the lease ends,
/// which is short then.
struct Death {
    seen: bool,
    /// Options for the locks of processes that die.
    options: &'static str,
    within: Duration,
}

impl Death {
    fn at(locks: &Locks) -> Self {
        match locks.backend().capabilities().frees_on_death {
            true => Self { seen: true, options: "", within: AT_ONCE },
            false => Self { seen: false, options: " ttl=1500", within: LONG },
        }
    }

    /// Awaits what must not wait for longer.
    async fn noticed<T>(&self, what: &str, future: impl Future<Output = T> + Send) -> T {
        let since = Instant::now();
        let done = soon(what, future).await;
        let took = Instant::now().since(since);
        assert!(took < self.within, "{what} took {took:?}");
        done
    }
}

/// Another process is excluded, waits, and is woken by the release; tokens grow from one to the other.
pub async fn another_process_excludes_and_is_woken(harness: &dyn Harness) {
    let locks = harness.locks().await;
    let mut other = taker(harness).await;
    let mut last = 0;
    let capabilities = locks.backend().capabilities();
    for how in ["lock", "fair", "write"] {
        if how == "write" && !capabilities.read_write {
            continue;
        }
        for _ in 0..20 {
            let mine = in_order(&locks, locks.mutex("x")).lock().await.unwrap();
            assert!(mine.token().get() > last);
            assert_eq!(other.ask("try x").await, "none");
            other.send(&format!("{how} x"));
            queued(&locks, "x", 1).await;
            assert!(other.answered().is_none());
            let since = Instant::now();
            mine.release().await.unwrap();
            let token = other.granted().await;
            let took = Instant::now().since(since);
            assert!(took < Duration::from_secs(1), "woken, not found by asking again: {took:?}");
            assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
            last = token;
            other.ask("release").await;
        }
    }
}

/// The lock of a killed process is free at once, not when its lease of 30 s ends, waited for or not.
pub async fn a_killed_holder_frees_at_once(harness: &dyn Harness) {
    let locks = harness.locks().await;
    let death = Death::at(&locks);
    let mut ways =
        ["lock x", "fair x", "read x"].map(|how| format!("{how}{}", death.options)).to_vec();
    ways.retain(|how| locks.backend().capabilities().read_write || !how.starts_with("read"));
    ways.extend(death.seen.then(|| "lock x lease=600000".to_owned()));
    for how in &ways {
        let mut other = taker(harness).await;
        let token = other.token(how).await;
        let mutex = locks.mutex("x");
        let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
        queued(&locks, "x", 1).await;
        other.kill();
        let mine = death.noticed(how, waiting).await.unwrap();
        assert!(mine.token().get() > token);
        mine.release().await.unwrap();
        let mut other = taker(harness).await;
        other.token(how).await;
        other.kill();
        if death.seen {
            // A store at a distance sees the end of a connection, which takes a moment.
            let mine = match locks.backend().capabilities().fair {
                true => at_once(how, locks.mutex("x").try_lock()).await.unwrap(),
                false => Some(at_once(how, locks.mutex("x").lock()).await.unwrap()),
            };
            mine.expect("nobody holds it").release().await.unwrap();
        } else {
            idle(&locks, "x").await;
        }
    }
}

/// A killed process does not keep a name from being used as something else.
pub async fn a_killed_holder_of_another_kind_frees_at_once(harness: &dyn Harness) {
    let locks = harness.locks().await;
    if !can(&locks, "a_killed_holder_of_another_kind_frees_at_once", |can| {
        can.permits && can.latches
    }) {
        return;
    }
    let mut other = taker(harness).await;
    let death = Death::at(&locks);
    other.token(&format!("permit x 3{}", death.options)).await;
    other.kill();
    if !death.seen {
        idle(&locks, "x").await;
    }
    at_once("a mutex", locks.mutex("x").lock()).await.unwrap().release().await.unwrap();
    let mut other = taker(harness).await;
    other.token(&format!("lock y{}", death.options)).await;
    other.kill();
    if !death.seen {
        idle(&locks, "y").await;
    }
    assert!(at_once("a latch", locks.latch("y").close(1)).await.unwrap());
}

/// A waiter that is killed in the middle of a fair queue is skipped.
pub async fn a_killed_waiter_is_skipped(harness: &dyn Harness) {
    let locks = harness.locks().await;
    if !can(&locks, "a_killed_waiter_is_skipped", |can| can.fair) {
        return;
    }
    let mine = locks.mutex("x").fair().lock().await.unwrap();
    let mut others = Vec::new();
    for at in 0..3 {
        let mut other = taker(harness).await;
        other.send("fair x");
        queued(&locks, "x", at + 1).await;
        others.push(other);
    }
    others[1].kill();
    mine.release().await.unwrap();
    let first = at_once("the first", others[0].granted()).await;
    assert!(others[2].answered().is_none());
    others[0].ask("release").await;
    let third = Death::at(&locks).noticed("the third", others[2].granted()).await;
    assert!(third > first);
}

/// A process that is killed at the moment when the lock is handed to it is skipped too.
pub async fn a_holder_killed_right_after_hand_over_is_skipped(harness: &dyn Harness) {
    let locks = harness.locks().await;
    if !can(&locks, "a_holder_killed_right_after_hand_over_is_skipped", |can| can.fair) {
        return;
    }
    let death = Death::at(&locks);
    for round in 0..6 {
        let mine = locks.mutex("x").fair().lock().await.unwrap();
        let mut other = taker(harness).await;
        other.send(&format!("fair x{}", death.options));
        queued(&locks, "x", 1).await;
        let mutex = locks.mutex("x").fair();
        let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
        queued(&locks, "x", 2).await;
        match round % 3 {
            // Killed before, at, and after the hand-over.
            0 => other.kill(),
            1 => other.stop(),
            _ => {}
        }
        mine.release().await.unwrap();
        if round % 3 == 2 {
            other.granted().await;
        }
        other.kill();
        death.noticed("the next", waiting).await.unwrap().release().await.unwrap();
        idle(&locks, "x").await;
    }
}

/// A holder that is stopped past its lease is overtaken under a larger token; when it goes on, its
/// late write is refused and it learns that it has lost the lock.
pub async fn a_stopped_holder_is_overtaken_and_its_late_write_refused(harness: &dyn Harness) {
    let locks = harness.locks().await;
    let dir = tempfile::tempdir().unwrap();
    let register = FileRegister::at(dir.path().join("register"));
    let path = register.path().display().to_string();
    for how in ["lock x lease=1500", "fair x ttl=1500"] {
        let mut other = taker(harness).await;
        let stale = other.token(how).await;
        assert_eq!(other.ask(&format!("fenced-write {path} early")).await, "accepted");
        other.stop();
        let mine = soon("overtaken", locks.mutex("x").lock()).await.unwrap();
        assert!(mine.token().get() > stale);
        register.write(mine.token().get(), "mine").unwrap().unwrap();
        let refused = register.refusals().unwrap().len();
        other.go_on();
        assert_eq!(other.ask(&format!("fenced-write {path} late")).await, "refused");
        assert_eq!(register.read().unwrap().1, "mine");
        assert_eq!(register.refusals().unwrap().len(), refused + 1);
        other.ask("wait-lost").await;
        other.send("release");
        assert!(other.answer().await.contains("lost"));
        assert_eq!(show(&locks, "x").await.holders[0].token, mine.token(), "still ours");
        mine.release().await.unwrap();
    }
}

/// A waiter that is stopped holds the others up for no longer than its own lease.
pub async fn a_stopped_waiter_does_not_hold_others_up(harness: &dyn Harness) {
    let locks = harness.locks().await;
    if !can(&locks, "a_stopped_waiter_does_not_hold_others_up", |can| can.fair) {
        return;
    }
    let mine = locks.mutex("x").fair().lock().await.unwrap();
    let mut other = taker(harness).await;
    other.send("fair x");
    queued(&locks, "x", 1).await;
    other.stop();
    let mutex = locks.mutex("x").fair();
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    queued(&locks, "x", 2).await;
    mine.release().await.unwrap();
    let next = soon("the one behind it", waiting).await.unwrap();
    other.go_on();
    // Its place is gone; it lines up again by itself and is served in the end.
    queued(&locks, "x", 1).await;
    assert!(other.answered().is_none(), "not while somebody else has it");
    let token = next.token().get();
    next.release().await.unwrap();
    assert!(soon("served in the end", other.granted()).await > token);
}

/// An eviction reaches a holder in another process at once.
pub async fn eviction_reaches_another_process(harness: &dyn Harness) {
    let locks = harness.locks().await;
    for how in ["lock x", "fair x", "lock x lease=600000"] {
        let mut other = taker(harness).await;
        let token = other.token(how).await;
        let eviction = locks.admin().evict(&name("x"), "enough").await.unwrap();
        assert!(eviction.token.get() > token);
        other.send("wait-lost");
        let cause = at_once("told", other.answer()).await;
        assert!(cause.contains("enough"), "{cause}");
        let mine = locks.mutex("x").try_lock().await.unwrap().expect("free");
        assert!(mine.token() > eviction.token);
        mine.release().await.unwrap();
    }
}

/// Tokens go on when all processes are gone and the store is opened again.
pub async fn tokens_survive_all_processes(harness: &dyn Harness) {
    let death = Death::at(&harness.locks().await);
    let mut last = 0;
    for round in 0..4 {
        let mut other = taker(harness).await;
        let token = other.token(&format!("lock x{}", death.options)).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        match round % 2 {
            0 => other.kill(),
            _ => drop(other.ask("release").await),
        }
    }
    let locks = harness.locks().await;
    let guard = death.noticed("free", locks.mutex("x").lock()).await.unwrap();
    assert!(guard.token().get() > last);
}

/// Six processes, 300 rounds each: never two holders, by judges that know nothing of locks.
pub async fn many_processes_never_two_holders(harness: &dyn Harness) {
    let dir = tempfile::tempdir().unwrap();
    let mut others = Vec::new();
    for _ in 0..6 {
        others.push(taker(harness).await);
    }
    for other in &mut others {
        other.send(&format!("rounds x 100 {}", dir.path().display()));
    }
    for other in &mut others {
        assert_eq!(other.answer_within(6 * LONG).await, "ok 0", "no violation");
    }
    let register = FileRegister::at(dir.path().join("register"));
    assert_eq!(register.refusals().unwrap(), vec![]);
    idle(&harness.locks().await, "x").await;
}

/// Readers of other processes share, and permits are counted over all processes.
pub async fn readers_and_permits_of_other_processes(harness: &dyn Harness) {
    let locks = harness.locks().await;
    if !can(&locks, "readers_and_permits_of_other_processes", |can| can.read_write && can.permits) {
        return;
    }
    let (mut one, mut two) = (taker(harness).await, taker(harness).await);
    let death = Death::at(&locks);
    one.token(&format!("read x{}", death.options)).await;
    two.token(&format!("read x{}", death.options)).await;
    assert!(locks.rw_lock("x").try_write().await.unwrap().is_none());
    assert!(locks.rw_lock("x").try_read().await.unwrap().is_some());
    one.token(&format!("permit y 2{}", death.options)).await;
    two.token(&format!("permit y 2{}", death.options)).await;
    assert!(locks.semaphore("y", 2).try_acquire().await.unwrap().is_none());
    let semaphore = locks.semaphore("y", 2);
    let waiting = tokio::spawn(async move { semaphore.acquire().await.unwrap() });
    queued(&locks, "y", 1).await;
    one.kill();
    death.noticed("the permit of the dead", waiting).await.unwrap().release().await.unwrap();
    assert!(locks.rw_lock("x").try_write().await.unwrap().is_none(), "the other still reads");
    two.kill();
    let write = death.noticed("nobody reads", locks.rw_lock("x").write()).await.unwrap();
    write.release().await.unwrap();
}

/// A latch that another client counts down opens for those who wait in this process, and a process
/// that dies while it is closed changes nothing.
pub async fn a_latch_opens_for_another_process(harness: &dyn Harness) {
    let (locks, far) = (harness.locks().await, harness.locks().await);
    if !can(&locks, "a_latch_opens_for_another_process", |can| can.latches) {
        return;
    }
    locks.latch("x").close(2).await.unwrap();
    let latch = locks.latch("x");
    let waiting = tokio::spawn(async move { latch.wait().await.unwrap() });
    far.latch("x").count_down().await.unwrap();
    taker(harness).await.kill();
    assert_eq!(far.latch("x").count().await.unwrap(), 1);
    eventually("one is left", async || locks.latch("x").count().await.unwrap() == 1).await;
    assert!(!waiting.is_finished());
    far.latch("x").count_down().await.unwrap();
    at_once("open", waiting).await.unwrap();
}
