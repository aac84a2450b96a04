//! Which write is next: those of a key one after the other, and several keys at a time.
//!
//! No I/O here: what was read is taken in, and who asks is told what to apply.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::queue::Queued;
use crate::database::Order;

/// So many writes are in memory at a time.
const WINDOW: usize = 1600;

/// So many of them of one key.
const LANE: usize = 16;

/// So many keys are written at a time.
pub(super) const KEYS: usize = 8;

/// So many of them, at most, have failed before: each may hang, and others are to go on.
const AGAIN: usize = KEYS / 2;

/// So many keys may fail before no others are begun.
const STUCK: usize = 64;

/// So many are read at a time.
pub(super) const PAGE: usize = 100;

/// For so long what is in the database is tried to be loaded again, before the write is done without that. Longer than a store
/// that was away is left alone.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Between two attempts after a failure: at first, and at most.
pub(super) const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// The writes of one key.
#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Arc<Queued>>,
    /// What is known of the first of them, and when it is tried again if it has failed.
    first: Tried,
    again: Option<Instant>,
    /// Since when nothing of this key could be loaded again.
    unloaded: Option<Instant>,
    /// The first one that was left in the queue for lack of room here.
    skipped: Option<Order>,
}

/// What is known of a write that has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tried {
    /// How often.
    failures: u32,
    /// How often the database has refused it.
    pub(super) refused: u32,
    /// The database has it, in this version.
    pub(super) stored: Option<u64>,
}

impl Tried {
    /// It holds up others: it has failed, and the database does not have it.
    fn is_stuck(self) -> bool {
        self.failures > 0 && self.stored.is_none()
    }
}

/// All writes that were read and are not done.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: HashMap<Arc<str>, Lane>,
    /// Keys whose first write is to be tried for the first time.
    ready: VecDeque<Arc<str>>,
    /// Keys whose first write has failed and is not being tried.
    failing: HashSet<Arc<str>>,
    /// Keys whose first write has failed and is not in the database, whether it is being tried or not.
    stuck: usize,
    /// So many of those are being tried.
    again: usize,
    known: HashSet<Order>,
    /// Everything up to here has been read.
    read: Option<Order>,
    /// There may be more behind that.
    more: bool,
}

/// A write to be applied.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) key: Arc<str>,
    pub(super) queued: Arc<Queued>,
    pub(super) tried: Tried,
    unloaded: Option<Instant>,
}

impl Job {
    /// How often it has been tried, this time included.
    pub(super) fn attempt(&self) -> u32 {
        self.tried.failures + 1
    }

    /// It has been tried for long enough to be loaded again.
    pub(super) fn is_patience_over(&self, now: Instant) -> bool {
        self.unloaded.is_some_and(|since| now.saturating_duration_since(since) >= PATIENCE)
    }
}

/// Where an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// The database has refused.
    Database,
    /// It is in the database, in this version, and the cache could not be told.
    Untold(u64),
    /// The cache was told, and it could not be loaded again.
    Unloaded(u64),
    /// The cache was told, and the queue was not; whether it was loaded again.
    Stored(u64, bool),
    /// Before it was in the database.
    Other,
}

impl Lanes {
    /// Whether a page more may be read.
    pub(super) fn has_room(&self) -> bool {
        self.known.len() + PAGE <= WINDOW
    }

    /// Whether there may be something to read at once.
    pub(super) fn wants_more(&self) -> bool {
        self.more && self.has_room()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// What has been read up to now. From the beginning if there is nothing left of it: it costs nothing then, and nothing
    /// is missed that a server has which took the place of another.
    pub(super) fn after(&self) -> Option<Order> {
        self.read.filter(|_| !self.is_empty())
    }

    /// Everything is to be read again. What is known already does no harm.
    pub(super) fn rewind(&mut self) {
        (self.read, self.more) = (None, true);
    }

    /// Takes in what was read.
    pub(super) fn take(&mut self, page: Vec<Queued>) {
        self.more = page.len() >= PAGE;
        for queued in page {
            let order = queued.order;
            self.read = Some(order);
            if self.known.contains(&order) {
                continue;
            }
            let key: Arc<str> = queued.message.as_ref().map_or("", |message| &message.key).into();
            let lane = self.lanes.entry(Arc::clone(&key)).or_default();
            // Behind one that was left out all are.
            if lane.skipped.is_some() || lane.waiting.len() >= LANE {
                lane.skipped.get_or_insert(order);
                continue;
            }
            if lane.waiting.is_empty() {
                self.ready.push_back(key);
            }
            lane.waiting.push_back(Arc::new(queued));
            self.known.insert(order);
        }
        if !self.more {
            // What was left out of these is not there any more.
            self.lanes.retain(|_, lane| !lane.waiting.is_empty());
        }
    }

    /// What to apply now: what has waited for longest after a failure, unless as many of these are being tried as may; or else a
    /// key that comes new.
    pub(super) fn next(&mut self, now: Instant) -> Option<Job> {
        let key = match self.first_failed().filter(|(again, _)| *again <= now) {
            Some((_, key)) => {
                let key = Arc::clone(key);
                self.failing.remove(&key);
                self.again += 1;
                key
            }
            None if self.stuck < STUCK => self.ready.pop_front()?,
            None => return None,
        };
        let lane = &self.lanes[&key];
        let queued = Arc::clone(lane.waiting.front()?);
        let Lane { first, unloaded, .. } = *lane;
        Some(Job { key, queued, tried: first, unloaded })
    }

    /// What has failed and is to be tried before all others of that kind, and when. Nothing: there is no such thing, or as many are
    /// being tried as may.
    fn first_failed(&self) -> Option<(Instant, &Arc<str>)> {
        let failing = self.failing.iter().filter(|_| self.again < AGAIN);
        failing.filter_map(|key| Some((self.lanes[key].again?, key))).min()
    }

    /// It is neither in the queue any more nor to be applied; and whether it was loaded again.
    pub(super) fn done(&mut self, job: &Job, loaded: bool) {
        self.again -= usize::from(job.attempt() > 1);
        let Some(lane) = self.lanes.get_mut(&job.key) else { return };
        lane.waiting.pop_front();
        self.known.remove(&job.queued.order);
        self.stuck -= usize::from(lane.first.is_stuck());
        (lane.first, lane.again) = Default::default();
        // Else each of its writes would wait for as long.
        lane.unloaded = lane.unloaded.filter(|_| !loaded);
        if !lane.waiting.is_empty() {
            self.ready.push_back(Arc::clone(&job.key));
            return;
        }
        match lane.skipped.take() {
            // It stays, because what is known of it is so for those that are read again.
            Some(_) => {
                self.read = self.read.min(Some(job.queued.order));
                self.more = true;
            }
            None => drop(self.lanes.remove(&job.key)),
        }
    }

    /// It is to be tried again, and those of its key wait.
    pub(super) fn failed(&mut self, job: &Job, why: Failed, now: Instant) {
        self.again -= usize::from(job.attempt() > 1);
        let Some(lane) = self.lanes.get_mut(&job.key) else { return };
        let was_stuck = lane.first.is_stuck();
        let pause = PAUSES.0 * 2_u32.saturating_pow(lane.first.failures.min(16));
        lane.first.failures = lane.first.failures.saturating_add(1);
        match why {
            Failed::Database => lane.first.refused += 1,
            // What was away all the time has its time to be loaded again when it is back.
            Failed::Untold(version) => (lane.first.stored, lane.unloaded) = (Some(version), None),
            Failed::Unloaded(version) => {
                lane.first.stored = Some(version);
                lane.unloaded.get_or_insert(now);
            }
            Failed::Stored(version, loaded) => {
                lane.first.stored = Some(version);
                lane.unloaded = lane.unloaded.filter(|_| !loaded);
            }
            Failed::Other => {}
        }
        self.stuck = self.stuck - usize::from(was_stuck) + usize::from(lane.first.is_stuck());
        lane.again = Some(now + pause.min(PAUSES.1));
        self.failing.insert(Arc::clone(&job.key));
    }

    /// When something that has failed is to be tried again, if that may be.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.first_failed().map(|(again, _)| again)
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::Message;
    use super::*;

    fn queued(key: &str, seq: u64) -> Queued {
        let message = Message { id: seq.to_string(), key: key.into(), schema: 0, value: None };
        Queued { order: Order::new(1, seq), message: Some(message) }
    }

    fn seq(job: &Job) -> u64 {
        job.queued.order.seq()
    }

    #[test]
    fn of_one_key_only_the_first_is_applied_and_of_others_as_well() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        lanes.take(vec![queued("a", 1), queued("a", 2), queued("b", 3), queued("a", 4)]);
        let [a, b] = [lanes.next(now).unwrap(), lanes.next(now).unwrap()];
        assert_eq!((seq(&a), seq(&b)), (1, 3));
        assert!(lanes.next(now).is_none());
        lanes.done(&a, true);
        let a = lanes.next(now).unwrap();
        assert_eq!((seq(&a), a.attempt()), (2, 1));
        // Read again, as after a failure of the queue.
        lanes.rewind();
        lanes.take(vec![queued("a", 2), queued("b", 3), queued("a", 4)]);
        assert!(lanes.next(now).is_none());
        lanes.done(&b, true);
        lanes.done(&a, true);
        let a = lanes.next(now).unwrap();
        assert_eq!(seq(&a), 4);
        lanes.done(&a, true);
        assert!(lanes.is_empty() && lanes.after().is_none() && lanes.lanes.is_empty());
    }

    #[test]
    fn what_fails_holds_up_its_key_alone_and_is_tried_later_and_later() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        lanes.take(vec![queued("a", 1), queued("a", 2), queued("b", 3)]);
        let a = lanes.next(now).unwrap();
        lanes.failed(&a, Failed::Other, now);
        let b = lanes.next(now).unwrap();
        assert_eq!(seq(&b), 3);
        lanes.done(&b, true);
        assert!(lanes.next(now).is_none());
        let mut at = now;
        for attempt in 2..20 {
            let again = lanes.wake_at().unwrap();
            assert!(again > at && again <= at + PAUSES.1, "{attempt}");
            assert!(lanes.next(again - Duration::from_millis(1)).is_none());
            at = again;
            let a = lanes.next(at).unwrap();
            assert_eq!((seq(&a), a.attempt()), (1, attempt));
            lanes.failed(&a, Failed::Other, at);
        }
        at += PAUSES.1;
        let a = lanes.next(at).unwrap();
        lanes.done(&a, true);
        assert_eq!(lanes.next(at).map(|job| (seq(&job), job.attempt())), Some((2, 1)));
        assert_eq!(lanes.stuck, 0);
    }

    #[test]
    fn why_a_write_has_failed_is_known_of_it_alone() {
        let (mut lanes, mut now) = (Lanes::default(), Instant::now());
        lanes.take(vec![queued("a", 1), queued("a", 2)]);
        for (why, stuck) in [
            (Failed::Other, 1),
            (Failed::Database, 1),
            (Failed::Database, 1),
            (Failed::Untold(7), 0),
            (Failed::Stored(7, false), 0),
            (Failed::Unloaded(7), 0),
        ] {
            let job = lanes.next(now).unwrap();
            lanes.failed(&job, why, now);
            assert_eq!(lanes.stuck, stuck);
            now += PAUSES.1;
        }
        let job = lanes.next(now).unwrap();
        assert_eq!((seq(&job), job.attempt()), (1, 7));
        assert_eq!((job.tried.refused, job.tried.stored), (2, Some(7)));
        lanes.done(&job, true);
        let job = lanes.next(now).unwrap();
        assert_eq!((seq(&job), job.attempt(), job.tried), (2, 1, Tried::default()));
    }

    #[test]
    fn a_key_that_cannot_be_loaded_again_is_waited_for_once() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        lanes.take((1..=3).map(|seq| queued("a", seq)).collect());
        let job = lanes.next(now).unwrap();
        assert!(!job.is_patience_over(now + PATIENCE), "it may be loaded the first time");
        lanes.failed(&job, Failed::Unloaded(0), now);
        let (almost, over) = (now + PATIENCE - PAUSES.0, now + PATIENCE);
        let job = lanes.next(almost).unwrap();
        assert!(!job.is_patience_over(almost));
        lanes.failed(&job, Failed::Unloaded(0), almost);
        let over = over + PAUSES.1;
        let job = lanes.next(over).unwrap();
        assert!(job.is_patience_over(over));
        lanes.done(&job, false);
        let job = lanes.next(over).unwrap();
        assert!(job.is_patience_over(over), "nor can the next one");
        lanes.failed(&job, Failed::Stored(0, false), over);
        let later = over + PAUSES.1;
        let job = lanes.next(later).unwrap();
        assert!(job.is_patience_over(later), "nor was it now");
        lanes.failed(&job, Failed::Stored(0, true), later);
        let later = later + PAUSES.1;
        let job = lanes.next(later).unwrap();
        assert!(!job.is_patience_over(later + PATIENCE), "it could");
        lanes.failed(&job, Failed::Unloaded(0), later);
        let later = later + PATIENCE;
        let job = lanes.next(later).unwrap();
        assert!(job.is_patience_over(later));
        lanes.failed(&job, Failed::Untold(0), later);
        let later = later + PAUSES.1;
        let job = lanes.next(later).unwrap();
        assert!(!job.is_patience_over(later), "a store that was away is not held against it");
        lanes.done(&job, true);
        let job = lanes.next(later).unwrap();
        assert!(!job.is_patience_over(later + PATIENCE), "it could");
    }

    #[test]
    fn a_key_that_cannot_be_loaded_again_is_waited_for_once_however_many_write_it() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        let there: Vec<Queued> = (1..=LANE as u64 + 1).map(|seq| queued("a", seq)).collect();
        lanes.take(there.clone());
        let job = lanes.next(now).unwrap();
        lanes.failed(&job, Failed::Unloaded(0), now);
        let now = now + PATIENCE;
        for _ in 0..LANE {
            let job = lanes.next(now).unwrap();
            assert!(job.is_patience_over(now));
            lanes.done(&job, false);
        }
        assert!(lanes.is_empty() && lanes.wants_more());
        lanes.take(there[LANE..].to_vec());
        let job = lanes.next(now).unwrap();
        assert!(job.is_patience_over(now), "nor can this one");
        lanes.done(&job, false);
        assert!(lanes.lanes.is_empty());
        // Another one has done what was left out.
        lanes.take(there);
        while let Some(job) = lanes.next(now) {
            lanes.done(&job, true);
        }
        lanes.take(Vec::new());
        assert!(lanes.lanes.is_empty());
    }

    #[test]
    fn a_key_with_very_many_writes_leaves_room_for_others_and_keeps_its_order() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        let mut there: Vec<Queued> = (1..=50).map(|seq| queued("a", seq)).collect();
        there.push(queued("b", 51));
        lanes.take(there.clone());
        assert_eq!(lanes.known.len(), LANE + 1);
        let mut applied = Vec::new();
        for _ in 0..100 {
            while let Some(job) = lanes.next(now) {
                lanes.done(&job, true);
                there.retain(|queued| queued.order != job.queued.order);
                if &*job.key == "a" {
                    applied.push(seq(&job));
                }
            }
            let after = lanes.after();
            let page = there.iter().filter(|queued| Some(queued.order) > after).take(PAGE).cloned();
            lanes.take(page.collect());
        }
        assert_eq!(applied, (1..=50).collect::<Vec<_>>());
        assert!(there.is_empty());
    }

    #[test]
    fn when_too_many_keys_fail_no_others_are_begun() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        let keys: Vec<String> = (0..STUCK + 5).map(|key| key.to_string()).collect();
        lanes.take(keys.iter().zip(1..).map(|(key, seq)| queued(key, seq)).collect());
        let mut tried = 0;
        while let Some(job) = lanes.next(now) {
            lanes.failed(&job, Failed::Other, now);
            tried += 1;
        }
        assert_eq!(tried, STUCK);
        let later = now + PAUSES.1;
        let one = lanes.next(later).unwrap();
        assert_eq!(one.attempt(), 2);
        lanes.done(&one, true);
        let rest: Vec<Job> = std::iter::from_fn(|| lanes.next(later)).collect();
        assert_eq!(rest.iter().filter(|job| job.attempt() == 1).count(), 5);
    }

    #[test]
    fn keys_that_hang_leave_places_for_others_and_have_their_turns() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        let keys: Vec<String> = (0..30).map(|key| key.to_string()).collect();
        lanes.take(keys.iter().zip(1..).map(|(key, seq)| queued(key, seq)).collect());
        for _ in &keys {
            let job = lanes.next(now).unwrap();
            lanes.failed(&job, Failed::Other, now);
        }
        // Each of them may be tried again, and hangs.
        let mut at = now + PAUSES.1;
        let mut busy: VecDeque<Job> = std::iter::from_fn(|| lanes.next(at)).take(KEYS).collect();
        assert_eq!(busy.len(), KEYS / 2);
        assert_eq!(lanes.wake_at(), None, "there is no place to wake up for");
        lanes.take(vec![queued("a", 31), queued("a", 32)]);
        for seq_of_it in [31, 32] {
            let job = lanes.next(at).unwrap();
            assert_eq!((seq(&job), job.attempt()), (seq_of_it, 1));
            lanes.done(&job, true);
        }
        let mut tried: HashSet<Arc<str>> = busy.iter().map(|job| Arc::clone(&job.key)).collect();
        for _ in busy.len()..keys.len() {
            at += PAUSES.1;
            let job = busy.pop_front().unwrap();
            lanes.failed(&job, Failed::Other, at);
            let next = lanes.next(at).unwrap();
            tried.insert(Arc::clone(&next.key));
            busy.push_back(next);
        }
        assert_eq!(tried.len(), keys.len(), "some wait for ever");
        for job in busy {
            lanes.done(&job, true);
        }
        assert_eq!(lanes.stuck, keys.len() - KEYS / 2);
        assert_eq!(
            std::iter::from_fn(|| lanes.next(at)).count(),
            KEYS / 2,
            "their places are free"
        );
    }
}
