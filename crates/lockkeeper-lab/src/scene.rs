//! One run as it goes: everybody says what they do, and the referee watches.

use std::sync::Arc;

use lockkeeper::clock::Instant;
use parking_lot::Mutex;

use crate::checker::Referee;
use crate::timeline::{Event, Kind, Span, State, Timeline};

/// One run. Clones are the same run.
#[derive(Clone, Debug)]
pub struct Scene {
    start: Instant,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    line: Timeline,
    open: Vec<Span>,
    referee: Referee,
    violations: u64,
}

impl Default for Scene {
    fn default() -> Self {
        Self::new()
    }
}

impl Scene {
    /// Time begins now.
    pub fn new() -> Self {
        Self { start: Instant::now(), inner: Arc::default() }
    }

    /// Somebody who takes part. The order of the first calls is the order of the columns.
    pub fn actor(&self, name: impl Into<String>) -> Actor {
        let name = name.into();
        let mut inner = self.inner.lock();
        if !inner.line.actors.contains(&name) {
            inner.line.actors.push(name.clone());
        }
        drop(inner);
        Actor { scene: self.clone(), name }
    }

    /// A checker has seen what must not be: a clause that follows "the checker sees that", such as
    /// "client 1 and client 2 both believe to hold the lock". `who` is in whose column it is shown.
    pub fn violation(&self, who: &Actor, text: impl Into<String>) {
        let mut inner = self.inner.lock();
        inner.violations += 1;
        let event = self.event(&who.name, Kind::Violated, text.into());
        inner.line.events.push(event);
    }

    /// How many violations there were so far.
    pub fn violations(&self) -> u64 {
        self.inner.lock().violations
    }

    /// What happened. Who still believes to hold does so until the end.
    pub fn end(&self) -> Timeline {
        let mut inner = self.inner.lock();
        let now = self.now();
        for mut span in std::mem::take(&mut inner.open) {
            span.to_us = now;
            inner.line.spans.push(span);
        }
        inner.line.events.sort_by_key(|event| event.at_us);
        inner.line.spans.sort_by_key(|span| span.from_us);
        inner.line.clone()
    }

    fn now(&self) -> u64 {
        u64::try_from(Instant::now().since(self.start).as_micros()).unwrap_or(u64::MAX)
    }

    fn event(&self, actor: &str, kind: Kind, text: String) -> Event {
        Event { at_us: self.now(), actor: actor.into(), kind, text }
    }
}

/// Somebody who takes part in a run: a client, a worker, the server.
#[derive(Clone, Debug)]
pub struct Actor {
    scene: Scene,
    name: String,
}

impl Actor {
    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// It did something.
    pub fn did(&self, kind: Kind, text: impl Into<String>) {
        let mut inner = self.scene.inner.lock();
        let event = self.scene.event(&self.name, kind, text.into());
        inner.line.events.push(event);
    }

    /// From now on it believes to hold the lock. If somebody else does as well, that is a violation.
    pub fn believes(&self) {
        let mut inner = self.scene.inner.lock();
        let others = inner.referee.enters(&self.name);
        self.begin(&mut inner, State::Holds);
        if !others.is_empty() {
            inner.violations += 1;
            let text =
                format!("{} and {} both believe to hold the lock", others.join(", "), self.name);
            let event = self.scene.event(&self.name, Kind::Violated, text);
            inner.line.events.push(event);
        }
    }

    /// From now on it does not.
    pub fn believes_no_more(&self) {
        let mut inner = self.scene.inner.lock();
        inner.referee.leaves(&self.name);
        self.finish(&mut inner, State::Holds);
    }

    /// From now on it waits or stands still, until [`ends`](Self::ends). For the belief to hold there is
    /// [`believes`](Self::believes), which is watched.
    pub fn begins(&self, state: State) {
        self.begin(&mut self.scene.inner.lock(), state);
    }

    /// It does not any more.
    pub fn ends(&self, state: State) {
        self.finish(&mut self.scene.inner.lock(), state);
    }

    fn begin(&self, inner: &mut Inner, state: State) {
        let now = self.scene.now();
        inner.open.push(Span { actor: self.name.clone(), state, from_us: now, to_us: now });
    }

    fn finish(&self, inner: &mut Inner, state: State) {
        let ours = |span: &Span| span.actor == self.name && span.state == state;
        if let Some(at) = inner.open.iter().rposition(ours) {
            let mut span = inner.open.remove(at);
            span.to_us = self.scene.now();
            inner.line.spans.push(span);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlap_is_a_violation_and_told() {
        let scene = Scene::new();
        let (one, two) = (scene.actor("one"), scene.actor("two"));
        one.believes();
        two.believes();
        one.believes_no_more();
        two.believes_no_more();
        two.believes();
        assert_eq!(scene.violations(), 1);
        let line = scene.end();
        let text = line.violation().map(|event| event.text.as_str());
        assert_eq!(text, Some("one and two both believe to hold the lock"));
        assert_eq!(line.spans.len(), 3, "{line:?}");
    }
}
