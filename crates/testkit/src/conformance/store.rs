//! What the contract itself promises, asked of the backend without the layers above.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backend::{Backend, Hold, Kind, Patience, Release, Renewal, Request, Term};
use lockkeeper::{Cause, Error, Locks, RequestId};

use super::{Harness, can, idle, in_order, name, queued, show};
use crate::wait::{LONG, soon};

/// A request as the layers above would make it, with an id of our choice.
pub fn request(locks: &Locks, of: &str, kind: Kind, id: u8) -> Request {
    Request {
        name: name(of),
        kind,
        owner: locks.new_owner(),
        id: RequestId::from_bytes([id; 16]),
        term: Term::Fixed(LONG),
        tokens: 1,
        patience: Patience::TryOnce,
    }
}

async fn ask(backend: &Arc<dyn Backend>, request: &Request) -> Option<Arc<dyn Hold>> {
    Arc::clone(backend).acquire(request.clone()).await.unwrap()
}

/// A request that is sent twice finds its own grant: the same token, one hold.
pub async fn a_repeated_request_finds_its_grant(harness: &dyn Harness) {
    let locks = harness.locks().await;
    let backend = locks.backend();
    for (at, kind) in (1..).zip([Kind::Mutex, Kind::FairMutex, Kind::Permit { of: 2 }, Kind::Read])
    {
        if !backend.capabilities().allows(kind) {
            super::not_applicable("a repeated request", &kind.to_string());
            continue;
        }
        let of = format!("x{at}");
        let request = request(&locks, &of, kind, at);
        let one = ask(backend, &request).await.expect("free");
        let two = ask(backend, &request).await.expect("its own");
        assert_eq!(one.tokens(), two.tokens(), "{kind}");
        assert_eq!(show(&locks, &of).await.holders.len(), 1, "{kind}");
        assert_eq!(two.release().await.unwrap(), Release::Released);
        assert_eq!(one.release().await.unwrap(), Release::NotHeld);
        idle(&locks, &of).await;
    }
}

/// Releasing twice is harmless, to the store and to the next holder.
pub async fn double_release_is_harmless(harness: &dyn Harness) {
    let locks = harness.locks().await;
    let backend = locks.backend();
    let first = ask(backend, &request(&locks, "x", Kind::Mutex, 1)).await.expect("free");
    assert_eq!(Arc::clone(&first).release().await.unwrap(), Release::Released);
    assert_eq!(Arc::clone(&first).release().await.unwrap(), Release::NotHeld);
    let next = ask(backend, &request(&locks, "x", Kind::Mutex, 2)).await.expect("free again");
    assert_eq!(Arc::clone(&first).release().await.unwrap(), Release::NotHeld);
    let renewed = first.renew(LONG).await.unwrap();
    assert!(matches!(renewed, Renewal::Lost(_)), "{renewed:?}");
    assert_eq!(show(&locks, "x").await.holders.len(), 1);
    assert!(matches!(next.renew(LONG).await.unwrap(), Renewal::Held(Some(_))));
}

/// An evicted holder that releases late does not touch the one who came after it.
pub async fn release_after_eviction_leaves_the_next_holder_alone(harness: &dyn Harness) {
    let locks = harness.locks().await;
    let backend = locks.backend();
    let kind = if backend.capabilities().fair { Kind::FairMutex } else { Kind::Mutex };
    let first = ask(backend, &request(&locks, "x", kind, 1)).await.expect("free");
    let eviction = locks.admin().evict(&name("x"), "why not").await.unwrap();
    let next = ask(backend, &request(&locks, "x", kind, 2)).await.expect("evicted");
    assert!(eviction.token > first.tokens().first());
    assert!(next.tokens().first() > eviction.token);
    let renewed = Arc::clone(&first).renew(LONG).await.unwrap();
    assert_eq!(renewed, Renewal::Lost(Cause::Evicted("why not".into())));
    assert_eq!(first.release().await.unwrap(), Release::NotHeld);
    assert_eq!(show(&locks, "x").await.holders.len(), 1);
    assert_eq!(next.release().await.unwrap(), Release::Released);
}

/// A name in use as one thing cannot be another at the same time.
pub async fn wrong_kind_is_an_error(harness: &dyn Harness) {
    let locks = harness.locks().await;
    if !can(&locks, "wrong_kind", |can| can.permits) {
        return;
    }
    let wrong = |error: Error| assert!(matches!(error, Error::WrongKind { .. }), "{error}");
    let guard = locks.mutex("x").fair().lock().await.unwrap();
    wrong(locks.semaphore("x", 3).acquire().await.unwrap_err());
    guard.release().await.unwrap();
    let permit = locks.semaphore("x", 3).acquire().await.unwrap();
    wrong(locks.mutex("x").lock().await.unwrap_err());
    wrong(locks.rw_lock("x").try_read().await.unwrap_err());
    permit.release().await.unwrap();
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
}

/// Looking at the store shows who holds, under which token, who waits, and nothing that is free.
pub async fn list_and_show(harness: &dyn Harness) {
    let (locks, other) = (harness.locks().await, harness.locks().await);
    assert_eq!(locks.admin().list().await.unwrap(), vec![]);
    let free = show(&locks, "x").await;
    assert_eq!((free.kind, free.holders.len(), free.waiters.len()), (None, 0, 0));
    let leased = other.lease(LONG);
    let held = in_order(&leased, leased.mutex("b")).lock().await.unwrap();
    let waiting = {
        let mutex = in_order(&leased, leased.mutex("b"));
        tokio::spawn(async move { mutex.lock().await.unwrap() })
    };
    let capabilities = locks.backend().capabilities();
    let shared = match capabilities.read_write {
        true => other.rw_lock("a").read().await.unwrap(),
        false => other.mutex("a").lock().await.unwrap(),
    };
    queued(&locks, "b", 1).await;
    let seen = locks.admin().list().await.unwrap();
    let names: Vec<_> = seen.iter().map(|status| status.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let kind = if capabilities.read_write { "read-write lock" } else { "mutex" };
    assert_eq!(seen[0].kind.as_deref(), Some(kind));
    assert_eq!(seen[1].kind.as_deref(), Some("mutex"));
    let holding = &seen[1].holders[0];
    assert_eq!((&holding.owner, holding.token), (held.owner(), held.token()));
    // What lives with a connection has none that others know of; it ends with its process, and has no
    // order of arrival.
    let leased = |left: Option<Duration>| match capabilities.fair || !capabilities.frees_on_death {
        true => left.is_some_and(|left| left <= LONG),
        false => left.is_none(),
    };
    assert!(leased(holding.lease_left), "{holding:?}");
    held.release().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap();
    assert_eq!(show(&locks, "b").await.holders[0].owner, *next.owner());
    next.release().await.unwrap();
    shared.release().await.unwrap();
    assert_eq!(locks.admin().list().await.unwrap(), vec![]);
}

/// Eviction tells the holder at once and why, raises the token, and serves the next in line.
pub async fn eviction_tells_the_holder_and_serves_the_next(harness: &dyn Harness) {
    let (locks, admin) = (harness.locks().await, harness.locks().await);
    let fair = in_order(&locks, locks.mutex("x"));
    for mutex in [locks.mutex("x"), fair, locks.lease(LONG).mutex("x")] {
        let holder = mutex.lock().await.unwrap();
        let waiter = harness.locks().await;
        let waiter = in_order(&waiter, waiter.mutex("x"));
        let waiting = tokio::spawn(async move { waiter.lock().await.unwrap() });
        queued(&admin, "x", 1).await;
        let eviction = admin.admin().evict(&name("x"), "stuck").await.unwrap();
        assert_eq!(eviction.holders, vec![holder.owner().clone()]);
        let cause = soon("the holder learns of it", holder.lost()).await;
        assert_eq!(cause, Cause::Evicted("stuck".into()));
        assert!(holder.is_lost() && eviction.token > holder.token());
        let next = soon("the next in line", waiting).await.unwrap();
        assert!(next.token() > eviction.token);
        let error = holder.release().await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        assert_eq!(show(&admin, "x").await.holders.len(), 1);
        next.release().await.unwrap();
    }
    let nobody = admin.admin().evict(&name("free"), "why not").await.unwrap();
    assert!(nobody.holders.is_empty());
}
