//! A Redis cluster: each lock at the master that has its slot.
//!
//! Not the driver's own cluster client: that one sends a command again whose answer was lost, as often
//! as it likes, and says neither which server has answered nor lets two commands go to it in one
//! pipeline.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, FromRedisValue, Script, ServerErrorKind, Value};

use super::commands::{COMMAND_TIME, Reply, Run, Sign, cause, failed};
use super::connect::Door;
use super::link::{Origin, open};
use super::nodes::{Answered, Node};
use super::replicas::Replicas;
use super::slots::{Slots, redirected};
use crate::backend::register::Register;
use crate::clock::Instant;
use crate::error::{Error, Result};

/// So often a command is sent on to another server.
const REDIRECTIONS: usize = 5;
/// How long one node may take to say who has what.
const ANSWER: Duration = Duration::from_millis(500);
/// They are not asked more often than that.
const REFRESH: Duration = Duration::from_millis(200);

/// The nodes, as far as they have been used.
pub(super) struct Cluster {
    door: Door,
    seeds: Vec<String>,
    requests: Arc<Register>,
    /// Whether the servers have channels that belong to slots.
    pub(super) sharded: bool,
    state: Mutex<State>,
    refreshing: tokio::sync::Mutex<Option<Instant>>,
}

struct State {
    slots: Slots,
    nodes: HashMap<Arc<str>, Arc<Place>>,
}

/// Where a node is, once we are connected to it.
#[derive(Default)]
struct Place {
    node: OnceLock<Arc<Node>>,
    opening: Arc<tokio::sync::Mutex<()>>,
}

/// What one node knows: who has which slot, and of which epoch that is.
struct Said {
    epoch: u64,
    slots: Slots,
}

/// Where a command belongs, by the server that would not have it.
enum Redirection {
    Moved(u16, String),
    Ask(String),
}

impl Cluster {
    pub(super) async fn connect(
        door: Door,
        seeds: Vec<String>,
        requests: Arc<Register>,
    ) -> Result<Self> {
        let state = Mutex::new(State { slots: Slots::new(), nodes: HashMap::new() });
        let refreshing = tokio::sync::Mutex::default();
        let mut cluster = Self { door, seeds, requests, sharded: false, state, refreshing };
        cluster.refresh().await?;
        cluster.sharded = cluster.has_sharded_channels().await?;
        Ok(cluster)
    }

    /// As Redisson finds out. By whoever answers: one that hangs must not keep us from the others.
    async fn has_sharded_channels(&self) -> Result<bool> {
        let mut refused = unavailable("the cluster has no slots".into());
        let masters = self.state.lock().slots.masters();
        for master in masters {
            match self.shards_channels(&master).await {
                Ok(sharded) => return Ok(sharded),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    async fn shards_channels(&self, master: &str) -> Result<bool> {
        let explain = |error| failed("connecting", error);
        let client = self.door.to(master)?;
        let mut connection = open(&client).await.map_err(explain)?;
        let mut ask = redis::cmd("PUBSUB");
        let asking = ask.arg("SHARDNUMSUB").query_async::<Value>(&mut connection);
        match tokio::time::timeout(COMMAND_TIME, asking).await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(error)) if matches!(error.kind(), ErrorKind::Server(_)) => Ok(false),
            Ok(Err(error)) => Err(explain(error)),
            Err(_) => Err(unavailable(format!("no answer within {COMMAND_TIME:?}"))),
        }
    }

    /// Any node that answers, to ask what all of them can do.
    pub(super) async fn any(self: &Arc<Self>) -> Result<Arc<Node>> {
        let mut refused = unavailable("the cluster has no slots".into());
        let masters = self.state.lock().slots.masters();
        for master in masters {
            match self.at(&master).await {
                Ok(node) => return Ok(node),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// The node that has a slot.
    pub(super) async fn node(self: &Arc<Self>, slot: u16) -> Result<Arc<Node>> {
        let owner = self.state.lock().slots.owner(slot);
        let owner = match owner {
            Some(owner) => owner,
            None => {
                self.refresh().await?;
                let owner = self.state.lock().slots.owner(slot);
                owner.ok_or_else(|| unavailable(format!("nobody has slot {slot}")))?
            }
        };
        let node = self.at(&owner).await;
        if node.is_err() {
            self.refresh_quietly().await;
        }
        node
    }

    /// The same if we are connected to it already.
    pub(super) fn known(&self, slot: u16) -> Option<Arc<Node>> {
        let state = self.state.lock();
        state.nodes.get(&state.slots.owner(slot)?)?.node.get().cloned()
    }

    /// The node at an address; connected to by one task for all, which goes on when the caller gives up,
    /// and in a runtime that does not end with the caller's: it listens for everybody.
    async fn at(self: &Arc<Self>, address: &str) -> Result<Arc<Node>> {
        let place = {
            let nodes = &mut self.state.lock().nodes;
            Arc::clone(nodes.entry(address.into()).or_default())
        };
        if let Some(node) = place.node.get() {
            return Ok(Arc::clone(node));
        }
        let opening = async {
            let alone = Arc::clone(&place.opening).lock_owned().await;
            if let Some(node) = place.node.get() {
                return Ok(Arc::clone(node));
            }
            let origin = Origin::Member(Box::new(self.door.to(address)?), Arc::downgrade(self));
            let (requests, sharded) = (Arc::clone(&self.requests), self.sharded);
            let (place, address) = (Arc::clone(&place), address.to_owned());
            let opening = self.requests.runtime().spawn(async move {
                let _alone = alone;
                let node = Node::open(origin, &address, &requests, sharded).await?;
                Ok(Arc::clone(place.node.get_or_init(|| node)))
            });
            opening.await.unwrap_or(Err(Error::ShutDown))
        };
        // Not for as long as everybody takes who tried before.
        let opened = tokio::time::timeout(2 * COMMAND_TIME, opening).await;
        opened.unwrap_or_else(|_| Err(unavailable(format!("{address} does not answer"))))
    }

    /// Every node that has a slot.
    pub(super) async fn masters(self: &Arc<Self>) -> Result<Vec<Arc<Node>>> {
        self.refresh().await?;
        let masters = self.state.lock().slots.masters();
        let mut nodes = Vec::with_capacity(masters.len());
        for master in masters {
            nodes.push(self.at(&master).await?);
        }
        Ok(nodes)
    }

    /// Runs a script where its slot is. A server that would not have it did not run it, so it may be
    /// sent on; nothing else is sent twice.
    pub(super) async fn invoke<T: FromRedisValue>(
        self: &Arc<Self>,
        slot: u16,
        script: &Script,
        step: impl Fn(&str) -> Cmd + Send,
        acknowledged: Option<(Replicas, Duration)>,
        sign: Sign,
    ) -> Result<Answered<T>> {
        let mut asked = None;
        for _ in 0..REDIRECTIONS {
            let (node, asking) = match asked.take() {
                Some(address) => (self.at(&address as &str).await?, true),
                None => (self.node(slot).await?, false),
            };
            let step = step(&node.party);
            let run = Run { script, step: &step, asking, acknowledged, sign };
            let error = match node.commands.invoke(run).await {
                Ok(Reply { value, shortfall, by }) => {
                    return Ok(Answered { value, shortfall, by, node });
                }
                Err(error) => error,
            };
            match redirection(&error, &node.address) {
                Some(Redirection::Moved(slot, to)) => self.state.lock().slots.set(slot, &to),
                Some(Redirection::Ask(to)) => asked = Some(to),
                None => {
                    if is_about_the_node(&error) {
                        self.refresh_quietly().await;
                    }
                    return Err(error);
                }
            }
        }
        Err(unavailable(format!("slot {slot} is sent from one server to the next")))
    }

    /// Learns from an error where slots are now. Whether that helps: then the same can be tried again.
    pub(super) async fn learn(&self, error: &Error, node: &Node) -> bool {
        match redirection(error, &node.address) {
            Some(Redirection::Moved(slot, to)) => self.state.lock().slots.set(slot, &to),
            // On its way: over in a moment.
            Some(Redirection::Ask(_)) => {}
            None if is_about_the_node(error) => self.refresh_quietly().await,
            None => return false,
        }
        true
    }

    pub(super) async fn refresh_quietly(&self) {
        if let Err(error) = self.refresh().await {
            tracing::debug!(%error, "nobody says who has which slot");
        }
    }

    /// Asks who has which slot; by one task for all, and not too often.
    async fn refresh(&self) -> Result<()> {
        let mut last = self.refreshing.lock().await;
        if last.is_some_and(|last| Instant::now().since(last) < REFRESH) {
            return Ok(());
        }
        let mut addresses: Vec<String> = self.seeds.clone();
        let known: Vec<Arc<str>> = self.state.lock().slots.masters();
        addresses.extend(known.iter().map(ToString::to_string));
        addresses.sort();
        addresses.dedup();
        let mut asked: FuturesUnordered<_> =
            addresses.iter().map(|address| self.ask(address)).collect();
        let (mut newest, mut answers, mut refused) = (None::<Said>, 0, None);
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(said) => {
                    answers += 1;
                    if newest.as_ref().is_none_or(|newest| said.epoch > newest.epoch) {
                        newest = Some(said);
                    }
                }
                Err(error) => refused = Some(error),
            }
            if answers > addresses.len() / 2 {
                break;
            }
        }
        *last = Some(Instant::now());
        let Some(newest) = newest else {
            return Err(refused.unwrap_or_else(|| unavailable("there is no node".into())));
        };
        let masters = newest.slots.masters();
        {
            let mut state = self.state.lock();
            state.slots = newest.slots;
            state.nodes.retain(|address, _| masters.contains(address));
        }
        if !known.is_empty() && known.iter().any(|known| !masters.contains(known)) {
            tracing::warn!(?known, ?masters, "the masters of the cluster are others");
            // What the one that is gone would have told us, we do not hear.
            self.requests.missed();
        }
        Ok(())
    }

    async fn ask(&self, address: &str) -> Result<Said> {
        let asking = async {
            let what = format!("asking {address} for its slots");
            let explain = |error| failed(&what, error);
            let client = self.door.to(address)?;
            let mut connection = open(&client).await.map_err(explain)?;
            let mut ask = redis::pipe();
            ask.cmd("CLUSTER").arg("SLOTS").cmd("CLUSTER").arg("INFO");
            let (slots, info): (Value, String) =
                ask.query_async(&mut connection).await.map_err(explain)?;
            let epoch = info.lines().find_map(|line| {
                line.trim_end().strip_prefix("cluster_current_epoch:")?.parse().ok()
            });
            let slots = Slots::read(&slots, address);
            let (slots, epoch) = slots.zip(epoch).ok_or_else(|| {
                unavailable(format!("{address} has no slots: is it part of a cluster?"))
            })?;
            Ok(Said { epoch, slots })
        };
        let answer = tokio::time::timeout(ANSWER, asking).await;
        answer.unwrap_or_else(|_| Err(unavailable(format!("{address} does not answer"))))
    }
}

fn redirection(error: &Error, asked: &str) -> Option<Redirection> {
    let error = cause(error)?;
    let (to, slot) = error.redirect_node()?;
    let to = redirected(to, asked);
    let is_ask = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
    Some(if is_ask { Redirection::Ask(to) } else { Redirection::Moved(slot, to) })
}

/// Whether another node may have its slots now.
fn is_about_the_node(error: &Error) -> bool {
    cause(error).is_none_or(|error| {
        let kind = error.kind();
        !matches!(kind, ErrorKind::Server(_))
            || matches!(
                kind,
                ErrorKind::Server(
                    ServerErrorKind::ClusterDown
                        | ServerErrorKind::MasterDown
                        | ServerErrorKind::ReadOnly
                        | ServerErrorKind::BusyLoading
                )
            )
    })
}

fn unavailable(context: String) -> Error {
    Error::Unavailable { backend: "redis", context, source: None }
}
