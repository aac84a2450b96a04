//! One entry that everybody reads ends, and everybody loads it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::{Cache, Error as CacheError, Loaded};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use crate::asked::{Asked, figure};
use crate::bench::{Bench, gone, set_nx};
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::gate::{Gate, PATIENCE, within};
use crate::outcome::{Outcome, Tally};
use crate::scene::{Actor, Scene};
use crate::servers::Program;
use crate::stage::failed;
use crate::timeline::Kind;

/// So many read the hot key at the same time.
const READERS: u64 = 60;
/// In so many processes, where that matters.
const PROCESSES: u64 = 3;
/// How long the entry lives.
const TTL: Duration = Duration::from_millis(30);
/// How often each program is run.
const RUNS: u64 = 5;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "breakdown",
    title: "A hot entry ends, and everybody loads it at once",
    about: "An entry that is read all the time ends. Until the first who noticed has loaded it again, all others \
            find nothing either, and each asks the database for the same row. An entry without an end does not \
            end, but it can be evicted, or the cache restarted. One must load, and the others wait for that one. \
            (The load takes until every reader has found nothing. The figures are of the time from the \
            first reader's look until all of them have the row.)",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "everybody-loads",
            title: "GET, else SELECT and SET",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(by_hand(bench, How::EverybodyLoads)),
        },
        Variant {
            name: "never-ends",
            title: "The hot entry has no end; then it is deleted, as by an eviction",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(by_hand(bench, How::NeverEnds)),
        },
        Variant {
            name: "mutex",
            title: "Who gets a lock loads, the others look again and again",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(by_hand(bench, How::Mutex)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: one load for all, across processes",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(lockkeeper(bench)),
        },
    ],
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    EverybodyLoads,
    NeverEnds,
    Mutex,
}

/// What readers saw when they looked for the hot entry.
#[derive(Clone, Copy, Default)]
struct Looked {
    missed: u64,
    found: u64,
}

/// A run as all readers see it.
#[derive(Clone)]
struct Herd {
    scene: Scene,
    database: Actor,
    asked: Asked,
    looked: Arc<AtomicU64>,
    /// All have found nothing.
    all_are_here: Gate,
}

impl Herd {
    fn new() -> Self {
        let scene = Scene::new();
        let readers = [1, 2, READERS].map(|reader| scene.actor(name(reader)));
        drop(readers);
        let database = scene.actor("database");
        let all_are_here = Gate::new("that all readers have looked");
        Self { scene, database, asked: Asked::default(), looked: Arc::default(), all_are_here }
    }

    /// Somebody has looked.
    fn looks(&self, reader: u64, text: &str) {
        let looked = self.looked.fetch_add(1, Ordering::SeqCst) + 1;
        if reader < 3 || looked == READERS {
            self.scene.actor(name(reader)).did(Kind::Read, text);
        }
    }

    /// Waits until all readers have found nothing, and lets the loads end.
    async fn all_have_missed(&self, counted: impl Fn() -> Looked + Send + Sync) -> Result<()> {
        let all = async {
            loop {
                let looked = counted();
                if looked.missed + looked.found >= READERS {
                    return looked;
                }
                // No timer: it would be a part of what is measured.
                tokio::task::yield_now().await;
            }
        };
        let Looked { found, .. } = within(PATIENCE, "that all readers have looked", all).await?;
        if found > 0 {
            let text = format!("{found} readers found the hot entry, which was to be gone");
            return Err(Error::Other(text));
        }
        self.database.did(Kind::Noted, format!("all {READERS} have found nothing"));
        self.all_are_here.open();
        Ok(())
    }

    /// Somebody loads, and it takes until everybody is there.
    async fn load(&self, who: &str) -> Result<u64> {
        self.asked.load();
        let nth = self.asked.total();
        if nth <= 3 || nth == READERS {
            self.database.did(Kind::Read, format!("load {nth}, for {who}"));
        }
        self.all_are_here.pass().await?;
        Ok(7)
    }

    fn judge(&self) {
        let loads = self.asked.total();
        if loads != 1 {
            let text = format!("the database was asked {loads} times for a row, and once is right");
            self.scene.violation(&self.database, text);
        }
    }
}

/// The first two have a column each, the others one together.
fn name(reader: u64) -> String {
    if reader < 3 { format!("reader {reader}") } else { format!("{} others", READERS - 2) }
}

/// One who reads by hand.
async fn read(
    herd: &Herd,
    connection: &mut MultiplexedConnection,
    key: &str,
    reader: u64,
    how: How,
) -> Result<()> {
    let lock = format!("{key}:lock");
    if connection.get::<_, Option<u64>>(key).await?.is_some() {
        return Err(Error::Other("the hot entry is still there".into()));
    }
    herd.looks(reader, "GET → nil");
    if how == How::Mutex {
        loop {
            if set_nx(connection, &lock, "reader", Some(Duration::from_secs(30))).await? {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            if connection.get::<_, Option<u64>>(key).await?.is_some() {
                return Ok(());
            }
        }
        // Somebody else may have been quicker.
        if connection.get::<_, Option<u64>>(key).await?.is_some() {
            connection.del::<_, ()>(&lock).await?;
            return Ok(());
        }
        herd.scene.actor(name(reader)).did(Kind::Took, "takes the lock, and loads");
    }
    let who = if reader < 3 { name(reader) } else { "another".into() };
    let value = herd.load(&who).await?;
    connection.set::<_, _, ()>(key, value).await?;
    if how == How::Mutex {
        connection.del::<_, ()>(&lock).await?;
    }
    Ok(())
}

async fn by_hand(bench: &Bench, how: How) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let mut connection = redis.connect().await?;
    let (mut tally, mut busy) = (Tally::new(), Duration::ZERO);
    let mut loads = 0;
    for run in 0..RUNS {
        let (herd, key) = (Herd::new(), bench.key(&format!("hot:{run}")));
        let server = herd.scene.actor("Redis");
        if how == How::NeverEnds {
            connection.set::<_, _, ()>(&key, 7).await?;
            tokio::time::sleep(2 * TTL).await;
            connection.get::<_, u64>(&key).await?;
            server
                .did(Kind::Noted, format!("still has the entry after {} ms", 2 * TTL.as_millis()));
            connection.del::<_, ()>(&key).await?;
            server.did(Kind::Deleted, "the lab deletes it, as an eviction does");
        } else {
            let millis = u64::try_from(TTL.as_millis()).unwrap_or(u64::MAX);
            connection.pset_ex::<_, _, ()>(&key, 7, millis).await?;
            gone(&mut connection, &key).await?;
            server.did(Kind::Expired, "the hot entry ends");
        }
        let (start, mut readers) = (Instant::now(), JoinSet::new());
        for reader in 1..=READERS {
            let (herd, mut connection, key) = (herd.clone(), connection.clone(), key.clone());
            readers.spawn(async move {
                let since = Instant::now();
                read(&herd, &mut connection, &key, reader, how).await?;
                Ok::<_, Error>(Instant::now().since(since))
            });
        }
        // Who finds it ends with an error.
        let missed = || Looked { missed: herd.looked.load(Ordering::SeqCst), found: 0 };
        herd.all_have_missed(missed).await?;
        tally.operations(all(readers).await?);
        busy += Instant::now().since(start);
        herd.judge();
        loads = herd.asked.total();
        tally.run(&herd.scene);
    }
    tally.within(busy);
    tally.figure("loads of the row", figure(loads), "loads");
    Ok(tally.end(|_| match how {
        How::EverybodyLoads => format!(
            "The entry ended, {READERS} readers found nothing before one of them had set it again, and the database \
             was asked {loads} times for the same row."
        ),
        How::NeverEnds => format!(
            "While the entry had no end nobody loaded. When it was gone all the same (the lab deleted it; an eviction or \
             a restart does that) {READERS} readers found nothing, and the database was asked {loads} times."
        ),
        How::Mutex => format!(
            "{READERS} readers found nothing. One got the lock and loaded; the others slept for 5 ms at a time and looked \
             again: loads {loads}. Who holds the lock and dies keeps all of them waiting until the lock ends."
        ),
    }))
}

async fn all(mut readers: JoinSet<Result<Duration>>) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    while let Some(ended) = readers.join_next().await {
        times.push(ended.map_err(|error| Error::Other(error.to_string()))??);
    }
    Ok(times)
}

/// A process, with what its readers share.
async fn process(
    bench: &Bench,
    url: &str,
    run: u64,
    herd: &Herd,
    process: u64,
) -> Result<Cache<String, u64>> {
    let store = lockkeeper_cache::Redis::connect(url).await.map_err(failed)?;
    let herd = herd.clone();
    let loader = move |_: String| {
        let herd = herd.clone();
        async move { herd.load(&format!("process {process}")).await.map(Loaded::found) }
    };
    let builder = Cache::builder(store).namespace(bench.key(&format!("cache:{run}")));
    builder.build(loader).map_err(failed)
}

/// The hot entry is cached, and ends.
async fn ended(bench: &Bench, url: &str, run: u64, hot: &String) -> Result<()> {
    let store = lockkeeper_cache::Redis::connect(url).await.map_err(failed)?;
    let builder = Cache::builder(store).namespace(bench.key(&format!("cache:{run}"))).ttl(TTL);
    let first = async |_: String| Ok::<_, CacheError>(Loaded::found(7));
    let before: Cache<String, u64> = builder.build(first).map_err(failed)?;
    before.get(hot).await.map_err(failed)?;
    before.idle().await;
    if before.stats().fills != 1 {
        return Err(Error::Other("the hot entry was not cached".into()));
    }
    let gone = async {
        while before.peek(hot).await.map_err(failed)?.is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    };
    within(PATIENCE, "the end of the hot entry", gone).await?
}

async fn lockkeeper(bench: &Bench) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let (mut tally, mut busy) = (Tally::new(), Duration::ZERO);
    let (mut loads, hot) = (0, "hot".to_owned());
    for run in 0..RUNS {
        let herd = Herd::new();
        let mut processes = Vec::new();
        for nth in 1..=PROCESSES {
            processes.push(process(bench, redis.url(), run, &herd, nth).await?);
        }
        ended(bench, redis.url(), run, &hot).await?;
        herd.scene.actor("Redis").did(Kind::Expired, "the hot entry has ended");
        let (start, mut readers) = (Instant::now(), JoinSet::new());
        for (reader, cache) in (1..=READERS).zip(processes.iter().cycle()) {
            let (herd, cache, hot) = (herd.clone(), cache.clone(), hot.clone());
            readers.spawn(async move {
                let since = Instant::now();
                herd.looks(reader, "get()");
                let value = cache.get(&hot).await.map_err(failed)?;
                if value.as_deref() != Some(&7) {
                    return Err(Error::Cache(format!("a reader got {value:?}")));
                }
                Ok(Instant::now().since(since))
            });
        }
        let looked = || {
            processes.iter().map(Cache::stats).fold(Looked::default(), |sum, stats| Looked {
                missed: sum.missed + stats.misses,
                found: sum.found + stats.hits + stats.first_hits + stats.stale_hits,
            })
        };
        herd.all_have_missed(looked).await?;
        tally.operations(all(readers).await?);
        busy += Instant::now().since(start);
        herd.judge();
        loads = herd.asked.total();
        tally.run(&herd.scene);
    }
    tally.within(busy);
    tally.figure("loads of the row", figure(loads), "loads");
    Ok(tally.end(|_| {
        format!(
            "{READERS} readers in {PROCESSES} processes asked for an entry that was not there, and all of them had found \
             nothing before the load ended. One had the lease and loaded, those of its process shared that load, and \
             one in each of the others looked again until it was filled: loads {loads}."
        )
    }))
}
