//! Guards that outlive their runtime, move to another one, or have none.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::RefCell;
use std::process::Command;
use std::time::Duration;

use lockkeeper::{Error, Guard, Locks, blocking};
use testkit::wait::soon;
use tokio::runtime::{Builder, Runtime};

const LEASE: Duration = Duration::from_millis(300);

#[test]
fn loss_is_told_although_the_keeper_ended_with_its_runtime() {
    let (one, two) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let locks = one.block_on(async { Locks::memory() });
    let guard = two.block_on(locks.lease(LEASE).mutex("x").lock()).unwrap();
    drop(one);
    two.block_on(soon("the loss", guard.lost()));
}

#[test]
fn work_is_stopped_although_there_is_no_keeper() {
    let (one, two) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let locks = one.block_on(async { Locks::memory() });
    drop(one);
    let stopped = two.block_on(async {
        let guard = locks.lease(LEASE).mutex("x").lock().await.unwrap();
        soon("the loss", guard.protect(std::future::pending::<()>())).await
    });
    assert!(matches!(stopped, Err(Error::Lost { .. })), "{stopped:?}");
}

#[test]
fn loss_is_told_in_a_runtime_without_io() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let guard = Locks::memory().lease(LEASE).mutex("x").lock().await.unwrap();
        soon("the loss", guard.lost()).await;
    });
}

#[test]
fn a_request_survives_the_runtime_of_the_task_that_began_it() {
    let two = Runtime::new().unwrap();
    let locks = two.block_on(async { Locks::memory() });
    let holder = two.block_on(locks.mutex("x").fair().lock()).unwrap();
    let (mutex, gone) = (locks.mutex("x"), locks.mutex("x"));
    let one = Builder::new_current_thread().enable_all().build().unwrap();
    let task = one.spawn(async move { gone.lock().await.map(drop) });
    let queued = async |count: usize| {
        let shown = async || {
            locks.admin().show(&"x".parse().unwrap()).await.unwrap().waiters.len() == count
        };
        testkit::wait::eventually("in line", shown).await;
    };
    one.block_on(queued(1));
    let next = two.spawn(async move { mutex.lock().await.map(|guard| guard.token()) });
    drop((one, task));
    two.block_on(async {
        queued(1).await;
        holder.release().await.unwrap();
        soon("the next", next).await.unwrap().unwrap();
    });
}

/// Tokio's own thread-locals may be gone when such a guard is dropped. In a process of its own,
/// because what used to happen was an abort.
#[test]
fn a_guard_in_a_thread_local_is_released() {
    thread_local!(static KEPT: RefCell<Option<Guard>> = const { RefCell::new(None) });
    const CHILD: &str = "LOCKKEEPER_TEST_THREAD_LOCAL";
    if std::env::var_os(CHILD).is_none() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_guard_in_a_thread_local_is_released"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stderr).into_owned();
        assert!(child.status.success(), "{}: {said}", child.status);
        return;
    }
    let runtime = Runtime::new().unwrap();
    let locks = runtime.block_on(async { Locks::memory() });
    let mutex = locks.mutex("x").fair();
    std::thread::spawn(move || {
        KEPT.with_borrow(|kept| assert!(kept.is_none()));
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let guard = runtime.block_on(mutex.lock()).unwrap();
        KEPT.set(Some(guard));
    })
    .join()
    .unwrap();
    drop(runtime.block_on(soon("free", locks.mutex("x").lock())).unwrap());
}

#[test]
fn the_blocking_interface_locks_and_releases() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file:{}", dir.path().display());
    let (one, two) =
        (blocking::Locks::connect(&url).unwrap(), blocking::Locks::connect(&url).unwrap());
    let guard = one.mutex("x").lock().unwrap();
    assert!(two.mutex("x").try_lock().unwrap().is_none());
    let late = two.mutex("x").fair().lock_timeout(Duration::from_millis(10)).unwrap_err();
    assert!(matches!(late, Error::Timeout { .. }), "{late}");
    let token = guard.token();
    // Dropped, it is released when the drop returns, not a moment later.
    drop(guard);
    let guard = two.mutex("x").try_lock().unwrap().expect("released by the drop");
    assert!(guard.token() > token);
    guard.release().unwrap();
    let write = one.rw_lock("y").write().unwrap();
    let late = two.rw_lock("y").read_timeout(Duration::from_millis(10)).unwrap_err();
    assert!(matches!(late, Error::Timeout { .. }), "{late}");
    drop(write);
    let permit = one.semaphore("z", 1).acquire().unwrap();
    let late = two.semaphore("z", 1).acquire_timeout(Duration::from_millis(10)).unwrap_err();
    assert!(matches!(late, Error::Timeout { .. }), "{late}");
    permit.release().unwrap();
    assert!(one.latch("gate").close(1).unwrap());
    assert_eq!(two.latch("gate").count_down().unwrap(), 0);
    assert!(one.latch("gate").wait_timeout(Duration::from_secs(5)).unwrap());
    let fixed = one.lease(Duration::from_secs(5)).mutex("w").lock().unwrap();
    fixed.renew(Duration::from_secs(30)).unwrap();
    assert!(fixed.remaining().is_some_and(|left| left > Duration::from_secs(20)));
    assert_eq!(one.shutdown(Duration::ZERO).unwrap().released, 0, "a short fixed lease is left");
}

#[test]
fn blocking_inside_a_runtime_is_an_error_and_not_a_panic() {
    let locks = blocking::Locks::connect("memory:").unwrap();
    let guard = locks.mutex("x").lock().unwrap();
    let runtime = Runtime::new().unwrap();
    let error = runtime.block_on(async { locks.mutex("x").lock().unwrap_err() });
    assert!(error.to_string().contains("async runtime"), "{error}");
    let error = runtime.block_on(async { blocking::Locks::connect("memory:").unwrap_err() });
    assert!(error.to_string().contains("async runtime"), "{error}");
    runtime.block_on(async move { drop((guard, locks)) });
}
