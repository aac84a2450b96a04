//! What stands between a cache and its database: guards against breakdown, avalanche and penetration.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![doc(test(attr(deny(warnings))))]

pub mod breaker;
pub mod degrade;
pub mod filter;
pub mod group;
mod hash;
pub mod jitter;
pub mod limit;
