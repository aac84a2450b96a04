//! Countdown latches: a node with a count, changed only by whoever saw its last version.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use zookeeper_client::{CreateMode, Error as ZkError, OneshotWatcher, Stat};

use super::layout::LATCH;
use super::line::make;
use super::session::{Ensemble, Session, answered, delete_for_good, failed, is_answer};
use super::{OUTAGE, RETRY, ZooKeeper};
use crate::backend::{Latches, Patience};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner::{self, RequestId};
use crate::wait::pause;

/// So many count-downs are remembered, so that one that is sent again is not counted twice.
const REMEMBERED: usize = 64;
/// No node has this czxid.
const NOWHERE: i64 = 0;

/// What is written in a latch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Latch {
    count: u32,
    ttl_ms: i64,
    /// Who closed it.
    closer: u64,
    counted: Vec<String>,
}

impl Latch {
    fn to_text(&self) -> String {
        let Self { count, ttl_ms, closer, counted } = self;
        format!("count={count} ttl={ttl_ms} closer={closer:016x} counted={}", counted.join(","))
    }

    fn parse(data: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(data).ok()?;
        let word =
            |key: &str| text.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let counted = word("counted")?.split(',').filter(|id| !id.is_empty());
        Some(Self {
            count: word("count")?.parse().ok()?,
            ttl_ms: word("ttl")?.parse().ok()?,
            closer: u64::from_str_radix(word("closer")?, 16).ok()?,
            counted: counted.map(str::to_owned).collect(),
        })
    }
}

/// A latch that is closed.
struct Closed {
    latch: Latch,
    stat: Stat,
    watcher: OneshotWatcher,
    /// How long until it goes away by itself.
    left: Duration,
}

/// The latch of a lock's node, if it is closed. One whose time is over is removed.
async fn closed(
    ensemble: &Ensemble,
    session: &Session,
    dir: &str,
) -> Result<Option<Closed>, ZkError> {
    let path = format!("{dir}/{LATCH}");
    loop {
        // Sent together: a server that is behind must not pass a latch off as open that somebody has
        // just closed, or a count-down would be lost.
        let syncing = session.client.sync(dir);
        let reading = session.client.get_and_watch_data(&path);
        let both = async {
            syncing.await?;
            reading.await
        };
        let (data, stat, watcher) = match answered(both).await {
            Ok(found) => found,
            Err(ZkError::NoNode) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(latch) = Latch::parse(&data) else {
            return Err(ZkError::UnexpectedError(format!("{path} is not a latch of ours")));
        };
        let now = match session.leader_time() {
            Some(now) => now,
            None => ask_time(ensemble, session, dir).await?,
        };
        let left = (stat.mtime + latch.ttl_ms).saturating_sub(now);
        if let Ok(left) = u64::try_from(left)
            && left > 0
        {
            return Ok(Some(Closed { latch, stat, watcher, left: Duration::from_millis(left) }));
        }
        match answered(session.client.delete(&path, Some(stat.version))).await {
            Ok(()) | Err(ZkError::NoNode | ZkError::BadVersion) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The leader's time, which comes only with the answer to a write.
async fn ask_time(ensemble: &Ensemble, session: &Session, dir: &str) -> Result<i64, ZkError> {
    let path = format!("{dir}/_time-{:016x}", owner::random());
    let sent = Instant::now();
    let options = ensemble.options(CreateMode::Ephemeral);
    // Both are sent before either is answered: nothing is left if we are dropped in between.
    let creating = session.client.create(&path, &[], &options);
    let deleting = session.client.delete(&path, None);
    let (created, deleted) = answered(async { Ok((creating.await, deleting.await)) }).await?;
    if deleted.is_err_and(|error| !is_answer(&error)) {
        delete_for_good(session, &path).await;
    }
    let (stat, _) = created?;
    session.acknowledged(sent, Some(&stat));
    Ok(stat.mtime)
}

/// What is left of the latch at a lock's node, and since which step it is closed.
pub(super) async fn count_at(
    ensemble: &Ensemble,
    session: &Session,
    dir: &str,
) -> Result<Option<(u32, i64)>, ZkError> {
    let closed = closed(ensemble, session, dir).await?;
    Ok(closed.map(|closed| (closed.latch.count, closed.stat.czxid)))
}

impl ZooKeeper {
    /// Tries until there is an answer, for as long as an outage may take.
    async fn insist<T, F>(&self, doing: &str, step: impl Fn() -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let since = Instant::now();
        loop {
            match step().await {
                Err(Error::Unavailable { source: Some(source), .. })
                    if Instant::now().since(since) < OUTAGE
                        && source.downcast_ref::<ZkError>().is_some_and(|e| !is_answer(e)) =>
                {
                    tracing::debug!(doing, %source, "trying again");
                    tokio::time::sleep(RETRY).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn close_once(&self, dir: &str, latch: &Latch) -> Result<bool> {
        let session = self.ensemble.session().await?;
        let wrong = |error| failed("closing a latch", error);
        let path = format!("{dir}/{LATCH}");
        let options = self.ensemble.options(CreateMode::Persistent);
        let czxid = loop {
            if let Some(closed) = closed(&self.ensemble, &session, dir).await.map_err(wrong)? {
                if closed.latch.closer == latch.closer {
                    // By an earlier try whose answer was lost.
                    break closed.stat.czxid;
                }
                return Ok(false);
            }
            let sent = Instant::now();
            let text = latch.to_text();
            let creating = session.client.create(&path, text.as_bytes(), &options);
            match answered(creating).await {
                Ok((stat, _)) => {
                    session.acknowledged(sent, Some(&stat));
                    break stat.czxid;
                }
                Err(ZkError::NoNode) => {
                    make(&self.ensemble, &session, dir).await.map_err(wrong)?;
                }
                Err(ZkError::NodeExists) => {}
                Err(error) => return Err(wrong(error)),
            }
        };
        let used = self.used_by_locks(&session, dir, czxid).await;
        if let Ok(None) = used {
            return Ok(true);
        }
        match answered(session.client.delete(&path, None)).await {
            Ok(()) | Err(ZkError::NoNode) => {}
            Err(error) => return Err(wrong(error)),
        }
        let used_as = used?.unwrap_or("mutex");
        let name = super::layout::name(dir.rsplit('/').next().unwrap_or_default());
        match name {
            Some(name) => Err(Error::WrongKind { name, used_as, asked: "latch" }),
            None => Ok(false),
        }
    }

    async fn used_by_locks(
        &self,
        session: &Session,
        dir: &str,
        czxid: i64,
    ) -> Result<Option<&'static str>> {
        let wrong = |error| failed(&format!("looking at {dir}"), error);
        let children = answered(session.client.list_children(dir)).await.map_err(wrong)?;
        match self.locked_before(session, dir, &children, czxid).await.map_err(wrong)? {
            None => self.used_before(session, dir, &children, czxid, false).await,
            used => Ok(used),
        }
    }

    /// Counts down. `sent_to` is the czxid of the latch that an earlier try may have counted down.
    async fn count_down_once(&self, dir: &str, id: &str, sent_to: &AtomicI64) -> Result<u32> {
        let session = self.ensemble.session().await?;
        let wrong = |error| failed("counting down", error);
        let path = format!("{dir}/{LATCH}");
        loop {
            let Some(Closed { mut latch, stat, .. }) =
                closed(&self.ensemble, &session, dir).await.map_err(wrong)?
            else {
                return Ok(0);
            };
            if latch.counted.iter().any(|counted| counted == id) {
                return Ok(latch.count);
            }
            // The one that was meant is open since; this one is not ours to count.
            let before = sent_to.swap(stat.czxid, Ordering::Relaxed);
            if before != NOWHERE && before != stat.czxid {
                return Ok(0);
            }
            latch.count = latch.count.saturating_sub(1);
            latch.counted.push(id.to_owned());
            let old = latch.counted.len().saturating_sub(REMEMBERED);
            latch.counted.drain(..old);
            let (version, sent) = (Some(stat.version), Instant::now());
            let changed = if latch.count == 0 {
                answered(session.client.delete(&path, version)).await.map(|()| None)
            } else {
                let text = latch.to_text();
                answered(session.client.set_data(&path, text.as_bytes(), version)).await.map(Some)
            };
            match changed {
                Ok(stat) => {
                    session.acknowledged(sent, stat.as_ref());
                    return Ok(latch.count);
                }
                // Somebody else was faster, and this was not counted.
                Err(ZkError::BadVersion | ZkError::NoNode) => {
                    sent_to.store(before, Ordering::Relaxed);
                }
                Err(error) => return Err(wrong(error)),
            }
        }
    }
}

#[async_trait]
impl Latches for ZooKeeper {
    async fn close(&self, name: &Name, count: u32, ttl: Duration) -> Result<bool> {
        let dir = self.dir(name);
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX / 2);
        let latch = Latch { count, ttl_ms, closer: owner::random(), counted: Vec::new() };
        let this = self.clone();
        // To the end, even if nobody waits for it: it must not stay closed over a lock.
        let closing = self.ensemble.runtime.spawn(async move {
            this.insist("closing a latch", || this.close_once(&dir, &latch)).await
        });
        closing.await.unwrap_or(Err(Error::ShutDown))
    }

    async fn count_down(&self, name: &Name, id: RequestId) -> Result<u32> {
        let (dir, id) = (self.dir(name), id.to_string());
        let sent_to = AtomicI64::new(NOWHERE);
        self.insist("counting down", || self.count_down_once(&dir, &id, &sent_to)).await
    }

    async fn count(&self, name: &Name) -> Result<u32> {
        let dir = self.dir(name);
        let looking = || async {
            let session = self.ensemble.session().await?;
            let wrong = |error| failed("looking at a latch", error);
            let count = count_at(&self.ensemble, &session, &dir).await.map_err(wrong)?;
            Ok(count.map_or(0, |(count, _)| count))
        };
        self.insist("looking at a latch", looking).await
    }

    async fn wait(&self, name: &Name, _: RequestId, patience: Patience) -> Result<bool> {
        let dir = self.dir(name);
        loop {
            let looking = || async {
                let session = self.ensemble.session().await?;
                let closed = closed(&self.ensemble, &session, &dir).await;
                Ok((closed.map_err(|error| failed("waiting for a latch", error))?, session))
            };
            let (closed, session) = self.insist("waiting for a latch", looking).await?;
            let Some(Closed { watcher, left, .. }) = closed else { return Ok(true) };
            let event = async {
                tokio::select! {
                    _ = watcher.changed() => {}
                    () = session.over() => {}
                }
            };
            if !pause(patience, Some(Instant::now() + left), event).await {
                return Ok(false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latches_survive_a_round_trip() {
        for counted in [vec![], vec!["a".to_owned(), "b".to_owned()]] {
            let latch = Latch { count: 3, ttl_ms: 9, closer: 7, counted };
            assert_eq!(Latch::parse(latch.to_text().as_bytes()), Some(latch));
        }
        assert_eq!(Latch::parse(b"10.0.0.1"), None);
    }
}
