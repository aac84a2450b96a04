//! The servers that a store and its filters share, and whose writing counts there.

use lockkeeper::backend::redis::keyspace::Keyspace;
use lockkeeper::{Result, Url};
use redis::{Cmd, FromRedisValue, Script};
use std::borrow::Cow;

/// What all write who do not care which server they write to.
const NOBODY: u64 = 0;

/// The servers of a URL.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) keyspace: Keyspace,
    /// Whether what another server has written counts.
    pub(crate) warm: bool,
}

impl Servers {
    pub(crate) async fn connect(url: &str, warm: bool) -> Result<Self> {
        let url: Url = url.parse()?;
        Ok(Self { keyspace: Keyspace::connect(&url).await?, warm })
    }

    /// With what the URL wants all keys to begin with.
    pub(crate) fn key<'a>(&self, key: &'a str) -> Cow<'a, str> {
        match self.keyspace.prefix() {
            "" => Cow::Borrowed(key),
            prefix => Cow::Owned(format!("{prefix}{key}")),
        }
    }

    /// An answer, and the server that gave it; [`NOBODY`] where it does not matter.
    pub(crate) async fn ask<T: FromRedisValue>(
        &self,
        key: &str,
        command: &Cmd,
    ) -> Result<(T, u64)> {
        match self.warm {
            true => self.keyspace.query(key, command).await.map(|answer| (answer, NOBODY)),
            false => self.keyspace.query_signed(key, command).await,
        }
    }

    /// Runs a script on keys that are in one place. Its last argument, of 8 bytes, says which server runs it.
    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> Result<T> {
        match self.warm {
            true => self.run_for_nobody(script, keys, args).await,
            false => self.keyspace.run_signed(script, keys, args).await,
        }
    }

    /// The same under a lease, which the server has granted: that is the one, and need not be asked who it is. Another one has no
    /// such lease.
    pub(crate) async fn go_on<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> Result<T> {
        match self.warm {
            true => self.run_for_nobody(script, keys, args).await,
            false => self.keyspace.run_signed_as_before(script, keys, args).await,
        }
    }

    async fn run_for_nobody<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> Result<T> {
        let nobody = NOBODY.to_be_bytes();
        self.keyspace.run(script, keys, &[args, &[&nobody]].concat()).await
    }
}
