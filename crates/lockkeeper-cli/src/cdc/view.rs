//! What a follower does at one moment, as everything that shows it sees it.

use std::fmt;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::cdc;
use serde::Serialize;

use crate::duration::millis;

/// What it is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// It has not reached the cache and the locks yet.
    #[default]
    Connecting,
    /// Another process has the lock.
    Standby,
    /// It has the lock, and looks at the database and at where it was left.
    Starting,
    /// It clears everything, and goes on from now.
    Resetting,
    /// It reads the log and invalidates.
    Following,
    /// Something is in the way, and is tried again.
    Waiting,
    /// It has ended.
    Stopped,
}

impl State {
    pub(crate) const ALL: [Self; 7] = [
        Self::Connecting,
        Self::Standby,
        Self::Starting,
        Self::Resetting,
        Self::Following,
        Self::Waiting,
        Self::Stopped,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Standby => "standby",
            Self::Starting => "starting",
            Self::Resetting => "resetting",
            Self::Following => "following",
            Self::Waiting => "waiting",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What has happened since this process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Times that it got the lock.
    pub(crate) takeovers: u64,
    /// Changes that the log named.
    pub(crate) changes: u64,
    /// Keys that were invalidated.
    pub(crate) invalidated: u64,
    /// Namespaces that were cleared, because it was not known which keys had changed.
    pub(crate) cleared: u64,
    /// Times that it began anew.
    pub(crate) resets: u64,
    /// Keys that writers named in a namespace that the file does not have.
    pub(crate) foreign: u64,
    /// Times that something failed and was tried again.
    pub(crate) failures: u64,
}

/// What it does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct View {
    pub(crate) state: State,
    /// Why it does not follow.
    pub(crate) reason: Option<String>,
    /// Up to where everything is done.
    pub(crate) position: Option<String>,
    /// How long ago that was saved.
    #[serde(rename = "position_age_ms", serialize_with = "as_millis")]
    pub(crate) position_age: Option<Duration>,
    pub(crate) lag_bytes: Option<u64>,
    #[serde(rename = "lag_ms", serialize_with = "as_millis")]
    pub(crate) lag: Option<Duration>,
    /// What the database keeps for us.
    pub(crate) retained_bytes: Option<u64>,
    #[serde(flatten)]
    pub(crate) counts: Counts,
    /// What failed last.
    #[serde(skip)]
    pub(crate) failure: Option<String>,
}

fn as_millis<S: serde::Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    time.map(millis).serialize(to)
}

impl View {
    /// Nothing is reached yet, because of this.
    pub(crate) fn connecting(reason: Option<String>, failures: u64) -> Self {
        let counts = Counts { failures, ..Counts::default() };
        Self { failure: reason.clone(), reason, counts, ..Self::default() }
    }
}

/// Makes views of what the library says, with what only a look at two of them tells.
#[derive(Debug)]
pub(crate) struct Observer {
    /// What failed before there was a follower.
    failures: u64,
    /// How often the position was saved, and since when it has been so often.
    saved: Option<(u64, Instant)>,
}

impl Observer {
    pub(crate) fn new(failures: u64) -> Self {
        Self { failures, saved: None }
    }

    pub(crate) fn look(&mut self, status: &cdc::Status, now: Instant) -> View {
        if status.saves > self.saved.map_or(0, |(saves, _)| saves) {
            self.saved = Some((status.saves, now));
        }
        let (state, reason) = match &status.state {
            cdc::State::Standby => (State::Standby, None),
            cdc::State::Starting => (State::Starting, None),
            cdc::State::Resetting => (State::Resetting, None),
            cdc::State::Following => (State::Following, None),
            cdc::State::Waiting { why } => (State::Waiting, Some(why.clone())),
            _ => (State::Stopped, None),
        };
        // What it was behind when it still followed says nothing.
        let lag = if state == State::Following { status.lag } else { Default::default() };
        View {
            state,
            reason,
            position: status.position.as_ref().map(ToString::to_string),
            position_age: self.saved.map(|(_, since)| now.since(since)),
            lag_bytes: lag.bytes,
            lag: lag.time,
            retained_bytes: None,
            counts: Counts {
                takeovers: status.tenures,
                changes: status.changes,
                invalidated: status.keys,
                cleared: status.cleared,
                resets: status.resets,
                foreign: status.foreign,
                failures: status.failures + self.failures,
            },
            failure: status.last_error.as_ref().map(|failure| failure.what.clone()),
        }
    }
}
