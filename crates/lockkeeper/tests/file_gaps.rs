//! What can happen between two requests to a directory.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::future::{Future, poll_fn};
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Locks, Name};
use rusqlite::Connection;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use testkit::wait::{LONG, eventually, soon};

fn url(dir: &TempDir) -> String {
    format!("file:{}", dir.path().display())
}

async fn open(dir: &TempDir) -> Locks {
    Locks::connect(&url(dir)).await.unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

/// Sends the request and lets the store grant it, but does not look at the answer yet.
async fn granted_unseen<F: Future>(dir: &TempDir, other: &Locks, mut asking: Pin<&mut F>) {
    let database = Connection::open(dir.path().join("locks.db")).unwrap();
    // So that the first poll cannot be enough.
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(!poll_once(asking.as_mut()).await);
    database.execute_batch("ROLLBACK").unwrap();
    let held = async || !other.admin().show(&name("x")).await.unwrap().holders.is_empty();
    eventually("granted", held).await;
}

#[tokio::test]
async fn an_eviction_between_grant_and_guard_is_told() {
    let dir = TempDir::new().unwrap();
    let (locks, other) = (open(&dir).await, open(&dir).await);
    let mutex = locks.lease(LONG).mutex("x");
    let mut asking = pin!(mutex.lock());
    granted_unseen(&dir, &other, asking.as_mut()).await;
    other.admin().evict(&name("x"), "stuck").await.unwrap();
    let guard = asking.await.unwrap();
    soon("told", guard.lost()).await;
}

#[tokio::test]
async fn what_was_given_up_while_the_store_was_busy_is_undone() {
    let dir = TempDir::new().unwrap();
    let (locks, other) = (open(&dir).await, open(&dir).await);
    let mutex = locks.lease(Duration::from_secs(600)).mutex("x");
    let database = Connection::open(dir.path().join("locks.db")).unwrap();
    {
        let mut asking = pin!(mutex.lock());
        granted_unseen(&dir, &other, asking.as_mut()).await;
        database.busy_timeout(LONG).unwrap();
        database.execute_batch("BEGIN IMMEDIATE").unwrap();
    }
    // For longer than the store tries: the first attempt to undo it fails.
    let fails = locks.admin().show(&name("y")).await.unwrap_err();
    assert!(fails.to_string().contains("is it stopped?"), "{fails}");
    database.execute_batch("ROLLBACK").unwrap();
    let free = async || other.admin().show(&name("x")).await.unwrap().holders.is_empty();
    eventually("undone", free).await;
}

#[tokio::test]
async fn another_boot_id_does_not_free_the_locks_of_the_living() {
    let dir = TempDir::new().unwrap();
    let locks = open(&dir).await;
    let guard = locks.mutex("x").lock().await.unwrap();
    let database = Connection::open(dir.path().join("locks.db")).unwrap();
    database.execute("UPDATE meta SET boot = 'that of a container'", []).unwrap();
    assert!(open(&dir).await.mutex("x").try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_deleted_directory_is_noticed_at_the_next_renewal() {
    let dir = TempDir::new().unwrap();
    let ttl = Duration::from_secs(12);
    let guard = open(&dir).await.ttl(ttl).mutex("x").lock().await.unwrap();
    let since = Instant::now();
    std::fs::remove_dir_all(dir.path()).unwrap();
    soon("the loss", guard.lost()).await;
    let took = Instant::now().since(since);
    assert!(took < ttl / 4 * 3, "a renewal is due after a third of {ttl:?}, not after {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_turns_are_not_passed_on_for_ever() {
    let dir = TempDir::new().unwrap();
    let (crowd, single) = (open(&dir).await, open(&dir).await);
    let mutex = crowd.mutex("x");
    let first = mutex.lock().await.unwrap();
    let turns = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let slow: Vec<_> = (0..8)
        .map(|_| {
            let (mutex, turns) = (mutex.clone(), std::sync::Arc::clone(&turns));
            tokio::spawn(async move {
                let guard = mutex.lock().await.unwrap();
                turns.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                // Longer than a process may pass a lock on.
                tokio::time::sleep(Duration::from_millis(100)).await;
                guard.release().await.unwrap();
            })
        })
        .collect();
    let other = single.mutex("x");
    let other = tokio::spawn(async move { other.lock().await.unwrap() });
    let queued = async || crowd.admin().show(&name("x")).await.unwrap().waiters.len() == 1;
    eventually("in line at the store", queued).await;
    first.release().await.unwrap();
    let guard = soon("its turn", other).await.unwrap();
    let before = turns.load(std::sync::atomic::Ordering::SeqCst);
    assert!(before <= 2, "{before} slow turns went before");
    guard.release().await.unwrap();
    for task in slow {
        soon("the rest", task).await.unwrap();
    }
}

/// The limit is the process's own, so this test has a process of its own.
#[test]
fn a_lack_of_descriptors_does_not_bury_the_living() {
    const CHILD: &str = "LOCKKEEPER_TEST_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_lack_of_descriptors_does_not_bury_the_living", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stderr).into_owned();
        assert!(child.status.success(), "{}: {said}", child.status);
        return;
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let dir = TempDir::new().unwrap();
        let guard = open(&dir).await.mutex("x").lock().await.unwrap();
        let limit = getrlimit(Resource::Nofile);
        // With any number of free descriptors from none up, opening fails at another place.
        for free in 0..12 {
            let top = u64::try_from(File::open("/dev/null").unwrap().as_raw_fd()).unwrap();
            let few = Rlimit { current: Some(top + free), maximum: limit.maximum };
            setrlimit(Resource::Nofile, few).unwrap();
            let opened = Locks::connect(&url(&dir)).await;
            setrlimit(Resource::Nofile, limit).unwrap();
            drop(opened);
            let second = open(&dir).await.mutex("x").try_lock().await.unwrap();
            assert!(second.is_none(), "granted twice with {free} descriptors: {guard:?}");
        }
    });
}
