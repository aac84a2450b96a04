//! Stocks are never oversold and nothing of them is left behind: on every backend, by many processes, and
//! when some of them are killed or stopped in the middle.
#![allow(clippy::unwrap_used, reason = "tests")]

mod crowd;
mod faults;
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]
mod line;
mod random;
mod rules;
mod striped;

/// Not a test: what this binary does when it is started as another process.
#[test]
fn taker_main() {
    testkit::taker::main();
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod database {
    use std::sync::Arc;

    use lockkeeper::Locks;
    use testkit::database::{Database, System};

    /// A place of its own at the shared server, which lives as long as what comes with it.
    pub(crate) async fn url(system: System, prefix: &str) -> (Arc<Database>, String) {
        let database = system.shared().await;
        let url = database.url("here");
        Locks::init(&url).await.unwrap();
        (database, format!("{url}?prefix={prefix}/"))
    }
}
