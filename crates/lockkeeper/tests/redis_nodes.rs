//! `redis+sentinel:` and `redis+cluster:` do what every backend must do.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use lockkeeper::Locks;
use testkit::conformance::Harness;
use testkit::nodes::{Cluster, Sentinels};

/// A prefix of its own for each case, at servers that they have in common.
struct NodesHarness {
    _servers: Servers,
    here: String,
    elsewhere: String,
}

enum Servers {
    Sentinels { _servers: Arc<Sentinels> },
    Cluster { _servers: Arc<Cluster> },
}

/// Options with a prefix that nobody else has.
fn options(options: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("?prefix=case-{}:{options}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

impl NodesHarness {
    async fn sentinels(more: &'static str) -> Self {
        let servers = Sentinels::shared().await;
        let (url, options) = (servers.url(), options(more));
        let (here, elsewhere) = (format!("{url}{options}"), format!("{url}/1{options}"));
        Self { _servers: Servers::Sentinels { _servers: servers }, here, elsewhere }
    }

    async fn cluster(more: &'static str) -> Self {
        let servers = Cluster::shared().await;
        let here = format!("{}{}", servers.url(), options(more));
        let last = servers.servers[5].address();
        let elsewhere = format!("redis+cluster://{last}{}", options(more));
        Self { _servers: Servers::Cluster { _servers: servers }, here, elsewhere }
    }
}

#[async_trait]
impl Harness for NodesHarness {
    async fn locks(&self) -> Locks {
        Locks::connect(&self.here).await.unwrap()
    }

    async fn elsewhere(&self) -> Locks {
        Locks::connect(&self.elsewhere).await.unwrap()
    }

    fn url(&self) -> Option<String> {
        Some(self.here.clone())
    }
}

mod sentinels {
    use super::NodesHarness;
    testkit::conformance!(across_processes, NodesHarness::sentinels("").await);
}

mod sentinels_with_replicas {
    use super::NodesHarness;
    testkit::conformance!(across_processes, NodesHarness::sentinels("&replicas=2").await);
}

mod cluster {
    use super::NodesHarness;
    testkit::conformance!(across_processes, NodesHarness::cluster("").await);
}

mod cluster_plain {
    use super::NodesHarness;
    testkit::conformance!(
        across_processes,
        NodesHarness::cluster("&dialect=plain&replicas=1").await
    );
}
