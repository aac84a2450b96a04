//! The keeper: one task per [`Locks`](crate::Locks) that renews every lease and declares each loss.
//!
//! One ordered set of due times for all leases; one alarm on the clock that counts suspend. A lease
//! whose guard is gone is taken out at once, so a renewal can never begin after a release, and one
//! that is already under way finds nothing of its own at the store.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::backend::Hold;
use crate::clock::{Alarm, Instant};
use crate::lease::{Lease, Terms};
use crate::loss::{Cause, Loss};
use crate::undo::Count;

/// Between two tries to get a timer.
const ALARM_PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Keeper {
    runtime: Handle,
    book: Mutex<Book>,
    /// Rung when the first due time changes, when a lease goes, and when the keeper ends.
    bell: Arc<Notify>,
    emptied: Notify,
    /// So many holds are on their way back to the store.
    leaving: AtomicUsize,
    /// So many requests wait for a lock.
    pub(crate) waiting: Count,
    /// Set when no lock is granted any more.
    pub(crate) closing: Loss,
}

#[derive(Default)]
struct Book {
    next_number: u64,
    leases: BTreeMap<u64, Entry>,
    due: BTreeSet<(Instant, u64)>,
    running: bool,
}

struct Entry {
    lease: Weak<Lease>,
    due: Instant,
}

impl Keeper {
    pub(crate) fn new(runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            book: Mutex::default(),
            bell: Arc::new(Notify::new()),
            emptied: Notify::new(),
            leaving: AtomicUsize::new(0),
            waiting: Count::new(),
            closing: Loss::new(),
        })
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Takes a hold into care.
    pub(crate) fn adopt(self: &Arc<Self>, hold: Arc<dyn Hold>, terms: Terms) -> Arc<Lease> {
        let mut book = self.book.lock();
        book.next_number += 1;
        let number = book.next_number;
        let lease = Arc::new(Lease::new(hold, terms, Arc::clone(self), number));
        let due = lease.due();
        book.leases.insert(number, Entry { lease: Arc::downgrade(&lease), due });
        let start = due != Instant::NEVER && self.schedule(&mut book, due, number);
        drop(book);
        self.start(start);
        if self.closing.cause().is_some() {
            lease.hold().loss().declare(Cause::ShutDown);
        }
        lease
    }

    /// Whether the task is to be started.
    fn schedule(&self, book: &mut Book, due: Instant, number: u64) -> bool {
        let first = book.due.first().is_none_or(|(first, _)| due < *first);
        book.due.insert((due, number));
        if book.running && first {
            self.bell.notify_one();
        }
        !std::mem::replace(&mut book.running, true)
    }

    /// Not under the lock of the book: where the runtime is gone, the task ends here and now.
    fn start(self: &Arc<Self>, start: bool) {
        if start {
            let on_duty = OnDuty(Arc::downgrade(self));
            self.runtime.spawn(keep(on_duty, Arc::clone(&self.bell)));
        }
    }

    /// Looks at a lease's due time again.
    pub(crate) fn reschedule(self: &Arc<Self>, lease: &Lease) {
        let mut book = self.book.lock();
        let number = lease.number();
        let Some(entry) = book.leases.get_mut(&number) else { return };
        let due = lease.due();
        let before = std::mem::replace(&mut entry.due, due);
        book.due.remove(&(before, number));
        let start = due != Instant::NEVER && self.schedule(&mut book, due, number);
        drop(book);
        self.start(start);
    }

    /// Lets a lease go.
    pub(crate) fn dismiss(&self, lease: &Lease) {
        let mut book = self.book.lock();
        if let Some(entry) = book.leases.remove(&lease.number())
            && entry.due != Instant::NEVER
        {
            book.due.remove(&(entry.due, lease.number()));
        }
        drop(book);
        self.emptied();
    }

    /// A hold is on its way back to the store until this is dropped.
    pub(crate) fn leaving(self: &Arc<Self>) -> Leaving {
        self.leaving.fetch_add(1, Ordering::SeqCst);
        Leaving(Arc::clone(self))
    }

    /// How many are on their way back to the store.
    pub(crate) fn still_leaving(&self) -> usize {
        self.leaving.load(Ordering::SeqCst)
    }

    /// Tells those who wait for it, should nothing be left.
    fn emptied(&self) {
        if self.closing.cause().is_some() {
            self.emptied.notify_waiters();
        }
    }

    /// Every lease in care.
    pub(crate) fn leases(&self) -> Vec<Arc<Lease>> {
        self.book.lock().leases.values().filter_map(|entry| entry.lease.upgrade()).collect()
    }

    /// Waits until no lease is in care and every one that was is back at the store.
    pub(crate) async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.book.lock().leases.is_empty() && self.still_leaving() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Visits what is due; the leases to renew, and when to look again.
    fn visit(self: &Arc<Self>) -> (Vec<Arc<Lease>>, Instant) {
        let mut renew = Vec::new();
        loop {
            let now = Instant::now();
            let lease = {
                let mut book = self.book.lock();
                match book.due.first().copied() {
                    Some((due, number)) if due <= now => {
                        book.due.remove(&(due, number));
                        let Some(entry) = book.leases.get_mut(&number) else { continue };
                        entry.due = Instant::NEVER;
                        entry.lease.upgrade()
                    }
                    Some((due, _)) => return (renew, due),
                    None => return (renew, Instant::NEVER),
                }
            };
            let Some(lease) = lease else { continue };
            let due = lease.visit(now);
            self.reschedule(&lease);
            if due {
                renew.push(lease);
            }
        }
    }
}

/// See [`Keeper::leaving`].
pub(crate) struct Leaving(Arc<Keeper>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leaving.fetch_sub(1, Ordering::SeqCst);
        self.0.emptied();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.bell.notify_one();
    }
}

/// However the keeper's task ends, with its runtime or by a panic: nothing is renewed or watched any
/// more, so everything that has a lease is lost.
struct OnDuty(Weak<Keeper>);

impl OnDuty {
    fn give_up(&self) {
        let Some(keeper) = self.0.upgrade() else { return };
        for lease in keeper.leases() {
            if lease.due() != Instant::NEVER {
                lease.hold().loss().declare(Cause::Expired);
            }
        }
    }
}

impl Drop for OnDuty {
    fn drop(&mut self) {
        if let Some(keeper) = self.0.upgrade() {
            keeper.book.lock().running = false;
        }
        self.give_up();
    }
}

/// The keeper's task. Holds the keeper only while it works, so that it ends with the last user.
async fn keep(on_duty: OnDuty, bell: Arc<Notify>) {
    let keeper = &on_duty.0;
    let alarm = loop {
        match Alarm::new() {
            Ok(alarm) => break alarm,
            Err(error) => {
                // Without an alarm nothing can be promised.
                tracing::error!(%error, "no timer to be had; every lease is given up");
                on_duty.give_up();
                tokio::time::sleep(ALARM_PAUSE).await;
            }
        }
    };
    let mut renewals = FuturesUnordered::new();
    loop {
        let Some(present) = keeper.upgrade() else { return };
        let (renew, next) = present.visit();
        renewals.extend(renew.into_iter().map(Lease::renew_hosted));
        drop(present);
        tokio::select! {
            Some(lease) = renewals.next(), if !renewals.is_empty() => {
                if let Some(present) = keeper.upgrade() {
                    present.reschedule(&lease);
                }
            }
            rang = alarm.rings_at(next) => {
                if let Err(error) = rang {
                    tracing::error!(%error, "the timer failed");
                }
            }
            () = bell.notified() => {}
        }
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}
