//! Deletes that are to come later, inside this process.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use async_trait::async_trait;

use super::{Memory, Result, Store, millis};
use crate::entry::{Millis, Ticket};
use crate::store::deletes::{Delete, Deletes, Due};

/// The deletes of one queue.
#[derive(Default)]
pub(super) struct Queue {
    order: BTreeSet<(Millis, Ticket)>,
    keys: HashMap<Ticket, (Millis, String)>,
}

impl Queue {
    fn put(&mut self, ticket: Ticket, key: &str, at: Millis) {
        if let Some((before, _)) = self.keys.insert(ticket, (at, key.to_owned())) {
            self.order.remove(&(before, ticket));
        }
        self.order.insert((at, ticket));
    }

    fn take_out(&mut self, delete: &Delete) {
        // Not there when it was moved.
        if self.order.remove(&(delete.at, delete.ticket)) {
            self.keys.remove(&delete.ticket);
        }
    }
}

#[async_trait]
impl Deletes for Memory {
    async fn schedule(
        &self,
        queue: &str,
        ticket: Ticket,
        key: &str,
        after: Duration,
        _keep: Duration,
    ) -> Result<()> {
        let at = self.now() + millis(after);
        let mut queues = self.shared.queues.lock();
        queues.entry(queue.to_owned()).or_default().put(ticket, key, at);
        Ok(())
    }

    async fn due(&self, queue: &str, most: usize) -> Result<Due> {
        let now = self.now();
        let queues = self.shared.queues.lock();
        let Some(Queue { order, keys }) = queues.get(queue) else {
            return Ok(Due { deletes: Vec::new(), next: None });
        };
        let due = order.iter().take_while(|(at, _)| *at <= now).take(most);
        let named = due.filter_map(|(at, ticket)| {
            let (_, key) = keys.get(ticket)?;
            Some(Delete { ticket: *ticket, key: key.clone(), at: *at })
        });
        let deletes = named.collect();
        let next = order.iter().find(|(at, _)| *at > now);
        Ok(Due { deletes, next: next.map(|(at, _)| Duration::from_millis(at - now)) })
    }

    async fn done(&self, queue: &str, deletes: &[Delete]) -> Result<()> {
        if let Some(queue) = self.shared.queues.lock().get_mut(queue) {
            deletes.iter().for_each(|delete| queue.take_out(delete));
        }
        Ok(())
    }
}
