//! The lab: every way in which a home-made lock or cache fails, shown on real servers and closed.
//!
//! An [`Experiment`] runs the program that has the failure first, then what is usually made of it, and
//! Lockkeeper last. Whether it failed is said by checkers that know nothing of the lock ([`checker`]).
//! Where order matters it is forced, by doing one step after the other or by a [`gate`]: the worst order
//! happens on every run, not on a bad day.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod asked;
pub mod bench;
pub mod catalogue;
pub mod checker;
pub mod client;
pub mod diagram;
mod error;
pub mod experiment;
pub mod experiments;
pub mod gate;
pub mod http;
mod load;
pub mod outcome;
pub mod random;
pub mod recipe;
pub mod report;
pub mod row;
mod runner;
pub mod scene;
pub mod servers;
pub mod stage;
pub mod table;
pub mod text;
pub mod timeline;

pub use error::{Error, Result};
pub use experiment::Experiment;
pub use runner::{Finding, Findings, Progress, Setting, Verdict, run};
