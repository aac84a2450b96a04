//! One key that everybody reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_cache::jitter::Jitter;
use lockkeeper_cache::{Cache, Error, Loaded, Memory};
use testkit::wait::eventually;

/// A store on a clock by hand, and a cache whose loads take a tenth of a second.
fn cache(time: &Arc<AtomicU64>) -> Cache<u32, u64> {
    let clock = Arc::clone(time);
    let store = Memory::with_clock(1000, move || clock.load(Ordering::SeqCst));
    let read = Arc::clone(time);
    let builder = Cache::builder(store).ttl(Duration::from_secs(60)).namespace("hot");
    let builder = builder.jitter(Jitter::NONE);
    let loader = move |_: u32| {
        let now = read.load(Ordering::SeqCst);
        async move {
            // What it costs is measured by the real clock.
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok::<_, Error>(Loaded::found(now))
        }
    };
    builder.build(loader).unwrap()
}

#[tokio::test]
async fn what_is_read_much_is_loaded_before_it_ends_and_nothing_else_is() {
    let time = Arc::new(AtomicU64::new(1_000_000));
    let cache = cache(&time);
    let first = *cache.get(&1).await.unwrap().unwrap();
    cache.get(&2).await.unwrap();
    for _ in 0..1000 {
        cache.get(&1).await.unwrap();
    }
    let hot = cache.hot_keys();
    assert_eq!(hot.len(), 1, "{hot:?}");
    assert_eq!(hot[0].key, "1");
    assert!((500..1500).contains(&hot[0].hits), "{hot:?}");
    // Half a load before the end: more than every fifth read is chosen.
    time.fetch_add(59_950, Ordering::SeqCst);
    for _ in 0..50 {
        assert_eq!(cache.get(&2).await.unwrap().as_deref(), Some(&first), "a hit");
    }
    assert_eq!(cache.stats().refreshes, 0, "nobody reads the other one");
    eventually("it is loaded anew", async || *cache.get(&1).await.unwrap().unwrap() > first).await;
    let stats = cache.stats();
    assert_eq!(
        (stats.misses, stats.loads),
        (2, 3),
        "nobody has waited, and one has loaded: {stats:?}"
    );
    assert!(stats.early_refreshes > 0);
}

#[tokio::test]
async fn a_refresh_ahead_that_is_overtaken_by_an_invalidation_is_dropped() {
    let time = Arc::new(AtomicU64::new(1_000_000));
    let cache = cache(&time);
    for _ in 0..1000 {
        cache.get(&1).await.unwrap();
    }
    time.fetch_add(59_950, Ordering::SeqCst);
    eventually("a refresh has begun", async || {
        cache.get(&1).await.unwrap();
        cache.stats().refreshes > 0
    })
    .await;
    cache.invalidate(&[1]).await.unwrap();
    eventually("its value is dropped", async || cache.stats().lost_fills == 1).await;
}
