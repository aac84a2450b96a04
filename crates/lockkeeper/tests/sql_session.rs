//! `postgres:` and `mysql:` with `mode=session` do what every backend must do, as far as they can.
#![cfg(all(feature = "mysql", feature = "postgres"))]

mod postgres {
    use testkit::database::{DatabaseHarness, System};

    testkit::conformance!(across_processes, DatabaseHarness::sessions(System::Postgres).await);
}

mod mariadb {
    use testkit::database::{DatabaseHarness, System};

    testkit::conformance!(across_processes, DatabaseHarness::sessions(System::MariaDb).await);
}
