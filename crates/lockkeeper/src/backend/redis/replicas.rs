//! What it takes that a step counts: so many replicas have it.
//!
//! The step and the question how many have it go in one pipeline, on a connection of their own: the
//! server answers nothing else on a connection that waits for replicas, and renewals must not stand
//! behind a grant that nobody acknowledges.

use std::time::Duration;

use redis::{Cmd, Value};

use super::commands::Commands;
use crate::clock::Instant;
use crate::error::{Error, Result};

/// How long a server waits for its replicas at most.
pub(super) const ACK_TIME: Duration = Duration::from_secs(1);

/// How a server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    /// Whether replicas have it in memory.
    Wait,
    /// Whether the master and replicas have it on disk. Where every write is synced before it is
    /// answered: then the disks are not slower than that anyway.
    WaitAof,
}

/// How many replicas must have a step, and how to ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replicas {
    pub(super) wanted: u32,
    question: Question,
    /// Renewals do not stand behind grants, of which there may be many.
    pub(super) of_renewal: bool,
}

/// Fewer replicas than wanted have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shortfall {
    pub(super) wanted: u32,
    pub(super) reached: u32,
}

impl Replicas {
    /// Asks the server what it can do. `None`: nobody is to acknowledge anything.
    pub(super) async fn new(wanted: u32, commands: &Commands) -> Result<Option<Self>> {
        if wanted == 0 {
            return Ok(None);
        }
        // A server that has no such command says nothing about it; one that does not let us look is
        // asked in the way that every server understands.
        let known = match commands.query(redis::cmd("COMMAND").arg("INFO").arg("WAITAOF")).await {
            Ok(known) => known,
            Err(error) if super::commands::may_pass(&error) => return Err(error),
            Err(_) => Value::Nil,
        };
        let mut settings = redis::cmd("CONFIG");
        settings.arg("GET").arg("append*");
        let settings: Vec<String> = match commands.query(&settings).await {
            Ok(settings) => settings,
            Err(error) if super::commands::may_pass(&error) => return Err(error),
            Err(_) => Vec::new(),
        };
        Ok(Some(Self { wanted, question: question(&known, &settings), of_renewal: false }))
    }

    /// The same for a renewal.
    pub(super) fn of_renewal(self) -> Self {
        Self { of_renewal: true, ..self }
    }

    /// Asked in the way that every server understands.
    pub(super) fn in_memory(self) -> Self {
        Self { question: Question::Wait, ..self }
    }

    /// The command that asks, for at most so long.
    pub(super) fn command(self, time: Duration) -> Cmd {
        // No time at all would be for ever.
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        match self.question {
            Question::Wait => redis::cmd("WAIT").arg(self.wanted).arg(millis).take(),
            Question::WaitAof => redis::cmd("WAITAOF").arg(1).arg(self.wanted).arg(millis).take(),
        }
    }

    /// What is missing, by the server's answer.
    pub(super) fn shortfall(self, answer: &Value) -> Option<Shortfall> {
        let wanted = self.wanted;
        let number = |value: &Value| match value {
            Value::Int(number) => u32::try_from(*number).unwrap_or(0),
            _ => 0,
        };
        let (reached, synced) = match answer {
            Value::Array(both) if both.len() == 2 => (number(&both[1]), number(&both[0]) > 0),
            reached => (number(reached), true),
        };
        // What the master itself has not on disk counts as if nobody had it.
        let reached = if synced { reached } else { 0 };
        (reached < wanted).then_some(Shortfall { wanted, reached })
    }
}

fn question(known: &Value, settings: &[String]) -> Question {
    let has_command = matches!(known, Value::Array(all) if matches!(all[..], [Value::Array(_)]));
    let set_to = |name: &str, value: &str| {
        settings.chunks(2).any(|pair| pair[0] == name && pair.get(1).is_some_and(|is| is == value))
    };
    if has_command && set_to("appendonly", "yes") && set_to("appendfsync", "always") {
        Question::WaitAof
    } else {
        Question::Wait
    }
}

/// How long to wait for replicas of a grant that must be there until then: half of it, so that there is
/// time to undo and to say so. However short the lease: one that has ended by then is lost, and says so.
pub(super) fn grant_time(deadline: Instant) -> Duration {
    ACK_TIME.min(deadline.since(Instant::now()) / 2)
}

/// The same for a renewal: what is too late is worth nothing.
pub(super) fn renewal_time(ttl: Duration) -> Duration {
    ACK_TIME.min(ttl / 3)
}

impl Shortfall {
    pub(super) fn of_renewal(self) -> Error {
        let Self { wanted, reached } = self;
        let context = format!("a renewal reached {reached} of {wanted} replicas");
        Error::Unavailable { backend: "redis", context, source: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[&str]) -> Vec<String> {
        pairs.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn disks_are_asked_for_where_every_write_is_synced() {
        let known = Value::Array(vec![Value::Array(vec![])]);
        let unknown = Value::Array(vec![Value::Nil]);
        let synced = settings(&["appendonly", "yes", "appendfsync", "always"]);
        let lazy = settings(&["appendonly", "yes", "appendfsync", "everysec"]);
        let off = settings(&["appendonly", "no", "appendfsync", "always"]);
        assert_eq!(question(&known, &synced), Question::WaitAof);
        for (known, settings) in [(&unknown, &synced), (&known, &lazy), (&known, &off)] {
            assert_eq!(question(known, settings), Question::Wait);
        }
        assert_eq!(question(&known, &[]), Question::Wait, "not allowed to look");
    }

    #[test]
    fn what_is_missing_is_counted() {
        let wait = Replicas { wanted: 2, question: Question::Wait, of_renewal: false };
        assert_eq!(wait.shortfall(&Value::Int(2)), None);
        let one = Some(Shortfall { wanted: 2, reached: 1 });
        assert_eq!(wait.shortfall(&Value::Int(1)), one);
        let aof = Replicas { wanted: 2, question: Question::WaitAof, of_renewal: false };
        let answer = |local, replicas| Value::Array(vec![Value::Int(local), Value::Int(replicas)]);
        assert_eq!(aof.shortfall(&answer(1, 2)), None);
        assert_eq!(aof.shortfall(&answer(1, 1)), one);
        assert_eq!(aof.shortfall(&answer(0, 2)), Some(Shortfall { wanted: 2, reached: 0 }));
        assert_eq!(aof.shortfall(&Value::Nil), Some(Shortfall { wanted: 2, reached: 0 }));
    }

    #[test]
    fn a_server_never_waits_for_ever() {
        let wait = Replicas { wanted: 1, question: Question::Wait, of_renewal: false };
        let packed = wait.command(Duration::ZERO).get_packed_command();
        assert!(packed.ends_with(b"$1\r\n1\r\n"));
        assert_eq!(grant_time(Instant::now()), Duration::ZERO);
        assert_eq!(grant_time(Instant::NEVER), ACK_TIME);
        assert_eq!(renewal_time(Duration::from_millis(300)), Duration::from_millis(100));
        assert_eq!(renewal_time(Duration::from_secs(30)), ACK_TIME);
    }
}
