//! What spares the database: breakdown (one hot key), avalanche (all at once), penetration (keys that are not there).
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod audit;
mod audit_first;
mod avalanche;
mod broken;
mod bucket;
mod explain;
mod filters;
#[path = "../cache/harness.rs"]
#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "the other tests of the cache use all of it"
)]
mod harness;
mod herd;
mod hot;
mod inserted;
mod killed;
mod penetration;
mod processes;
mod servers;
mod skew;
mod stale;
mod unheard;
mod writer;
