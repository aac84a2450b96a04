//! Invalidations that the store failed at, to be made up for.

use std::hash::RandomState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::cache::Inner;
use crate::error::Result;
use crate::store::{self, Cursor};

/// So many keys are remembered. What is more is "all".
pub(crate) const MOST: usize = 100_000;

/// Between two attempts: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// So many keys are made up for at once, when all goes well.
const PAGE: usize = 500;

/// What is owed to the store.
///
/// More keys than can be remembered are not forgotten one by one, because nobody would know which; instead everything
/// is owed: the whole namespace is invalidated, which costs loads and is never wrong.
#[derive(Debug)]
pub(crate) struct Debt {
    most: usize,
    /// Whether anything is owed, for reads, which ask often.
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    keys: IndexMap<String, Owed, RandomState>,
    /// Everything, since the last of these.
    all: Option<u64>,
    /// Counts what fails.
    order: u64,
    /// Who is next of the keys.
    next: usize,
    /// Somebody makes up for it.
    paying: bool,
}

/// What is owed for one key: both, if both were asked for. In any case the filter is to know it; that may be all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owed {
    /// An invalidation without a version.
    plain: bool,
    /// One with this.
    floor: u64,
    order: u64,
}

impl Owed {
    fn is_stale(self) -> bool {
        self.plain || self.floor > 0
    }
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
enum Bill {
    All(u64),
    Keys(Vec<(String, Owed)>),
}

impl Debt {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, any: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Whether what the store has under a key is not to be believed.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.any.load(Ordering::SeqCst) && {
            let state = self.state.lock();
            state.all.is_some() || state.keys.get(key).is_some_and(|owed| owed.is_stale())
        }
    }

    /// Whether the filter may not know a key that was written.
    pub(crate) fn is_unfiltered(&self, key: &str) -> bool {
        self.any.load(Ordering::SeqCst) && {
            let state = self.state.lock();
            state.all.is_some() || state.keys.contains_key(key)
        }
    }

    /// How many keys; `None` for all.
    pub(crate) fn len(&self) -> Option<usize> {
        let state = self.state.lock();
        state.all.is_none().then_some(state.keys.len())
    }

    /// An invalidation of these has failed. Whether it is all now, and was not before.
    fn owe(&self, keys: &[String], floor: u64) -> bool {
        let mut state = self.state.lock();
        state.order += 1;
        let order = state.order;
        self.any.store(true, Ordering::SeqCst);
        if state.all.is_some() {
            state.all = Some(order);
            return false;
        }
        for key in keys {
            let owed = state.keys.entry(key.clone()).or_default();
            *owed = Owed { plain: owed.plain || floor == 0, floor: owed.floor.max(floor), order };
        }
        let all = state.keys.len() > self.most;
        if all {
            state.all = Some(order);
            state.keys = IndexMap::default();
        }
        all
    }

    /// The filter has failed to take these in. Those that cannot be remembered are not.
    fn owe_filter(&self, keys: &[String]) {
        let mut state = self.state.lock();
        if state.all.is_some() {
            return;
        }
        state.order += 1;
        let order = state.order;
        for key in keys {
            if state.keys.len() >= self.most && !state.keys.contains_key(key) {
                continue;
            }
            state.keys.entry(key.clone()).or_default().order = order;
            self.any.store(true, Ordering::SeqCst);
        }
    }

    fn owe_all(&self) {
        let mut state = self.state.lock();
        state.order += 1;
        state.all = Some(state.order);
        state.keys = IndexMap::default();
        self.any.store(true, Ordering::SeqCst);
    }

    /// What to do next, up to so many keys. With nothing to do, nobody is paying any more.
    fn bill(&self, most: usize) -> Option<Bill> {
        let mut state = self.state.lock();
        if let Some(order) = state.all {
            return Some(Bill::All(order));
        }
        let (next, count) = (state.next, state.keys.len());
        let at = (0..most.min(count)).filter_map(|at| state.keys.get_index((next + at) % count));
        let keys: Vec<_> = at.map(|(key, owed)| (key.clone(), *owed)).collect();
        state.paying = !keys.is_empty();
        state.paying.then_some(Bill::Keys(keys))
    }

    /// That is done. How many keys are no longer owed.
    fn paid(&self, bill: Bill) -> u64 {
        let mut state = self.state.lock();
        let mut paid = 0;
        match bill {
            Bill::All(order) if state.all == Some(order) => state.all = None,
            // Something failed meanwhile, that may have been missed.
            Bill::All(_) => {}
            Bill::Keys(keys) => {
                for (key, owed) in keys {
                    if state.keys.get(&key) == Some(&owed) {
                        state.keys.swap_remove(&key);
                        paid += 1;
                    }
                }
            }
        }
        self.any.store(state.all.is_some() || !state.keys.is_empty(), Ordering::SeqCst);
        paid
    }

    /// That has failed once more: others first, because some may never succeed.
    fn unpaid(&self, bill: Bill) {
        if let Bill::Keys(keys) = bill {
            let mut state = self.state.lock();
            state.next = state.next.wrapping_add(keys.len()) % state.keys.len().max(1);
        }
    }
}

impl<K, V> Inner<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Remembers an invalidation that has failed, and sees to it that it is made up for.
    pub(crate) fn owe(self: &Arc<Self>, keys: &[String], floor: u64) {
        keys.iter().for_each(|_| self.stats.debts.add());
        if self.debt.owe(keys, floor) {
            self.stats.debt_overflows.add();
            self.first_forget_all();
            tracing::warn!("too many invalidations have failed: all keys will be invalidated");
        }
        // From now on the store is not asked about them; what was found there before is not to be served.
        self.first_forget(keys.iter().map(String::as_str));
        self.pay_soon();
    }

    /// The same for what only the filter has failed at.
    pub(crate) fn owe_filter(self: &Arc<Self>, keys: &[String]) {
        keys.iter().for_each(|_| self.stats.debts.add());
        self.debt.owe_filter(keys);
        self.pay_soon();
    }

    /// The same for a whole namespace.
    pub(crate) fn owe_all(self: &Arc<Self>) {
        self.debt.owe_all();
        self.first_forget_all();
        self.pay_soon();
    }

    /// Does something that changes these at the store; if it fails, an invalidation is owed.
    pub(crate) async fn changing_or_owe<T>(
        self: &Arc<Self>,
        names: &[String],
        floor: u64,
        doing: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let keys: Vec<&str> = names.iter().map(String::as_str).collect();
        let done = self.changing(&keys, doing).await;
        done.inspect_err(|_| self.owe(names, floor))
    }

    fn pay_soon(self: &Arc<Self>) {
        if !std::mem::replace(&mut self.debt.state.lock().paying, true) {
            tokio::spawn(pay(Paying { inner: Arc::downgrade(self), armed: true }));
        }
    }

    async fn pay_one(&self, bill: &Bill) -> store::Result<()> {
        match bill {
            Bill::All(_) => {
                let prefix = format!("{}:", self.settings.namespace);
                let mut from = Some(Cursor::default());
                while let Some(at) = from {
                    let page = self.store.list(&prefix, at).await?;
                    let keys: Vec<&str> = page.keys.iter().map(String::as_str).collect();
                    if !keys.is_empty() {
                        self.store.invalidate(&keys, self.how(0)).await?;
                    }
                    from = page.next;
                }
            }
            Bill::Keys(keys) => {
                let names: Vec<String> = keys.iter().map(|(key, _)| key.clone()).collect();
                self.insert(&names).await?;
                let plain = keys.iter().filter(|(_, owed)| owed.plain);
                let plain: Vec<&str> = plain.map(|(key, _)| key.as_str()).collect();
                if !plain.is_empty() {
                    self.store.invalidate(&plain, self.how(0)).await?;
                }
                let mut floors = IndexMap::<u64, Vec<&str>>::new();
                for (key, owed) in keys.iter().filter(|(_, owed)| owed.floor > 0) {
                    floors.entry(owed.floor).or_default().push(key);
                }
                for (floor, keys) in floors {
                    self.store.invalidate(&keys, self.how(floor)).await?;
                }
            }
        }
        Ok(())
    }
}

/// Somebody who makes up for what is owed; when the runtime ends, the next one does.
struct Paying<K, V> {
    inner: Weak<Inner<K, V>>,
    armed: bool,
}

impl<K, V> Drop for Paying<K, V> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade().filter(|_| self.armed) {
            inner.debt.state.lock().paying = false;
        }
    }
}

async fn pay<K, V>(mut paying: Paying<K, V>)
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let (mut pause, mut most) = (PAUSES.0, PAGE);
    loop {
        sleep(pause).await;
        // As long as the cache is used by anybody.
        let Some(inner) = paying.inner.upgrade() else { return };
        let Some(bill) = inner.debt.bill(most) else {
            paying.armed = false;
            return;
        };
        match inner.pay_one(&bill).await {
            Ok(()) => {
                let paid = inner.debt.paid(bill);
                (0..paid).for_each(|_| inner.stats.debts_paid.add());
                (pause, most) = (Duration::ZERO, (most * 2).min(PAGE));
            }
            Err(error) => {
                tracing::debug!(%error, "an invalidation has failed again");
                inner.debt.unpaid(bill);
                // Perhaps it is about one of them.
                (pause, most) = ((pause * 2).clamp(PAUSES.0, PAUSES.1), (most / 2).max(1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(keys: &[&str]) -> Vec<String> {
        keys.iter().map(ToString::to_string).collect()
    }

    fn owed(bill: Option<&Bill>) -> Vec<(&str, bool, u64)> {
        let Some(Bill::Keys(keys)) = bill else { panic!("{bill:?}") };
        keys.iter().map(|(key, owed)| (key.as_str(), owed.plain, owed.floor)).collect()
    }

    #[test]
    fn what_only_the_filter_does_not_know_is_believed() {
        let debt = Debt::new(2);
        debt.owe_filter(&keys(&["a"]));
        assert!(debt.is_unfiltered("a") && !debt.has("a"));
        assert!(!debt.owe(&keys(&["b"]), 5));
        debt.owe_filter(&keys(&["b", "c"]));
        assert!(debt.has("b") && !debt.is_unfiltered("c"), "more than can be remembered");
        let bill = debt.bill(9);
        assert_eq!(owed(bill.as_ref()), [("a", false, 0), ("b", false, 5)]);
        assert_eq!(debt.paid(bill.unwrap()), 2);
        assert!(!debt.is_unfiltered("a"));
    }

    #[test]
    fn all_that_was_asked_for_a_key_is_owed() {
        let debt = Debt::new(3);
        assert!(!debt.has("a"));
        assert!(!debt.owe(&keys(&["a", "b"]), 5));
        assert!(!debt.owe(&keys(&["a"]), 0));
        assert!(!debt.owe(&keys(&["a"]), 3));
        let bill = debt.bill(9);
        assert_eq!(owed(bill.as_ref()), [("a", true, 5), ("b", false, 5)]);
        // It fails once more for one of them while they are made up for.
        debt.owe(&keys(&["b"]), 5);
        assert_eq!(debt.paid(bill.unwrap()), 1);
        assert_eq!((debt.has("a"), debt.has("b"), debt.len()), (false, true, Some(1)));
        let bill = debt.bill(9).unwrap();
        assert_eq!((debt.paid(bill), debt.bill(9), debt.has("b")), (1, None, false));
    }

    #[test]
    fn what_fails_again_comes_after_the_others() {
        let debt = Debt::new(9);
        debt.owe(&keys(&["a", "b", "c"]), 0);
        let mut seen = Vec::new();
        for _ in 0..3 {
            let bill = debt.bill(1);
            seen.push(owed(bill.as_ref())[0].0.to_owned());
            debt.unpaid(bill.unwrap());
        }
        seen.sort();
        assert_eq!((seen, debt.len()), (keys(&["a", "b", "c"]), Some(3)));
    }

    #[test]
    fn more_than_can_be_remembered_is_all() {
        let debt = Debt::new(2);
        assert!(!debt.owe(&keys(&["a", "b"]), 0));
        assert!(debt.owe(&keys(&["c"]), 0));
        assert_eq!((debt.has("anything"), debt.len()), (true, None));
        let bill = debt.bill(1).unwrap();
        assert!(!debt.owe(&keys(&["d"]), 0), "not once more");
        debt.paid(bill);
        assert!(debt.has("d"), "it may have been missed");
        debt.paid(debt.bill(1).unwrap());
        assert_eq!((debt.has("d"), debt.len(), debt.bill(1)), (false, Some(0), None));
    }
}
