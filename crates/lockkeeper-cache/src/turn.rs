//! Who does what only one is to do at a time.
//!
//! It keeps processes from doing the same work; what must not be done twice has to be protected by the work itself, because one that
//! was paused does not know yet that it is another's turn.

use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::Mutex;
use lockkeeper::clock::Instant;
use tokio::time::sleep;

use crate::entry::Ticket;

/// So long a lock is waited for before others have a look at whether there is anything left to do.
const WAIT: Duration = Duration::from_secs(1);

/// A right that one has at a time, at a store.
#[async_trait]
pub(crate) trait Right: Send + Sync {
    /// Takes it for that time or keeps it: whether it is ours. Nothing when nobody knows.
    async fn take(&self, ticket: Ticket, time: Duration) -> Option<bool>;

    /// Gives it back.
    async fn give_back(&self, ticket: Ticket);
}

/// Does something when it is our turn, for as long as it is: by the lock, or if there is none by a right that lasts for that time. Returns
/// when that is over, or after a while in which it did not come to our turn.
pub(crate) async fn in_turn(
    lock: Option<&Mutex>,
    right: &dyn Right,
    time: Duration,
    doing: impl Future<Output = ()> + Send,
) {
    let Some(lock) = lock else { return by_right(right, time, doing).await };
    match lock.lock_timeout(WAIT).await {
        // Whose lock is lost stops where it stands.
        Ok(guard) => drop(guard.protect(doing).await),
        Err(lockkeeper::Error::Timeout { .. }) => {}
        Err(error) => tracing::warn!(%error, "the lock of those who write to the database"),
    }
}

async fn by_right(right: &dyn Right, time: Duration, doing: impl Future<Output = ()> + Send) {
    let (ticket, begun) = (Ticket::new(), Instant::now());
    if right.take(ticket, time).await != Some(true) {
        return;
    }
    let kept = async {
        let mut last = begun;
        while Instant::now().since(last) < time * 2 / 3 {
            sleep(time / 6).await;
            let begun = Instant::now();
            match right.take(ticket, time).await {
                Some(true) => last = begun,
                Some(false) => return,
                None => {}
            }
        }
    };
    tokio::select! {
        () = kept => tracing::warn!("the right to write to the database is lost"),
        () = doing => {}
    }
    // Else it ends by itself.
    right.give_back(ticket).await;
}
