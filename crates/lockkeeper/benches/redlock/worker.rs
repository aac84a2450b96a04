//! The contenders that are written in Rust, ours aside.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lockkeeper::{Guard, Locks, Mutex};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisResult, Script};
use rslock::{LockGuard, LockManager};

use crate::harness::worker::{Library, Lock};

/// The release of every lock that is a plain key.
const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

/// So many commands may wait to be sent: what is not waited for must not get stuck before it is sent.
const BUFFER: usize = 1 << 16;

pub(crate) enum Other {
    /// Lockkeeper at one of the nodes.
    One(Locks),
    Raw {
        nodes: Vec<MultiplexedConnection>,
        release: String,
        lease: Duration,
    },
    Rslock(LockManager, Duration),
}

impl Library for Other {
    type Lock = Target;

    fn package(library: &str) -> &'static str {
        match library {
            "rslock" => "rslock",
            "raw" => "redis",
            _ => "lockkeeper",
        }
    }

    fn our_url(urls: &str) -> String {
        format!("redlock://{}", urls.replace("redis://", ""))
    }

    async fn connect(urls: &str, library: &str, lease: Duration) -> Self {
        let urls: Vec<&str> = urls.split(',').collect();
        let one = async |url: &str| Locks::connect(url).await.unwrap().ttl(lease);
        match library {
            "one-node" => Self::One(one(urls[0]).await),
            "one-node-plain" => Self::One(one(&format!("{}?dialect=plain", urls[0])).await),
            "raw" => raw(&urls, lease).await,
            "rslock" => Self::Rslock(LockManager::new(urls), lease),
            _ => panic!("no such library: {library}"),
        }
    }

    #[allow(clippy::unused_async, reason = "others must ask the server")]
    async fn lock(&self, name: String, task: u64) -> Target {
        match self {
            Self::One(locks) => Target::One(locks.mutex(name)),
            Self::Raw { nodes, release, lease } => {
                let owner = format!("{}-{task}", std::process::id());
                let mut take = redis::cmd("SET");
                let lease = lease.as_millis().to_string();
                take.arg(&name).arg(&owner).arg("NX").arg("PX").arg(lease);
                let mut give = redis::cmd("EVALSHA");
                give.arg(release).arg(1).arg(&name).arg(&owner);
                Target::Raw(Box::new(Raw { nodes: nodes.clone(), take, give }))
            }
            Self::Rslock(manager, lease) => Target::Rslock(manager.clone(), name, *lease),
        }
    }
}

async fn raw(urls: &[&str], lease: Duration) -> Other {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let config = config.set_pipeline_buffer_size(BUFFER);
    let script = Script::new(COMPARE_AND_DELETE);
    let mut nodes = Vec::new();
    for url in urls {
        let client = Client::open(*url).unwrap();
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await.unwrap();
        script.load_async(&mut connection).await.unwrap();
        nodes.push(connection);
    }
    Other::Raw { nodes, release: script.get_hash().to_owned(), lease }
}

/// One name, as one task wants it.
pub(crate) enum Target {
    One(Mutex),
    Raw(Box<Raw>),
    Rslock(LockManager, String, Duration),
}

/// What each of them gives.
pub(crate) enum Taken {
    One(Guard),
    Raw,
    Rslock(LockGuard),
}

impl Lock for Target {
    type Taken = Taken;

    async fn take(&mut self) -> Taken {
        match self {
            Self::One(mutex) => Taken::One(mutex.lock().await.unwrap()),
            Self::Raw(raw) => {
                raw.ask(&raw.take).await;
                Taken::Raw
            }
            Self::Rslock(manager, name, lease) => {
                Taken::Rslock(manager.acquire(name.as_bytes(), *lease).await.unwrap())
            }
        }
    }

    async fn release(&mut self, taken: Taken) {
        match (taken, self) {
            (Taken::One(guard), _) => guard.release().await.unwrap(),
            (Taken::Rslock(guard), _) => guard.release().await,
            (Taken::Raw, Self::Raw(raw)) => raw.ask(&raw.give).await,
            (Taken::Raw, _) => unreachable!("only the raw one gives that"),
        }
    }
}

/// What a lock at a majority costs that nobody else wants: one command to each node to take it, one to
/// give it back, and nobody waits for the slower ones.
pub(crate) struct Raw {
    nodes: Vec<MultiplexedConnection>,
    take: Cmd,
    give: Cmd,
}

impl Raw {
    /// Sends a command to all nodes at once, and waits until a majority has done it. The others get it
    /// as well: all are sent when they are first looked at.
    async fn ask(&self, command: &Cmd) {
        let asking = self.nodes.iter().map(|node| {
            let mut node = node.clone();
            async move { command.query_async(&mut node).await }
        });
        let mut answers: FuturesUnordered<_> = asking.collect();
        let mut left = self.nodes.len() / 2 + 1;
        while left > 0 {
            let answer: Option<RedisResult<bool>> = answers.next().await;
            left -= usize::from(answer.expect("the raw one cannot wait").unwrap());
        }
    }
}
