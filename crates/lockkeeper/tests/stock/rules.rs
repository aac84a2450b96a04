//! What can be asked of a stock, and what cannot.

use lockkeeper::{Error, Locks};

#[tokio::test]
async fn all_or_nothing_over_several_segments() {
    let stock = Locks::memory().stock("s", 4);
    assert!(!stock.take(1).await.unwrap(), "nothing was ever there");
    stock.restock(8).await.unwrap();
    assert!(!stock.take(9).await.unwrap());
    assert_eq!(stock.segments().await.unwrap(), [2; 4]);
    assert!(stock.take(7).await.unwrap());
    assert_eq!(stock.remaining().await.unwrap(), 1);
    assert!(!stock.take(2).await.unwrap());
    assert!(stock.take(1).await.unwrap());
    assert!(stock.take(0).await.unwrap());
    stock.restock(0).await.unwrap();
    assert_eq!(stock.remaining().await.unwrap(), 0);
}

#[tokio::test]
async fn only_the_first_restocks_first() {
    let locks = Locks::memory();
    assert!(locks.stock("s", 4).restock_first(10).await.unwrap());
    assert!(locks.stock("s", 4).take(10).await.unwrap());
    assert!(!locks.stock("s", 4).restock_first(10).await.unwrap(), "sold out is not new");
    assert_eq!(locks.stock("s", 4).remaining().await.unwrap(), 0);
}

#[tokio::test]
async fn who_disagrees_about_the_number_of_segments_is_told() {
    let locks = Locks::memory();
    locks.stock("s", 4).restock(10).await.unwrap();
    for other in [1, 3, 5, 100] {
        let error = locks.stock("s", other).take(1).await.unwrap_err();
        assert!(
            matches!(&error, Error::Config(text) if text.contains("has 4 segments")),
            "{error}"
        );
    }
    for impossible in [0, 101] {
        let error = locks.stock("t", impossible).remaining().await.unwrap_err();
        assert!(matches!(error, Error::Config(_)), "{error}");
    }
}

#[tokio::test]
async fn there_is_an_end_to_numbers() {
    let stock = Locks::memory().stock("s", 3);
    stock.restock(u64::MAX).await.unwrap();
    assert!(matches!(stock.restock(1).await, Err(Error::Config(_))));
    assert!(stock.take(u64::MAX).await.unwrap());
    assert_eq!(stock.segments().await.unwrap(), [0; 3]);
}

#[tokio::test]
async fn names_are_checked_and_a_shut_store_refuses() {
    let locks = Locks::memory();
    assert!(matches!(locks.stock("a//b", 3).take(1).await, Err(Error::InvalidName { .. })));
    locks.shutdown(std::time::Duration::ZERO).await;
    assert!(matches!(locks.stock("s", 3).take(1).await, Err(Error::ShutDown)));
}

#[test]
fn without_a_runtime_of_ones_own() {
    let locks = lockkeeper::blocking::Locks::connect("memory:").unwrap();
    let stock = locks.stock("s", 4);
    assert!(stock.restock_first(10).unwrap());
    assert!(stock.take(4).unwrap());
    stock.restock(1).unwrap();
    assert_eq!(stock.remaining().unwrap(), 7);
    locks.striped("t", 4).lock("key").unwrap().release().unwrap();
}

/// Nobody is told that there is something where there is not.
#[cfg(feature = "redis")]
#[tokio::test]
async fn where_it_cannot_be_it_is_refused() {
    let servers = testkit::redlock::Nodes::start(3).await;
    let nodes: Vec<_> = servers.servers.iter().map(|server| server.address().to_string()).collect();
    let redlock = format!("redlock://{}", nodes.join(","));
    Locks::init(&redlock).await.unwrap();
    let replicas = format!("redis://{}?replicas=1", nodes[0]);
    for url in [redlock, replicas] {
        let stock = Locks::connect(&url).await.unwrap().stock("s", 4);
        let error = stock.take(1).await.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{url}: {error}");
    }
}

/// It counts with 32 bits, and -1 means "whatever it is".
#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn zookeeper_is_not_asked_beyond_the_end_of_its_numbers() {
    let server = testkit::zookeeper::shared().await;
    let url = format!("zookeeper://{}/numbers", server.address());
    let locks = Locks::connect(&url).await.unwrap();
    let (cells, name) = (locks.backend().cells().unwrap(), "s".parse().unwrap());
    cells.read(&name, 1).await.unwrap();
    for version in [i32::MAX as u64, 1 << 31, u64::MAX] {
        let write = lockkeeper::backend::Write { cell: 0, version, value: b"7".to_vec() };
        let error = cells.swap(&name, &[write]).await.unwrap_err();
        assert!(matches!(&error, Error::Config(_)) && !cells.may_pass(&error), "{error}");
    }
    assert_eq!(cells.read(&name, 1).await.unwrap(), [lockkeeper::backend::Cell::default()]);
}

/// Where reading what is not committed is usual, half of a step would be seen: less than there is.
#[cfg(feature = "mysql")]
#[tokio::test]
async fn what_is_not_committed_is_not_seen() {
    use sqlx::Connection;

    let usual = "--transaction-isolation=READ-UNCOMMITTED";
    let database = testkit::database::System::MariaDb.start(&[usual]).await;
    let url = database.url("here");
    Locks::init(&url).await.unwrap();
    let stock = Locks::connect(&url).await.unwrap().stock("s", 2);
    stock.restock(20).await.unwrap();
    let mut other = sqlx::MySqlConnection::connect(&url).await.unwrap();
    let mut step = other.begin().await.unwrap();
    let half = "DELETE FROM lockkeeper_cells WHERE cell = 0";
    sqlx::raw_sql(half).execute(&mut *step).await.unwrap();
    assert_eq!(stock.remaining().await.unwrap(), 20);
    step.rollback().await.unwrap();
}

#[cfg(all(feature = "mysql", feature = "postgres"))]
mod rights {
    use lockkeeper::Locks;
    use testkit::database::System;

    testkit::on_both_databases! { few_rights_are_enough }

    async fn few_rights_are_enough(system: System) {
        let database = system.start(&[]).await;
        Locks::init(&database.url("here")).await.unwrap();
        database.let_app_in();
        let locks = Locks::connect(&database.url_of("app", "here")).await.unwrap();
        let stock = locks.stock("s", 4);
        stock.restock(20).await.unwrap();
        assert!(stock.take(3).await.unwrap());
        assert!(stock.take(12).await.unwrap());
        assert_eq!(stock.remaining().await.unwrap(), 5);
    }
}
