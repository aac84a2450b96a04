//! The servers that keep the locks, and what goes to which of them.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Script};

use super::cluster::Cluster;
use super::commands::{COMMAND_TIME, Commands, Reply, Run, Sign};
use super::connect::{self, Door};
use super::link::Origin;
use super::listener::Listener;
use super::optimistic::Pool;
use super::replicas::{Replicas, Shortfall};
use super::sentinel::Sentinels;
use super::slots::{is_in_one_slot, slot};
use crate::backend::register::Register;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner;
use crate::url::RedisOptions;

/// How long a server may fail to answer before a request gives up.
const OUTAGE: Duration = Duration::from_secs(5);
/// The same where another server takes over: some are told to take half a minute to notice.
const FAIL_OVER: Duration = Duration::from_secs(60);

/// One server.
pub(super) struct Node {
    /// As others call it; empty where nobody does.
    pub(super) address: String,
    pub(super) commands: Commands,
    pub(super) listener: Arc<Listener>,
    /// What our own channel is called there. Another one at each server: a cluster passes messages on
    /// to all of its servers, so one that we had at several would bring each message several times.
    pub(super) party: String,
    /// Connections for transactions.
    pub(super) alone: Pool,
}

impl Node {
    pub(super) async fn open(
        origin: Origin,
        address: &str,
        requests: &Arc<Register>,
        sharded: bool,
    ) -> Result<Arc<Self>> {
        let commands = Commands::to(origin.clone(), requests.runtime().clone());
        commands.connect().await?;
        let party = format!("{:016x}", owner::random());
        let listener = Listener::start(origin, &party, Arc::clone(requests), sharded).await?;
        let (address, alone) = (address.to_owned(), Pool::new());
        Ok(Arc::new(Self { address, commands, listener, party, alone }))
    }
}

/// An answer, what is missing of the replicas that must have the step, and who gave it.
pub(super) struct Answered<T> {
    pub(super) value: T,
    pub(super) shortfall: Option<Shortfall>,
    pub(super) by: Option<u64>,
    pub(super) node: Arc<Node>,
}

/// All servers.
pub(super) enum Nodes {
    /// One that has everything; with sentinels, whichever it is now.
    One(Arc<Node>, Duration),
    Cluster(Arc<Cluster>),
}

impl Nodes {
    /// Connects. `place` is the URL without its password.
    pub(super) async fn connect(
        url: &str,
        place: &str,
        options: &RedisOptions,
        requests: &Arc<Register>,
    ) -> Result<Self> {
        let scheme = url.split(':').next().unwrap_or_default();
        if scheme.ends_with("+cluster") {
            let (door, seeds, _) = Door::parse(url, &options.tls);
            let cluster = Cluster::connect(door, seeds, Arc::clone(requests)).await?;
            return Ok(Self::Cluster(Arc::new(cluster)));
        }
        if scheme.ends_with("+sentinel") {
            let (door, sentinels, master) = Door::parse(url, &options.tls);
            let origin = Origin::Sentinels(Sentinels::start(door, sentinels, master));
            return Ok(Self::One(Node::open(origin, "", requests, false).await?, FAIL_OVER));
        }
        let client = connect::client(url, &options.tls, place)?;
        let node = Node::open(Origin::Fixed(Box::new(client.clone())), "", requests, false).await;
        Ok(Self::One(node.map_err(|error| connect::explain(error, &client))?, OUTAGE))
    }

    /// Whether channels of Redisson's belong to slots.
    pub(super) fn sharded(&self) -> bool {
        matches!(self, Self::Cluster(cluster) if cluster.sharded)
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// How long a request asks again before it says that the server is gone.
    pub(super) fn outage(&self, waits: bool) -> Duration {
        match self {
            // Who does not want to wait does not want to wait for another server either.
            _ if !waits => OUTAGE,
            Self::One(_, outage) => *outage,
            Self::Cluster(_) => FAIL_OVER,
        }
    }

    /// Any of them, to ask what all of them can do.
    pub(super) async fn any(&self) -> Result<Arc<Node>> {
        match self {
            Self::One(node, _) => Ok(Arc::clone(node)),
            Self::Cluster(cluster) => cluster.any().await,
        }
    }

    /// All that have locks.
    pub(super) async fn all(&self) -> Result<Vec<Arc<Node>>> {
        match self {
            Self::One(node, _) => Ok(vec![Arc::clone(node)]),
            Self::Cluster(cluster) => cluster.masters().await,
        }
    }

    /// The one that has a lock.
    pub(super) async fn of(&self, lock: &str) -> Result<Arc<Node>> {
        match self {
            Self::One(node, _) => Ok(Arc::clone(node)),
            Self::Cluster(cluster) => cluster.node(slot(lock)).await,
        }
    }

    /// What our own channel is called at the one that has a lock, as far as is known.
    pub(super) fn party(&self, lock: &str) -> Option<String> {
        match self {
            Self::One(node, _) => Some(node.party.clone()),
            Self::Cluster(cluster) => cluster.known(slot(lock)).map(|node| node.party.clone()),
        }
    }

    /// Which locks can be reached by one command: those for which this is the same.
    pub(super) fn place(&self, lock: &str) -> u16 {
        if self.is_cluster() { slot(lock) } else { 0 }
    }

    /// Learns from an error where keys are now. Whether that helps.
    pub(super) async fn learn(&self, error: &Error, node: &Node) -> bool {
        match self {
            Self::One(..) => false,
            Self::Cluster(cluster) => cluster.learn(error, node).await,
        }
    }

    /// Refuses a name whose keys would be at several servers.
    pub(super) fn check(&self, name: &Name, lock: &str) -> Result<()> {
        if !self.is_cluster() || is_in_one_slot(lock) {
            return Ok(());
        }
        Err(Error::InvalidName {
            name: name.to_string(),
            reason: "its braces would put its keys into several slots of the cluster: write \
                     {TAG} with something in it, or no braces"
                .into(),
        })
    }

    /// Runs a script where a lock is. The command is put together for the server that gets it.
    pub(super) async fn invoke<T: FromRedisValue>(
        &self,
        lock: &str,
        script: &Script,
        step: impl Fn(&str) -> Cmd + Send,
        acknowledged: Option<(Replicas, Duration)>,
    ) -> Result<Answered<T>> {
        self.invoke_signed(lock, script, step, acknowledged, Sign::No).await
    }

    /// The same where it matters which server it is.
    pub(super) async fn invoke_signed<T: FromRedisValue>(
        &self,
        lock: &str,
        script: &Script,
        step: impl Fn(&str) -> Cmd + Send,
        acknowledged: Option<(Replicas, Duration)>,
        sign: Sign,
    ) -> Result<Answered<T>> {
        match self {
            Self::One(node, _) => {
                let step = step(&node.party);
                let run = Run { script, step: &step, asking: false, acknowledged, sign };
                let Reply { value, shortfall, by } = node.commands.invoke(run).await?;
                Ok(Answered { value, shortfall, by, node: Arc::clone(node) })
            }
            // Apart, because it is large, and so would be the future of every step.
            Self::Cluster(cluster) => {
                Box::pin(cluster.invoke(slot(lock), script, step, acknowledged, sign)).await
            }
        }
    }

    /// Sends a command where a key is. Most servers are alone: then it is not even copied.
    pub(super) async fn query<T: FromRedisValue>(
        &self,
        key: &str,
        script: &Script,
        command: &Cmd,
        sign: Sign,
    ) -> Result<(T, Option<u64>)> {
        match self {
            Self::One(node, _) => {
                let run = Run { script, step: command, asking: false, acknowledged: None, sign };
                let Reply { value, by, .. } = node.commands.invoke_once(run).await?;
                Ok((value, by))
            }
            Self::Cluster(_) => {
                let step = |_: &str| command.clone();
                let invoked = Box::pin(self.invoke_signed(key, script, step, None, sign)).await?;
                Ok((invoked.value, invoked.by))
            }
        }
    }

    /// For how long a query may take at most, where that is known.
    pub(super) fn longest(&self) -> Option<Duration> {
        matches!(self, Self::One(..)).then_some(COMMAND_TIME)
    }
}
