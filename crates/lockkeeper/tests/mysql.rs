//! `mysql:` does what every backend must do, on MariaDB.
#![cfg(feature = "mysql")]

use testkit::database::{DatabaseHarness, System};

testkit::conformance!(across_processes, DatabaseHarness::start(System::MariaDb).await);
