//! Crashes between a commit and its invalidation, at real databases.
#![cfg(all(feature = "redis", feature = "postgres", feature = "mysql"))]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod example;
mod relay;
mod sql;
mod tls;
