//! Reads of what does not exist: the cache cannot have it, and the database is asked every time.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use lockkeeper::clock::Instant;
use lockkeeper_cache::filter::{LocalFilter, Plan, Shape};
use lockkeeper_cache::{Cache, Error as CacheError, Loaded};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::asked::{Asked, figure};
use crate::bench::Bench;
use crate::error::Result;
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::outcome::{Outcome, Tally};
use crate::random::Random;
use crate::scene::{Actor, Scene};
use crate::servers::Program;
use crate::stage::failed;
use crate::timeline::Kind;

/// The articles that exist are numbered from 0.
const ARTICLES: u64 = 2000;
/// So many that do not exist are asked for again and again.
const REPEATED: u64 = 20;
/// So often.
const TIMES: u64 = 10;
/// And so many others once each.
const MADE_UP: u64 = 200;
/// So many that do exist are read besides.
const REAL: u64 = 20;
/// The database may be asked for what does not exist in one of twenty cases.
const BOUND: u64 = (REPEATED * TIMES + MADE_UP) / 20;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "penetration",
    title: "Reads of keys that do not exist go through the cache to the database",
    about: "What the database does not have cannot be cached, so every read of it is a load: a row that was \
            deleted by mistake, or somebody who makes up keys. To cache that there is nothing helps when the same \
            key comes again, and not against new ones. A Bloom filter knows them all, if it was told of all keys \
            that exist before it is asked.",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "no-protection",
            title: "GET, else SELECT; there is nothing to SET",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(by_hand(bench, How::Nothing)),
        },
        Variant {
            name: "null-caching",
            title: "That there is nothing is cached",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(by_hand(bench, How::Nulls)),
        },
        Variant {
            name: "bloom-filter-not-loaded",
            title: "A Bloom filter that nobody has filled",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(by_hand(bench, How::Filter { filled: false })),
        },
        Variant {
            name: "bloom-filter",
            title: "A Bloom filter with all keys that exist",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(by_hand(bench, How::Filter { filled: true })),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: a filter that is loaded before it says no, and cached nothings",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(lockkeeper(bench)),
        },
    ],
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Nothing,
    Nulls,
    Filter { filled: bool },
}

/// A database of articles, which counts what it is asked for.
#[derive(Clone, Debug, Default)]
struct Articles {
    real: Asked,
    unknown: Asked,
}

impl Articles {
    fn load(&self, article: u64) -> Option<u64> {
        let exists = article < ARTICLES;
        if exists {
            self.real.load()
        } else {
            self.unknown.load()
        }
        exists.then_some(article)
    }
}

/// What is asked for, in this order: some that exist, the same unknown ones many times, and made-up ones.
fn attack(random: &mut Random) -> Vec<u64> {
    let mut unknown = || ARTICLES + random.below(u64::MAX >> 12);
    let repeated: Vec<u64> = (0..REPEATED).map(|_| unknown()).collect();
    let made_up: Vec<u64> = (0..MADE_UP).map(|_| unknown()).collect();
    let mut all: Vec<u64> = (0..REAL).collect();
    (0..TIMES).for_each(|_| all.extend(&repeated));
    all.extend(made_up);
    all
}

/// A filter of bits.
const BITS: u64 = 1 << 15;
const HASHES: u64 = 10;

/// Which bits stand for an article (splitmix64, with two of its numbers spread over all).
fn bits(article: u64) -> impl Iterator<Item = u64> {
    let mix = |number: u64| {
        let z = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x1234_5678_9ABC_DEF1);
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let (first, step) = (mix(article), mix(article ^ u64::MAX) | 1);
    (0..HASHES).map(move |nth| first.wrapping_add(nth.wrapping_mul(step)) >> 20 & (BITS - 1))
}

/// A cache by hand.
struct Shop<'a> {
    bench: &'a Bench,
    connection: MultiplexedConnection,
    articles: Articles,
    how: How,
}

impl Shop<'_> {
    async fn fill_filter(&mut self) -> Result<()> {
        let mut pipe = redis::pipe();
        for bit in (0..ARTICLES).flat_map(bits) {
            pipe.cmd("SETBIT").arg(self.bench.key("filter")).arg(bit).arg(1).ignore();
        }
        pipe.query_async::<()>(&mut self.connection).await?;
        Ok(())
    }

    async fn may_exist(&mut self, article: u64) -> Result<bool> {
        let mut pipe = redis::pipe();
        for bit in bits(article) {
            pipe.cmd("GETBIT").arg(self.bench.key("filter")).arg(bit);
        }
        let set: Vec<u8> = pipe.query_async(&mut self.connection).await?;
        Ok(set.iter().all(|bit| *bit == 1))
    }

    async fn read(&mut self, article: u64) -> Result<Option<u64>> {
        let key = self.bench.key(&article.to_string());
        let found: Option<String> = self.connection.get(&key).await?;
        if let Some(found) = found {
            return Ok(found.parse().ok());
        }
        if matches!(self.how, How::Filter { .. }) && !self.may_exist(article).await? {
            return Ok(None);
        }
        let value = self.articles.load(article);
        let text = match value {
            Some(value) => Some(value.to_string()),
            None if self.how == How::Nulls => Some("nothing".into()),
            None => None,
        };
        if let Some(text) = text {
            self.connection.set_ex::<_, _, ()>(&key, text, 60).await?;
        }
        Ok(value)
    }
}

/// What came of it, for the checker and the reader.
struct Count {
    scene: Scene,
    client: Actor,
    database: Actor,
    times: Vec<Duration>,
    wrong: u64,
}

impl Count {
    fn new() -> Self {
        let scene = Scene::new();
        let (client, database) = (scene.actor("client"), scene.actor("database"));
        Self { scene, client, database, times: Vec::new(), wrong: 0 }
    }

    /// The client got this, and it took so long; `at` is its place among all reads.
    fn read(&mut self, at: u64, article: u64, got: Option<u64>, took: Duration, loads: u64) {
        self.times.push(took);
        self.wrong += u64::from(got != (article < ARTICLES).then_some(article));
        let phase = match at + 1 {
            REAL => format!("{REAL} articles that exist"),
            end if end == REAL + REPEATED * TIMES => {
                format!("{REPEATED} unknown keys, {TIMES} times each")
            }
            end if end == REAL + REPEATED * TIMES + MADE_UP => format!("{MADE_UP} made-up keys"),
            _ => return,
        };
        self.client.did(Kind::Read, format!("has read {phase}"));
        self.database.did(Kind::Read, format!("{loads} loads for nothing so far"));
    }

    fn end(self, articles: &Articles, story: impl FnOnce(u64, u64) -> String) -> Outcome {
        let (loads, wrong) = (articles.unknown.total(), self.wrong);
        if loads > BOUND {
            let text = format!(
                "the database was asked {loads} times for what it does not have; {BOUND} is the bound"
            );
            self.scene.violation(&self.database, text);
        }
        if wrong > 0 {
            let text = format!(
                "the client was told {wrong} times that an article does not exist that does"
            );
            self.scene.violation(&self.client, text);
        }
        let mut tally = Tally::new();
        tally.run(&self.scene);
        tally.within(self.times.iter().sum());
        tally.operations(self.times);
        tally.figure("loads for nothing", figure(loads), "loads");
        tally.end(|_| story(loads, wrong))
    }
}

async fn by_hand(bench: &Bench, how: How) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let connection = redis.connect().await?;
    let mut shop = Shop { bench, connection, articles: Articles::default(), how };
    if how == (How::Filter { filled: true }) {
        shop.fill_filter().await?;
    }
    let mut count = Count::new();
    for (at, article) in (0..).zip(attack(&mut bench.random())) {
        let since = Instant::now();
        let got = shop.read(article).await?;
        let took = Instant::now().since(since);
        count.read(at, article, got, took, shop.articles.unknown.total());
    }
    let asked = REPEATED * TIMES + MADE_UP;
    Ok(count.end(&shop.articles, |loads, wrong| match how {
        How::Nothing => format!("{asked} reads of what does not exist were {loads} loads."),
        How::Nulls => format!(
            "{REPEATED} keys that came {TIMES} times each were loaded once; each of {MADE_UP} made-up keys was new, and a \
             load: {loads} in all. Each also took memory in the cache."
        ),
        How::Filter { filled: false } => format!(
            "All bits were 0, so the filter said of everything that it does not exist: {loads} loads for nothing, but {wrong} \
             of {REAL} articles that exist were not found."
        ),
        How::Filter { filled: true } => format!(
            "Of {asked} reads of what does not exist the filter let {loads} through, by chance; all {REAL} articles that exist \
             were found. Whoever adds an article must remember the filter."
        ),
    }))
}

async fn lockkeeper(bench: &Bench) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let articles = Articles::default();
    let database = articles.clone();
    let loader = move |article: u64| {
        let found = database.load(article);
        async move { Ok::<_, CacheError>(Loaded::from(found)) }
    };
    let store = lockkeeper_cache::Redis::connect(redis.url()).await.map_err(failed)?;
    let cache: Cache<u64, u64> = Cache::builder(store)
        .namespace(bench.key("cache"))
        .filter(LocalFilter::new())
        .build(loader)
        .map_err(failed)?;
    let mut count = Count::new();
    // Not loaded yet: it must not say no to anything.
    let early = cache.get(&0).await.map_err(failed)?;
    if early.as_deref() != Some(&0) {
        count.scene.violation(
            &count.client,
            "an article that exists was not found before the filter was loaded",
        );
    }
    count.client.did(Kind::Read, "finds an article before the filter is loaded");
    let plan = Plan::new(Shape::for_keys(ARTICLES, 0.001).map_err(failed)?).settle(Duration::ZERO);
    let all = || stream::iter((0..ARTICLES).map(Ok::<_, CacheError>));
    let loaded = cache.load_filter(plan, all, |_| {}).await.map_err(failed)?;
    count.client.did(Kind::Noted, format!("the filter is loaded with {} keys", loaded.keys));
    for (at, article) in (0..).zip(attack(&mut bench.random())) {
        let since = Instant::now();
        let got: Option<Arc<u64>> = cache.get(&article).await.map_err(failed)?;
        let took = Instant::now().since(since);
        count.read(at, article, got.as_deref().copied(), took, articles.unknown.total());
    }
    let asked = REPEATED * TIMES + MADE_UP;
    Ok(count.end(&articles, |loads, _| {
        format!(
            "Before it was loaded the filter said nothing, and an article was found; then of {asked} reads of what does \
             not exist {loads} reached the database, and all {REAL} articles that exist were found."
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attack_is_what_the_bound_is_made_for() {
        let all = attack(&mut Random::from_seed(1));
        let unknown = all.iter().filter(|article| **article >= ARTICLES).count();
        assert_eq!(u64::try_from(unknown).unwrap(), REPEATED * TIMES + MADE_UP);
        assert_eq!(BOUND, 20);
    }

    #[test]
    fn few_of_those_that_do_not_exist_look_as_if_they_did() {
        let mut filter = vec![false; usize::try_from(BITS).unwrap()];
        let at = |bit: u64| usize::try_from(bit).unwrap();
        (0..ARTICLES).flat_map(bits).for_each(|bit| filter[at(bit)] = true);
        assert!((0..ARTICLES).all(|article| bits(article).all(|bit| filter[at(bit)])));
        let mut random = Random::from_seed(3);
        let unknown = (0..20_000).map(|_| ARTICLES + random.below(u64::MAX >> 12));
        let wrong = unknown.filter(|article| bits(*article).all(|bit| filter[at(bit)])).count();
        assert!(wrong < 60, "{wrong} of 20000: at 0.04 % it is 8");
    }
}
