//! The requests of one client that want to hear about themselves.
//!
//! A store tells a client "something happened to this request" and nothing more; the request then
//! asks the store again. A message that is lost costs a re-check, never a wrong answer.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::owner::RequestId;

/// A hold that can look whether it is still ours.
#[async_trait]
pub(super) trait Check: Send + Sync + 'static {
    /// Asks the store, and declares the loss if there is one.
    async fn check(&self);
}

enum Interested {
    Waiter(Arc<News>),
    Holder(Weak<dyn Check>),
}

/// What a request that waits hears.
#[derive(Default)]
pub(super) struct News {
    bell: Notify,
    word: Mutex<Option<String>>,
}

impl News {
    /// Waits for the next piece of news. Cancel safe.
    pub(super) async fn heard(&self) {
        self.bell.notified().await;
    }

    /// The last word that was said, once.
    #[cfg(any(feature = "etcd", feature = "redis"))]
    pub(super) fn word(&self) -> Option<String> {
        self.word.lock().take()
    }
}

pub(super) struct Register {
    runtime: Handle,
    requests: Mutex<HashMap<RequestId, Interested>>,
}

impl Register {
    /// Must be called inside a tokio runtime, where holds are then checked.
    pub(super) fn new() -> Self {
        Self { runtime: Handle::current(), requests: Mutex::default() }
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// A request that wants to be woken up.
    pub(super) fn expect(&self, id: RequestId) -> Arc<News> {
        let news = Arc::<News>::default();
        self.requests.lock().insert(id, Interested::Waiter(Arc::clone(&news)));
        news
    }

    /// A request that is granted and wants to hear if it is lost.
    pub(super) fn hold(&self, id: RequestId, hold: &Arc<impl Check>) {
        let hold: Arc<dyn Check> = Arc::clone(hold) as _;
        self.requests.lock().insert(id, Interested::Holder(Arc::downgrade(&hold)));
    }

    pub(super) fn forget(&self, id: RequestId) {
        self.requests.lock().remove(&id);
    }

    /// Something happened to a request; where the store says what, in a word. A later word takes the
    /// place of an earlier one.
    pub(super) fn hear(&self, id: RequestId, word: Option<&str>) {
        let hold = match self.requests.lock().get(&id) {
            Some(Interested::Waiter(news)) => {
                *news.word.lock() = word.map(str::to_owned);
                return news.bell.notify_one();
            }
            Some(Interested::Holder(hold)) => hold.upgrade(),
            None => None,
        };
        // Not under the lock: a hold that is dropped here takes it.
        if let Some(hold) = hold {
            self.check(hold);
        }
    }

    /// Looks in the background whether a hold is still ours.
    pub(super) fn check(&self, hold: Arc<dyn Check>) {
        self.runtime.spawn(async move { hold.check().await });
    }

    /// Something happened, nobody knows to whom: everybody who waits asks again.
    pub(super) fn wake_all(&self) {
        for interested in self.requests.lock().values() {
            if let Interested::Waiter(news) = interested {
                news.bell.notify_one();
            }
        }
    }

    /// Messages were missed: whoever waits asks again, and every hold looks whether it is still ours.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(super) fn missed(&self) {
        self.wake_all();
        self.check_all();
    }

    /// Every hold looks whether it is still ours.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
    pub(super) fn check_all(&self) {
        let holds: Vec<_> = self
            .requests
            .lock()
            .values()
            .filter_map(|interested| match interested {
                Interested::Holder(hold) => hold.upgrade(),
                Interested::Waiter(_) => None,
            })
            .collect();
        holds.into_iter().for_each(|hold| self.check(hold));
    }

    /// Whether anything is held.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) fn holds_anything(&self) -> bool {
        let requests = self.requests.lock();
        requests.values().any(|interested| matches!(interested, Interested::Holder(_)))
    }
}
