//! The cache on each of its stores: what may come in between, and what may go wrong.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod deaf;
mod debt;
mod double_delete;
mod faults;
mod first;
mod freshness;
mod groups;
mod harness;
mod late;
mod locked;
mod names;
mod nodes;
mod quiet;
mod races;
mod restored;
mod rights;
mod stores;
mod tables;
mod tags;
mod tls;
mod traces;
mod transactions;
mod trips;
mod unreadable;
mod updates;
mod write_behind;
