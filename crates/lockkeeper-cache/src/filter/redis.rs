//! A filter in Redis, for all processes.
//!
//! # How it works
//!
//! | key | what |
//! | --- | --- |
//! | `{PREFIX}lockkeeper-filter:{NAME}:head` | hash: the server that took the filter in, which slot is used, which is being built and by whom, their sizes, and a stamp that changes with any of that |
//! | `{PREFIX}lockkeeper-filter:{NAME}:a`, `:b` | bitmap: one filter, and one bit more |
//! | `{PREFIX}lockkeeper-filter:{NAME}:upload` | bitmap: what the builder has loaded |
//!
//! The braces around the name are part of the key. Every process remembers the head. A script sets or looks at bits only
//! if the stamp is still the one the process knows; else it answers with the new head, and the process asks again. So a
//! swap is one moment for everybody, and no insert misses a filter that was begun.
//!
//! The builder collects its keys in memory, uploads the bitmap in pieces, and one script joins it with
//! what was inserted meanwhile. A builder that says nothing for half a minute is taken for dead. Each of its steps can be
//! sent again, and is for up to 20 s while the server does not answer.
//!
//! A filter that was evicted, wiped or begun and not finished is known by its length: it
//! knows nothing. Nothing expires.
//!
//! # What it promises
//!
//! A server that is started again with old data, and a replica that takes over, may lack what was inserted last. So the head
//! names the server on which the filter was begun, as [entries](crate::Redis) do, and on another one it knows nothing, a build goes
//! no further, and the next one begins at once. Inserts set their bits all the same: a bit too many does no harm.
//!
//! # When it breaks
//!
//! - See the [module above](super).
//! - After [`connect_warm`](crate::Redis::connect_warm) what another server has taken in counts: a server that has lost
//!   inserts says [`Verdict::Absent`] of them. [Forget](RedisFilter::forget) the filter after a fail-over, and rebuild it. All that share a
//!   filter must connect in the same way: else one finds nothing in what the other has built, and drops it to build anew.
//! - A process that still writes to a master that was replaced, because it has not heard of that: what it inserts there is lost to
//!   a filter that is rebuilt at the new one. With sentinels that takes about two seconds, which the time to [settle](super::Plan::settle)
//!   covers; in a cluster and behind one address as long as the old one answers.
//! - In a cluster the whole filter lies on one node; it knows nothing after its slot has moved.
//! - To begin and to finish takes the server about a millisecond for each megabyte of the filter, in which it does nothing
//!   else.
//!
//! # Cost
//!
//! A look or an insert: one round trip for up to some hundred keys, and some 10 µs of the server for
//! each of them.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::redis::{Script, Value};
use async_trait::async_trait;
use lockkeeper::clock::answer_within;
use parking_lot::RwLock;

use super::{Build, Filter, FilterError, Shape, Verdict};
use crate::store::Servers;

mod build;
mod head;
mod place;

use build::RedisBuild;
use head::{Answer, Head};
use place::{Place, failed};

/// For so long a look or an insert is waited for at most. One server has a second for each answer; in a cluster a command may be sent on.
const PATIENCE: Duration = Duration::from_secs(2);

/// So many keys go into one call: a longer one would hold up the server.
const KEYS_AT_ONCE: usize = 256;

/// So often a head may change between two tries.
const TRIES: u32 = 5;

macro_rules! scripts {
    ($($name:ident $file:literal),* $(,)?) => {
        $(static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(&[include_str!("lua/head.lua"), include_str!($file)].concat()));)*
    };
}

scripts! {
    LOOK "lua/look.lua",
    INSERT "lua/insert.lua",
    BEGIN "lua/begin.lua",
    KEEP "lua/keep.lua",
    FINISH "lua/finish.lua",
    GIVE_UP "lua/give_up.lua",
}

/// A filter in Redis, by its name; see the [module](self). Made by [`Redis::filter`](crate::Redis::filter). Clones are
/// the same filter.
///
/// ```no_run
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_cache::{Cache, Error, Loaded, Redis};
///
/// let store = Redis::connect("redis://localhost").await?;
/// let known = store.filter("users")?;
/// let users = Cache::builder(store)
///     .namespace("user")
///     .filter(known)
///     .build(async |id: u64| Ok::<_, Error>(Loaded::found(id)))?;
/// # drop(users);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisFilter {
    place: Place,
    /// As it was when it was last heard of.
    head: Arc<RwLock<Head>>,
}

impl RedisFilter {
    /// The filter of that name at the servers of a URL, without a cache there: as
    /// [`Redis::filter`](crate::Redis::filter) after [`Redis::connect`](crate::Redis::connect).
    ///
    /// # Errors
    ///
    /// When either of them fails.
    pub async fn connect(url: &str, name: &str) -> Result<Self, FilterError> {
        let connected = crate::Redis::connect(url).await;
        connected.map_err(|error| FilterError::Store(error.into()))?.filter(name)
    }

    pub(crate) fn at(servers: Arc<Servers>, name: &str) -> Result<Self, FilterError> {
        if name.is_empty() {
            return Err(FilterError::Name("it is empty"));
        }
        if name.contains(['{', '}']) {
            return Err(FilterError::Name("it has braces"));
        }
        Ok(Self { place: Place::new(servers, name), head: Arc::default() })
    }

    /// Nothing is known any more, in any process, until it was rebuilt; what is being built is given up.
    /// To be called when keys may be missing: rows were written and not inserted, or a server has taken over after
    /// [`connect_warm`](crate::Redis::connect_warm).
    ///
    /// # Errors
    ///
    /// When the server cannot be reached. It does no harm to ask again.
    pub async fn forget(&self) -> Result<(), FilterError> {
        let mut unlink = ::redis::cmd("UNLINK");
        let Place { servers, keys } = &self.place;
        let unlinked = servers.keyspace.query::<i64>(&keys[0], unlink.arg(&keys[..])).await;
        unlinked.map(|_| ()).map_err(failed)
    }

    /// Runs a script that needs the head, until it knew it.
    async fn with_head(
        &self,
        script: &Script,
        words: impl Fn(&Head) -> Vec<String> + Send + Sync,
    ) -> Result<Vec<u8>, FilterError> {
        let asking = async {
            for _ in 0..TRIES {
                let known = self.head.read().clone();
                let words = words(&known);
                let stamp = std::iter::once(&known.stamp);
                let words: Vec<&[u8]> = stamp.chain(&words).map(|word| word.as_bytes()).collect();
                let answer: Value = self.place.call(script, &words).await?;
                match Answer::of(answer)? {
                    Answer::Said(said) => return Ok(said),
                    Answer::Changed(head) => *self.head.write() = head,
                }
            }
            Err(FilterError::Store("the head of the filter changes all the time".into()))
        };
        let late = || FilterError::Store(format!("no answer within {PATIENCE:?}").into());
        answer_within(PATIENCE, asking).await.ok_or_else(late)?
    }

    async fn look_at(&self, keys: &[&[u8]]) -> Result<Vec<u8>, FilterError> {
        self.with_head(&LOOK, |head| {
            let shape = head.used();
            let width = shape.map_or(1, Shape::hashes).to_string();
            let places = shape.into_iter().flat_map(|shape| places(shape, keys));
            std::iter::once(width).chain(places).collect()
        })
        .await
    }
}

fn places(shape: Shape, keys: &[&[u8]]) -> Vec<String> {
    keys.iter().flat_map(|key| shape.positions(key)).map(|place| place.to_string()).collect()
}

/// Never the same twice.
fn unique() -> String {
    use std::hash::{BuildHasher, RandomState};
    let [high, low] = [(); 2].map(|()| RandomState::new().hash_one(std::process::id()));
    format!("{high:016x}{low:016x}")
}

impl fmt::Debug for RedisFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &mut f.debug_struct("RedisFilter");
        shown.field("key", &self.place.keys[0]).field("head", &*self.head.read());
        shown.finish_non_exhaustive()
    }
}

#[async_trait]
impl Filter for RedisFilter {
    async fn look(&self, keys: &[&[u8]]) -> Vec<Verdict> {
        let mut verdicts = Vec::with_capacity(keys.len());
        for some in keys.chunks(KEYS_AT_ONCE) {
            let said = self.look_at(some).await.unwrap_or_default();
            let said = if said.len() == some.len() { &said[..] } else { &[] };
            verdicts.extend((0..some.len()).map(|at| match said.get(at) {
                Some(b'0') => Verdict::Absent,
                Some(_) => Verdict::Maybe,
                None => Verdict::Unknown,
            }));
        }
        verdicts
    }

    async fn insert(&self, keys: &[&[u8]]) -> Result<(), FilterError> {
        for some in keys.chunks(KEYS_AT_ONCE) {
            self.with_head(&INSERT, |head| {
                let [a, b] = head.written().map(|shape| shape.map_or(vec![], |s| places(s, some)));
                std::iter::once(a.len().to_string()).chain(a).chain(b).collect()
            })
            .await?;
        }
        Ok(())
    }

    async fn begin(&self, shape: Shape) -> Result<Box<dyn Build>, FilterError> {
        Ok(Box::new(RedisBuild::begin(self.place.clone(), shape).await?))
    }
}

#[cfg(test)]
mod tests;
