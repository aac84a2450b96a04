//! The largest token of each lock, in Redis.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::ConnectionLike;

use super::{Key, Result};
use crate::fence::TokenStore;
use crate::name::Name;
use crate::token::Token;

/// A [`TokenStore`] in Redis: a key for each name, `lockkeeper:fence=lockkeeper:tokens{…}`, and what
/// [the module](super) says of fences.
///
/// The connection is cloned for each request: one of the driver's that can be shared, such as
/// `MultiplexedConnection`, `ConnectionManager` and the asynchronous one to a cluster.
///
/// ```no_run
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper::fence::redis::{RedisTokens, redis};
/// let client = redis::Client::open("redis://localhost")?;
/// let tokens = RedisTokens::new(client.get_connection_manager().await?);
/// # drop(tokens);
/// # Ok(())
/// # }
/// ```
pub struct RedisTokens<C> {
    connection: C,
    keep: Option<Duration>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisTokens<C> {
    /// On this connection. Tokens stay for ever.
    pub fn new(connection: C) -> Self {
        Self { connection, keep: None }
    }

    /// Forgets a name after so long without a request, as [`Key::keep`] says.
    #[must_use]
    pub fn keep(self, time: Duration) -> Self {
        Self { keep: Some(time), ..self }
    }

    /// The key of a name. Braces of its own would end the tag too early.
    fn key(&self, name: &Name) -> Result<Key> {
        let escaped = name.as_str().replace('%', "%25").replace('{', "%7B").replace('}', "%7D");
        let key = Key::new(format!("lockkeeper:tokens{{{escaped}}}"))?;
        self.keep.map_or(Ok(key.clone()), |time| key.keep(time))
    }
}

impl<C> fmt::Debug for RedisTokens<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisTokens").field("keep", &self.keep).finish_non_exhaustive()
    }
}

#[async_trait]
impl<C: ConnectionLike + Clone + Send + Sync + 'static> TokenStore for RedisTokens<C> {
    async fn raise(&self, name: &Name, token: Token) -> Result<()> {
        let key = self.key(name)?;
        let raised = key.under(token).raise(&mut self.connection.clone()).await;
        raised.map_err(|error| error.of(name.as_str()))
    }
}
