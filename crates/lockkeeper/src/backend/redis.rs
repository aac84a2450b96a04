//! Locks at one Redis server, in the layout of Redisson. Tested on Redis 7.0.
//!
//! # How it works
//!
//! Each step of the model is one script (`redis/lua`): it reads our state and what Redisson's clients
//! see, takes the step by the server's clock, and writes both. For a name `foo`:
//!
//! | key or channel | what it is |
//! | --- | --- |
//! | `foo` | the lock as Redisson stores it: a hash of owners, `mode` for read-write; for a semaphore the free permits, for a latch the count |
//! | `{foo}:OWNER:rwlock_timeout:N` | proves to Redisson that a reader lives |
//! | `{foo}:timeout` | permits and their ends, as Redisson's expirable semaphore has them |
//! | `redisson_lock_token:{foo}` | the last token, as Redisson's fenced lock has it; the only key without a TTL |
//! | `lockkeeper:{foo}` (`lockkeeper::foo` where the name has braces) | our state: holders, the queue, evictions |
//! | the same and `:late:REQUEST` | a request that was given up and must not be granted any more; for a minute |
//! | `redisson_lock__channel:{foo}`, `redisson_rwlock:{foo}`, `redisson_sc:{foo}`, `redisson_countdownlatch__channel__{foo}` | where Redisson's clients wait |
//! | `lockkeeper_wake:CLIENT` | where one client of ours waits, for everything |
//!
//! 1. A release hands the lock to the first in our queue in the same script, and tells that client: one
//!    message for one hand-over, however many wait.
//! 2. Where Redisson's clients wait as well, every ninth release leaves the lock to whoever is quicker.
//! 3. The woken client asks again; the request is idempotent and finds its grant.
//! 4. A waiter asks again every third of its waiter lease of 5 s in any case. A message that is lost
//!    costs no more than that.
//! 5. A request whose answer is lost is sent again: it finds what it got, or gets it now. Giving up
//!    releases whatever it may have got, in the background, until the lease would have ended.
//!
//! # What it promises
//!
//! Exclusion between our clients and with Redisson's `RLock`, `RReadWriteLock` and
//! `RPermitExpirableSemaphore` on one master, by the server's clock; our queue in order of arrival; tokens that grow as long as the
//! server keeps its data.
//!
//! # When it breaks
//!
//! A server that loses its data (restart without persistence, eviction by `maxmemory-policy`, fail-over
//! to a replica that had not seen the grant) grants again what is held, and starts tokens again. A
//! plain `RSemaphore` keeps no record of who has its permits, so it is not to be mixed with ours. The
//! fair queue of Redisson's `RFairLock` is not ours: its clients and ours exclude each other but do not
//! queue together. TLS, Sentinel, Cluster and RedLock are not in this version.
//!
//! # Cost
//!
//! One round trip to lock, one to release, on one connection for all; one more connection for messages.

mod commands;
mod hold;
mod layout;
mod listener;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use redis::{Client, Value};

use self::commands::{
    ACQUIRE, Commands, EVICT, LATCH_CLOSE, LATCH_COUNT, LATCH_COUNT_DOWN, RELEASE, SHOW, may_pass,
};
use self::hold::RedisHold;
use self::layout::{Keys, name_of_state};
use self::listener::Listener;
use super::{
    Admin, Backend, Capabilities, Eviction, Hold, Holding, Kind, Latches, Patience, Request, Status,
};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::loss::Loss;
use crate::name::Name;
use crate::owner::{self, Owner, RequestId};
use crate::token::{Token, TokenBlock};
use crate::wait::pause;

/// How long a waiter that does not ask again keeps its place.
pub const WAITER_LEASE: Duration = Duration::from_secs(5);
/// How long a server may fail to answer before a request gives up.
const OUTAGE: Duration = Duration::from_secs(5);
/// Between two attempts to reach a server that fails.
const RETRY: Duration = Duration::from_millis(100);
/// How long a request that was given up may still arrive, in ms.
const LATE: &str = "60000";
/// How long a latch that nobody counts down stays closed.
const LATCH_TTL: &str = "86400000";

/// Locks at one Redis server.
pub struct Redis {
    place: String,
    prefix: String,
    server: Arc<Server>,
}

struct Server {
    commands: Commands,
    listener: Arc<Listener>,
    /// What our own channel is called.
    client: String,
}

impl Redis {
    /// Connects. `place` is the URL without its password; all keys begin with `prefix`.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a URL that makes no sense, [`Error::Unavailable`] when the server cannot
    /// be reached or refuses us.
    pub async fn connect(url: &str, place: String, prefix: &str) -> Result<Arc<Self>> {
        let client = Client::open(url).map_err(|_| {
            Error::Config(format!("{place} is not a redis:// URL: redis://HOST:PORT/DB"))
        })?;
        let commands = Commands::connect(&client).await?;
        let id = format!("{:016x}", owner::random());
        let listener = Listener::start(&client, &id).await?;
        let server = Arc::new(Server { commands, listener, client: id });
        Ok(Arc::new(Self { place, prefix: prefix.to_owned(), server }))
    }

    fn keys(&self, name: &Name) -> Keys {
        Keys::of(&self.prefix, name)
    }

    /// Asks for a lock, or asks again.
    async fn ask(&self, keys: &Keys, request: &Request) -> Result<Answer> {
        let (kind, of) = kind_words(request.kind);
        let lease = match request.patience {
            Patience::TryOnce => "0".to_owned(),
            _ => millis(WAITER_LEASE),
        };
        let words = [
            &request.owner.to_string(),
            kind,
            &of.to_string(),
            &millis(request.term.ttl()),
            &request.tokens.to_string(),
            &lease,
            self.server.client.as_str(),
        ];
        let sent = Instant::now();
        let answer: Vec<Value> =
            self.server.commands.run(&ACQUIRE, keys, request.id, &words).await?;
        Answer::read(&answer, sent + request.term.ttl(), request)
    }
}

/// What the server says to a request.
enum Answer {
    Granted(TokenBlock, Instant),
    /// When to ask again at the latest, and whether a client of Redisson holds it.
    Queued(Instant, bool),
    Busy,
}

impl Answer {
    fn read(answer: &[Value], expires: Instant, request: &Request) -> Result<Self> {
        match answer {
            [Value::Int(1), Value::Int(first), Value::Int(count)] => {
                let first = u64::try_from(*first).ok().and_then(Token::new);
                let count = u32::try_from(*count).unwrap_or(1);
                let first = first.ok_or_else(|| strange(answer))?;
                Ok(Self::Granted(TokenBlock::new(first, count), expires))
            }
            [Value::Int(0), Value::Int(next), Value::Int(foreign)] => {
                let heartbeat = WAITER_LEASE / 3;
                let next = u64::try_from(*next).map_or(heartbeat, Duration::from_millis);
                Ok(Self::Queued(Instant::now() + next.min(heartbeat), *foreign == 1))
            }
            [Value::Int(-1)] => Ok(Self::Busy),
            [Value::Int(-2)] => {
                let (name, owner) = (request.name.clone(), request.owner.clone());
                Err(Error::Upgrade { name, owner })
            }
            [Value::Int(-3), family] => {
                Err(wrong_kind(&request.name, family, request.kind.family()))
            }
            _ => Err(strange(answer)),
        }
    }
}

fn strange(answer: &[Value]) -> Error {
    let context = format!("the server gave an answer that makes no sense: {answer:?}");
    Error::Unavailable { backend: "redis", context, source: None }
}

fn wrong_kind(name: &Name, family: &Value, asked: &'static str) -> Error {
    let family: String = redis::from_redis_value_ref(family).unwrap_or_default();
    let known = ["semaphore", "latch", "read-write lock", "mutex"];
    let used_as = known.into_iter().find(|known| *known == family).unwrap_or("something else");
    Error::WrongKind { name: name.clone(), used_as, asked }
}

fn kind_words(kind: Kind) -> (&'static str, u32) {
    match kind {
        Kind::Mutex => ("mutex", 1),
        Kind::FairMutex => ("fair-mutex", 1),
        Kind::Read => ("read", 1),
        Kind::Write => ("write", 1),
        Kind::FairRead => ("fair-read", 1),
        Kind::FairWrite => ("fair-write", 1),
        Kind::Permit { of } => ("permit", of),
    }
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

/// A request that may have a hold or a place in a queue: given up when dropped, unless it is settled.
struct Parked<'a> {
    server: &'a Arc<Server>,
    keys: &'a Keys,
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
        let (server, keys, id) = (Arc::clone(self.server), self.keys.clone(), self.id);
        let until = Instant::now() + self.ttl;
        requests.runtime().spawn(async move {
            let undo = || server.commands.run::<u8>(&RELEASE, &keys, id, &[LATE]);
            while let Err(error) = undo().await
                && may_pass(&error)
                && Instant::now() < until
            {
                tokio::time::sleep(RETRY).await;
            }
        });
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
        let (server, id) = (&self.server, request.id);
        let requests = &server.listener.requests;
        let keys = self.keys(&request.name);
        let news = requests.expect(id);
        // From here on, before the first request is sent: dropping this future undoes it.
        let ttl = request.term.ttl();
        let mut parked = Parked { server, keys: &keys, id, ttl, settled: false, holds: false };
        let mut listening = None;
        let mut failing: Option<Instant> = None;
        let mut resent = false;
        loop {
            let next = match self.ask(&keys, &request).await {
                Ok(Answer::Granted(tokens, expires)) => {
                    (parked.settled, parked.holds) = (true, true);
                    let (server, keys) = (Arc::clone(server), keys.clone());
                    let loss = Loss::new();
                    let hold =
                        Arc::new(RedisHold { server, keys, id, tokens, expires, loss, resent });
                    requests.hold(id, &hold);
                    // What was said to the waiter meanwhile may have been that it is gone already.
                    if news.notified().now_or_never().is_some() {
                        requests.check(Arc::clone(&hold) as _);
                    }
                    return Ok(Some(hold));
                }
                Ok(Answer::Queued(_, true)) if listening.is_none() => {
                    // Then ask once more: what was said before we listened we did not hear.
                    listening = Some(server.listener.also(&keys.lock_channels()).await);
                    continue;
                }
                Ok(Answer::Queued(next, _)) => {
                    failing = None;
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
            let patience = match request.patience {
                // Asked once, but the answer may have been lost: then ask for it again.
                Patience::TryOnce => Patience::Forever,
                patience => patience,
            };
            if !pause(patience, Some(next), news.notified()).await {
                return Ok(None);
            }
        }
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

/// No request at all: looking and forcing have no id.
const NOBODY: RequestId = RequestId::from_bytes([0; 16]);

/// An owner as the server has it: ours, or one of Redisson's, which have the same form.
fn owner(text: &str) -> Owner {
    let text = text.strip_suffix(":write").unwrap_or(text);
    Owner::try_from(text.to_owned()).unwrap_or_else(|_| Owner::foreign(text))
}

#[async_trait]
impl Admin for Redis {
    async fn list(&self) -> Result<Vec<Status>> {
        let escaped = self.prefix.replace(['*', '?', '[', ']', '\\'], "?");
        let mut names = Vec::new();
        for pattern in [format!("lockkeeper:{{{escaped}*"), format!("lockkeeper::{escaped}*")] {
            let keys = self.server.commands.scan(&pattern).await?;
            names.extend(keys.iter().filter_map(|key| name_of_state(key, &self.prefix)));
        }
        names.sort();
        names.dedup();
        let mut seen = Vec::with_capacity(names.len());
        for name in names {
            seen.push(self.show(&name).await?);
        }
        seen.retain(|status| status.kind.is_some());
        Ok(seen)
    }

    async fn show(&self, name: &Name) -> Result<Status> {
        let keys = self.keys(name);
        let (now, used_as, count, rest): (u64, String, i64, Vec<String>) = {
            let answer: Vec<Value> = self.server.commands.run(&SHOW, &keys, NOBODY, &[]).await?;
            let words: Option<Vec<String>> =
                answer.iter().map(|word| redis::from_redis_value_ref(word).ok()).collect();
            let mut words = words.ok_or_else(|| strange(&answer))?;
            if words.len() < 3 {
                return Err(strange(&answer));
            }
            let rest = words.split_off(3);
            let number = |word: &str| word.parse::<i64>().unwrap_or(0);
            let now = u64::try_from(number(&words[0])).unwrap_or(0);
            (now, words[1].clone(), number(&words[2]), rest)
        };
        let mut status = Status {
            name: name.clone(),
            kind: (!used_as.is_empty()).then_some(used_as),
            holders: Vec::new(),
            waiters: Vec::new(),
            count: u32::try_from(count).ok(),
        };
        let mut rest = rest.iter().map(String::as_str);
        let since = |from: &str, to: u64| {
            Duration::from_millis(to.saturating_sub(from.parse().unwrap_or(to)))
        };
        while let Some(what) = rest.next() {
            let (Some(who), Some(kind)) = (rest.next(), rest.next()) else { break };
            let family = match kind {
                "permit" => "semaphore",
                "mutex" | "fair-mutex" => "mutex",
                _ => "read-write lock",
            };
            status.kind.get_or_insert_with(|| family.to_owned());
            if what == "q" {
                status.waiters.push(owner(who));
                continue;
            }
            let (Some(token), Some(from), Some(to)) = (rest.next(), rest.next(), rest.next())
            else {
                break;
            };
            let left = to.parse::<u64>().unwrap_or(now).saturating_sub(now);
            status.holders.push(Holding {
                owner: owner(who),
                token: token.parse().ok().and_then(Token::new).unwrap_or(Token::MIN),
                held: since(from, now),
                lease_left: Some(Duration::from_millis(left)),
            });
        }
        Ok(status)
    }

    async fn evict(&self, name: &Name, reason: &str) -> Result<Eviction> {
        let keys = self.keys(name);
        let answer: Vec<Value> = self.server.commands.run(&EVICT, &keys, NOBODY, &[reason]).await?;
        let words: Option<Vec<String>> =
            answer.iter().map(|word| redis::from_redis_value_ref(word).ok()).collect();
        let words = words.ok_or_else(|| strange(&answer))?;
        let token = words.first().and_then(|word| word.parse().ok()).and_then(Token::new);
        let token = token.ok_or_else(|| strange(&answer))?;
        Ok(Eviction { holders: words[1..].iter().map(|who| owner(who)).collect(), token })
    }
}

#[async_trait]
impl Latches for Redis {
    async fn close(&self, name: &Name, count: u32, ttl: Duration) -> Result<bool> {
        let (count, ttl, keys) = (count.to_string(), millis(ttl), self.keys(name));
        let answer: Vec<Value> =
            self.server.commands.run(&LATCH_CLOSE, &keys, NOBODY, &[&count, &ttl]).await?;
        match answer.as_slice() {
            [Value::Int(was_open)] => Ok(*was_open == 1),
            [Value::Int(-3), family] => Err(wrong_kind(name, family, "latch")),
            _ => Err(strange(&answer)),
        }
    }

    async fn count_down(&self, name: &Name, id: RequestId) -> Result<u32> {
        let keys = self.keys(name);
        self.server.commands.run(&LATCH_COUNT_DOWN, &keys, id, &[LATCH_TTL]).await
    }

    async fn count(&self, name: &Name) -> Result<u32> {
        let keys = self.keys(name);
        self.server.commands.run(&LATCH_COUNT, &keys, NOBODY, &[]).await
    }

    async fn wait(&self, name: &Name, id: RequestId, patience: Patience) -> Result<bool> {
        let keys = self.keys(name);
        let requests = &self.server.listener.requests;
        let news = requests.expect(id);
        let _forget = Forget(&self.server, id);
        let _listening = self.server.listener.also(&[keys.latch_channel()]).await;
        loop {
            if self.count(name).await? == 0 {
                return Ok(true);
            }
            let next = Instant::now() + WAITER_LEASE;
            if !pause(patience, Some(next), news.notified()).await {
                return Ok(false);
            }
        }
    }
}

/// A wait for a latch that ends.
struct Forget<'a>(&'a Server, RequestId);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.listener.requests.forget(self.1);
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("place", &self.place).finish_non_exhaustive()
    }
}
