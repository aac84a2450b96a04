//! `redis:` does what every backend must do.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use async_trait::async_trait;
use lockkeeper::Locks;
use testkit::conformance::Harness;
use testkit::server::{self, Server};

/// A server of its own for each case.
struct RedisHarness {
    here: Server,
    elsewhere: Server,
    options: &'static str,
}

impl RedisHarness {
    async fn start(options: &'static str) -> Self {
        let (here, elsewhere) = (server::redis(&[]).await, server::redis(&[]).await);
        Self { here, elsewhere, options }
    }

    fn at(&self, server: &Server) -> String {
        format!("redis://{}{}", server.address(), self.options)
    }
}

#[async_trait]
impl Harness for RedisHarness {
    async fn locks(&self) -> Locks {
        Locks::connect(&self.at(&self.here)).await.unwrap()
    }

    async fn elsewhere(&self) -> Locks {
        Locks::connect(&self.at(&self.elsewhere)).await.unwrap()
    }

    fn url(&self) -> Option<String> {
        Some(self.at(&self.here))
    }
}

mod redisson {
    use super::RedisHarness;
    testkit::conformance!(across_processes, RedisHarness::start("").await);
}

mod plain {
    use super::RedisHarness;
    testkit::conformance!(across_processes, RedisHarness::start("?dialect=plain").await);
}
