//! What can go wrong with a statement, by what can be done about it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
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
    /// Others were faster too often.
    #[error("others changed the row all the time")]
    Contended,
    #[error("the row of this name cannot be read")]
    Row(#[from] serde_json::Error),
    #[error("whether the first request took effect is not known")]
    InDoubt,
    #[error("the request was lost")]
    Dropped,
}

impl Fault {
    /// Whether it may pass by itself: then the same request is sent again.
    pub(super) fn may_pass(&self) -> bool {
        !matches!(self, Self::Refused(..) | Self::Row(_))
    }

    /// Whether a write may have taken effect, or may yet.
    pub(super) fn leaves_doubt(&self) -> bool {
        matches!(self, Self::Broken(_) | Self::Silent)
    }

    /// Whether the connection can be used again.
    pub(super) fn spares_the_connection(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::Refused(..))
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

/// Whether a request may succeed if it is sent again.
pub(super) fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Unavailable { source: Some(source), .. }
        if source.downcast_ref::<Failed>().is_some_and(|failed| failed.0.may_pass()))
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
