//! `cdc run`: a follower as a process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Locks, Name};
use lockkeeper_cache::cdc::Follower;
use lockkeeper_cache::{Cache, Loaded, Redis, Store};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::args::Run;
use super::config::{self, Config, Database};
use super::console::{Console, Event, events};
use super::http::{self, Pages};
use super::view::{Observer, State, View};
use crate::exit::{Code, Failure, chain};
use crate::signals::Signals;

/// How often we look at what it does.
const LOOK: Duration = Duration::from_millis(250);

/// How long to wait before a server that could not be reached is tried again: longer each time.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// How long the end may take: then the lock is left to its lease.
const END: Duration = Duration::from_millis(4500);

/// How long the store may take afterwards to say that the lock is free.
const ANSWER: Duration = Duration::from_secs(1);

/// How often we ask what the database keeps for us.
const RETENTION: Duration = Duration::from_secs(10);

/// A cache of which nothing is known but its namespace: enough to invalidate.
pub(super) type Keys = Cache<String, serde_json::Value>;

pub(super) async fn run(run: &Run) -> Result<Code, Failure> {
    let config = Config::read(&run.config)?;
    let listener = match config.listen {
        Some(at) => Some(http::listen(at).await?),
        None => None,
    };
    let mut signals = Signals::while_waiting()
        .map_err(|error| Failure::system("cannot listen to signals", &error))?;
    let console = Console::new(run.json);
    console.event(&Event::Started {
        name: &config.name,
        tables: config.wanted().len(),
        listen: listener
            .as_ref()
            .and_then(|listener| Some(listener.local_addr().ok()?.to_string())),
    });
    let (view, seen) = watch::channel(View::default());
    if let Some(listener) = listener {
        let (name, max_lag) = (config.name.clone(), config.max_lag);
        tokio::spawn(http::serve(listener, Pages { name, max_lag, view: seen }));
    }
    console.trace();
    let retained = retention(&config.database);
    let mut screen = Screen { view, console, failures: 0, retained };
    let (follower, locks, lock) = tokio::select! {
        started = start(config, &mut screen) => started?,
        signal = signals.next() => {
            // Nothing is held yet.
            screen.console.event(&Event::Stopping { signal: name(signal) });
            screen.console.event(&Event::Stopped { released: true });
            return Ok(Code::SUCCESS);
        }
    };
    let (signal, held) = follow(&follower, &mut signals, &mut screen).await;
    screen.console.clear();
    screen.console.event(&Event::Stopping { signal: name(signal) });
    let ending = async {
        let ended = timeout(END, follower.stop()).await.is_ok();
        // The library does not say whether the lock is free. Where the store answers, it is.
        ended
            && (!held
                || timeout(ANSWER, locks.admin().show(&lock)).await.is_ok_and(|seen| seen.is_ok()))
    };
    let released = tokio::select! {
        released = ending => released,
        again = signals.next() => return Ok(Code::of_signal(again.as_raw())),
    };
    screen.view.send_modify(|view| view.state = State::Stopped);
    screen.console.event(&Event::Stopped { released });
    Ok(if released { Code::SUCCESS } else { Code::UNAVAILABLE })
}

/// What everybody sees.
struct Screen {
    view: watch::Sender<View>,
    console: Console,
    /// What failed before there was a follower.
    failures: u64,
    /// What the database keeps for us, if that is known.
    retained: watch::Receiver<Option<u64>>,
}

impl Screen {
    fn show(&mut self, mut view: View, now: Instant) {
        view.retained_bytes = *self.retained.borrow();
        let before = self.view.send_replace(view);
        let view = self.view.borrow();
        for event in events(&before, &view) {
            self.console.event(&event);
        }
        self.console.status(&view, now);
    }
}

/// Connects, however long that takes, and starts the follower.
async fn start(config: Config, screen: &mut Screen) -> Result<(Follower, Locks, Name), Failure> {
    let mut pause = RETRY.0;
    let mut failures = 0;
    let (caches, locks) = loop {
        match connect(&config).await {
            Ok(both) => break both,
            Err(why) => {
                failures += 1;
                screen.show(View::connecting(Some(why), failures), Instant::now());
                sleep(pause).await;
                pause = (pause * 2).min(RETRY.1);
            }
        }
    };
    screen.failures = failures;
    let builder = match config.database {
        Database::Postgres(source) => Follower::builder(*source),
        Database::MariaDb(source) => Follower::builder(source),
    };
    let lock = config::lock(&config.name)?;
    let mut builder = builder.name(config.name).locks(locks.clone());
    for (rule, namespace) in config.rules {
        builder = builder.rule(rule, &caches[&namespace]);
    }
    let follower = builder.start().map_err(|error| Failure::usage(chain(&error)))?;
    Ok((follower, locks, lock))
}

async fn connect(config: &Config) -> Result<(BTreeMap<String, Keys>, Locks), String> {
    let cache = async {
        let store = store(config).await.map_err(|why| format!("the cache: {why}"))?;
        caches(config, store)
    };
    let locks = async {
        let locks = Locks::connect(&config.locks).await;
        locks.map_err(|error| format!("the locks: {}", chain(&error)))
    };
    Ok((cache.await?, locks.await?))
}

/// The server of the cache.
pub(super) async fn store(config: &Config) -> Result<Redis, String> {
    Redis::connect(&config.cache).await.map_err(|error| chain(&error))
}

/// The caches that the rules are about.
pub(super) fn caches(config: &Config, store: Redis) -> Result<BTreeMap<String, Keys>, String> {
    let store: Arc<dyn Store> = Arc::new(store);
    let mut caches = BTreeMap::new();
    for (namespace, keep_last) in &config.namespaces {
        let builder = Cache::builder_shared(Arc::clone(&store));
        let builder = builder.namespace(namespace).keep_last(*keep_last);
        // The cache that fills it may allow longer keys than is usual: none is taken for one that it cannot have. For those
        // that are too long to be sent the follower clears the namespace.
        let cache = builder.max_key(usize::MAX).build(never).map_err(|error| chain(&error))?;
        caches.insert(namespace.clone(), cache);
    }
    Ok(caches)
}

/// Nobody reads here.
async fn never(_: String) -> Result<Loaded<serde_json::Value>, lockkeeper_cache::Error> {
    Err(lockkeeper_cache::Error::Config("this cache is only invalidated".into()))
}

/// Asks now and then what the database keeps for us, also while another one follows, or nobody does: then it grows.
fn retention(database: &Database) -> watch::Receiver<Option<u64>> {
    let (known, retained) = watch::channel(None);
    if let Database::Postgres(source) = database {
        let source = source.clone();
        tokio::spawn(async move {
            let mut looks = interval(RETENTION);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !known.is_closed() {
                looks.tick().await;
                let asked = timeout(RETENTION, source.retention()).await;
                let retention = asked.ok().and_then(Result::ok).flatten();
                known.send_replace(retention.map(|retention| retention.bytes));
            }
        });
    }
    retained
}

/// Shows what it does until a signal comes; and whether it has the lock then.
async fn follow(follower: &Follower, signals: &mut Signals, screen: &mut Screen) -> (Signal, bool) {
    let mut observer = Observer::new(screen.failures);
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            signal = signals.next() => {
                let state = observer.look(&follower.status(), Instant::now()).state;
                let held = matches!(state, State::Starting | State::Resetting | State::Following);
                return (signal, held);
            }
            _ = looks.tick() => {
                let now = Instant::now();
                screen.show(observer.look(&follower.status(), now), now);
            }
        }
    }
}

fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::INT => "INT",
        Signal::TERM => "TERM",
        Signal::HUP => "HUP",
        _ => "QUIT",
    }
}
