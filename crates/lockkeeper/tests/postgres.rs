//! `postgres:` does what every backend must do.
#![cfg(feature = "postgres")]

use testkit::database::{DatabaseHarness, System};

testkit::conformance!(across_processes, DatabaseHarness::start(System::Postgres).await);
