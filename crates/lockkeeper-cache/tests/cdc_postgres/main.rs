//! The log of a real PostgreSQL server, read without a follower.
#![cfg(feature = "cdc")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod altered;
mod changes;
mod check;
mod faults;
mod harness;
mod large;
mod lost;
mod resume;
mod tls;
mod visible;
