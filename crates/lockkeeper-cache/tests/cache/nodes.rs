//! Several servers.

use std::time::Duration;

use lockkeeper_cache::{Cache, Error, Loaded, Redis};
use testkit::authority::{Authority, trusting};
use testkit::nodes::{Cluster, SETTLE, Sentinels, tls};
use testkit::resp::Raw;
use testkit::wait::{LONG, eventually, soon};

use crate::harness::Database;

/// Keys in as many slots, read, changed and read again, all at a time.
async fn many_keys(url: &str) {
    let database = Database::new();
    let source = database.clone();
    let store = soon("connected", Redis::connect(url)).await.unwrap();
    let row =
        |key: u32, version: u64| Loaded::found(u64::from(key) * 10 + version).version(version);
    let loader = move |key: u32| {
        let found = row(key, source.read());
        async move { Ok::<_, Error>(found) }
    };
    let cache = Cache::builder(store).namespace("nodes").build(loader).unwrap();
    let keys: Vec<u32> = (0..100).collect();
    let all_have = async |version: u64| {
        let found = soon("all", cache.get_many(&keys)).await.unwrap();
        let found: Vec<u64> = found.into_iter().map(|value| *value.unwrap()).collect();
        let expected: Vec<u64> = keys.iter().map(|key| u64::from(*key) * 10 + version).collect();
        assert_eq!(found, expected);
    };
    for version in 1..=2 {
        for _ in 0..2 {
            all_have(version).await;
        }
        assert_eq!(cache.stats().loads, 100 * version, "{:?}", cache.stats());
        database.commit();
        soon("invalidated", cache.invalidate_to(&keys, version + 1)).await.unwrap();
    }
    let write = soon("announced", cache.intend(&keys)).await.unwrap();
    all_have(3).await;
    assert_eq!(cache.stats().bypasses, 100);
    soon("settled", write.settle(None)).await.unwrap();
    all_have(3).await;
    soon("all are filled", cache.idle()).await;
    let (loads, version) = (cache.stats().loads, database.commit());
    let rows: Vec<_> = keys.iter().map(|key| (*key, row(*key, version))).collect();
    assert_eq!(soon("set", cache.set_many(&rows)).await.unwrap(), [true; 100]);
    all_have(version).await;
    assert_eq!(cache.stats().loads, loads, "what was set is there");
    database.commit();
    soon("invalidated", cache.invalidate(&keys)).await.unwrap();
    all_have(version + 1).await;
    soon("all are filled", cache.idle()).await;
    assert_eq!((cache.stats().loads, cache.stats().store_errors), (loads + 100, 0));
}

#[tokio::test]
async fn a_cluster_has_each_key_where_its_slot_is() {
    let cluster = Cluster::shared().await;
    many_keys(&cluster.url()).await;
    let mut keys = Vec::new();
    for master in &cluster.servers[..3] {
        let here = Raw::connect(master.address()).await.keys("nodes:*").await;
        assert!(!here.is_empty(), "none at {}", master.address());
        keys.extend(here);
    }
    assert_eq!(keys.len(), 100, "{keys:?}");
}

/// While it moves, keys of a slot are at two servers, and what is to be done with several at once may have to wait. Whatever
/// comes of it, nobody gets what was there before.
#[tokio::test]
async fn a_slot_that_moves_takes_its_keys_along() {
    let cluster = Cluster::start(SETTLE).await;
    let slot = cluster.slot("x").await;
    let from = cluster.owner_other_than(slot, None).await;
    let to = (from + 1) % 3;
    let database = Database::new();
    let open = async || {
        let store = soon("connected", Redis::connect(&cluster.url())).await.unwrap();
        let source = database.clone();
        let loader = move |_: u32| {
            let read = source.read();
            async move { Ok::<_, Error>(Loaded::found(read)) }
        };
        Cache::builder(store).namespace("{x}").timeout(LONG).build(loader).unwrap()
    };
    let [writer, reader] = [open().await, open().await];
    let keys: Vec<u32> = (0..10).collect();
    let all = async |cache: &Cache<u32, u64>| {
        let found = soon("all", cache.get_many(&keys)).await.unwrap();
        found.into_iter().map(|value| *value.unwrap()).collect::<Vec<_>>()
    };
    let changes = async |when: &str| {
        // From the cache, some of them or all.
        all(&reader).await;
        let new = database.commit();
        for key in &keys {
            soon("invalidated", writer.invalidate(&[*key])).await.unwrap();
        }
        assert_eq!(all(&reader).await, [new; 10], "{when}");
        assert_eq!(all(&writer).await, [new; 10], "{when}");
    };
    changes("before").await;
    cluster.begin_move(slot, from, to).await;
    changes("as it begins").await;
    changes("when all was invalidated").await;
    cluster.finish_move(slot, from, to).await;
    changes("afterwards").await;
    eventually("all are cached where they are now", async || {
        let hits = reader.stats().hits;
        all(&reader).await;
        reader.stats().hits == hits + 10
    })
    .await;
    let here = Raw::connect(cluster.servers[to].address()).await.keys("{x}:*").await;
    assert_eq!(here.len(), 10, "{here:?}");
    assert_eq!(writer.debt(), Some(0));
}

#[tokio::test]
async fn several_servers_by_tls() {
    let authority = Authority::new("ours");
    let cluster = tls::cluster(&authority).await;
    many_keys(&format!("{}{}", cluster.url, trusting(&authority))).await;
    let sentinels = tls::sentinels(&authority).await;
    many_keys(&format!("{}{}", sentinels.url, trusting(&authority))).await;
}

#[tokio::test]
async fn the_master_that_sentinels_name_has_them_all() {
    many_keys(&Sentinels::shared().await.url()).await;
}

#[tokio::test]
async fn a_server_of_a_cluster_that_does_not_answer_costs_its_own_keys_alone() {
    // Nobody takes over.
    let cluster = Cluster::start(Duration::from_secs(60)).await;
    let store = soon("connected", Redis::connect(&cluster.url())).await.unwrap();
    let loader = async |key: u32| Ok::<_, Error>(Loaded::found(key));
    let cache = Cache::builder(store).namespace("cache").build(loader).unwrap();
    let keys: Vec<u32> = (0..50).collect();
    soon("all", cache.get_many(&keys)).await.unwrap();
    soon("all are filled", cache.idle()).await;
    assert_eq!(cache.stats().loads, 50);
    cluster.servers[0].pause();
    let found = soon("all", cache.get_many(&keys)).await.unwrap();
    cluster.servers[0].resume();
    assert!(found.iter().zip(&keys).all(|(found, key)| found.as_deref() == Some(key)));
    let stats = cache.stats();
    assert!((51..80).contains(&stats.loads) && stats.hits + stats.loads == 100, "{stats:?}");
}
