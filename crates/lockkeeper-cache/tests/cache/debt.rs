//! Invalidations that the store fails at.

use std::time::Duration;

use lockkeeper_cache::explain::Outlook;
use lockkeeper_cache::{Builder, Cache, Error, Loaded, Redis};
use testkit::resp::Raw;
use testkit::server::{self, Server};
use testkit::wait::{eventually, soon};
use tokio::sync::{mpsc, oneshot};

use crate::harness::{Client, Database, value};

async fn kept() -> (Server, String) {
    let server = server::redis(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let url = format!("redis://{}", server.address());
    (server, url)
}

async fn builder(url: &str) -> Builder {
    Cache::builder(Redis::connect(url).await.unwrap())
        .namespace("cache")
        .timeout(Duration::from_secs(5))
}

/// What cannot be invalidated for now.
async fn owed(client: &Client, keys: &[u32]) {
    let refused = soon("an end", client.cache.invalidate(keys)).await;
    assert!(matches!(refused, Err(Error::Store { .. })), "{refused:?}");
}

async fn paid(client: &Client, left: usize) {
    eventually("it is made up for", async || client.cache.debt() == Some(left)).await;
}

#[tokio::test]
async fn a_server_that_comes_back_with_old_values_loses_them_by_itself() {
    let (mut server, url) = kept().await;
    let database = Database::new();
    let mut writer = Client::new(builder(&url).await.timeout(Duration::from_secs(1)), &database);
    let mut other = Client::new(builder(&url).await, &database);
    assert_eq!((writer.loaded().await, other.hit().await), (1, 1));
    server.kill();
    database.commit();
    owed(&writer, &[1]).await;
    assert_eq!(writer.cache.debt(), Some(1));
    server.start_again().await;
    paid(&writer, 0).await;
    let stats = writer.cache.stats();
    assert_eq!((stats.debts, stats.debts_paid), (1, 1));
    eventually("it is connected again", async || {
        !Raw::connect(server.address()).await.exists("cache:1").await
    })
    .await;
    soon("the other one has it", async {
        loop {
            let get = other.get();
            while !get.is_finished() {
                if let Some(load) = other.try_load() {
                    load.go();
                }
                tokio::task::yield_now().await;
            }
            assert_eq!(value(get).await, 2);
            if other.cache.stats().fills > 0 {
                return;
            }
        }
    })
    .await;
}

/// Nobody may run scripts: looks succeed, and nothing else does.
async fn forbid(server: &Server) -> Raw {
    let raw = Raw::connect(server.address()).await;
    raw.ask("ACL SETUSER default -evalsha -eval").await;
    raw
}

#[tokio::test]
async fn what_is_owed_is_read_from_the_database() {
    let (server, url) = kept().await;
    let database = Database::new();
    let mut writer = Client::new(builder(&url).await.timeout(Duration::from_secs(1)), &database);
    assert_eq!(writer.loaded().await, 1);
    let raw = forbid(&server).await;
    assert_eq!(writer.hit().await, 1);
    database.commit();
    owed(&writer, &[1]).await;
    // The old value is there, and nobody in this process gets it.
    assert!(raw.exists("cache:1").await);
    assert_eq!(writer.cache.explain(&1).await.unwrap().read, Outlook::Owed);
    let get = writer.get();
    writer.load().await.go();
    assert_eq!(value(get).await, 2);
    let many = tokio::spawn({
        let cache = writer.cache.clone();
        async move { cache.get_many(&[1]).await.unwrap() }
    });
    writer.load().await.go();
    assert_eq!(many.await.unwrap()[0].as_deref(), Some(&2));
    assert_eq!(writer.cache.stats().fills, 1);
    raw.ask("ACL SETUSER default +@all").await;
    paid(&writer, 0).await;
    assert_eq!((writer.loaded().await, writer.hit().await), (2, 2));
}

#[tokio::test]
async fn one_that_never_succeeds_does_not_hold_up_the_others() {
    let (server, url) = kept().await;
    let database = Database::new();
    let mut writer = Client::new(builder(&url).await.timeout(Duration::from_secs(1)), &database);
    assert_eq!(writer.loaded().await, 1);
    let raw = forbid(&server).await;
    raw.ask("LPUSH cache:5 junk").await;
    database.commit();
    owed(&writer, &[5, 1, 2, 3]).await;
    raw.ask("ACL SETUSER default +@all").await;
    paid(&writer, 1).await;
    assert!(!raw.exists("cache:1").await);
    raw.ask("DEL cache:5").await;
    paid(&writer, 0).await;
}

#[tokio::test]
async fn too_many_to_remember_are_all_of_them() {
    let (server, url) = kept().await;
    let database = Database::new();
    let mut writer = Client::new(builder(&url).await.timeout(Duration::from_secs(1)), &database);
    assert_eq!(writer.loaded().await, 1);
    let raw = forbid(&server).await;
    database.commit();
    let others: Vec<u32> = (10..100_011).collect();
    owed(&writer, &others).await;
    assert_eq!((writer.cache.debt(), writer.cache.stats().debt_overflows), (None, 1));
    // It was not one of those, but nobody knows that any more.
    let get = writer.get();
    writer.load().await.go();
    assert_eq!(value(get).await, 2);
    raw.ask("ACL SETUSER default +@all").await;
    paid(&writer, 0).await;
    assert!(!raw.exists("cache:1").await);
}

#[tokio::test]
async fn a_clearing_that_fails_is_made_up_for() {
    let (server, url) = kept().await;
    let database = Database::new();
    let mut writer = Client::new(builder(&url).await.timeout(Duration::from_secs(1)), &database);
    assert_eq!(writer.loaded().await, 1);
    let raw = forbid(&server).await;
    assert!(writer.cache.clear().await.is_err());
    assert!(raw.exists("cache:1").await);
    raw.ask("ACL SETUSER default +@all").await;
    paid(&writer, 0).await;
    assert!(!raw.exists("cache:1").await);
}

/// An intent that has ended does not keep old values away.
#[tokio::test]
async fn a_write_that_cannot_be_settled_is_made_up_for() {
    let (server, url) = kept().await;
    let database = Database::new();
    let intent = Duration::from_millis(50);
    let builder = builder(&url).await.timeout(Duration::from_secs(1)).intent(intent);
    let mut writer = Client::new(builder, &database);
    let raw = Raw::connect(server.address()).await;
    let write = writer.cache.intend(&[1]).await.unwrap();
    eventually("it has ended", async || !raw.exists("cache:1").await).await;
    assert_eq!((writer.loaded().await, writer.hit().await), (1, 1));
    let raw = forbid(&server).await;
    database.commit();
    let refused = soon("an end", write.settle(None)).await;
    assert!(matches!(refused, Err(Error::Store { .. })), "{refused:?}");
    assert_eq!(writer.loaded().await, 2);
    raw.ask("ACL SETUSER default +@all").await;
    paid(&writer, 0).await;
    assert_eq!((writer.loaded().await, writer.hit().await), (2, 2));
}

/// A key may be called like what we call the reads of another one.
#[tokio::test]
async fn what_is_owed_is_not_taken_from_another_key() {
    let (server, url) = kept().await;
    let (sender, mut loads) = mpsc::unbounded_channel();
    let loader = move |key: String| {
        let (end, ended) = oneshot::channel::<()>();
        sender.send(end).unwrap();
        async move {
            let _ = ended.await;
            Ok::<_, Error>(Loaded::found(key))
        }
    };
    let builder = builder(&url).await.timeout(Duration::from_secs(1));
    let cache: Cache<String, String> = builder.build(loader).unwrap();
    let [key, odd] = ["a", "a\0owed"].map(str::to_owned);
    let _write = cache.intend(std::slice::from_ref(&odd)).await.unwrap();
    let _raw = forbid(&server).await;
    assert!(cache.invalidate(std::slice::from_ref(&key)).await.is_err());
    let get = |key: &String| {
        let (cache, key) = (cache.clone(), key.clone());
        tokio::spawn(async move { cache.get(&key).await.unwrap().unwrap() })
    };
    let first = get(&odd);
    let load = soon("a load", loads.recv()).await.unwrap();
    // This one waits for the first, and whoever comes meanwhile waits with it.
    let second = get(&odd);
    eventually("it waits", async || cache.stats().misses == 2).await;
    let third = get(&key);
    soon("the other load", loads.recv()).await.unwrap().send(()).unwrap();
    assert_eq!(*soon("its own", third).await.unwrap(), key);
    load.send(()).unwrap();
    soon("the next load", loads.recv()).await.unwrap().send(()).unwrap();
    assert_eq!(
        [first.await.unwrap(), second.await.unwrap()].map(|read| (*read).clone()),
        [(); 2].map(|()| odd.clone())
    );
}
