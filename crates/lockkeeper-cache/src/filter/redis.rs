//! A filter in Redis, for all processes.
//!
//! # How it works
//!
//! | key | what |
//! | --- | --- |
//! | `lockkeeper-filter:{NAME}:head` | hash: which slot is used, which is being built and by whom, their sizes, and a stamp that changes with any of that |
//! | `lockkeeper-filter:{NAME}:a`, `:b` | bitmap: one filter, and one bit more |
//! | `lockkeeper-filter:{NAME}:upload` | bitmap: what the builder has loaded |
//!
//! Every process remembers the head. A script sets or looks at bits only if the stamp is still the one
//! the process knows; else it answers with the new head, and the process asks again. So a swap is one
//! moment for everybody, and no insert misses a filter that was begun.
//!
//! The builder collects its keys in memory, uploads the bitmap in pieces, and one script joins it with
//! what was inserted meanwhile. A builder that says nothing for half a minute is taken for dead.
//!
//! A filter that was evicted, wiped or begun and not finished is known by its length: it
//! knows nothing. Nothing expires.
//!
//! # When it breaks
//!
//! See the [module above](super). In a cluster the whole filter lies on one node. To begin and to finish
//! takes the server about a millisecond for each megabyte of the filter, in which it does nothing else.
//!
//! # Cost
//!
//! A look or an insert: one round trip for up to some hundred keys, and some 10 µs of the server for
//! each of them.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::redis::aio::ConnectionLike;
use ::redis::{FromRedisValue, RedisError, Script, ScriptInvocation, Value};
use async_trait::async_trait;
use fastbloom::AtomicBloomFilter;
use lockkeeper::clock::answer_within;
use parking_lot::RwLock;

use super::local::bitmap;
use super::{Build, Filter, FilterError, Shape, Verdict};
use crate::hash::hash;

mod head;

use head::{Answer, Head};

/// How long an answer is waited for, unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same for the steps of a builder, which may be large.
const BUILDING: Duration = Duration::from_secs(20);

/// A builder that says nothing for so long is taken for dead.
const LEASE: Duration = Duration::from_secs(30);

/// So many keys go into one call: a longer one would hold up the server.
const KEYS_AT_ONCE: usize = 256;

/// So many bytes are uploaded at once.
const PIECE: usize = 1 << 20;

/// So often a head may change between two tries.
const TRIES: u32 = 5;

macro_rules! scripts {
    ($($name:ident $file:literal),* $(,)?) => {
        $(static $name: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!($file)));)*
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

/// A filter in Redis, by its name; see the [module](self). Clones are the same filter.
#[derive(Clone)]
pub struct RedisFilter<C> {
    server: Server<C>,
    /// As it was when it was last heard of.
    head: Arc<RwLock<Head>>,
    patience: Duration,
}

impl<C: ConnectionLike + Clone + Send + Sync> RedisFilter<C> {
    /// The filter of that name, through a connection that is shared and comes back by itself. Sends
    /// nothing yet.
    ///
    /// # Errors
    ///
    /// When the name is empty or has braces, which mean something in a cluster.
    pub fn new(connection: C, name: &str) -> Result<Self, FilterError> {
        if name.is_empty() {
            return Err(FilterError::Name("it is empty"));
        }
        if name.contains(['{', '}']) {
            return Err(FilterError::Name("it has braces"));
        }
        let keys = ["head", "a", "b", "upload"]
            .map(|part| format!("lockkeeper-filter:{{{name}}}:{part}"))
            .into();
        let server = Server { connection, keys };
        Ok(Self { server, head: Arc::default(), patience: PATIENCE })
    }

    /// How long an answer is waited for: 1 s. Longer: a slow server holds up reads for longer. Shorter:
    /// made-up keys get through more easily while it is slow, and inserts fail.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Nothing is known any more, in any process, until it was rebuilt; what is being built is given up.
    /// To be called when keys may be missing, as after a failover.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached.
    pub async fn forget(&self) -> Result<(), FilterError> {
        let mut unlink = ::redis::cmd("UNLINK");
        unlink.arg(&*self.server.keys);
        let mut connection = self.server.connection.clone();
        within(self.patience, unlink.query_async::<i64>(&mut connection)).await?;
        Ok(())
    }

    /// Runs a script that needs the head, until it knew it.
    async fn with_head(
        &self,
        script: &Script,
        arguments: impl Fn(&Head, &mut ScriptInvocation<'_>) + Send + Sync,
    ) -> Result<Vec<u8>, FilterError> {
        for _ in 0..TRIES {
            let known = self.head.read().clone();
            let mut call = script.prepare_invoke();
            call.arg(&known.stamp);
            arguments(&known, &mut call);
            let answer: Value = self.server.call(call, self.patience).await?;
            match Answer::of(answer)? {
                Answer::Said(said) => return Ok(said),
                Answer::Changed(head) => *self.head.write() = head,
            }
        }
        Err(FilterError::Store("the head of the filter changes all the time".into()))
    }

    async fn look_at(&self, keys: &[&[u8]]) -> Result<Vec<u8>, FilterError> {
        self.with_head(&LOOK, |head, call| {
            let shape = head.used();
            call.arg(shape.map_or(1, Shape::hashes));
            let all = shape.into_iter().flat_map(|shape| places(shape, keys));
            all.for_each(|place| {
                call.arg(place);
            });
        })
        .await
    }
}

fn places(shape: Shape, keys: &[&[u8]]) -> Vec<u64> {
    keys.iter().flat_map(|key| shape.positions(key)).collect()
}

impl<C> fmt::Debug for RedisFilter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &mut f.debug_struct("RedisFilter");
        shown.field("key", &self.server.keys[0]).field("head", &*self.head.read());
        shown.finish_non_exhaustive()
    }
}

#[async_trait]
impl<C: ConnectionLike + Clone + Send + Sync + 'static> Filter for RedisFilter<C> {
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
            self.with_head(&INSERT, |head, call| {
                let [a, b] = head.written().map(|shape| shape.map_or(vec![], |s| places(s, some)));
                call.arg(a.len());
                a.iter().chain(&b).for_each(|place| {
                    call.arg(place);
                });
            })
            .await?;
        }
        Ok(())
    }

    async fn begin(&self, shape: Shape) -> Result<Box<dyn Build>, FilterError> {
        let builder = unique();
        let mut call = BEGIN.prepare_invoke();
        call.arg(&builder).arg(millis(LEASE)).arg(unique()).arg(head::written(shape));
        let left: u64 = self.server.call(call, BUILDING).await?;
        if left > 0 {
            return Err(FilterError::Busy { left: Duration::from_millis(left) });
        }
        let (server, filter) = (self.server.clone(), shape.empty());
        Ok(Box::new(RedisBuild { server, builder, filter, done: false }))
    }
}

/// The server, and the keys of one filter.
#[derive(Clone)]
struct Server<C> {
    connection: C,
    keys: Arc<[String]>,
}

impl<C: ConnectionLike + Clone + Send + Sync> Server<C> {
    async fn call<T: FromRedisValue + Send>(
        &self,
        mut call: ScriptInvocation<'_>,
        patience: Duration,
    ) -> Result<T, FilterError> {
        call.key(&*self.keys);
        let mut connection = self.connection.clone();
        within(patience, call.invoke_async(&mut connection)).await
    }
}

async fn within<T: Send>(
    patience: Duration,
    answer: impl Future<Output = Result<T, RedisError>> + Send,
) -> Result<T, FilterError> {
    let late = || FilterError::Store(format!("no answer within {patience:?}").into());
    let answer = answer_within(patience, answer).await.ok_or_else(late)?;
    answer.map_err(|error| FilterError::Store(error.into()))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Never the same twice.
fn unique() -> String {
    use std::hash::{BuildHasher, RandomState};
    let [high, low] = [(); 2].map(|()| RandomState::new().hash_one(std::process::id()));
    format!("{high:016x}{low:016x}")
}

struct RedisBuild<C: ConnectionLike + Clone + Send + Sync + 'static> {
    server: Server<C>,
    builder: String,
    filter: AtomicBloomFilter,
    done: bool,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisBuild<C> {
    /// Uploads a piece, or merely says that it goes on.
    async fn upload(&self, before: usize, piece: &[u8]) -> Result<(), FilterError> {
        let mut call = KEEP.prepare_invoke();
        call.arg(&self.builder).arg(millis(LEASE)).arg(before).arg(piece);
        self.server.call(call, BUILDING).await.and_then(still_there)
    }
}

fn still_there(there: bool) -> Result<(), FilterError> {
    if there { Ok(()) } else { Err(FilterError::Gone) }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> fmt::Debug for RedisBuild<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuild").field("builder", &self.builder).finish_non_exhaustive()
    }
}

#[async_trait]
impl<C: ConnectionLike + Clone + Send + Sync + 'static> Build for RedisBuild<C> {
    fn add(&mut self, key: &[u8]) {
        self.filter.insert_hash(hash(key));
    }

    async fn keep(&mut self) -> Result<(), FilterError> {
        self.upload(0, &[]).await
    }

    async fn finish(mut self: Box<Self>) -> Result<(), FilterError> {
        let bytes: Vec<u8> = bitmap(&self.filter).collect();
        for (number, piece) in bytes.chunks(PIECE).enumerate() {
            self.upload(number * PIECE, piece).await?;
        }
        let mut call = FINISH.prepare_invoke();
        call.arg(&self.builder).arg(unique());
        self.server.call(call, BUILDING).await.and_then(still_there)?;
        self.done = true;
        Ok(())
    }
}

/// Makes room for another builder at once, if there is somebody to do it.
impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for RedisBuild<C> {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.done {
            return;
        }
        let (server, builder) = (self.server.clone(), std::mem::take(&mut self.builder));
        runtime.spawn(async move {
            let mut call = GIVE_UP.prepare_invoke();
            call.arg(builder).arg(unique());
            // If it fails, the lease ends by itself.
            let _: Result<i64, _> = server.call(call, PATIENCE).await;
        });
    }
}

#[cfg(test)]
mod tests;
