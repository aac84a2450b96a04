//! Lockkeeper as a contender, with and without a fence.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::backend::zookeeper::Guarded;
use lockkeeper::clock::Instant;
use lockkeeper::fence::redis::Key;
use lockkeeper::fence::{self, Mark};
use lockkeeper::{Guard, Locks};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use zookeeper_client as zk;

use super::home_made::in_etcd;
use super::late_writer::Contender;
use super::shop::Shop;
use crate::bench::connect;
use crate::error::{Error, Result};
use crate::gate::{PATIENCE, within};

/// What refuses a late write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fence {
    /// Nothing.
    None,
    /// The resource, a key of Redis: it has seen a newer token.
    Token,
    /// The resource, a key of Redis: it bears the mark of somebody else.
    Mark,
    /// etcd, where the resource is as well: the lock is not there any more.
    Etcd,
    /// ZooKeeper, where the resource is as well: the same.
    ZooKeeper,
}

/// How soon a write is sent again.
const AGAIN: Duration = Duration::from_millis(20);
/// The node of ZooKeeper, and the key of etcd, that is written under the lock.
pub(super) const RESOURCE: &str = "/stock";
/// The same in Base64.
const RESOURCE_OF_ETCD: &str = "L3N0b2Nr";

/// What a guarded write says that ZooKeeper has checked and refused.
pub(super) const NODE_GONE: &str =
    "ZooKeeper checks and refuses the write: the lock's node is gone";

/// A client with a lock of Lockkeeper.
#[derive(Debug)]
pub(super) struct Keeper {
    locks: Locks,
    name: String,
    fence: Fence,
    /// Where the resource is, if it is in Redis.
    shop: Option<MultiplexedConnection>,
    guard: Option<Guard>,
    /// Made while the lock is held.
    guarded: Option<Guarded>,
}

impl Keeper {
    /// Connects. `shop` is the Redis server where the resource is, for fences there.
    pub(super) async fn connect(
        url: &str,
        ttl: Duration,
        name: &str,
        fence: Fence,
        shop: Option<&str>,
    ) -> Result<Self> {
        let locks = patiently(|| Locks::connect(url)).await?.ttl(ttl);
        let shop = match shop {
            Some(url) => Some(connect(url).await?),
            None => None,
        };
        Ok(Self { locks, name: name.into(), fence, shop, guard: None, guarded: None })
    }

    fn guard(&self) -> Result<&Guard> {
        self.guard.as_ref().ok_or_else(|| Error::Other("the lock was not taken".into()))
    }

    /// The fenced key, and the way to it.
    fn resource(&self) -> Result<(Key, MultiplexedConnection)> {
        let key = Key::new(stock_of(&self.name)).map_err(other)?;
        let shop = self.shop.clone();
        Ok((key, shop.ok_or_else(|| Error::Other("the resource is not in Redis".into()))?))
    }
}

/// The key of Redis that is written under the lock of this name.
fn stock_of(name: &str) -> String {
    format!("{name}:stock")
}

/// What the resource says, read past its fence: as any client of the server can that it is on. Without a
/// fence nothing is written outside the shelf, and there is nothing to compare.
pub(super) async fn compare(
    shop: &Shop,
    fence: Fence,
    name: &str,
    redis: &str,
    address: SocketAddr,
) -> Result<()> {
    let says = match fence {
        Fence::None => return Ok(()),
        Fence::Token | Fence::Mark => connect(redis).await?.get(stock_of(name)).await?,
        Fence::Etcd => in_etcd(address, RESOURCE_OF_ETCD).await?,
        Fence::ZooKeeper => {
            let reading = async {
                let client = zk::Client::connect(&address.to_string()).await?;
                client.get_data(RESOURCE).await
            };
            let (data, _) = reading.await.map_err(other)?;
            Some(String::from_utf8_lossy(&data).into_owned())
        }
    };
    shop.compare(says.as_deref());
    Ok(())
}

impl Contender for Keeper {
    async fn take(&mut self) -> Result<String> {
        // One that was lost; nobody waits for oneself.
        drop(self.guard.take());
        let mutex = self.locks.mutex(&self.name);
        let in_zookeeper = self.fence == Fence::ZooKeeper;
        let taking = || async {
            let guard = mutex.lock().await?;
            let guarded = if in_zookeeper { Some(guard.zookeeper()?) } else { None };
            Ok((guard, guarded))
        };
        let (guard, guarded) = patiently(taking).await?;
        self.guarded = guarded;
        let mut text = "lock() → held".to_owned();
        match self.fence {
            Fence::None | Fence::Etcd | Fence::ZooKeeper => {}
            Fence::Token => {
                let token = guard.token();
                let (key, mut shop) = self.resource()?;
                // Before anything is read: from now on nobody older can write.
                key.under(token).raise(&mut shop).await.map_err(other)?;
                text = format!("lock() → token {token}, shown to the resource");
            }
            Fence::Mark => {
                let (key, mut shop) = self.resource()?;
                key.mark(&Mark::of(&guard), &mut shop).await.map_err(other)?;
                text = "lock() → held, marks the resource".into();
            }
        }
        self.guard = Some(guard);
        Ok(text)
    }

    async fn holds(&mut self) -> Result<bool> {
        Ok(!self.guard()?.is_lost())
    }

    async fn write(&mut self, value: &str) -> Result<Option<String>> {
        match self.fence {
            Fence::None => Ok(None),
            Fence::Token => {
                let (key, mut shop) = self.resource()?;
                refused(key.under(self.guard()?.token()).set(value, &mut shop).await)
            }
            Fence::Mark => {
                let (key, mut shop) = self.resource()?;
                refused(key.marked(&Mark::of(self.guard()?)).set(value, &mut shop).await)
            }
            Fence::Etcd => match self.guard()?.txn()?.put(RESOURCE, value).commit().await {
                Ok(_) => Ok(None),
                Err(lockkeeper::Error::Lost { .. }) => {
                    Ok(Some("etcd refuses the write: the lock's key is gone".into()))
                }
                Err(error) => Err(error.into()),
            },
            Fence::ZooKeeper => {
                let guarded = self.guarded.as_ref();
                let guarded = guarded.ok_or_else(|| Error::Other("not taken".into()))?;
                let writing = write_guarded(guarded, value);
                within(PATIENCE, "an answer of ZooKeeper", writing).await?
            }
        }
    }

    async fn give_back(self) -> Result<()> {
        let Some(guard) = self.guard else { return Ok(()) };
        match guard.release().await {
            // On a machine that is busy with other things: it ends by itself, and what counts is written.
            Ok(()) | Err(lockkeeper::Error::Lost { .. } | lockkeeper::Error::Unknown { .. }) => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Asks again what fails for now, or was lost meanwhile: on a busy machine servers may be slow to answer.
pub(super) async fn patiently<T, F>(ask: impl Fn() -> F + Send) -> Result<T>
where
    F: Future<Output = lockkeeper::Result<T>> + Send,
{
    let since = Instant::now();
    loop {
        match ask().await {
            Ok(done) => return Ok(done),
            Err(error) if may_pass(&error) && Instant::now().since(since) < PATIENCE => {
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn may_pass(error: &lockkeeper::Error) -> bool {
    error.is_transient() || matches!(error, lockkeeper::Error::Lost { .. })
}

/// A connection that broke while its client stood still says nothing about the write, which may be sent again.
async fn write_guarded(guarded: &Guarded, value: &str) -> Result<Option<String>> {
    loop {
        let mut writer = guarded.writer()?;
        writer.add_set_data(RESOURCE, value.as_bytes(), None).map_err(other)?;
        match writer.commit().await {
            Ok(_) => return Ok(None),
            Err(zk::CheckWriteError::CheckFailed { .. }) => {
                return Ok(Some(NODE_GONE.into()));
            }
            Err(zk::CheckWriteError::RequestFailed { source }) if ended(&source) => {
                return Ok(Some(
                    "refused before the check: the session of the lock is over".into(),
                ));
            }
            Err(zk::CheckWriteError::RequestFailed { .. }) => tokio::time::sleep(AGAIN).await,
            Err(error) => return Err(other(error)),
        }
    }
}

/// Whether the session that held the lock is over.
fn ended(error: &zk::Error) -> bool {
    matches!(error, zk::Error::SessionExpired | zk::Error::ClientClosed)
}

/// A refusal is no failure.
fn refused(written: fence::Result<()>) -> Result<Option<String>> {
    match written {
        Ok(()) => Ok(None),
        Err(fence::Error::Stale(stale)) => Ok(Some(match stale.newest {
            Some(newest) => format!("refused: token {} is older than {newest}", stale.token),
            None => format!("refused: token {} is stale", stale.token),
        })),
        Err(fence::Error::Overtaken { .. }) => {
            Ok(Some("refused: the resource bears another's mark".into()))
        }
        Err(error) => Err(other(error)),
    }
}

fn other(error: impl std::fmt::Display) -> Error {
    Error::Other(error.to_string())
}
