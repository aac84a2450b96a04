//! Who waits for its turn, and takes it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use lockkeeper::{Guard, Mutex};
use tokio::sync::oneshot::Receiver;
use tokio::time::{sleep, timeout};

use super::refresh::Refresher;
use super::rules::Rules;
use super::tenure::{End, Tenure};
use crate::cdc::status::{Board, State, told};
use crate::cdc::{Lag, Source, Wanted};

/// So long one asks for its turn, before it asks again.
const STANDBY: Duration = Duration::from_secs(5);

/// After a turn that ended too early: at first, and at most. Twice as long each time that nothing came of it.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// After a turn in which the cache could not be told, at least: so that another one takes it, who can.
const ASIDE: Duration = Duration::from_secs(1);

/// After a turn that somebody must do something about.
const REFUSED: Duration = Duration::from_secs(5);

/// For so long an end waits for the locks.
const RELEASE: Duration = Duration::from_secs(5);

/// A follower in its task.
pub(super) struct Worker {
    pub(super) name: String,
    pub(super) source: Box<dyn Source>,
    pub(super) rules: Rules,
    pub(super) wanted: Wanted,
    pub(super) fingerprint: u64,
    pub(super) lock: Mutex,
    pub(super) board: Arc<Board>,
    pub(super) refresher: Refresher,
}

impl Worker {
    /// Until it is told to stop, or nobody is left who could tell.
    pub(super) async fn run(self, mut stop: Receiver<()>) {
        let mut pause = PAUSES.0;
        loop {
            let locking = self.lock.lock_timeout(STANDBY);
            let locked = tokio::select! {
                biased;
                _ = &mut stop => break,
                locked = locking => locked,
            };
            let saves = self.board.saves();
            let end = match locked {
                Ok(guard) => {
                    let end = tokio::select! {
                        biased;
                        _ = &mut stop => None,
                        end = self.turn(&guard) => Some(end),
                    };
                    release(guard).await;
                    let Some(end) = end else { break };
                    end
                }
                Err(lockkeeper::Error::Timeout { .. }) => {
                    self.board.state(State::Standby);
                    continue;
                }
                Err(error) => End::Failed(format!("the lock of followers: {}", told(&error))),
            };
            if self.board.saves() > saves {
                pause = PAUSES.0;
            }
            let waits = self.over(&end, pause);
            pause = (pause * 2).min(PAUSES.1);
            tokio::select! {
                _ = &mut stop => break,
                () = sleep(waits) => {}
            }
        }
        self.board.state(State::Stopped);
    }

    /// As long as the lock is held: what is under way then stops where it stands.
    async fn turn(&self, guard: &Guard) -> End {
        let token = guard.token().get();
        self.board.note(|status| status.tenures += 1);
        tracing::info!(follower = self.name, token, "it is the turn of this follower");
        let tenure = AssertUnwindSafe(Tenure::run(self, token)).catch_unwind();
        match guard.protect(tenure).await {
            Ok(Ok(end)) => end,
            Ok(Err(_)) => End::Failed("it panicked".into()),
            Err(lost) => End::Failed(told(&lost)),
        }
    }

    /// Says how a turn ended. How long to wait now.
    fn over(&self, end: &End, pause: Duration) -> Duration {
        let (board, follower) = (&self.board, &self.name);
        board.note(|status| status.lag = Lag::default());
        let (why, wait) = match end {
            End::Refused(why) => (why.clone(), REFUSED),
            End::Failed(why) => (why.clone(), pause),
            End::Unreachable(why) => (why.clone(), pause.max(ASIDE)),
            End::Superseded => {
                tracing::warn!(follower, "another one, or another server, has the position now");
                board.state(State::Standby);
                return pause;
            }
        };
        let refused = matches!(end, End::Refused(_));
        if !refused || board.is_news(&why) {
            tracing::warn!(follower, "{why}");
        }
        board.failed(&why);
        board.state(State::Waiting { why });
        wait
    }
}

async fn release(guard: Guard) {
    // Else it goes on in the background, or ends by itself.
    if let Ok(Err(error)) = timeout(RELEASE, guard.release()).await {
        tracing::debug!(%error, "the lock of a follower");
    }
}
