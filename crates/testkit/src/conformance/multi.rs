//! Several mutexes as one.

use std::time::Duration;

use lockkeeper::{Cause, Error, Multi};

use super::{Harness, idle, name, queued};
use crate::wait::{LONG, soon};

/// Two that name the same locks in opposite orders do not wait for each other in a circle.
pub async fn opposite_orders_do_not_deadlock(harness: &dyn Harness) {
    let (one, two) = (harness.locks().await, harness.locks().await);
    let tasks: Vec<_> = [one.multi(["a", "b", "c"]), two.multi(["c", "b", "a"])]
        .into_iter()
        .map(|multi| {
            tokio::spawn(async move {
                for round in 0..100 {
                    let guard = multi.lock().await.unwrap();
                    let names: Vec<_> = guard.guards().iter().map(|g| g.name().as_str()).collect();
                    assert_eq!(names, ["a", "b", "c"]);
                    if round % 2 == 0 {
                        guard.release().await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(3 * LONG, task).await.expect("no deadlock").unwrap();
    }
    for name in ["a", "b", "c"] {
        idle(&one, name).await;
    }
}

/// One deadline holds for all, and when one member is not to be had none is held.
pub async fn one_deadline_and_all_or_nothing(harness: &dyn Harness) {
    let (one, two) = (harness.locks().await, harness.locks().await);
    let taken = two.mutex("b").lock().await.unwrap();
    let all = one.multi(["c", "b", "a"]);
    assert!(all.try_lock().await.unwrap().is_none());
    idle(&two, "a").await;
    let since = lockkeeper::clock::Instant::now();
    let error =
        soon("the deadline", all.lock_timeout(Duration::from_millis(200))).await.unwrap_err();
    match error {
        Error::Timeout { name, .. } => assert_eq!(name.as_str(), "b"),
        other => panic!("{other}"),
    }
    assert!(lockkeeper::clock::Instant::now().since(since) < LONG);
    idle(&two, "a").await;
    idle(&two, "c").await;
    queued(&two, "b", 0).await;
    let waiting = {
        let all = all.clone();
        tokio::spawn(async move { all.lock().await.unwrap() })
    };
    queued(&two, "b", 1).await;
    waiting.abort();
    idle(&two, "a").await;
    taken.release().await.unwrap();
    let guard = soon("all", all.lock_timeout(LONG)).await.unwrap();
    assert!(guard.token(&name("a")).is_some() && guard.token(&name("z")).is_none());
    guard.release().await.unwrap();
}

/// Every member is released even if one of them was lost before, and the loss is reported.
pub async fn every_member_is_released(harness: &dyn Harness) {
    let (one, two) = (harness.locks().await, harness.locks().await);
    let guard = one.multi(["a", "b", "c"]).lock().await.unwrap();
    two.admin().evict(&name("b"), "test").await.unwrap();
    let (lost, cause) = soon("the loss", guard.lost()).await;
    assert_eq!((lost.as_str(), cause), ("b", Cause::Evicted("test".into())));
    assert!(guard.is_lost());
    let work = soon("stopped", guard.protect(std::future::pending::<()>())).await;
    assert!(matches!(work, Err(Error::Lost { .. })), "{work:?}");
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, Error::Lost { ref name, .. } if name.as_str() == "b"), "{error}");
    for name in ["a", "b", "c"] {
        idle(&two, name).await;
    }
    let guard = one.multi(["a", "b", "c"]).lock().await.unwrap();
    for of in ["a", "b"] {
        two.admin().evict(&name(of), "test").await.unwrap();
    }
    soon("the loss of a", guard.guards()[0].lost()).await;
    soon("the loss of b", guard.guards()[1].lost()).await;
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, Error::Multi { ref rest, .. } if rest.len() == 1), "{error}");
    idle(&two, "c").await;
}

/// Members at two stores are taken in one order by everybody, all or none.
pub async fn members_may_be_at_two_stores(harness: &dyn Harness) {
    let (here, there) = (harness.locks().await, harness.elsewhere().await);
    let one = Multi::new([here.mutex("x"), there.mutex("x")]);
    let two = Multi::new([there.mutex("x"), here.mutex("x")]);
    let tasks: Vec<_> = [one.clone(), two]
        .into_iter()
        .map(|multi| {
            tokio::spawn(async move {
                for _ in 0..30 {
                    let guard = multi.lock().await.unwrap();
                    assert_eq!(guard.guards().len(), 2, "two locks of one name at two stores");
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(3 * LONG, task).await.expect("no deadlock").unwrap();
    }
    let taken = there.mutex("x").lock().await.unwrap();
    assert!(one.try_lock().await.unwrap().is_none());
    idle(&here, "x").await;
    taken.release().await.unwrap();
}

/// A member named twice counts once; no members at all is an error.
pub async fn odd_members(harness: &dyn Harness) {
    let locks = harness.locks().await;
    let guard = soon("no wait for itself", locks.multi(["a", "b", "a"]).lock()).await.unwrap();
    assert_eq!(guard.guards().len(), 2);
    guard.release().await.unwrap();
    let error = locks.multi(Vec::<&str>::new()).lock().await.unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
}
