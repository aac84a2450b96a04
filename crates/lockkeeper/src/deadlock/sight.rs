//! What a store told last, for all waits of this process.
//!
//! A list of all locks can be long. So one wait asks for everybody, and the longer the answer took, the
//! longer it counts: a store is busy with the lists of one process for half of the time at most. Only
//! who needs a second look to be sure gets one at once. That a store does not answer is an answer, too, and
//! counts for longer.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::graph::Part;
use crate::backend::Backend;
use crate::clock::Instant;

/// How long a store may take to answer.
pub(super) const ANSWER: Duration = Duration::from_secs(2);
/// What was seen is good for everybody for so long after the question. Less than the pause of a wait, so
/// that its next look is mostly a new one.
const GOOD: Duration = Duration::from_millis(500);
/// And for so many times as long as the answer took. Not more, or a list of a fifth of a second would make
/// a first look one at what was there before the wait.
const REST: u32 = 2;
/// The same for no answer.
const REST_OF_THE_SICK: u32 = 5;
/// Whoever looks for so long does not go on: he may be in a runtime that nobody drives any more.
const STUCK: Duration = Duration::from_millis(2500);

/// One look at one store.
#[derive(Debug)]
pub(super) struct View {
    pub(super) begun: Instant,
    pub(super) ended: Instant,
    /// `None`: it did not say.
    pub(super) part: Option<Part>,
}

impl View {
    fn is_good(&self, now: Instant) -> bool {
        let took = self.ended.since(self.begun);
        let rest = if self.part.is_some() { REST } else { REST_OF_THE_SICK };
        now.since(self.begun) < GOOD.max(took * rest)
    }
}

/// The last look at one store, and whether somebody is at it.
#[derive(Debug, Default)]
pub(super) struct Sight {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Arc<View>>,
    looking: Option<Instant>,
}

impl Sight {
    /// What the store told a moment ago, but after that, or tells now. `None`: nobody came to ask it. Cancel
    /// safe: what was asked is there for the others.
    pub(super) async fn look(
        self: &Arc<Self>,
        store: &Arc<dyn Backend>,
        after: Option<Instant>,
    ) -> Option<Arc<View>> {
        let until = Instant::now() + STUCK;
        loop {
            let changed = self.changed.notified();
            if let Some(view) = self.known_or_asked(store, after) {
                return Some(view);
            }
            timeout(until.since(Instant::now()), changed).await.ok()?;
        }
    }

    /// What is known; or sees to it that somebody asks. That goes on when the one who wanted to know has
    /// gone: a list that is broken off has cost as much, and told nobody anything.
    fn known_or_asked(
        self: &Arc<Self>,
        store: &Arc<dyn Backend>,
        after: Option<Instant>,
    ) -> Option<Arc<View>> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let will_do =
            |last: &&Arc<View>| last.is_good(now) && after.is_none_or(|after| last.begun >= after);
        if let Some(last) = state.last.as_ref().filter(will_do) {
            return Some(Arc::clone(last));
        }
        if state.looking.is_none_or(|since| now.since(since) >= STUCK) {
            state.looking = Some(now);
            let looking = Looking { sight: Arc::clone(self), begun: now, part: None };
            tokio::spawn(looking.ask(Arc::clone(store)));
        }
        None
    }
}

/// That somebody looks, and what he has seen. What there is when this goes is what everybody gets, also
/// when it goes with its runtime.
struct Looking {
    sight: Arc<Sight>,
    begun: Instant,
    part: Option<Part>,
}

impl Looking {
    async fn ask(mut self, store: Arc<dyn Backend>) {
        match timeout(ANSWER, store.admin().list()).await {
            Ok(Ok(told)) => self.part = Some(Part::new(store.place(), told)),
            _ => tracing::debug!(place = store.place(), "does not tell who waits"),
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        let (begun, ended, part) = (self.begun, Instant::now(), self.part.take());
        let mut state = self.sight.state.lock();
        if state.looking == Some(begun) {
            state.looking = None;
            state.last = Some(Arc::new(View { begun, ended, part }));
        }
        drop(state);
        self.sight.changed.notify_waiters();
    }
}
