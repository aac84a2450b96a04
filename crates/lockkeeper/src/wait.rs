//! Waiting for news, never past the end of patience.

use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt;

use crate::backend::Patience;
use crate::clock::Instant;

/// No pause is longer than this: it bounds what a missed message or a suspended machine can cost.
const LONGEST: Duration = Duration::from_secs(60);

/// Waits for `event`, but not past `look_again` and not past the end of `patience`. `false`:
/// patience is over.
pub(crate) async fn pause(
    patience: Patience,
    look_again: Option<Instant>,
    event: impl Future<Output = ()> + Send,
) -> bool {
    let now = Instant::now();
    let deadline = patience.deadline();
    if deadline <= now {
        return false;
    }
    let until = look_again.map_or(deadline, |next| next.min(deadline));
    // A timer may ring a moment early; asking again then would be in vain.
    let time = until.since(now).min(LONGEST) + Duration::from_millis(1);
    tokio::select! {
        biased;
        () = event => true,
        () = tokio::time::sleep(time) => Instant::now() < deadline,
    }
}

/// Waits for `future` for as long as patience lasts; with none at all, only if it is ready.
pub(crate) async fn until<T>(
    patience: Patience,
    future: impl Future<Output = T> + Send,
) -> Option<T> {
    match patience {
        Patience::Forever => Some(future.await),
        Patience::TryOnce => future.now_or_never(),
        Patience::Until(at) => tokio::time::timeout(at.since(Instant::now()), future).await.ok(),
    }
}
