//! All entries end at once, or the cache is restarted: everything goes to the database.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper_cache::limit::Limit;
use lockkeeper_cache::{Cache, Error as CacheError, Loaded};
use redis::aio::MultiplexedConnection;

use crate::asked::{Asked, figure};
use crate::bench::{Bench, connect};
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::outcome::{Outcome, Tally};
use crate::random::Random;
use crate::scene::{Actor, Scene};
use crate::servers::{Program, Server};
use crate::stage::failed;
use crate::timeline::{Kind, Timeline};

/// Each of these is read in every second.
const KEYS: u64 = 300;
/// So many loads a second the database can do.
const CAPACITY: u32 = 100;
/// How long an entry lives, in seconds of the server's clock.
const TTL: u64 = 60;
/// When the cache is restarted.
const RESTART: u64 = 10;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "avalanche",
    title: "All entries end in one second, or the cache is restarted empty",
    note: "002 §3.1",
    about: "Entries that were filled together and live equally long end together, and a cache that is restarted \
            has none: in that second every read goes to the database, which was built for the few that miss. \
            Lives of different length keep the first from happening. They do nothing for the second; there a \
            limit must hold back what the database cannot do. (The clock of the Redis server is set forward \
            second by second, so that minutes take no time.)",
    needs: &[Program::Redis, Program::Faketime],
    anywhere: false,
    fast: true,
    variants: &[
        Variant {
            name: "same-ttl",
            title: "Filled together, with the same time to live",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(by_hand(bench, How { jitter: 0, restart: false, limit: None })),
        },
        Variant {
            name: "random-ttl",
            title: "Up to as much again is added to each life by chance",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(by_hand(bench, How { jitter: TTL, restart: false, limit: None })),
        },
        Variant {
            name: "random-ttl-restart",
            title: "The same, and the cache is restarted empty",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(by_hand(bench, How { jitter: TTL, restart: true, limit: None })),
        },
        Variant {
            name: "limit-restart",
            title: "The same, and no more loads than the database can do",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| {
                let limit = Some(u64::from(CAPACITY));
                Box::pin(by_hand(bench, How { jitter: TTL, restart: true, limit }))
            },
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: the lives of entries differ, and loads are limited",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(lockkeeper(bench)),
        },
    ],
};

#[derive(Clone, Copy)]
struct How {
    /// Up to so many seconds are added to the life of an entry.
    jitter: u64,
    restart: bool,
    /// So many loads a second, the others are told to come back.
    limit: Option<u64>,
}

/// Seconds that pass when they are told to, at the server too.
struct Time {
    server: Server,
    seconds: Arc<AtomicU64>,
}

impl Time {
    async fn start() -> Result<Self> {
        Ok(Self { server: Server::redis_with_a_clock().await?, seconds: Arc::default() })
    }

    fn now(&self) -> u64 {
        self.seconds.load(Ordering::SeqCst)
    }

    /// Another second begins. Returns what the database was asked in the last one.
    fn pass(&self, watch: &Watch) -> Result<u64> {
        let loads = watch.second_ends(self.now());
        let next = self.seconds.fetch_add(1, Ordering::SeqCst) + 1;
        self.server.set_clock(Duration::from_secs(next))?;
        Ok(loads)
    }

    async fn restart(&mut self, watch: &Watch) -> Result<()> {
        self.server.kill()?;
        watch.redis.did(Kind::Crashed, format!("second {}: is killed", self.now()));
        self.server.start_again().await?;
        watch.redis.did(Kind::Resumed, "is back, and empty");
        Ok(())
    }
}

/// Looks at what the database is asked.
struct Watch {
    scene: Scene,
    database: Actor,
    redis: Actor,
    asked: Asked,
}

impl Watch {
    fn new() -> Self {
        let scene = Scene::new();
        let (redis, database) = (scene.actor("Redis"), scene.actor("database"));
        Self { scene, database, redis, asked: Asked::default() }
    }

    fn second_ends(&self, second: u64) -> u64 {
        let loads = self.asked.next_second();
        if loads > 0 && loads == self.asked.busiest() {
            self.database.did(Kind::Read, format!("second {second}: {loads} loads"));
        }
        if loads > u64::from(CAPACITY) {
            let text = format!(
                "in second {second} the database was asked {loads} times, and can do {CAPACITY}"
            );
            self.scene.violation(&self.database, text);
        }
        loads
    }

    fn end(
        self,
        times: Vec<Duration>,
        refused: u64,
        reads: u64,
        story: impl FnOnce(&Timeline) -> String,
    ) -> Outcome {
        let mut tally = Tally::new();
        tally.run(&self.scene);
        tally.within(times.iter().sum());
        tally.operations(times);
        tally.figure("loads in the worst second", figure(self.asked.busiest()), "loads");
        tally.figure("reads that were told to come back", figure(refused), "reads");
        tally.figure("reads", figure(reads), "reads");
        tally.end(story)
    }
}

/// A cache by hand.
struct Shop {
    connection: MultiplexedConnection,
    keys: Vec<String>,
    how: How,
    random: Random,
    refused: u64,
}

impl Shop {
    fn life(&mut self) -> u64 {
        TTL + self.random.below(self.how.jitter + 1)
    }

    /// Sets these, as a job does that fills the cache before the doors open.
    async fn fill(&mut self, keys: &[String]) -> Result<()> {
        let mut pipe = redis::pipe();
        for key in keys {
            let life = self.life();
            pipe.cmd("SET").arg(key).arg("value").arg("EX").arg(life).ignore();
        }
        if !keys.is_empty() {
            pipe.query_async::<()>(&mut self.connection).await?;
        }
        Ok(())
    }

    /// Everything is read once.
    async fn read_all(&mut self, asked: &Asked) -> Result<()> {
        let found: Vec<Option<String>> =
            redis::cmd("MGET").arg(&self.keys).query_async(&mut self.connection).await?;
        let missing = self.keys.iter().zip(found).filter(|(_, found)| found.is_none());
        let mut missing: Vec<String> = missing.map(|(key, _)| key.clone()).collect();
        let most = self.how.limit.and_then(|most| usize::try_from(most).ok());
        let kept = most.unwrap_or(usize::MAX).min(missing.len());
        self.refused += u64::try_from(missing.len() - kept).unwrap_or(u64::MAX);
        missing.truncate(kept);
        missing.iter().for_each(|_| asked.load());
        self.fill(&missing).await
    }
}

async fn by_hand(bench: &Bench, how: How) -> Result<Outcome> {
    let (watch, mut times) = (Watch::new(), Vec::new());
    let mut time = Time::start().await?;
    let connection = connect(&time.server.url()).await?;
    let keys: Vec<String> = (0..KEYS).map(|key| bench.key(&key.to_string())).collect();
    let mut shop = Shop { connection, keys: keys.clone(), how, random: bench.random(), refused: 0 };
    shop.fill(&keys).await?;
    watch.redis.did(Kind::Wrote, format!("second 0: is filled with {KEYS} entries"));
    let end = if how.restart { 2 * RESTART } else { 2 * TTL + 10 };
    while time.now() < end {
        if how.restart && time.now() == RESTART {
            time.restart(&watch).await?;
            shop.connection = connect(&time.server.url()).await?;
        }
        let since = Instant::now();
        shop.read_all(&watch.asked).await?;
        times.push(Instant::now().since(since));
        time.pass(&watch)?;
    }
    let (busiest, refused) = (watch.asked.busiest(), shop.refused);
    Ok(watch.end(times, refused, end * KEYS, |_| match how {
        How { restart: false, jitter: 0, .. } => format!(
            "All {KEYS} entries were filled in second 0 to live for {TTL} s, and {busiest} of them were loaded in one \
             second when they ended; the database can do {CAPACITY}."
        ),
        How { restart: false, .. } => format!(
            "The entries ended one after the other between second {TTL} and {}; there were never more than {busiest} \
             loads in a second.",
            TTL + how.jitter
        ),
        How { limit: None, .. } => format!(
            "In second {RESTART} the cache was killed and came back with nothing. How long entries were to live made no \
             difference: {busiest} loads in one second."
        ),
        How { limit: Some(limit), .. } => format!(
            "In second {RESTART} the cache came back with nothing. {limit} loads a second were let through and {refused} \
             reads were told to come back, until all was filled again."
        ),
    }))
}

async fn lockkeeper(bench: &Bench) -> Result<Outcome> {
    let (watch, mut times) = (Watch::new(), Vec::new());
    let mut time = Time::start().await?;
    let asked = watch.asked.clone();
    let loader = move |key: u64| {
        asked.load();
        async move { Ok::<_, CacheError>(Loaded::found(key)) }
    };
    let seconds = Arc::clone(&time.seconds);
    let clock = move || Instant::from_nanos((seconds.load(Ordering::SeqCst) + 1) * 1_000_000_000);
    let capacity = NonZeroU32::new(CAPACITY).unwrap_or(NonZeroU32::MIN);
    let store = lockkeeper_cache::Redis::connect(&time.server.url()).await.map_err(failed)?;
    let cache: Cache<u64, u64> = Cache::builder(store)
        .namespace(bench.key("cache"))
        .ttl(Duration::from_secs(TTL))
        .limit(Limit::on(capacity, Arc::new(clock)))
        .max_loads(usize::try_from(KEYS).unwrap_or(usize::MAX), Duration::from_millis(1))
        .build(loader)
        .map_err(failed)?;
    let keys: Vec<u64> = (0..KEYS).collect();
    // The doors are open while it fills, and all of it ends within a tenth of its life.
    let filled = until_filled(&cache, &keys, &time, &watch).await?;
    watch.redis.did(Kind::Wrote, format!("second {filled}: all {KEYS} are cached"));
    let mut ended = 0;
    while time.now() < TTL + 20 {
        let since = Instant::now();
        read_all(&cache, &keys).await?;
        times.push(Instant::now().since(since));
        ended = ended.max(time.pass(&watch)?);
    }
    watch.database.did(Kind::Noted, format!("all ended: at most {ended} loads in a second"));
    time.restart(&watch).await?;
    let refilled = until_filled(&cache, &keys, &time, &watch).await?;
    let reads = time.now() * KEYS;
    watch.redis.did(Kind::Wrote, format!("second {refilled}: all {KEYS} are cached again"));
    let (busiest, refused) = (watch.asked.busiest(), cache.stats().refused_loads);
    Ok(watch.end(times, refused, reads, |_| {
        format!(
            "{KEYS} entries were filled by second {filled} and ended around second {TTL}, apart from each other: at \
             most {ended} loads in a second. Then the cache was killed and came back with nothing: \
             at most {busiest} in a second, and {refused} loads were put off until all was filled again in second \
             {refilled}."
        )
    }))
}

/// Everything is read once; whether nobody was told to come back.
async fn read_all(cache: &Cache<u64, u64>, keys: &[u64]) -> Result<bool> {
    match cache.get_many(keys).await {
        Ok(_) => Ok(true),
        Err(CacheError::Busy { .. }) => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Reads until a second needs no load. Returns which one that is.
async fn until_filled(
    cache: &Cache<u64, u64>,
    keys: &[u64],
    time: &Time,
    watch: &Watch,
) -> Result<u64> {
    for _ in 0..500 {
        let second = time.now();
        let all = read_all(cache, keys).await?;
        if time.pass(watch)? == 0 && all {
            return Ok(second);
        }
        // Connections that were lost need a moment that the server's clock does not know.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err(Error::Late("that all is cached".into()))
}
