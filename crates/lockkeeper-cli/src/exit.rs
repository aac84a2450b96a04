//! Exit codes, and errors on their way to one.

use std::error::Error as StdError;
use std::process::ExitCode;

use lockkeeper::Error;

/// What the process exits with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u8);

impl Code {
    pub(crate) const SUCCESS: Self = Self(0);
    /// `unlock` found nobody to evict.
    pub(crate) const NOTHING: Self = Self(1);
    /// An experiment of `lab` did not come out as it must.
    pub(crate) const FAILED: Self = Self(1);
    pub(crate) const USAGE: Self = Self(64);
    pub(crate) const UNAVAILABLE: Self = Self(69);
    pub(crate) const BUSY: Self = Self(75);
    pub(crate) const LOST: Self = Self(76);
    /// `cdc check` found something that must be changed.
    #[cfg(feature = "cdc")]
    pub(crate) const MISCONFIGURED: Self = Self(78);
    pub(crate) const CANNOT_EXECUTE: Self = Self(126);
    pub(crate) const NOT_FOUND: Self = Self(127);

    /// What a shell reports for a process that a signal ended.
    pub(crate) fn of_signal(signal: i32) -> Self {
        Self(u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128)))
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code.0)
    }
}

/// Why the command ends without having done its work.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: Code::USAGE, message: message.into() }
    }

    /// The operating system refused something that we need in order to run anything.
    pub(crate) fn system(what: &str, error: &dyn StdError) -> Self {
        Self { code: Code::CANNOT_EXECUTE, message: format!("{what}: {error}") }
    }
}

impl Code {
    /// What an error is reported with.
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Timeout { .. } => Self::BUSY,
            Error::Lost { .. } => Self::LOST,
            Error::InvalidName { .. }
            | Error::Config(_)
            | Error::Upgrade { .. }
            | Error::WrongKind { .. }
            | Error::Unsupported { .. } => Self::USAGE,
            _ => Self::UNAVAILABLE,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { code: Code::of(&error), message: chain(&error) }
    }
}

/// An error and what caused it, on one line.
pub(crate) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
