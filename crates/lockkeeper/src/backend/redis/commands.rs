//! The one connection for commands: scripts, time-outs, and what errors mean.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, ErrorKind, FromRedisValue, RedisError, Script, ServerErrorKind};

use super::layout::{Keys, WAKE};
use crate::error::{Error, Result};
use crate::owner::RequestId;

/// How long one command may take, and one attempt to connect.
pub(super) const COMMAND_TIME: Duration = Duration::from_secs(1);

macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(concat!(include_str!("lua/model.lua"), include_str!($file)))
        });
    };
}

script!(ACQUIRE, "lua/acquire.lua");
script!(RENEW, "lua/renew.lua");
script!(CHECK, "lua/check.lua");
script!(RELEASE, "lua/release.lua");
script!(DOWNGRADE, "lua/downgrade.lua");
script!(EVICT, "lua/evict.lua");
script!(SHOW, "lua/show.lua");
script!(LATCH_CLOSE, "lua/latch_close.lua");
script!(LATCH_COUNT_DOWN, "lua/latch_count_down.lua");
script!(LATCH_COUNT, "lua/latch_count.lua");

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
        .set_response_timeout(Some(COMMAND_TIME))
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

    /// Runs a script on one name. An error: it may have been carried out or not.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &Keys,
        id: RequestId,
        arguments: &[&str],
    ) -> Result<T> {
        let mut invocation = script.prepare_invoke();
        for key in &keys.0 {
            invocation.key(key);
        }
        invocation.key(keys.given_up(id));
        invocation.arg(id.to_string()).arg(WAKE);
        for argument in arguments {
            invocation.arg(*argument);
        }
        let (mut connection, which) = self.connection();
        let answer = invocation.invoke_async(&mut connection);
        // The connection has its own time-out; this one counts reconnecting as well.
        match tokio::time::timeout(2 * COMMAND_TIME, answer).await {
            Ok(answer) => answer.map_err(|error| {
                if error.is_timeout() {
                    self.replace(which);
                }
                failed("a command", error)
            }),
            Err(_elapsed) => {
                self.replace(which);
                let context = format!("no answer within {:?}", 2 * COMMAND_TIME);
                Err(Error::Unavailable { backend: "redis", context, source: None })
            }
        }
    }

    /// Keys that match, found bit by bit.
    pub(super) async fn scan(&self, pattern: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        let mut cursor = 0_u64;
        loop {
            let (mut connection, _) = self.connection();
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(500);
            let (next, keys): (u64, Vec<String>) = scan
                .query_async(&mut connection)
                .await
                .map_err(|error| failed("listing", error))?;
            found.extend(keys);
            if next == 0 {
                found.sort();
                found.dedup();
                return Ok(found);
            }
            cursor = next;
        }
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
            ": the user may not do that; see the ACL in docs"
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
