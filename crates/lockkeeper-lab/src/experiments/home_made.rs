//! Home-made locks for one client that stands still: in Redis, etcd and ZooKeeper.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::clock::Instant;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use zookeeper_client as zk;

use super::late_writer::Contender;
use crate::bench::{connect, set_nx};
use crate::error::{Error, Result};
use crate::gate::{PATIENCE, within};

/// How often somebody who waits asks again.
const AGAIN: Duration = Duration::from_millis(20);

/// `SET NX PX`, and `GET` to see whether it is still one's own.
#[derive(Debug)]
pub(super) struct InRedis {
    connection: MultiplexedConnection,
    key: String,
    value: &'static str,
    ttl: Duration,
}

impl InRedis {
    pub(super) async fn connect(
        url: &str,
        key: &str,
        value: &'static str,
        ttl: Duration,
    ) -> Result<Self> {
        Ok(Self { connection: connect(url).await?, key: key.into(), value, ttl })
    }
}

impl Contender for InRedis {
    async fn take(&mut self) -> Result<String> {
        while !set_nx(&mut self.connection, &self.key, self.value, Some(self.ttl)).await? {
            tokio::time::sleep(AGAIN).await;
        }
        Ok(format!("SET lock NX PX {} → OK", self.ttl.as_millis()))
    }

    async fn holds(&mut self) -> Result<bool> {
        let owner: Option<String> = self.connection.get(&self.key).await?;
        Ok(owner.as_deref() == Some(self.value))
    }

    async fn write(&mut self, _value: &str) -> Result<Option<String>> {
        Ok(None)
    }

    async fn give_back(mut self) -> Result<()> {
        Ok(self.connection.del(&self.key).await?)
    }
}

/// An ephemeral node: whoever creates it has the lock for as long as its session lives.
#[derive(Debug)]
pub(super) struct InZooKeeper {
    address: SocketAddr,
    session: Duration,
    client: zk::Client,
}

/// The node of the lock.
const NODE: &str = "/lock";

impl InZooKeeper {
    pub(super) async fn connect(address: SocketAddr, session: Duration) -> Result<Self> {
        Ok(Self { address, session, client: open(address, session).await? })
    }
}

/// A session. A server that was just started may be slow on a busy machine, and is asked again.
async fn open(address: SocketAddr, session: Duration) -> Result<zk::Client> {
    let (address, since) = (address.to_string(), Instant::now());
    loop {
        let connector = zk::Client::connector().with_session_timeout(session);
        match connector.connect(&address).await {
            Ok(client) => return Ok(client),
            Err(_) if Instant::now().since(since) < PATIENCE => tokio::time::sleep(AGAIN).await,
            Err(error) => return Err(other(error)),
        }
    }
}

impl Contender for InZooKeeper {
    async fn take(&mut self) -> Result<String> {
        let options = zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all());
        loop {
            match self.client.create(NODE, b"", &options).await {
                Ok(_) => return Ok(format!("creates the ephemeral node {NODE}")),
                Err(zk::Error::NodeExists) => tokio::time::sleep(AGAIN).await,
                // What the old session may have created ends with it.
                Err(_) => self.client = open(self.address, self.session).await?,
            }
        }
    }

    async fn holds(&mut self) -> Result<bool> {
        let since = Instant::now();
        loop {
            match self.client.check_stat(NODE).await {
                Ok(stat) => {
                    let ours = self.client.session_id().0;
                    return Ok(stat.is_some_and(|stat| stat.ephemeral_owner == ours));
                }
                Err(zk::Error::SessionExpired | zk::Error::ClientClosed) => return Ok(false),
                // A connection that broke while its client stood still.
                Err(_) if Instant::now().since(since) < PATIENCE => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => return Err(other(error)),
            }
        }
    }

    async fn write(&mut self, _value: &str) -> Result<Option<String>> {
        Ok(None)
    }

    async fn give_back(self) -> Result<()> {
        // If it fails, the node goes with the session, which ends here.
        let _ = self.client.delete(NODE, None).await;
        Ok(())
    }
}

/// A key with a lease that is kept alive: by etcd's gateway, in JSON.
#[derive(Debug)]
pub(super) struct InEtcd {
    address: SocketAddr,
    ttl: Duration,
    /// That of the key.
    lease: Option<String>,
    renewing: Option<AbortHandle>,
}

/// `lock`, and a value, as the gateway wants them.
const KEY: &str = "bG9jaw==";
const VALUE: &str = "MQ==";

impl InEtcd {
    pub(super) fn at(address: SocketAddr, ttl: Duration) -> Self {
        Self { address, ttl, lease: None, renewing: None }
    }
}

impl Contender for InEtcd {
    async fn take(&mut self) -> Result<String> {
        let (address, seconds) = (self.address, self.ttl.as_secs());
        let granted = post(address, "lease/grant", &format!(r#"{{"TTL":"{seconds}"}}"#)).await?;
        let lease =
            text_of(&granted, "ID").ok_or_else(|| other("etcd granted no lease"))?.to_owned();
        let keep = format!(r#"{{"ID":"{lease}"}}"#);
        let pause = self.ttl / 4;
        let renewing = tokio::spawn(async move {
            // What fails is sent again; whether the lease still lives it does not ask.
            loop {
                tokio::time::sleep(pause).await;
                let _ = post(address, "lease/keepalive", &keep).await;
            }
        });
        self.renewing = Some(renewing.abort_handle());
        let create = format!(
            r#"{{"compare":[{{"target":"CREATE","key":"{KEY}","create_revision":"0"}}],
                "success":[{{"request_put":{{"key":"{KEY}","value":"{VALUE}","lease":"{lease}"}}}}]}}"#
        );
        while !post(address, "kv/txn", &create).await?.contains(r#""succeeded":true"#) {
            tokio::time::sleep(AGAIN).await;
        }
        self.lease = Some(lease);
        Ok("creates the key lock with its lease".into())
    }

    async fn holds(&mut self) -> Result<bool> {
        let there = post(self.address, "kv/range", &format!(r#"{{"key":"{KEY}"}}"#)).await?;
        Ok(self.lease.is_some() && text_of(&there, "lease") == self.lease.as_deref())
    }

    async fn write(&mut self, _value: &str) -> Result<Option<String>> {
        Ok(None)
    }

    async fn give_back(self) -> Result<()> {
        post(self.address, "kv/deleterange", &format!(r#"{{"key":"{KEY}"}}"#)).await.map(drop)
    }
}

impl Drop for InEtcd {
    fn drop(&mut self) {
        if let Some(renewing) = &self.renewing {
            renewing.abort();
        }
    }
}

/// The value of a key of etcd, which is named as the gateway wants it.
pub(super) async fn in_etcd(address: SocketAddr, key: &str) -> Result<Option<String>> {
    let answer = post(address, "kv/range", &format!(r#"{{"key":"{key}"}}"#)).await?;
    Ok(text_of(&answer, "value").map(decoded))
}

/// What a text in Base64 says.
fn decoded(text: &str) -> String {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.chars().map_while(|digit| DIGITS.find(digit));
    let bits = digits.flat_map(|digit| (0..6).rev().map(move |bit| digit >> bit & 1 == 1));
    let bits: Vec<bool> = bits.collect();
    let byte = |bits: &[bool]| bits.iter().fold(0, |byte: u8, bit| byte << 1 | u8::from(*bit));
    let bytes: Vec<u8> = bits.chunks_exact(8).map(byte).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Asks etcd's gateway; its answer, with the head.
async fn post(address: SocketAddr, what: &str, body: &str) -> Result<String> {
    let asking = async {
        let mut stream = TcpStream::connect(address).await?;
        let length = body.len();
        let head = format!("POST /v3/{what} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer: Result<String> = within(PATIENCE, "an answer of etcd", asking).await?;
    let answer = answer?;
    let first = answer.lines().next().unwrap_or_default();
    if first.contains(" 200") { Ok(answer) } else { Err(other(format!("etcd says {first}"))) }
}

/// The text of a member of a JSON object, found without reading the rest.
fn text_of<'a>(json: &'a str, member: &str) -> Option<&'a str> {
    let (_, rest) = json.split_once(&format!("\"{member}\":\""))?;
    rest.split('"').next()
}

fn other(error: impl std::fmt::Display) -> Error {
    Error::Other(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_found_in_the_answer() {
        let answer = r#"{"header":{"revision":"1"},"ID":"7587862","TTL":"2"}"#;
        assert_eq!(text_of(answer, "ID"), Some("7587862"));
        assert_eq!(text_of(answer, "lease"), None);
    }

    #[test]
    fn what_the_gateway_says_is_decoded() {
        assert_eq!(decoded(KEY), "lock");
        assert_eq!(decoded(VALUE), "1");
        assert_eq!(decoded("OSBieSBjbGllbnQgMg=="), "9 by client 2");
        assert_eq!(decoded(""), "");
    }
}
