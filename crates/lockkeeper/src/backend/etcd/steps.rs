//! The transactions, as messages.

use super::layout::Keys;
use super::proto::etcdserverpb as pb;
use super::proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use super::proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use super::proto::etcdserverpb::request_op::Request as Op;
use super::proto::etcdserverpb::response_op::Response as Answer;
use super::proto::mvccpb::KeyValue;
use super::queue::{Entry, Place};

/// A range of keys, or one alone.
type Range = (Vec<u8>, Vec<u8>);

pub(super) fn txn(
    compare: Vec<pb::Compare>,
    success: Vec<pb::RequestOp>,
    failure: Vec<pb::RequestOp>,
) -> pb::TxnRequest {
    pb::TxnRequest { compare, success, failure }
}

fn op(request: Op) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

pub(super) fn nested(request: pb::TxnRequest) -> pb::RequestOp {
    op(Op::RequestTxn(request))
}

/// A put under a lease; `None`: under the one that the key has.
pub(super) fn put(key: Vec<u8>, value: Vec<u8>, lease: Option<i64>) -> pb::RequestOp {
    op(Op::RequestPut(pb::PutRequest {
        key,
        value,
        lease: lease.unwrap_or(0),
        ignore_lease: lease.is_none(),
        ..Default::default()
    }))
}

pub(super) fn delete((key, range_end): Range) -> pb::RequestOp {
    op(Op::RequestDeleteRange(pb::DeleteRangeRequest { key, range_end, prev_kv: false }))
}

pub(super) fn get(key: Vec<u8>) -> pb::RequestOp {
    op(Op::RequestRange(pb::RangeRequest { key, ..Default::default() }))
}

/// All of a range, first created first.
pub(super) fn all((key, range_end): Range) -> pb::RangeRequest {
    pb::RangeRequest {
        key,
        range_end,
        sort_order: SortOrder::Ascend as i32,
        sort_target: SortTarget::Create as i32,
        ..Default::default()
    }
}

pub(super) fn list(range: Range) -> pb::RequestOp {
    op(Op::RequestRange(all(range)))
}

fn compare(
    (key, range_end): Range,
    target: CompareTarget,
    result: CompareResult,
    union: TargetUnion,
) -> pb::Compare {
    pb::Compare {
        result: result as i32,
        target: target as i32,
        key,
        range_end,
        target_union: Some(union),
    }
}

/// The key is the one that was created then; zero: there is none.
pub(super) fn created(key: Vec<u8>, revision: i64) -> pb::Compare {
    let union = TargetUnion::CreateRevision(revision);
    compare((key, Vec::new()), CompareTarget::Create, CompareResult::Equal, union)
}

/// The key is as it was written then.
pub(super) fn modified(key: Vec<u8>, revision: i64) -> pb::Compare {
    let union = TargetUnion::ModRevision(revision);
    compare((key, Vec::new()), CompareTarget::Mod, CompareResult::Equal, union)
}

/// The key was written so many times; zero: there is none.
pub(super) fn written(key: Vec<u8>, times: u64) -> pb::Compare {
    let union = TargetUnion::Version(i64::try_from(times).unwrap_or(i64::MAX));
    compare((key, Vec::new()), CompareTarget::Version, CompareResult::Equal, union)
}

/// There is nothing in the range.
pub(super) fn empty(range: Range) -> pb::Compare {
    let union = TargetUnion::CreateRevision(0);
    compare(range, CompareTarget::Create, CompareResult::Equal, union)
}

/// Nothing in the range was created before.
pub(super) fn none_before(range: Range, revision: i64) -> pb::Compare {
    let union = TargetUnion::CreateRevision(revision - 1);
    compare(range, CompareTarget::Create, CompareResult::Greater, union)
}

/// Nothing in the range was created after.
pub(super) fn none_since(range: Range, revision: i64) -> pb::Compare {
    let union = TargetUnion::CreateRevision(revision + 1);
    compare(range, CompareTarget::Create, CompareResult::Less, union)
}

/// Nothing in the range was written more than once: nobody there has waited and holds.
pub(super) fn none_rewritten(range: Range) -> pb::Compare {
    compare(range, CompareTarget::Version, CompareResult::Less, TargetUnion::Version(2))
}

/// Lines up. Who comes first holds at once, in the same step and with the fewest parts; otherwise what
/// comes second is answered. `quiet`: what must be as it was for the name not to be in use as something
/// else.
pub(super) fn enqueue(
    keys: &Keys,
    own: &[u8],
    place: &Place,
    lease: i64,
    quiet: Vec<pb::Compare>,
) -> pb::TxnRequest {
    let held = put(own.to_vec(), place.holding(None, None).to_value(), Some(lease));
    let waits = put(own.to_vec(), place.to_value(), Some(lease));
    let (mut free, mut new) = (vec![empty(keys.range())], vec![created(own.to_vec(), 0)]);
    free.extend(quiet.clone());
    new.extend(quiet);
    let look = vec![list(keys.range()), list(keys.rivals().range()), get(keys.latch().0)];
    let second = txn(new, vec![waits, list(keys.range())], look);
    txn(free, vec![held], vec![nested(second)])
}

/// Nobody uses the name as something else.
pub(super) fn not_otherwise(keys: &Keys) -> Vec<pb::Compare> {
    vec![empty(keys.rivals().range()), created(keys.latch().0, 0)]
}

/// Writes that a waiter holds. Otherwise lists the queue.
pub(super) fn take(
    keys: &Keys,
    own: &[u8],
    place: &Place,
    made: i64,
    only_if: Vec<pb::Compare>,
    token: Option<u64>,
) -> pb::TxnRequest {
    let mut compares = vec![modified(own.to_vec(), made)];
    compares.extend(only_if);
    let held = put(own.to_vec(), place.holding(token, None).to_value(), None);
    txn(compares, vec![held], vec![list(keys.range())])
}

/// Looks whether a hold is still there, and if not why.
pub(super) fn look(keys: &Keys, own: &[u8]) -> pb::TxnRequest {
    txn(Vec::new(), vec![get(own.to_vec()), get(keys.evicted(own))], Vec::new())
}

/// What a step answered, one part after the other.
pub(super) struct Answers(std::vec::IntoIter<pb::ResponseOp>);

impl Answers {
    pub(super) fn of(responses: Vec<pb::ResponseOp>) -> Self {
        Self(responses.into_iter())
    }

    /// The keys of the next part.
    pub(super) fn keys(&mut self) -> Vec<KeyValue> {
        match self.0.next().and_then(|answer| answer.response) {
            Some(Answer::ResponseRange(range)) => range.kvs,
            _ => Vec::new(),
        }
    }

    pub(super) fn skip(&mut self) {
        self.0.next();
    }

    /// The answers to a transaction inside this one, and whether what it compared was so.
    pub(super) fn nested(&mut self) -> (bool, Self) {
        match self.0.next().and_then(|answer| answer.response) {
            Some(Answer::ResponseTxn(inner)) => (inner.succeeded, Self::of(inner.responses)),
            _ => (false, Self::of(Vec::new())),
        }
    }
}

/// The queue among these keys, in the order of creation.
pub(super) fn queue(keys: &Keys, found: Vec<KeyValue>) -> Vec<Entry> {
    let mut queue: Vec<Entry> =
        found.into_iter().filter(|found| keys.is_queued(&found.key)).map(entry).collect();
    queue.sort_by_key(|entry| entry.created);
    queue
}

pub(super) fn entry(found: KeyValue) -> Entry {
    Entry {
        created: found.create_revision,
        modified: found.mod_revision,
        lease: found.lease,
        place: serde_json::from_slice(&found.value).ok(),
        key: found.key,
    }
}
