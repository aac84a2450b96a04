//! How a cache and its database are kept together: one module for each way, with what it promises and where it fails.
//!
//! | name | after a write that was acknowledged | stays stale | a hit costs | a write costs besides the commit |
//! | --- | --- | --- | --- | --- |
//! | [`strong`] | never stale, from the commit on | no | 1 | 2 |
//! | [`fill-lease`](fill_lease) | never stale | only if the writer dies | 1 | 1 |
//! | [`bounded-stale`](bounded_stale) | stale for a bounded time | no | 1 | 1 |
//! | [`update-then-delete`](update_then_delete) | may be stale | until the value ends | 1 | 1 |
//! | [`delete-then-update`](delete_then_update) | may be stale | until the value ends | 1 | 1 |
//! | [`double-delete`](double_delete) | stale until the second delete | until the value ends, after slow readers | 1 | 2, and 2 behind it |
//! | [`write-through`](write_through) | never stale, if no lock is lost | no, if no lock is lost | 1 | 1, and a lock |
//! | [`read-write-lock`](read_write_lock) | never stale, if no lock is lost | no, if no lock is lost | 1, and a lock | 1, and a lock |
//! | [`write-behind`](write_behind) | never stale; the database is behind | no, if Redis loses nothing | 1 | 1, instead of the commit |
//! | [`ttl-only`](ttl_only) | stale | until the value ends | 1 | 0 |
//! | [`bypass`] | never stale | no | a load | 0 |
//!
//! Costs are round trips to the store. What is there only for fill leases ([`lease`](crate::Builder::lease),
//! [`floor`](crate::Builder::floor), [`keep_last`](crate::Builder::keep_last), [`refresh_after`](crate::Builder::refresh_after),
//! [`early`](crate::Builder::early), the [first level](crate::FirstLevel)) changes nothing for `update-then-delete`,
//! `delete-then-update`, `double-delete`, `write-through` and `read-write-lock`: these read with a plain `GET`, and set.
//!
//! `strong` is the default: fill leases, with every write announced. It has none of the
//! anomalies of the others, and needs the store in order to write. Where it must be possible to write without the store, or a
//! round trip less counts for more than the moment between commit and invalidation, take `fill-lease`.

mod base;
pub mod bounded_stale;
pub mod bypass;
pub mod delete_then_update;
pub mod double_delete;
pub mod fill_lease;
mod locked;
mod naive;
pub mod read_write_lock;
pub mod strong;
mod table;
pub mod ttl_only;
pub mod update_then_delete;
pub mod write_behind;
pub mod write_through;

use std::fmt;
use std::str::FromStr;

pub(crate) use self::table::Options;
pub use self::table::{Table, Written};
use crate::error::Error;

/// How a [`Table`] keeps cache and database together. Chosen by name:
///
/// ```
/// use lockkeeper_cache::Strategy;
/// let strategy: Strategy = "update-then-delete".parse()?;
/// assert_eq!(strategy, Strategy::UpdateThenDelete);
/// assert_eq!(strategy.to_string(), "update-then-delete");
/// # Ok::<(), lockkeeper_cache::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// A miss takes a lease, a write takes it away and is announced before its commit: [`strong`].
    #[default]
    Strong,
    /// The same, and not announced: [`fill_lease`].
    FillLease,
    /// The same, and the last value is served while another is loaded: [`bounded_stale`].
    BoundedStale,
    /// Commit, then delete: [`update_then_delete`].
    UpdateThenDelete,
    /// Delete, then commit: [`delete_then_update`].
    DeleteThenUpdate,
    /// Delete, commit, and delete once more after a while: [`double_delete`].
    DoubleDelete,
    /// Commit and set, under a lock: [`write_through`].
    WriteThrough,
    /// Reads under the shared lock, writes under the exclusive one: [`read_write_lock`].
    ReadWriteLock,
    /// The cache first, the database later: [`write_behind`].
    WriteBehind,
    /// Values end, and nothing else: [`ttl_only`].
    TtlOnly,
    /// No cache: [`bypass`].
    Bypass,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Strong,
        Self::FillLease,
        Self::BoundedStale,
        Self::UpdateThenDelete,
        Self::DeleteThenUpdate,
        Self::DoubleDelete,
        Self::WriteThrough,
        Self::ReadWriteLock,
        Self::WriteBehind,
        Self::TtlOnly,
        Self::Bypass,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FillLease => "fill-lease",
            Self::Strong => "strong",
            Self::BoundedStale => "bounded-stale",
            Self::UpdateThenDelete => "update-then-delete",
            Self::DeleteThenUpdate => "delete-then-update",
            Self::DoubleDelete => "double-delete",
            Self::WriteThrough => "write-through",
            Self::ReadWriteLock => "read-write-lock",
            Self::WriteBehind => "write-behind",
            Self::TtlOnly => "ttl-only",
            Self::Bypass => "bypass",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Strategy {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|strategy| strategy.name() == name);
        found.ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::Config(format!("{name:?} is no strategy; there are {known}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_by_its_name() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.to_string().parse::<Strategy>().unwrap(), strategy);
        }
        let error = "write-around".parse::<Strategy>().unwrap_err().to_string();
        assert!(error.contains("write-around") && error.contains("write-behind"), "{error}");
    }
}
