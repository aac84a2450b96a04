//! The calls that a lock is made of, without the lock.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

use crate::harness::worker::{Library, Lock};
use crate::proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::proto::etcdserverpb::lease_client::LeaseClient;
use crate::proto::etcdserverpb::request_op::Request;
use crate::proto::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RequestOp,
    TxnRequest,
};

/// How long a lease lasts that nobody keeps alive: longer than the bench.
const LASTING: Duration = Duration::from_secs(3600);

/// A connection as the library has it. Must be called inside a tokio runtime.
pub(crate) fn connect(url: &str) -> Channel {
    let endpoint = Endpoint::from_shared(url.replacen("etcd", "http", 1)).unwrap();
    endpoint.tcp_nodelay(true).connect_lazy()
}

/// Raw calls: with a lease for each turn, as we do, or with one for all, as Go's package does.
pub(crate) struct Raw {
    channel: Channel,
    lease: Duration,
    session: Option<i64>,
}

impl Library for Raw {
    type Lock = Key;

    fn package(_: &str) -> &'static str {
        "tonic"
    }

    async fn connect(url: &str, library: &str, lease: Duration) -> Self {
        let channel = connect(url);
        let session = match library {
            "raw-leases" => None,
            "raw-keys" => Some(grant(&mut LeaseClient::new(channel.clone()), LASTING).await),
            _ => panic!("no such library: {library}"),
        };
        Self { channel, lease, session }
    }

    #[allow(clippy::unused_async, reason = "others must ask the server")]
    async fn lock(&self, name: String, _task: u64) -> Key {
        Key {
            keys: KvClient::new(self.channel.clone()),
            leases: LeaseClient::new(self.channel.clone()),
            name: name.into_bytes(),
            lease: self.lease,
            session: self.session,
        }
    }
}

/// Deletes a range of keys, or one alone. A transaction, because the library has no other deletion.
pub(crate) fn delete(key: Vec<u8>, range_end: Vec<u8>) -> TxnRequest {
    let range = DeleteRangeRequest { key, range_end, prev_kv: false };
    let delete = RequestOp { request: Some(Request::RequestDeleteRange(range)) };
    TxnRequest { success: vec![delete], ..Default::default() }
}

async fn grant(leases: &mut LeaseClient<Channel>, ttl: Duration) -> i64 {
    let ttl = i64::try_from(ttl.as_secs()).unwrap();
    leases.lease_grant(LeaseGrantRequest { ttl, id: 0 }).await.unwrap().into_inner().id
}

pub(crate) struct Key {
    keys: KvClient<Channel>,
    leases: LeaseClient<Channel>,
    name: Vec<u8>,
    lease: Duration,
    session: Option<i64>,
}

impl Lock for Key {
    /// Its lease.
    type Taken = i64;

    async fn take(&mut self) -> i64 {
        let lease = match self.session {
            Some(lease) => lease,
            None => grant(&mut self.leases, self.lease).await,
        };
        let absent = Compare {
            result: CompareResult::Equal as i32,
            target: CompareTarget::Create as i32,
            key: self.name.clone(),
            target_union: Some(TargetUnion::CreateRevision(0)),
            ..Default::default()
        };
        let put = PutRequest { key: self.name.clone(), lease, ..Default::default() };
        let put = RequestOp { request: Some(Request::RequestPut(put)) };
        let create = TxnRequest { compare: vec![absent], success: vec![put], failure: vec![] };
        let created = self.keys.txn(create).await.unwrap().into_inner().succeeded;
        assert!(created, "the key is taken, and the raw ones cannot wait");
        lease
    }

    async fn release(&mut self, lease: i64) {
        self.keys.txn(delete(self.name.clone(), Vec::new())).await.unwrap();
        if self.session.is_none() {
            // Nobody waits for it, with us neither.
            let mut leases = self.leases.clone();
            tokio::spawn(async move {
                leases.lease_revoke(LeaseRevokeRequest { id: lease }).await.unwrap();
            });
        }
    }
}
