//! What the tests of Lockkeeper stand on.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`mod@conformance`] | the one list of cases that every backend must pass |
//! | [`taker`] | another process that takes locks, to be killed and stopped |
//! | [`peer`] | lock libraries of other languages, to share locks with |
//! | [`party`] | the same words for ours and for them |
//! | [`crowd`], [`storm`] | random steps under the eyes of a referee, and all at once |
//! | [`server`], [`redlock`], [`zookeeper`], [`database`] | real servers as child processes |
//! | [`nodes`] | Redis under Sentinel and as a cluster |
//! | [`traffic`] | a stream of requests |
//! | [`authority`] | certificates for servers and clients |
//! | [`greeting`] | what two clients do first, and what they are told when they cannot |
//! | [`resp`] | a Redis client of few lines, to look at a server and to meddle with it |
//! | [`proxy`] | a TCP proxy that cuts, freezes and delays |
//! | [`signal`] | child processes that are stopped and go on |
//! | [`faulty`] | a backend whose renewals and releases fail on command |
//! | [`register`] | the independent judge: refuses a token that comes too late |
//! | [`history`], [`checker`] | what happened, and pure functions that say whether it may |
//! | [`staleness`], [`staleness::lab`] | the same for a cache, and its races in every order |
//! | [`wait`] | the one way to wait for something that sends no event |
//!
//! # Rules
//!
//! No sleep is a synchronisation: a test waits for an event, or polls a condition with
//! [`wait::eventually`]. Upper bounds are generous, because the machine may be loaded; there are no
//! tight lower bounds. A test that fails now and then has found a bug, here or in the library.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its place")]

pub mod authority;
pub mod checker;
pub mod conformance;
pub mod crowd;
pub mod database;
pub mod faulty;
pub mod greeting;
pub mod history;
pub mod nodes;
pub mod party;
pub mod peer;
pub mod proxy;
pub mod random;
pub mod redlock;
pub mod register;
pub mod relay;
pub mod resp;
pub mod server;
pub mod signal;
mod split;
pub mod staleness;
pub mod storm;
pub mod taker;
pub mod traffic;
pub mod wait;
pub mod zookeeper;
