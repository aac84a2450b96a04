//! etcd's API as it is on the wire.
//!
//! Made once from the `.proto` files beside the code, so that no protoc is needed to build; see
//! docs/adr/0009-etcd.md for how. Only what is used is here.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::all, clippy::pedantic, clippy::use_self)]

pub(super) mod mvccpb {
    include!("proto/mvccpb.rs");
}

pub(super) mod etcdserverpb {
    include!("proto/etcdserverpb.rs");
}
