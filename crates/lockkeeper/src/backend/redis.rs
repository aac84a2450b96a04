//! Locks at one Redis server, with or without TLS.
//!
//! # How it works
//!
//! Each step of the model is one script (`redis/lua`): it reads our state and what other clients
//! see, takes the step by the server's clock, and writes both. Two dialects say what others see:
//!
//! - `redisson` (default): the layout of Redisson, so that its clients and ours share every kind.
//! - `plain`: while anybody of ours holds the name in any way, it is a string with a TTL, as
//!   `SET name value NX PX` makes it. Clients that lock like that are excluded, and exclude us.
//!
//! For a name `foo`:
//!
//! | key or channel | what it is |
//! | --- | --- |
//! | `foo` | the lock as others see it: a hash of owners, `mode` for read-write; for a semaphore the free permits, for a latch the count; in dialect `plain` the value of the holder |
//! | `{foo}:OWNER:rwlock_timeout:N` | proves to Redisson that a reader lives |
//! | `{foo}:timeout` | permits and their ends, as Redisson's expirable semaphore has them |
//! | `redisson_lock_queue:{foo}`, `redisson_lock_timeout:{foo}` | the queue of Redisson's fair lock, where our fair waiters stand as well |
//! | `redisson_lock_token:{foo}` | the last token, as Redisson's fenced lock has it; the only key without a TTL |
//! | `lockkeeper:{foo}` | our state: holders and evictions |
//! | `lockkeeper_queue:{foo}`, `lockkeeper_waiters:{foo}` | our queue |
//! | `lockkeeper_late:{foo}:REQUEST` | a request that was given up and must not be granted any more; for a minute |
//! | `redisson_lock__channel:{foo}`, `redisson_rwlock:{foo}`, `redisson_sc:{foo}`, `redisson_countdownlatch__channel__{foo}` | where Redisson's clients wait |
//! | `lockkeeper_wake:CLIENT` | where one client of ours waits, for everything |
//!
//! A name with braces of its own gets none added; our own keys then have a second colon.
//!
//! 1. A mutex that nobody else has to do with is taken, renewed and released the short way
//!    (`take.lua`), without the model: its field in the hash says everything, and there is no state.
//! 2. A release hands the lock to the first in our queue in the same script, and tells that client:
//!    one message for one hand-over, however many wait. The grant travels with the message, so no
//!    question follows; it lasts for the waiter's own lease at first, counted from when that waiter
//!    asked last, and the keeper renews it.
//! 3. Where Redisson's clients wait as well, every ninth release leaves them the lock for 20 ms. In
//!    the fair queue everybody has the place in which he came.
//! 4. A waiter asks again every third of its waiter lease of 5 s in any case. A message that is lost
//!    costs no more than that. In dialect `plain`, where others do not tell, the first of our queue
//!    asks every 50 ms.
//! 5. A request whose answer is lost is sent again: it finds what it got, or gets it now. Giving up
//!    releases whatever it may have got, in the background, until the lease would have ended.
//! 6. Renewals that are due within 10 ms of each other go in one command.
//!
//! # What it promises
//!
//! Exclusion between our clients on one master, by the server's clock, and with Redisson's `RLock`,
//! `RFairLock`, `RReadWriteLock` and `RPermitExpirableSemaphore` or, in dialect `plain`, with whoever
//! uses `SET NX PX`; our queue in order of arrival; tokens that grow as long as the server keeps its
//! data.
//!
//! # When it breaks
//!
//! A server that loses its data (restart without persistence, eviction by `maxmemory-policy`, fail-over
//! to a replica that had not seen the grant) grants again what is held, and starts tokens again. A
//! plain `RSemaphore` keeps no record of who has its permits, so it is not to be mixed with ours. The
//! two dialects do not exclude each other on one name: the second one to ask is refused with an error.
//! Sentinel, Cluster and RedLock are not in this version.
//!
//! # Cost
//!
//! One round trip to lock, one to release, on one connection for all; one more connection for messages.
//! A step costs more in proportion to the number of holders (readers, permits), not of waiters, except
//! where unfair readers wait.

mod admin;
mod answer;
mod commands;
mod connect;
mod hold;
mod latches;
mod layout;
mod listener;
mod renewals;
mod scripts;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use redis::{FromRedisValue, RedisWrite, Script, Value};

use self::answer::{Answer, Word, block, kind_words, millis, strange};
use self::commands::{Commands, evalsha, may_pass};
use self::hold::RedisHold;
use self::layout::{SHORT_KEYS, field, lock_key, release_channels, write_short_keys};
use self::listener::Listener;
use self::renewals::Renewals;
use self::scripts::Scripts;
use super::register::News;
use super::{Admin, Backend, Capabilities, Hold, Kind, Latches, Patience, Request, Term};
use crate::clock::Instant;
use crate::error::Result;
use crate::loss::Loss;
use crate::name::Name;
use crate::owner::{self, RequestId};
use crate::token::TokenBlock;
use crate::url::{Dialect, RedisOptions};
use crate::wait::pause;

/// How long a waiter that does not ask again keeps its place.
pub const WAITER_LEASE: Duration = Duration::from_secs(5);
/// How long a server may fail to answer before a request gives up.
const OUTAGE: Duration = Duration::from_secs(5);
/// Between two attempts to reach a server that fails.
const RETRY: Duration = Duration::from_millis(100);
/// How long a request that was given up may still arrive, in ms.
const LATE: &str = "60000";
/// No request at all: looking and forcing have no id.
const NOBODY: RequestId = RequestId::from_bytes([0; 16]);

/// Locks at one Redis server.
pub struct Redis {
    place: String,
    prefix: String,
    dialect: Dialect,
    server: Arc<Server>,
}

struct Server {
    commands: Commands,
    scripts: &'static Scripts,
    listener: Arc<Listener>,
    renewals: Renewals,
    /// What our own channel is called.
    client: String,
}

impl Server {
    /// Runs a step on one lock. An error: it may have been carried out or not.
    async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        lock: &str,
        id: RequestId,
        arguments: &[&str],
    ) -> Result<T> {
        self.commands.run(script, lock, id, arguments).await
    }
}

impl Redis {
    /// Connects. `place` is the URL without its password.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) for a URL or a file that makes no sense,
    /// [`Error::Unavailable`](crate::Error::Unavailable) when the server cannot be reached or refuses us.
    pub async fn connect(url: &str, place: String, options: &RedisOptions) -> Result<Arc<Self>> {
        let client = connect::client(url, &options.tls, &place)?;
        let explain = |error| connect::explain(error, &client);
        let commands = Commands::connect(&client).await.map_err(explain)?;
        let id = format!("{:016x}", owner::random());
        let listener = Listener::start(&client, &id).await?;
        let scripts = Scripts::of(options.dialect);
        let renewals = Renewals::default();
        let server = Arc::new(Server { commands, scripts, listener, renewals, client: id });
        let (prefix, dialect) = (options.prefix.clone(), options.dialect);
        Ok(Arc::new(Self { place, prefix, dialect, server }))
    }

    /// What a mutex is called where others see it.
    fn field(&self, request: &Request) -> Option<String> {
        let is_mutex = matches!(request.kind, Kind::Mutex | Kind::FairMutex);
        is_mutex.then(|| field(request, &self.server.client))
    }

    fn lock(&self, name: &Name) -> String {
        lock_key(&self.prefix, name)
    }

    /// Asks for a lock, or asks again.
    async fn ask(
        &self,
        lock: &str,
        request: &Request,
        field: Option<&str>,
        question: u32,
    ) -> Result<Answer> {
        let (kind, of) = kind_words(request.kind);
        let owner = request.owner.to_string();
        let lease = match request.patience {
            Patience::TryOnce => "0".to_owned(),
            _ => millis(WAITER_LEASE),
        };
        let words = [
            field.unwrap_or(&owner),
            kind,
            &of.to_string(),
            &millis(request.term.ttl()),
            &request.tokens.to_string(),
            &lease,
            self.server.client.as_str(),
            &question.to_string(),
        ];
        let acquire = &self.server.scripts.acquire;
        let answer: Vec<Value> = self.server.run(acquire, lock, request.id, &words).await?;
        Answer::read(&answer, request)
    }

    /// A hold of ours, from now on told when it is lost.
    fn hold(
        &self,
        lock: &str,
        request: &Request,
        field: Option<String>,
        tokens: TokenBlock,
        expires: Instant,
        resent: bool,
    ) -> Arc<RedisHold> {
        let hold = Arc::new(RedisHold {
            server: Arc::clone(&self.server),
            lock: lock.into(),
            id: request.id,
            tokens,
            expires,
            loss: Loss::new(),
            renewals: AtomicU64::new(0),
            field: field.map(Into::into),
            resent,
        });
        self.server.listener.requests.hold(request.id, &hold);
        hold
    }
}

/// A request that may have a hold or a place in a queue: given up when dropped, unless it is settled.
struct Parked<'a> {
    server: &'a Arc<Server>,
    lock: &'a str,
    id: RequestId,
    ttl: Duration,
    settled: bool,
    holds: bool,
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        let requests = &self.server.listener.requests;
        if !self.holds {
            requests.forget(self.id);
        }
        if self.settled {
            return;
        }
        let (server, lock, id) = (Arc::clone(self.server), self.lock.to_owned(), self.id);
        let until = Instant::now() + self.ttl;
        requests.runtime().spawn(async move {
            let undo = || server.run::<u8>(&server.scripts.release, &lock, id, &["", LATE]);
            while let Err(error) = undo().await
                && may_pass(&error)
                && Instant::now() < until
            {
                tokio::time::sleep(RETRY).await;
            }
        });
    }
}

/// How a pause in line ended.
enum Pause {
    /// It is time to ask again.
    Over,
    /// The lock was handed over, after the last question was answered; for this long at first.
    Granted(TokenBlock, Duration),
    PatienceRanOut,
}

/// Waits in line until there is something to do.
async fn in_line(patience: Patience, look_again: Instant, news: &News, last: u32) -> Pause {
    let mut look_again = look_again;
    loop {
        if !pause(patience, Some(look_again), news.heard()).await {
            return Pause::PatienceRanOut;
        }
        match news.word().as_deref().and_then(Word::parse) {
            Some(Word::Granted { question, tokens, lease }) if question == last => {
                return Pause::Granted(tokens, lease);
            }
            // From before the last question, and out of date: the answer would have been the grant.
            Some(Word::Granted { .. }) => return Pause::Over,
            Some(Word::Later(time)) => look_again = look_again.min(Instant::now() + time),
            None => return Pause::Over,
        }
    }
}

#[async_trait]
impl Backend for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn place(&self) -> &str {
        &self.place
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { frees_on_death: false, ..Capabilities::ALL }
    }

    async fn acquire(self: Arc<Self>, request: Request) -> Result<Option<Arc<dyn Hold>>> {
        let (server, id, ttl) = (&self.server, request.id, request.term.ttl());
        let requests = &server.listener.requests;
        let lock = self.lock(&request.name);
        let field = self.field(&request);
        let news = requests.expect(id);
        // From here on, before the first request is sent: dropping this future undoes it.
        let mut parked = Parked { server, lock: &lock, id, ttl, settled: false, holds: false };
        let patience = match request.patience {
            // Asked once, but the answer may have been lost: then ask for it again.
            Patience::TryOnce => Patience::Forever,
            patience => patience,
        };
        let mut listening = None;
        let mut failing: Option<Instant> = None;
        let mut resent = false;
        let mut question = 0;
        let (tokens, expires) = loop {
            let sent = Instant::now();
            let mut in_queue = false;
            question += 1;
            let next = match self.ask(&lock, &request, field.as_deref(), question).await {
                Ok(Answer::Granted(tokens)) => break (tokens, sent + ttl),
                Ok(Answer::Queued(_, true))
                    if listening.is_none() && self.dialect == Dialect::Redisson =>
                {
                    // Then ask once more: what was said before we listened we did not hear.
                    let channels = release_channels(&lock, id).to_vec();
                    listening = Some(server.listener.also(channels).await);
                    failing = None;
                    continue;
                }
                Ok(Answer::Queued(next, _)) => {
                    (failing, in_queue) = (None, true);
                    next
                }
                Ok(Answer::Busy) => {
                    parked.settled = !resent;
                    return Ok(None);
                }
                Err(error) if may_pass(&error) => {
                    resent = true;
                    let since = *failing.get_or_insert_with(Instant::now);
                    if Instant::now().since(since) > OUTAGE {
                        return Err(error);
                    }
                    Instant::now() + RETRY
                }
                Err(error) => return Err(error),
            };
            match in_line(patience, next, &news, question).await {
                Pause::PatienceRanOut => return Ok(None),
                // It was granted after the question that gave us the place, so the lease lasts at
                // least until so long after that. A fixed lease must be whole; a late message is
                // worth less than asking.
                Pause::Granted(tokens, lease)
                    if in_queue && matches!(request.term, Term::Hosted(_)) =>
                {
                    let expires = sent + lease;
                    if expires.since(Instant::now()) > lease / 2 {
                        break (tokens, expires);
                    }
                }
                Pause::Granted(..) | Pause::Over => {}
            }
        };
        (parked.settled, parked.holds) = (true, true);
        let hold = self.hold(&lock, &request, field, tokens, expires, resent);
        // What was said to the waiter meanwhile may have been that it is gone already.
        if news.heard().now_or_never().is_some() {
            requests.check(Arc::clone(&hold) as _);
        }
        Ok(Some(hold))
    }

    async fn acquire_all(
        self: Arc<Self>,
        requests: &[Request],
    ) -> Result<Option<Vec<Arc<dyn Hold>>>> {
        let fields: Option<Vec<_>> = requests.iter().map(|request| self.field(request)).collect();
        let Some(fields) = fields else { return Ok(None) };
        let server = &self.server;
        let locks: Vec<String> = requests.iter().map(|request| self.lock(&request.name)).collect();
        let mut parked: Vec<Parked<'_>> = Vec::with_capacity(requests.len());
        let mut news = Vec::with_capacity(requests.len());
        let script = &server.scripts.acquire_all;
        let mut command = evalsha(script, SHORT_KEYS * requests.len());
        for (request, lock) in requests.iter().zip(&locks) {
            let (id, ttl) = (request.id, request.term.ttl());
            news.push(server.listener.requests.expect(id));
            parked.push(Parked { server, lock, id, ttl, settled: false, holds: false });
            write_short_keys(&mut command, lock, id);
        }
        for (request, field) in requests.iter().zip(&fields) {
            command.arg(field);
            command.write_arg_fmt(request.term.ttl().as_millis());
            command.write_arg_fmt(request.tokens);
        }
        let sent = Instant::now();
        // An answer that is lost: what was taken is given back, and asked for one by one.
        let answer: Vec<i64> = match server.commands.invoke(script, &command).await {
            Err(error) if may_pass(&error) => return Ok(None),
            answer => answer?,
        };
        if answer.len() != requests.len() {
            parked.iter_mut().for_each(|parked| parked.settled = answer.is_empty());
            return Ok(None);
        }
        let tokens: Option<Vec<_>> = std::iter::zip(requests, &answer)
            .map(|(request, first)| block(*first, i64::from(request.tokens)))
            .collect();
        let tokens = tokens.ok_or_else(|| strange(&[Value::Int(answer[0])]))?;
        let mut holds: Vec<Arc<dyn Hold>> = Vec::with_capacity(requests.len());
        for (at, field) in fields.into_iter().enumerate() {
            let (request, lock) = (&requests[at], &locks[at]);
            (parked[at].settled, parked[at].holds) = (true, true);
            let expires = sent + request.term.ttl();
            let hold = self.hold(lock, request, Some(field), tokens[at], expires, false);
            if news[at].heard().now_or_never().is_some() {
                server.listener.requests.check(Arc::clone(&hold) as _);
            }
            holds.push(hold);
        }
        Ok(Some(holds))
    }

    fn lifeline(&self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    fn admin(&self) -> &dyn Admin {
        self
    }

    fn latches(&self) -> Option<&dyn Latches> {
        Some(self)
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("place", &self.place).finish_non_exhaustive()
    }
}
