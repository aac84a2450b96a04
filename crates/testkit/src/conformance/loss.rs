//! The holder knows before anybody else can have the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Error, Guard};

use super::{Harness, can, faulty, idle, in_order, show};
use crate::faulty::Mode;
use crate::wait::{eventually, soon};

/// Long enough that its safety margin, a tenth of it, covers the delays of a loaded machine.
const LEASE: Duration = Duration::from_secs(4);

/// Loss is declared, and declared before the store can grant the lock again.
async fn lost_in_time(guard: &Guard) {
    let waiting_since = Instant::now();
    let cause = soon("the loss", guard.lost()).await;
    let now = Instant::now();
    let expires = guard.expires_at().expect("a lease");
    assert!(now < expires, "{:?} too late", now.since(expires));
    assert_eq!(cause, Cause::Expired);
    assert!(guard.is_lost() && guard.remaining() == Some(Duration::ZERO));
    assert!(now.since(waiting_since) > LEASE / 2, "and not for nothing");
    let error = guard.check().unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
}

/// A fixed lease is declared lost before it ends at the store, for every kind of lock.
pub async fn a_fixed_lease_is_lost_before_it_expires(harness: &dyn Harness) {
    let (locks, other) = (harness.locks().await.lease(LEASE), harness.locks().await);
    let mutex = locks.mutex("a").lock().await.unwrap();
    let reader = match can(&locks, "a reader", |can| can.read_write) {
        true => locks.rw_lock("b").read().await.unwrap(),
        false => locks.mutex("b").lock().await.unwrap(),
    };
    let permit = match can(&locks, "a permit", |can| can.permits) {
        true => locks.semaphore("c", 2).acquire().await.unwrap(),
        false => locks.mutex("c").lock().await.unwrap(),
    };
    assert!(mutex.remaining().is_some_and(|left| left < LEASE));
    tokio::join!(lost_in_time(&mutex), lost_in_time(&reader), lost_in_time(&permit));
    idle(&other, "a").await;
    let error = mutex.release().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
}

/// A hosted lock whose renewals fail is declared lost before it ends at the store.
pub async fn failed_renewals_lose_before_expiry(harness: &dyn Harness) {
    let (locks, faults) = faulty(harness).await;
    faults.renew.set(Mode::Fail);
    let locks = locks.ttl(LEASE);
    let guard = in_order(&locks, locks.mutex("x")).lock().await.unwrap();
    lost_in_time(&guard).await;
    assert!(faults.renew.begun() > 1, "tried again: {}", faults.renew.begun());
    assert_eq!(faults.renew.done(), 0);
}

/// A hosted lock whose renewals are not answered is declared lost before it ends at the store.
pub async fn unanswered_renewals_lose_before_expiry(harness: &dyn Harness) {
    let (locks, faults) = faulty(harness).await;
    faults.renew.set(Mode::Hang);
    let locks = locks.ttl(LEASE);
    let direct = in_order(&locks, locks.mutex("y"));
    let (cohort, direct) = (locks.mutex("x").lock().await, direct.lock().await);
    let (cohort, direct) = (cohort.unwrap(), direct.unwrap());
    tokio::join!(lost_in_time(&cohort), lost_in_time(&direct));
    assert!(faults.renew.begun() > 1, "tried again: {}", faults.renew.begun());
}

/// A hosted lock is held for many times its time to live, and a failed renewal alone costs nothing.
pub async fn no_false_loss(harness: &dyn Harness) {
    let (locks, faults) = faulty(harness).await;
    let other = harness.locks().await;
    let ttl = Duration::from_millis(1500);
    let guard = locks.ttl(ttl).mutex("x").lock().await.unwrap();
    faults.renew.set(Mode::Fail);
    eventually("a renewal fails", async || faults.renew.begun() > 0).await;
    faults.renew.set(Mode::Pass);
    let renewed = faults.renew.done();
    eventually("seven renewals", async || faults.renew.done() > renewed + 6).await;
    assert!(!guard.is_lost(), "{:?}", guard.check());
    assert!(other.mutex("x").try_lock().await.unwrap().is_none());
    assert_eq!(show(&other, "x").await.holders[0].token, guard.token());
    guard.release().await.unwrap();
}

/// A fixed lease that its holder renews lasts longer, at the store too.
pub async fn a_fixed_lease_can_be_renewed(harness: &dyn Harness) {
    let (locks, other) = (harness.locks().await, harness.locks().await);
    let lease = Duration::from_secs(2);
    let guard = locks.lease(lease).mutex("x").lock().await.unwrap();
    let first_end = guard.expires_at().expect("a lease");
    guard.renew(6 * lease).await.unwrap();
    assert!(guard.expires_at().expect("a lease") >= first_end + 4 * lease);
    eventually("the first lease would be over", async || Instant::now() > first_end).await;
    assert!(!guard.is_lost());
    assert!(other.mutex("x").try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
}

/// What is held for as long as `max_hold` allows is lost, and ends at the store by itself.
pub async fn max_hold_ends_it(harness: &dyn Harness) {
    let (locks, _) = faulty(harness).await;
    let locks = locks.ttl(Duration::from_millis(900)).max_hold(Duration::from_millis(300));
    let guard = locks.mutex("x").lock().await.unwrap();
    assert_eq!(soon("the end", guard.lost()).await, Cause::MaxHold);
    assert!(guard.is_lost());
    let next = soon("it ends by itself", harness.locks().await.mutex("x").lock()).await.unwrap();
    assert!(next.token() > guard.token());
    assert!(guard.release().await.is_err());
}

/// The name is free some time after `max_hold`, although the guard is still there.
pub async fn max_hold_frees_the_name(harness: &dyn Harness) {
    let locks = harness.locks().await;
    let limited = locks.ttl(Duration::from_millis(300)).max_hold(Duration::from_millis(200));
    let guard = limited.mutex("x").lock().await.unwrap();
    let next = soon("free", harness.locks().await.mutex("x").lock()).await.unwrap();
    assert!(guard.is_lost() && next.token() > guard.token());
}

/// Work that stands still loses the lock, work that goes on does not; the name is free some time
/// later although the guard is still there.
pub async fn a_stall_ends_it(harness: &dyn Harness) {
    let (locks, _) = faulty(harness).await;
    let stall_after = Duration::from_millis(600);
    let locks = locks.ttl(Duration::from_millis(900)).stall_after(stall_after);
    let guard = locks.mutex("x").lock().await.unwrap();
    let working_since = Instant::now();
    let three_times = async || {
        guard.progress().unwrap();
        Instant::now().since(working_since) > 3 * stall_after
    };
    eventually("it works on", three_times).await;
    let last = Instant::now();
    assert_eq!(soon("the stall", guard.lost()).await, Cause::Stalled);
    let stood = Instant::now().since(last);
    assert!(stood > stall_after / 2, "not before: {stood:?}");
    let error = guard.progress().unwrap_err();
    assert!(matches!(error, Error::Lost { cause: Cause::Stalled, .. }), "{error}");
    let next = soon("it ends by itself", harness.locks().await.mutex("x").lock()).await.unwrap();
    assert!(next.token() > guard.token());
    assert!(guard.release().await.is_err());
}

/// How long the store may take to answer a renewal is a matter of the lease. Work that goes on while it is
/// under way may be near a stall all the time.
pub async fn a_renewal_shortly_before_a_stall_has_time(harness: &dyn Harness) {
    let (locks, faults) = faulty(harness).await;
    let stall_after = Duration::from_millis(800);
    let locks = locks.lease(Duration::from_secs(60)).stall_after(stall_after);
    let guard = locks.mutex("x").lock().await.unwrap();
    faults.renew.set(Mode::HoldReply);
    let since = Instant::now();
    let working = async {
        let twice = async || {
            guard.progress().unwrap();
            Instant::now().since(since) > 2 * stall_after
        };
        eventually("it works on", twice).await;
        faults.renew.deliver();
    };
    let (renewed, ()) = tokio::join!(guard.renew(Duration::from_secs(60)), working);
    renewed.unwrap();
    guard.release().await.unwrap();
}

/// A guard that is not its owner's last one tells at its release that the lock was lost.
pub async fn a_shared_guard_that_is_lost_says_so(harness: &dyn Harness) {
    let locks = harness.locks().await;
    let mine = locks.owned_by(&locks.new_owner());
    let (outer, inner) = (mine.mutex("x").lock().await, mine.mutex("x").lock().await);
    let (outer, inner) = (outer.unwrap(), inner.unwrap());
    locks.admin().evict(&super::name("x"), "stuck").await.unwrap();
    soon("the loss", inner.lost()).await;
    for guard in [inner, outer] {
        let error = guard.release().await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
    }
}

/// Notes when the work was dropped.
struct Work(Arc<AtomicU64>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.store(Instant::now().as_nanos(), Ordering::SeqCst);
    }
}

/// Protected work is dropped where it stands before anybody else can have the lock.
pub async fn protect_stops_the_work_before_expiry(harness: &dyn Harness) {
    let locks = harness.locks().await;
    let guard = locks.lease(LEASE).mutex("x").lock().await.unwrap();
    assert_eq!(guard.protect(async { 42 }).await.unwrap(), 42);
    let dropped = Arc::<AtomicU64>::default();
    let work = Work(Arc::clone(&dropped));
    let stopped = soon(
        "the loss",
        guard.protect(async move {
            let _work = work;
            std::future::pending::<()>().await;
        }),
    )
    .await;
    assert!(matches!(stopped, Err(Error::Lost { cause: Cause::Expired, .. })), "{stopped:?}");
    let dropped = Instant::from_nanos(dropped.load(Ordering::SeqCst));
    assert!(dropped < guard.expires_at().expect("a lease"), "dropped, and in time");
    let never = guard.protect(async { unreachable!("a lost lock protects nothing") }).await;
    let never: Result<(), _> = never;
    assert!(never.is_err());
}

/// A lease that has ended goes to whoever waits, under a larger token, and not before its end.
pub async fn an_expired_lease_goes_to_the_next(harness: &dyn Harness) {
    let (locks, other) = (harness.locks().await, harness.locks().await);
    let guard = locks.lease(Duration::from_millis(500)).mutex("x").lock().await.unwrap();
    let expires = guard.expires_at().expect("a lease");
    let next = soon("the next", other.mutex("x").lock()).await.unwrap();
    assert!(Instant::now() >= expires, "not before its end");
    assert!(guard.is_lost() && next.token() > guard.token());
    drop(guard);
    assert_eq!(show(&other, "x").await.holders[0].token, next.token(), "and stays there");
}
