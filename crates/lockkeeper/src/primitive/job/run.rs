//! A tick that is ours.

use std::time::{Duration, SystemTime};

use super::Job;
use crate::clock::Instant;
use crate::error::Result;
use crate::guard::Guard;
use crate::primitive::ledger::{Ended, LastRun};

/// A tick that is ours, and the lock to run it under.
///
/// Dropped without [`finish`](Self::finish) or [`end`](Self::end), as in a panic, it counts as a run that
/// died.
#[derive(Debug)]
#[must_use = "a run that is dropped counts as one that died"]
pub struct Run {
    pub(super) job: Job,
    pub(super) guard: Guard,
    pub(super) last: LastRun,
    pub(super) since: Instant,
}

impl Run {
    /// The scheduled time that it is for.
    pub fn tick(&self) -> SystemTime {
        self.last.tick.time()
    }

    /// 1, or 2 if the first try died.
    pub fn attempt(&self) -> u32 {
        self.last.attempt
    }

    /// The lock. Work under its [`protect`](Guard::protect), or check it before every step; its token
    /// fences what is written.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Writes down what it ended with, keeps the lock for as long as the job wants it
    /// ([`Job::at_least`]), and releases it.
    ///
    /// # Errors
    ///
    /// As [`end`](Self::end); and what [`Guard::release`] says.
    pub async fn finish(self, code: i32) -> Result<()> {
        let written = self.end(code).await;
        // When it is lost there is nothing left to keep.
        let _ = tokio::time::timeout(self.left(), self.guard.lost()).await;
        let released = self.guard.release().await;
        written.and(released)
    }

    /// Writes down what it ended with, and nothing else. The first word counts.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) when the lock was lost: then nothing is written down, and the run
    /// counts as one that died. So it does when the store cannot be used for ten seconds.
    pub async fn end(&self, code: i32) -> Result<()> {
        self.guard.check()?;
        let took = Instant::now().since(self.since);
        let how = Ended { code, took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX) };
        let version = self.job.id();
        let book = self.job.book()?;
        book.change(|known| known?.ended(self.last.claim, how, version)).await.map(drop)
    }

    /// For how long the job still wants the lock to be kept.
    pub fn left(&self) -> Duration {
        (self.since + self.job.at_least).since(Instant::now())
    }

    /// Gives the lock back now. A run that has not [ended](Self::end) counts as one that died.
    ///
    /// # Errors
    ///
    /// What [`Guard::release`] says.
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }
}
