//! `lockkeeper cdc`, driven as an operator drives it: real databases, a real Redis, and a cache of the library that
//! somebody else fills.

mod check;
mod file;
#[allow(dead_code, reason = "the tests of other commands use the rest")]
#[path = "../cli/harness.rs"]
mod harness;
mod health;
mod passwords;
#[allow(dead_code, reason = "the tests of other commands use the rest")]
#[path = "../cli/pty.rs"]
mod pty;
mod run;
mod turns;
mod world;
