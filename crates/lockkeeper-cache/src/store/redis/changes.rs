//! Changes that are to be written to the database later, in a stream: its ids are their order.

use std::str::from_utf8;
use std::time::Duration;

use async_trait::async_trait;
use redis::Value as Reply;

use super::{APPEND, APPLIED, LEAD, RESIGN, Redis, Result, failed, millis, strange, text};
use crate::database::Order;
use crate::entry::{Entry, Ticket, Value};
use crate::store::changes::{Change, Changes};

/// What `XRANGE` answers: ids, and what is under them.
pub(super) type Listed = Vec<(String, Vec<Vec<u8>>)>;

pub(super) fn order(id: &str) -> Option<Order> {
    let (ms, seq) = id.split_once('-')?;
    Some(Order::new(ms.parse().ok()?, seq.parse().ok()?))
}

pub(super) fn id(order: Order) -> String {
    format!("{}-{}", order.ms(), order.seq())
}

fn change(id: &str, fields: &[Vec<u8>]) -> Option<Change> {
    let [_, key, _, value] = fields else { return None };
    let value = match Entry::decode(value) {
        Some(Entry::Value(value)) => Some(value),
        _ => None,
    };
    Some(Change { order: order(id)?, key: from_utf8(key).ok()?.to_owned(), value })
}

impl Redis {
    pub(super) async fn list(
        &self,
        log: &str,
        command: &str,
        ends: [&str; 2],
        most: usize,
    ) -> Result<Listed> {
        let (log, mut list) = (self.key(log), redis::cmd(command));
        list.arg(&log).arg(&ends[..]).arg("COUNT").arg(most);
        self.servers.keyspace.query(&log, &list).await.map_err(failed)
    }

    /// Where the right to apply a log is.
    fn right(&self, log: &str) -> String {
        format!("{}!right", self.key(log))
    }
}

#[async_trait]
impl Changes for Redis {
    async fn append(
        &self,
        log: &str,
        key: &str,
        value: &Value,
        most: usize,
    ) -> Result<Option<Order>> {
        let (entry, most) = (Entry::Value(value.clone()).encode(), most.to_string());
        let keys = [self.key(log), self.key(key)];
        let keys = keys.each_ref().map(|key| &**key);
        let reply = self.run(&APPEND, &keys, &[most.as_bytes(), key.as_bytes(), &entry]).await?;
        match &reply[..] {
            [_] => Ok(None),
            [_, Reply::BulkString(id)] => {
                let order = from_utf8(id).ok().and_then(order);
                order.map(Some).ok_or_else(|| strange(&reply))
            }
            _ => Err(strange(&reply)),
        }
    }

    async fn first(&self, log: &str, most: usize) -> Result<Vec<Change>> {
        let listed = self.list(log, "XRANGE", ["-", "+"], most).await?;
        let changes = listed.iter().map(|(id, fields)| change(id, fields));
        // What others put there cannot be applied, and must not be passed over: it may be of a later program.
        changes.collect::<Option<_>>().ok_or_else(|| strange(&[]))
    }

    async fn last(&self, log: &str) -> Result<Option<Order>> {
        let listed = self.list(log, "XREVRANGE", ["+", "-"], 1).await?;
        Ok(listed.first().and_then(|(id, _)| order(id)))
    }

    async fn pending(&self, log: &str) -> Result<usize> {
        let (log, mut count) = (self.key(log), redis::cmd("XLEN"));
        self.servers.keyspace.query(&log, count.arg(&log)).await.map_err(failed)
    }

    async fn applied(&self, log: &str, change: &Change, version: u64, ttl: Duration) -> Result<()> {
        let keys = [self.key(log), self.key(&change.key)];
        let keys = keys.each_ref().map(|key| &**key);
        let (id, ttl) = (id(change.order), text(millis(ttl)));
        let (fill, version) = (change.fill().to_bytes(), version.to_be_bytes());
        self.run(&APPLIED, &keys, &[id.as_bytes(), &fill, &version, &ttl]).await.map(|_| ())
    }

    async fn lead(&self, log: &str, ticket: Ticket, time: Duration) -> Result<bool> {
        let (ticket, time) = (ticket.to_bytes(), text(millis(time)));
        let reply = self.run(&LEAD, &[&self.right(log)], &[&ticket, &time]).await?;
        Ok(matches!(reply[..], [_, Reply::Int(1)]))
    }

    async fn resign(&self, log: &str, ticket: Ticket) -> Result<()> {
        self.run(&RESIGN, &[&self.right(log)], &[&ticket.to_bytes()]).await.map(|_| ())
    }
}
