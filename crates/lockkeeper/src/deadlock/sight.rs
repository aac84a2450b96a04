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

/// So often somebody else may fail to look, or look too early.
const TRIES: u32 = 4;

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
        for _ in 0..TRIES {
            let changed = self.changed.notified();
            if let Some(view) = self.known_or_asked(store, after) {
                return Some(view);
            }
            timeout(until.since(Instant::now()), changed).await.ok()?;
        }
        None
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
        if state.looking.is_some_and(|since| now.since(since) < STUCK) {
            return None;
        }
        state.looking = Some(now);
        // In a runtime that has ended, what is spawned is dropped here and now.
        drop(state);
        let looking = Looking { sight: Arc::clone(self), begun: now, view: None };
        tokio::spawn(looking.ask(Arc::clone(store)));
        None
    }
}

/// That somebody looks, and what he has seen. Without that, because his runtime has ended, somebody else
/// has to look.
struct Looking {
    sight: Arc<Sight>,
    begun: Instant,
    view: Option<Arc<View>>,
}

impl Looking {
    async fn ask(mut self, store: Arc<dyn Backend>) {
        let part = match timeout(ANSWER, store.admin().list()).await {
            Ok(Ok(told)) => Some(Part::new(store.place(), told)),
            _ => {
                tracing::debug!(place = store.place(), "does not tell who waits");
                None
            }
        };
        self.view = Some(Arc::new(View { begun: self.begun, ended: Instant::now(), part }));
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        let mut state = self.sight.state.lock();
        if state.looking == Some(self.begun) {
            state.looking = None;
            state.last = self.view.take().or(state.last.take());
        }
        drop(state);
        self.sight.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Locks;

    /// Nor does it hang there.
    #[test]
    fn a_runtime_that_has_ended_does_not_answer_for_the_store() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let inside = runtime.handle().clone();
        let store = runtime.block_on(async { Arc::clone(Locks::memory().backend()) });
        drop(runtime);
        let _inside = inside.enter();
        let sight = Arc::new(Sight::default());
        assert!(sight.known_or_asked(&store, None).is_none());
        let state = sight.state.lock();
        assert!(state.last.is_none() && state.looking.is_none(), "{state:?}");
    }

    #[tokio::test]
    async fn a_look_is_for_all_but_who_has_to_be_sure() {
        let store = Arc::clone(Locks::memory().backend());
        let sight = Arc::new(Sight::default());
        let first = sight.look(&store, None).await.unwrap();
        let shared = sight.look(&store, None).await.unwrap();
        assert!(Arc::ptr_eq(&first, &shared));
        let second = sight.look(&store, Some(first.ended)).await.unwrap();
        assert!(second.begun >= first.ended);
    }
}
