//! What is not as it should be at a database that is to be followed.

use std::fmt;

/// How bad a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Changes would be missed, or the application be harmed: a follower does not begin.
    Error,
    /// It works, and something is worth knowing.
    Warning,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was found, and what comes of it.
    pub what: String,
    /// What to do: statements for the database or lines of its configuration. `None` if there is nothing to be done.
    pub fix: Option<String>,
}

impl Finding {
    pub(crate) fn error(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { severity: Severity::Error, what: what.into(), fix: Some(fix.into()) }
    }

    pub(crate) fn warning(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, what: what.into(), fix: Some(fix.into()) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{severity}: {}", self.what)?;
        match &self.fix {
            Some(fix) => write!(f, "\n  {}", fix.replace('\n', "\n  ")),
            None => Ok(()),
        }
    }
}
