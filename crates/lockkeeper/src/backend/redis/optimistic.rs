//! Optimistic transactions: read, decide, and write only if nothing that was read has changed.
//!
//! # How it works
//!
//! 1. `WATCH` for the keys, on a connection that nobody else uses meanwhile (`own.rs`).
//! 2. The body reads what it likes and queues what it wants to be done; nothing is written yet.
//! 3. `MULTI`, all that was queued, and `EXEC` go out together: one round trip.
//! 4. Where a watched key has changed since, the server runs none of it. After a short random pause it
//!    all begins again: **the body runs again**, so it must do nothing else that counts.
//!
//! ```no_run
//! use lockkeeper::Locks;
//! use lockkeeper::backend::redis::optimistic::Outcome;
//! use lockkeeper::backend::redis::optimistic::redis::Cmd;
//!
//! # #[tokio::main]
//! # async fn main() -> lockkeeper::Result<()> {
//! let locks = Locks::connect("redis://localhost").await?;
//! let sold = locks.optimistic(["stock"], |tx| async move {
//!     let stock: i64 = tx.read(Cmd::get("stock")).await?;
//!     if stock < 5 {
//!         return Ok(false);
//!     }
//!     tx.queue(Cmd::decr("stock", 5))?;
//!     tx.queue(Cmd::lpush("orders", "five"))?;
//!     Ok(true)
//! });
//! match sold.await? {
//!     Outcome::Committed { value: true, .. } => println!("sold"),
//!     Outcome::Committed { value: false, .. } => println!("sold out"),
//!     Outcome::Partial { .. } => println!("a key is not of the type that it should be"),
//!     Outcome::Unknown { .. } => println!("look whether it is sold"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! What is committed was decided on a state that was still the state of the watched keys when it was
//! written: transactions over the keys that they watch can be put in one order in which each saw
//! exactly what those before it wrote. That also holds for one that queues nothing, so a body that only
//! reads gets values that belong together. A body that fails is not checked in that way: what it saw
//! may never have been there at one time, so put an answer like "sold out" into its value.
//!
//! # When it breaks
//!
//! - **There is no rollback.** A command that the server can refuse as it is queued (unknown, wrong
//!   number of arguments, no right) aborts all: [`Error::Aborted`]. One that fails when it runs, because
//!   a key is of another type, does not undo the others: [`Outcome::Partial`].
//! - **An answer to `EXEC` that is lost** is [`Outcome::Unknown`]: all of it happened, or nothing. It is
//!   not tried again. To be able to, watch a key that says that it is done, read it first, and set it in
//!   the same transaction.
//! - **Nothing is durable** beyond what the server does for it: one without persistence forgets it when it
//!   restarts, and a fail-over can lose what no replica had. `replicas` in the URL is for locks.
//! - Others may see the keys between two transactions, and clients that do not watch can write at any time.
//!
//! # Cost
//!
//! `WATCH`, each read, and the commit: a round trip each; no script. A connection for each transaction
//! under way, up to 64 at one server, of which eight are kept. Under much contention for the same keys a
//! lock is cheaper: with n clients, n - 1 of n attempts may be in vain.
//!
//! # Several nodes
//!
//! In a cluster all keys have to be in one slot: give them the same `{tag}`. With sentinels the
//! transaction goes to whoever is the master; one that is replaced while it commits is an unknown outcome.

mod own;
mod tx;
mod verdict;

use std::any::Any;
use std::sync::Arc;

pub use redis;
use redis::{Cmd, RedisResult, Value};

pub(super) use self::own::Pool;
pub use self::tx::Tx;

use self::own::Own;
use self::tx::{called, several_slots};
use self::verdict::{Verdict, verdict};
use super::commands::{cause, demotion, failed, may_pass, says};
use super::nodes::Node;
use super::slots::slot;
use super::{RETRY, Redis};
use crate::clock::Instant;
use crate::error::{BoxError, Error, Result};
use crate::locks::Locks;
use crate::wait::Pauses;

/// How often a transaction is tried when nothing else is said.
pub const ATTEMPTS: u32 = 16;

/// How a transaction ended. In each case `value` is what the body said the last time it ran.
#[derive(Debug)]
#[must_use = "it may not have happened"]
pub enum Outcome<T> {
    /// Everything that was queued was carried out.
    Committed {
        /// What the body said.
        value: T,
        /// What came of each command, in order.
        replies: Vec<Value>,
    },
    /// Some of the commands failed when they ran. The others were carried out all the same, and stay.
    Partial {
        /// What the body said.
        value: T,
        /// What came of each command, in order.
        replies: Vec<RedisResult<Value>>,
    },
    /// The server's answer was lost: everything was carried out, or nothing, or it still will be within
    /// seconds. What was carried out by a master that was just replaced is unknown too.
    Unknown {
        /// What the body said.
        value: T,
        /// Why there is no answer.
        source: BoxError,
    },
}

impl Locks {
    /// Runs a transaction that reads and then writes, only if none of these keys has changed meanwhile;
    /// tried up to 16 times. On `redis:`. Keys are taken as they are: the prefix of the URL is for locks.
    /// See [`optimistic`](crate::backend::redis::optimistic) for all of it.
    ///
    /// # Errors
    ///
    /// That of the body, which ends it at once, with nothing written; [`Error::Conflict`] when the keys
    /// changed during every attempt; [`Error::Aborted`] when the server refused a command;
    /// [`Error::Unavailable`] when it cannot be reached, after trying for 5 s, or for a minute where
    /// another server can take over. After any error nothing was written.
    ///
    /// # Cancel safety
    ///
    /// Dropped while the body runs, nothing is written; dropped later, everything or nothing.
    pub fn optimistic<K, T, B>(
        &self,
        keys: impl IntoIterator<Item = K>,
        body: impl FnMut(Tx) -> B + Send,
    ) -> impl Future<Output = Result<Outcome<T>>> + Send
    where
        K: AsRef<str>,
        T: Send,
        B: Future<Output = Result<T>> + Send,
    {
        let transaction = Optimistic::new(self, keys);
        async move { transaction.run(body).await }
    }
}

impl crate::blocking::Locks {
    /// See [`crate::Locks::optimistic`]. The body is the same as there: it has nothing to wait for but the
    /// server. It runs on this thread.
    ///
    /// # Errors
    ///
    /// As there; [`Error::Config`] inside an async runtime.
    pub fn optimistic<K, T, B>(
        &self,
        keys: impl IntoIterator<Item = K>,
        body: impl FnMut(Tx) -> B + Send,
    ) -> Result<Outcome<T>>
    where
        K: AsRef<str>,
        T: Send,
        B: Future<Output = Result<T>> + Send,
    {
        self.wait_for(|locks| locks.optimistic(keys, body))
    }
}

/// A transaction with another number of attempts than [`Locks::optimistic`] has.
#[derive(Clone, Debug)]
pub struct Optimistic {
    locks: Locks,
    keys: Vec<String>,
    attempts: u32,
}

/// What came of one attempt.
enum Attempt<T> {
    Over(Outcome<T>),
    Conflict,
    /// Nothing was written, and it may go better in a moment.
    Again(Error),
}

impl Optimistic {
    /// Over these keys.
    pub fn new<K: AsRef<str>>(locks: &Locks, keys: impl IntoIterator<Item = K>) -> Self {
        let keys = keys.into_iter().map(|key| key.as_ref().to_owned()).collect();
        Self { locks: locks.clone(), keys, attempts: ATTEMPTS }
    }

    /// The same, tried so often; once at least.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// Runs it; see [`Locks::optimistic`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn run<T, B>(self, mut body: impl FnMut(Tx) -> B + Send) -> Result<Outcome<T>>
    where
        T: Send,
        B: Future<Output = Result<T>> + Send,
    {
        let backend = &self.locks.inner.backend;
        let redis = (backend.as_ref() as &dyn Any).downcast_ref::<Redis>();
        let redis = redis.ok_or_else(|| Error::Unsupported {
            backend: backend.name(),
            what: "optimistic transactions".into(),
        })?;
        let slot = self.slot(redis)?;
        let mut pauses = Pauses::new();
        let mut conflicts = 0;
        let mut failing: Option<Instant> = None;
        loop {
            if !self.locks.inner.is_open() {
                return Err(Error::ShutDown);
            }
            match self.attempt(redis, slot, &mut body).await? {
                Attempt::Over(outcome) => return Ok(outcome),
                Attempt::Conflict => {
                    failing = None;
                    conflicts += 1;
                    if conflicts == self.attempts {
                        let (keys, attempts) = (self.keys.clone(), conflicts);
                        return Err(Error::Conflict { keys, attempts });
                    }
                    pauses.pause().await;
                }
                Attempt::Again(error) => {
                    let since = *failing.get_or_insert_with(Instant::now);
                    if Instant::now().since(since) > redis.server.nodes.outage(true) {
                        return Err(error);
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Where all keys are, if that matters.
    fn slot(&self, redis: &Redis) -> Result<Option<u16>> {
        let Some(first) = self.keys.first() else {
            return Err(Error::Config("a transaction needs a key to watch".into()));
        };
        if !redis.server.nodes.is_cluster() {
            return Ok(None);
        }
        let at = slot(first);
        match self.keys.iter().find(|key| slot(key) != at) {
            Some(other) => Err(several_slots(other)),
            None => Ok(Some(at)),
        }
    }

    async fn attempt<T, B>(
        &self,
        redis: &Redis,
        slot: Option<u16>,
        body: &mut (impl FnMut(Tx) -> B + Send),
    ) -> Result<Attempt<T>>
    where
        T: Send,
        B: Future<Output = Result<T>> + Send,
    {
        let nodes = &redis.server.nodes;
        let node = match nodes.of(&self.keys[0]).await {
            Ok(node) => node,
            Err(error) if may_pass(&error) => return Ok(Attempt::Again(error)),
            Err(error) => return Err(error),
        };
        let mut own = match Own::at(Arc::clone(&node)).await {
            Ok(own) => own,
            Err(error) => return self.again(redis, &node, slot, error).await,
        };
        if let Err(error) = own.say::<()>(redis::cmd("WATCH").arg(&self.keys)).await {
            own.close_all();
            return self.again(redis, &node, slot, error).await;
        }
        // From here on, whoever drops this closes the connection, and with it what is watched.
        let (tx, shared) = Tx::new(own, slot);
        let said = body(tx).await;
        let (mut own, queued, broken) = shared.end().await?;
        if broken {
            own.close_all();
            // What the body made of it is not what went wrong.
            let error = said.err().filter(|error| cause(error).is_some() || may_pass(error));
            let error = error.unwrap_or_else(|| lost("a read failed"));
            return self.again(redis, &node, slot, error).await;
        }
        let value = match said {
            Ok(value) => value,
            Err(error) => {
                if own.say::<()>(&redis::cmd("UNWATCH")).await.is_ok() {
                    own.give_back();
                }
                return Err(error);
            }
        };
        if !own.is_right() {
            return Ok(Attempt::Again(demotion()));
        }
        let judged = match self.commit(&mut own, &queued, slot).await {
            Ok(Verdict::Strange) => Err(lost("the answer makes no sense")),
            // By a master that was replaced meanwhile: the new one may know nothing of it.
            Ok(Verdict::Ran(_)) if !own.is_right() => Err(demotion()),
            judged => judged,
        };
        let judged = match judged {
            Ok(judged) => judged,
            Err(source) => {
                own.close_all();
                return Ok(Attempt::Over(Outcome::Unknown { value, source: source.into() }));
            }
        };
        match judged {
            Verdict::Ran(mut replies) => {
                own.give_back();
                replies.truncate(queued.len());
                Ok(Attempt::Over(ran(value, replies)))
            }
            Verdict::Refused(at, error) => {
                // Not every server forgets the rest when it refuses `EXEC` itself.
                drop(own);
                let error = failed("a transaction", error);
                self.refused(redis, &node, slot, error, at.zip(at.and_then(|at| queued.get(at))))
                    .await
            }
            _ => {
                own.give_back();
                Ok(Attempt::Conflict)
            }
        }
    }

    /// `MULTI`, the commands, `EXEC`. An error: it is not known what came of it.
    async fn commit(&self, own: &mut Own, queued: &[Cmd], slot: Option<u16>) -> Result<Verdict> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("MULTI");
        for command in queued {
            pipeline.add_command(command.clone());
        }
        // Without a key the server would not notice that the slot is elsewhere by now; and not every
        // command has one.
        let look = usize::from(slot.is_some());
        if look == 1 {
            pipeline.cmd("EXISTS").arg(&self.keys[0]);
        }
        pipeline.cmd("EXEC");
        Ok(verdict(own.send(&pipeline).await?, queued.len() + look))
    }

    /// Whether something that failed before anything was written is worth another attempt.
    async fn again<T>(
        &self,
        redis: &Redis,
        node: &Arc<Node>,
        slot: Option<u16>,
        error: Error,
    ) -> Result<Attempt<T>> {
        let driver = cause(&error);
        // Another slot than ours: no other server would have both.
        let elsewhere = driver.and_then(|error| error.redirect_node()).map(|(_, slot)| slot);
        let strays = slot.zip(elsewhere).is_some_and(|(ours, elsewhere)| ours != elsewhere);
        if strays || driver.is_some_and(|error| says(error, "CROSSSLOT")) {
            return Err(several_slots("a key of a command"));
        }
        let demoted = driver.is_some_and(|error| says(error, "READONLY"))
            && node.commands.link.origin.may_move();
        let helps = redis.server.nodes.learn(&error, node).await;
        if helps || demoted || may_pass(&error) { Ok(Attempt::Again(error)) } else { Err(error) }
    }

    /// The same for what the server refused as it was queued, or as a whole.
    async fn refused<T>(
        &self,
        redis: &Redis,
        node: &Arc<Node>,
        slot: Option<u16>,
        error: Error,
        culprit: Option<(usize, &Cmd)>,
    ) -> Result<Attempt<T>> {
        match self.again(redis, node, slot, error).await {
            Err(Error::Unavailable { source: Some(source), .. }) => {
                let (at, command) = culprit.unzip();
                let command = command.map_or_else(|| "EXEC".to_owned(), called);
                Err(Error::Aborted { command, at, source })
            }
            outcome => outcome,
        }
    }
}

/// All of it, or with holes.
fn ran<T>(value: T, replies: Vec<RedisResult<Value>>) -> Outcome<T> {
    if replies.iter().any(Result::is_err) {
        return Outcome::Partial { value, replies };
    }
    Outcome::Committed { value, replies: replies.into_iter().flatten().collect() }
}

fn lost(context: &str) -> Error {
    Error::Unavailable { backend: "redis", context: context.to_owned(), source: None }
}
