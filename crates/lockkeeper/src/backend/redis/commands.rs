//! The connections for commands to one server: scripts, time-outs, and what errors mean.

use std::collections::HashSet;
use std::pin::pin;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{
    Client, Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, RedisWrite, Script,
    ServerErrorKind, Value,
};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::layout::{KEYS, WAKE, is_lock_field, is_our_field, write_keys};
use super::link::{Link, Open, Origin};
use super::replicas::{Replicas, Shortfall};
use crate::clock::answer_within;
use crate::error::{Error, Result};
use crate::owner::RequestId;

/// How long one command may take, and one attempt to connect.
pub(in crate::backend) const COMMAND_TIME: Duration = Duration::from_secs(1);

/// How long a look at many keys may take.
pub(super) const LOOK_TIME: Duration = Duration::from_secs(5);

/// So many steps wait for replicas at a time, each on a connection of its own.
const SYNCING: usize = 8;

/// The same for renewals, which go together.
const RENEWING: usize = 4;

/// No owner is so long that its field could be longer.
const LONGEST_FIELD: usize = 1024;

const UNKNOWN_SCRIPT: ErrorKind = ErrorKind::Server(ServerErrorKind::NoScript);

/// A call of a script with so many keys, which follow.
pub(in crate::backend) fn evalsha(script: &Script, keys: usize) -> Cmd {
    let mut command = Cmd::with_capacity(32, 1024);
    command.arg("EVALSHA").arg(script.get_hash()).arg(keys);
    command
}

/// A step on one lock.
pub(super) fn step(script: &Script, lock: &str, id: RequestId, arguments: &[&str]) -> Cmd {
    let mut step = evalsha(script, KEYS);
    write_keys(&mut step, lock, id);
    step.write_arg_fmt(id);
    step.arg(WAKE).arg(arguments);
    step
}

/// A script to run, and how.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) script: &'a Script,
    pub(super) step: &'a Cmd,
    /// On behalf of a slot that is on its way to this server.
    pub(super) asking: bool,
    /// Who must have it, and how long to wait for them.
    pub(super) acknowledged: Option<(Replicas, Duration)>,
    pub(super) sign: Sign,
}

/// Whether it matters which server it is that answers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    No,
    /// The answer says who gave it.
    Answer,
    /// And the command says, as 8 bytes behind its last word, who is to get it.
    Both,
    /// The same, for what goes on with something that was signed: the server is not asked again who it is.
    BothAsBefore,
}

impl Sign {
    /// Who is at the other end, if that matters.
    async fn identify(self, open: &mut Open) -> RedisResult<Option<u64>> {
        match self {
            Self::No => return Ok(None),
            Self::BothAsBefore if let Some(by) = open.identity.last() => return Ok(Some(by)),
            Self::Answer | Self::Both | Self::BothAsBefore => {}
        }
        open.identity.of(&mut open.connection).await.map(Some)
    }

    /// Whether the command says it.
    fn is_sent(self) -> bool {
        matches!(self, Self::Both | Self::BothAsBefore)
    }
}

/// An answer.
pub(super) struct Reply<T> {
    pub(super) value: T,
    /// What is missing of the replicas that must have it.
    pub(super) shortfall: Option<Shortfall>,
    /// Who gave it, if that matters.
    pub(super) by: Option<u64>,
}

/// A command without an answer. Given up by who was to wait for it, it leaves nobody who would find out that the connection
/// is dead: so that is done here.
struct UnderWay<'a> {
    link: &'a Link,
    /// Nobody else uses the connection.
    alone: bool,
    open: Option<Open>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(open) = self.open.take().filter(|_| !self.alone) {
            self.link.doubt(open);
        }
    }
}

/// One connection for all, which comes back by itself, also when it has merely gone silent; and some
/// to wait on for replicas.
pub(in crate::backend) struct Commands {
    pub(super) link: Link,
    idle: Mutex<Vec<Link>>,
    syncing: Semaphore,
    renewing: Semaphore,
    /// Scripts that the server had once.
    loaded: Mutex<HashSet<String>>,
}

impl Commands {
    /// Connections are made in that runtime.
    pub(super) fn to(origin: Origin, runtime: Handle) -> Self {
        let (idle, loaded) = (Mutex::default(), Mutex::default());
        let [syncing, renewing] = [Semaphore::new(SYNCING), Semaphore::new(RENEWING)];
        Self { link: Link::to(origin, runtime), idle, syncing, renewing, loaded }
    }

    /// Always to the same server.
    pub(in crate::backend) fn to_one(client: Client, runtime: Handle) -> Self {
        Self::to(Origin::Fixed(Box::new(client)), runtime)
    }

    /// Connects, if that has not been done yet.
    pub(super) async fn connect(&self) -> Result<()> {
        let connecting = tokio::time::timeout(2 * COMMAND_TIME, self.link.connection()).await;
        connecting.unwrap_or_else(|_| Err(unanswered(2 * COMMAND_TIME))).map(|_| ())
    }

    /// Runs a script. An error: it may have been carried out or not.
    pub(in crate::backend) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        step: &Cmd,
    ) -> Result<T> {
        let run = Run { script, step, asking: false, acknowledged: None, sign: Sign::No };
        self.invoke(run).await.map(|reply| reply.value)
    }

    /// The same for what need not be acknowledged by replicas.
    pub(super) async fn invoke_once<T: FromRedisValue>(&self, run: Run<'_>) -> Result<Reply<T>> {
        Self::invoke_on(&self.link, run, COMMAND_TIME).await
    }

    /// The same, told how.
    pub(super) async fn invoke<T: FromRedisValue>(&self, run: Run<'_>) -> Result<Reply<T>> {
        let Some((replicas, time)) = run.acknowledged else {
            return Self::invoke_on(&self.link, run, COMMAND_TIME).await;
        };
        // The server needs its time for the replicas, besides ours.
        let time = COMMAND_TIME + time;
        let permits = if replicas.of_renewal { &self.renewing } else { &self.syncing };
        // Never closed. Its own time: who has waited for long must not have none left to connect.
        let Ok(_permit) = tokio::time::timeout(time, permits.acquire()).await else {
            return Err(unanswered(time));
        };
        let invoked = async {
            self.load(run.script).await?;
            let link = self.idle.lock().pop();
            let link = link
                .unwrap_or_else(|| Link::to(self.link.origin.clone(), self.link.runtime.clone()));
            let answer = Self::invoke_on(&link, run, time).await;
            // One on which something is still under way is dropped, and closed by that.
            self.idle.lock().push(link);
            answer
        };
        tokio::time::timeout(time, invoked).await.unwrap_or_else(|_| Err(unanswered(time)))
    }

    /// Sees to it that the server has a script: who waits for replicas would wait for them in vain when
    /// it does not.
    async fn load(&self, script: &Script) -> Result<()> {
        if self.loaded.lock().contains(script.get_hash()) {
            return Ok(());
        }
        let open = self.link.connection().await?;
        let mut connection = open.connection.clone();
        let loading = script.load_async(&mut connection);
        self.looked(open, COMMAND_TIME, loading).await?;
        self.loaded.lock().insert(script.get_hash().to_owned());
        Ok(())
    }

    async fn invoke_on<T: FromRedisValue>(
        link: &Link,
        run: Run<'_>,
        time: Duration,
    ) -> Result<Reply<T>> {
        let mut under_way = UnderWay { link, alone: run.acknowledged.is_some(), open: None };
        let answered = {
            // Pinned here: what is handed on as it is lies in every future that it is handed to.
            let answer = pin!(async {
                let open = under_way.open.insert(link.connection().await?);
                let by = run.sign.identify(open).await.map_err(|error| {
                    if error.is_unrecoverable_error() {
                        link.forget(open.number);
                    }
                    failed("asking the server which one it is (INFO)", error)
                })?;
                let signed;
                let run = match by.filter(|_| run.sign.is_sent()) {
                    Some(by) => {
                        let mut step = run.step.clone();
                        step.arg(&by.to_be_bytes());
                        // Apart, because a look needs no room for it.
                        signed = Box::new(step);
                        Run { step: &signed, ..run }
                    }
                    None => run,
                };
                let answer = match send(run, &mut open.connection).await {
                    // Apart, because it is rare, and the future of every command would be larger.
                    Err(error) if error.kind() == UNKNOWN_SCRIPT => {
                        let again = async {
                            run.script.load_async(&mut open.connection).await?;
                            send(run, &mut open.connection).await
                        };
                        Box::pin(again).await
                    }
                    answer => answer,
                };
                // A master that was replaced meanwhile may grant what the new one grants to others.
                if answer.is_ok() && !link.is_right(open) {
                    return Err(demotion());
                }
                let answer = answer.map(|(value, shortfall)| Reply { value, shortfall, by });
                answer.map_err(|error| {
                    let demoted = says(&error, "READONLY") && link.origin.may_move();
                    if demoted || error.is_unrecoverable_error() {
                        link.forget(open.number);
                    }
                    if demoted { demotion() } else { failed("a command", error) }
                })
            });
            answer_within(time, answer).await
        };
        let used = under_way.open.take();
        answered.unwrap_or_else(|| {
            // The driver keeps a connection that does not answer: a new one may.
            if let Some(open) = used {
                link.forget(open.number);
            }
            Err(unanswered(time))
        })
    }

    /// Keys of one type that match, found bit by bit.
    pub(in crate::backend) async fn scan(&self, pattern: &str, kind: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(500);
            scan.arg("TYPE").arg(kind);
            let (next, keys): (u64, Vec<Vec<u8>>) = self.query(&scan).await?;
            // What is not text is no name of ours.
            found.extend(keys.into_iter().filter_map(|key| String::from_utf8(key).ok()));
            if next == 0 {
                found.sort();
                found.dedup();
                return Ok(found);
            }
            cursor = next;
        }
    }

    /// Which of these hashes are locks: by the form of their fields.
    pub(super) async fn only_locks(&self, keys: Vec<String>) -> Result<Vec<String>> {
        let look = |look: &mut Pipeline, key: &str| {
            look.cmd("HSCAN").arg(key).arg(0).arg("COUNT").arg(10);
        };
        let is_lock = |(_, fields): &(u64, Vec<Vec<u8>>)| {
            let known = |field: &Vec<u8>| str::from_utf8(field).is_ok_and(is_lock_field);
            !fields.is_empty() && fields.iter().step_by(2).all(known)
        };
        self.only(keys, look, is_lock).await
    }

    /// Which of these strings are mutexes of ours: by the form of their value.
    pub(in crate::backend) async fn only_ours(&self, keys: Vec<String>) -> Result<Vec<String>> {
        let look = |look: &mut Pipeline, key: &str| {
            look.cmd("GETRANGE").arg(key).arg(0).arg(LONGEST_FIELD);
        };
        let is_ours = |value: &Vec<u8>| str::from_utf8(value).is_ok_and(is_our_field);
        self.only(keys, look, is_ours).await
    }

    /// Which keys look like what is wanted. A few at a time.
    async fn only<T: FromRedisValue>(
        &self,
        keys: Vec<String>,
        look: impl Fn(&mut Pipeline, &str),
        is_wanted: impl Fn(&T) -> bool,
    ) -> Result<Vec<String>> {
        let mut wanted = Vec::new();
        for part in keys.chunks(200) {
            let mut looks = redis::pipe();
            part.iter().for_each(|key| look(&mut looks, key));
            // One may have become something else meanwhile: then it is not what is wanted.
            let open = self.link.connection().await?;
            let mut connection = open.connection.clone();
            let looking = looks.ignore_errors().query_async(&mut connection);
            let replies: Vec<RedisResult<T>> = self.looked(open, LOOK_TIME, looking).await?;
            let found =
                part.iter().zip(&replies).filter(|(_, reply)| reply.as_ref().is_ok_and(&is_wanted));
            wanted.extend(found.map(|(key, _)| key.clone()));
        }
        Ok(wanted)
    }

    pub(super) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        let open = self.link.connection().await?;
        let mut connection = open.connection.clone();
        let looking = command.query_async(&mut connection);
        self.looked(open, LOOK_TIME, looking).await
    }

    /// Waits for what is no step, for as long as that may take.
    async fn looked<T>(
        &self,
        open: Open,
        time: Duration,
        looking: impl Future<Output = RedisResult<T>> + Send,
    ) -> Result<T> {
        let number = open.number;
        let mut under_way = UnderWay { link: &self.link, alone: false, open: Some(open) };
        let looked = answer_within(time, looking).await;
        under_way.open = None;
        let Some(looked) = looked else {
            self.link.forget(number);
            return Err(unanswered(time));
        };
        looked.map_err(|error| {
            if error.is_unrecoverable_error() {
                self.link.forget(number);
            }
            failed("looking", error)
        })
    }
}

/// Sends a script, with what goes before and after it in one pipeline.
async fn send<T: FromRedisValue>(
    run: Run<'_>,
    connection: &mut MultiplexedConnection,
) -> RedisResult<(T, Option<Shortfall>)> {
    if !run.asking && run.acknowledged.is_none() {
        return Ok((run.step.query_async(connection).await?, None));
    }
    Box::pin(send_together(run, connection)).await
}

async fn send_together<T: FromRedisValue>(
    run: Run<'_>,
    connection: &mut MultiplexedConnection,
) -> RedisResult<(T, Option<Shortfall>)> {
    let mut pipeline = redis::pipe();
    if run.asking {
        pipeline.cmd("ASKING");
    }
    pipeline.add_command(run.step.clone());
    if let Some((replicas, time)) = run.acknowledged {
        pipeline.add_command(replicas.command(time));
    }
    let answers: Vec<RedisResult<Value>> = pipeline.ignore_errors().query_async(connection).await?;
    let mut answers = answers.into_iter().skip(usize::from(run.asking));
    let missing = || RedisError::from((ErrorKind::Parse, "an answer is missing"));
    let answer = answers.next().ok_or_else(missing)??;
    let Some((replicas, time)) = run.acknowledged else {
        return Ok((redis::from_redis_value(answer)?, None));
    };
    let reached = match answers.next().ok_or_else(missing)? {
        // Another server than the one that said what it can do: a new master, without that file.
        Err(error) if error.code() == Some("ERR") => {
            replicas.in_memory().command(time).query_async(connection).await?
        }
        reached => reached?,
    };
    Ok((redis::from_redis_value(answer)?, replicas.shortfall(&reached)))
}

pub(super) fn unanswered(time: Duration) -> Error {
    let context = format!("no answer within {time:?}");
    Error::Unavailable { backend: "redis", context, source: None }
}

/// The server has become a replica: the next attempt finds the new master.
pub(super) fn demotion() -> Error {
    let context = "the server is not the master any more".to_owned();
    Error::Unavailable { backend: "redis", context, source: None }
}

/// The driver's error behind one of ours.
pub(super) fn cause(error: &Error) -> Option<&RedisError> {
    let Error::Unavailable { source, .. } = error else { return None };
    source.as_ref().and_then(|source| source.downcast_ref::<RedisError>())
}

/// Whether the server says this. What a script met stands behind other words before Redis 7.
pub(super) fn says(error: &RedisError, code: &str) -> bool {
    let behind = |detail: &str| detail.contains(&format!("-{code} "));
    error.code() == Some(code) || error.detail().is_some_and(behind)
}

/// Whether an error may pass by itself: then the same request is sent again.
pub(in crate::backend) fn may_pass(error: &Error) -> bool {
    let Some(error) = cause(error) else { return matches!(error, Error::Unavailable { .. }) };
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        // Too few replicas (min-replicas-to-write), as right after a fail-over; or a server that was
        // demoted while it waited for them.
        || says(error, "NOREPLICAS")
        || says(error, "UNBLOCKED")
        || matches!(
            error.kind(),
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                    | ServerErrorKind::TryAgain
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::ClusterDown
            )
        )
}

/// What an error means, and what to do about it.
pub(super) fn failed(what: &str, error: RedisError) -> Error {
    let hint = match error.kind() {
        ErrorKind::AuthenticationFailed => ": wrong user or password in the URL?",
        ErrorKind::Server(ServerErrorKind::BusyLoading) => ": the server is still loading its data",
        ErrorKind::Server(ServerErrorKind::ReadOnly) => ": a replica; connect to the master",
        ErrorKind::Server(ServerErrorKind::NoPerm) => {
            ": the user may not do that; see docs/OPERATIONS.md for the rights"
        }
        _ => match error.code() {
            Some("OOM") => ": the server is out of memory (maxmemory)",
            Some("NOAUTH") => ": the server wants a password",
            Some("WRONGTYPE") => ": the key holds something else",
            _ => "",
        },
    };
    Error::unavailable("redis", format!("{what} failed{hint}"), error)
}
