//! What can go wrong, by what the caller can do about it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The result of anything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error, as loaders and codecs give it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The same, shared by all who waited for one load.
pub type SharedError = Arc<dyn std::error::Error + Send + Sync>;

/// What went wrong.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option makes no sense. The text says which.
    #[error("{0}")]
    Config(String),

    /// The key cannot be used. Nothing was asked.
    #[error("a key cannot be used: {0}")]
    InvalidKey(String),

    /// The value cannot be stored. Nothing was changed.
    #[error("a value cannot be stored: {0}")]
    InvalidValue(String),

    /// The loader failed. Others may load at once.
    #[error("the loader failed")]
    Load(#[source] SharedError),

    /// The loader panicked. Others may load at once.
    #[error("the loader panicked: {0}")]
    Panicked(String),

    /// The database is to be spared: too many loads are under way or began of late, many have failed, or the store is
    /// down and [`Down`](crate::Down) says so; or too many changes wait for it, or one that this program cannot read.
    #[error("refused, to spare the database: try again in {retry_after:?}")]
    Busy {
        /// When to try again.
        retry_after: Duration,
    },

    /// Nobody had the value in time. A load may go on, for those who come later.
    #[error("no value within {waited:?}")]
    Timeout {
        /// How long we waited.
        waited: Duration,
    },

    /// The database itself has no version as new as [`Freshness::AtLeast`](crate::Freshness::AtLeast) wants: a replica
    /// that lags, or a version that never was.
    #[error("version {wanted} is wanted, and the loader has {found}")]
    TooOld {
        /// What was asked for.
        wanted: u64,
        /// What was loaded.
        found: u64,
    },

    /// A write failed at the database, or nobody knows how it ended.
    #[error("the write failed, or its outcome is not known")]
    Commit(#[source] SharedError),

    /// A write is committed, and what was to follow failed: see the source. What the strategy promises of the cache may not
    /// hold for this key until its value ends.
    #[error("the write is committed as version {version}, and then: {source}")]
    Committed {
        /// The version that the key has now; 0 where none is known.
        version: u64,
        /// What went wrong.
        source: Box<Self>,
    },

    /// The lock of the key was not to be had, or was lost.
    #[error("the lock of the key failed")]
    Lock(#[source] SharedError),

    /// The store could not be reached or refused. For an invalidation: it is not known whether it was done; it is tried
    /// again in the background, and until then other processes may serve what it is about.
    #[error("{what}: the store is not available")]
    Store {
        /// What was to be done.
        what: &'static str,
        /// Why.
        #[source]
        source: StoreError,
    },
}

impl Error {
    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::Config(_) | Self::InvalidKey(_) | Self::InvalidValue(_))
    }
}

/// A store failed: it is not known whether it did what was asked.
#[derive(Clone, Debug)]
pub struct StoreError {
    store: &'static str,
    source: SharedError,
}

impl StoreError {
    /// This store failed, because of that.
    pub fn new(store: &'static str, source: impl Into<BoxError>) -> Self {
        Self { store, source: source.into().into() }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed", self.store)
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_cross_threads_and_name_their_cause() {
        fn crosses<T: Clone + Send + Sync + 'static>() {}
        crosses::<Error>();
        let source = StoreError::new("redis", "gone");
        let error = Error::Store { what: "an invalidation", source };
        let cause = std::error::Error::source(&error).and_then(|cause| cause.source());
        assert_eq!(cause.map(ToString::to_string).as_deref(), Some("gone"));
    }
}
