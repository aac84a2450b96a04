//! Several holders at a time.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Error;

use super::judge::{Judge, accepted};
use super::{Harness, can, idle, queued};
use crate::checker;
use crate::wait::{LONG, soon};

/// Never more holders than permits, and all permits are used: 40 contenders of three clients.
pub async fn permits_are_never_exceeded(harness: &dyn Harness) {
    let clients = [harness.locks().await, harness.locks().await, harness.locks().await];
    if !can(&clients[0], "permits_are_never_exceeded", |can| can.permits) {
        return;
    }
    let judge = Arc::<Judge>::default();
    let tasks: Vec<_> = (0..40)
        .map(|who: u32| {
            let semaphore = clients[who as usize % 3].semaphore("x", 5);
            let judge = Arc::clone(&judge);
            tokio::spawn(async move {
                for _ in 0..5 {
                    let permit = semaphore.acquire().await.unwrap();
                    judge.visit(who, &permit).await;
                    permit.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let events = judge.history.events();
    accepted(checker::at_most(&events, 5));
    accepted(checker::tokens_are_unique(&events));
    assert!(judge.most() <= 5, "{}", judge.most());
    assert_eq!(events.len(), 2 * 40 * 5);
    idle(&clients[0], "x").await;
}

/// A permit comes back by release, by drop and by the end of its lease; without one a wait ends.
pub async fn permits_come_back(harness: &dyn Harness) {
    let (one, two) = (harness.locks().await, harness.locks().await);
    if !can(&one, "permits_come_back", |can| can.permits) {
        return;
    }
    let short = one.lease(Duration::from_millis(300));
    let leased = short.semaphore("x", 3).acquire().await.unwrap();
    let released = one.semaphore("x", 3).acquire().await.unwrap();
    let dropped = two.semaphore("x", 3).try_acquire().await.unwrap().expect("the third");
    let tokens = [leased.token(), released.token(), dropped.token()];
    assert!(tokens.is_sorted() && tokens[0] < tokens[1] && tokens[1] < tokens[2], "{tokens:?}");
    released.release().await.unwrap();
    drop(dropped);
    let mut back = Vec::new();
    for _ in 0..3 {
        back.push(soon("all three are back", two.semaphore("x", 3).acquire()).await.unwrap());
    }
    assert!(leased.is_lost(), "its permit is somebody else's");
    let none = one.semaphore("x", 3).acquire_timeout(Duration::from_millis(50)).await;
    assert!(matches!(none, Err(Error::Timeout { .. })), "{none:?}");
    assert!(one.semaphore("x", 3).acquire_attempts(2).await.is_err());
    assert!(one.semaphore("x", 4).try_acquire().await.unwrap().is_some(), "by its own number");
}

/// Waiters for a permit are served in the order of arrival.
pub async fn permits_are_served_in_order(harness: &dyn Harness) {
    let locks = harness.locks().await;
    if !can(&locks, "permits_are_served_in_order", |can| can.permits && can.fair) {
        return;
    }
    let semaphore = locks.semaphore("x", 2);
    let (one, two) = (semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap());
    let mut waiting = Vec::new();
    for at in 0..6 {
        let semaphore = locks.semaphore("x", 2);
        waiting.push(tokio::spawn(async move { semaphore.acquire().await.unwrap() }));
        queued(&locks, "x", at + 1).await;
    }
    let mut held = vec![one, two];
    let mut last = held[1].token();
    for waiter in waiting {
        held.remove(0).release().await.unwrap();
        let permit = tokio::time::timeout(LONG, waiter).await.expect("in its order").unwrap();
        assert!(permit.token() > last);
        last = permit.token();
        held.push(permit);
    }
}
