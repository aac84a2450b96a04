//! What only a directory can do: be rebooted under, replaced, shared, spoilt, and refused.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::{Error, Locks, Name};
use rusqlite::Connection;
use tempfile::TempDir;
use testkit::taker::Taker;
use testkit::wait::{eventually, soon};

/// Not a test: what this binary does when it is started as another process.
#[test]
fn taker_main() {
    testkit::taker::main();
}

/// A user that nobody is.
const STRANGER: u32 = 54_321;

fn url(dir: &Path) -> String {
    format!("file:{}", dir.display())
}

async fn open(dir: &Path) -> Locks {
    Locks::connect(&url(dir)).await.unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn database(dir: &Path) -> Connection {
    Connection::open(dir.join("locks.db")).unwrap()
}

/// The whole error, with its sources.
fn text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

async fn refused(dir: &Path) -> String {
    let error = Locks::connect(&url(dir)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    text(&error)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reboot_forgets_holders_keeps_latches_and_raises_tokens() {
    let dir = TempDir::new().unwrap();
    let mut other = Taker::spawn(&url(dir.path())).await;
    let before = other.token("lock x lease=600000").await;
    other.send("fair x");
    let locks = open(dir.path()).await;
    locks.latch("gate").close(2).await.unwrap();
    let shown = async || locks.admin().show(&name("x")).await.unwrap().waiters.len() == 1;
    eventually("in line", shown).await;
    let another_boot = "UPDATE meta SET boot = 'before the reboot'";
    assert_eq!(database(dir.path()).execute(another_boot, []).unwrap(), 1);
    // A boot id alone proves nothing while somebody lives: containers have boot ids of their own.
    let second = open(dir.path()).await;
    assert!(second.mutex("x").try_lock().await.unwrap().is_none(), "its holder lives");
    drop((locks, second));
    other.kill();
    let processes = dir.path().join("processes");
    let left = async || fs::read_dir(&processes).unwrap().count() == 1;
    eventually("only the killed one left something behind", left).await;
    let rows = "SELECT count(*) FROM names WHERE name = 'x'";
    let rows: i64 = database(dir.path()).query_row(rows, [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 1, "what it held is still written down");
    let locks = open(dir.path()).await;
    let guard = locks.mutex("x").try_lock().await.unwrap().expect("nobody of before lives");
    assert!(guard.token().get() >= before + (1 << 20), "{} after {before}", guard.token());
    assert_eq!(locks.latch("gate").count().await.unwrap(), 2);
    guard.release().await.unwrap();
    assert_eq!(locks.admin().list().await.unwrap().len(), 1, "only the latch");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_directory_is_an_error_and_a_loss() {
    let outer = TempDir::new().unwrap();
    let dir = outer.path().join("locks");
    let locks = open(&dir).await;
    let held = locks.ttl(Duration::from_secs(1)).mutex("x").fair().lock().await.unwrap();
    let waiting = {
        let mutex = locks.mutex("x").fair();
        tokio::spawn(async move { mutex.lock().await })
    };
    let shown = async || locks.admin().show(&name("x")).await.unwrap().waiters.len() == 1;
    eventually("in line", shown).await;
    fs::rename(&dir, outer.path().join("old")).unwrap();
    let error = locks.mutex("y").try_lock().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let error = soon("the waiter learns of it", waiting).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    soon("the holder learns of it", held.lost()).await;
    let new = open(&dir).await;
    assert!(new.mutex("x").try_lock().await.unwrap().is_some());
    let error = locks.mutex("y").try_lock().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "not ours any more: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_over_the_deletion_of_the_directory() {
    let outer = TempDir::new().unwrap();
    let dir = outer.path().join("locks");
    let before = open(&dir).await.mutex("x").lock().await.unwrap().token();
    fs::remove_dir_all(&dir).unwrap();
    // An epoch is a second: made again within the same one it would start with the same tokens.
    let made = lockkeeper::clock::Instant::now();
    let later = async || lockkeeper::clock::Instant::now() > made + Duration::from_millis(1100);
    eventually("a second later", later).await;
    assert!(open(&dir).await.mutex("x").lock().await.unwrap().token() > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_layout_is_refused() {
    let dir = TempDir::new().unwrap();
    drop(open(dir.path()).await);
    database(dir.path()).pragma_update(None, "user_version", 2).unwrap();
    let error = refused(dir.path()).await;
    assert!(error.contains("newer version") && error.contains("upgrade"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_row_spoils_its_own_name_only() {
    let dir = TempDir::new().unwrap();
    let locks = open(dir.path()).await;
    let spoil = "INSERT INTO names VALUES ('bad', x'7b6e6f7421')";
    assert_eq!(database(dir.path()).execute(spoil, []).unwrap(), 1);
    let good = locks.mutex("good").lock().await.unwrap();
    let asking: Vec<_> = (0..20)
        .map(|at| {
            let mutex = locks.mutex(if at % 2 == 0 { "bad" } else { "good" }).fair();
            tokio::spawn(async move { mutex.lock().await?.release().await })
        })
        .collect();
    let shown = async || locks.admin().show(&name("good")).await.unwrap().waiters.len() == 10;
    eventually("all in line", shown).await;
    good.release().await.unwrap();
    for (at, asking) in asking.into_iter().enumerate() {
        match soon("an answer", asking).await.unwrap() {
            Ok(()) => assert_eq!(at % 2, 1),
            Err(error) => assert!(at % 2 == 0 && text(&error).contains("row"), "{}", text(&error)),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_directory_is_refused() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = refused(&file).await;
    assert!(error.contains("not a directory"), "{error}");
    let error = refused(&file.join("below")).await;
    assert!(error.contains("ot a directory"), "{error}");
    let garbage = dir.path().join("garbage");
    fs::create_dir(&garbage).unwrap();
    fs::write(garbage.join("locks.db"), "no database at all".repeat(100)).unwrap();
    let error = refused(&garbage).await;
    assert!(error.contains("not a database"), "{error}");
}

/// A directory that other users can reach, which one of `tempfile` is not.
fn public(outer: &TempDir, mode: u32) -> PathBuf {
    fs::set_permissions(outer.path(), Permissions::from_mode(0o755)).unwrap();
    let dir = outer.path().join("locks");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
    dir
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        testkit::conformance::not_applicable("two users", "only root can become another user");
    }
    root
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_another_user_is_refused_with_a_hint() {
    if !is_root() {
        return;
    }
    let outer = TempDir::new().unwrap();
    let dir = public(&outer, 0o755);
    let (_other, answer) = Taker::spawn_as(&url(&dir), STRANGER).await;
    assert!(
        answer.starts_with("err") && answer.contains("cannot be written by user 54321"),
        "{answer}"
    );
    let (_other, answer) = Taker::spawn_as(&url(&outer.path().join("new")), STRANGER).await;
    assert!(answer.starts_with("err") && answer.contains("cannot be created"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_users_of_one_directory_exclude_each_other() {
    if !is_root() {
        return;
    }
    for (mode, stranger_first) in [(0o777, false), (0o777, true), (0o1777, false)] {
        let outer = TempDir::new().unwrap();
        let dir = public(&outer, mode);
        let first = if stranger_first { STRANGER } else { 0 };
        let (mut one, answer) = Taker::spawn_as(&url(&dir), first).await;
        assert_eq!(answer, "ok ready", "{mode:o}");
        let (mut two, answer) = Taker::spawn_as(&url(&dir), STRANGER - first).await;
        assert_eq!(answer, "ok ready", "{mode:o}, stranger first: {stranger_first}");
        for _ in 0..3 {
            let token = one.token("lock x").await;
            assert_eq!(two.ask("try x").await, "none");
            two.send("lock x");
            one.ask("release").await;
            assert!(two.granted().await > token, "woken across users");
            std::mem::swap(&mut one, &mut two);
            one.ask("release").await;
        }
        one.token("lock y").await;
        two.send("lock y");
        one.kill();
        two.granted().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_directory_can_be_opened_by_many_at_once() {
    let outer = TempDir::new().unwrap();
    for round in 0..5 {
        let dir = outer.path().join(format!("tasks-{round}/a/b"));
        let opening: Vec<_> = (0..8)
            .map(|_| {
                let dir = dir.clone();
                tokio::spawn(async move {
                    let guard = open(&dir).await.mutex("x").lock().await.unwrap();
                    let token = guard.token();
                    guard.release().await.unwrap();
                    token
                })
            })
            .collect();
        let mut tokens = Vec::new();
        for task in opening {
            tokens.push(soon("a lock in a new directory", task).await.unwrap());
        }
        tokens.sort();
        tokens.dedup();
        assert_eq!(tokens.len(), 8);
    }
    let dir = outer.path().join("processes");
    let mut others: Vec<_> = (0..8).map(|_| Taker::start(&url(&dir), None)).collect();
    let mut tokens = Vec::new();
    for other in &mut others {
        assert_eq!(other.answer().await, "ok ready");
        tokens.push(other.token("lock x").await);
        other.ask("release").await;
    }
    assert!(tokens.is_sorted());
}
