//! A database in memory that fails as it is told, and what most tests begin with.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_cache::through::{Accepted, Builder, RedisQueue, Rejected, Through};
use lockkeeper_cache::{BoxError, Cache, Database, Loaded, Loader, Order, Redis};
use parking_lot::Mutex;
use testkit::server::Server;
use testkit::wait::{LONG, soon};

/// What is wrong with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Down,
    Rejects,
    Panics,
    /// It takes what it is given, and does not say so.
    Silent,
}

#[derive(Default)]
struct State {
    rows: HashMap<u32, (Option<Order>, Option<String>)>,
    /// Whether a row has a version: how many changes there had been.
    versions: bool,
    /// All changes, as they came.
    history: Vec<(u32, Option<String>)>,
    faults: HashMap<u32, Fault>,
}

#[derive(Clone, Default)]
pub(crate) struct Fake {
    state: Arc<Mutex<State>>,
    pub(crate) loads: Arc<AtomicUsize>,
    pub(crate) stores: Arc<AtomicUsize>,
}

impl Fake {
    pub(crate) fn get(&self, id: u32) -> Option<String> {
        self.state.lock().rows.get(&id).and_then(|(_, name)| name.clone())
    }

    pub(crate) fn put(&self, id: u32, name: &str) {
        self.state.lock().rows.insert(id, (None, Some(name.into())));
    }

    pub(crate) fn history(&self, id: u32) -> Vec<String> {
        let state = self.state.lock();
        let of_it = state.history.iter().filter(|(other, _)| *other == id);
        of_it.map(|(_, name)| name.clone().unwrap_or_default()).collect()
    }

    pub(crate) fn is(&self, id: u32, fault: impl Into<Option<Fault>>) {
        match fault.into() {
            Some(fault) => drop(self.state.lock().faults.insert(id, fault)),
            None => drop(self.state.lock().faults.remove(&id)),
        }
    }

    pub(crate) fn with_versions() -> Self {
        let fake = Self::default();
        fake.state.lock().versions = true;
        fake
    }

    fn version(&self) -> u64 {
        let state = self.state.lock();
        if state.versions { state.history.len() as u64 } else { 0 }
    }

    pub(crate) fn loads(&self) -> usize {
        self.loads.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Loader<u32, String> for Fake {
    async fn load(&self, id: &u32) -> Result<Loaded<String>, BoxError> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        let fault = self.state.lock().faults.get(id).copied();
        match fault {
            Some(Fault::Down) => Err("no database".into()),
            _ => Ok(Loaded::from(self.get(*id)).version(self.version())),
        }
    }
}

#[async_trait]
impl Database<u32, String> for Fake {
    async fn store(
        &self,
        id: &u32,
        name: Option<&String>,
        order: Option<Order>,
    ) -> Result<u64, BoxError> {
        self.stores.fetch_add(1, Ordering::SeqCst);
        let fault = self.state.lock().faults.get(id).copied();
        match fault {
            Some(Fault::Down) => return Err("no database".into()),
            Some(Fault::Rejects) => return Err(Rejected::new("a row that may not be").into()),
            Some(Fault::Panics) => panic!("told to"),
            Some(Fault::Silent) | None => {}
        }
        {
            let mut state = self.state.lock();
            let (last, there) = state.rows.entry(*id).or_default();
            if *last < order {
                (*last, *there) = (order, name.cloned());
                state.history.push((*id, name.cloned()));
            }
        }
        if fault == Some(Fault::Silent) {
            std::future::pending::<()>().await;
        }
        Ok(self.version())
    }
}

pub(crate) fn url(server: &Server) -> String {
    format!("redis://{}", server.address())
}

pub(crate) async fn queue(url: &str) -> RedisQueue {
    soon("connected", RedisQueue::connect(url, "t")).await.unwrap()
}

pub(crate) async fn cache(url: &str) -> lockkeeper_cache::Builder {
    let store = soon("connected", Redis::connect(url)).await.unwrap();
    // A consumer that is gone is followed soon.
    let builder = Cache::builder(store).namespace("t").lease(Duration::from_millis(300));
    builder.timeout(Duration::from_secs(2))
}

pub(crate) async fn builder(server: &Server, fake: &Fake) -> Builder<u32, String> {
    let url = url(server);
    let cache = cache(&url).await.build(fake.clone()).unwrap();
    Through::builder(queue(&url).await, cache, fake.clone())
}

pub(crate) async fn through(server: &Server, fake: &Fake) -> Through<u32, String> {
    builder(server, fake).await.build()
}

pub(crate) async fn write(through: &Through<u32, String>, id: u32, name: &str) -> Accepted {
    soon("a write", through.write(&id, Some(name.to_owned()))).await.unwrap()
}

/// All that was written before this is applied, or is a letter.
pub(crate) async fn drain(through: &Through<u32, String>) {
    let empty = async || through.backlog().await.unwrap().pending == 0;
    testkit::wait::eventually("nothing waits", empty).await;
}

pub(crate) async fn applied(through: &Through<u32, String>, accepted: Accepted) {
    soon("applied", through.applied(accepted.order, LONG)).await.unwrap();
}
