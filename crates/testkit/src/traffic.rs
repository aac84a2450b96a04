//! A stream of requests, to see whether anybody still gets through.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::Locks;

use crate::wait::within;

/// Requests that come one after the other and do not wait for each other; ended when dropped.
#[derive(Debug)]
pub struct Traffic {
    got: Arc<AtomicU32>,
    task: tokio::task::JoinHandle<()>,
}

impl Traffic {
    /// One at a time so often, each for a lock of its own.
    pub fn start(locks: &Locks, every: Duration) -> Self {
        let (got, locks) = (Arc::new(AtomicU32::new(0)), locks.clone());
        let counted = Arc::clone(&got);
        let task = tokio::spawn(async move {
            for number in 0.. {
                let mutex = locks.mutex(format!("t{number}").as_str());
                let got = Arc::clone(&counted);
                tokio::spawn(async move {
                    if let Ok(Some(guard)) = mutex.try_lock().await {
                        got.fetch_add(1, Ordering::Relaxed);
                        drop(guard.release().await);
                    }
                });
                tokio::time::sleep(every).await;
            }
        });
        Self { got, task }
    }

    /// Waits until ten more got what they wanted.
    ///
    /// # Panics
    ///
    /// When that takes longer.
    pub async fn flows(&self, limit: Duration) {
        let before = self.got.load(Ordering::Relaxed);
        let more = async || self.got.load(Ordering::Relaxed) > before + 10;
        within(limit, "requests get through", more).await;
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.task.abort();
    }
}
