//! Looking at an etcd cluster, and forcing it.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::client::{is_lease_gone, may_pass};
use super::layout::{Keys, lease, name_of};
use super::proto::etcdserverpb as pb;
use super::queue::{self, Entry, number, token};
use super::steps::{self, Answers};
use super::{Etcd, RETRY};
use crate::backend::{Admin, Eviction, Holding, Status};
use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner::{self, Owner, RequestId};

/// So many keys are read at a time.
const PAGE: i64 = 1000;
/// So many names are looked at at the same time.
const AT_ONCE: usize = 16;
/// So many holders are evicted in one step: a transaction has at most 128 parts.
const EVICTED_AT_ONCE: usize = 40;
/// How long what an eviction of nobody wrote is kept.
const RAISED: Duration = Duration::from_secs(60);
/// How often an eviction begins again because something changed meanwhile.
const TRIES: u32 = 50;

#[async_trait]
impl Admin for Etcd {
    /// Takes time in proportion to the number of keys under the prefix, in small steps.
    async fn list(&self) -> Result<Vec<Status>> {
        let mut names = BTreeSet::new();
        let mut key = self.prefix.clone().into_bytes();
        let range_end = end_of(&self.prefix);
        if key.is_empty() {
            key = vec![0];
        }
        loop {
            let (limit, range_end) = (PAGE, range_end.clone());
            let page =
                pb::RangeRequest { key, range_end, limit, keys_only: true, ..Default::default() };
            let page = self.server.client.range(page).await?;
            names.extend(page.kvs.iter().filter_map(|found| name_of(&self.prefix, &found.key)));
            let last = page.kvs.last().filter(|_| page.more).map(|last| last.key.clone());
            let Some(mut next) = last else { break };
            next.push(0);
            key = next;
        }
        let shown = stream::iter(names).map(async |name| self.show(&name).await).buffered(AT_ONCE);
        let shown: Vec<Status> = shown.try_collect().await?;
        // What was released meanwhile is not there any more.
        Ok(shown.into_iter().filter(|status| status.kind.is_some()).collect())
    }

    async fn show(&self, name: &Name) -> Result<Status> {
        let (lock, permits) = (Keys::lock(&self.prefix, name), Keys::permits(&self.prefix, name));
        let parts = [&lock, &permits].map(|keys| steps::list(keys.range()));
        let mut parts = parts.to_vec();
        parts.push(steps::get(lock.latch().0));
        let answer = self.server.client.txn(steps::txn(Vec::new(), parts, Vec::new())).await?;
        let mut answers = Answers::of(answer.responses);
        let mut queue = steps::queue(&lock, answers.keys());
        let permits = steps::queue(&permits, answers.keys());
        if queue.is_empty() {
            queue = permits;
        }
        let latch = answers.keys();
        let count = latch.first().map(|latch| super::latches::Closed::read(&latch.value).count);
        let holders = queue::holders(&queue);
        let held: Vec<Entry> = holders.iter().map(|at| queue[*at].clone()).collect();
        let shown = stream::iter(held)
            .map(|entry| async move { self.holding(&entry).await })
            .buffered(AT_ONCE);
        let shown: Vec<Holding> = shown.try_collect().await?;
        let waits = |at: &usize| !holders.contains(at);
        let first = holders.first().copied().unwrap_or(0);
        Ok(Status {
            name: name.clone(),
            kind: queue
                .get(first)
                .map(|entry| entry.kind().family())
                .or(count.map(|_| "latch"))
                .map(str::to_owned),
            holders: shown,
            waiters: (0..queue.len()).filter(waits).map(|at| owner(&queue[at])).collect(),
            count,
        })
    }

    async fn evict(&self, name: &Name, reason: &str) -> Result<Eviction> {
        let mut evicted = Vec::new();
        let mut raised = 0;
        for keys in [Keys::lock(&self.prefix, name), Keys::permits(&self.prefix, name)] {
            let (owners, revision) = self.evict_from(&keys, reason).await?;
            evicted.extend(owners);
            raised = raised.max(revision);
        }
        if raised == 0 {
            raised = self.raise(name).await?;
        }
        Ok(Eviction { holders: evicted, token: token(number(raised)) })
    }
}

impl Etcd {
    async fn holding(&self, entry: &Entry) -> Result<Holding> {
        let lease_left = match entry.lease {
            0 => None,
            lease => Some(self.server.client.time_left(lease).await?.unwrap_or_default()),
        };
        let (owner, token) = (owner(entry), token(entry.token()));
        Ok(Holding { owner, token, held: Duration::ZERO, lease_left })
    }

    /// Takes away the holds of one queue; from whom, and the last revision in which it did.
    async fn evict_from(&self, keys: &Keys, reason: &str) -> Result<(Vec<Owner>, i64)> {
        let client = &self.server.client;
        let (mut evicted, mut raised) = (Vec::new(), 0);
        // Those who are granted later are not meant.
        let mut meant: Option<BTreeSet<Vec<u8>>> = None;
        for _ in 0..TRIES {
            let queue = client.range(steps::all(keys.range())).await?.kvs;
            let queue = steps::queue(keys, queue);
            let holders = || queue::holders(&queue).into_iter().map(|at| &queue[at]);
            let meant =
                meant.get_or_insert_with(|| holders().map(|entry| entry.key.clone()).collect());
            let still = |entry: &&Entry| meant.contains(&entry.key);
            let some: Vec<&Entry> = holders().filter(still).take(EVICTED_AT_ONCE).collect();
            if some.is_empty() {
                return Ok((evicted, raised));
            }
            match client.txn(take_away(keys, &some, reason)).await {
                Ok(answer) if answer.succeeded => {
                    raised = answer.header.map_or(0, |header| header.revision);
                    for entry in some {
                        meant.remove(&entry.key);
                        evicted.push(owner(entry));
                    }
                    if meant.is_empty() {
                        return Ok((evicted, raised));
                    }
                }
                Err(error) if !is_lease_gone(&error) => return Err(error),
                // Somebody let go or died meanwhile.
                _ => tokio::time::sleep(RETRY / 10).await,
            }
        }
        let context = "the holders change too fast to be evicted".to_owned();
        Err(Error::Unavailable { backend: "etcd", context, source: None })
    }

    /// Takes a token without anybody to evict.
    async fn raise(&self, name: &Name) -> Result<i64> {
        let keys = Keys::lock(&self.prefix, name);
        let id = u128::from(owner::random()) << 64 | u128::from(owner::random());
        let lease = lease(&keys, RequestId::from_bytes(id.to_be_bytes()), 0);
        let client = &self.server.client;
        let mut tried = 0;
        loop {
            tried += 1;
            let write = async {
                client.grant(lease, RAISED).await?;
                let put = steps::put(keys.raised(), Vec::new(), Some(lease));
                client.txn(steps::txn(Vec::new(), vec![put], Vec::new())).await
            };
            match write.await {
                Ok(answer) => return Ok(answer.header.map_or(0, |header| header.revision)),
                Err(error) if may_pass(&error) && tried < 3 => tokio::time::sleep(RETRY).await,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Deletes the keys of holders if they are as they were, and leaves each the reason, which lives with
/// its own lease.
fn take_away(keys: &Keys, holders: &[&Entry], reason: &str) -> pb::TxnRequest {
    let as_it_was = |entry: &&Entry| steps::modified(entry.key.clone(), entry.modified);
    let mut parts = Vec::new();
    for entry in holders {
        parts.push(steps::delete((entry.key.clone(), Vec::new())));
        if entry.place.is_some() {
            let why = keys.evicted(&entry.key);
            parts.push(steps::put(why, reason.as_bytes().to_vec(), Some(entry.lease)));
        }
    }
    steps::txn(holders.iter().map(as_it_was).collect(), parts, Vec::new())
}

/// Whose key it is: another client's is known by its lease alone.
fn owner(entry: &Entry) -> Owner {
    match &entry.place {
        Some(place) => place.owner.clone(),
        None => Owner::foreign(&format!("lease-{:x}", entry.lease)),
    }
}

/// Where the keys with this prefix end.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        Some(last) => {
            *last += 1;
            end
        }
        // To the end of everything.
        None => vec![0],
    }
}
