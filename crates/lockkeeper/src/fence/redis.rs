//! Keys of Redis that refuse late writers.
//!
//! The largest token is in a key of its own beside the value, in the same slot of a cluster, and is compared
//! and set by the script that writes.
//!
//! ```no_run
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use lockkeeper::fence::Error;
//! use lockkeeper::fence::redis::{Key, Script, redis};
//!
//! let client = redis::Client::open("redis://localhost")?;
//! let mut connection = client.get_multiplexed_async_connection().await?;
//! let account = Key::new("account:42")?;
//!
//! let locks = lockkeeper::Locks::connect("redis://localhost").await?;
//! let guard = locks.mutex("accounts/42").lock().await?;
//! match account.under(guard.token()).set("100", &mut connection).await {
//!     Err(Error::Stale(late)) => eprintln!("somebody else was here: {late}"),
//!     other => other?,
//! }
//!
//! // Whatever else Redis can do, in one step with the comparison.
//! let pay = Script::new("return redis.call('DECRBY', KEYS[1], ARGV[1])");
//! let left: i64 =
//!     account.under(guard.token()).run(&pay, &[], &["5"], &mut connection).await?;
//! # let _ = left;
//! # Ok(())
//! # }
//! ```
//!
//! | key | its fence | its mark |
//! | --- | --- | --- |
//! | `account:42` | `lockkeeper:fence:{account:42}` | `lockkeeper:mark:{account:42}` |
//! | `{shop}:account:42` | `lockkeeper:fence={shop}:account:42` | `lockkeeper:mark={shop}:account:42` |
//!
//! # What it promises
//!
//! A write under a token that is older than the largest one that the key has seen changes nothing and is
//! [`Error::Stale`], with the newer token. An equal token writes as often as it likes. This holds between any
//! number of processes, for keys of any type, and also after the key was deleted or has expired: its fence
//! stays.
//!
//! # When it breaks
//!
//! - Writers that use plain commands are not stopped: all have to come this way.
//! - Redis forgets: with eviction of any key (`maxmemory-policy allkeys-…`), after a crash without
//!   `appendfsync always`, and when a replica takes over that had not got the last writes, the fence may be
//!   older than it was, and with it the value. The same server keeps both, so they go together or not at all
//!   unless evicted.
//! - The fence is raised first: if the write then fails, because a key has another type, nothing is written
//!   but older tokens are refused from then on.
//! - When the answer is lost it is not known whether the write was done: [`Error::Unknown`]. The driver's connection to
//!   a cluster sends it again by itself. For `set`, `hset` and `delete` that makes no difference; a script that adds may
//!   add twice: give such ones a client with `ClusterClientBuilder::retries(0)`, or let them remember what they did.
//!
//! # Cost
//!
//! One round trip, the first time on a server two. A key of some 60 bytes for each fenced key, for ever, or for as long
//! as [`Key::keep`] says.

mod script;
mod tokens;

use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

pub use redis;
use redis::aio::ConnectionLike;
use redis::{FromRedisValue, RedisError, ToRedisArgs, ToSingleRedisArg};

pub use self::script::Script;
use self::script::{By, Condition, refusal, store, written};
pub use self::tokens::RedisTokens;
use super::{Error, Mark, Result, Stale};
use crate::token::Token;

macro_rules! scripts {
    ($($name:ident = $lua:literal;)+) => {
        $(static $name: LazyLock<Script> = LazyLock::new(|| Script::new($lua));)+
    };
}

scripts! {
    SET = "redis.call('SET', KEYS[1], ARGV[1])";
    SET_FOR = "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])";
    HSET = "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])";
    DELETE = "return redis.call('DEL', KEYS[1])";
    NOTHING = "return 1";
}

/// A key that is fenced, of any type.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    key: Vec<u8>,
    fence: Vec<u8>,
    mark: Vec<u8>,
    /// In milliseconds.
    keep: Option<u64>,
}

impl Key {
    /// This key.
    ///
    /// ```
    /// use lockkeeper::fence::redis::Key;
    /// assert!(Key::new("account:42").is_ok());
    /// assert!(Key::new("{shop}:account:42").is_ok());
    /// assert!(Key::new("account}42").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a key whose fence could not be in the same slot of a cluster: an empty one,
    /// and one with a `}` that has no `{tag}`.
    pub fn new(key: impl AsRef<[u8]>) -> Result<Self> {
        let key = key.as_ref();
        let (fence, mark) = (beside("fence", key)?, beside("mark", key)?);
        Ok(Self { key: key.into(), fence, mark, keep: None })
    }

    /// Forgets its fence after so long without a write. It must be longer than any holder could be stopped
    /// and go on: who comes later than that is taken for the newest. Without it the fence stays for ever.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for less than a millisecond.
    pub fn keep(self, time: Duration) -> Result<Self> {
        Ok(Self { keep: Some(millis(time)?), ..self })
    }

    /// Writes under a token.
    pub fn under(&self, token: Token) -> Write<'_> {
        Write { key: self, token: Some(token), argument: token.to_string() }
    }

    /// Writes while this mark is there, instead of under a token: see [`Mark`].
    pub fn marked(&self, mark: &Mark) -> Write<'_> {
        Write { key: self, token: None, argument: mark.to_string() }
    }

    /// Leaves a mark, whatever mark was there: from now on whoever left that one cannot write. It stays
    /// until the next one, or for as long as [`keep`](Self::keep) says.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] and [`Error::Unknown`].
    pub async fn mark(
        &self,
        mark: &Mark,
        connection: &mut (impl ConnectionLike + Send),
    ) -> Result<()> {
        let mut command = redis::cmd("SET");
        command.arg(&self.mark).arg(mark.as_str());
        if let Some(keep) = self.keep {
            command.arg("PX").arg(keep);
        }
        let marked = command.query_async(connection).await;
        marked.map_err(|error| written(format!("marking {self} failed"), error))
    }

    /// The largest token that it has seen.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is something else in its place, and [`Error::Store`].
    pub async fn newest(
        &self,
        connection: &mut (impl ConnectionLike + Send),
    ) -> Result<Option<Token>> {
        let seen: Option<String> = redis::cmd("GET")
            .arg(&self.fence)
            .query_async(connection)
            .await
            .map_err(|error| store(format!("reading the fence of {self} failed"), error))?;
        let number = |text: String| text.parse().ok().and_then(Token::new);
        seen.map(|text| number(text).ok_or_else(|| self.broken())).transpose()
    }

    fn broken(&self) -> Error {
        let fence = String::from_utf8_lossy(&self.fence);
        Error::Invalid(format!("the fence of {self} is no token: who has written to {fence}?"))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.key).fmt(f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("key", &self.to_string()).field("keep", &self.keep).finish()
    }
}

/// What may be written to a key, by [`Key::under`] or [`Key::marked`]. Each is one step at the server.
///
/// # Errors
///
/// Of all of them: [`Error::Stale`] when the key has seen a newer token, [`Error::Overtaken`] when the mark is
/// another, and nothing was written; [`Error::Invalid`] for a fence that is none; [`Error::Store`] when the server could
/// not be reached or refused, which for a script of your own may be in the middle; and [`Error::Unknown`] when the
/// connection broke before the answer. Sent again under the same token it is as if it was sent once, except for
/// scripts that count.
#[derive(Clone, Debug)]
#[must_use = "nothing is written before one of its methods is awaited"]
pub struct Write<'k> {
    key: &'k Key,
    token: Option<Token>,
    /// The token or the mark, as it is sent.
    argument: String,
}

impl Write<'_> {
    /// Sets the key, whatever type it had.
    ///
    /// # Errors
    ///
    /// As said [above](Self).
    pub async fn set(
        &self,
        value: impl ToSingleRedisArg + Send,
        connection: &mut (impl ConnectionLike + Send),
    ) -> Result<()> {
        self.invoke(&SET, &[], &[one(&value)], connection).await
    }

    /// The same for some time, at least a millisecond. Its fence stays.
    ///
    /// # Errors
    ///
    /// As said [above](Self).
    pub async fn set_for(
        &self,
        value: impl ToSingleRedisArg + Send,
        time: Duration,
        connection: &mut (impl ConnectionLike + Send),
    ) -> Result<()> {
        let time = millis(time)?.to_string().into_bytes();
        self.invoke(&SET_FOR, &[], &[one(&value), time], connection).await
    }

    /// Sets a field of a hash. All fields have one fence.
    ///
    /// # Errors
    ///
    /// As said [above](Self); [`Error::Store`] with `WRONGTYPE` if the key is no hash.
    pub async fn hset(
        &self,
        field: impl ToSingleRedisArg + Send,
        value: impl ToSingleRedisArg + Send,
        connection: &mut (impl ConnectionLike + Send),
    ) -> Result<()> {
        self.invoke(&HSET, &[], &[one(&field), one(&value)], connection).await
    }

    /// Deletes the key; whether there was one. Its fence stays.
    ///
    /// # Errors
    ///
    /// As said [above](Self).
    pub async fn delete(&self, connection: &mut (impl ConnectionLike + Send)) -> Result<bool> {
        self.invoke(&DELETE, &[], &[], connection).await
    }

    /// Writes nothing: raises the fence, so that older tokens are refused from now on; or asks whether
    /// the mark is still there.
    ///
    /// # Errors
    ///
    /// As said [above](Self).
    pub async fn raise(&self, connection: &mut (impl ConnectionLike + Send)) -> Result<()> {
        self.invoke(&NOTHING, &[], &[], connection).await
    }

    /// Runs a script of your own, with more keys than this one, all of its slot, and arguments.
    ///
    /// # Errors
    ///
    /// As said [above](Self), and what the script answers with.
    pub async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&str],
        arguments: &[impl ToSingleRedisArg + Sync],
        connection: &mut (impl ConnectionLike + Send),
    ) -> Result<T> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        let arguments: Vec<Vec<u8>> = arguments.iter().map(one).collect();
        self.invoke(script, &keys, &arguments, connection).await
    }

    async fn invoke<T: FromRedisValue>(
        &self,
        script: &Script,
        more: &[Vec<u8>],
        arguments: &[Vec<u8>],
        connection: &mut (impl ConnectionLike + Send),
    ) -> Result<T> {
        let key = self.key;
        let keep = key.keep.map(|keep| keep.to_string()).unwrap_or_default();
        let (by, at) = match self.token {
            Some(_) => (By::Token, &key.fence),
            None => (By::Mark, &key.mark),
        };
        let condition = Condition { by, at, argument: &self.argument, keep: &keep };
        let keys = [std::slice::from_ref(&key.key), more].concat();
        let answer = script.run(&condition, &keys, arguments, connection).await;
        answer.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: RedisError) -> Error {
        let resource = self.key.to_string();
        match (refusal(&error), self.token) {
            (Some(("LKSTALE", newest)), Some(token)) => {
                let newest = newest.parse().ok().and_then(Token::new);
                Error::Stale(Stale { resource, token, newest })
            }
            (Some(("LKOVERTAKEN", _)), None) => Error::Overtaken { resource },
            (Some(("LKBROKEN", _)), _) => self.key.broken(),
            _ => written(format!("writing to {resource} failed"), error),
        }
    }
}

/// A key beside another, in the same slot: with the same tag, or with the whole key as its tag.
fn beside(what: &str, key: &[u8]) -> Result<Vec<u8>> {
    let prefix = format!("lockkeeper:{what}");
    if has_tag(key) {
        return Ok([prefix.as_bytes(), b"=", key].concat());
    }
    if key.is_empty() || key.contains(&b'}') {
        let shown = String::from_utf8_lossy(key);
        let why = "its fence could not be in the same slot of a cluster: give it a {tag}";
        return Err(Error::Invalid(format!("the key {shown:?} cannot be fenced: {why}")));
    }
    Ok([prefix.as_bytes(), b":{", key, b"}"].concat())
}

/// Whether only a part of the key says in which slot it is.
fn has_tag(key: &[u8]) -> bool {
    let after = |byte, text: &[u8]| text.iter().position(|other| *other == byte);
    after(b'{', key).is_some_and(|open| after(b'}', &key[open + 1..]).is_some_and(|end| end > 0))
}

fn millis(time: Duration) -> Result<u64> {
    match u64::try_from(time.as_millis()) {
        // Redis takes no more than fit into an i64, counted from 1970.
        Ok(millis @ 1..=0x0FFF_FFFF_FFFF_FFFF) => Ok(millis),
        _ => Err(Error::Invalid(format!("{time:?} is no time that Redis can count"))),
    }
}

/// As it is sent.
fn one(value: &impl ToRedisArgs) -> Vec<u8> {
    value.to_redis_args().concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the specification of Redis Cluster says is hashed.
    fn hashed(key: &[u8]) -> &[u8] {
        let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
        let rest = &key[open + 1..];
        match rest.iter().position(|byte| *byte == b'}') {
            None | Some(0) => key,
            Some(end) => &rest[..end],
        }
    }

    proptest! {
        #[test]
        fn a_fence_is_in_the_slot_of_its_key(key in "[ab{}]{0,7}") {
            if let Ok(found) = Key::new(&key) {
                prop_assert_eq!(hashed(&found.fence), hashed(key.as_bytes()));
                prop_assert_eq!(hashed(&found.mark), hashed(key.as_bytes()));
            }
        }

        #[test]
        fn no_two_keys_share_a_fence(one in "[ab:={}]{1,6}", two in "[ab:={}]{1,6}") {
            if let (Ok(first), Ok(second)) = (Key::new(&one), Key::new(&two)) {
                prop_assert_eq!(one == two, first.fence == second.fence);
            }
        }
    }

    #[test]
    fn keys_whose_fence_would_be_elsewhere_are_refused() {
        for odd in ["", "}", "a}b", "a{}b", "}{"] {
            assert!(Key::new(odd).is_err(), "{odd:?}");
        }
        for fine in ["a", "{a}", "{a}}", "a{b", "x{a}b{c}", "ключ"] {
            assert!(Key::new(fine).is_ok(), "{fine:?}");
        }
        let fence = |key: &str| String::from_utf8(Key::new(key).unwrap().fence).unwrap();
        assert_eq!(fence("account:42"), "lockkeeper:fence:{account:42}");
        assert_eq!(fence("{shop}:42"), "lockkeeper:fence={shop}:42");
    }

    #[test]
    fn times_that_redis_cannot_count_are_refused() {
        assert_eq!(millis(Duration::from_secs(1)).unwrap(), 1000);
        for odd in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            assert!(millis(odd).is_err());
        }
    }
}
