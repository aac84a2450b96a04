//! Countdown latches in an etcd cluster.
//!
//! A latch is one key with a lease of its own, which every count-down keeps alive. Each count-down
//! leaves a key beside it, under the same lease, so that a resend finds that it was done. What was meant
//! for one latch never concerns the next one of the same name.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::asking::used_as;
use super::client::{is_lease_gone, may_pass, unanswered};
use super::layout::{Keys, lease};
use super::proto::mvccpb::KeyValue;
use super::steps::{self, Answers};
use super::watcher::Spec;
use super::{Etcd, OUTAGE, RETRY, Server, WAITER_LEASE};
use crate::backend::{Latches, Patience};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner::{self, RequestId};
use crate::wait::pause;

/// How often a step begins again because somebody else was faster.
const TRIES: u32 = 1000;

/// What is written in the key of a closed latch.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Closed {
    pub(super) count: u32,
}

impl Closed {
    pub(super) fn read(value: &[u8]) -> Self {
        serde_json::from_slice(value).unwrap_or_default()
    }

    fn to_value(self) -> Vec<u8> {
        serde_json::to_vec(&self).unwrap_or_default()
    }
}

/// What one attempt to close a latch leaves to the next one.
struct Closing {
    lease: i64,
    leased: AtomicBool,
    /// It may have been closed: the answer is not known.
    sent: AtomicBool,
}

impl Etcd {
    async fn latch(&self, keys: &Keys) -> Result<Option<KeyValue>> {
        let (key, _) = keys.latch();
        let range = super::pb::RangeRequest { key, ..Default::default() };
        Ok(self.server.client.range(range).await?.kvs.into_iter().next())
    }

    /// One attempt to close it. `None`: something changed meanwhile.
    async fn try_close(
        &self,
        name: &Name,
        count: u32,
        ttl: Duration,
        closing: &Closing,
    ) -> Result<Option<bool>> {
        let client = &self.server.client;
        let (lease, sent) = (closing.lease, closing.sent.load(Ordering::Acquire));
        // The lease ends with the latch: then that was closed, and has been opened since.
        if sent && client.time_left(lease).await?.is_none() {
            return Ok(Some(true));
        }
        let keys = Keys::lock(&self.prefix, name);
        let ranges = [keys.range(), keys.rivals().range()];
        let parts = vec![
            steps::list(ranges[0].clone()),
            steps::list(ranges[1].clone()),
            steps::get(keys.latch().0),
        ];
        let answer = client.txn(steps::txn(Vec::new(), parts, Vec::new())).await?;
        let revision = answer.header.map_or(0, |header| header.revision);
        let mut answers = Answers::of(answer.responses);
        for keys in [keys.clone(), keys.rivals()] {
            let queue = steps::queue(&keys, answers.keys());
            if let Some(used_as) = used_as(&queue, &[]) {
                return Err(Error::WrongKind { name: name.clone(), used_as, asked: "latch" });
            }
        }
        if let Some(latch) = answers.keys().first() {
            // Ours, if an answer was lost.
            return Ok(Some(latch.lease == lease));
        }
        if count == 0 {
            return Ok(Some(true));
        }
        if !sent {
            closing.leased.store(true, Ordering::Release);
            client.grant(lease, ttl).await?;
        }
        let mut unless: Vec<_> =
            ranges.into_iter().map(|range| steps::none_since(range, revision)).collect();
        unless.push(steps::created(keys.latch().0, 0));
        let put = steps::put(keys.latch().0, Closed { count }.to_value(), Some(lease));
        closing.sent.store(true, Ordering::Release);
        let closed = client.txn(steps::txn(unless, vec![put], Vec::new())).await?.succeeded;
        closing.sent.store(closed, Ordering::Release);
        Ok(closed.then_some(true))
    }

    /// One attempt to count down. `None`: somebody else was faster. `meant`: the revision in which the
    /// latch was closed that is to be counted down, once that is known.
    async fn try_count_down(
        &self,
        keys: &Keys,
        id: RequestId,
        meant: &AtomicI64,
    ) -> Result<Option<u32>> {
        let client = &self.server.client;
        let parts = vec![steps::get(keys.latch().0), steps::get(keys.counted(id))];
        let answer = client.txn(steps::txn(Vec::new(), parts, Vec::new())).await?;
        let mut answers = Answers::of(answer.responses);
        let Some(latch) = answers.keys().into_iter().next() else { return Ok(Some(0)) };
        let closed = latch.create_revision;
        match meant.compare_exchange(0, closed, Ordering::AcqRel, Ordering::Acquire) {
            // The latch that was meant has been opened since, by us or by others.
            Err(meant) if meant != closed => return Ok(Some(0)),
            _ => {}
        }
        let count = Closed::read(&latch.value).count;
        if !answers.keys().is_empty() {
            return Ok(Some(count));
        }
        let left = count.saturating_sub(1);
        let parts = match left {
            0 => vec![steps::delete(keys.latch())],
            count => vec![
                steps::put(keys.latch().0, Closed { count }.to_value(), None),
                steps::put(keys.counted(id), Vec::new(), Some(latch.lease)),
            ],
        };
        let unless = vec![steps::modified(keys.latch().0, latch.mod_revision)];
        if !client.txn(steps::txn(unless, parts, Vec::new())).await?.succeeded {
            return Ok(None);
        }
        if left == 0 {
            client.revoke(latch.lease).await?;
        } else {
            self.server.alive.keep(latch.lease).await?;
        }
        Ok(Some(left))
    }
}

#[async_trait]
impl Latches for Etcd {
    async fn close(&self, name: &Name, count: u32, ttl: Duration) -> Result<bool> {
        let id = u128::from(owner::random()) << 64 | u128::from(owner::random());
        let id = RequestId::from_bytes(id.to_be_bytes());
        let closing = Closing {
            lease: lease(&Keys::lock(&self.prefix, name), id, 0),
            leased: AtomicBool::new(false),
            sent: AtomicBool::new(false),
        };
        let closed = insist(|| self.try_close(name, count, ttl, &closing)).await;
        let in_vain = matches!(closed, Ok(false) | Err(Error::WrongKind { .. }));
        if in_vain && closing.leased.load(Ordering::Acquire) {
            // What cannot be ended ends by itself.
            let _ = self.server.client.revoke(closing.lease).await;
        }
        closed
    }

    async fn count_down(&self, name: &Name, id: RequestId) -> Result<u32> {
        let keys = Keys::lock(&self.prefix, name);
        let meant = AtomicI64::new(0);
        let attempt = || async {
            match self.try_count_down(&keys, id, &meant).await {
                // The latch went away while we counted.
                Err(error) if is_lease_gone(&error) => Ok(None),
                counted => counted,
            }
        };
        insist(attempt).await
    }

    async fn count(&self, name: &Name) -> Result<u32> {
        let latch = self.latch(&Keys::lock(&self.prefix, name)).await?;
        Ok(latch.map_or(0, |latch| Closed::read(&latch.value).count))
    }

    async fn wait(&self, name: &Name, id: RequestId, patience: Patience) -> Result<bool> {
        let (key, _) = Keys::lock(&self.prefix, name).latch();
        let news = self.server.requests.expect(id);
        let _forget = Forget(&self.server, id);
        let spec = Spec { request: id, key, range_end: Vec::new(), deletions: true, from: 0 };
        let mut watch = None;
        let mut failing: Option<Instant> = None;
        loop {
            let next = match self.count(name).await {
                Ok(0) => return Ok(true),
                Ok(_) => {
                    failing = None;
                    Instant::now() + WAITER_LEASE
                }
                Err(error) if may_pass(&error) => {
                    let since = *failing.get_or_insert_with(Instant::now);
                    if Instant::now().since(since) > OUTAGE {
                        return Err(error);
                    }
                    Instant::now() + RETRY
                }
                Err(error) => return Err(error),
            };
            watch.get_or_insert_with(|| self.server.watcher.watch(spec.clone()));
            if !pause(patience, Some(next), news.heard()).await {
                return Ok(false);
            }
        }
    }
}

/// Tries until it is done, for as long as a cluster may fail to answer. Each attempt finds what the
/// one before may have done.
async fn insist<T, F>(attempt: impl Fn() -> F + Send) -> Result<T>
where
    F: Future<Output = Result<Option<T>>> + Send,
{
    let mut failing: Option<Instant> = None;
    for _ in 0..TRIES {
        match attempt().await {
            Ok(Some(done)) => return Ok(done),
            Ok(None) => failing = None,
            Err(error) => {
                let since = *failing.get_or_insert_with(Instant::now);
                if !may_pass(&error) || Instant::now().since(since) > OUTAGE {
                    return Err(error);
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
    Err(unanswered())
}

/// A wait for a latch that ends.
struct Forget<'a>(&'a Server, RequestId);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.requests.forget(self.1);
    }
}
