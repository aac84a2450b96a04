//! Waiting for news, never past the end of patience.

use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt;

use crate::backend::Patience;
use crate::clock::Instant;

/// Pauses between bounded attempts grow from the first to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

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

/// Pauses between attempts that failed because of others.
pub(crate) struct Pauses {
    next: Duration,
}

impl Pauses {
    pub(crate) const fn new() -> Self {
        Self { next: PAUSE.0 }
    }

    /// Somewhere between half a pause and a whole one, so that two do not keep step; the next is
    /// twice as long.
    pub(crate) async fn pause(&mut self) {
        let half = self.next / 2;
        tokio::time::sleep(half + part_of(half)).await;
        self.next = (self.next * 2).min(PAUSE.1);
    }
}

/// Somewhere between nothing and this.
pub(crate) fn part_of(duration: Duration) -> Duration {
    let part = u32::try_from(crate::owner::random() % 1024).unwrap_or(0);
    duration * part / 1024
}
