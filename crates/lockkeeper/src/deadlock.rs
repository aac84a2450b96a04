//! Owners that wait for each other in a circle.
//!
//! # How it works
//!
//! 1. A wait under an [`Owner`] that lasts for more than a second looks around, at most once a second: does
//!    its owner hold anything, and does anybody wait for it? Mostly the answer is no, and there is nothing
//!    to fear.
//! 2. Otherwise every store that this process has open is asked for all its locks.
//! 3. A circle in which nobody is younger than this owner is remembered. If at the next look every wait of
//!    it is still there, and behind each the same hold with the same token, then all of them were held all
//!    the time in between, and nobody in the circle can go on: the wait ends with
//!    [`Error::Deadlock`](crate::Error::Deadlock).
//!
//! # What it promises
//!
//! Of the owners in a circle exactly one is told, the one that was made last, within three seconds if the
//! stores answer at once; and nobody without a circle. The circle may lead through several stores and
//! processes.
//!
//! # When it breaks
//!
//! - Only locks under an owner count: without [`owned_by`](crate::Locks::owned_by) nobody can know that the
//!   one who holds is the one who waits; and only owners of [`new_owner`](crate::Locks::new_owner), not ones
//!   made of any other text. An owner belongs to one task: it is taken to be stuck when it waits, also if it
//!   works on elsewhere, and what it took in another process does not count.
//! - The one that is to be told needs a [`Locks`](crate::Locks) for each store in the circle, and has to
//!   have this switched on.
//! - Circles through semaphores and latches, and through locks of other programs, are not found.
//! - A wait with a time-out and a lease without renewal that would have ended the circle a little later count
//!   like any other; so does a wait that was given up while the store could not be told, until it takes the
//!   place away.
//! - With `mode=session` other processes see only the first of those of one process that wait for a lock.
//! - Owners are compared by the clock of their machine since it was started. Of two machines it is always
//!   the same one that counts as younger, but not always the right one.
//!
//! # Cost
//!
//! Nothing for a second, and nothing for an owner that holds nothing. Then a question a second for each lock
//! that it holds, as long as there are not more than 64 for all waits of the process. Where somebody waits
//! for one of those, or where there would be more questions, one list of all locks from each store, by one
//! for all waits of the process: twice a second at most, and so seldom that the store is busy with it for
//! half of the time; and once more for a suspicion, to be sure. A list takes time in proportion to the
//! locks that there are, on Redis to the keys. A store that does not answer within two seconds is left alone
//! for eight, and holds up nobody who is stuck at others.

mod graph;
mod sight;
#[cfg(test)]
mod simulation;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use self::graph::{Link, Part, circle};
use self::sight::{ANSWER, Sight, View};
use crate::clock::Instant;
use crate::locks::Inner;
use crate::name::Name;
use crate::owner::Owner;
use crate::wait::part_of;

/// Between two looks of one wait, and before the first; and up to so much more.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(200));
/// Where the waits of this process would ask more questions than this, they ask for the list at once: that
/// is one for all of them.
const QUESTIONS: usize = 64;

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

/// A store that this process has open, and what it told last.
struct Store {
    locks: Weak<Inner>,
    place: Box<str>,
    sight: Arc<Sight>,
}

static STORES: Mutex<Vec<Store>> = Mutex::new(Vec::new());

/// From now on circles through this store are seen.
pub(crate) fn register(store: &Arc<Inner>) {
    let mut stores = STORES.lock();
    stores.retain(|store| store.locks.strong_count() > 0);
    let place = store.backend.place();
    let other = stores.iter().find(|other| *other.place == *place);
    let sight = other.map(|other| Arc::clone(&other.sight)).unwrap_or_default();
    stores.push(Store { locks: Arc::downgrade(store), place: place.into(), sight });
}

/// All that are open; the last opened first.
fn stores() -> Vec<(Arc<Inner>, Arc<Sight>)> {
    let stores = STORES.lock();
    let open = |store: &Store| Some((store.locks.upgrade()?, Arc::clone(&store.sight)));
    stores.iter().rev().filter_map(open).collect()
}

/// One of those that are open twice. Ours, if it is among them: that one works.
fn each_once(ours: &Arc<Inner>) -> Vec<(Arc<Inner>, Arc<Sight>)> {
    let mut stores = stores();
    let is_other = |store: &Arc<Inner>| !Arc::ptr_eq(store, ours);
    stores.sort_by(|(one, _), (two, _)| {
        let places = one.backend.place().cmp(two.backend.place());
        places.then(is_other(one).cmp(&is_other(two)))
    });
    stores.dedup_by(|one, two| one.0.backend.place() == two.0.backend.place());
    stores
}

/// A circle that one look showed.
struct Suspicion {
    links: Vec<Link>,
    /// When that look was over.
    since: Instant,
}

impl Suspicion {
    fn of(views: &[Arc<View>], (place, name, owner): (&str, &Name, &Owner)) -> Option<Self> {
        let parts: Vec<&Part> = views.iter().filter_map(|view| view.part.as_ref()).collect();
        let links = circle(&parts, owner, place, name)?;
        let since = views.iter().map(|view| view.ended).max()?;
        Some(Self { links, since })
    }

    /// What is suspected after a look that did not make sure. Where nothing new was told about the one
    /// before, that is still it: the tokens will show whether it was so all the time.
    fn next(
        before: Option<Self>,
        views: &[Arc<View>],
        wait: (&str, &Name, &Owner),
    ) -> Option<Self> {
        let told = |place: &str| {
            views.iter().any(|view| view.part.as_ref().is_some_and(|part| part.is_of(place)))
        };
        let now = Self::of(views, wait);
        let Some(before) = before else { return now };
        let all_told = before.links.iter().all(|link| told(&link.place));
        let same = now.as_ref().is_some_and(|now| now.links == before.links);
        if same || !all_told { Some(before) } else { now }
    }

    /// Whether this store has a part in it.
    fn is_at(&self, place: &str) -> bool {
        self.links.iter().any(|link| &*link.place == place)
    }

    /// Whether all of it is still so, and was all the time: each wait is there, and behind each the same
    /// hold, since a hold that was given back and taken again has another token. Then there was a moment,
    /// between the looks, at which all of it was so at once.
    fn is_sure(&self, views: &[Arc<View>]) -> bool {
        let later = || views.iter().filter(|view| view.begun >= self.since);
        let mut links = self.links.iter();
        links.all(|link| later().any(|view| view.part.as_ref().is_some_and(|part| part.has(link))))
    }

    fn waits(self) -> Vec<Wait> {
        let wait = |Link { owner, place, name, .. }: Link| {
            let place = place.to_string();
            Wait { owner, name, place }
        };
        self.links.into_iter().map(wait).collect()
    }
}

/// Waits until this wait is the one of a circle that has to end. Never, where there is none. Cancel safe.
pub(crate) async fn found(store: &Arc<Inner>, name: &Name, owner: &Owner) -> Vec<Wait> {
    let mut suspicion: Option<Suspicion> = None;
    let mut share = Share(0);
    loop {
        sleep(PAUSE.0 + part_of(PAUSE.1)).await;
        if !is_in_the_way(owner, &mut share).await {
            suspicion = None;
            continue;
        }
        suspicion = match look(store, name, owner, suspicion).await {
            Ok(sure) => return sure.waits(),
            Err(suspicion) => suspicion,
        };
    }
}

/// Looks at all stores: `Ok` if that makes a suspicion sure; else what is suspected now. No store is waited
/// for in vain: what the others told may be enough.
async fn look(
    store: &Arc<Inner>,
    name: &Name,
    owner: &Owner,
    before: Option<Suspicion>,
) -> Result<Suspicion, Option<Suspicion>> {
    let wait = (store.backend.place(), name, owner);
    let stores = each_once(store);
    let looks = stores.iter().map(|(store, sight)| {
        let suspicion = before.as_ref().filter(|before| before.is_at(store.backend.place()));
        sight.look(&store.backend, suspicion.map(|suspicion| suspicion.since))
    });
    let mut looks: FuturesUnordered<_> = looks.collect();
    let mut views = Vec::with_capacity(looks.len());
    while let Some(view) = looks.next().await {
        views.extend(view);
        match &before {
            Some(suspicion) if suspicion.is_sure(&views) => return before.ok_or(None),
            Some(_) => {}
            None => {
                let suspicion = Suspicion::of(&views, wait);
                if suspicion.is_some() {
                    return Err(suspicion);
                }
            }
        }
    }
    Err(Suspicion::next(before, &views, wait))
}

/// Whether anybody waits for something that this owner holds. A store that does not say is no reason to
/// worry.
async fn is_in_the_way(owner: &Owner, share: &mut Share) -> bool {
    let stores = stores();
    let held = stores
        .iter()
        .flat_map(|(store, _)| store.held_by(owner).into_iter().map(move |name| (store, name)));
    let held: Vec<_> = held.collect();
    if share.of_all(held.len()) > QUESTIONS {
        return !held.is_empty();
    }
    let asked = held.iter().map(async |(store, name)| {
        let shown = timeout(ANSWER, store.backend.admin().show(name)).await;
        matches!(shown, Ok(Ok(status)) if !status.waiters.is_empty())
    });
    let mut asked: FuturesUnordered<_> = asked.collect();
    while let Some(somebody_waits) = asked.next().await {
        if somebody_waits {
            return true;
        }
    }
    false
}

/// The questions that one wait has at each look.
struct Share(usize);

/// Those of all waits of this process.
static SHARES: AtomicUsize = AtomicUsize::new(0);

impl Share {
    /// Says how many it has now; how many all have.
    fn of_all(&mut self, questions: usize) -> usize {
        SHARES.fetch_sub(self.0, Ordering::Relaxed);
        self.0 = questions;
        SHARES.fetch_add(questions, Ordering::Relaxed) + questions
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        SHARES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Holding, Status};
    use crate::token::Token;

    const fn at(second: u64) -> Instant {
        Instant::from_nanos(second * 1_000_000_000)
    }

    fn owner(number: u32) -> Owner {
        Owner::try_from(format!("host-1-0123abcd:{number}")).unwrap()
    }

    /// One holds `a` and waits for `b`, and two the other way round, as seen then.
    fn seen(begun: Instant, ended: Instant) -> Arc<View> {
        let told = [("a", 1, 2), ("b", 2, 1)].map(|(name, holder, waiter)| Status {
            name: name.parse().unwrap(),
            kind: Some("mutex".into()),
            holders: vec![Holding {
                owner: owner(holder),
                token: Token::MIN,
                held: Duration::ZERO,
                lease_left: None,
            }],
            waiters: vec![owner(waiter)],
            count: None,
        });
        Arc::new(View { begun, ended, part: Some(Part::new("one:", told.into())) })
    }

    /// Else what is seen name by name in one look would be taken for sure.
    #[test]
    fn the_same_look_is_no_second_one() {
        let first = seen(at(1), at(3));
        let name = "a".parse().unwrap();
        let suspicion = Suspicion::of(&[Arc::clone(&first)], ("one:", &name, &owner(2))).unwrap();
        assert!(!suspicion.is_sure(&[first]));
        assert!(!suspicion.is_sure(&[seen(at(2), at(4))]), "begun before the first was over");
        assert!(suspicion.is_sure(&[seen(at(3), at(4))]));
    }

    /// A store that fails to answer once does not make us begin all over again.
    #[test]
    fn a_suspicion_outlives_a_store_that_says_nothing() {
        let name = "a".parse().unwrap();
        let (two, views) = (owner(2), [seen(at(1), at(3))]);
        let wait = ("one:", &name, &two);
        let suspicion = || Suspicion::of(&views, wait);
        let silent = || Arc::new(View { begun: at(4), ended: at(5), part: None });
        let since = |suspicion: Option<Suspicion>| suspicion.map(|suspicion| suspicion.since);
        assert_eq!(since(Suspicion::next(suspicion(), &[silent()], wait)), Some(at(3)));
        assert_eq!(since(Suspicion::next(suspicion(), &views, wait)), Some(at(3)));
        let gone = View { begun: at(4), ended: at(5), part: Some(Part::new("one:", Vec::new())) };
        assert_eq!(since(Suspicion::next(suspicion(), &[Arc::new(gone)], wait)), None);
        let other = Suspicion { links: Vec::new(), since: at(1) };
        assert_eq!(
            since(Suspicion::next(Some(other), &views, wait)),
            Some(at(3)),
            "another circle"
        );
    }

    /// Asked by one of several clients that have it open.
    #[tokio::test]
    async fn a_store_that_is_open_twice_is_asked_once() {
        let store = Arc::clone(crate::Locks::memory().backend());
        let place = store.place().to_owned();
        let all = [0; 3].map(|_| crate::Locks::new(Arc::clone(&store)));
        let is_ours = |(inner, _): &&(Arc<Inner>, Arc<Sight>)| inner.backend.place() == place;
        let known = stores();
        let sights: Vec<_> = known.iter().filter(is_ours).map(|(_, sight)| sight).collect();
        assert_eq!(sights.len(), 3);
        assert!(sights.iter().all(|sight| Arc::ptr_eq(sight, sights[0])));
        for locks in &all {
            let once = each_once(&locks.inner);
            let asked: Vec<_> = once.iter().filter(is_ours).collect();
            assert!(matches!(asked[..], [(inner, _)] if Arc::ptr_eq(inner, &locks.inner)));
        }
    }
}
