//! Writes through a queue: none is lost, none turned around, whoever dies.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod consumers;
mod fake;
mod hanging;
mod ids;
mod killed;
mod late;
mod letters;
mod reads;
mod rows;
mod worker;
mod writes;
