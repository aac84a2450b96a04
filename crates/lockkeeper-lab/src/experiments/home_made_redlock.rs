//! RedLock as it is described: a majority of independent Redis servers, and the client's own clock.

use std::time::Duration;

use lockkeeper::clock::Instant;
use redis::aio::MultiplexedConnection;

use super::late_writer::Contender;
use super::speed::DELETE_OWN;
use crate::bench::{connect, set_nx};
use crate::error::Result;
use crate::servers::Server;

/// How often somebody who waits asks again.
const AGAIN: Duration = Duration::from_millis(10);
/// What the nodes are called.
const NAMES: [&str; 5] = ["A", "B", "C", "D", "E"];

/// A client of five nodes.
#[derive(Debug)]
pub(super) struct RedLock {
    /// Of those that it can reach.
    nodes: Vec<(&'static str, MultiplexedConnection)>,
    of: usize,
    key: String,
    value: String,
    ttl: Duration,
    until: Option<Instant>,
}

/// A lock that was granted.
#[derive(Debug)]
pub(super) struct Grant {
    /// By these nodes.
    pub(super) by: String,
    /// Until then, by the client's clock.
    pub(super) until: Instant,
}

impl RedLock {
    /// Connects to the nodes of these names; the others are out of its reach.
    pub(super) async fn connect(
        nodes: &[String],
        reach: &str,
        key: &str,
        value: &str,
        ttl: Duration,
    ) -> Result<Self> {
        let mut reached = Vec::new();
        for (name, url) in NAMES.into_iter().zip(nodes) {
            if reach.contains(name) {
                reached.push((name, connect(url).await?));
            }
        }
        let (of, key, value) = (nodes.len(), key.into(), value.into());
        Ok(Self { nodes: reached, of, key, value, ttl, until: None })
    }

    /// Asks one node after the other, and looks at the clock before and after. Between the two
    /// `meanwhile` happens.
    pub(super) async fn try_lock(
        &mut self,
        meanwhile: impl FnOnce() -> Result<()> + Send,
    ) -> Result<Option<Grant>> {
        let start = Instant::now();
        let mut by = Vec::new();
        for (name, connection) in &mut self.nodes {
            if set_nx(connection, &self.key, &self.value, Some(self.ttl)).await? {
                by.push(*name);
            }
        }
        meanwhile()?;
        if granted(by.len(), self.of, start, Instant::now(), self.ttl) {
            let until = start + self.ttl;
            self.until = Some(until);
            return Ok(Some(Grant { by: by.join(", "), until }));
        }
        self.unlock().await?;
        Ok(None)
    }

    /// Deletes what is its own, at all nodes.
    pub(super) async fn unlock(&mut self) -> Result<()> {
        let script = redis::Script::new(DELETE_OWN);
        for (_, connection) in &mut self.nodes {
            let mut call = script.key(&self.key);
            call.arg(&self.value).invoke_async::<()>(connection).await?;
        }
        Ok(())
    }
}

/// Steps 3 and 4: a majority, and time is left.
fn granted(votes: usize, of: usize, start: Instant, now: Instant, ttl: Duration) -> bool {
    votes > of / 2 && now.since(start) < ttl
}

impl Contender for RedLock {
    async fn take(&mut self) -> Result<String> {
        loop {
            if let Some(grant) = self.try_lock(|| Ok(())).await? {
                return Ok(format!("SET lock NX PX {} at {}", self.ttl.as_millis(), grant.by));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn holds(&mut self) -> Result<bool> {
        Ok(self.until.is_some_and(|until| Instant::now() < until))
    }

    async fn write(&mut self, _value: &str) -> Result<Option<String>> {
        Ok(None)
    }

    async fn give_back(mut self) -> Result<()> {
        self.unlock().await
    }
}

/// Five servers that know nothing of each other.
#[derive(Debug)]
pub(super) struct Five {
    pub(super) servers: Vec<Server>,
}

impl Five {
    /// Starts them with these arguments.
    pub(super) async fn start(arguments: &[&str]) -> Result<Self> {
        let starting = NAMES.map(|_| Server::redis(arguments));
        Self::started(starting).await
    }

    /// Starts them with a clock each.
    pub(super) async fn start_with_clocks() -> Result<Self> {
        let starting = NAMES.map(|_| Server::redis_with_a_clock());
        Self::started(starting).await
    }

    async fn started(
        starting: impl IntoIterator<Item = impl Future<Output = Result<Server>> + Send> + Send,
    ) -> Result<Self> {
        Ok(Self { servers: futures_util::future::try_join_all(starting).await? })
    }

    /// Where each of them is.
    pub(super) fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Server::url).collect()
    }

    /// For Lockkeeper; those whose names are not in `reach` are out of the client's reach, and nobody is
    /// at the addresses that it has of them.
    pub(super) fn url(&self, reach: &str) -> String {
        let hosts = NAMES.into_iter().zip(&self.servers).enumerate();
        let hosts = hosts.map(|(at, (name, server))| {
            let nobody = || format!("127.0.0.1:{}", at + 1);
            if reach.contains(name) { server.address().to_string() } else { nobody() }
        });
        format!("redlock://{}", hosts.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_a_majority_in_time() {
        let (ttl, start) = (Duration::from_millis(100), Instant::from_nanos(7));
        let at = |millis| start + Duration::from_millis(millis);
        assert!(granted(3, 5, start, at(99), ttl));
        assert!(!granted(2, 5, start, at(1), ttl), "no majority");
        assert!(!granted(2, 4, start, at(1), ttl), "half is none");
        assert!(!granted(5, 5, start, at(100), ttl), "too late");
    }
}
