//! Many tasks of one process, and one of another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::{Harness, idle, show};
use crate::random::Random;
use crate::wait::soon;

/// So often may a process pass a lock on before others must have had their turn: its current turn
/// and one that was ahead in line.
const PASSES: usize = 2 * 128;

/// One task of another client gets its turn among 64 tasks of this one within a bounded number of
/// passes.
pub async fn another_client_gets_its_turn(harness: &dyn Harness) {
    let (crowd, single) = (harness.locks().await, harness.locks().await);
    let stop = Arc::new(AtomicBool::new(false));
    let passes = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (mutex, stop, passes) = (crowd.mutex("x"), Arc::clone(&stop), Arc::clone(&passes));
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = mutex.lock().await.unwrap();
                    passes.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    drop(guard);
                }
            })
        })
        .collect();
    let client = single.new_owner().to_string();
    let client = client.split(':').next().unwrap_or_default().to_owned();
    for _ in 0..10 {
        let (mutex, counter) = (single.mutex("x"), Arc::clone(&passes));
        let turn = tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            let passes = counter.load(Ordering::SeqCst);
            guard.release().await.unwrap();
            passes
        });
        // From the moment when it is seen in line; if its turn comes first, so much the better.
        let mut seen = None;
        while !turn.is_finished() && seen.is_none() {
            let waiters = show(&crowd, "x").await.waiters;
            let in_line = waiters.iter().any(|owner| owner.to_string().starts_with(&client));
            seen = in_line.then(|| passes.load(Ordering::SeqCst));
            tokio::task::yield_now().await;
        }
        let at_turn = soon("its turn", turn).await.unwrap();
        let passed = at_turn.saturating_sub(seen.unwrap_or(at_turn));
        assert!(passed <= PASSES, "{passed} went before");
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        soon("the end", task).await.unwrap();
    }
    idle(&single, "x").await;
}

/// Tasks that give up by the hundred leave neither a hold nor a place, and the lock works on.
pub async fn a_cancellation_storm_leaves_nothing(harness: &dyn Harness) {
    let clients = [harness.locks().await, harness.locks().await];
    let mut random = Random::seeded();
    for _ in 0..10 {
        let tasks: Vec<_> = (0..64)
            .map(|at: usize| {
                let (mutex, mut random) = (clients[at % 2].mutex("x"), random.fork());
                tokio::spawn(async move {
                    let patience = random.duration(Duration::from_millis(10));
                    let asking = async {
                        match random.below(3) {
                            0 => mutex.lock_timeout(patience / 2).await.ok(),
                            1 => mutex.try_lock().await.unwrap(),
                            _ => Some(mutex.lock().await.unwrap()),
                        }
                    };
                    if let Ok(Some(guard)) = tokio::time::timeout(patience, asking).await {
                        // Held for a while, so that the others really wait.
                        tokio::time::sleep(random.duration(Duration::from_millis(1))).await;
                        drop(guard);
                    }
                })
            })
            .collect();
        for (at, task) in tasks.iter().enumerate() {
            if at % 7 == 0 {
                task.abort();
            }
        }
        for task in tasks {
            // Cancelled is what some of them are.
            let _ = task.await;
        }
        idle(&clients[0], "x").await;
        for locks in &clients {
            soon("free", locks.mutex("x").lock()).await.unwrap().release().await.unwrap();
        }
    }
}
