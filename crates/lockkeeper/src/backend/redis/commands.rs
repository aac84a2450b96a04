//! The one connection for commands: scripts, time-outs, and what errors mean.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{
    Client, Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisWrite, Script,
    ServerErrorKind,
};

use super::layout::{KEYS, WAKE, is_lock_field, is_our_field, write_keys};
use crate::error::{Error, Result};
use crate::owner::RequestId;

/// How long one command may take, and one attempt to connect.
pub(super) const COMMAND_TIME: Duration = Duration::from_secs(1);

/// No owner is so long that its field could be longer.
const LONGEST_FIELD: usize = 1024;

const UNKNOWN_SCRIPT: ErrorKind = ErrorKind::Server(ServerErrorKind::NoScript);

/// A call of a script with so many keys, which follow.
pub(super) fn evalsha(script: &Script, keys: usize) -> Cmd {
    let mut command = Cmd::with_capacity(32, 1024);
    command.arg("EVALSHA").arg(script.get_hash()).arg(keys);
    command
}

/// A connection that comes back by itself, also when it has merely gone silent.
pub(super) struct Commands {
    client: Client,
    manager: Mutex<ConnectionManager>,
    /// How often a silent connection was replaced.
    replaced: AtomicU64,
}

fn config() -> ConnectionManagerConfig {
    ConnectionManagerConfig::new()
        .set_connection_timeout(Some(COMMAND_TIME))
        // Every command has ours, which counts reconnecting as well.
        .set_response_timeout(None)
        .set_number_of_retries(1)
        .set_max_delay(Duration::from_millis(100))
}

impl Commands {
    pub(super) async fn connect(client: &Client) -> Result<Self> {
        let manager = ConnectionManager::new_with_config(client.clone(), config());
        let manager = manager.await.map_err(|error| failed("connecting", error))?;
        let (client, manager) = (client.clone(), Mutex::new(manager));
        Ok(Self { client, manager, replaced: AtomicU64::new(0) })
    }

    /// The connection, and which one it is.
    fn connection(&self) -> (ConnectionManager, u64) {
        let manager = self.manager.lock();
        (manager.clone(), self.replaced.load(Ordering::Acquire))
    }

    /// The driver keeps a connection that does not answer: a new one may.
    fn replace(&self, silent: u64) {
        let mut manager = self.manager.lock();
        if self.replaced.load(Ordering::Acquire) == silent
            && let Ok(fresh) =
                ConnectionManager::new_lazy_with_config(self.client.clone(), config())
        {
            *manager = fresh;
            self.replaced.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Runs a step on one lock. An error: it may have been carried out or not.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        lock: &str,
        id: RequestId,
        arguments: &[&str],
    ) -> Result<T> {
        let mut step = evalsha(script, KEYS);
        write_keys(&mut step, lock, id);
        step.write_arg_fmt(id);
        step.arg(WAKE).arg(arguments);
        self.invoke(script, &step).await
    }

    /// Runs a script. An error: it may have been carried out or not.
    pub(super) async fn invoke<T: FromRedisValue>(&self, script: &Script, step: &Cmd) -> Result<T> {
        let (mut connection, which) = self.connection();
        let answer = async {
            match step.query_async(&mut connection).await {
                Err(error) if error.kind() == UNKNOWN_SCRIPT => {
                    script.load_async(&mut connection).await?;
                    step.query_async(&mut connection).await
                }
                answer => answer,
            }
        };
        match tokio::time::timeout(COMMAND_TIME, answer).await {
            Ok(answer) => answer.map_err(|error| failed("a command", error)),
            Err(_elapsed) => {
                self.replace(which);
                let context = format!("no answer within {COMMAND_TIME:?}");
                Err(Error::Unavailable { backend: "redis", context, source: None })
            }
        }
    }

    /// Keys of one type that match, found bit by bit.
    pub(super) async fn scan(&self, pattern: &str, kind: &str) -> Result<Vec<String>> {
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
    pub(super) async fn only_ours(&self, keys: Vec<String>) -> Result<Vec<String>> {
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
            let (mut connection, _) = self.connection();
            let replies: Vec<redis::RedisResult<T>> = looks
                .ignore_errors()
                .query_async(&mut connection)
                .await
                .map_err(|error| failed("listing", error))?;
            let found =
                part.iter().zip(&replies).filter(|(_, reply)| reply.as_ref().is_ok_and(&is_wanted));
            wanted.extend(found.map(|(key, _)| key.clone()));
        }
        Ok(wanted)
    }

    async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        let (mut connection, _) = self.connection();
        command.query_async(&mut connection).await.map_err(|error| failed("listing", error))
    }
}

/// Whether an error may pass by itself: then the same request is sent again.
pub(super) fn may_pass(error: &Error) -> bool {
    let Error::Unavailable { source, .. } = error else { return false };
    let Some(error) = source.as_ref().and_then(|source| source.downcast_ref::<RedisError>()) else {
        return true;
    };
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
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
            Some("WRONGTYPE") => ": the key holds something else than a lock",
            _ => "",
        },
    };
    Error::unavailable("redis", format!("{what} failed{hint}"), error)
}
