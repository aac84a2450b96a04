//! Keys that are read again after they were invalidated.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinHandle;

use crate::cdc::status::Board;
use crate::cdc::target::Load;

/// So many wait at most. What is more is not read: whoever needs it does.
const MOST: usize = 10_000;

/// So many are read at a time; the limits of the caches hold besides.
const AT_ONCE: usize = 16;

/// Reads keys, in a task of its own, so that the log does not wait for the database.
#[derive(Debug)]
pub(super) struct Refresher {
    queue: Sender<(Load, String)>,
    task: JoinHandle<()>,
    board: Arc<Board>,
}

impl Refresher {
    pub(super) fn start(board: &Arc<Board>) -> Self {
        let (queue, waiting) = mpsc::channel(MOST);
        let task = tokio::spawn(run(waiting, Arc::clone(board)));
        Self { queue, task, board: Arc::clone(board) }
    }

    /// Have this key read soon. Its invalidation is acknowledged.
    pub(super) fn refresh(&self, load: &Load, key: String) {
        if self.queue.try_send((Arc::clone(load), key)).is_err() {
            self.board.note(|status| status.not_refreshed += 1);
        }
    }
}

async fn run(waiting: Receiver<(Load, String)>, board: Arc<Board>) {
    let waiting = stream::unfold(waiting, async |mut waiting| {
        waiting.recv().await.map(|next| (next, waiting))
    });
    let loading = waiting.for_each_concurrent(AT_ONCE, async |(load, key)| {
        // A cache lets nobody wait for ever, and says itself what failed.
        let read = match load(&key) {
            Some(loading) => loading.await.unwrap_or(false),
            None => false,
        };
        board.note(|status| match read {
            true => status.refreshed += 1,
            false => status.not_refreshed += 1,
        });
    });
    loading.await;
}

impl Drop for Refresher {
    fn drop(&mut self) {
        self.task.abort();
    }
}
