//! One holder at a time.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Error, Locks};

use super::judge::Judge;
use super::{Harness, can, faulty, idle, in_order, name, rw_in_order, show};
use crate::wait::{LONG, eventually, soon};

/// Never two holders: 100 contenders, as tasks of four clients, fair ones and others.
pub async fn never_two_holders(harness: &dyn Harness) {
    const ROUNDS: usize = 5;
    let judge = Arc::<Judge>::default();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(harness.locks().await);
    }
    let tasks: Vec<_> = (0..100)
        .map(|who| {
            let locks = &clients[who as usize % clients.len()];
            let mutex = locks.mutex("x");
            let mutex = if who % 10 < 3 { in_order(locks, mutex) } else { mutex };
            let judge = Arc::clone(&judge);
            tokio::spawn(async move {
                for round in 0..ROUNDS {
                    let guard = mutex.lock().await.unwrap();
                    judge.visit(who, &guard).await;
                    match round % 2 {
                        0 => guard.release().await.unwrap(),
                        _ => drop(guard),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    judge.all_alone(100 * ROUNDS);
    idle(&clients[0], "x").await;
}

/// Tokens grow over release, drop, expiry, eviction, and over new clients of the store.
pub async fn tokens_grow(harness: &dyn Harness) {
    let mut last = 0;
    let mut grows = |token: lockkeeper::Token, after: &str| {
        assert!(token.get() > last, "{token} after {last}, over {after}");
        last = token.get();
    };
    for client in 0..3 {
        let locks = harness.locks().await;
        let guard = locks.mutex("x").lock().await.unwrap();
        grows(guard.token(), &format!("client {client}"));
        guard.release().await.unwrap();
        let guard = locks.mutex("x").lock().await.unwrap();
        grows(guard.token(), "release");
        drop(guard);
        let short = locks.lease(Duration::from_millis(300)).mutex("x").lock().await.unwrap();
        grows(short.token(), "drop");
        let next = soon("the lease ends", locks.mutex("x").lock()).await.unwrap();
        grows(next.token(), "expiry");
        let eviction = locks.admin().evict(&name("x"), "test").await.unwrap();
        grows(eviction.token, "eviction");
        let next = soon("evicted", in_order(&locks, locks.mutex("x")).lock()).await.unwrap();
        grows(next.token(), "eviction");
        next.release().await.unwrap();
        if can(&locks, "a read lock", |can| can.read_write) {
            let read = locks.rw_lock("x").read().await.unwrap();
            grows(read.token(), "a read lock");
            read.release().await.unwrap();
        }
    }
}

/// Asking once for what somebody holds gives nothing and changes nothing.
pub async fn try_lock_on_held_is_none(harness: &dyn Harness) {
    let (one, two) = (harness.locks().await, harness.locks().await);
    let guard = one.mutex("x").try_lock().await.unwrap().expect("free");
    for locks in [&one, &two, &two.lease(LONG), &two.owned_by(&two.new_owner())] {
        assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
        assert!(in_order(locks, locks.mutex("x")).try_lock().await.unwrap().is_none());
    }
    assert!(show(&two, "x").await.waiters.is_empty());
    guard.release().await.unwrap();
    assert!(two.mutex("x").try_lock().await.unwrap().is_some());
}

/// A wait ends in time, names the holder, and leaves no place in the queue.
pub async fn lock_timeout_names_the_holder_and_leaves_nothing(harness: &dyn Harness) {
    let (one, two) = (harness.locks().await, harness.locks().await);
    let guard = in_order(&one, one.mutex("x")).lock().await.unwrap();
    let fair = in_order(&two, two.mutex("x"));
    for mutex in [two.mutex("x"), fair, two.lease(LONG).mutex("x")] {
        let wait = Duration::from_millis(100);
        // By a store that tells it in a moment.
        let named = async || {
            let error = soon("the time-out", mutex.lock_timeout(wait)).await.unwrap_err();
            let Error::Timeout { name, waited, held_by } = error else { panic!("{error}") };
            assert_eq!(name.as_str(), "x");
            assert!(waited >= wait, "{waited:?}");
            assert!(held_by.iter().all(|owner| owner == guard.owner()), "{held_by:?}");
            held_by.len() == 1
        };
        eventually("the holder is named", named).await;
        super::queued(&one, "x", 0).await;
    }
    let none = two.mutex("x").lock_timeout(Duration::ZERO).await;
    assert!(matches!(none, Err(Error::Timeout { .. })), "{none:?}");
    guard.release().await.unwrap();
    soon("free", two.mutex("x").lock_timeout(LONG)).await.unwrap().release().await.unwrap();
}

/// Bounded attempts ask so often and no more.
pub async fn lock_attempts_are_bounded(harness: &dyn Harness) {
    let (locks, faults) = faulty(harness).await;
    let guard = harness.locks().await.mutex("x").lock().await.unwrap();
    let error = soon("five attempts", locks.mutex("x").lock_attempts(5)).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert_eq!(faults.acquire.begun(), 5);
    let none = locks.mutex("x").lock_attempts(0).await;
    assert!(matches!(none, Err(Error::Timeout { .. })), "{none:?}");
    guard.release().await.unwrap();
    assert!(locks.mutex("x").lock_attempts(1).await.is_ok());
}

/// Dropping a guard of any kind gives the lock back soon.
pub async fn drop_releases(harness: &dyn Harness) {
    let (one, two) = (harness.locks().await, harness.locks().await);
    drop(one.mutex("a").lock().await.unwrap());
    drop(in_order(&one, one.mutex("b")).lock().await.unwrap());
    drop(one.lease(LONG).mutex("c").lock().await.unwrap());
    if can(&one, "read-write locks", |can| can.read_write) {
        drop(one.rw_lock("d").write().await.unwrap());
        drop(rw_in_order(&one, one.rw_lock("e")).read().await.unwrap());
    }
    if can(&one, "permits", |can| can.permits) {
        drop(one.semaphore("f", 1).acquire().await.unwrap());
    }
    drop(one.multi(["g", "h"]).lock().await.unwrap());
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        idle(&two, name).await;
    }
}

/// Without an owner the same client does not get its lock twice.
pub async fn not_reentrant_by_default(harness: &dyn Harness) {
    let locks = harness.locks().await;
    let mutex = locks.mutex("x");
    let guard = mutex.lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    let late = mutex.lock_timeout(Duration::from_millis(20)).await;
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    guard.release().await.unwrap();
}

/// An owner gets its lock again under the same token, and the store is not asked.
pub async fn reentry_keeps_the_token_and_needs_no_grant(harness: &dyn Harness) {
    let (locks, faults) = faulty(harness).await;
    let mine = locks.owned_by(&locks.new_owner());
    for mutex in [mine.mutex("x"), in_order(&mine, mine.mutex("y"))] {
        let outer = mutex.lock().await.unwrap();
        let asked = faults.acquire.begun();
        let inner = mutex.try_lock().await.unwrap().expect("ours");
        let third = mutex.lock_timeout(LONG).await.unwrap();
        assert_eq!((inner.token(), third.token()), (outer.token(), outer.token()));
        assert_eq!(faults.acquire.begun(), asked);
        let other = locks.owned_by(&locks.new_owner()).mutex("x");
        assert_eq!(
            other.try_lock().await.unwrap().is_none(),
            mutex.name().unwrap().as_str() == "x"
        );
        drop((inner, third));
        outer.release().await.unwrap();
    }
}

/// With several guards of one owner the last one to go releases, in whatever order they go.
pub async fn the_last_guard_releases(harness: &dyn Harness) {
    let (locks, other) = (harness.locks().await, harness.locks().await);
    let mine = locks.owned_by(&locks.new_owner());
    let first = mine.mutex("x").lock().await.unwrap();
    let second = mine.mutex("x").lock().await.unwrap();
    let third = mine.mutex("x").lock().await.unwrap();
    first.release().await.unwrap();
    assert!(other.mutex("x").try_lock().await.unwrap().is_none());
    drop(third);
    assert!(other.mutex("x").try_lock().await.unwrap().is_none());
    let token = second.token();
    second.release().await.unwrap();
    let next = other.mutex("x").try_lock().await.unwrap().expect("released");
    assert!(next.token() > token);
    drop(next);
    let again = soon("ours again", mine.mutex("x").lock()).await.unwrap();
    assert!(again.token() > token, "a new grant, not the old one");
}

/// Two tasks of one owner that ask at the same time share one hold.
pub async fn one_owner_asking_twice_at_once_shares(harness: &dyn Harness) {
    let locks = harness.locks().await;
    let mine = locks.owned_by(&locks.new_owner());
    for _ in 0..20 {
        let blocker = locks.mutex("x").lock().await.unwrap();
        let asking: Vec<_> = (0..4)
            .map(|_| {
                let mine: Locks = mine.clone();
                tokio::spawn(async move { mine.mutex("x").lock().await.unwrap() })
            })
            .collect();
        super::queued(&locks, "x", 1).await;
        blocker.release().await.unwrap();
        let mut guards = Vec::new();
        for task in asking {
            guards.push(soon("all of them", task).await.unwrap());
        }
        assert!(guards.iter().all(|guard| guard.token() == guards[0].token()));
        drop(guards);
        idle(&locks, "x").await;
    }
}

/// An owner that holds a lock has it, whether it asks for it plain, fair or for writing.
pub async fn one_owner_may_spell_one_lock_in_several_ways(harness: &dyn Harness) {
    let locks = harness.locks().await;
    if !can(&locks, "one_owner_may_spell", |can| can.fair && can.read_write) {
        return;
    }
    let mine = locks.owned_by(&locks.new_owner());
    let plain = mine.mutex("x").lock().await.unwrap();
    let fair = soon("its own", mine.mutex("x").fair().lock()).await.unwrap();
    let write = soon("its own", mine.rw_lock("x").write()).await.unwrap();
    assert!(fair.token() == plain.token() && write.token() == plain.token());
    drop((plain, fair));
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    write.release().await.unwrap();
    idle(&locks, "x").await;
}

/// Names that differ in any byte are different locks.
pub async fn names_are_compared_byte_by_byte(harness: &dyn Harness) {
    let locks = harness.locks().await;
    let mut guards = Vec::new();
    let long = "x".repeat(255);
    for name in ["Orders", "orders", "orders/1", "örders", "o%2Fr", "a b", "{x}", "日本", &long]
    {
        guards.push(locks.mutex(name).try_lock().await.unwrap().expect(name));
    }
    for name in ["Orders", "日本", &long] {
        assert!(locks.mutex(name).try_lock().await.unwrap().is_none());
    }
}

/// A name that cannot be used is an error that says why, for every primitive.
pub async fn hostile_names_are_errors(harness: &dyn Harness) {
    let locks = harness.locks().await;
    for bad in ["", " x", "x ", "../x", "a//b", "/etc", "a\u{0}b", "a\n", &"x".repeat(256)] {
        let mut errors = vec![
            locks.mutex(bad).lock().await.unwrap_err(),
            locks.mutex(bad).try_lock().await.unwrap_err(),
            locks.rw_lock(bad).fair().write().await.unwrap_err(),
            locks.semaphore(bad, 2).acquire().await.unwrap_err(),
            locks.multi(["good", bad]).lock().await.unwrap_err(),
        ];
        if can(&locks, "latches", |can| can.latches) {
            errors.push(locks.latch(bad).close(1).await.unwrap_err());
        }
        for error in errors {
            assert!(matches!(error, Error::InvalidName { .. }), "{bad:?}: {error}");
        }
    }
    idle(&locks, "good").await;
}

/// A time to live, a number or a limit that cannot be meant is an error.
pub async fn hostile_terms_are_errors(harness: &dyn Harness) {
    let locks = harness.locks().await;
    let day = Duration::from_hours(24);
    for ttl in [Duration::ZERO, Duration::from_millis(99), 31 * day, Duration::MAX] {
        for bad in [locks.ttl(ttl), locks.lease(ttl)] {
            let error = bad.mutex("x").lock().await.unwrap_err();
            assert!(matches!(error, Error::Config(_)), "{ttl:?}: {error}");
            if can(&locks, "read-write locks", |can| can.read_write) {
                let error = bad.rw_lock("x").try_read().await.unwrap_err();
                assert!(matches!(error, Error::Config(_)), "{ttl:?}: {error}");
            }
        }
        let guard = locks.lease(LONG).mutex("y").lock().await.unwrap();
        let error = guard.renew(ttl).await.unwrap_err();
        assert!(matches!(error, Error::Config(_)), "{ttl:?}: {error}");
        guard.release().await.unwrap();
    }
    let error = locks.max_hold(Duration::ZERO).mutex("x").lock().await.unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    let error = locks.semaphore("x", 0).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    idle(&locks, "x").await;
}
