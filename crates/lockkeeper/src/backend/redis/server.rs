//! What holds, latches and requests of one backend share.

use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, Script};

use super::commands::step;
use super::listener::Listening;
use super::nodes::{Answered, Node, Nodes};
use super::renewals::Renewals;
use super::replicas::Replicas;
use super::scripts::Scripts;
use crate::backend::register::Register;
use crate::error::Result;
use crate::owner::RequestId;

pub(super) struct Server {
    pub(super) nodes: Nodes,
    /// Who must have a grant before it counts.
    pub(super) replicas: Option<Replicas>,
    pub(super) scripts: &'static Scripts,
    pub(super) requests: Arc<Register>,
    pub(super) renewals: Renewals,
    /// What our own channel is called, at one of the servers at least.
    pub(super) party: String,
}

impl Server {
    /// Runs a step on one lock. An error: it may have been carried out or not.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        lock: &str,
        id: RequestId,
        arguments: &[&str],
    ) -> Result<T> {
        let step = |_: &str| step(script, lock, id, arguments);
        Ok(self.nodes.invoke(lock, script, step, None).await?.value)
    }

    /// The same for a renewal: it counts only if the replicas have it that must.
    pub(super) async fn run_renewal<T: FromRedisValue>(
        &self,
        script: &Script,
        lock: &str,
        id: RequestId,
        arguments: &[&str],
        time: Duration,
    ) -> Result<Answered<T>> {
        let step = |_: &str| step(script, lock, id, arguments);
        self.nodes.invoke(lock, script, step, self.renewed(time)).await
    }

    /// Who must have a step, and how long to wait for them.
    pub(super) fn acknowledged(&self, time: Duration) -> Option<(Replicas, Duration)> {
        self.replicas.map(|replicas| (replicas, time))
    }

    /// The same for a renewal.
    pub(super) fn renewed(&self, time: Duration) -> Option<(Replicas, Duration)> {
        self.replicas.map(|replicas| (replicas.of_renewal(), time))
    }
}

/// Where a request listens to clients of Redisson: at the server that has its lock now.
#[derive(Default)]
pub(super) struct Ear {
    at: Option<(Arc<Node>, Listening)>,
}

impl Ear {
    pub(super) fn is_at(&self, node: &Arc<Node>) -> bool {
        self.at.as_ref().is_some_and(|(at, _)| Arc::ptr_eq(at, node))
    }

    pub(super) async fn listen(&mut self, node: Arc<Node>, channels: Vec<String>) {
        let listening = node.listener.also(channels).await;
        self.at = Some((node, listening));
    }
}
