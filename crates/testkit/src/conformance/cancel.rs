//! Giving up leaves nothing: no hold, no place in a queue.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::poll;
use lockkeeper::{Guard, Locks, Result};

use super::{Harness, idle, in_order, rw_in_order};
use crate::random::Random;
use crate::wait::soon;

/// Waits for a lock of one of the kinds.
async fn any(locks: &Locks, kind: u64) -> Result<Guard> {
    match kind {
        0 => locks.mutex("x").lock().await,
        1 => in_order(locks, locks.mutex("x")).lock().await,
        2 => locks.lease(Duration::from_secs(60)).mutex("x").lock().await,
        3 | 4 if !locks.backend().capabilities().read_write => locks.mutex("x").lock().await,
        3 => locks.rw_lock("x").read().await,
        4 => rw_in_order(locks, locks.rw_lock("x")).write().await.map(Into::into),
        _ => locks.owned_by(&locks.new_owner()).mutex("x").lock().await,
    }
}

const KINDS: u64 = 6;

/// Waits of every kind, dropped at random moments while the lock changes hands, leave nothing.
pub async fn cancel_mid_wait_leaves_nothing(harness: &dyn Harness) {
    let clients = [harness.locks().await, harness.locks().await];
    let mut random = Random::seeded();
    let tasks: Vec<_> = (0..12)
        .map(|at: usize| {
            let (locks, mut random) = (clients[at % 2].clone(), random.fork());
            tokio::spawn(async move {
                for _ in 0..60 {
                    let patience = random.duration(Duration::from_millis(4));
                    let kind = random.below(KINDS);
                    match tokio::time::timeout(patience, any(&locks, kind)).await {
                        Ok(guard) => {
                            // Held for a while, so that the others really wait.
                            tokio::time::sleep(random.duration(Duration::from_millis(2))).await;
                            drop(guard.unwrap());
                        }
                        Err(_given_up) => {}
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    idle(&clients[0], "x").await;
    soon("free", clients[1].mutex("x").lock()).await.unwrap().release().await.unwrap();
}

/// Polls a future so often, with time for others in between, and drops it.
async fn drop_after<T>(polls: usize, future: impl Future<Output = T> + Send) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let std::task::Poll::Ready(done) = poll!(future.as_mut()) {
            return Some(done);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// Waits of every kind, dropped after each possible number of steps, leave nothing.
pub async fn cancel_after_some_polls_leaves_nothing(harness: &dyn Harness) {
    let (locks, other) = (harness.locks().await, harness.locks().await);
    for kind in 0..KINDS {
        for polls in 0..12 {
            // Free: dropped before, at or after the grant.
            drop(drop_after(polls, any(&locks, kind)).await);
            idle(&other, "x").await;
            // Taken: dropped in line.
            let taken = in_order(&other, other.mutex("x")).lock().await.unwrap();
            let waited = drop_after(polls, any(&locks, kind)).await;
            assert!(waited.is_none(), "taken");
            super::queued(&other, "x", 0).await;
            // Handed over at the moment of the drop.
            let (waited, released) =
                tokio::join!(drop_after(polls, any(&locks, kind)), taken.release());
            released.unwrap();
            drop(waited);
            idle(&other, "x").await;
        }
    }
}
