//! What a follower tells those who watch it: people by a line on the terminal that changes, logs by a line for each
//! event, programs by lines of JSON.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use lockkeeper::clock::Instant;
use serde::Serialize;

use super::view::{State, View};
use crate::duration::show;
use crate::output::printable;

/// How often the line on the terminal changes.
const LINE: Duration = Duration::from_secs(1);

/// How often programs are told the status.
const STATUS: Duration = Duration::from_secs(10);

/// The longest line on a terminal that does not say how wide it is.
const WIDTH: usize = 80;

/// Something that happened.
#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    Started { name: &'a str, tables: usize, listen: Option<String> },
    Standby,
    Takeover { position: Option<&'a str> },
    Following { position: Option<&'a str> },
    Lost,
    Reset { resets: u64 },
    Cleared { namespaces: u64 },
    Foreign { keys: u64 },
    Unreachable { reason: &'a str },
    Waiting { reason: &'a str },
    Failed { what: &'a str },
    Status(&'a View),
    Stopping { signal: &'a str },
    Stopped { released: bool },
}

impl Event<'_> {
    /// Whether the library says it as well, with more words, on standard error.
    fn is_logged(&self) -> bool {
        matches!(
            self,
            Self::Reset { .. } | Self::Foreign { .. } | Self::Waiting { .. } | Self::Failed { .. }
        )
    }
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { name, tables, listen } => {
                let s = if *tables == 1 { "" } else { "s" };
                write!(f, "{name} is to follow {tables} table{s}")?;
                match listen {
                    Some(at) => write!(f, "; http://{at}/metrics and /health"),
                    None => Ok(()),
                }
            }
            Self::Standby => f.write_str("another one follows; standing by"),
            Self::Takeover { position: Some(at) } => write!(f, "it is our turn, from {at}"),
            Self::Takeover { position: None } => f.write_str("it is our turn"),
            Self::Following { position: Some(at) } => write!(f, "following, from {at}"),
            Self::Following { position: None } => f.write_str("following"),
            Self::Lost => f.write_str("the lock is lost: another one may follow"),
            Self::Reset { .. } => f.write_str(
                "history is lost, or there was none: everything is cleared, and it goes on from now",
            ),
            Self::Cleared { namespaces } => {
                write!(f, "it is not known which keys have changed: {namespaces} namespaces cleared")
            }
            Self::Foreign { keys } => write!(
                f,
                "writers named {keys} keys in namespaces that the file does not have: nobody has \
                 invalidated them"
            ),
            Self::Unreachable { reason } => write!(f, "tried again: {reason}"),
            Self::Waiting { reason } => write!(f, "waiting: {reason}"),
            Self::Failed { what } => write!(f, "failed, and tried again: {what}"),
            Self::Status(view) => write!(f, "{}", line(view, None)),
            Self::Stopping { signal } => write!(f, "{signal}: ending"),
            Self::Stopped { released: true } => f.write_str("ended; the lock is not held"),
            Self::Stopped { released: false } => {
                f.write_str("ended, but the lock could not be released: others wait for its lease")
            }
        }
    }
}

/// What happened between two looks.
pub(crate) fn events<'a>(before: &View, after: &'a View) -> Vec<Event<'a>> {
    let (was, is) = (&before.counts, &after.counts);
    let position = after.position.as_deref();
    let mut events = Vec::new();
    if is.takeovers > was.takeovers {
        events.push(Event::Takeover { position });
    }
    if is.resets > was.resets {
        events.push(Event::Reset { resets: is.resets });
    } else if is.cleared > was.cleared {
        events.push(Event::Cleared { namespaces: is.cleared - was.cleared });
    }
    if is.foreign > was.foreign {
        events.push(Event::Foreign { keys: is.foreign - was.foreign });
    }
    if after.state == State::Connecting {
        let reason = after.reason.as_deref().filter(|_| after.reason != before.reason);
        events.extend(reason.map(|reason| Event::Unreachable { reason }));
        return events;
    }
    // The reason for which it waits is what has failed.
    if let Some(what) = &after.failure
        && is.failures > was.failures
        && after.failure != before.failure
        && after.reason.as_deref().is_none_or(|reason| reason != what)
    {
        events.push(Event::Failed { what });
    }
    if let Some(reason) = &after.reason
        && after.reason != before.reason
    {
        events.push(Event::Waiting { reason });
    }
    if after.state != before.state {
        match after.state {
            State::Following => events.push(Event::Following { position }),
            State::Standby if before.state == State::Following => events.push(Event::Lost),
            _ => {}
        }
    }
    events
}

/// What it does, on one line; how many changes there are in a second only where that is known.
fn line(view: &View, rate: Option<u64>) -> String {
    let mut parts = vec![view.state.to_string()];
    if let Some(rate) = rate {
        parts.push(format!("{rate} changes/s"));
    }
    parts.push(format!("{} changes", view.counts.changes));
    parts.push(format!("{} keys", view.counts.invalidated));
    if let Some(lag) = view.lag {
        parts.push(format!("{} behind", show(lag)));
    }
    if let Some(bytes) = view.lag_bytes {
        parts.push(format!("{bytes} bytes to read"));
    }
    parts.extend(view.reason.clone());
    parts.join(", ")
}

/// Where it goes.
#[derive(Debug)]
pub(crate) struct Console {
    json: bool,
    terminal: bool,
    /// What was shown last, and when.
    shown: Option<(u64, Instant)>,
    /// Since when it stands by; `NEVER` if that was said.
    standby: Option<Instant>,
}

impl Console {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, terminal: !json && io::stderr().is_terminal(), shown: None, standby: None }
    }

    pub(crate) fn event(&self, event: &Event<'_>) {
        if !self.json && event.is_logged() {
            return;
        }
        // If nobody reads it there is nobody to tell.
        let _ = if self.json {
            let line = serde_json::to_string(event).unwrap_or_default();
            let mut out = io::stdout().lock();
            out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush())
        } else {
            let clear = if self.terminal { CLEAR } else { "" };
            let text = printable(&event.to_string());
            io::stderr().write_all(format!("{clear}lockkeeper: {text}\n").as_bytes())
        };
    }

    /// The status, now and then.
    pub(crate) fn status(&mut self, view: &View, now: Instant) {
        self.standby = match (view.state, self.standby) {
            (State::Standby, None) => Some(now),
            // Who asks for its turn for the first time stands by for a moment as well.
            (State::Standby, Some(since)) if now.since(since) > LINE => {
                self.event(&Event::Standby);
                Some(Instant::NEVER)
            }
            (State::Standby, standby) => standby,
            _ => None,
        };
        let every = match (self.json, self.terminal) {
            (true, _) => STATUS,
            (false, true) => LINE,
            (false, false) => return,
        };
        let changes = view.counts.changes;
        let Some((before, since)) = self.shown else {
            self.shown = Some((changes, now));
            return;
        };
        let passed = now.since(since);
        if passed < every {
            return;
        }
        self.shown = Some((changes, now));
        if self.json {
            return self.event(&Event::Status(view));
        }
        let rate = u128::from(changes.saturating_sub(before)) * 1000 / passed.as_millis().max(1);
        let text = printable(&line(view, u64::try_from(rate).ok()));
        let text: String = text.chars().take(width() - 1).collect();
        let _ = io::stderr().write_all(format!("{CLEAR}{text}").as_bytes());
    }

    /// Lets the library's warnings out, on standard error in any case.
    pub(crate) fn trace(&self) {
        let clear = if self.terminal { CLEAR } else { "" };
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
            .with_writer(move || Line { clear })
            .without_time()
            .init();
    }

    /// Leaves the terminal as it was.
    pub(crate) fn clear(&self) {
        if self.terminal {
            let _ = io::stderr().write_all(CLEAR.as_bytes());
        }
    }
}

/// A line on standard error, in the place of the one that changes. The library writes each at once.
struct Line {
    clear: &'static str,
}

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let line_after_clear = [self.clear.as_bytes(), line].concat();
        io::stderr().write_all(&line_after_clear)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// To the begin of the line, and away with what is there.
const CLEAR: &str = "\r\u{1b}[K";

fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr()).ok();
    size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 1).unwrap_or(WIDTH)
}

#[cfg(test)]
mod tests {
    use super::super::view::Counts;
    use super::*;

    fn view(state: State, counts: Counts) -> View {
        View { state, counts, ..View::default() }
    }

    #[test]
    fn each_thing_that_happens_is_said_once() {
        let none = Counts::default();
        let ours = Counts { takeovers: 1, ..none };
        let waiting = View { reason: Some("no slot".into()), ..view(State::Waiting, ours) };
        let steps = [
            (view(State::Standby, none), vec![]),
            (view(State::Starting, ours), vec![Event::Takeover { position: None }]),
            (waiting.clone(), vec![Event::Waiting { reason: "no slot" }]),
            (waiting, vec![]),
            (view(State::Following, ours), vec![Event::Following { position: None }]),
            (
                view(State::Following, Counts { cleared: 2, ..ours }),
                vec![Event::Cleared { namespaces: 2 }],
            ),
            (
                view(State::Following, Counts { cleared: 4, resets: 1, ..ours }),
                vec![Event::Reset { resets: 1 }],
            ),
            (view(State::Standby, Counts { cleared: 4, resets: 1, ..ours }), vec![Event::Lost]),
        ];
        let mut before = View::default();
        for (after, expected) in &steps {
            assert_eq!(&events(&before, after), expected, "{after:?}");
            before = after.clone();
        }
    }

    #[test]
    fn a_failure_is_said_when_it_is_another_one() {
        let failed = |what: &str, failures| View {
            failure: Some(what.into()),
            ..view(State::Following, Counts { failures, ..Counts::default() })
        };
        let (one, again, other) = (failed("a", 1), failed("a", 2), failed("b", 3));
        assert_eq!(events(&view(State::Following, Counts::default()), &one).len(), 1);
        assert_eq!(events(&one, &again), []);
        assert_eq!(events(&again, &other), [Event::Failed { what: "b" }]);
    }
}
