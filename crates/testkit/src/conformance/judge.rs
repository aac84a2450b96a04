//! The judge of a crowd: sees who is inside without asking the lock.

use std::sync::atomic::{AtomicUsize, Ordering};

use lockkeeper::Guard;

use crate::checker::{self, Verdict};
use crate::history::History;
use crate::register::Register;

/// Counts those inside, keeps the history, and guards a register by tokens.
#[derive(Debug, Default)]
pub struct Judge {
    inside: AtomicUsize,
    most: AtomicUsize,
    /// What happened.
    pub history: History,
    /// What the lock protects.
    pub register: Register,
}

impl Judge {
    /// One visit: enters, writes, leaves, while others could come in if the lock let them.
    pub async fn visit(&self, who: u32, guard: &Guard) {
        let token = guard.token().get();
        self.history.has(who, token);
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        // Refusals are kept by the register and counted at the end.
        let _ = self.register.write(token, who.to_string());
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.history.gives(who);
    }

    /// The most that were ever inside at once.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    /// Nobody ever shared, by every measure.
    ///
    /// # Panics
    ///
    /// When somebody did.
    pub fn all_alone(&self, visits: usize) {
        let events = self.history.events();
        accepted(checker::mutual_exclusion(&events));
        accepted(checker::tokens_grow(&events));
        assert_eq!(self.most(), 1, "by the counter");
        assert_eq!(self.register.refusals(), vec![], "by the register");
        assert_eq!(events.len(), 2 * visits);
    }
}

/// The checker found nothing.
///
/// # Panics
///
/// With the violation.
pub fn accepted(verdict: Verdict) {
    if let Err(violation) = verdict {
        panic!("at event {}: {}", violation.at, violation.what);
    }
}
