//! The contenders that are written in Rust, ours aside.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script};
use rslock::{LockGuard, LockManager};

use crate::harness::worker::{Library, Lock};

/// What `rslock-tuned` waits at most between two tries.
const TUNED: Duration = Duration::from_millis(2);

/// The least that a lock in the layout of Redisson can be made of.
const ACQUIRE: &str = "if redis.call('exists', KEYS[1]) == 1 then return 0 end
redis.call('hset', KEYS[1], ARGV[1], 1)
redis.call('pexpire', KEYS[1], ARGV[2])
return 1";
const RELEASE: &str = "if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then return 0 end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], 0)
return 1";
/// The release of every lock that is a plain key.
const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

pub(crate) enum Other {
    Raw { connection: MultiplexedConnection, scripts: bool, lease: Duration },
    Rslock(LockManager, Duration),
}

impl Library for Other {
    type Lock = Target;

    fn package(library: &str) -> &'static str {
        if library.starts_with("rslock") { "rslock" } else { "redis" }
    }

    async fn connect(url: &str, library: &str, lease: Duration) -> Self {
        match library {
            "raw-set" | "raw-scripts" => {
                let config = AsyncConnectionConfig::new().set_response_timeout(None);
                let client = Client::open(url).unwrap();
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                let scripts = library == "raw-scripts";
                Self::Raw { connection: connection.await.unwrap(), scripts, lease }
            }
            "rslock" => Self::Rslock(LockManager::new(vec![url]), lease),
            "rslock-tuned" => {
                let mut manager = LockManager::new(vec![url]);
                manager.set_retry(u32::MAX, TUNED);
                Self::Rslock(manager, lease)
            }
            _ => panic!("no such library: {library}"),
        }
    }

    #[allow(clippy::unused_async, reason = "others must ask the server")]
    async fn lock(&self, name: String, task: u64) -> Target {
        match self {
            Self::Raw { connection, scripts, lease } => {
                let owner = format!("{}-{task}", std::process::id());
                let channel = format!("channel:{name}");
                let lease = lease.as_millis().to_string();
                let (acquire, release) =
                    if *scripts { (ACQUIRE, RELEASE) } else { ("", COMPARE_AND_DELETE) };
                let (acquire, release) = (Script::new(acquire), Script::new(release));
                let (connection, scripts) = (connection.clone(), *scripts);
                let raw =
                    Raw { connection, acquire, release, scripts, name, channel, owner, lease };
                Target::Raw(Box::new(raw))
            }
            Self::Rslock(manager, lease) => Target::Rslock(manager.clone(), name, *lease),
        }
    }
}

/// One name, as one task wants it.
pub(crate) enum Target {
    Raw(Box<Raw>),
    Rslock(LockManager, String, Duration),
}

impl Lock for Target {
    /// What rslock gives; the raw ones have nothing to show.
    type Taken = Option<LockGuard>;

    async fn take(&mut self) -> Self::Taken {
        match self {
            Self::Raw(raw) => {
                raw.take().await;
                None
            }
            Self::Rslock(manager, name, lease) => {
                Some(manager.acquire(name.as_bytes(), *lease).await.unwrap())
            }
        }
    }

    async fn release(&mut self, taken: Self::Taken) {
        match self {
            Self::Raw(raw) => raw.release().await,
            Self::Rslock(..) => taken.unwrap().release().await,
        }
    }
}

/// What a lock costs that nobody else wants: one command to take it, one to give it back.
pub(crate) struct Raw {
    connection: MultiplexedConnection,
    acquire: Script,
    release: Script,
    scripts: bool,
    name: String,
    channel: String,
    owner: String,
    lease: String,
}

impl Raw {
    async fn take(&mut self) {
        let taken: bool = if self.scripts {
            let mut call = self.acquire.key(&self.name);
            call.arg(&self.owner).arg(&self.lease);
            call.invoke_async(&mut self.connection).await.unwrap()
        } else {
            let mut set = redis::cmd("SET");
            set.arg(&self.name).arg(&self.owner).arg("NX").arg("PX").arg(&self.lease);
            set.query_async(&mut self.connection).await.unwrap()
        };
        assert!(taken, "{} is taken, and the raw ones cannot wait", self.name);
    }

    async fn release(&mut self) {
        let mut call = self.release.key(&self.name);
        if self.scripts {
            call.key(&self.channel);
        }
        call.arg(&self.owner);
        let released: bool = call.invoke_async(&mut self.connection).await.unwrap();
        assert!(released);
    }
}
