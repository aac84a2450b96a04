//! What looking costs the stores, and that one that does not answer holds up nobody.

use std::process::Command;
use std::sync::Arc;

use lockkeeper::Locks;
use lockkeeper::backend::memory::Memory;
use lockkeeper::clock::Instant;
use testkit::faulty::{Faults, Faulty, Mode};
use testkit::wait::{eventually, soon};

use super::{Pair, REPORTED, a_circle};

/// Locks in this process, and who counts what is asked of them.
fn counted() -> (Locks, Arc<Faults>) {
    let (store, faults) = Faulty::new(Memory::private());
    (Locks::new(store), faults)
}

/// Runs a test in a process of its own, where nobody else looks. Whether this is that process.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "LOCKKEEPER_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    let ended = again.args(["--exact", test]).env(ALONE, "").output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    false
}

/// How many lists may have begun since then: two a second, and one at each end.
fn lists_since(since: Instant) -> usize {
    usize::try_from(Instant::now().since(since).as_millis() / 500).unwrap() + 2
}

/// A thousand owners that hold something which somebody waits for, and all want the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_asks_no_more_than_a_few() {
    if !is_alone("cost::a_crowd_asks_no_more_than_a_few") {
        return;
    }
    const CROWD: usize = 1000;
    let (locks, faults) = counted();
    let since = Instant::now();
    let wanted = locks.mutex("wanted").lock().await.unwrap();
    let mut crowd = Vec::new();
    for at in 0..CROWD {
        let (locks, one) = (locks.clone(), locks.owned_by(&locks.new_owner()));
        let own = one.mutex(format!("own/{at}")).lock().await.unwrap();
        let behind = locks.mutex(format!("own/{at}"));
        crowd.push(tokio::spawn(async move { behind.lock().await.map(drop) }));
        crowd.push(tokio::spawn(async move {
            let granted = one.mutex("wanted").lock().await;
            drop(own);
            granted.map(drop)
        }));
    }
    let begun = faults.list.begun();
    eventually("several looks", async || faults.list.begun() >= begun + 5).await;
    let (shown, listed) = (faults.show.begun(), faults.list.begun());
    eprintln!("{shown} questions and {listed} lists in {:?}", Instant::now().since(since));
    assert!(shown <= 64, "{shown} questions");
    assert!(listed <= lists_since(since), "{listed} lists");
    wanted.release().await.unwrap();
    for one in crowd {
        soon("goes on", one).await.unwrap().unwrap();
    }
}

/// Owners that wait and hold nothing, or nothing that anybody wants, ask for no list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_in_nobodys_way_asks_for_no_list() {
    if !is_alone("cost::who_is_in_nobodys_way_asks_for_no_list") {
        return;
    }
    let (locks, faults) = counted();
    let [one, two] = [locks.new_owner(), locks.new_owner()].map(|owner| locks.owned_by(&owner));
    let wanted = locks.mutex("wanted").lock().await.unwrap();
    let own = two.mutex("own").lock().await.unwrap();
    // Each gives it back at once, because either may be the first in the queue.
    let [ones, twos] = [one, two]
        .map(|one| tokio::spawn(async move { one.mutex("wanted").lock().await?.release().await }));
    eventually("several looks", async || faults.show.begun() >= 3).await;
    assert!(!ones.is_finished() && !twos.is_finished());
    assert_eq!(faults.list.begun(), 0);
    wanted.release().await.unwrap();
    for wait in [ones, twos] {
        soon("granted", wait).await.unwrap().unwrap();
    }
    own.release().await.unwrap();
}

/// No circle is looked for that leads through a permit, also by who is in somebody's way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_permit_asks_nothing() {
    if !is_alone("cost::who_waits_for_a_permit_asks_nothing") {
        return;
    }
    let (locks, faults) = counted();
    let one = locks.owned_by(&locks.new_owner());
    let taken = locks.semaphore("seats", 1).acquire().await.unwrap();
    let own = one.mutex("own").lock().await.unwrap();
    let behind = locks.mutex("own");
    let behind = tokio::spawn(async move { behind.lock().await.map(drop) });
    let seats = one.semaphore("seats", 1);
    let waiting = tokio::spawn(async move { seats.acquire().await });
    tokio::time::sleep(REPORTED).await;
    assert!(!waiting.is_finished());
    assert_eq!((faults.show.begun(), faults.list.begun()), (0, 0));
    taken.release().await.unwrap();
    soon("granted", waiting).await.unwrap().unwrap().release().await.unwrap();
    own.release().await.unwrap();
    soon("goes on", behind).await.unwrap().unwrap();
}

/// A store that hangs is asked by one for all, and not at once again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_does_not_answer_holds_up_nobody_and_is_spared() {
    if !is_alone("cost::a_store_that_does_not_answer_holds_up_nobody_and_is_spared") {
        return;
    }
    let (sick, faults) = counted();
    faults.list.set(Mode::Hang);
    let stores = [Locks::memory(), Locks::memory()];
    let since = Instant::now();
    for size in [2, 3] {
        let pairs: Vec<Pair> = (0..size).map(|_| stores.clone()).collect();
        a_circle(pairs, "beside").await;
    }
    let took = Instant::now().since(since);
    // Each takes two seconds, and then there is a rest of eight.
    let begun = faults.list.begun();
    assert!(begun <= 1 + usize::try_from(took.as_secs() / 10).unwrap(), "{begun} in {took:?}");
    faults.list.set(Mode::Pass);
    drop(sick);
}
