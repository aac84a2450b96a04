//! Jobs for code without an async runtime.

use std::time::{Duration, SystemTime};

use super::{Blocking, Locks};
use crate::error::Result;
use crate::{Guard, LastRun, Overlap, Rerun, Schedule};

/// See [`crate::Job`].
pub type Job = Blocking<crate::Job>;

/// See [`crate::Run`]. Dropped without its end, the lock is free when its lease is over, at the latest.
pub type Run = Blocking<crate::Run>;

impl Locks {
    /// See [`crate::Locks::job`].
    pub fn job(&self, name: impl AsRef<str>, schedule: Schedule) -> Job {
        self.background.of(self.value.job(name, schedule))
    }
}

impl Job {
    /// See [`crate::Job::at_least`].
    #[must_use]
    pub fn at_least(self, time: Duration) -> Self {
        Self { value: self.value.at_least(time), background: self.background }
    }

    /// See [`crate::Job::overlap`].
    #[must_use]
    pub fn overlap(self, overlap: Overlap) -> Self {
        Self { value: self.value.overlap(overlap), background: self.background }
    }

    /// See [`crate::Job::rerun`].
    #[must_use]
    pub fn rerun(self, rerun: Rerun) -> Self {
        Self { value: self.value.rerun(rerun), background: self.background }
    }

    /// See [`crate::Job::next`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`](crate::Error::Config) inside an async runtime.
    pub fn next(&self) -> Result<Run> {
        self.background.run(self.value.next()).map(|run| self.background.of(run))
    }

    /// See [`crate::Job::due`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`](crate::Error::Config) inside an async runtime.
    pub fn due(&self) -> Result<Option<Run>> {
        let due = self.background.run(self.value.due())?;
        Ok(due.map(|run| self.background.of(run)))
    }

    /// See [`crate::Job::last`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`](crate::Error::Config) inside an async runtime.
    pub fn last(&self) -> Result<Option<LastRun>> {
        self.background.run(self.value.last())
    }
}

impl Run {
    /// See [`crate::Run::tick`].
    pub fn tick(&self) -> SystemTime {
        self.value.tick()
    }

    /// See [`crate::Run::attempt`].
    pub fn attempt(&self) -> u32 {
        self.value.attempt()
    }

    /// See [`crate::Run::guard`].
    pub fn guard(&self) -> &Guard {
        self.value.guard()
    }

    /// See [`crate::Run::finish`].
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`](crate::Error::Config) inside an async runtime.
    pub fn finish(self, code: i32) -> Result<()> {
        self.background.run(self.value.finish(code))
    }
}
