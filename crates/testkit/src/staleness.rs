//! How stale the answers of a cache were: what is written down of a run, and what is wrong with it.
//!
//! # How it works
//!
//! 1. Every process takes down its operations with a [`Log`] of its own, one JSON line each; [`read`]
//!    merges the files.
//! 2. The database gives every write of a key its version (`UPDATE … SET ver = ver + 1 RETURNING
//!    ver`), so the order of the writes is known and need not be searched for: [`check`] takes
//!    O(n log n).
//! 3. At the end the writers stop, things settle, and every key is read once through the cache
//!    ([`Kind::Final`]) and once from the database ([`Kind::Truth`]).
//!
//! # Definitions
//!
//! For a read of version `n`; absent is the version of the deleting write, or 0 if there never was
//! one. "Before" is strict: two equal times prove no order.
//!
//! | word | meaning |
//! | --- | --- |
//! | acknowledged | a write that ended `Ok`, from its end on |
//! | stale | a version newer than `n` was acknowledged before the read began |
//! | missed | how many versions newer than `n` were acknowledged before the read began |
//! | age | the time from the first acknowledgement of a version newer than `n` to the begin of the read |
//! | own write | `n` is older than what the session itself had written (read your writes) |
//! | back | `n` is older than what the session itself had read (monotonic reads) |
//! | inverted | `n` is older than what any read returned that ended before this one began |
//! | dirty | nobody wrote `n`, except perhaps a write that failed |
//! | future | the write of `n` began after the read had ended |
//! | stuck | a final read returned less than the database holds: stale until the TTL, if not for ever |
//! | lost | the database holds less than what was acknowledged |
//!
//! No stale, inverted, dirty and future read means that every key is linearizable.
//!
//! A write with an unknown outcome acknowledges nothing; but once a read returned its version, it
//! happened, and counts as acknowledged from the end of that read (or its own end, if that came
//! later). Where such a write does not know its version, any version that nobody else wrote may be
//! its own; each write explains one version only.
//!
//! # When it breaks
//!
//! - All times are of one clock, so all processes are of one machine.
//! - A version must not be given twice. `ver + 1` gives the version of a rolled-back write again:
//!   take it from a sequence where rollbacks are part of the test.
//! - What contradicts itself (an `Ok` write without a version, versions against the order of time) is
//!   no verdict on the cache but [`Broken`].

use serde::{Deserialize, Serialize};

use lockkeeper::clock::Instant;

mod judge;
pub mod lab;
mod log;
mod report;
#[cfg(test)]
mod slow;
#[cfg(test)]
mod tests;
mod versions;

pub use judge::{Finding, judge};
pub use log::{Log, Ticket, read};
pub use report::{AGES, Report, Row, splice, table};

/// What is done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A new value.
    Write,
    /// No value any more. Has a version like any other write.
    Delete,
    /// A read through the cache. An `Ok` one without a version found the key absent.
    Read,
    /// A read through the cache after the writers stopped and things settled.
    Final,
    /// A read of the database itself, then too.
    Truth,
    /// A call of the loader: only counted.
    Load,
}

impl Kind {
    /// Whether it changes the key.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Delete)
    }

    /// Whether it is an answer of the cache.
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Final)
    }
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Done.
    Ok,
    /// Certainly not done.
    Fail,
    /// Nobody knows: a timeout, a cut connection, a dead process.
    Unknown,
}

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The cache in the process.
    L1,
    /// The shared cache.
    L2,
    /// Loaded, and put into the cache.
    Fill,
    /// The database, past the cache.
    Db,
    /// The cache, which said that it is stale.
    Stale,
}

/// One operation, from begin to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The process. One that is started again is another process.
    pub process: u32,
    /// Which of its operations.
    pub number: u64,
    /// The session, unique over all processes: it may move from one to another. It does one thing
    /// after the other; of one that does several at once, as a whole process does, what has ended
    /// counts.
    pub session: u64,
    /// The key.
    pub key: String,
    /// What.
    pub kind: Kind,
    /// Taken before it began.
    pub inv: Instant,
    /// Taken after it ended; [`Instant::NEVER`] if nobody saw it end.
    pub res: Instant,
    /// How.
    pub outcome: Outcome,
    /// The version written or read, if known.
    pub version: Option<u64>,
    /// Where a read found it.
    pub source: Option<Source>,
}

/// The history contradicts itself: the fault is with the test, or with the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The key.
    pub key: String,
    /// What.
    pub what: String,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no history of {:?}: {}", self.key, self.what)
    }
}

impl std::error::Error for Broken {}

/// Counts what is wrong with a history. The order of the operations does not matter.
///
/// # Errors
///
/// When the history contradicts itself.
pub fn check(history: &[Operation]) -> Result<Report, Broken> {
    Ok(Report::of(history, &judge(history)?))
}
