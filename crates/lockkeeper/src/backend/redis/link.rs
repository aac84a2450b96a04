//! One connection to whatever server is the right one now, which is made again when it has failed.
//!
//! Not the driver's own `ConnectionManager`: that one goes back to the same address for ever, and after
//! a fail-over the wrong server lives there.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use redis::aio::{AsyncPushSender, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, ProtocolVersion, RedisResult};
use tokio::runtime::Handle;

use super::cluster::Cluster;
use super::commands::{COMMAND_TIME, failed, unanswered};
use super::identity::Identity;
use super::sentinel::Sentinels;
use crate::clock::answer_within;
use crate::error::{Error, Result};

/// Where a server is to be found.
#[derive(Clone)]
pub(super) enum Origin {
    /// At one address.
    Fixed(Box<Client>),
    /// At one address, for as long as that one has a place in the cluster.
    Member(Box<Client>, Weak<Cluster>),
    /// Wherever the sentinels say that the master is.
    Sentinels(Arc<Sentinels>),
}

impl Origin {
    /// The server to talk to now, and how often it has been another one before.
    pub(super) async fn find(&self) -> Result<(Client, u64)> {
        match self {
            Self::Fixed(client) | Self::Member(client, _) => Ok((Client::clone(client), 0)),
            Self::Sentinels(sentinels) => sentinels.find().await,
        }
    }

    /// How often it has been another one before, as far as is known.
    fn moves(&self) -> u64 {
        match self {
            Self::Fixed(_) | Self::Member(..) => 0,
            Self::Sentinels(sentinels) => sentinels.moves(),
        }
    }

    /// Waits until it is another one than that.
    pub(super) async fn moved(&self, since: u64) {
        match self {
            Self::Fixed(_) | Self::Member(..) => std::future::pending().await,
            Self::Sentinels(sentinels) => sentinels.moved(since).await,
        }
    }

    /// Whether a server that takes no writes is not the right one any more.
    pub(super) fn may_move(&self) -> bool {
        matches!(self, Self::Sentinels(_))
    }

    /// Nothing is heard from there: another server may have its place. Found out in the background, because whoever met it may
    /// have given up.
    fn lost(&self) {
        if let Self::Member(_, cluster) = self
            && let Some(cluster) = cluster.upgrade()
        {
            tokio::spawn(async move { cluster.refresh_quietly().await });
        }
    }
}

/// How connections for commands are made.
pub(super) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(COMMAND_TIME))
        // Every command has ours, which counts connecting as well.
        .set_response_timeout(None)
}

/// Connects for commands.
pub(super) async fn open(client: &Client) -> RedisResult<MultiplexedConnection> {
    client.get_multiplexed_async_connection_with_config(&config()).await
}

/// Connects for what the server may say of its own accord (RESP3).
pub(super) async fn pushing(
    client: &Client,
    hear: impl AsyncPushSender,
) -> RedisResult<MultiplexedConnection> {
    let info = client.get_connection_info().clone();
    let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let client = Client::open(info.set_redis_settings(redis))?;
    client.get_multiplexed_async_connection_with_config(&config().set_push_sender(hear)).await
}

/// A connection, and which one it is.
#[derive(Clone)]
pub(super) struct Open {
    pub(super) connection: MultiplexedConnection,
    pub(super) number: u64,
    moves: u64,
    pub(super) identity: Arc<Identity>,
    /// Somebody is finding out whether it is dead.
    doubted: Arc<AtomicBool>,
}

/// How many were made.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// A connection that is made when it is needed.
pub(super) struct Link {
    pub(super) origin: Origin,
    /// Where connections are made, and live.
    pub(super) runtime: Handle,
    open: Arc<Mutex<Option<Open>>>,
    opening: Arc<tokio::sync::Mutex<()>>,
}

impl Link {
    pub(super) fn to(origin: Origin, runtime: Handle) -> Self {
        Self { origin, runtime, open: Arc::default(), opening: Arc::default() }
    }

    fn current(&self) -> Option<Open> {
        let open = self.open.lock().clone()?;
        self.is_right(&open).then_some(open)
    }

    /// The connection; one is made, by one task for all, where there is none.
    ///
    /// That task goes on when the caller gives up. Whoever is next has waited almost as long as that
    /// one, and so has everybody behind him: none of them would have the time to connect.
    pub(super) async fn connection(&self) -> Result<Open> {
        if let Some(open) = self.current() {
            return Ok(open);
        }
        // Apart, because it is rare, and large.
        Box::pin(self.make()).await
    }

    async fn make(&self) -> Result<Open> {
        let alone = Arc::clone(&self.opening).lock_owned().await;
        if let Some(open) = self.current() {
            return Ok(open);
        }
        let (origin, opened) = (self.origin.clone(), Arc::clone(&self.open));
        let connecting = self.runtime.spawn(async move {
            let _alone = alone;
            let open = connect_in_time(&origin).await?;
            *opened.lock() = Some(open.clone());
            Ok(open)
        });
        connecting.await.unwrap_or(Err(Error::ShutDown))
    }

    /// A connection that nobody else has.
    pub(super) async fn another(&self) -> Result<Open> {
        let origin = self.origin.clone();
        let connecting = self.runtime.spawn(async move { connect_in_time(&origin).await });
        connecting.await.unwrap_or(Err(Error::ShutDown))
    }

    /// Whether that is still a connection to the right server, as far as is known.
    pub(super) fn is_right(&self, open: &Open) -> bool {
        open.moves == self.origin.moves()
    }

    /// That connection is of no use any more.
    pub(super) fn forget(&self, number: u64) {
        forget(&self.open, number);
    }

    /// A command on that connection was given up before there was an answer. Whether there would have been one is found out in
    /// the background, once at a time: whoever has less patience than that takes would keep a dead connection for ever.
    pub(super) fn doubt(&self, mut doubted: Open) {
        if doubted.doubted.swap(true, Ordering::Relaxed) {
            return;
        }
        let (origin, open) = (self.origin.clone(), Arc::clone(&self.open));
        self.runtime.spawn(async move {
            let ping = redis::cmd("PING");
            let answer = answer_within(COMMAND_TIME, ping.exec_async(&mut doubted.connection));
            // A refusal is an answer.
            let dead = match answer.await {
                Some(answer) => answer.is_err_and(|error| error.is_unrecoverable_error()),
                None => true,
            };
            doubted.doubted.store(false, Ordering::Relaxed);
            if dead {
                forget(&open, doubted.number);
                origin.lost();
            }
        });
    }
}

fn forget(open: &Mutex<Option<Open>>, number: u64) {
    let mut open = open.lock();
    if open.as_ref().is_some_and(|open| open.number == number) {
        *open = None;
    }
}

async fn connect_in_time(origin: &Origin) -> Result<Open> {
    let connecting = tokio::time::timeout(2 * COMMAND_TIME, connect(origin)).await;
    let connected = connecting.unwrap_or_else(|_| Err(unanswered(2 * COMMAND_TIME)));
    connected.inspect_err(|_| origin.lost())
}

async fn connect(origin: &Origin) -> Result<Open> {
    let (client, moves) = origin.find().await?;
    let connection = open(&client).await.map_err(|error| failed("connecting", error))?;
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let (identity, doubted) = (Arc::default(), Arc::default());
    Ok(Open { connection, number, moves, identity, doubted })
}
