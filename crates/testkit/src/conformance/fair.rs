//! First come, first served.

use std::sync::Arc;

use lockkeeper::Mutex;

use super::judge::{Judge, accepted};
use super::{Harness, can, idle, queued};
use crate::checker;
use crate::wait::soon;

/// 100 contenders of two clients, whose order of arrival is known, are served in that order.
pub async fn first_come_first_served(harness: &dyn Harness) {
    let (one, two) = (harness.locks().await, harness.locks().await);
    if !can(&one, "first_come_first_served", |can| can.fair) {
        return;
    }
    let judge = Arc::<Judge>::default();
    let blocker = one.mutex("x").fair().lock().await.unwrap();
    let mut tasks = Vec::new();
    for who in 0..100 {
        let mutex = if who % 2 == 0 { one.mutex("x") } else { two.mutex("x") }.fair();
        let judge_too = Arc::clone(&judge);
        judge.history.asks(who);
        tasks.push(tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            judge_too.visit(who, &guard).await;
            guard.release().await.unwrap();
        }));
        queued(&one, "x", who as usize + 1).await;
    }
    blocker.release().await.unwrap();
    for task in tasks {
        soon("everybody's turn", task).await.unwrap();
    }
    let events = judge.history.events();
    accepted(checker::first_come_first_served(&events));
    accepted(checker::mutual_exclusion(&events));
    accepted(checker::tokens_grow(&events));
    idle(&one, "x").await;
}

fn wait_for(mutex: Mutex) -> tokio::task::JoinHandle<lockkeeper::Guard> {
    tokio::spawn(async move { mutex.lock().await.unwrap() })
}

/// A waiter that gives up in the middle of the queue is skipped, and the others keep their order.
pub async fn a_cancelled_waiter_is_skipped(harness: &dyn Harness) {
    let (locks, other) = (harness.locks().await, harness.locks().await);
    if !can(&locks, "a_cancelled_waiter_is_skipped", |can| can.fair) {
        return;
    }
    let blocker = locks.mutex("x").fair().lock().await.unwrap();
    let mut waiting = Vec::new();
    for at in 0..4 {
        waiting.push(wait_for(if at == 1 { &other } else { &locks }.mutex("x").fair()));
        queued(&locks, "x", at + 1).await;
    }
    waiting[1].abort();
    queued(&locks, "x", 3).await;
    let last = waiting.pop().unwrap();
    let third = waiting.pop().unwrap();
    // The one at the front gives up at the moment of the hand-over: either way the next one is next.
    waiting[0].abort();
    blocker.release().await.unwrap();
    let third = soon("the third", third).await.unwrap();
    assert!(!last.is_finished());
    third.release().await.unwrap();
    soon("the last", last).await.unwrap().release().await.unwrap();
    idle(&locks, "x").await;
}

/// Fair and unfair requests for one name are one lock.
pub async fn fair_and_unfair_exclude_each_other(harness: &dyn Harness) {
    let (locks, other) = (harness.locks().await, harness.locks().await);
    if !can(&locks, "fair_and_unfair_exclude_each_other", |can| can.fair) {
        return;
    }
    let fair = locks.mutex("x").fair().lock().await.unwrap();
    assert!(other.mutex("x").try_lock().await.unwrap().is_none());
    let waiting = wait_for(other.mutex("x"));
    queued(&locks, "x", 1).await;
    fair.release().await.unwrap();
    let unfair = soon("the unfair one", waiting).await.unwrap();
    assert!(locks.mutex("x").fair().try_lock().await.unwrap().is_none());
    unfair.release().await.unwrap();
}

/// Whoever waits at the store is woken when a task lets go of a lock that its process would like to
/// keep, and keeps the mutex at hand.
pub async fn a_plain_holder_wakes_a_fair_waiter(harness: &dyn Harness) {
    let locks = harness.locks().await;
    if !can(&locks, "a_plain_holder_wakes_a_fair_waiter", |can| can.fair) {
        return;
    }
    let plain = locks.mutex("x");
    for _ in 0..5 {
        let guard = plain.lock().await.unwrap();
        let waiting = wait_for(locks.mutex("x").fair());
        queued(&locks, "x", 1).await;
        guard.release().await.unwrap();
        soon("the fair one", waiting).await.unwrap().release().await.unwrap();
    }
}
