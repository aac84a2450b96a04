//! One key that everybody reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_cache::jitter::Jitter;
use lockkeeper_cache::{Builder, Cache, Error, Loaded, Memory, Redis};
use testkit::server::{self, Server};
use testkit::wait::{LONG, eventually};

/// So long that none of a thousand reads at the beginning is chosen.
const TTL: Duration = Duration::from_secs(600);

/// Before the end. A load takes so long that one of seven reads is chosen then, and is over before the end.
const EARLY: Duration = Duration::from_secs(12);

const LOAD: Duration = Duration::from_secs(6);

/// With so many hits no key is hot, whichever of them are sampled.
const FEW: usize = 7;

/// Where the entries are, with a clock by hand.
enum Place {
    Memory(Memory, Arc<AtomicU64>),
    Redis(Box<Server>),
}

impl Place {
    fn memory() -> Self {
        let time = Arc::new(AtomicU64::new(1_000_000));
        let clock = Arc::clone(&time);
        Self::Memory(Memory::with_clock(1000, move || clock.load(Ordering::SeqCst)), time)
    }

    async fn redis() -> Self {
        Self::Redis(Box::new(server::redis_with_a_clock().await))
    }

    async fn builder(&self) -> Builder {
        match self {
            Self::Memory(memory, _) => Cache::builder(memory.clone()).namespace("cache"),
            Self::Redis(server) => {
                let url = format!("redis://{}", server.address());
                Cache::builder(Redis::connect(&url).await.unwrap())
            }
        }
    }

    /// A cache whose loads take their time, and each get the next number.
    async fn cache(&self) -> Cache<u32, u64> {
        let builder = self.builder().await.ttl(TTL).namespace("hot").jitter(Jitter::NONE);
        let builder = builder.lease(LONG).timeout(LONG);
        let loads = Arc::new(AtomicU64::new(0));
        let loader = move |_: u32| {
            let load = loads.fetch_add(1, Ordering::SeqCst);
            async move {
                // What it costs is measured by the real clock.
                tokio::time::sleep(LOAD).await;
                Ok::<_, Error>(Loaded::found(load))
            }
        };
        builder.build(loader).unwrap()
    }

    /// It is soon time for what was filled before.
    async fn nearly_over(&self, cache: &Cache<u32, u64>) {
        match self {
            Self::Memory(_, time) => {
                let ahead = u64::try_from((TTL - EARLY).as_millis()).unwrap();
                time.fetch_add(ahead, Ordering::SeqCst);
            }
            Self::Redis(server) => server.set_clock(TTL - EARLY),
        }
        // A hit does not tell what time it is at the server, any script does.
        cache.invalidate(&[99]).await.unwrap();
    }
}

macro_rules! with_each_clock {
    ($($case:ident)+) => {
        mod memory {
            $(#[tokio::test]
            async fn $case() {
                super::$case(&super::Place::memory()).await;
            })+
        }
        mod redis {
            $(#[tokio::test]
            async fn $case() {
                super::$case(&super::Place::redis().await).await;
            })+
        }
    };
}

with_each_clock! {
    what_is_read_much_is_loaded_before_it_ends_and_nothing_else_is
    a_refresh_ahead_that_is_overtaken_by_an_invalidation_is_dropped
}

/// A thousand hits: those that are looked for together count like any others.
async fn read_much(cache: &Cache<u32, u64>) {
    for _ in 0..10 {
        cache.get_many(&[1; 100]).await.unwrap();
    }
}

async fn what_is_read_much_is_loaded_before_it_ends_and_nothing_else_is(place: &Place) {
    let cache = place.cache().await;
    let (first, other) = tokio::join!(cache.get(&1), cache.get(&2));
    let (first, other) = (first.unwrap().unwrap(), other.unwrap().unwrap());
    cache.idle().await;
    read_much(&cache).await;
    let hot = cache.hot_keys();
    assert_eq!(hot.len(), 1, "{hot:?}");
    assert_eq!(hot[0].key, "1");
    assert!((200..1500).contains(&hot[0].hits), "{hot:?}");
    place.nearly_over(&cache).await;
    for _ in 0..FEW {
        assert_eq!(cache.get(&2).await.unwrap(), Some(Arc::clone(&other)), "a hit");
    }
    assert_eq!(cache.stats().refreshes, 0, "nobody reads the other one");
    eventually("it is loaded anew", async || {
        cache.get_many(&[1; 100]).await.unwrap();
        cache.get(&1).await.unwrap().unwrap() > first
    })
    .await;
    let stats = cache.stats();
    assert_eq!(
        (stats.misses, stats.loads),
        (2, 3),
        "nobody has waited, and one has loaded: {stats:?}"
    );
    assert!(stats.early_refreshes > 0);
}

async fn a_refresh_ahead_that_is_overtaken_by_an_invalidation_is_dropped(place: &Place) {
    let cache = place.cache().await;
    cache.get(&1).await.unwrap();
    cache.idle().await;
    read_much(&cache).await;
    place.nearly_over(&cache).await;
    eventually("a refresh has begun", async || {
        cache.get_many(&[1; 100]).await.unwrap();
        cache.stats().refreshes > 0
    })
    .await;
    cache.invalidate(&[1]).await.unwrap();
    eventually("its value is dropped", async || cache.stats().lost_fills == 1).await;
}
