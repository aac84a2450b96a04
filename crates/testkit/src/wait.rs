//! Waiting, always with a bound, and never by sleeping for as long as it "should" take.

use std::future::Future;
use std::time::Duration;

use lockkeeper::clock::Instant;

/// What must happen at all must happen within this time, even on a loaded machine.
pub const LONG: Duration = Duration::from_secs(20);

/// The longest a whole case may take before it counts as hung.
pub const CASE: Duration = Duration::from_secs(150);

const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// Polls a condition that sends no event until it holds.
///
/// # Panics
///
/// When it does not hold within [`LONG`].
pub async fn eventually<F>(what: &str, condition: impl Fn() -> F + Send)
where
    F: Future<Output = bool> + Send,
{
    within(LONG, what, condition).await;
}

/// The same for what takes longer than that for a reason.
///
/// # Panics
///
/// When it does not hold within `limit`.
pub async fn within<F>(limit: Duration, what: &str, condition: impl Fn() -> F + Send)
where
    F: Future<Output = bool> + Send,
{
    let since = Instant::now();
    let mut pause = PAUSE.0;
    while !condition().await {
        assert!(Instant::now().since(since) < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Awaits something that must happen soon.
///
/// # Panics
///
/// When it does not happen within [`LONG`].
pub async fn soon<T>(what: &str, future: impl Future<Output = T> + Send) -> T {
    match tokio::time::timeout(LONG, future).await {
        Ok(done) => done,
        Err(_) => panic!("not within {LONG:?}: {what}"),
    }
}

/// Runs a whole case.
///
/// # Panics
///
/// When it hangs.
pub async fn bounded(case: &str, future: impl Future<Output = ()> + Send) {
    assert!(tokio::time::timeout(CASE, future).await.is_ok(), "{case} hangs: over {CASE:?}");
}
