//! What the nodes have done, all together.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::Script;
use testkit::redlock::Nodes;

use crate::harness::server::{Counts, Crowd, Note, Sample, Server};
use crate::node;

/// Deletes everything but what lets a node vote: one that has lost that waits for the longest lease.
const CLEAR: &str = "for _, key in ipairs(redis.call('KEYS', '*')) do
  if not string.find(key, '^lockkeeper_redlock_node:') and not string.find(key, '^lockkeeper_redlock_busy:') then
    redis.call('DEL', key)
  end
end";

/// A connection to each node.
pub(crate) struct Stats {
    nodes: Vec<node::Stats>,
    /// The last node is stopped, and would not answer.
    stopped: AtomicBool,
}

impl Stats {
    pub(crate) async fn connect(nodes: &Nodes) -> Self {
        let connecting = nodes.servers.iter().map(async |server| {
            node::Stats::connect(&format!("redis://{}", server.address()), server.address()).await
        });
        Self { nodes: join_all(connecting).await, stopped: AtomicBool::new(false) }
    }

    /// From now on the last node answers, or it does not.
    pub(crate) fn last_stopped(&self, stopped: bool) {
        self.stopped.store(stopped, Ordering::Relaxed);
    }

    fn running(&self) -> &[node::Stats] {
        let stopped = usize::from(self.stopped.load(Ordering::Relaxed));
        &self.nodes[..self.nodes.len() - stopped]
    }
}

#[async_trait]
impl Server for Stats {
    async fn version(&self) -> String {
        self.nodes[0].version().await
    }

    async fn sample(&self) -> Sample {
        let samples = join_all(self.running().iter().map(Server::sample)).await;
        let mut sum = Sample { cpu: 0.0, counts: Counts::default() };
        for Sample { cpu, counts } in samples {
            sum.cpu += cpu;
            sum.counts.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        sum
    }

    async fn clear(&self) {
        let script = Script::new(CLEAR);
        let clearing = self.running().iter().map(async |node| {
            let mut connection = node.connection.clone();
            let cleared: redis::RedisResult<()> = script.invoke_async(&mut connection).await;
            cleared.unwrap();
        });
        join_all(clearing).await;
    }

    fn pairs(&self, counts: Counts, pairs: f64, note: Note<'_>) {
        self.nodes[0].pairs(counts, pairs, note);
    }

    fn crowd(&self, _crowd: Crowd, _note: Note<'_>) -> Result<(), String> {
        Ok(())
    }
}
