//! What can go wrong with a statement, by what can be done about it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::name::Name;
use crate::tls;

/// How long one statement may take, and one attempt to connect.
pub(super) const STATEMENT_TIME: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// Somebody else was faster, or we were the victim of a deadlock. Nothing was changed.
    #[error("the server gave the step up in favour of another")]
    Conflict(#[source] sqlx::Error),
    /// The connection is gone, and with it the answer.
    #[error("the connection broke")]
    Broken(#[source] sqlx::Error),
    /// No answer.
    #[error("no answer within {STATEMENT_TIME:?}")]
    Silent,
    /// Not now. Nothing was changed.
    #[error("{0}")]
    Later(&'static str, #[source] sqlx::Error),
    /// Not like this. Nothing was changed.
    #[error("{0}")]
    Refused(&'static str, #[source] sqlx::Error),
    /// Others were faster too often, or somebody has the row locked.
    #[error("others changed the row or kept it locked all the time")]
    Contended,
    #[error("the row of this name cannot be read")]
    Row(#[from] serde_json::Error),
    /// No connection could be made: nothing was sent.
    #[error("no connection to the server")]
    Unreachable(#[source] sqlx::Error),
    /// All connections are in use: nothing was sent.
    #[error("no connection of the pool was free within {STATEMENT_TIME:?}")]
    Busy,
    /// A write was sent, and may have taken effect, or may yet.
    #[error("whether it took effect is not known")]
    InDoubt(#[source] Option<Box<Self>>),
    /// The task that worked on it is gone, most likely with its runtime.
    #[error("the request was lost: has the runtime ended in which this was opened?")]
    Dropped,
}

impl Fault {
    /// Whether it may pass by itself: then the same request is sent again.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::InDoubt(Some(fault)) => fault.may_pass(),
            _ => !matches!(self, Self::Refused(..) | Self::Row(_) | Self::Dropped),
        }
    }

    /// Whether a write that ended like this may have taken effect, or may yet.
    pub(super) fn leaves_doubt(&self) -> bool {
        matches!(self, Self::Broken(_) | Self::Silent)
    }

    /// Whether the connection can be used again. One to a server that has become read-only cannot:
    /// another may lead to the one that took its place.
    pub(super) fn spares_the_connection(&self) -> bool {
        match self {
            Self::Refused(why, _) => *why != READ_ONLY,
            _ => matches!(self, Self::Conflict(_)),
        }
    }

    /// The error for everybody whose request went down with the same fault.
    pub(super) fn error(self: Arc<Self>, backend: &'static str, doing: &str) -> Error {
        Error::unavailable(backend, format!("{doing} failed: {self}"), Failed(self))
    }
}

/// A fault that several requests share. What it says itself is said already: shown is its cause.
#[derive(Debug)]
struct Failed(Arc<Fault>);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.source() {
            Some(cause) => fmt::Display::fmt(cause, f),
            None => fmt::Display::fmt(&self.0, f),
        }
    }
}

impl StdError for Failed {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()?.source()
    }
}

/// The fault behind an error.
fn fault(error: &Error) -> Option<&Fault> {
    let Error::Unavailable { source: Some(source), .. } = error else { return None };
    Some(&source.downcast_ref::<Failed>()?.0)
}

/// Whether a request may succeed if it is sent again.
pub(super) fn may_pass(error: &Error) -> bool {
    fault(error).is_some_and(Fault::may_pass)
}

/// What to say of a request that is not sent again: where it may have taken effect, that this is not
/// known. Whatever it did or does yet is over `within` this time.
pub(super) fn unknown(
    name: &Name,
    operation: &'static str,
    within: Duration,
) -> impl FnOnce(Error) -> Error {
    move |error| match fault(&error) {
        Some(Fault::InDoubt(_)) => {
            Error::Unknown { name: name.clone(), operation, within, source: error.into() }
        }
        _ => error,
    }
}

pub(super) const NO_TABLES: &str =
    "the tables are missing: make them with `lockkeeper init --url URL`, as a user who may";
pub(super) const NO_RIGHTS: &str =
    "the user may not do that; see docs/OPERATIONS.md for the rights";
pub(super) const READ_ONLY: &str = "a server that is read-only: a replica? Connect to the primary";

impl Fault {
    /// An error that is not the server's.
    pub(super) fn of_driver(error: sqlx::Error) -> Self {
        if let Some(hint) = tls::hint(&error) {
            return Self::Refused(hint.trim_start_matches(": "), error);
        }
        match error {
            sqlx::Error::Configuration(_) => Self::Refused("the driver refused the options", error),
            sqlx::Error::Tls(_) => {
                Self::Refused("no TLS: does the server speak it? Without, leave out tls=on", error)
            }
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
                Self::Refused("an answer that makes no sense", error)
            }
            _ => Self::Broken(error),
        }
    }
}
