//! What happened, who did it, and when.

use std::time::Duration;

use serde::Serialize;

/// What somebody did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Took a lock.
    Took,
    /// Asked for something and did not get it.
    Refused,
    /// Read what the lock protects.
    Read,
    /// Wrote it.
    Wrote,
    /// Deleted something.
    Deleted,
    /// Gave a lock back.
    Released,
    /// Something ran out of time.
    Expired,
    /// Ended without tidying up.
    Crashed,
    /// Stood still, as in a long collection of garbage.
    Paused,
    /// Went on.
    Resumed,
    /// Anything else that matters.
    Noted,
    /// A checker saw what must not be.
    Violated,
}

/// Something that happened at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// When, in microseconds from the start.
    pub at_us: u64,
    /// Who.
    pub actor: String,
    /// What.
    pub kind: Kind,
    /// The same in words, such as the command that was sent.
    pub text: String,
}

/// Something that went on for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Span {
    /// Who.
    pub actor: String,
    /// What.
    pub state: State,
    /// When it began, in microseconds from the start.
    pub from_us: u64,
    /// When it ended.
    pub to_us: u64,
}

/// What somebody is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Believes to hold the lock, or that what it has is current.
    Holds,
    /// Waits for the lock.
    Waits,
    /// Stands still.
    Paused,
}

/// One run from its start to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// Who took part, in the order of columns.
    pub actors: Vec<String>,
    /// In the order of time.
    pub events: Vec<Event>,
    /// In the order of their beginnings.
    pub spans: Vec<Span>,
}

/// So many events can be looked at; what is before and after them is left out.
const SHOWN: usize = 18;
/// And so many of them after the first violation.
const AFTER: usize = 3;

impl Timeline {
    /// When this actor first did this; for stories.
    pub fn first(&self, actor: &str, kind: Kind) -> Option<Duration> {
        let found = self.events.iter().find(|event| event.actor == actor && event.kind == kind);
        found.map(|event| Duration::from_micros(event.at_us))
    }

    /// The same as a reader wants it: `12.3 ms`, or `never`.
    pub fn when(&self, actor: &str, kind: Kind) -> String {
        let at = self.first(actor, kind).and_then(|at| u64::try_from(at.as_micros()).ok());
        at.map_or_else(|| "never".into(), millis)
    }

    /// What the checker said first.
    pub fn violation(&self) -> Option<&Event> {
        self.events.iter().find(|event| event.kind == Kind::Violated)
    }

    /// As a sentence: who did what when, one after the other.
    pub fn tell(&self) -> String {
        let told = self.events.iter().map(|event| {
            let at = millis(event.at_us);
            match event.kind {
                Kind::Violated => format!("at {at} the checker sees that {}", event.text),
                _ => format!("at {at} {}: {}", event.actor, event.text),
            }
        });
        let mut text = told.collect::<Vec<_>>().join("; ");
        text.push('.');
        text
    }

    /// The part around the first violation, or the beginning, with those who take part in it.
    #[must_use]
    pub fn window(mut self) -> Self {
        if self.events.len() > SHOWN {
            let violated = self.events.iter().position(|event| event.kind == Kind::Violated);
            let end = violated.map_or(SHOWN, |at| (at + 1 + AFTER).min(self.events.len()));
            self.events.truncate(end);
            self.events.drain(..end.saturating_sub(SHOWN));
        }
        let edge = |event: Option<&Event>| event.map_or(0, |event| event.at_us);
        let (from, to) = (edge(self.events.first()), edge(self.events.last()));
        self.spans.retain(|span| span.from_us <= to && span.to_us >= from);
        for span in &mut self.spans {
            (span.from_us, span.to_us) = (span.from_us.max(from), span.to_us.min(to));
        }
        let (events, spans) = (&self.events, &self.spans);
        self.actors.retain(|actor| {
            events.iter().any(|event| event.actor == *actor)
                || spans.iter().any(|span| span.actor == *actor)
        });
        self
    }
}

/// As a reader wants it: `12.3 ms`, and `0.04 ms` where that matters.
pub fn millis(micros: u64) -> String {
    let (whole, part) = (micros / 1000, micros % 1000);
    if whole < 10 {
        format!("{whole}.{:02} ms", part / 10)
    } else {
        format!("{whole}.{} ms", part / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_us: u64, actor: &str, kind: Kind) -> Event {
        Event { at_us, actor: actor.into(), kind, text: format!("{kind:?}") }
    }

    #[test]
    fn the_window_is_around_the_first_violation() {
        let mut events: Vec<_> = (0..100).map(|at| event(at, "a", Kind::Wrote)).collect();
        events[50].kind = Kind::Violated;
        events[60].kind = Kind::Violated;
        let span = |actor: &str, from_us, to_us| Span {
            actor: actor.into(),
            state: State::Holds,
            from_us,
            to_us,
        };
        let spans = vec![span("b", 0, 10), span("a", 0, 99)];
        let all = Timeline { actors: vec!["a".into(), "b".into()], events, spans };
        let shown = all.window();
        assert_eq!(shown.events.len(), SHOWN);
        assert_eq!(shown.events.last().map(|event| event.at_us), Some(53));
        assert_eq!(shown.spans, [span("a", 36, 53)]);
        assert_eq!(shown.actors, ["a"], "who has no part in it is not drawn");
    }

    #[test]
    fn a_run_is_told_in_its_order() {
        let events = vec![event(0, "a", Kind::Took), event(1234, "", Kind::Violated)];
        let line = Timeline { events, ..Timeline::default() };
        assert_eq!(line.tell(), "at 0.00 ms a: Took; at 1.23 ms the checker sees that Violated.");
    }
}
