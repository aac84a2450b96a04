//! Filters that know which keys may exist, so that made-up ones do not reach the database.
//!
//! # How it works
//!
//! A Bloom filter: every key that exists sets a few bits, by a hash. A key with one of its bits unset
//! does not exist, for sure; a key with all of them set exists, or looks so by chance, with the error
//! rate that the filter was [sized](Shape) for.
//!
//! - [`LocalFilter`] lives in this process.
//! - [`RedisFilter`](redis::RedisFilter) is a bitmap that all processes share, beside the entries of
//!   [`Redis`](crate::Redis).
//!
//! Both set the same bits for the same key. A filter is filled by [`rebuild`], the first time as well
//! as later; meanwhile the old one answers, and what is [inserted](Filter::insert) goes to both. Bits
//! cannot be unset: what was deleted is forgotten by the next rebuild.
//!
//! # What it promises
//!
//! [`Verdict::Absent`] is never said of a key that was inserted or loaded. A filter that is missing,
//! half loaded, evicted, unreachable, of another size or taken in by another server, as after a fail-over, says
//! [`Verdict::Unknown`] of everything, until it is rebuilt: do so now and then, and when `unfiltered` grows.
//! Requests for keys that do not exist reach the database at most at the error rate, for as long as
//! there are not more keys than the filter was sized for; and besides those of which it could not say
//! anything. These are counted as `unfiltered`, and held back by the [limit](crate::limit) alone.
//!
//! # When it breaks
//!
//! Each of these makes it say [`Verdict::Absent`] of a key that exists:
//!
//! - A row is written and nobody inserts its key. Insert **before the write is acknowledged**: before
//!   the commit, so that a crash between the two leaves a bit too many and not one too few. If the
//!   insert fails, fail the write, or rebuild.
//! - A write inserts its key, a rebuild begins and reads the table, and only then the write commits.
//!   A rebuild waits for [`Plan::settle`] before it reads; a write that takes longer than that inserts
//!   again after its commit.
//! - Other processes write, and the filter is a [`LocalFilter`]: it does not hear of them. Use it where
//!   this process writes alone, or where all writes come to it as events.
//! - Redis forgets what it acknowledged, and was connected to by [`connect_warm`](crate::Redis::connect_warm), which says that this does not
//!   matter; or it is written to by a process that has not heard for long that it was replaced: see [`redis`].
//! - The source of a rebuild lags behind the database.
//!
//! The hash has a fixed seed, which is public: who wants to can find keys that look as if they exist.
//! Have a [limit](crate::limit) on loads as well.
//!
//! # Cost
//!
//! 9.6 bits a key for an error rate of 1 %, 14.4 for 0.1 %. In process: some 50 ns for a look. In Redis:
//! one round trip for a look or an insert of many keys, and besides three times the memory while it is
//! rebuilt.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

mod load;
mod local;
#[cfg(feature = "redis")]
pub mod redis;
mod shape;

pub use load::{Loaded, Plan, Progress, rebuild};
pub use local::LocalFilter;
pub use shape::Shape;

/// An error of a store or a source.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a filter says of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It does not exist.
    Absent,
    /// It may exist: ask the cache, and the database.
    Maybe,
    /// It knows nothing now, because it is not loaded or does not answer. To be treated as [`Maybe`](Self::Maybe); it is
    /// none of those that the error rate lets through.
    Unknown,
}

/// What went wrong with a filter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// There is no such filter.
    #[error("no filter can have that size: {0}")]
    Size(&'static str),
    /// Not a name for a filter.
    #[error("not a name for a filter: {0}")]
    Name(&'static str),
    /// Another rebuilds it.
    #[error("somebody else rebuilds the filter; he has {left:?} to go on")]
    Busy {
        /// If he does not go on until then, he is taken for dead.
        left: Duration,
    },
    /// What was loaded so far is gone: evicted, wiped, or somebody else rebuilds it by now.
    #[error("the filter that was being built is gone")]
    Gone,
    /// The source of the keys failed.
    #[error("the source of the keys failed")]
    Source(#[source] BoxError),
    /// The store failed. What was asked for may have been done or not; it does no harm to ask again.
    #[error("the store of the filter failed")]
    Store(#[source] BoxError),
}

/// A filter of either kind.
#[async_trait]
pub trait Filter: Debug + Send + Sync {
    /// What it says of these keys, in their order. Never fails and never waits for long: whatever goes
    /// wrong is a [`Verdict::Unknown`].
    async fn look(&self, keys: &[&[u8]]) -> Vec<Verdict>;

    /// Sets the bits of these keys, in the filter that is used and in the one that is being built.
    /// Where neither is there, nothing is to be done.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached. Some keys may be in, then; ask again, with all.
    async fn insert(&self, keys: &[&[u8]]) -> Result<(), FilterError>;

    /// Begins a new filter besides the one that is used. Once this has returned, every insert anywhere
    /// goes to both. For [`rebuild`].
    ///
    /// # Errors
    ///
    /// When somebody else does that already, or the store fails.
    async fn begin(&self, shape: Shape) -> Result<Box<dyn Build>, FilterError>;
}

/// A filter that is being built. Dropped, it is given up.
#[async_trait]
pub trait Build: Debug + Send {
    /// Sets the bits of a key.
    fn add(&mut self, key: &[u8]);

    /// Says that it is still being built. To be called every few seconds.
    ///
    /// # Errors
    ///
    /// [`FilterError::Gone`] when it is of no use to go on.
    async fn keep(&mut self) -> Result<(), FilterError>;

    /// Puts it in the place of the one that is used, in one moment.
    ///
    /// # Errors
    ///
    /// When it is gone, or the store fails. After [`FilterError::Store`] it may be in its place or not.
    async fn finish(self: Box<Self>) -> Result<(), FilterError>;
}
