//! A database of one number, loads that stop in the middle, and caches in two processes, so to speak.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_cache::{Builder, Cache, Error, Loaded, Memory, Redis, Result, Stats};
use testkit::resp::Raw;
use testkit::server::{self, Server};
use testkit::wait::{eventually, soon};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Where the entries are.
pub(crate) enum Place {
    Memory(Memory),
    Redis(Box<Server>),
}

impl Place {
    pub(crate) fn memory() -> Self {
        Self::Memory(Memory::new())
    }

    pub(crate) async fn redis() -> Self {
        Self::Redis(Box::new(server::redis(&[]).await))
    }

    /// For a cache with a connection of its own.
    pub(crate) async fn builder(&self) -> Builder {
        match self {
            Self::Memory(memory) => Cache::builder(memory.clone()).namespace("cache"),
            Self::Redis(server) => {
                let url = format!("redis://{}", server.address());
                Cache::builder(Redis::connect(&url).await.unwrap()).namespace("cache")
            }
        }
    }

    /// Forgets everything.
    pub(crate) async fn wipe(&self) {
        match self {
            Self::Memory(memory) => memory.clear(),
            Self::Redis(server) => {
                Raw::connect(server.address()).await.ask("FLUSHALL").await;
            }
        }
    }
}

/// What the database has. Its version is the number itself.
#[derive(Clone, Default)]
pub(crate) struct Database(Arc<AtomicU64>);

impl Database {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1)))
    }

    /// Commits the next number.
    pub(crate) fn commit(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A load that has read the database and has not returned yet.
pub(crate) struct Load {
    pub(crate) read: u64,
    end: oneshot::Sender<Result<Loaded<u64>, &'static str>>,
    versions: bool,
}

impl Load {
    /// It returns what it has read. Whether anybody still wants it.
    pub(crate) fn go(self) -> bool {
        let version = if self.versions { self.read } else { 0 };
        self.end.send(Ok(Loaded::found(self.read).version(version))).is_ok()
    }

    /// Whether nobody waits for it any more.
    pub(crate) fn is_dropped(&self) -> bool {
        self.end.is_closed()
    }

    pub(crate) fn fail(self) {
        self.end.send(Err("no database")).unwrap();
    }

    pub(crate) fn panic(self) {
        drop(self.end);
    }

    pub(crate) fn nothing(self) {
        self.end.send(Ok(Loaded::nothing())).unwrap();
    }
}

/// A cache whose loads stop in the middle.
pub(crate) struct Client {
    pub(crate) cache: Cache<u32, u64>,
    loads: mpsc::UnboundedReceiver<Load>,
}

impl Client {
    pub(crate) fn new(builder: Builder, database: &Database) -> Self {
        Self::with_versions(builder, database, false)
    }

    pub(crate) fn with_versions(builder: Builder, database: &Database, versions: bool) -> Self {
        let (sender, loads) = mpsc::unbounded_channel();
        let database = database.clone();
        let loader = move |_: u32| {
            let (end, ended) = oneshot::channel();
            sender.send(Load { read: database.read(), end, versions }).unwrap();
            async move { ended.await.expect("told to panic") }
        };
        Self { cache: builder.build(loader).unwrap(), loads }
    }

    /// Begins to read key 1.
    pub(crate) fn get(&self) -> JoinHandle<Result<Option<Arc<u64>>, Error>> {
        let cache = self.cache.clone();
        tokio::spawn(async move { cache.get(&1).await })
    }

    /// The next load.
    pub(crate) async fn load(&mut self) -> Load {
        soon("a load", self.loads.recv()).await.unwrap()
    }

    pub(crate) fn no_load(&mut self) {
        assert!(self.loads.try_recv().is_err(), "loaded once more");
    }

    pub(crate) fn try_load(&mut self) -> Option<Load> {
        self.loads.try_recv().ok()
    }

    /// Reads key 1, which is not cached, and lets the load go; afterwards it is cached.
    pub(crate) async fn loaded(&mut self) -> u64 {
        let get = self.get();
        assert!(self.load().await.go());
        let value = value(get).await;
        self.idle().await;
        value
    }

    /// Waits for the answers to all fills.
    pub(crate) async fn idle(&self) {
        soon("nothing is under way", self.cache.idle()).await;
    }

    /// What happened, with all that is under way.
    pub(crate) async fn stats(&self) -> Stats {
        self.idle().await;
        self.cache.stats()
    }

    /// Reads key 1, which is cached.
    pub(crate) async fn hit(&mut self) -> u64 {
        let read = value(self.get()).await;
        self.no_load();
        read
    }

    pub(crate) async fn eventually(&self, what: &str, holds: impl Fn(Stats) -> bool + Send + Sync) {
        eventually(what, async || holds(self.cache.stats())).await;
    }
}

pub(crate) async fn value(get: JoinHandle<Result<Option<Arc<u64>>, Error>>) -> u64 {
    *soon("a value", get).await.unwrap().unwrap().unwrap()
}

/// Each case on each store.
macro_rules! on_each_store {
    ($($case:ident)+) => {
        mod memory {
            $(#[tokio::test]
            async fn $case() {
                super::$case(&crate::harness::Place::memory()).await;
            })+
        }
        mod redis {
            $(#[tokio::test]
            async fn $case() {
                super::$case(&crate::harness::Place::redis().await).await;
            })+
        }
    };
}
pub(crate) use on_each_store;
