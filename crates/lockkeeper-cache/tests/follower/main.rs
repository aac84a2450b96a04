//! Followers of a log that the tests write themselves, in front of a real Redis. Real databases are elsewhere.
#![cfg(feature = "cdc")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod changes;
mod crashes;
mod election;
mod faults;
mod killed;
mod positions;
mod resets;
mod world;
