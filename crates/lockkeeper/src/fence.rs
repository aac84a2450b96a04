//! The other half of a lock: resources that refuse a holder that comes too late.
//!
//! A lock cannot stop a process that was paused past its lease and then goes on with its next write. Only
//! the resource can, by remembering the largest [`Token`] that it has seen and refusing smaller ones. An
//! equal one is welcome: a holder may write as often as it likes.
//!
//! | resource | enforcer |
//! | --- | --- |
//! | rows in PostgreSQL, MySQL and MariaDB | `fence::sql` (cargo features `postgres` and `mysql`) |
//! | keys in Redis | `fence::redis` (cargo feature `redis`) |
//! | a service | `fence::http`, layers of tower (cargo feature `http`) |
//! | a file | [`fence::file`](mod@file) |
//! | keys in etcd | `Guard::txn` (cargo feature `etcd`), which needs no token |
//! | nodes in ZooKeeper | `Guard::zookeeper` (cargo feature `zookeeper`), the same |
//!
//! Resources of your own compare with [`Stale`] and `<`; those without a place for a token of their own leave it to a
//! [`TokenStore`]. Locks without tokens, of other libraries, have [`Mark`].
//!
//! Tokens of one name can be compared, tokens of two names cannot: what is fenced belongs to one lock.

pub mod file;
#[cfg(feature = "http")]
pub mod http;
mod mark;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod sql;
mod tokens;

use std::fmt;

pub use self::mark::Mark;
pub use self::tokens::{MemoryTokens, TokenStore};
use crate::error::BoxError;
use crate::token::Token;

/// The result of a fenced write.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A token that is older than one that the resource has seen: the lock was lost, and somebody else has it
/// or had it since. Stop the work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stale {
    /// What was to be written.
    pub resource: String,
    /// The token that the write came under.
    pub token: Token,
    /// The largest one that the resource has seen, as far as could be told afterwards.
    pub newest: Option<Token>,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, token, newest } = self;
        match newest {
            Some(newest) => write!(f, "token {token} is stale: {resource} has seen {newest}"),
            None => write!(f, "token {token} is stale: {resource} has seen a newer one"),
        }
    }
}

impl std::error::Error for Stale {}

/// Why a fenced write was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The token is older than one that the resource has seen. Nothing was written.
    #[error(transparent)]
    Stale(Stale),

    /// The [`Mark`] on the resource is not this one any more: somebody else is at it, or was. Nothing was
    /// written.
    #[error("{resource} bears another mark")]
    Overtaken {
        /// What was to be written.
        resource: String,
    },

    /// There is nothing to be written to, so nothing was refused and nothing written.
    #[error("{resource} does not exist")]
    Missing {
        /// What was to be written.
        resource: String,
    },

    /// The resource takes writes under a token only, and this one said none. Nothing was written.
    #[error("{resource} is fenced, and the write says no token: {hint}")]
    NoToken {
        /// What was to be written.
        resource: String,
        /// How to say it.
        hint: String,
    },

    /// More than one row matched, and those that were not stale are written: the key is none. Roll back.
    #[error("{rows} rows of {resource} were written: name one row, by its whole key")]
    Ambiguous {
        /// What was to be written.
        resource: String,
        /// How many rows were.
        rows: u64,
    },

    /// A name, a token or a table that cannot be used. The text says why.
    #[error("{0}")]
    Invalid(String),

    /// The write was sent, and it is not known whether it was done: the connection broke, or the time was over,
    /// before there was an answer, or the answer cannot be read. Under the same token it can be sent again: if somebody newer was there since, it is
    /// refused. But what counts (`balance - 5`) may count twice: look first.
    #[error("it is not known whether it was done: {context}")]
    Unknown {
        /// What we were doing.
        context: String,
        /// The driver's own error.
        #[source]
        source: Option<BoxError>,
    },

    /// The store failed, or refused: nothing was written, or by a script or a statement of your own only a part.
    #[error("{context}")]
    Store {
        /// What we were doing, and what to do about it.
        context: String,
        /// The driver's own error.
        #[source]
        source: Option<BoxError>,
    },
}

impl Error {
    /// The refusal, if it is one.
    pub fn stale(&self) -> Option<&Stale> {
        match self {
            Self::Stale(stale) => Some(stale),
            _ => None,
        }
    }

    /// The same refusal of something that is kept under another name than it has.
    #[cfg(feature = "redis")]
    fn of(self, resource: &str) -> Self {
        match self {
            Self::Stale(stale) => Self::Stale(Stale { resource: resource.to_owned(), ..stale }),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_and_by_whom() {
        let token = |number| Token::new(number).unwrap();
        let mut stale =
            Stale { resource: "orders[id=1]".into(), token: token(3), newest: Some(token(7)) };
        assert_eq!(stale.to_string(), "token 3 is stale: orders[id=1] has seen 7");
        stale.newest = None;
        assert_eq!(
            Error::Stale(stale.clone()).to_string(),
            "token 3 is stale: orders[id=1] has seen a newer one"
        );
        assert_eq!(Error::Stale(stale.clone()).stale(), Some(&stale));
    }
}
