//! What keeps an experiment from having an outcome. A violation is an outcome, and no error.

/// Why an experiment came to no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program is not installed.
    #[error("{program} is not installed: apt-get install {packages}")]
    Missing {
        /// What is missing.
        program: &'static str,
        /// What brings it.
        packages: &'static str,
    },
    /// A server did not start.
    #[error("{program} did not start: {why}")]
    Server {
        /// Which.
        program: &'static str,
        /// What it said.
        why: String,
    },
    /// Something that had to happen did not, within its bound.
    #[error("{0} did not happen in time")]
    Late(String),
    /// A lock failed in a way that is not what the experiment is about.
    #[error(transparent)]
    Lock(#[from] lockkeeper::Error),
    /// So did a cache.
    #[error("the cache failed: {0}")]
    Cache(String),
    /// So did a Redis server.
    #[error(transparent)]
    Redis(#[from] redis::RedisError),
    /// So did the machine.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// So did another store, or the program itself.
    #[error("{0}")]
    Other(String),
}

/// What most things here return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
