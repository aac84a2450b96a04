//! What two clients do first, and what they are told when they cannot.

use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Error, Locks};

use crate::wait::{eventually, soon};

/// In every URL, and never to be seen.
pub const PASSWORD: &str = "s3cret";

/// Each client has the mutex in turn, and is told when it is its turn: had it to find out by itself,
/// ten rounds would take more than 15 seconds.
///
/// # Panics
///
/// When they do not.
pub async fn hand_over(one: &Locks, two: &Locks) {
    let since = Instant::now();
    for round in 0..10 {
        let (holder, waiter) = if round % 2 == 0 { (one, two) } else { (two, one) };
        let held = soon("a lock", holder.mutex("x").lock()).await.unwrap();
        assert!(waiter.mutex("x").try_lock().await.unwrap().is_none());
        let mutex = waiter.mutex("x");
        let waiting = tokio::spawn(async move { mutex.lock().await });
        let queued =
            async || one.admin().show(&"x".parse().unwrap()).await.unwrap().waiters.len() == 1;
        eventually("in line", queued).await;
        held.release().await.unwrap();
        soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
    }
    let took = Instant::now().since(since);
    assert!(took < Duration::from_secs(10), "not woken up: {took:?}");
}

/// The error of a connection that cannot be had: soon, and without the password.
///
/// # Panics
///
/// When it takes too long or shows the password.
pub async fn refused(url: &str) -> Error {
    let since = Instant::now();
    let error = soon("an answer", Locks::connect(url)).await.unwrap_err();
    let took = Instant::now().since(since);
    assert!(took < Duration::from_secs(8), "{took:?}: {error:?}");
    assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error:?}");
    error
}

/// Nobody can be reached with this URL, and the error says so.
///
/// # Panics
///
/// When it does not.
pub async fn unavailable(url: &str, hint: &str) {
    let said = async || {
        let error = refused(url).await;
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        let text = error.to_string();
        // It may have been too busy to tell us in time.
        assert!(text.contains(hint) || text.contains("no answer"), "{error:?}");
        text.contains(hint)
    };
    eventually(hint, said).await;
}

/// The URL cannot be meant, and the error says why.
///
/// # Panics
///
/// When it does not.
pub async fn misconfigured(url: &str, hint: &str) {
    let error = refused(url).await;
    assert!(matches!(error, Error::Config(_)), "{error:?}");
    assert!(error.to_string().contains(hint), "{error}");
}
