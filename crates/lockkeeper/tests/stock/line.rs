//! A bad line between us and the server: answers that are lost, connections that break, and requests that
//! arrive when nobody expects them any more.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper::{Error, Locks};
use testkit::proxy::Proxy;
use testkit::random::Random;
use testkit::wait::{CASE, bounded, within};

const STOCK: u64 = 100;

/// Tasks take and put back while the line fails in every way. Nothing is lost, and nothing is there twice.
async fn holds(server: SocketAddr, url: impl Fn(SocketAddr) -> String) {
    let proxy = Proxy::to(server).await;
    let direct = Locks::connect(&url(server)).await.unwrap().stock("s", 5);
    direct.restock(STOCK).await.unwrap();
    let stock = Locks::connect(&url(proxy.address())).await.unwrap().stock("s", 5);
    let (mut random, over) = (Random::seeded(), Arc::new(AtomicBool::new(false)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (stock, over, mut random) = (stock.clone(), Arc::clone(&over), random.fork());
        tasks.spawn(async move {
            let mut times = 0;
            while !over.load(Ordering::Relaxed) {
                let portion = 1 + random.below(50);
                // Unavailable: then nothing was changed, which the sum shows.
                let taken = match stock.take(portion).await {
                    Err(Error::Unavailable { .. }) => false,
                    taken => taken.unwrap(),
                };
                if !taken {
                    continue;
                }
                times += 1;
                while let Err(error) = stock.restock(portion).await {
                    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
                }
            }
            times
        });
    }
    for round in 0..9 {
        tokio::time::sleep(random.duration(Duration::from_millis(100))).await;
        match round % 3 {
            0 => {
                proxy.lose_next_reply();
                within(CASE, "a reply is lost", async || proxy.lost_a_reply()).await;
            }
            1 => proxy.drop_connections(),
            _ => {
                // Long enough for the client to give the answer up; then what it sent arrives after all.
                proxy.silence();
                tokio::time::sleep(Duration::from_millis(2500)).await;
                proxy.pass();
            }
        }
    }
    over.store(true, Ordering::Relaxed);
    let times: u64 = tasks.join_all().await.iter().sum();
    assert!(times > 0);
    assert_eq!(direct.remaining().await.unwrap(), STOCK, "after {times} times");
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis() {
    let server = testkit::server::redis(&[]).await;
    let case = holds(server.address(), |address| format!("redis://{address}"));
    bounded("a bad line", case).await;
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd() {
    let server = testkit::server::etcd(&[]).await;
    let case = holds(server.address(), |address| format!("etcd://{address}"));
    bounded("a bad line", case).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper() {
    let server = testkit::zookeeper::shared().await;
    let case = holds(server.address(), |address| format!("zookeeper://{address}/line"));
    bounded("a bad line", case).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    let (database, url) = crate::database::url(testkit::database::System::Postgres, "line").await;
    let here = database.server.address();
    let case = holds(here, |there| url.replace(&here.to_string(), &there.to_string()));
    bounded("a bad line", case).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql() {
    let (database, url) = crate::database::url(testkit::database::System::MariaDb, "line").await;
    let here = database.server.address();
    let case = holds(here, |there| url.replace(&here.to_string(), &there.to_string()));
    bounded("a bad line", case).await;
}

/// A request that was given up arrives after it was made again.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_is_refused() {
    let server = testkit::server::redis(&[]).await;
    let proxy = Proxy::to(server.address()).await;
    let url = |address| format!("redis://{address}");
    let direct = Locks::connect(&url(server.address())).await.unwrap().stock("s", 2);
    let stock = Locks::connect(&url(proxy.address())).await.unwrap().stock("s", 2);
    direct.restock(20).await.unwrap();
    let client = redis::Client::open(url(server.address())).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let scripts = async || {
        let mut info = redis::cmd("INFO");
        let info: String =
            info.arg("commandstats").query_async(&mut connection.clone()).await.unwrap();
        let calls = info.split("cmdstat_evalsha:calls=").nth(1).unwrap().split(',').next();
        calls.unwrap().parse::<u64>().unwrap()
    };
    // From one, and from both.
    for (portion, left) in [(3, 17), (12, 5)] {
        assert_eq!(stock.remaining().await.unwrap(), left + portion);
        proxy.silence();
        assert!(stock.take(portion).await.unwrap());
        assert_eq!(direct.remaining().await.unwrap(), left);
        let before = scripts().await;
        proxy.pass();
        within(CASE, "the late request is there", async || scripts().await > before).await;
        assert_eq!(direct.remaining().await.unwrap(), left);
    }
}
