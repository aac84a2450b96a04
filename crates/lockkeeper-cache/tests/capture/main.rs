//! A database that others change, and a cache that hears of it only from the log: followers that are killed, and what
//! is left in the cache.
//!
//! `LOCKKEEPER_CAPTURE=full` makes it 100,000 changes with 20 kills, as `./dev capture` does.
#![cfg(feature = "cdc")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod lost;
mod process;
mod shop;
mod storm;
mod through;

use testkit::database::{BINLOG, Database, System};

/// One at a time: each of them takes what the machine has.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A database that can be followed.
async fn database(system: System) -> Database {
    let arguments: &[&str] = match system {
        System::Postgres => {
            &["-cwal_level=logical", "-cmax_slot_wal_keep_size=4GB", "-cmax_connections=200"]
        }
        System::MariaDb => &BINLOG,
    };
    system.start(arguments).await
}
