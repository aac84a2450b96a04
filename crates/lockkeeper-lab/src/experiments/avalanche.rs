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
    about: "Entries that were filled together and live equally long end together, and a cache that is restarted \
            has none: in that second every read goes to the database, which was built for the few that miss. \
            Lives of different length keep the first from happening. They do nothing for the second; there a \
            limit must hold back what the database cannot do. (The cache is filled at once, before anybody reads. \
            Then all 300 keys are read together in every second: that is one operation of the figures. The clock \
            of the Redis server is set forward second by second, so that minutes take no time.)",
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
            name: "lockkeeper-jitter",
            title: "Lockkeeper: the lives of entries differ by a tenth; no limit",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(lockkeeper(bench, false)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: loads are limited, and the cache is restarted empty",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(lockkeeper(bench, true)),
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

    /// `times` is how long it took to read all, each time.
    fn end(
        self,
        times: Vec<Duration>,
        refused: u64,
        story: impl FnOnce(&Timeline) -> String,
    ) -> Result<Outcome> {
        let loads = self.asked.total();
        if loads < KEYS {
            let text = format!("{loads} loads: not every entry was gone once, so nothing is shown");
            return Err(Error::Other(text));
        }
        let mut tally = Tally::new();
        tally.run(&self.scene);
        tally.within(times.iter().sum());
        let reads = KEYS * u64::try_from(times.len()).unwrap_or(u64::MAX);
        tally.operations(times);
        tally.figure("loads in the worst second", figure(self.asked.busiest()), "loads");
        tally.figure("reads that were told to come back", figure(refused), "reads");
        tally.figure("reads", figure(reads), "reads");
        Ok(tally.end(story))
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
    while time.now() < end(how.restart, how.jitter) {
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
    watch.end(times, refused, |_| match how {
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
    })
}

/// The second in which a run is over: all entries have ended by then, the longest-lived too.
fn end(restart: bool, jitter: u64) -> u64 {
    if restart { 2 * RESTART } else { TTL + jitter + 10 }
}

/// Through Lockkeeper, with entries that live as they do if nothing else is said.
async fn cache(bench: &Bench, time: &Time, asked: Asked, limit: bool) -> Result<Cache<u64, u64>> {
    let loader = move |key: u64| {
        asked.load();
        async move { Ok::<_, CacheError>(Loaded::found(key)) }
    };
    let store = lockkeeper_cache::Redis::connect(&time.server.url()).await.map_err(failed)?;
    // As many at the same time as there are: only the limit is to hold anything back.
    let most = usize::try_from(KEYS).unwrap_or(usize::MAX);
    let mut builder = Cache::builder(store)
        .namespace(bench.key("cache"))
        .ttl(Duration::from_secs(TTL))
        .max_loads(most, Duration::from_millis(1));
    if limit {
        let seconds = Arc::clone(&time.seconds);
        let clock =
            move || Instant::from_nanos((seconds.load(Ordering::SeqCst) + 1) * 1_000_000_000);
        let capacity = NonZeroU32::new(CAPACITY).unwrap_or(NonZeroU32::MIN);
        builder = builder.limit(Limit::on(capacity, Arc::new(clock)));
    }
    builder.build(loader).map_err(failed)
}

/// How all keys were read, again and again.
#[derive(Default)]
struct Reads {
    times: Vec<Duration>,
    refused: u64,
}

impl Reads {
    /// Everything is read once; whether nobody was told to come back. If one key is refused then so is the whole.
    async fn all(&mut self, cache: &Cache<u64, u64>, keys: &[u64]) -> Result<bool> {
        let since = Instant::now();
        let read = cache.get_many(keys).await;
        self.times.push(Instant::now().since(since));
        match read {
            Ok(_) => Ok(true),
            Err(CacheError::Busy { .. }) => {
                self.refused += KEYS;
                Ok(false)
            }
            Err(error) => Err(failed(error)),
        }
    }
}

/// Either the entries end and nothing is limited, or loads are limited and the cache is restarted: each remedy has to do
/// without the other.
async fn lockkeeper(bench: &Bench, restart: bool) -> Result<Outcome> {
    let (watch, mut reads) = (Watch::new(), Reads::default());
    let mut time = Time::start().await?;
    let keys: Vec<u64> = (0..KEYS).collect();
    // Before the doors open, all at once, as by hand.
    let job = cache(bench, &time, Asked::default(), false).await?;
    job.get_many(&keys).await.map_err(failed)?;
    job.idle().await;
    if job.stats().fills != KEYS {
        return Err(Error::Other(format!("{} entries were filled", job.stats().fills)));
    }
    watch.redis.did(Kind::Wrote, format!("second 0: is filled with {KEYS} entries"));
    let cache = cache(bench, &time, watch.asked.clone(), restart).await?;
    let mut refilled = None;
    // Chance only makes lives shorter.
    let end = end(restart, 0);
    for second in 0..end + 500 {
        if second >= end && (refilled.is_some() || !restart) {
            break;
        }
        if restart && second == RESTART {
            time.restart(&watch).await?;
        }
        let all = reads.all(&cache, &keys).await?;
        let loads = time.pass(&watch)?;
        if restart && second >= RESTART && refilled.is_none() {
            refilled = (all && loads == 0).then_some(second);
            // Connections that were lost need a moment that the server's clock does not know.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    if restart && refilled.is_none() {
        return Err(Error::Late("that all is cached again".into()));
    }
    let (busiest, put_off) = (watch.asked.busiest(), cache.stats().refused_loads);
    let Reads { times, refused } = reads;
    watch.end(times, refused, |_| match refilled {
        Some(second) => format!(
            "In second {RESTART} the cache was killed and came back with nothing. At most {busiest} loads began in a \
             second, and {put_off} were put off. All {KEYS} keys are read with one call, which is refused as a whole \
             while any of them is, so {refused} reads were told to come back until all was filled again by second \
             {second}."
        ),
        None => format!(
            "All {KEYS} entries were filled in second 0 to live for {TTL} s, less up to a tenth by chance. They ended apart \
             from each other, and nothing was limited: at most {busiest} loads in a second."
        ),
    })
}
