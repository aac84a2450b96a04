//! Invalidations that the store failed at, and keys that the filter failed to take in, to be made up for.

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

/// To whom something is owed. Each has its own: one may answer while the other does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Creditor {
    Store,
    Filter,
}

/// What is owed to the store, or to the filter.
///
/// More keys than can be remembered are not forgotten one by one, because nobody would know which; instead everything
/// is owed. At the store the whole namespace is then invalidated, which costs loads and is never wrong. What a filter
/// lacks only who loads it anew can tell it, and until then it is not asked.
#[derive(Debug)]
pub(crate) struct Debt {
    to: Creditor,
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

/// What is owed for one key: both, if both were asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owed {
    /// An invalidation without a version.
    plain: bool,
    /// One with this.
    floor: u64,
    order: u64,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
enum Bill {
    All(u64),
    Keys(Vec<(String, Owed)>),
}

impl Debt {
    pub(crate) fn new(to: Creditor, most: usize) -> Self {
        Self { to, most, any: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Whether what it has under a key is not to be believed.
    pub(crate) fn has(&self, key: &str) -> bool {
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

    fn owe_all(&self) {
        let mut state = self.state.lock();
        state.order += 1;
        state.all = Some(state.order);
        state.keys = IndexMap::default();
        self.any.store(true, Ordering::SeqCst);
    }

    /// That all is owed, if it is: for who makes up for it.
    pub(crate) fn all(&self) -> Option<u64> {
        self.state.lock().all
    }

    /// All of that is made up for, unless more has failed since.
    pub(crate) fn forgive(&self, all: Option<u64>) {
        if let Some(order) = all {
            self.paid(Bill::All(order));
        }
    }

    /// What to do next, up to so many keys. With nothing to do, nobody is paying any more.
    fn bill(&self, most: usize) -> Option<Bill> {
        let mut state = self.state.lock();
        if let Some(order) = state.all {
            state.paying = self.to == Creditor::Store;
            return state.paying.then_some(Bill::All(order));
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
        self.pay_soon(Creditor::Store);
    }

    /// The same for keys that were written, and that the filter has failed to take in. From now on it is not asked about them.
    pub(crate) fn owe_filter(self: &Arc<Self>, keys: &[String]) {
        keys.iter().for_each(|_| self.stats.debts.add());
        if self.unfiltered.owe(keys, 0) {
            self.stats.debt_overflows.add();
            tracing::warn!(
                "the filter lacks too many keys: it is not asked until it is loaded anew"
            );
        }
        self.pay_soon(Creditor::Filter);
    }

    /// The same for a whole namespace.
    pub(crate) fn owe_all(self: &Arc<Self>) {
        self.debt.owe_all();
        self.first_forget_all();
        self.pay_soon(Creditor::Store);
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

    fn pay_soon(self: &Arc<Self>, to: Creditor) {
        if !std::mem::replace(&mut self.debt_to(to).state.lock().paying, true) {
            tokio::spawn(pay(Paying { inner: Arc::downgrade(self), to, armed: true }));
        }
    }

    async fn pay_one(&self, to: Creditor, bill: &Bill) -> store::Result<()> {
        match bill {
            Bill::Keys(keys) if to == Creditor::Filter => {
                let names: Vec<String> = keys.iter().map(|(key, _)| key.clone()).collect();
                self.insert(&names).await?;
            }
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

impl<K, V> Inner<K, V> {
    fn debt_to(&self, to: Creditor) -> &Debt {
        match to {
            Creditor::Store => &self.debt,
            Creditor::Filter => &self.unfiltered,
        }
    }
}

/// Somebody who makes up for what is owed; when the runtime ends, the next one does.
struct Paying<K, V> {
    inner: Weak<Inner<K, V>>,
    to: Creditor,
    armed: bool,
}

impl<K, V> Drop for Paying<K, V> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade().filter(|_| self.armed) {
            inner.debt_to(self.to).state.lock().paying = false;
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
        let debt = inner.debt_to(paying.to);
        let Some(bill) = debt.bill(most) else {
            paying.armed = false;
            return;
        };
        match inner.pay_one(paying.to, &bill).await {
            Ok(()) => {
                let paid = debt.paid(bill);
                (0..paid).for_each(|_| inner.stats.debts_paid.add());
                (pause, most) = (Duration::ZERO, (most * 2).min(PAGE));
            }
            Err(error) => {
                tracing::debug!(%error, to = ?paying.to, "what is owed has failed again");
                debt.unpaid(bill);
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
    fn all_that_was_asked_for_a_key_is_owed() {
        let debt = Debt::new(Creditor::Store, 3);
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
        let debt = Debt::new(Creditor::Store, 9);
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
        let debt = Debt::new(Creditor::Store, 2);
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

    #[test]
    fn more_than_can_be_remembered_of_a_filter_is_for_who_loads_it() {
        let debt = Debt::new(Creditor::Filter, 1);
        assert!(debt.owe(&keys(&["a", "b"]), 0));
        assert_eq!((debt.has("anything"), debt.len(), debt.bill(1)), (true, None, None));
        let before = debt.all();
        debt.owe(&keys(&["c"]), 0);
        debt.forgive(before);
        assert!(debt.has("c"), "it may have been missed");
        debt.forgive(debt.all());
        assert_eq!((debt.has("c"), debt.len()), (false, Some(0)));
        debt.forgive(None);
    }
}
