//! Locks at a Redis server, at the master that sentinels name, or in a cluster; with or without TLS.
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
//! 6. Renewals that are due within 10 ms of each other go in one command; in a cluster, those of one slot.
//! 7. Where the URL says `replicas=k`, a grant and a renewal count only when k replicas have them
//!    (`replicas.rs`); a hand-over is asked for again to find out.
//! 8. Which server a step goes to is decided below all of this (`nodes.rs`): the one there is, the master
//!    that the sentinels name (`sentinel.rs`), or the one that has the slot (`cluster.rs`).
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
//! to a replica that had not seen the grant, which `replicas=k` is against) grants again what is held,
//! and starts tokens again. A plain `RSemaphore` keeps no record of who has its permits, so it is not to
//! be mixed with ours. The two dialects do not exclude each other on one name: the second one to ask is
//! refused with an error.
//! A majority of independent servers is [`redlock`](super::redlock).
//!
//! # Cost
//!
//! One round trip to lock, one to release, on one connection for all; one more connection for messages.
//! In a cluster, both for each master in use; with `replicas`, up to twelve more to wait on.
//! A step costs more in proportion to the number of holders (readers, permits), not of waiters, except
//! where unfair readers wait.

mod admin;
mod answer;
mod cells;
mod cluster;
pub(super) mod commands;
pub(super) mod connect;
mod follow;
mod hold;
mod identity;
pub mod keyspace;
mod latches;
pub(super) mod layout;
pub(super) mod link;
pub(super) mod listener;
mod nodes;
pub mod optimistic;
mod renewals;
mod replicas;
mod scripts;
mod sentinel;
mod server;
mod slots;
mod wire;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use redis::{RedisWrite, Value};

use self::answer::{Answer, Word, block, kind_words, millis, strange};
use self::commands::{evalsha, may_pass};
use self::hold::RedisHold;
use self::layout::{SHORT_KEYS, field, lock_key, release_channels, write_short_keys};
use self::nodes::{Answered, Nodes};
use self::renewals::Renewals;
use self::replicas::{Replicas, Shortfall, grant_time};
use self::scripts::Scripts;
use self::server::{Ear, Server};
use super::register::{News, Register};
use super::{Admin, Backend, Capabilities, Cells, Hold, Kind, Latches, Patience, Request, Term};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::loss::Loss;
use crate::name::Name;
use crate::owner::RequestId;
use crate::token::TokenBlock;
use crate::undo::UNDOING;
use crate::url::{Dialect, RedisOptions};
use crate::wait::pause;

/// How long a waiter that does not ask again keeps its place.
pub const WAITER_LEASE: Duration = Duration::from_secs(5);
/// Between two attempts to reach a server that fails.
const RETRY: Duration = Duration::from_millis(100);
/// How long a request that was given up may still arrive, in ms.
const LATE: &str = "60000";
/// No request at all: looking and forcing have no id.
const NOBODY: RequestId = RequestId::from_bytes([0; 16]);

/// Locks at a Redis server, or several.
pub struct Redis {
    place: String,
    prefix: String,
    dialect: Dialect,
    server: Arc<Server>,
}

impl Redis {
    /// Connects. `place` is the URL without its password.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a URL or a file that makes no sense,
    /// [`Error::Unavailable`] when the server cannot be reached or refuses us.
    pub async fn connect(url: &str, place: String, options: &RedisOptions) -> Result<Arc<Self>> {
        let requests = Arc::new(Register::new());
        let nodes = Nodes::connect(url, &place, options, &requests).await?;
        let first = nodes.any().await?;
        let replicas = Replicas::new(options.replicas, &first.commands).await?;
        let scripts = Scripts::of(options.dialect, nodes.sharded());
        let renewals = Renewals::default();
        let party = first.party.clone();
        let server = Arc::new(Server { nodes, replicas, scripts, requests, renewals, party });
        let (prefix, dialect) = (options.prefix.clone(), options.dialect);
        Ok(Arc::new(Self { place, prefix, dialect, server }))
    }

    /// What a mutex is called where others see it.
    fn field(&self, request: &Request, lock: &str) -> Option<String> {
        let is_mutex = matches!(request.kind, Kind::Mutex | Kind::FairMutex);
        // Messages reach us from every server by any of our channels, as long as its server lives.
        let party = || self.server.nodes.party(lock).unwrap_or_else(|| self.server.party.clone());
        is_mutex.then(|| field(request, &party()))
    }

    fn lock(&self, name: &Name) -> Result<String> {
        let lock = lock_key(&self.prefix, name);
        self.server.nodes.check(name, &lock)?;
        Ok(lock)
    }

    /// Asks for a lock, or asks again. Who stands in line need not have it acknowledged that he still
    /// does: that would hold up those who are granted something.
    async fn ask(
        &self,
        lock: &str,
        request: &Request,
        field: Option<&str>,
        question: u32,
        in_line: bool,
    ) -> Result<Answered<Answer>> {
        let deadline = match request.patience {
            Patience::Until(at) => at,
            _ => Instant::NEVER,
        };
        let replicas = self.server.acknowledged(grant_time(deadline));
        if in_line && replicas.is_some() {
            let answered = self.ask_for(lock, request, field, question, None).await?;
            if !matches!(answered.value, Answer::Granted(_)) {
                return Ok(answered);
            }
        }
        self.ask_for(lock, request, field, question, replicas).await
    }

    async fn ask_for(
        &self,
        lock: &str,
        request: &Request,
        field: Option<&str>,
        question: u32,
        acknowledged: Option<(Replicas, Duration)>,
    ) -> Result<Answered<Answer>> {
        let (kind, of) = kind_words(request.kind);
        let owner = request.owner.to_string();
        let lease = match request.patience {
            Patience::TryOnce => "0".to_owned(),
            _ => millis(WAITER_LEASE),
        };
        let (of, ttl) = (of.to_string(), request.term.ttl());
        let (tokens, question, millis) =
            (request.tokens.to_string(), question.to_string(), millis(ttl));
        let acquire = &self.server.scripts.acquire;
        let step = |party: &str| {
            let who = field.unwrap_or(&owner);
            let words = [who, kind, &of, &millis, &tokens, &lease, party, &question];
            commands::step(acquire, lock, request.id, &words)
        };
        let nodes = &self.server.nodes;
        let answered: Answered<Vec<Value>> =
            nodes.invoke(lock, acquire, step, acknowledged).await?;
        let value = Answer::read(&answered.value, request)?;
        Ok(Answered { value, shortfall: answered.shortfall, by: None, node: answered.node })
    }

    /// Gives back what too few replicas have, and says so.
    async fn undo(&self, parked: &mut Parked<'_>, name: &Name, shortfall: Shortfall) -> Error {
        let Shortfall { wanted, reached } = shortfall;
        // Where that fails, it is tried again in the background.
        parked.settled = parked.release().await.is_ok();
        Error::Replicas { name: name.clone(), wanted, reached }
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
        self.server.requests.hold(request.id, &hold);
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

impl Parked<'_> {
    async fn release(&self) -> Result<u8> {
        let release = &self.server.scripts.release;
        self.server.run(release, self.lock, self.id, &["", LATE]).await
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        let requests = &self.server.requests;
        if !self.holds {
            requests.forget(self.id);
        }
        if self.settled {
            return;
        }
        let (server, lock, id) = (Arc::clone(self.server), self.lock.to_owned(), self.id);
        let until = Instant::now() + self.ttl;
        let undoing = UNDOING.begin();
        requests.runtime().spawn(async move {
            let _undoing = undoing;
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
        let requests = &server.requests;
        let lock = self.lock(&request.name)?;
        let field = self.field(&request, &lock);
        let news = requests.expect(id);
        // From here on, before the first request is sent: dropping this future undoes it.
        let mut parked = Parked { server, lock: &lock, id, ttl, settled: false, holds: false };
        let waits = request.patience != Patience::TryOnce;
        // Asked once, but the answer may have been lost: then ask for it again.
        let patience = if waits { request.patience } else { Patience::Forever };
        let outage = server.nodes.outage(waits);
        let mut ear = Ear::default();
        let mut failing: Option<Instant> = None;
        let mut resent = false;
        let mut question = 0;
        let mut stands = false;
        let (tokens, expires) = loop {
            let sent = Instant::now();
            let (mut in_queue, mut short) = (false, None);
            question += 1;
            let next = match self.ask(&lock, &request, field.as_deref(), question, stands).await {
                Ok(Answered { value: Answer::Granted(tokens), shortfall: None, .. }) => {
                    break (tokens, sent + ttl);
                }
                Ok(Answered { value: Answer::Granted(_), shortfall: Some(shortfall), .. }) => {
                    // Right after a fail-over, replicas are on their way to the new master.
                    let since = *failing.get_or_insert_with(Instant::now);
                    let enough = Instant::now() + replicas::ACK_TIME;
                    let over = enough > patience.deadline() || enough.since(since) > outage;
                    if over || !waits || !resent {
                        return Err(self.undo(&mut parked, &request.name, shortfall).await);
                    }
                    short = Some(shortfall);
                    Instant::now() + RETRY
                }
                Ok(Answered { value: Answer::Queued(_, true), node, .. })
                    if !ear.is_at(&node) && self.dialect == Dialect::Redisson =>
                {
                    // Then ask once more: what was said before we listened we did not hear.
                    ear.listen(node, release_channels(&lock, id).to_vec()).await;
                    (failing, stands) = (None, true);
                    continue;
                }
                Ok(Answered { value: Answer::Queued(next, _), .. }) => {
                    (failing, in_queue, stands) = (None, true, true);
                    next
                }
                Ok(Answered { value: Answer::Busy, .. }) => {
                    parked.settled = !resent;
                    return Ok(None);
                }
                Err(error) if may_pass(&error) => {
                    resent = true;
                    let since = *failing.get_or_insert_with(Instant::now);
                    if Instant::now().since(since) > outage {
                        return Err(error);
                    }
                    Instant::now() + RETRY
                }
                Err(error) => return Err(error),
            };
            match in_line(patience, next, &news, question).await {
                Pause::PatienceRanOut => match short {
                    Some(short) => return Err(self.undo(&mut parked, &request.name, short).await),
                    None => return Ok(None),
                },
                // Who must have it has to say so.
                Pause::Granted(..) if server.replicas.is_some() => stands = false,
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
        let server = &self.server;
        let locks: Result<Vec<_>> = requests.iter().map(|wanted| self.lock(&wanted.name)).collect();
        let locks = locks?;
        let fields = std::iter::zip(requests, &locks);
        let fields = fields.map(|(request, lock)| self.field(request, lock));
        let Some(fields) = fields.collect::<Option<Vec<_>>>() else { return Ok(None) };
        let place = |lock: &String| server.nodes.place(lock);
        if locks.iter().any(|lock| place(lock) != place(&locks[0])) {
            return Ok(None);
        }
        let mut parked: Vec<Parked<'_>> = Vec::with_capacity(requests.len());
        let mut news = Vec::with_capacity(requests.len());
        let script = &server.scripts.acquire_all;
        let mut command = evalsha(script, SHORT_KEYS * requests.len());
        for (request, lock) in requests.iter().zip(&locks) {
            let (id, ttl) = (request.id, request.term.ttl());
            news.push(server.requests.expect(id));
            parked.push(Parked { server, lock, id, ttl, settled: false, holds: false });
            write_short_keys(&mut command, lock, id);
        }
        for (request, field) in requests.iter().zip(&fields) {
            command.arg(field);
            command.write_arg_fmt(request.term.ttl().as_millis());
            command.write_arg_fmt(request.tokens);
        }
        let sent = Instant::now();
        let acknowledged = server.acknowledged(grant_time(Instant::NEVER));
        let step = |_: &str| command.clone();
        let answer: Result<Answered<Vec<i64>>> =
            server.nodes.invoke(&locks[0], script, step, acknowledged).await;
        // An answer that is lost: what was taken is given back, and asked for one by one.
        let answer = match answer {
            Ok(Answered { value, shortfall: Some(shortfall), .. }) if !value.is_empty() => {
                let names = requests.iter().map(|request| &request.name);
                let undone = parked.iter_mut().zip(names);
                let undone = undone.map(|(parked, name)| self.undo(parked, name, shortfall));
                let mut errors = futures_util::future::join_all(undone).await;
                return Err(errors.swap_remove(0));
            }
            Ok(Answered { value, .. }) => value,
            Err(error) if may_pass(&error) => return Ok(None),
            Err(error) => return Err(error),
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
                server.requests.check(Arc::clone(&hold) as _);
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

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("place", &self.place).finish_non_exhaustive()
    }
}
