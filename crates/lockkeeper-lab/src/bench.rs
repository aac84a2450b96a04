//! What a variant works with.

use std::time::Duration;

use lockkeeper::Locks;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::error::{Error, Result};
use crate::gate::PATIENCE;
use crate::random::Random;
use crate::servers::Server;

/// What one variant works with: its servers, its names, its random numbers.
#[derive(Debug)]
pub struct Bench {
    seed: u64,
    prefix: String,
    url: Option<String>,
}

impl Bench {
    /// For one variant. `url` is a Redis server that others use as well, else one is started.
    pub fn new(seed: u64, run: &str, url: Option<String>) -> Self {
        Self { seed, prefix: prefix(run), url }
    }

    /// Random numbers, the same for every run with this seed.
    pub fn random(&self) -> Random {
        Random::from_seed(self.seed)
    }

    /// A key, or the name of a lock, that nobody else uses.
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// A Redis server: that of `--url`, or a fresh one.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub async fn redis(&self) -> Result<Redis> {
        let (url, server) = match &self.url {
            Some(url) => (url.clone(), None),
            None => {
                let server = Server::redis(&[]).await?;
                (server.url(), Some(server))
            }
        };
        Ok(Redis { url, _server: server })
    }
}

/// What the names of a run have in common.
pub(crate) fn prefix(run: &str) -> String {
    format!("lockkeeper-lab:{run}:")
}

/// Removes the keys that have this in their names. What does not expire would stay there.
///
/// # Errors
///
/// When the server does not answer.
pub(crate) async fn remove(url: &str, part: &str) -> Result<()> {
    let mut connection = connect(url).await?;
    let pattern = format!("*{part}*");
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000);
        let (next, keys): (u64, Vec<String>) = scan.query_async(&mut connection).await?;
        for key in keys {
            connection.unlink::<_, ()>(key).await?;
        }
        cursor = next;
        if cursor == 0 {
            return Ok(());
        }
    }
}

/// A Redis server with nothing of ours in it.
#[derive(Debug)]
pub struct Redis {
    url: String,
    _server: Option<Server>,
}

impl Redis {
    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A connection of one's own.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub async fn connect(&self) -> Result<MultiplexedConnection> {
        connect(&self.url).await
    }

    /// Lockkeeper, with a connection of its own: what another process has.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub async fn locks(&self) -> Result<Locks> {
        Ok(Locks::connect(&self.url).await?)
    }
}

/// A connection to a Redis server.
///
/// # Errors
///
/// When it does not answer.
pub async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let url = url.split('?').next().unwrap_or(url);
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let client = redis::Client::open(url)?;
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

/// Waits until the server has dropped a key, and not longer than the bound.
///
/// # Errors
///
/// When it is still there then.
pub async fn gone(connection: &mut MultiplexedConnection, key: &str) -> Result<()> {
    let waiting = async {
        while connection.exists::<_, bool>(key).await? {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    };
    let late = |_| Error::Late(format!("the end of {key}"));
    tokio::time::timeout(PATIENCE, waiting).await.map_err(late)?
}

/// `SET key value NX`, with `PX` if there is a time; whether it was set.
///
/// # Errors
///
/// When the server does not answer.
pub async fn set_nx(
    connection: &mut MultiplexedConnection,
    key: &str,
    value: &str,
    ttl: Option<Duration>,
) -> Result<bool> {
    let mut set = redis::cmd("SET");
    set.arg(key).arg(value).arg("NX");
    if let Some(ttl) = ttl {
        set.arg("PX").arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    }
    let answer: Option<String> = set.query_async(connection).await?;
    Ok(answer.is_some())
}
