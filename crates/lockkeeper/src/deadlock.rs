//! Owners that wait for each other in a circle.
//!
//! # How it works
//!
//! 1. A wait under an [`Owner`] that lasts for more than a second looks around, at most once a second: does
//!    its owner hold anything, and does anybody wait for it? That is one question for each lock that it
//!    holds. Mostly the answer is no, and there is nothing to fear.
//! 2. Otherwise every store that this process has open is asked for all its locks. Waits of one process
//!    share what was seen in the last quarter of a second.
//! 3. A circle in which nobody is younger than this owner is remembered. If at the next look every wait of
//!    it is still there, and behind each the same hold with the same token, then all of them were held all
//!    the time in between, and nobody in the circle can go on: the wait ends with
//!    [`Error::Deadlock`](crate::Error::Deadlock).
//!
//! # What it promises
//!
//! Of the owners in a circle exactly one is told, the one that was made last, within three seconds or so;
//! and nobody without a circle. The circle may lead through several stores and processes.
//!
//! # When it breaks
//!
//! - Only locks under an owner count: without [`owned_by`](crate::Locks::owned_by) nobody can know that the
//!   one who holds is the one who waits. An owner belongs to one task: it is taken to be stuck when it
//!   waits, also if it works on elsewhere, and what it took in another process does not count.
//! - The one that is to be told needs a [`Locks`](crate::Locks) for each store in the circle, and has to
//!   have this switched on.
//! - Circles through semaphores and latches, and through locks of other programs, are not found.
//! - A wait with a time-out that would have ended the circle a little later counts like any other.
//! - Owners are compared by the clock of their machine since it was started. Of two machines it is always
//!   the same one that counts as younger, but not always the right one.

mod graph;
#[cfg(test)]
mod simulation;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex as SyncMutex;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use self::graph::{Graph, Link};
use crate::clock::Instant;
use crate::locks::Inner;
use crate::name::Name;
use crate::owner::Owner;
use crate::wait::part_of;

/// Between two looks of one wait, and before the first; and up to so much more.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(200));
/// What was seen is good for everybody for so long. Less than a pause, or a second look would be the first.
const SHARED: Duration = Duration::from_millis(250);
/// How long a store may take to answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Somebody in a circle, and what he waits for. The next one holds it; the first one holds what the last
/// one waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Who waits.
    pub owner: Owner,
    /// For which lock.
    pub name: Name,
    /// At which store: its URL without a password.
    pub place: String,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waits for {} at {}", self.owner, self.name, self.place)
    }
}

/// What this process has open.
static STORES: SyncMutex<Vec<Weak<Inner>>> = SyncMutex::new(Vec::new());

/// What was seen last, and when that was begun.
static SEEN: Mutex<Option<(Instant, Arc<Graph>)>> = Mutex::const_new(None);

/// From now on circles through this store are seen.
pub(crate) fn register(store: &Arc<Inner>) {
    let mut stores = STORES.lock();
    stores.retain(|store| store.strong_count() > 0);
    stores.push(Arc::downgrade(store));
}

fn stores() -> Vec<Arc<Inner>> {
    STORES.lock().iter().filter_map(Weak::upgrade).collect()
}

/// Waits until this wait is the one of a circle that has to end. Never, where there is none. Cancel safe.
pub(crate) async fn found(place: &str, name: &Name, owner: &Owner) -> Vec<Wait> {
    let mut suspected: Option<Vec<Link>> = None;
    loop {
        sleep(PAUSE.0 + part_of(PAUSE.1)).await;
        if !is_in_the_way(owner).await {
            suspected = None;
            continue;
        }
        let seen = look().await;
        if let Some(circle) = suspected.take_if(|circle| seen.still_has(circle)) {
            let wait = |Link { owner, place, name, .. }: Link| {
                let place = place.to_string();
                Wait { owner, name, place }
            };
            return circle.into_iter().map(wait).collect();
        }
        suspected = seen.circle(owner, place, name);
    }
}

/// Whether anybody waits for something that this owner holds. A store that does not say is no reason to
/// worry.
async fn is_in_the_way(owner: &Owner) -> bool {
    let stores = stores();
    let held = stores.iter().flat_map(|store| {
        store.held_by(owner).into_iter().map(async |name| {
            let shown = timeout(ANSWER, store.backend.admin().show(&name)).await;
            matches!(shown, Ok(Ok(status)) if !status.waiters.is_empty())
        })
    });
    join_all(held).await.contains(&true)
}

/// All stores, as of a moment ago; by one for all. Not if that one does not go on: it may be in a runtime
/// that nobody drives any more.
async fn look() -> Arc<Graph> {
    let Ok(mut last) = timeout(ANSWER + SHARED, SEEN.lock()).await else {
        return Arc::new(ask_all().await);
    };
    let begun = Instant::now();
    if let Some((at, seen)) = &*last
        && begun.since(*at) < SHARED
    {
        return Arc::clone(seen);
    }
    let seen = Arc::new(ask_all().await);
    *last = Some((begun, Arc::clone(&seen)));
    seen
}

async fn ask_all() -> Graph {
    let stores = stores();
    let asked = stores.iter().map(|store| timeout(ANSWER, store.backend.admin().list()));
    let mut graph = Graph::default();
    for (store, told) in stores.iter().zip(join_all(asked).await) {
        match told {
            Ok(Ok(told)) => graph.add(store.backend.place(), told),
            _ => tracing::debug!(place = store.backend.place(), "does not tell who waits"),
        }
    }
    graph
}
