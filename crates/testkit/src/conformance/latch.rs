//! Gates that open when they have been counted down.

use std::time::Duration;

use lockkeeper::Error;

use super::{Harness, can, show};
use crate::wait::{eventually, soon};

/// Closed with a count, open at zero, open from the start, and closed only once.
pub async fn opens_at_zero(harness: &dyn Harness) {
    let (one, two) = (harness.locks().await, harness.locks().await);
    if !can(&one, "opens_at_zero", |can| can.latches) {
        return;
    }
    let (latch, other) = (one.latch("x"), two.latch("x"));
    soon("never closed is open", latch.wait()).await.unwrap();
    assert_eq!(latch.count_down().await.unwrap(), 0, "an open latch stays open");
    assert!(latch.close(3).await.unwrap());
    assert!(!other.close(9).await.unwrap(), "closed already");
    assert_eq!(show(&two, "x").await.count, Some(3));
    for left in [2, 1, 0] {
        assert_eq!(other.count_down().await.unwrap(), left);
        assert_eq!(latch.count().await.unwrap(), left);
    }
    soon("open", latch.wait()).await.unwrap();
    assert!(other.close(1).await.unwrap(), "open again, so it can be closed again");
    let error = one.latch("y").close(0).await.unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
}

/// A wait for a closed latch ends when its time is up, and says so.
pub async fn a_wait_times_out(harness: &dyn Harness) {
    let locks = harness.locks().await;
    if !can(&locks, "a_wait_times_out", |can| can.latches) {
        return;
    }
    let latch = locks.latch("x");
    latch.close(1).await.unwrap();
    assert!(!soon("the end", latch.wait_timeout(Duration::from_millis(50))).await.unwrap());
    assert!(!latch.wait_timeout(Duration::ZERO).await.unwrap());
    latch.count_down().await.unwrap();
    // No answer in time counts as closed.
    eventually("open", async || latch.wait_timeout(Duration::ZERO).await.unwrap()).await;
}

/// All who wait, at any client, are woken by the last count-down.
pub async fn a_wait_is_woken(harness: &dyn Harness) {
    let (one, two) = (harness.locks().await, harness.locks().await);
    if !can(&one, "a_wait_is_woken", |can| can.latches) {
        return;
    }
    one.latch("x").close(20).await.unwrap();
    let waiting: Vec<_> = (0..10)
        .map(|at| {
            let latch = if at % 2 == 0 { &one } else { &two }.latch("x");
            tokio::spawn(async move { latch.wait().await.unwrap() })
        })
        .collect();
    let counting: Vec<_> = (0..20)
        .map(|at| {
            let latch = if at % 2 == 0 { &one } else { &two }.latch("x");
            tokio::spawn(async move { latch.count_down().await.unwrap() })
        })
        .collect();
    let mut left = Vec::new();
    for task in counting {
        left.push(soon("a count-down", task).await.unwrap());
    }
    left.sort_unstable();
    assert_eq!(left, (0..20).collect::<Vec<_>>(), "each count once");
    for task in waiting {
        soon("woken", task).await.unwrap();
    }
}

/// A wait that is cancelled leaves nothing, and the latch works on.
pub async fn a_cancelled_wait_leaves_nothing(harness: &dyn Harness) {
    let locks = harness.locks().await;
    if !can(&locks, "a_cancelled_wait_leaves_nothing", |can| can.latches) {
        return;
    }
    let latch = locks.latch("x");
    latch.close(1).await.unwrap();
    for micros in (0..2000).step_by(100) {
        let wait = tokio::time::timeout(Duration::from_micros(micros), latch.wait()).await;
        assert!(wait.is_err(), "closed");
    }
    latch.count_down().await.unwrap();
    eventually("nothing is left of it", async || show(&locks, "x").await.kind.is_none()).await;
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
}

/// A name is a latch or a lock, not both.
pub async fn a_latch_is_no_lock(harness: &dyn Harness) {
    let locks = harness.locks().await;
    if !can(&locks, "a_latch_is_no_lock", |can| can.latches) {
        return;
    }
    let wrong = |error: Error| assert!(matches!(error, Error::WrongKind { .. }), "{error}");
    locks.latch("x").close(1).await.unwrap();
    wrong(locks.mutex("x").lock().await.unwrap_err());
    wrong(locks.semaphore("x", 1).try_acquire().await.unwrap_err());
    locks.latch("x").count_down().await.unwrap();
    let guard = locks.mutex("x").fair().lock().await.unwrap();
    wrong(locks.latch("x").close(1).await.unwrap_err());
    guard.release().await.unwrap();
    assert!(locks.latch("x").close(1).await.unwrap());
}
