//! What the binary log of a real MariaDB says, and when.
#![cfg(feature = "cdc")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod behind;
mod cascades;
mod check;
mod gate;
mod large;
mod lost;
mod reader;
mod rows;
mod slow;
mod statements;
mod types;
mod xa;
