//! What can go wrong, organised by what the caller can do about it.

use std::time::Duration;

use crate::deadlock::Wait;
use crate::loss::Cause;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// The result of anything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a store's driver, kept whole as a source.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name breaks the rules of [`Name`].
    #[error("the name {name} cannot be used: {reason}")]
    InvalidName {
        /// The name, escaped and cut for printing.
        name: String,
        /// Which rule it breaks.
        reason: String,
    },

    /// A URL, an option or a duration makes no sense. The text says which and what is known.
    #[error("{0}")]
    Config(String),

    /// The lock was not to be had in time. Nothing is held and no place in a queue is left.
    #[error("{name} was not free within {}{}", show(*waited), holder(held_by))]
    Timeout {
        /// The lock.
        name: Name,
        /// How long we waited.
        waited: Duration,
        /// Who held it then, as far as the store could tell in a moment.
        held_by: Vec<Owner>,
    },

    /// The lock is not ours any more. Stop the work; the token is stale or soon will be.
    #[error("the lock on {name} (token {token}) is lost: {cause}")]
    Lost {
        /// The lock.
        name: Name,
        /// The token that it was held under.
        token: Token,
        /// Why.
        cause: Cause,
    },

    /// Fewer replicas than wanted acknowledged the grant in time. Nothing is held: what was taken is
    /// given back, behind the caller where the server does not let us at once.
    #[error(
        "{reached} of the {wanted} replicas that must have it acknowledged the lock on {name}: not granted, and what was taken is given back"
    )]
    Replicas {
        /// The lock.
        name: Name,
        /// How many were to acknowledge it.
        wanted: u32,
        /// How many did.
        reached: u32,
    },

    /// The owner holds the lock for reading and asks for writing: it would wait for itself for ever.
    #[error(
        "{owner} holds {name} for reading and cannot take it for writing as well: release the read lock first"
    )]
    Upgrade {
        /// The lock.
        name: Name,
        /// The owner.
        owner: Owner,
    },

    /// Owners wait for each other in a circle, and this wait is the one that was ended for the others to
    /// go on: of all in it, this owner was made last. Release what it holds.
    #[error("a deadlock: {}; this wait was ended", circle(cycle))]
    Deadlock {
        /// Who waits for what. Each holds what the one before waits for, and the first what the last
        /// waits for.
        cycle: Vec<Wait>,
    },

    /// The name is in use as something else.
    #[error("{name} is in use as a {used_as} and cannot be a {asked} at the same time")]
    WrongKind {
        /// The lock.
        name: Name,
        /// What it is in use as.
        used_as: &'static str,
        /// What was asked for.
        asked: &'static str,
    },

    /// This backend cannot do that, and does not pretend to.
    #[error("{backend} does not support {what}")]
    Unsupported {
        /// The backend.
        backend: &'static str,
        /// What was asked for.
        what: String,
    },

    /// The store could not be reached or refused; nothing was changed there.
    #[error("{backend} is not available: {context}")]
    Unavailable {
        /// The backend.
        backend: &'static str,
        /// What we were doing, and what to do about it.
        context: String,
        /// The driver's own error.
        #[source]
        source: Option<BoxError>,
    },

    /// The request was sent and its outcome is not known: it may have taken effect.
    #[error("it is not known whether {operation} of {name} took effect; it is over by itself within {}", show(*within))]
    Unknown {
        /// The lock.
        name: Name,
        /// What was asked of the store.
        operation: &'static str,
        /// When the lease ends whatever happened.
        within: Duration,
        /// The driver's own error.
        #[source]
        source: BoxError,
    },

    /// Somebody else changed the watched keys during every attempt. Nothing was written.
    #[error("{keys:?} changed during each of {attempts} attempts: nothing was written")]
    Conflict {
        /// The keys.
        keys: Vec<String>,
        /// How often it was tried.
        attempts: u32,
    },

    /// The server refused a command of a transaction before it ran anything: nothing was written.
    #[error("{command} was refused, so nothing of the transaction was carried out")]
    Aborted {
        /// The first command that was refused, without its arguments; `EXEC` for all of them.
        command: String,
        /// Its place in the transaction, from zero. `None`: the transaction as a whole.
        at: Option<usize>,
        /// What the server said.
        #[source]
        source: BoxError,
    },

    /// Some members of a multi-lock could not be released; all the others were.
    #[error("{} of the locks could not be released; first: {first}", rest.len() + 1)]
    Multi {
        /// The first error.
        #[source]
        first: Box<Self>,
        /// The others.
        rest: Vec<Self>,
    },

    /// [`Locks::shutdown`](crate::Locks::shutdown) was called: no new locks.
    #[error("shut down: no lock is granted any more")]
    ShutDown,
}

impl Error {
    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Timeout { .. }
                | Self::Replicas { .. }
                | Self::Conflict { .. }
                | Self::Unavailable { .. }
                | Self::Unknown { .. }
        )
    }

    /// Whether the request may have taken effect although it failed.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }

    pub(crate) fn unavailable(
        backend: &'static str,
        context: impl Into<String>,
        source: impl Into<BoxError>,
    ) -> Self {
        Self::Unavailable { backend, context: context.into(), source: Some(source.into()) }
    }
}

fn show(duration: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_millis(
        u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
    ))
}

fn circle(cycle: &[Wait]) -> String {
    let waits: Vec<String> = cycle.iter().map(ToString::to_string).collect();
    waits.join(", ")
}

fn holder(held_by: &[Owner]) -> String {
    match held_by {
        [] => String::new(),
        [one] => format!(" (held by {one})"),
        [one, rest @ ..] => format!(" (held by {one} and {} more)", rest.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_can_cross_threads_and_stay_small() {
        fn crosses<T: Send + Sync + 'static>() {}
        crosses::<Error>();
        assert!(size_of::<Error>() <= 96, "{}", size_of::<Error>());
    }
}
