//! `redlock:` does what every backend must do, as far as a majority can.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use async_trait::async_trait;
use lockkeeper::Locks;
use testkit::conformance::Harness;
use testkit::redlock::Nodes;

/// Five nodes of its own for each case, and three elsewhere.
struct RedLockHarness {
    here: Nodes,
    elsewhere: Nodes,
}

impl RedLockHarness {
    async fn start() -> Self {
        Self { here: Nodes::start(5).await, elsewhere: Nodes::start(3).await }
    }
}

#[async_trait]
impl Harness for RedLockHarness {
    async fn locks(&self) -> Locks {
        self.here.connect().await
    }

    async fn elsewhere(&self) -> Locks {
        self.elsewhere.connect().await
    }

    fn url(&self) -> Option<String> {
        Some(self.here.url())
    }
}

testkit::conformance!(across_processes, RedLockHarness::start().await);
