//! `etcd:` does what every backend must do.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, reason = "tests")]

use async_trait::async_trait;
use lockkeeper::Locks;
use testkit::conformance::Harness;
use testkit::server::{self, Server};

/// A server of its own for each case.
struct EtcdHarness {
    here: Server,
    elsewhere: Server,
}

impl EtcdHarness {
    async fn start() -> Self {
        let (here, elsewhere) = tokio::join!(server::etcd(&[]), server::etcd(&[]));
        Self { here, elsewhere }
    }
}

fn at(server: &Server) -> String {
    format!("etcd://{}", server.address())
}

#[async_trait]
impl Harness for EtcdHarness {
    async fn locks(&self) -> Locks {
        Locks::connect(&at(&self.here)).await.unwrap()
    }

    async fn elsewhere(&self) -> Locks {
        Locks::connect(&at(&self.elsewhere)).await.unwrap()
    }

    fn url(&self) -> Option<String> {
        Some(at(&self.here))
    }
}

testkit::conformance!(across_processes, EtcdHarness::start().await);
