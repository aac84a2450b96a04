//! What the server has done, as it tells by `mntr`.

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use testkit::zookeeper::ask;
use zookeeper_client::Client;

use crate::harness::figure::Figure;
use crate::harness::process::cpu;
use crate::harness::server::{Counts, Crowd, Note, Sample, Server};
use crate::raw;

const OWN_PACKETS: Figure = Figure::new(2, 3, "packets from clients per pair", "");
const OWN_WRITES: Figure = Figure::new(2, 4, "writes per pair", "");
pub(crate) const PACKETS: Figure =
    Figure::new(5, 0, "packets from clients per hand-over, {n} clients", "");
const ANSWERS: Figure = Figure::new(5, 1, "packets to clients per hand-over, {n} clients", "");
const WRITES: Figure = Figure::new(5, 2, "writes per hand-over, {n} clients", "");
/// How often everything is removed: somebody may still be at work.
const TRIES: usize = 5;
/// Longer than any measurement.
const SESSION: Duration = Duration::from_secs(60);

/// What is counted: requests and pings; answers and events; and the requests that were writes.
const COUNTED: [&str; 3] = ["zk_packets_received", "zk_packets_sent", "zk_cnt_updatelatency"];

/// A session to tidy up with.
pub(crate) struct Stats {
    address: SocketAddr,
    pid: u32,
    client: Client,
}

impl Stats {
    pub(crate) async fn connect(url: &str, server: &testkit::server::Server) -> Self {
        let client = raw::connect(url, SESSION).await;
        Self { address: server.address(), pid: server.pid(), client }
    }

    async fn mntr(&self) -> String {
        ask(self.address, "mntr").await.expect("the server is gone: did somebody end it?")
    }

    /// Removes what is below a node, and the node. Others remove things as well.
    async fn remove(&self, path: &str) {
        for child in self.client.list_children(path).await.unwrap_or_default() {
            Box::pin(self.remove(&format!("{path}/{child}"))).await;
        }
        let _ = self.client.delete(path, None).await;
    }
}

#[async_trait]
impl Server for Stats {
    async fn version(&self) -> String {
        let said = self.mntr().await;
        let version = field(&said, "zk_version").unwrap_or_default();
        version.split(['-', ',']).next().unwrap_or_default().to_owned()
    }

    async fn sample(&self) -> Sample {
        let said = self.mntr().await;
        let count = |name| field(&said, name).and_then(|text| text.parse().ok()).unwrap_or(0);
        Sample { cpu: cpu(self.pid).as_secs_f64(), counts: COUNTED.map(count) }
    }

    async fn clear(&self) {
        for _ in 0..TRIES {
            let mut children = self.client.list_children("/").await.unwrap();
            children.retain(|child| child != "zookeeper");
            if children.is_empty() {
                return;
            }
            for child in children {
                self.remove(&format!("/{child}")).await;
            }
        }
        eprintln!("the server could not be emptied");
    }

    fn pairs(&self, counts: Counts, pairs: f64, note: Note<'_>) {
        note(OWN_PACKETS, counts[0] as f64 / pairs);
        note(OWN_WRITES, counts[2] as f64 / pairs);
    }

    fn crowd(&self, crowd: Crowd, note: Note<'_>) -> Result<(), String> {
        for (figure, count) in [PACKETS, ANSWERS, WRITES].into_iter().zip(crowd.counts) {
            note(figure, count as f64 / crowd.passes);
        }
        Ok(())
    }
}

fn field<'a>(said: &'a str, name: &str) -> Option<&'a str> {
    said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'))
}
