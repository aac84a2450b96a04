//! Who reads only the cache, and what he finds there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use lockkeeper::Locks;
use lockkeeper::clock::Instant;
use lockkeeper_cache::through::{Reads, Tell, Through};
use lockkeeper_cache::{BoxError, Error, FirstLevel, Loaded, Loader, Source};
use parking_lot::Mutex;
use testkit::resp::Raw;
use testkit::server::{self, Server};
use testkit::wait::{LONG, eventually, soon};
use tokio::sync::{mpsc, oneshot};

use crate::fake::{Fake, Fault, applied, builder, cache, drain, queue, through, url, write};

type Values = Through<u32, String>;

#[tokio::test]
async fn who_reads_only_the_cache_never_reaches_the_database() {
    let mut server = server::redis(&[]).await;
    let fake = Fake::default();
    fake.put(1, "there");
    let through = through(&server, &fake).await;
    for _ in 0..10 {
        assert!(through.get(&1).await.unwrap().is_none());
    }
    assert_eq!((fake.loads(), through.cache().stats().misses), (0, 10));
    through.cache().get(&1).await.unwrap();
    through.cache().get(&2).await.unwrap();
    through.cache().idle().await;
    let read = through.get(&1).await.unwrap().unwrap();
    assert_eq!((read.source, read.value.as_deref()), (Source::Hit, Some(&"there".to_owned())));
    // That there is nothing is known, too.
    assert_eq!(through.get(&2).await.unwrap().unwrap().value, None);
    through.cache().invalidate(&[1]).await.unwrap();
    assert!(through.get(&1).await.unwrap().is_none());
    let intent = through.cache().intend(&[2]).await.unwrap();
    assert!(through.get(&2).await.unwrap().is_none());
    intent.settle(None).await.unwrap();
    server.kill();
    let down = soon("an end", through.get(&2)).await;
    assert!(matches!(down, Err(Error::Store { .. })), "{down:?}");
    assert_eq!(fake.loads(), 2);
}

#[tokio::test]
async fn a_look_is_served_by_the_first_level_until_something_changes() {
    let server = server::redis(&[]).await;
    let (fake, near) = (Fake::default(), url(&server));
    fake.put(1, "there");
    let [near_one, far] =
        [(); 2].map(|()| async { cache(&near).await.build(fake.clone()).unwrap() });
    let (first, far) = (near_one.await.with_first_level(FirstLevel::new(10)).unwrap(), far.await);
    far.get(&1).await.unwrap();
    let from_first =
        async || first.peek(&1).await.unwrap().is_some_and(|read| read.source == Source::First);
    eventually("it is in the first level", from_first).await;
    far.invalidate(&[1]).await.unwrap();
    eventually("it is not any more", async || first.peek(&1).await.unwrap().is_none()).await;
    assert_eq!(fake.loads(), 1);
}

/// An entry that is due is left to those who may load it.
#[tokio::test]
async fn a_look_refreshes_nothing() {
    let server = server::redis(&[]).await;
    let (fake, near) = (Fake::default(), url(&server));
    fake.put(1, "there");
    let cache = cache(&near).await.refresh_after(Duration::from_millis(1));
    let cache = cache.build(fake.clone()).unwrap();
    cache.get(&1).await.unwrap();
    cache.idle().await;
    let made = cache.peek(&1).await.unwrap().unwrap().made;
    let raw = Raw::connect(server.address()).await;
    let later = async || {
        let testkit::resp::Reply::Many(time) = raw.ask("TIME").await else { panic!("no time") };
        let testkit::resp::Reply::Text(secs) = &time[0] else { panic!("no time") };
        secs.parse::<u64>().unwrap() * 1000 > made + 1
    };
    eventually("it is due", later).await;
    for _ in 0..20 {
        assert_eq!(cache.peek(&1).await.unwrap().unwrap().made, made);
    }
    assert_eq!((fake.loads(), cache.stats().refreshes), (1, 0));
}

#[tokio::test]
async fn with_a_loader_everything_is_found() {
    let server = server::redis(&[]).await;
    let fake = Fake::default();
    fake.put(1, "there");
    let through = builder(&server, &fake).await.reads(Reads::Loader).build();
    let read = through.get(&1).await.unwrap().unwrap();
    assert_eq!((read.source, read.value.as_deref()), (Source::Loaded, Some(&"there".to_owned())));
    assert_eq!(through.get(&2).await.unwrap().unwrap().value, None);
}

#[tokio::test]
async fn what_is_preloaded_is_found_by_those_who_read_only_the_cache() {
    let server = server::redis(&[]).await;
    let (fake, near) = (Fake::default(), url(&server));
    (0..300).for_each(|id| fake.put(id, &id.to_string()));
    fake.is(77, Fault::Down);
    // Fewer than are preloaded at a time: those that are refused try again.
    let cache = cache(&near).await.max_loads(2, Duration::from_millis(1));
    let cache = cache.build(fake.clone()).unwrap();
    let queue = crate::fake::queue(&near).await;
    let through = lockkeeper_cache::through::Through::builder(queue, cache, fake.clone()).build();
    let mut seen = Vec::new();
    let progress = |so_far: lockkeeper_cache::through::Preloaded| {
        seen.push(so_far.done + so_far.failed);
    };
    let loaded = soon("loaded", through.preload(0..300, progress)).await;
    assert_eq!((loaded.done, loaded.failed), (299, 1));
    assert_eq!(seen, (1..=300).collect::<Vec<_>>());
    for id in (0..300).filter(|id| *id != 77) {
        let read = through.get(&id).await.unwrap().unwrap();
        assert_eq!(read.value.as_deref(), Some(&id.to_string()));
    }
    let loads = fake.loads();
    soon("loaded", through.preload(0..77, |_| {})).await;
    assert_eq!(fake.loads(), loads, "what is cached is not loaded");
}

#[tokio::test]
async fn the_cache_is_told_as_was_chosen() {
    for tell in [Tell::Refresh, Tell::Invalidate, Tell::Nobody] {
        let server = server::redis(&[]).await;
        let fake = Fake::default();
        fake.put(1, "old");
        let through = builder(&server, &fake).await.tell(tell).build();
        through.cache().get(&1).await.unwrap();
        let consumer = through.consume();
        let new = write(&through, 1, "new").await;
        applied(&through, new).await;
        let found = through.get(&1).await.unwrap().map(|read| (*read.value.unwrap()).clone());
        let expected = match tell {
            Tell::Refresh => Some("new"),
            Tell::Invalidate => None,
            Tell::Nobody => Some("old"),
        };
        assert_eq!(found.as_deref(), expected, "{tell:?}");
        consumer.stop().await;
    }
}

/// The write stays in the queue until the cache has heard of it.
#[tokio::test]
async fn a_write_is_not_done_before_the_cache_is_told() {
    let queue_server = server::redis(&[]).await;
    let mut cache_server = server::redis(&[]).await;
    let fake = Fake::default();
    fake.put(1, "old");
    let cache = cache(&url(&cache_server)).await.build(fake.clone()).unwrap();
    cache.get(&1).await.unwrap();
    let queue = crate::fake::queue(&url(&queue_server)).await;
    let through = lockkeeper_cache::through::Through::builder(queue, cache, fake.clone()).build();
    cache_server.pause();
    let consumer = through.consume();
    let new = write(&through, 1, "new").await;
    eventually("it is committed", async || fake.get(1).as_deref() == Some("new")).await;
    let refused = through.applied(new.order, Duration::from_millis(500)).await;
    assert!(matches!(refused, Err(Error::Timeout { .. })), "{refused:?}");
    cache_server.resume();
    applied(&through, new).await;
    let read = through.get(&1).await.unwrap().unwrap();
    assert_eq!(read.value.as_deref(), Some(&"new".to_owned()));
    assert_eq!(fake.history(1), ["new"]);
    consumer.stop().await;
    cache_server.kill();
}

/// A database during whose first load something happens to the server of the cache.
struct Meanwhile {
    fake: Fake,
    server: Raw,
    happens: &'static str,
}

#[async_trait]
impl Loader<u32, String> for Meanwhile {
    async fn load(&self, id: &u32) -> Result<Loaded<String>, BoxError> {
        if self.fake.loads() == 0 {
            assert_eq!(self.server.text(self.happens).await.as_deref(), Some("OK"));
        }
        self.fake.load(id).await
    }
}

/// Values that are loaded from there, cached at one server and written through another.
async fn cached_at(near: &Server, far: &Server, happens: &'static str) -> (Fake, Values) {
    let (fake, server) = (Fake::with_versions(), Raw::connect(near.address()).await);
    let loader = Meanwhile { fake: fake.clone(), server, happens };
    // Whoever has a turn has it until the end, and a load that takes long is not given up.
    let cache = cache(&url(near)).await.lease(LONG).timeout(LONG).build(loader).unwrap();
    let through = Through::builder(queue(&url(far)).await, cache, fake.clone()).build();
    (fake, through)
}

/// Who is told that a write is applied finds it, also when the lease under which it was loaded was lost.
#[tokio::test]
async fn what_is_applied_is_cached() {
    let [near, far] = [server::redis(&[]).await, server::redis(&[]).await];
    let (fake, through) = cached_at(&near, &far, "FLUSHALL").await;
    let consumer = through.consume();
    let accepted = write(&through, 1, "a").await;
    applied(&through, accepted).await;
    let read = through.get(&1).await.unwrap().unwrap();
    assert_eq!(read.value.as_deref().map(String::as_str), Some("a"));
    let stats = through.cache().stats();
    assert_eq!((fake.loads(), stats.lost_fills, stats.fills), (2, 1, 1));
    assert_eq!(through.stats().not_refreshed, 0);
    consumer.stop().await;
}

/// Nobody comes back to a write that another has taken out of the queue.
#[tokio::test]
async fn whose_turn_is_over_still_caches_what_was_taken_away() {
    let [near, mut far] = [server::redis(&[]).await, server::redis(&[]).await];
    let (fake, (sender, mut loads)) = (Fake::default(), mpsc::unbounded_channel());
    let from = fake.clone();
    let loader = move |id: u32| {
        let (end, ended) = oneshot::channel::<bool>();
        sender.send(end).unwrap();
        let from = from.clone();
        async move {
            let fails = ended.await.unwrap();
            if fails { Err("no database".into()) } else { from.load(&id).await }
        }
    };
    let cache = cache(&url(&near)).await.lease(LONG).timeout(LONG).build(loader).unwrap();
    let locks = Locks::connect(&url(&far)).await.unwrap().ttl(Duration::from_millis(500));
    let through = Through::builder(queue(&url(&near)).await, cache, fake.clone());
    let through = through.locks(&locks).build();
    let consumer = through.consume();
    let _new = write(&through, 1, "new").await;
    let load = soon("a load", loads.recv()).await.unwrap();
    far.kill();
    // It does not end before that load, unless its turn does.
    soon("its turn is over", consumer.stop()).await;
    let told = through.cache().stats().invalidations;
    load.send(true).unwrap();
    soon("it is loaded once more", loads.recv()).await.unwrap().send(false).unwrap();
    let cached = async || match through.get(&1).await.unwrap() {
        Some(read) => read.value.as_deref().map(String::as_str) == Some("new"),
        None => false,
    };
    eventually("it is cached", cached).await;
    assert_eq!((through.stats().not_refreshed, through.cache().stats().invalidations), (0, told));
}

/// For readers it is there a little later or not at all.
#[tokio::test]
async fn a_cache_that_is_full_keeps_no_write_from_the_database() {
    let [near, far] = [server::redis(&[]).await, server::redis(&[]).await];
    let (fake, through) = cached_at(&near, &far, "CONFIG SET maxmemory 1").await;
    let consumer = through.consume();
    let accepted = write(&through, 1, "a").await;
    eventually("the database has it", async || fake.get(1).is_some()).await;
    // More than may fail before no others are begun.
    join_all((100..200).map(|id| write(&through, id, "other"))).await;
    eventually("and others", async || fake.stores.load(Ordering::SeqCst) == 101).await;
    assert_eq!(through.backlog().await.unwrap().pending, 101, "they may be cached yet");
    applied(&through, accepted).await;
    drain(&through).await;
    let stats = through.stats();
    assert_eq!((stats.applied, stats.not_refreshed, stats.retries), (101, 101, 0));
    assert_eq!(fake.stores.load(Ordering::SeqCst), 101, "once is enough");
    assert!(through.get(&1).await.unwrap().is_none());
    // The same when keys are loaded before anybody asks.
    let preloaded = through.preload([2], |_| {}).await;
    assert_eq!((preloaded.done, preloaded.failed), (0, 1));
    let raw = Raw::connect(near.address()).await;
    assert_eq!(raw.text("CONFIG SET maxmemory 0").await.as_deref(), Some("OK"));
    assert_eq!(through.preload([1, 2], |_| {}).await.done, 2);
    let read = through.get(&1).await.unwrap().unwrap();
    assert_eq!(read.value.as_deref().map(String::as_str), Some("a"));
    assert_eq!(through.get(&2).await.unwrap().unwrap().value, None);
    consumer.stop().await;
}

/// A replica that lags, as it is told to.
#[derive(Clone)]
struct Replica {
    fake: Fake,
    lags: Arc<AtomicBool>,
    has: Arc<Mutex<Loaded<String>>>,
}

#[async_trait]
impl Loader<u32, String> for Replica {
    async fn load(&self, id: &u32) -> Result<Loaded<String>, BoxError> {
        let now = self.fake.load(id).await?;
        let mut has = self.has.lock();
        if !self.lags.load(Ordering::SeqCst) {
            *has = now;
        }
        Ok(has.clone())
    }
}

#[tokio::test]
async fn what_cannot_be_loaded_for_a_while_is_cached_after_all() {
    let server = server::redis(&[]).await;
    let fake = Fake::with_versions();
    let (lags, has) = (Arc::default(), Arc::new(Mutex::new(Loaded::nothing())));
    let replica = Replica { fake: fake.clone(), lags: Arc::clone(&lags), has };
    let near = url(&server);
    let cache = cache(&near).await.build(replica).unwrap();
    let through = Through::builder(queue(&near).await, cache, fake.clone()).build();
    let consumer = through.consume();
    let first = write(&through, 1, "a").await;
    applied(&through, first).await;
    lags.store(true, Ordering::SeqCst);
    let second = write(&through, 1, "b").await;
    let before = fake.loads();
    eventually("it was tried again and again", async || fake.loads() > before + 5).await;
    assert!(through.get(&1).await.unwrap().is_none(), "the old value is not cached");
    lags.store(false, Ordering::SeqCst);
    applied(&through, second).await;
    let read = through.get(&1).await.unwrap().unwrap();
    assert_eq!(read.value.as_deref().map(String::as_str), Some("b"));
    assert_eq!((through.stats().not_refreshed, fake.stores.load(Ordering::SeqCst)), (0, 2));
    consumer.stop().await;
}

/// As while programs are replaced: it is cached, in a way that the old one cannot read.
#[tokio::test]
async fn what_a_newer_program_has_cached_is_not_waited_for() {
    let server = server::redis(&[]).await;
    let fake = Fake::with_versions();
    let (lags, has) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(Loaded::nothing())));
    let replica = Replica { fake: fake.clone(), lags: Arc::clone(&lags), has };
    let near = url(&server);
    let newer = cache(&near).await.schema(1).build(fake.clone()).unwrap();
    let cache = cache(&near).await.build(replica).unwrap();
    let through = Through::builder(queue(&near).await, cache, fake.clone()).build();
    let consumer = through.consume();
    let accepted = write(&through, 1, "a").await;
    eventually("it cannot be loaded", async || fake.loads() > 0).await;
    // Who tries to load it again may take the lease away.
    let cached = async || {
        assert!(newer.get(&1).await.unwrap().is_some());
        newer.idle().await;
        newer.peek(&1).await.unwrap().is_some()
    };
    eventually("it is cached", cached).await;
    let since = Instant::now();
    applied(&through, accepted).await;
    assert!(Instant::now().since(since) < Duration::from_secs(5), "it was waited for");
    assert_eq!((through.stats().not_refreshed, fake.stores.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(newer.get(&1).await.unwrap().as_deref().map(String::as_str), Some("a"));
    consumer.stop().await;
}

#[tokio::test]
async fn what_is_in_the_database_is_no_letter() {
    let server = server::redis(&[]).await;
    let (fake, near) = (Fake::default(), url(&server));
    let fails = Arc::new(AtomicBool::new(true));
    let (down, loads) = (Arc::clone(&fails), fake.clone());
    let loader = move |id: u32| {
        let (fails, fake) = (down.load(Ordering::SeqCst), loads.clone());
        async move {
            let loaded = fake.load(&id).await?;
            if fails { Err::<_, BoxError>("no database".into()) } else { Ok(loaded) }
        }
    };
    let cache = cache(&near).await.lease(LONG).build(loader).unwrap();
    let through = Through::builder(queue(&near).await, cache, fake.clone()).attempts(1).build();
    let consumer = through.consume();
    let accepted = write(&through, 1, "a").await;
    eventually("it cannot be loaded", async || fake.loads() > 0).await;
    fake.is(1, Fault::Down);
    let before = fake.loads();
    eventually("nor is there a database", async || fake.loads() > before + 1).await;
    fake.is(1, None);
    fails.store(false, Ordering::SeqCst);
    applied(&through, accepted).await;
    assert_eq!((fake.stores.load(Ordering::SeqCst), through.stats().buried), (1, 0));
    assert!(through.get(&1).await.unwrap().is_some());
    consumer.stop().await;
}

#[tokio::test]
async fn what_is_too_large_is_not_preloaded() {
    let server = server::redis(&[]).await;
    let (fake, near) = (Fake::default(), url(&server));
    fake.put(1, "small");
    fake.put(2, &"large".repeat(100));
    let cache = cache(&near).await.max_value(100).lease(LONG).build(fake.clone()).unwrap();
    let through = Through::builder(queue(&near).await, cache, fake.clone()).build();
    let loaded = soon("loaded", through.preload([1, 2, 3], |_| {})).await;
    assert_eq!((loaded.done, loaded.failed), (2, 1));
    assert_eq!(fake.loads(), 3, "it would be too large the next time as well");
}
