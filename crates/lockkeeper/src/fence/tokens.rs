//! The largest token of each lock, for resources that have no place of their own for it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{Error, Result, Stale};
use crate::name::Name;
use crate::token::Token;

/// Remembers the largest token that was seen of each lock.
///
/// | store | remembers |
/// | --- | --- |
/// | [`MemoryTokens`] | until the process ends, for this process alone |
/// | `fence::redis::RedisTokens` | as long as Redis does, for all that use it |
/// | `fence::sql::SqlTokens` | as long as the database does, for all that use it |
///
/// It must be what all processes of a service share, and it must survive a restart of it: a store that has
/// forgotten lets one late request pass.
#[async_trait]
pub trait TokenStore: fmt::Debug + Send + Sync + 'static {
    /// Lets a token pass unless a larger one was seen, and remembers it: durably before this returns, and
    /// with the comparison in one step. An equal one passes.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] for a token that is too old. [`Error::Store`] and others: it is not known; let
    /// nothing pass.
    async fn raise(&self, name: &Name, token: Token) -> Result<()>;
}

/// The same store, for several layers of one process.
#[async_trait]
impl<T: TokenStore + ?Sized> TokenStore for Arc<T> {
    async fn raise(&self, name: &Name, token: Token) -> Result<()> {
        (**self).raise(name, token).await
    }
}

/// Tokens in memory: for tests, and for services that are one process whose resource ends with it.
///
/// A restart forgets them. Each name takes some hundred bytes for ever; what is beyond the limit is refused
/// and nothing is forgotten.
///
/// ```
/// # use lockkeeper::Token;
/// use lockkeeper::fence::{MemoryTokens, TokenStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (tokens, name) = (MemoryTokens::default(), "orders/42".parse()?);
/// # let token = |number| Token::new(number).unwrap();
/// tokens.raise(&name, token(7)).await?;
/// tokens.raise(&name, token(7)).await?;
/// let late = tokens.raise(&name, token(6)).await.unwrap_err();
/// assert_eq!(late.stale().and_then(|stale| stale.newest), Some(token(7)));
/// # Ok(())
/// # }
/// ```
pub struct MemoryTokens {
    largest: Mutex<HashMap<Name, Token>>,
    limit: usize,
}

impl MemoryTokens {
    /// For so many names at most.
    pub fn with_limit(limit: usize) -> Self {
        Self { largest: Mutex::default(), limit }
    }
}

/// For a million names.
impl Default for MemoryTokens {
    fn default() -> Self {
        Self::with_limit(1_000_000)
    }
}

impl fmt::Debug for MemoryTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.largest.lock().len();
        f.debug_struct("MemoryTokens").field("names", &names).field("limit", &self.limit).finish()
    }
}

#[async_trait]
impl TokenStore for MemoryTokens {
    async fn raise(&self, name: &Name, token: Token) -> Result<()> {
        let mut all = self.largest.lock();
        let count = all.len();
        match all.get_mut(name) {
            Some(largest) if *largest > token => {
                let (resource, newest) = (name.to_string(), Some(*largest));
                Err(Error::Stale(Stale { resource, token, newest }))
            }
            Some(largest) => {
                *largest = token;
                Ok(())
            }
            None if count >= self.limit => {
                let context = format!("{count} names have tokens already, which is the limit");
                Err(Error::Store { context, source: None })
            }
            None => {
                all.insert(name.clone(), token);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_beyond_the_limit_are_refused_and_none_is_forgotten() {
        let tokens = MemoryTokens::with_limit(1);
        let [one, two] = ["one", "two"].map(|name| name.parse().unwrap());
        let token = |number| Token::new(number).unwrap();
        tokens.raise(&one, token(2)).await.unwrap();
        assert!(matches!(tokens.raise(&two, token(9)).await, Err(Error::Store { .. })));
        assert!(tokens.raise(&one, token(1)).await.unwrap_err().stale().is_some());
        tokens.raise(&one, token(3)).await.unwrap();
    }
}
