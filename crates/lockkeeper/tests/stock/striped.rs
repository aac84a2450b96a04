//! Many locks for very many keys.

use std::time::Duration;

use lockkeeper::{Error, Locks};
use testkit::wait::soon;

#[tokio::test]
async fn one_key_one_holder_and_others_beside_it() {
    let striped = Locks::memory().striped("accounts", 64);
    let alice = striped.lock("alice").await.unwrap();
    assert!(striped.try_lock("alice").await.unwrap().is_none());
    let short = Duration::from_millis(5);
    assert!(matches!(striped.lock_timeout("alice", short).await, Err(Error::Timeout { .. })));
    let bob = striped.lock("bob").await.unwrap();
    assert_ne!(alice.name(), bob.name());
    let name = striped.stripe("alice").unwrap().name().unwrap().clone();
    assert_eq!(*alice.name(), name);
    assert!(name.as_str().starts_with("accounts/"));
}

#[tokio::test]
async fn all_of_them_exclude_everybody() {
    let striped = Locks::memory().striped("accounts", 8);
    let all = striped.all().unwrap().lock().await.unwrap();
    assert_eq!(all.guards().len(), 8);
    assert!(striped.try_lock("anybody").await.unwrap().is_none());
    all.release().await.unwrap();
    assert!(striped.try_lock("anybody").await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opposite_orders_do_not_deadlock() {
    let striped = Locks::memory().striped("accounts", 4);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8_u32 {
        let striped = striped.clone();
        tasks.spawn(async move {
            for round in 0..50_u32 {
                let (from, to) = (format!("{}", task + round), format!("{}", task * round));
                let taken = match task % 3 {
                    0 => striped.all().unwrap().lock().await,
                    1 => striped.keys([&from, &to, &from]).unwrap().lock().await,
                    _ => striped.keys([&to, &from]).unwrap().lock().await,
                };
                taken.unwrap().release().await.unwrap();
            }
        });
    }
    soon("nobody waits in a circle", tasks.join_all()).await;
}

#[tokio::test]
async fn impossible_numbers_are_errors() {
    for number in [0, 1025] {
        let striped = Locks::memory().striped("accounts", number);
        assert!(matches!(striped.lock("a").await, Err(Error::Config(_))));
        assert!(matches!(striped.all(), Err(Error::Config(_))));
    }
}
