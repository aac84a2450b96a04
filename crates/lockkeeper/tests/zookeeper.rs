//! `zookeeper:` does what every backend must do.
#![cfg(feature = "zookeeper")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use lockkeeper::Locks;
use testkit::conformance::Harness;
use testkit::server::Server;
use testkit::zookeeper;

/// A path of its own for each case, at a server that they have in common.
struct ZooKeeperHarness {
    server: Arc<Server>,
    number: u32,
    options: &'static str,
}

impl ZooKeeperHarness {
    async fn start(options: &'static str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self { server: zookeeper::with_lasting_containers().await, number, options }
    }

    fn at(&self, place: &str) -> String {
        let (address, number) = (self.server.address(), self.number);
        format!("zookeeper://{address}/case-{number}/{place}{}", self.options)
    }
}

#[async_trait]
impl Harness for ZooKeeperHarness {
    async fn locks(&self) -> Locks {
        Locks::connect(&self.at("here")).await.unwrap()
    }

    async fn elsewhere(&self) -> Locks {
        Locks::connect(&self.at("elsewhere")).await.unwrap()
    }

    fn url(&self) -> Option<String> {
        Some(self.at("here"))
    }
}

mod curator {
    use super::ZooKeeperHarness;
    testkit::conformance!(across_processes, ZooKeeperHarness::start("").await);
}

mod kazoo {
    use super::ZooKeeperHarness;
    testkit::conformance!(across_processes, ZooKeeperHarness::start("?dialect=kazoo").await);
}
