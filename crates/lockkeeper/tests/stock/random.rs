//! A stock answers as a counter does.

use lockkeeper::Locks;
use lockkeeper::backend::Write;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Take(u64),
    Restock(u64),
    First(u64),
}

fn steps() -> impl Strategy<Value = Vec<(Step, bool)>> {
    let step = prop_oneof![
        4 => (0_u64..40).prop_map(Step::Take),
        2 => (0_u64..60).prop_map(Step::Restock),
        1 => (1_u64..60).prop_map(Step::First),
    ];
    prop::collection::vec((step, any::<bool>()), 1..60)
}

/// Two clients that do not know of each other; one process at a time, so the answers are certain.
async fn compare(locks: [Locks; 2], segments: usize, steps: Vec<(Step, bool)>) {
    let [one, two] = locks.map(|locks| locks.stock("s", segments));
    let (mut count, mut ever) = (0, false);
    for (step, second) in steps {
        let stock = if second { &two } else { &one };
        match step {
            Step::Take(portion) => {
                let enough = portion <= count;
                assert_eq!(stock.take(portion).await.unwrap(), enough, "{portion} of {count}");
                count -= if enough { portion } else { 0 };
            }
            Step::Restock(portion) => {
                stock.restock(portion).await.unwrap();
                (count, ever) = (count + portion, ever || portion > 0);
            }
            Step::First(portion) => {
                assert_eq!(stock.restock_first(portion).await.unwrap(), !ever);
                count += if ever { 0 } else { portion };
                ever = true;
            }
        }
        assert_eq!(stock.remaining().await.unwrap(), count);
    }
}

/// What stocks rely on: all are written, or none.
async fn cells_are_written_together(locks: &Locks) {
    let (cells, name) = (locks.backend().cells().unwrap(), "cells".parse().unwrap());
    let write = |cell: usize, version: u64| {
        let value = format!("{cell} in {version}").into_bytes();
        Write { cell, version, value }
    };
    let swap = async |writes: &[Write]| cells.swap(&name, writes).await.unwrap();
    let versions = async || {
        let read = cells.read(&name, 3).await.unwrap();
        assert_eq!(cells.read_at_once(&name, 3).await.unwrap(), read);
        for (cell, read) in read.iter().enumerate() {
            let last = read.version.checked_sub(1);
            let value = last.map_or_else(Vec::new, |last| write(cell, last).value);
            assert_eq!(read.value, value, "cell {cell}");
        }
        read.iter().map(|cell| cell.version).collect::<Vec<_>>()
    };
    assert_eq!(versions().await, [0, 0, 0]);
    assert!(swap(&[write(1, 0)]).await);
    assert!(!swap(&[write(0, 0), write(1, 0)]).await, "one is not new");
    assert_eq!(versions().await, [0, 1, 0]);
    assert!(swap(&[write(0, 0), write(1, 1)]).await, "one new, one not");
    assert!(!swap(&[write(0, 1), write(1, 1)]).await);
    assert!(!swap(&[write(0, 2), write(1, 2)]).await, "from the future");
    assert!(!swap(&[write(1, 2), write(2, 5)]).await, "never there");
    assert_eq!(versions().await, [1, 2, 0]);
    assert!(swap(&[write(0, 1), write(1, 2), write(2, 0)]).await);
    assert_eq!(versions().await, [2, 3, 1]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory(segments in 1_usize..12, steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let locks = Locks::memory();
            cells_are_written_together(&locks).await;
            let other = Locks::new(std::sync::Arc::clone(locks.backend()));
            compare([locks, other], segments, steps).await;
        });
    }
}

/// The same elsewhere, with fewer cases.
macro_rules! on_a_server {
    ($name:ident, $feature:literal, $setup:expr) => {
        #[cfg(feature = $feature)]
        on_a_server!($name, $setup);
    };
    ($name:ident, $setup:expr) => {
        #[test]
        fn $name() {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let (_server, url) = runtime.block_on($setup);
            let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
                cases: 12,
                failure_persistence: None,
                ..ProptestConfig::default()
            });
            let number = std::sync::atomic::AtomicU32::new(0);
            let cases = (1_usize..12, steps());
            let outcome = runner.run(&cases, |(segments, steps)| {
                let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let url: String = url.replace("CASE", &format!("random-{number}"));
                runtime.block_on(async {
                    let connect = async || Locks::connect(&url).await.unwrap();
                    cells_are_written_together(&connect().await).await;
                    compare([connect().await, connect().await], segments, steps).await;
                });
                Ok(())
            });
            outcome.unwrap();
        }
    };
}

on_a_server!(file, async {
    let dir = tempfile::TempDir::new().unwrap();
    let url = format!("file:{}/CASE", dir.path().display());
    (dir, url)
});
on_a_server!(redis, "redis", async {
    let server = testkit::server::redis(&[]).await;
    let url = format!("redis://{}?prefix=CASE:", server.address());
    (server, url)
});
on_a_server!(etcd, "etcd", async {
    let server = testkit::server::etcd(&[]).await;
    let url = format!("etcd://{}?prefix=CASE/", server.address());
    (server, url)
});
on_a_server!(zookeeper, "zookeeper", async {
    let server = testkit::zookeeper::shared().await;
    let url = format!("zookeeper://{}/CASE", server.address());
    (server, url)
});
on_a_server!(postgres, "postgres", async {
    let system = testkit::database::System::Postgres;
    crate::database::url(system, "CASE").await
});
on_a_server!(mysql, "mysql", async {
    crate::database::url(testkit::database::System::MariaDb, "CASE").await
});
on_a_server!(postgres_with_sessions, "postgres", async {
    let system = testkit::database::System::Postgres;
    let (server, url) = crate::database::url(system, "CASE").await;
    (server, format!("{url}s&mode=session"))
});
on_a_server!(pgbouncer, "postgres", async {
    let harness = testkit::database::DatabaseHarness::pooled().await;
    let url = testkit::conformance::Harness::url(&harness).unwrap();
    (harness, url.replace("prefix=", "prefix=pooled-CASE-"))
});
on_a_server!(redis_cluster, "redis", async {
    let servers = testkit::nodes::Cluster::shared().await;
    let url = format!("{}?prefix=CASE:", servers.url());
    (servers, url)
});
