//! Commands and scripts of one's own at the servers that a URL names.
//!
//! For what is no lock and is to be at the same servers, found in the same way: the one there is, the master
//! that the sentinels name, or the one of a cluster that has the slot. Connections are its own and come back
//! by themselves.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Script};
use tokio::runtime::Handle;

use super::commands::{Sign, evalsha};
pub use super::follow::Follower;
use super::follow::follow;
use super::nodes::{Node, Nodes};
use crate::backend::register::Register;
use crate::error::{Error, Result};
use crate::url::Url;

/// The servers of a URL.
///
/// # Cost
///
/// One round trip for each call, on one connection for all, and a second connection that listens; in a
/// cluster both for each master in use. A script takes one more round trip the first time.
pub struct Keyspace {
    nodes: Arc<Nodes>,
    /// Where its tasks live.
    runtime: Handle,
    nothing: Script,
    prefix: String,
}

impl Keyspace {
    /// Connects to the servers of a URL that begins with `redis` or `rediss`. Must be called inside a tokio
    /// runtime, where its connections then live.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for the URL of another store, [`Error::Config`] for a file that makes no sense,
    /// [`Error::Unavailable`] when no server can be reached.
    pub async fn connect(url: &Url) -> Result<Self> {
        let Some((servers, place, options)) = url.redis() else {
            let what = "commands of Redis".into();
            return Err(Error::Unsupported { backend: url.scheme(), what });
        };
        let requests = Arc::new(Register::new());
        let nodes = Nodes::connect(servers, &place, options, &requests).await?;
        let (nodes, runtime) = (Arc::new(nodes), requests.runtime().clone());
        let (nothing, prefix) = (Script::new("return 0"), options.prefix.clone());
        Ok(Self { nodes, runtime, nothing, prefix })
    }

    /// What the URL wants all keys to begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Keys for which this is the same may be in one command.
    pub fn place(&self, key: &str) -> u16 {
        self.nodes.place(key)
    }

    /// Sends a command to the server that has `key`. It is sent once, except to another server when the first
    /// says that it does not have the key.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`]: refused, or no answer within a second. A write may have been carried out or not,
    /// and may be carried out later.
    pub async fn query<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> Result<T> {
        Ok(self.nodes.query(key, &self.nothing, command, Sign::No).await?.0)
    }

    /// The same, and who has answered: a number that is another one for a server that was started again, for a
    /// replica that has taken over, and for a master that was a replica meanwhile. All clients know it by the same
    /// number. It is asked for when a connection is new, and every few seconds.
    ///
    /// # Errors
    ///
    /// As for [`query`](Self::query), and when the user may not send `INFO`.
    pub async fn query_signed<T: FromRedisValue>(
        &self,
        key: &str,
        command: &Cmd,
    ) -> Result<(T, u64)> {
        let answered = self.nodes.query(key, &self.nothing, command, Sign::Answer).await?;
        Ok((answered.0, answered.1.unwrap_or(0)))
    }

    /// After this time a query has an answer or has failed; `None` for a cluster, where it may be sent on.
    pub fn answers_within(&self) -> Option<Duration> {
        self.nodes.longest()
    }

    /// Tells a follower of every change of keys that begin so, at all servers, until it does not want to hear. Every so often
    /// it is asked how far that has been heard. Needs Redis 6; it is said in the log when a server refuses.
    ///
    /// # Cost
    ///
    /// A connection of its own to each server, and a message for each change.
    pub fn follow(&self, prefix: &str, every: Duration, follower: impl Follower) {
        let (nodes, prefix) = (Arc::clone(&self.nodes), prefix.to_owned());
        let following = follow(nodes, prefix, every, Arc::new(follower));
        self.runtime.spawn(following);
    }

    /// Runs a script on keys that are in one [place](Self::place), of which there is at least one.
    ///
    /// # Errors
    ///
    /// As for [`query`](Self::query).
    pub async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&str],
        arguments: &[&[u8]],
    ) -> Result<T> {
        let (first, step) = step(script, keys, arguments);
        Ok(self.nodes.invoke(first, script, step, None).await?.value)
    }

    /// The same, with one more argument: 8 bytes with the number of the server that runs it, as
    /// [`query_signed`](Self::query_signed) gives it.
    ///
    /// # Errors
    ///
    /// As for [`query_signed`](Self::query_signed).
    pub async fn run_signed<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&str],
        arguments: &[&[u8]],
    ) -> Result<T> {
        self.run_with(script, keys, arguments, Sign::Both).await
    }

    /// The same, for what goes on with something that [`run_signed`](Self::run_signed) has begun: the server is the one that it was
    /// then, as far as this client knows, and is not asked again. One round trip in any case, if the connection is still there.
    ///
    /// # Errors
    ///
    /// As for [`query_signed`](Self::query_signed).
    pub async fn run_signed_as_before<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&str],
        arguments: &[&[u8]],
    ) -> Result<T> {
        self.run_with(script, keys, arguments, Sign::BothAsBefore).await
    }

    async fn run_with<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&str],
        arguments: &[&[u8]],
        sign: Sign,
    ) -> Result<T> {
        let (first, step) = step(script, keys, arguments);
        Ok(self.nodes.invoke_signed(first, script, step, None, sign).await?.value)
    }

    /// Every server that has keys, as far as is known now, for commands that are about all of them; in the
    /// order of their addresses.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when one of them cannot be reached.
    pub async fn masters(&self) -> Result<Vec<Master>> {
        let mut masters: Vec<Master> = self.nodes.all().await?.into_iter().map(Master).collect();
        masters.sort_by(|one, other| one.address().cmp(other.address()));
        Ok(masters)
    }
}

/// The key that a script goes by, and how to call it.
fn step<'a>(
    script: &'a Script,
    keys: &'a [&'a str],
    arguments: &'a [&'a [u8]],
) -> (&'a str, impl Fn(&str) -> Cmd + Send + 'a) {
    let step = move |_: &str| {
        let mut step = evalsha(script, keys.len());
        step.arg(keys).arg(arguments);
        step
    };
    (keys.first().copied().unwrap_or_default(), step)
}

/// One server of a [`Keyspace`].
pub struct Master(Arc<Node>);

impl Master {
    /// Its address as others of its cluster call it; nothing where there is only one.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// Sends a command, once.
    ///
    /// # Errors
    ///
    /// As for [`Keyspace::query`].
    pub async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        self.0.commands.run(&Script::new("return 0"), command).await
    }
}

impl fmt::Debug for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Master").field(&self.0.address).finish()
    }
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyspace").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
