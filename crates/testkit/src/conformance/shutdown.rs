//! The end of a client.

use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Cause, Error};

use super::{Harness, can, faulty, idle, in_order, queued, show};
use crate::faulty::Mode;
use crate::wait::{LONG, eventually, soon};

/// Shutdown tells every guard and gives back what is still held; short fixed leases end by
/// themselves.
pub async fn shutdown_releases(harness: &dyn Harness) {
    let (locks, other) = (harness.locks().await, harness.locks().await);
    let hosted = locks.mutex("hosted").lock().await.unwrap();
    let long = locks.lease(Duration::from_secs(300)).mutex("long").lock().await.unwrap();
    let short = locks.lease(LONG).mutex("short").lock().await.unwrap();
    let obedient = match can(&locks, "a reader", |can| can.read_write) {
        true => locks.rw_lock("obedient").read().await.unwrap(),
        false => locks.mutex("obedient").lock().await.unwrap(),
    };
    let obeying = tokio::spawn(async move {
        let cause = obedient.lost().await;
        drop(obedient);
        cause
    });
    let report = soon("the end", locks.shutdown(Duration::from_millis(300))).await;
    assert_eq!((report.released, report.left), (2, 1), "the obedient one went by itself");
    for guard in [&hosted, &long, &short] {
        assert!(guard.is_lost());
        assert_eq!(guard.lost().await, Cause::ShutDown);
    }
    assert_eq!(soon("the obedient one", obeying).await.unwrap(), Cause::ShutDown);
    for name in ["hosted", "long", "obedient"] {
        idle(&other, name).await;
    }
    assert_eq!(show(&other, "short").await.holders.len(), 1, "left to end by itself");
    let after = locks.mutex("new").lock().await.unwrap_err();
    assert!(matches!(after, Error::ShutDown), "{after}");
    let again = soon("harmless", locks.shutdown(Duration::ZERO)).await;
    assert_eq!(again.released, 0);
    drop((hosted, long, short));
}

/// A lease that ended long ago is not kept in mind for the sake of the guard that nobody let go.
pub async fn what_has_ended_is_forgotten(harness: &dyn Harness) {
    let locks = harness.locks().await;
    let lease = Duration::from_millis(500);
    let guard = locks.lease(lease).mutex("x").lock().await.unwrap();
    let expires = guard.expires_at().expect("a lease");
    soon("the loss", guard.lost()).await;
    let long_ago = async || Instant::now() > expires + 2 * lease;
    eventually("that was long ago", long_ago).await;
    let report = soon("the end", locks.shutdown(LONG)).await;
    assert_eq!((report.released, report.left), (0, 0));
}

/// How long a lease was at first says nothing about one that its holder has renewed for longer.
pub async fn shutdown_releases_what_was_renewed_for_long(harness: &dyn Harness) {
    let (locks, other) = (harness.locks().await, harness.locks().await);
    let guard = locks.lease(LONG).mutex("x").lock().await.unwrap();
    guard.renew(Duration::from_secs(300)).await.unwrap();
    let report = soon("the end", locks.shutdown(Duration::ZERO)).await;
    assert_eq!((report.released, report.left), (1, 0));
    idle(&other, "x").await;
}

/// A renewal whose answer was lost may have been done: the lock is lost, but not yet forgotten.
pub async fn what_may_have_been_renewed_is_not_forgotten(harness: &dyn Harness) {
    let ((locks, faults), other) = (faulty(harness).await, harness.locks().await);
    let lease = Duration::from_millis(500);
    let guard = locks.lease(lease).mutex("x").lock().await.unwrap();
    faults.renew.set(Mode::LoseReply);
    let error = guard.renew(Duration::from_secs(300)).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
    let expires = guard.expires_at().expect("a lease");
    soon("the loss", guard.lost()).await;
    eventually("long after", async || Instant::now() > expires + 3 * lease).await;
    assert_eq!(show(&other, "x").await.holders.len(), 1);
    let report = soon("the end", locks.shutdown(Duration::ZERO)).await;
    assert_eq!((report.released, report.left), (1, 0));
    idle(&other, "x").await;
}

/// Those who have been told have the whole grace period to stop, however short their leases are.
pub async fn shutdown_waits_for_guards_and_not_for_leases(harness: &dyn Harness) {
    let (locks, _) = faulty(harness).await;
    let ttl = Duration::from_millis(300);
    let guard = in_order(&locks, locks.ttl(ttl).mutex("x")).lock().await.unwrap();
    let shutting_down = tokio::spawn(async move { locks.shutdown(LONG).await });
    assert_eq!(soon("it is told", guard.lost()).await, Cause::ShutDown);
    let expires = guard.expires_at().expect("a lease");
    eventually("long after", async || Instant::now() > expires + 4 * ttl).await;
    assert!(!shutting_down.is_finished(), "there is a guard");
    drop(guard);
    let report = soon("the end", shutting_down).await.unwrap();
    assert_eq!((report.released, report.left), (0, 0));
}

/// A lock whose guard is gone may still be on its way back: a process that ended now would leave it.
pub async fn shutdown_waits_for_what_is_on_its_way_back(harness: &dyn Harness) {
    let (locks, faults) = faulty(harness).await;
    let guard = in_order(&locks, locks.mutex("x")).lock().await.unwrap();
    faults.release.set(Mode::Hang);
    drop(guard);
    let shutting_down = async {
        let report = locks.shutdown(LONG).await;
        (report, faults.release.done())
    };
    let meanwhile = async {
        let closed = async || matches!(locks.mutex("y").try_lock().await, Err(Error::ShutDown));
        eventually("it shuts down", closed).await;
        faults.release.set(Mode::Pass);
    };
    let ((report, released), ()) =
        soon("the end", async { tokio::join!(shutting_down, meanwhile) }).await;
    assert_eq!((report.released, report.left, released), (0, 0, 1));
}

/// Those who wait at shutdown are told so, and leave nothing; without guards it takes no time.
pub async fn shutdown_ends_waits(harness: &dyn Harness) {
    let (locks, other) = (harness.locks().await, harness.locks().await);
    let taken = other.mutex("x").lock().await.unwrap();
    let cohort = locks.mutex("x");
    let fair = in_order(&locks, locks.mutex("x"));
    let multi = locks.multi(["w", "x"]);
    let waits = [
        tokio::spawn(async move { cohort.lock().await.err() }),
        tokio::spawn(async move { fair.lock_timeout(10 * LONG).await.err() }),
        tokio::spawn(async move { multi.lock().await.err() }),
    ];
    if locks.backend().capabilities().latches {
        other.latch("gate").close(1).await.unwrap();
    }
    let gate = locks.latch("gate");
    let has_latches = locks.backend().capabilities().latches;
    let at_gate = tokio::spawn(async move { gate.wait().await.err() });
    // The multi-lock and the plain mutex are one cohort, which waits once at the store.
    queued(&other, "x", if locks.backend().capabilities().fair { 2 } else { 1 }).await;
    let report = soon("the end", locks.shutdown(10 * LONG)).await;
    assert_eq!((report.released, report.left), (0, 0));
    assert_eq!(show(&other, "x").await.waiters, [], "they have left, in case the process ends now");
    for wait in waits {
        let error = soon("the end of the wait", wait).await.unwrap();
        assert!(matches!(error, Some(Error::ShutDown)), "{error:?}");
    }
    let error = soon("the end of the latch", at_gate).await.unwrap();
    assert!(!has_latches || matches!(error, Some(Error::ShutDown)), "{error:?}");
    queued(&other, "x", 0).await;
    idle(&other, "w").await;
    assert_eq!(show(&other, "x").await.holders.len(), 1);
    taken.release().await.unwrap();
}
