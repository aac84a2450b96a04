//! Many readers or one writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lockkeeper::{Error, Locks, RwLock};

use super::{Harness, can, idle, queued, rw_in_order, show};
use crate::wait::soon;

/// Readers share; a writer excludes readers, writers and mutexes of the same name.
pub async fn readers_share_and_a_writer_excludes(harness: &dyn Harness) {
    let (one, two) = (harness.locks().await, harness.locks().await);
    if !can(&one, "readers_share", |can| can.read_write) {
        return;
    }
    let fair = |locks: &Locks| rw_in_order(locks, locks.rw_lock("x"));
    for (mine, yours) in [
        (one.rw_lock("x"), two.rw_lock("x")),
        (fair(&one), fair(&two)),
        (one.rw_lock("x"), fair(&two)),
    ] {
        let readers = [mine.read().await.unwrap(), yours.read().await.unwrap()];
        assert_ne!(readers[0].token(), readers[1].token());
        assert!(mine.try_write().await.unwrap().is_none());
        assert!(one.mutex("x").try_lock().await.unwrap().is_none());
        for reader in readers {
            reader.release().await.unwrap();
        }
        let writer = yours.try_write().await.unwrap().expect("free");
        assert!(mine.try_read().await.unwrap().is_none());
        assert!(mine.try_write().await.unwrap().is_none());
        assert!(one.mutex("x").try_lock().await.unwrap().is_none());
        writer.release().await.unwrap();
    }
}

/// Never a writer together with anybody: a crowd of readers and writers, watched by a counter.
pub async fn never_a_writer_with_anybody(harness: &dyn Harness) {
    let clients = [harness.locks().await, harness.locks().await];
    if !can(&clients[0], "never_a_writer_with_anybody", |can| can.read_write) {
        return;
    }
    // Readers count one, a writer a thousand: anything above 1000 with a writer inside is wrong.
    let inside = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..30)
        .map(|who| {
            let locks = &clients[who % 2];
            let lock = locks.rw_lock("x");
            let lock = if who % 4 < 2 { rw_in_order(locks, lock) } else { lock };
            let inside = Arc::clone(&inside);
            tokio::spawn(async move {
                for _ in 0..5 {
                    if who % 3 == 0 {
                        let writer = lock.write().await.unwrap();
                        assert_eq!(inside.fetch_add(1000, Ordering::SeqCst), 0);
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1000, Ordering::SeqCst);
                        writer.release().await.unwrap();
                    } else {
                        let reader = lock.read().await.unwrap();
                        assert!(inside.fetch_add(1, Ordering::SeqCst) < 1000);
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        reader.release().await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    idle(&clients[0], "x").await;
}

/// An owner that writes may read as well, under the same token; others still wait.
pub async fn a_writer_may_read(harness: &dyn Harness) {
    let (locks, other) = (harness.locks().await, harness.locks().await);
    if !can(&locks, "a_writer_may_read", |can| can.read_write && can.fair_read_write) {
        return;
    }
    let mine = locks.owned_by(&locks.new_owner());
    for lock in [mine.rw_lock("x"), mine.rw_lock("x").fair()] {
        let writer = lock.write().await.unwrap();
        let reader = soon("its own", lock.read()).await.unwrap();
        assert_eq!(reader.token(), writer.token());
        assert!(other.rw_lock("x").try_read().await.unwrap().is_none());
        writer.release().await.unwrap();
        assert!(other.rw_lock("x").try_write().await.unwrap().is_none(), "still read");
        assert!(other.rw_lock("x").try_read().await.unwrap().is_some());
        reader.release().await.unwrap();
        idle(&locks, "x").await;
    }
}

/// A downgrade keeps the token, lets readers in, and no writer that waits gets in between.
pub async fn downgrade_lets_readers_in_and_no_writer(harness: &dyn Harness) {
    let (locks, other, third) =
        (harness.locks().await, harness.locks().await, harness.locks().await);
    if !can(&locks, "downgrade", |can| can.read_write) {
        return;
    }
    let writer = locks.rw_lock("x").write().await.unwrap();
    let token = writer.token();
    // The reader first: not every store lets one pass a writer that waits.
    let lock = other.rw_lock("x");
    let reading = tokio::spawn(async move { lock.read().await.unwrap() });
    queued(&locks, "x", 1).await;
    let lock = third.rw_lock("x");
    let waiting = tokio::spawn(async move { lock.write().await.unwrap() });
    queued(&locks, "x", 2).await;
    let reader = writer.downgrade().await.unwrap();
    assert_eq!(reader.token(), token);
    let second = soon("the reader that waits", reading).await.unwrap();
    assert!(!waiting.is_finished());
    second.release().await.unwrap();
    assert!(!waiting.is_finished());
    assert_eq!(show(&locks, "x").await.holders.len(), 1);
    reader.release().await.unwrap();
    soon("the writer", waiting).await.unwrap().release().await.unwrap();
}

/// A reader that asks to write would wait for itself: that is an error, at once.
pub async fn upgrade_is_an_error_at_once(harness: &dyn Harness) {
    let locks = harness.locks().await;
    if !can(&locks, "upgrade", |can| can.read_write) {
        return;
    }
    let mine = locks.owned_by(&locks.new_owner());
    for lock in [mine.rw_lock("x"), rw_in_order(&mine, mine.rw_lock("x"))] {
        let reader = lock.read().await.unwrap();
        let error = soon("the error", lock.write()).await.unwrap_err();
        assert!(matches!(error, Error::Upgrade { .. }), "{error}");
        let error = lock.try_write().await.unwrap_err();
        assert!(matches!(error, Error::Upgrade { .. }), "{error}");
        reader.release().await.unwrap();
        lock.write().await.unwrap().downgrade().await.unwrap().release().await.unwrap();
    }
    idle(&locks, "x").await;
}

async fn reads(lock: RwLock, stop: Arc<AtomicBool>) -> usize {
    let mut times = 0;
    while !stop.load(Ordering::SeqCst) {
        let reader = lock.read().await.unwrap();
        tokio::task::yield_now().await;
        drop(reader);
        times += 1;
    }
    times
}

/// A fair writer gets its turn: readers that come later wait behind it, however many they are.
pub async fn writers_are_not_starved(harness: &dyn Harness) {
    let (one, two) = (harness.locks().await, harness.locks().await);
    if !can(&one, "writers_are_not_starved", |can| can.fair_read_write) {
        return;
    }
    let fair = one.rw_lock("x").fair();
    let reader = fair.read().await.unwrap();
    let lock = two.rw_lock("x").fair();
    let writing = tokio::spawn(async move { lock.write().await.unwrap() });
    queued(&one, "x", 1).await;
    assert!(fair.try_read().await.unwrap().is_none(), "a new reader must not pass");
    let late: Vec<_> = (0..5)
        .map(|_| {
            let lock = one.rw_lock("x").fair();
            tokio::spawn(async move { lock.read().await.unwrap() })
        })
        .collect();
    queued(&one, "x", 6).await;
    reader.release().await.unwrap();
    let writer = soon("the writer", writing).await.unwrap();
    assert!(late.iter().all(|late| !late.is_finished()));
    writer.release().await.unwrap();
    for late in late {
        drop(soon("a late reader", late).await.unwrap());
    }
    let stop = Arc::new(AtomicBool::new(false));
    let stream: Vec<_> = (0..8)
        .map(|at| {
            let lock = if at % 2 == 0 { &one } else { &two }.rw_lock("y").fair();
            tokio::spawn(reads(lock, Arc::clone(&stop)))
        })
        .collect();
    for _ in 0..5 {
        let writer = soon("a writer among readers", one.rw_lock("y").fair().write()).await.unwrap();
        writer.release().await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    for reader in stream {
        soon("the end of the stream", reader).await.unwrap();
    }
}
