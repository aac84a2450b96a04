//! What `run` says, on standard error alone: standard output belongs to the command.

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use lockkeeper::backend::Status;
use lockkeeper::{Name, Owner, Token};
use serde::Serialize;

use crate::duration::{millis, show};
use crate::exit::{Code, Failure};
use crate::output::printable;

/// Something that happened. Written as a sentence, or as one line of JSON.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    Waiting { name: &'a Name, waited_ms: u64, holders: Vec<Seen> },
    Busy { name: &'a Name, waited_ms: u64, holders: Vec<Seen> },
    Acquired { name: &'a Name, token: Token, owner: &'a Owner, waited_ms: u64, holders: Vec<Seen> },
    Tick { name: &'a Name, tick: String, attempt: u32 },
    Taken { name: &'a Name },
    Started { pid: i32 },
    Stopped { lease_left_ms: Option<u64> },
    Continued,
    Lost { name: &'a Name, token: Token, cause: String, action: &'static str },
    Leftovers { count: usize },
    Exited { code: u8 },
    Released { name: &'a Name },
    Warning { message: String },
    Error { message: &'a str, exit_code: u8 },
}

/// A holder as the store described it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Seen {
    owner: Owner,
    token: Token,
    held_ms: u64,
}

impl Seen {
    pub(crate) fn all(status: &Status) -> Vec<Self> {
        let seen = status.holders.iter().map(|holding| Self {
            owner: holding.owner.clone(),
            token: holding.token,
            held_ms: millis(holding.held),
        });
        seen.collect()
    }
}

impl Event<'_> {
    /// Whether it is said without being asked for.
    fn matters(&self) -> bool {
        !matches!(
            self,
            Self::Acquired { .. }
                | Self::Tick { .. }
                | Self::Taken { .. }
                | Self::Started { .. }
                | Self::Continued
                | Self::Leftovers { .. }
                | Self::Exited { .. }
                | Self::Released { .. }
        )
    }
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting { name, holders, .. } => {
                write!(f, "waiting for {name}{}", held_by(holders))
            }
            Self::Busy { name, waited_ms: 0, holders } => {
                write!(f, "{name} is busy{}", held_by(holders))
            }
            Self::Busy { name, waited_ms, holders } => {
                write!(f, "{name} was not free within {}{}", time(*waited_ms), held_by(holders))
            }
            Self::Acquired { name, token, owner, waited_ms, holders } => {
                let waited = time(*waited_ms);
                write!(f, "{name} acquired after {waited}, token {token}, as {owner}")?;
                if holders.is_empty() { Ok(()) } else { write!(f, "; was{}", held_by(holders)) }
            }
            Self::Tick { name, tick, attempt: 1 } => write!(f, "{name} is ours for {tick}"),
            Self::Tick { name, tick, .. } => {
                write!(f, "{name} is ours for {tick}, once more: who had it died")
            }
            Self::Taken { name } => {
                write!(f, "{name} has run for this time, or runs now, or was left out")
            }
            Self::Started { pid } => write!(f, "started, process group {pid}"),
            Self::Stopped { lease_left_ms: None } => {
                f.write_str("the command is stopped; the lock is still held")
            }
            Self::Stopped { lease_left_ms: Some(left) } => write!(
                f,
                "the command is stopped; the lock is still held, but not renewed: continue it \
                 within {} or it is killed",
                time(*left)
            ),
            Self::Continued => f.write_str("the command goes on"),
            Self::Lost { name, token, cause, action } => {
                write!(f, "the lock on {name} (token {token}) is lost: {cause}; {action}")
            }
            Self::Leftovers { count } => {
                write!(f, "the command has ended; ending {count} processes that it left behind")
            }
            Self::Exited { code } => write!(f, "the command ended with {code}"),
            Self::Released { name } => write!(f, "{name} released"),
            Self::Warning { message } => f.write_str(message),
            Self::Error { message, .. } => f.write_str(message),
        }
    }
}

fn time(millis: u64) -> humantime::FormattedDuration {
    show(Duration::from_millis(millis))
}

fn held_by(holders: &[Seen]) -> String {
    let mut text = String::new();
    for (at, holder) in holders.iter().enumerate() {
        let word = if at == 0 { ": held by" } else { "," };
        let Seen { owner, token, held_ms } = holder;
        // Writing to a string does not fail.
        let _ = write!(text, "{word} {owner} for {} (token {token})", time(*held_ms));
    }
    text
}

/// Where events go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    verbose: bool,
    json: bool,
}

impl Report {
    pub(crate) fn new(verbose: bool, json: bool) -> Self {
        Self { verbose, json }
    }

    pub(crate) fn event(&self, event: &Event<'_>) {
        let line = if self.json {
            serde_json::to_string(event).unwrap_or_default()
        } else if event.matters() || self.verbose {
            format!("lockkeeper: {}", printable(&event.to_string()))
        } else {
            return;
        };
        // In one write, so that it does not mix with what the command writes. If nobody reads
        // standard error there is nobody to tell.
        let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
    }

    pub(crate) fn warn(&self, message: impl Into<String>) {
        self.event(&Event::Warning { message: message.into() });
    }

    pub(crate) fn failure(&self, failure: &Failure) -> Code {
        let Failure { code, message } = failure;
        self.event(&Event::Error { message, exit_code: code.0 });
        *code
    }

    /// After how long a wait is worth a line; `None`: never.
    pub(crate) fn notice_after(&self) -> Option<Duration> {
        match (self.json || self.verbose, io::stderr().is_terminal()) {
            (true, _) => Some(Duration::from_millis(100)),
            (false, true) => Some(Duration::from_secs(2)),
            (false, false) => None,
        }
    }

    /// Lets the library's warnings out, where lines that are not JSON do no harm.
    pub(crate) fn trace(&self) {
        if !self.json {
            tracing_subscriber::fmt()
                .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
                .with_writer(io::stderr)
                .without_time()
                .init();
        }
    }
}
