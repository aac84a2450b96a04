//! What the server has done, as its metrics tell.

use std::net::SocketAddr;

use async_trait::async_trait;
use testkit::server::http_get;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use crate::harness::figure::Figure;
use crate::harness::process::cpu;
use crate::harness::server::{Counts, Crowd, Note, Sample, Server};
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::raw;

const OWN_MESSAGES: Figure = Figure::new(2, 3, "messages from clients per pair", "");
const OWN_WRITES: Figure = Figure::new(2, 4, "raft proposals per pair", "");
pub(crate) const MESSAGES: Figure =
    Figure::new(5, 0, "messages from clients per hand-over, {n} clients", "");
pub(crate) const WRITES: Figure =
    Figure::new(5, 1, "raft proposals per hand-over, {n} clients", "");
const READS: Figure = Figure::new(5, 2, "reads of keys per hand-over, {n} clients", "");

/// The metrics that are counted, all labels together: what clients sent, in streams as well; what went
/// through raft; and reads, those inside transactions and of the server itself as well.
const COUNTED: [&str; 3] = [
    "grpc_server_msg_received_total",
    "etcd_server_proposals_committed_total",
    "etcd_debugging_mvcc_range_total",
];

/// Forgets what was before a revision. Not among the messages that the library needs.
#[derive(Clone, PartialEq, prost::Message)]
struct CompactionRequest {
    #[prost(int64, tag = "1")]
    revision: i64,
    /// Only when it is done.
    #[prost(bool, tag = "2")]
    physical: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CompactionResponse {}

/// A connection to look at the server with.
pub(crate) struct Stats {
    address: SocketAddr,
    pid: u32,
    channel: Channel,
}

impl Stats {
    pub(crate) fn connect(url: &str, server: &testkit::server::Server) -> Self {
        Self { address: server.address(), pid: server.pid(), channel: raw::connect(url) }
    }

    async fn compact(&self, revision: i64) {
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.unwrap();
        let request = tonic::Request::new(CompactionRequest { revision, physical: true });
        let path = PathAndQuery::from_static("/etcdserverpb.KV/Compact");
        let codec = ProstCodec::<CompactionRequest, CompactionResponse>::default();
        client.unary(request, path, codec).await.unwrap();
    }

    async fn ask(&self, path: &str) -> String {
        let answer = http_get(self.address, path).await;
        answer.unwrap_or_else(|error| panic!("the server is gone ({error}): did somebody end it?"))
    }
}

#[async_trait]
impl Server for Stats {
    async fn version(&self) -> String {
        let said = self.ask("/version").await;
        let version =
            said.split("\"etcdserver\":\"").nth(1).and_then(|rest| rest.split('"').next());
        version.unwrap_or_default().to_owned()
    }

    async fn sample(&self) -> Sample {
        let metrics = self.ask("/metrics").await;
        let counts = COUNTED.map(|name| sum(&metrics, name));
        Sample { cpu: cpu(self.pid).as_secs_f64(), counts }
    }

    async fn clear(&self) {
        // Every key: from the first on, without an end.
        let everything = raw::delete(vec![0], vec![0]);
        let deleted = KvClient::new(self.channel.clone()).txn(everything).await.unwrap();
        let revision = deleted.into_inner().header.unwrap().revision;
        // Until it is compacted, a deleted key costs time in every range that it was in.
        self.compact(revision).await;
    }

    fn pairs(&self, counts: Counts, pairs: f64, note: Note<'_>) {
        note(OWN_MESSAGES, counts[0] as f64 / pairs);
        note(OWN_WRITES, counts[1] as f64 / pairs);
    }

    fn crowd(&self, crowd: Crowd, note: Note<'_>) -> Result<(), String> {
        for (figure, count) in [MESSAGES, WRITES, READS].into_iter().zip(crowd.counts) {
            note(figure, count as f64 / crowd.passes);
        }
        Ok(())
    }
}

/// A metric, all labels together.
fn sum(metrics: &str, name: &str) -> u64 {
    let of = |line: &str| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' ']))?;
        rest.rsplit(' ').next()?.parse::<f64>().ok()
    };
    let all: f64 = metrics.lines().filter_map(of).sum();
    // Counters are written as floating point numbers.
    format!("{all:.0}").parse().unwrap()
}
