//! Who in this process waits for what, and how the news reach them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
#[cfg(feature = "postgres")]
use tokio::sync::oneshot;

use super::WAITER_LEASE;
use super::dialect::{Message, hex};
use super::row::{ClientId, NameState};
use crate::backend::register::Register;
use crate::model::{News, Place};
use crate::owner::{self, RequestId};

/// The channel of all clients, for latches that open.
pub(super) const LATCHES: &str = "lockkeeper_latches";
/// So many ids fit into one message.
const IDS: usize = 200;

/// A name as the database has it.
pub(super) type Key = Arc<[u8]>;

pub(super) struct Hub {
    pub(super) me: ClientId,
    pub(super) requests: Register,
    /// Those who wait for a latch, by name.
    latches: Mutex<HashMap<Key, Vec<RequestId>>>,
    hearing: AtomicBool,
    /// Rings when that changes.
    pub(super) changed: Notify,
    /// Dropped with it.
    #[cfg(feature = "postgres")]
    presence: Mutex<Option<oneshot::Sender<()>>>,
}

impl Hub {
    /// Must be called inside a tokio runtime.
    pub(super) fn new() -> Self {
        Self {
            me: owner::random(),
            requests: Register::new(),
            latches: Mutex::default(),
            hearing: AtomicBool::new(false),
            changed: Notify::new(),
            #[cfg(feature = "postgres")]
            presence: Mutex::default(),
        }
    }

    /// Fails when this is dropped. For one at a time.
    #[cfg(feature = "postgres")]
    pub(super) fn when_gone(&self) -> oneshot::Receiver<()> {
        let (presence, gone) = oneshot::channel();
        *self.presence.lock() = Some(presence);
        gone
    }

    /// What the channel of a client is called.
    pub(super) fn channel(client: ClientId) -> String {
        format!("lockkeeper_{client:016x}")
    }

    /// Whether messages arrive; if not, whoever waits has to look.
    pub(super) fn hears(&self) -> bool {
        self.hearing.load(Ordering::Acquire)
    }

    /// How a waiter keeps its place: as long as this client listens, its connection says that it lives.
    pub(super) fn place(&self) -> Place {
        if self.hears() { Place::Present(WAITER_LEASE) } else { Place::Leased(WAITER_LEASE) }
    }

    /// Those other clients whose presence a step relies on, that begins with this state and has this
    /// to tell.
    pub(super) fn to_be_present(&self, before: &NameState, news: &News<ClientId>) -> Vec<ClientId> {
        let others = before.present().filter(|(client, _)| **client != self.me);
        let granted = others.filter(|(_, id)| news.granted.iter().any(|(_, other)| other == id));
        granted.map(|(client, _)| *client).collect()
    }

    #[cfg(feature = "postgres")]
    pub(super) fn set_hearing(&self, hearing: bool) {
        if self.hearing.swap(hearing, Ordering::AcqRel) != hearing {
            self.changed.notify_waiters();
        }
    }

    pub(super) fn await_latch(&self, key: &Key, id: RequestId) {
        self.latches.lock().entry(Arc::clone(key)).or_default().push(id);
    }

    pub(super) fn leave_latch(&self, key: &Key, id: RequestId) {
        let mut latches = self.latches.lock();
        if let Some(waiting) = latches.get_mut(key) {
            waiting.retain(|waiting| *waiting != id);
            if waiting.is_empty() {
                latches.remove(key);
            }
        }
    }

    /// Wakes those who wait for this latch.
    pub(super) fn latch_opened(&self, key: &[u8]) {
        let waiting = self.latches.lock().get(key).cloned().unwrap_or_default();
        waiting.into_iter().for_each(|id| self.requests.hear(id, None));
    }

    /// What a step has to tell to other clients.
    pub(super) fn messages(&self, key: &[u8], news: &News<ClientId>, opened: bool) -> Vec<Message> {
        let mut by_client: HashMap<ClientId, Vec<String>> = HashMap::new();
        for (client, id) in concerned(news).filter(|(client, _)| *client != self.me) {
            by_client.entry(client).or_default().push(id.to_string());
        }
        let mut messages: Vec<Message> = by_client
            .iter()
            .flat_map(|(client, ids)| {
                ids.chunks(IDS).map(|ids| (Self::channel(*client), ids.join(" ")))
            })
            .collect();
        if opened {
            messages.push((LATCHES.to_owned(), hex(key)));
        }
        messages
    }

    /// Tells those of this process, once the step is committed.
    pub(super) fn tell(&self, key: &[u8], news: &News<ClientId>, opened: bool) {
        for (_, id) in concerned(news).filter(|(client, _)| *client == self.me) {
            self.requests.hear(id, None);
        }
        if opened {
            self.latch_opened(key);
        }
    }
}

fn concerned(news: &News<ClientId>) -> impl Iterator<Item = (ClientId, RequestId)> {
    let lost = news.lost.iter().map(|(client, id, _)| (*client, *id));
    news.granted.iter().chain(&news.doubted).copied().chain(lost)
}
