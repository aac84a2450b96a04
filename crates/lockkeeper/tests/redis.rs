//! `redis:` does what every backend must do.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use async_trait::async_trait;
use lockkeeper::Locks;
use testkit::conformance::Harness;
use testkit::server::{self, Server};

/// A server of its own for each case.
struct RedisHarness(Server, Server);

impl RedisHarness {
    async fn start() -> Self {
        Self(server::redis(&[]).await, server::redis(&[]).await)
    }
}

async fn open(server: &Server) -> Locks {
    Locks::connect(&format!("redis://{}", server.address())).await.unwrap()
}

#[async_trait]
impl Harness for RedisHarness {
    async fn locks(&self) -> Locks {
        open(&self.0).await
    }

    async fn elsewhere(&self) -> Locks {
        open(&self.1).await
    }

    fn url(&self) -> Option<String> {
        Some(format!("redis://{}", self.0.address()))
    }
}

testkit::conformance!(across_processes, RedisHarness::start().await);
