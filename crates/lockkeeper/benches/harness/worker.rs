//! The contenders that are written in Rust, in a process of their own; the same protocol as the bench
//! programs of `interop/`.

use std::io::{BufRead, Write};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lockkeeper::{Guard, Locks, Mutex};
use tokio::task::JoinSet;

use super::clock;

/// How many locks are asked for at a time when many are to be held.
const AT_ONCE: usize = 64;
/// Whoever still waits so long after the end gives up.
const OVERTIME: Duration = Duration::from_secs(5);

/// What there is in Rust beside Lockkeeper: raw calls, and other libraries.
pub(crate) trait Library: Sized + Send + Sync + 'static {
    type Lock: Lock;

    /// The crate behind one of them.
    fn package(library: &str) -> &'static str;

    /// How Lockkeeper is told where the server is, if not as all others are.
    fn our_url(url: &str) -> String {
        url.to_owned()
    }

    fn connect(url: &str, library: &str, lease: Duration) -> impl Future<Output = Self>;

    /// A name, as one task wants it.
    fn lock(&self, name: String, task: u64) -> impl Future<Output = Self::Lock>;
}

/// One name, as one task wants it. What fails ends the process.
pub(crate) trait Lock: Send + 'static {
    type Taken: Send;

    fn take(&mut self) -> impl Future<Output = Self::Taken> + Send;

    fn release(&mut self, taken: Self::Taken) -> impl Future<Output = ()> + Send;
}

/// Answers commands until the input ends.
pub(crate) fn run<L: Library>(url: &str, library: &str, lease: &str) {
    let runtime = super::runtime();
    let lease = Duration::from_millis(lease.parse().unwrap());
    let connect = || Client::<L>::connect(url, library, lease);
    let mut clients = vec![runtime.block_on(connect())];
    let mut held = Vec::new();
    answer(&format!("{library} {}", version::<L>(library)));
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

fn version<L: Library>(library: &str) -> String {
    match library {
        "lockkeeper" => env!("CARGO_PKG_VERSION").to_owned(),
        _ => locked(L::package(library)),
    }
}

/// The version of a crate in the lock file of the workspace.
fn locked(package: &str) -> String {
    let lock = include_str!("../../../../Cargo.lock");
    let entry = lock.split(&format!("name = \"{package}\"\nversion = \"")).nth(1).unwrap_or("?");
    entry.split('"').next().unwrap_or("?").to_owned()
}

enum Client<L> {
    Lockkeeper(Locks),
    Other(L),
}

impl<L: Library> Client<L> {
    async fn connect(url: &str, library: &str, lease: Duration) -> Self {
        match library {
            "lockkeeper" => {
                let locks = Locks::connect(&L::our_url(url)).await.unwrap();
                Self::Lockkeeper(locks.ttl(lease))
            }
            _ => Self::Other(L::connect(url, library, lease).await),
        }
    }

    async fn target(&self, name: String, task: u64) -> Target<L::Lock> {
        match self {
            Self::Lockkeeper(locks) => Target::Lockkeeper(locks.mutex(name)),
            Self::Other(library) => Target::Other(library.lock(name, task).await),
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

enum Target<L> {
    Lockkeeper(Mutex),
    Other(L),
}

impl<L: Lock> Target<L> {
    /// One turn: when it was granted, and whether it could be released. `None`: it was not granted.
    async fn turn(&mut self) -> Option<(u64, bool)> {
        match self {
            Self::Lockkeeper(mutex) => {
                let guard = mutex.lock().await.ok()?;
                let granted = clock::now();
                Some((granted, guard.release().await.is_ok()))
            }
            Self::Other(lock) => {
                let taken = lock.take().await;
                let granted = clock::now();
                lock.release(taken).await;
                Some((granted, true))
            }
        }
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

    async fn run<L: Library>(&self, clients: &[Client<L>], prefix: &str) -> String {
        let mut targets = Vec::new();
        for task in 0..self.tasks {
            let client = &clients[usize::try_from(task).unwrap() % clients.len()];
            targets.push(client.target(format!("{prefix}{}", task % self.names), task).await);
        }
        let mut running = JoinSet::new();
        for (task, target) in (0..).zip(targets) {
            running.spawn(take_turns(target, task, self.from, self.until, self.log));
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

async fn take_turns<L: Lock>(
    mut target: Target<L>,
    task: u64,
    from: u64,
    until: u64,
    log: bool,
) -> Turns {
    let mut turns = Turns::default();
    let limit = Duration::from_nanos(until.saturating_sub(clock::now())) + OVERTIME;
    let taking = async {
        let mut asked = clock::now();
        while asked < until {
            let Some((granted, released)) = target.turn().await else {
                // Whoever wants it asks again: the wait goes on.
                turns.failed += 1;
                if clock::now() < until { continue } else { break }
            };
            turns.failed += u64::from(!released);
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
