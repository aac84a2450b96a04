//! Looks at the store. A few at a time are sent one by one; many go together.
//!
//! # How it works
//!
//! Who looks while a few others do puts his key into a list. The first of a list starts a task, which lets those run who
//! are about to look as well, and then asks for the whole list in one command, for each key once. So thousands that
//! read one key in the same moment are one look, and a hundred that read a hundred keys are two commands and not a
//! hundred. Nobody waits for the answer of an earlier command before his own is sent.
//!
//! # What it promises
//!
//! Nobody gets what was looked for before he began: what had been invalidated by then he does not see. Who goes away
//! takes nothing from the others, because the task belongs to nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::cache::Inner;
use crate::store::{self, Seen};

/// Fewer than this at a time go alone: to arrange more costs more than it saves.
const FEW: usize = 4;

/// So many keys are in one command at most: a server does nothing else meanwhile.
const MOST: usize = 16;

#[derive(Debug)]
pub(crate) struct Looks {
    under_way: AtomicUsize,
    /// Those who go together next.
    together: Mutex<Vec<Waiting>>,
}

/// Somebody who wants to know.
#[derive(Debug)]
struct Waiting {
    name: Box<str>,
    tell: oneshot::Sender<Seen>,
}

impl Looks {
    pub(crate) fn new() -> Self {
        Self { under_way: AtomicUsize::new(0), together: Mutex::default() }
    }
}

impl<K, V> Inner<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// What the store has under a key, as of now or later.
    pub(crate) async fn look(self: &Arc<Self>, name: &str) -> store::Result<Seen> {
        let one = OneMore::of(&self.looks.under_way);
        if one.before < FEW {
            return self.look_alone(name).await;
        }
        // Nobody tells when the runtime ends.
        Ok(self.look_together(name).await.unwrap_or(Seen::Down))
    }

    fn look_together(self: &Arc<Self>, name: &str) -> oneshot::Receiver<Seen> {
        let (tell, told) = oneshot::channel();
        let is_first = {
            let mut together = self.looks.together.lock();
            together.push(Waiting { name: name.into(), tell });
            together.len() == 1
        };
        if is_first {
            let inner = Arc::clone(self);
            tokio::spawn(async move { inner.look_for_all().await });
        }
        told
    }

    /// Looks for those who go together next.
    async fn look_for_all(&self) {
        yield_now().await;
        let mut together = std::mem::take(&mut *self.looks.together.lock());
        together.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let mut keys: Vec<Vec<Waiting>> = Vec::with_capacity(together.len());
        for waiting in together {
            match keys.last_mut() {
                Some(same) if same[0].name == waiting.name => same.push(waiting),
                _ => keys.push(vec![waiting]),
            }
        }
        let mut keys = keys.into_iter();
        let parts = std::iter::from_fn(|| {
            let part: Vec<_> = keys.by_ref().take(MOST).collect();
            (!part.is_empty()).then_some(part)
        });
        join_all(parts.map(|part| self.look_for(part))).await;
    }

    /// Looks for some keys, with those who want each.
    async fn look_for(&self, keys: Vec<Vec<Waiting>>) {
        let names: Vec<&str> = keys.iter().map(|waiting| &*waiting[0].name).collect();
        let looked = timeout(self.settings.timeout, self.look_many(&names)).await;
        let looked = looked.unwrap_or(Ok(Vec::new())).unwrap_or_default();
        let mut looked = looked.into_iter();
        for waiting in keys {
            let seen = looked.next().unwrap_or(Seen::Down);
            for Waiting { tell, .. } in waiting {
                // Who went away does not hear it.
                let _ = tell.send(seen.clone());
            }
        }
    }
}

/// Counts as one of those under way.
struct OneMore<'a> {
    before: usize,
    all: &'a AtomicUsize,
}

impl<'a> OneMore<'a> {
    fn of(all: &'a AtomicUsize) -> Self {
        Self { before: all.fetch_add(1, Ordering::Relaxed), all }
    }
}

impl Drop for OneMore<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}
