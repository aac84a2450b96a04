//! Renewal begins with the guard, ends with the guard, and is believed only as far as is safe.

use std::time::Duration;

use lockkeeper::Error;
use lockkeeper::backend::Term;
use lockkeeper::clock::Instant;

use super::{Harness, faulty, idle, in_order};
use crate::faulty::Mode;
use crate::random::Random;
use crate::wait::{LONG, eventually};

/// After a guard begins to go no renewal of its hold begins: 10,000 random lock/drop interleavings, or
/// 1600 where each takes a connection.
pub async fn renewal_never_outlives_the_guard(harness: &dyn Harness) {
    let (locks, faults) = faulty(harness).await;
    let mut random = Random::seeded();
    // As short as can be, so that many are held at the moment when a renewal is due.
    let locks = locks.ttl(Term::MIN);
    // Not more at a time than any store can serve within such a lease.
    let names = 40;
    let rounds = if locks.backend().capabilities().fair { 250 } else { 40 };
    let tasks: Vec<_> = (0..names)
        .map(|at| {
            let (locks, mut random) = (locks.clone(), random.fork());
            tokio::spawn(async move {
                for _ in 0..rounds {
                    let mutex = locks.mutex(format!("x{at}"));
                    let mutex = if at % 2 == 0 { in_order(&locks, mutex) } else { mutex };
                    // A session whose server hears nothing for as long as that is ended: on a loaded machine.
                    let guard = loop {
                        match mutex.lock().await {
                            Ok(guard) => break guard,
                            Err(error) => assert!(error.is_transient(), "{error}"),
                        }
                    };
                    // The first renewal is due after a third; most go at about that time.
                    let hold = match random.below(4) {
                        0 => random.duration(Term::MIN),
                        _ => Term::MIN / 3 + random.duration(Duration::from_millis(4)),
                    };
                    tokio::time::sleep(hold).await;
                    match random.below(2) {
                        0 => drop(guard),
                        // Lost is possible: such a short lease does not survive a loaded machine.
                        _ => drop(guard.release().await),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    eventually("all are given back", async || faults.release.done() >= names * rounds).await;
    let renewed = faults.renew.begun();
    assert!(renewed > names * rounds / 10, "only {renewed} renewals: the test tests nothing");
    assert_eq!(faults.renewed_after_release(), 0, "of {renewed} renewals");
}

/// A reply that comes after a later renewal was carried out does not extend what the guard believes.
pub async fn a_late_reply_is_not_believed(harness: &dyn Harness) {
    let (locks, faults) = faulty(harness).await;
    let ttl = Duration::from_millis(1500);
    let locks = locks.ttl(ttl);
    let guard = in_order(&locks, locks.mutex("x")).lock().await.unwrap();
    faults.renew.set(Mode::HoldReply);
    let renewing = guard.renew(10 * LONG);
    let later = async {
        eventually("the long renewal is at the store", async || faults.renew.done() >= 1).await;
        faults.renew.set(Mode::Pass);
        // Where the keeper goes on renewing, for the usual time, that is what the store knows last.
        let after = async || faults.renew.done() >= 3 || guard.is_lost();
        eventually("a short one is after it, or the lock is given up", after).await;
        faults.renew.deliver();
    };
    let (_, ()) = tokio::join!(renewing, later);
    // Held on, or lost: both are right, but not both of us.
    let other = harness.locks().await;
    if let Ok(next) = other.mutex("x").lock_timeout(3 * ttl).await {
        assert!(guard.is_lost(), "two holders: {:?} left, and {next:?}", guard.remaining());
    }
}

/// A release whose outcome is not known is reported so, and tried again until it is done.
pub async fn an_unknown_release_is_reported_and_tried_again(harness: &dyn Harness) {
    let (locks, faults) = faulty(harness).await;
    let other = harness.locks().await;
    for mode in [Mode::Fail, Mode::LoseReply] {
        faults.release.set(mode);
        let guard = locks.ttl(10 * LONG).mutex("x").lock().await.unwrap();
        let error = guard.release().await.unwrap_err();
        assert!(matches!(error, Error::Unknown { .. }) && error.is_outcome_unknown(), "{error}");
        let tried = faults.release.begun();
        eventually("tried again", async || faults.release.begun() > tried).await;
        faults.release.set(Mode::Pass);
        idle(&other, "x").await;
    }
    // Dropped while the store does not answer: the background task is on it.
    faults.release.set(Mode::Hang);
    let since = Instant::now();
    drop(locks.ttl(10 * LONG).mutex("y").lock().await.unwrap());
    assert!(Instant::now().since(since) < LONG, "a drop does not wait");
    faults.release.set(Mode::Pass);
    idle(&other, "y").await;
}
