//! The contenders that are written in Rust, in a process of their own; the same protocol as the bench
//! programs of `interop/`.

use std::io::{BufRead, Write};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lockkeeper::{Guard, Locks, Mutex};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client as RedisClient, Script};
use rslock::{LockGuard, LockManager};
use tokio::task::JoinSet;

use crate::clock;

/// How many locks are asked for at a time when many are to be held.
const AT_ONCE: usize = 64;
/// Whoever still waits so long after the end gives up.
const OVERTIME: Duration = Duration::from_secs(5);
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

/// Answers commands until the input ends.
pub(crate) fn run(url: &str, library: &str, lease: &str) {
    let runtime = crate::runtime();
    let lease = Duration::from_millis(lease.parse().unwrap());
    let connect = || Client::connect(url, library, lease);
    let mut clients = vec![runtime.block_on(connect())];
    let mut held = Vec::new();
    answer(&format!("{library} {}", version(library)));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["connect", count] => {
                let count: usize = count.parse().unwrap();
                let connecting = stream::iter(0..count).map(|_| connect()).buffered(AT_ONCE);
                clients = runtime.block_on(connecting.collect());
                answer("");
            }
            ["turns", prefix, numbers @ ..] => {
                let ask = Ask::read(numbers);
                answer(&runtime.block_on(ask.run(&clients, prefix)));
            }
            ["hold", prefix, count] => {
                held.extend(runtime.block_on(clients[0].hold(prefix, count.parse().unwrap())));
                answer("");
            }
            ["lost"] => answer(&held.iter().filter(|guard| guard.is_lost()).count().to_string()),
            _ => panic!("unknown command {line}"),
        }
    }
    // At once: what is held or still connected dies with the process.
    std::process::exit(0);
}

fn answer(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@ ok {text}").and_then(|()| out.flush()).unwrap();
}

fn version(library: &str) -> String {
    match library {
        "lockkeeper" => env!("CARGO_PKG_VERSION").to_owned(),
        // As the lock file says.
        _ => locked(if library.starts_with("rslock") { "rslock" } else { "redis" }),
    }
}

/// The version of a crate in the lock file of the workspace.
fn locked(package: &str) -> String {
    let lock = include_str!("../../../../Cargo.lock");
    let entry = lock.split(&format!("name = \"{package}\"\nversion = \"")).nth(1).unwrap_or("?");
    entry.split('"').next().unwrap_or("?").to_owned()
}

enum Client {
    Lockkeeper(Locks),
    RawSet(MultiplexedConnection, Duration),
    RawScripts(MultiplexedConnection, Duration),
    Rslock(LockManager, Duration),
}

impl Client {
    async fn connect(url: &str, library: &str, lease: Duration) -> Self {
        let raw = || async {
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let client = RedisClient::open(url).unwrap();
            client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
        };
        match library {
            "lockkeeper" => Self::Lockkeeper(Locks::connect(url).await.unwrap().ttl(lease)),
            "raw-set" => Self::RawSet(raw().await, lease),
            "raw-scripts" => Self::RawScripts(raw().await, lease),
            "rslock" => Self::Rslock(LockManager::new(vec![url]), lease),
            "rslock-tuned" => {
                let mut manager = LockManager::new(vec![url]);
                manager.set_retry(u32::MAX, TUNED);
                Self::Rslock(manager, lease)
            }
            _ => panic!("no such library: {library}"),
        }
    }

    fn target(&self, name: String, task: u64) -> Target {
        let raw = |connection: &MultiplexedConnection, scripts, lease: &Duration| {
            let owner = format!("{}-{task}", std::process::id());
            let channel = format!("channel:{name}");
            let lease = lease.as_millis().to_string();
            let (acquire, release) =
                if scripts { (ACQUIRE, RELEASE) } else { ("", COMPARE_AND_DELETE) };
            let (acquire, release) = (Script::new(acquire), Script::new(release));
            let (connection, name) = (connection.clone(), name.clone());
            Raw { connection, acquire, release, scripts, name, channel, owner, lease }
        };
        match self {
            Self::Lockkeeper(locks) => Target::Lockkeeper(locks.mutex(name)),
            Self::RawSet(connection, lease) => Target::Raw(Box::new(raw(connection, false, lease))),
            Self::RawScripts(connection, lease) => {
                Target::Raw(Box::new(raw(connection, true, lease)))
            }
            Self::Rslock(manager, lease) => Target::Rslock(manager.clone(), name, *lease),
        }
    }

    /// Takes many locks, which are renewed.
    async fn hold(&self, prefix: &str, count: usize) -> Vec<Guard> {
        let Self::Lockkeeper(locks) = self else { panic!("it does not renew") };
        let taking = (0..count).map(|number| {
            let mutex = locks.mutex(format!("{prefix}{number}"));
            async move { mutex.lock().await.unwrap() }
        });
        stream::iter(taking).buffer_unordered(AT_ONCE).collect().await
    }
}

/// One name, as one task wants it.
enum Target {
    Lockkeeper(Mutex),
    Raw(Box<Raw>),
    Rslock(LockManager, String, Duration),
}

enum Taken {
    Lockkeeper(Guard),
    Raw,
    Rslock(LockGuard),
}

impl Target {
    async fn take(&mut self) -> Result<Taken, lockkeeper::Error> {
        Ok(match self {
            Self::Lockkeeper(mutex) => Taken::Lockkeeper(mutex.lock().await?),
            Self::Raw(raw) => {
                raw.take().await;
                Taken::Raw
            }
            Self::Rslock(manager, name, lease) => {
                Taken::Rslock(manager.acquire(name.as_bytes(), *lease).await.unwrap())
            }
        })
    }

    async fn release(&mut self, taken: Taken) -> Result<(), lockkeeper::Error> {
        match (self, taken) {
            (_, Taken::Lockkeeper(guard)) => return guard.release().await,
            (Self::Raw(raw), _) => raw.release().await,
            (_, Taken::Rslock(guard)) => guard.release().await,
            (_, Taken::Raw) => unreachable!("only the raw ones take it so"),
        }
        Ok(())
    }
}

/// What a lock costs that nobody else wants: one command to take it, one to give it back.
struct Raw {
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

/// What is asked for: so many tasks, over so many names, until a moment.
struct Ask {
    tasks: u64,
    names: u64,
    from: u64,
    until: u64,
    log: bool,
}

/// The turns of one task.
#[derive(Default)]
struct Turns {
    /// How many were done in time.
    count: u64,
    /// How many calls ended in an error.
    failed: u64,
    /// If wanted: the task, and when each turn was asked for, granted and done.
    log: Vec<[u64; 4]>,
}

impl Ask {
    fn read(words: &[&str]) -> Self {
        let numbers: Vec<u64> = words.iter().map(|word| word.parse().unwrap()).collect();
        let &[tasks, names, from, until, log] = numbers.as_slice() else {
            panic!("turns PREFIX TASKS NAMES FROM UNTIL LOG");
        };
        Self { tasks, names, from, until, log: log == 1 }
    }

    async fn run(&self, clients: &[Client], prefix: &str) -> String {
        let mut running = JoinSet::new();
        for task in 0..self.tasks {
            let client = &clients[usize::try_from(task).unwrap() % clients.len()];
            let target = client.target(format!("{prefix}{}", task % self.names), task);
            let (from, until, log) = (self.from, self.until, self.log);
            running.spawn(take_turns(target, task, from, until, log));
        }
        let (mut count, mut failed) = (0, 0);
        let mut text = String::new();
        while let Some(turns) = running.join_next().await {
            let turns = turns.unwrap();
            count += turns.count;
            failed += turns.failed;
            for [task, asked, granted, done] in turns.log {
                text += &format!(" {task} {asked} {granted} {done}");
            }
        }
        format!("{count} {failed}{text}")
    }
}

async fn take_turns(mut target: Target, task: u64, from: u64, until: u64, log: bool) -> Turns {
    let mut turns = Turns::default();
    let limit = Duration::from_nanos(until.saturating_sub(clock::now())) + OVERTIME;
    let taking = async {
        let mut asked = clock::now();
        while asked < until {
            let Ok(taken) = target.take().await else {
                // Whoever wants it asks again: the wait goes on.
                turns.failed += 1;
                if clock::now() < until { continue } else { break }
            };
            let granted = clock::now();
            turns.failed += u64::from(target.release(taken).await.is_err());
            let done = clock::now();
            turns.count += u64::from((from..until).contains(&done));
            if log {
                turns.log.push([task, asked, granted, done]);
            }
            asked = done;
        }
    };
    // In the last second of a crowd: better a turn less than no figures.
    let _ = tokio::time::timeout(limit, taking).await;
    turns
}
