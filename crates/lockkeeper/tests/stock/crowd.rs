//! Many processes take from one stock.

use std::path::Path;
use std::time::Duration;

use lockkeeper::Locks;
use tempfile::TempDir;
use testkit::random::Random;
use testkit::taker::Taker;
use testkit::wait::eventually;

/// How long a crowd may take on a machine that has other things to do.
const LONG: Duration = Duration::from_secs(300);

/// What one process wrote down: what it has for certain, and what it was taking or putting back when it
/// ended.
fn account(file: &Path) -> (u64, Option<u64>) {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let (mut has, mut asks) = (0, None);
    // A line that is not whole was not written.
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let (word, portion) = line.split_once(' ').unwrap();
        let portion: u64 = portion.parse().unwrap();
        match word {
            "asks" => asks = Some(portion),
            "took" => (has, asks) = (has + portion, None),
            "none" => asks = None,
            "back" => (has, asks) = (has - portion, Some(portion)),
            "gave" => asks = None,
            other => panic!("{other}"),
        }
    }
    (has, asks)
}

/// 32 processes take 200 in random portions from 10 segments: all of it, and not one more.
async fn takes_all(url: &str) {
    let (dir, locks) = (TempDir::new().unwrap(), Locks::connect(url).await.unwrap());
    let stock = locks.stock("tickets", 10);
    stock.restock(200).await.unwrap();
    assert_eq!(stock.segments().await.unwrap(), [20; 10]);
    let mut takers: Vec<_> = (0..32).map(|_| Taker::start(url, None)).collect();
    for taker in &mut takers {
        assert_eq!(taker.answer_within(LONG).await, "ok ready");
    }
    let file = |at: usize| dir.path().join(at.to_string());
    for (at, taker) in takers.iter_mut().enumerate() {
        taker.send(&format!("drain tickets 10 7 {}", file(at).display()));
    }
    let mut sum = 0;
    for (at, taker) in takers.iter_mut().enumerate() {
        let answer = taker.answer_within(LONG).await;
        let took = answer.strip_prefix("ok ").and_then(|sum| sum.parse::<u64>().ok());
        let took = took.unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(account(&file(at)), (took, None));
        sum += took;
    }
    assert_eq!(sum, 200, "sold");
    assert_eq!(stock.segments().await.unwrap(), [0; 10], "left behind");
}

/// Processes take more than a segment has and put it back, all the time, and some of them are killed, and
/// some are stopped and go on later.
async fn survives(url: &str) {
    const STOCK: u64 = 200;
    let (dir, locks) = (TempDir::new().unwrap(), Locks::connect(url).await.unwrap());
    let stock = locks.stock("tickets", 10);
    stock.restock(STOCK).await.unwrap();
    let mut takers: Vec<_> = (0..12).map(|_| Taker::start(url, None)).collect();
    for taker in &mut takers {
        assert_eq!(taker.answer_within(LONG).await, "ok ready");
    }
    let file = |at: usize| dir.path().join(at.to_string());
    for (at, taker) in takers.iter_mut().enumerate() {
        taker.send(&format!("churn tickets 10 40 150 {}", file(at).display()));
    }
    let begun = |at: usize| !std::fs::read_to_string(file(at)).unwrap_or_default().is_empty();
    eventually("all are at it", async || (0..12).all(begun)).await;
    let mut random = Random::seeded();
    for at in 0..4 {
        tokio::time::sleep(random.duration(Duration::from_millis(50))).await;
        takers[at].kill();
        tokio::time::sleep(random.duration(Duration::from_millis(50))).await;
        takers[4 + at].stop();
    }
    // The others do not need them.
    for taker in &mut takers[8..] {
        let answer = taker.answer_within(LONG).await;
        assert!(answer.starts_with("ok "), "{answer}");
    }
    assert!(stock.remaining().await.unwrap() <= STOCK, "there is more than there was");
    for taker in &mut takers[4..8] {
        taker.go_on();
        let answer = taker.answer_within(LONG).await;
        assert!(answer.starts_with("ok "), "{answer}");
    }
    // Who was not killed has put everything back, unless a server too slow left that in doubt.
    let accounts: Vec<_> = (0..12).map(|at| account(&file(at))).collect();
    assert!(accounts[4..].iter().all(|(has, _)| *has == 0), "{accounts:?}");
    let had: u64 = accounts.iter().map(|(had, _)| had).sum();
    let asked: Vec<u64> = accounts.iter().filter_map(|(_, asks)| *asks).collect();
    let left = stock.segments().await.unwrap();
    eprintln!("{left:?} are left; the killed had {had}, and in doubt are {asked:?}");
    // Of each all was done that it was asking for, or nothing.
    let missing = STOCK.checked_sub(left.iter().sum::<u64>() + had).expect("oversold");
    let mut sums = (0..1_u32 << asked.len()).map(|some| {
        let part = |(at, portion): (usize, &u64)| if some >> at & 1 == 1 { *portion } else { 0 };
        asked.iter().enumerate().map(part).sum::<u64>()
    });
    assert!(sums.any(|sum| sum == missing), "{missing} are missing, and not some of {asked:?}");
    // What is left can be had, to the last one.
    assert!(stock.take(left.iter().sum()).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file() {
    let dir = TempDir::new().unwrap();
    takes_all(&format!("file:{}", dir.path().display())).await;
}

/// There is one process, and tasks instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory() {
    let locks = Locks::memory();
    locks.stock("tickets", 10).restock(200).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    let mut random = Random::seeded();
    for _ in 0..32 {
        let (stock, mut random) = (locks.stock("tickets", 10), random.fork());
        tasks.spawn(async move {
            let (mut bound, mut sum) = (7, 0);
            while bound > 0 {
                let portion = 1 + random.below(bound);
                match stock.take(portion).await.unwrap() {
                    true => sum += portion,
                    false => bound = portion - 1,
                }
            }
            sum
        });
    }
    assert_eq!(tasks.join_all().await.iter().sum::<u64>(), 200);
    assert_eq!(locks.stock("tickets", 10).segments().await.unwrap(), [0; 10]);
}

#[cfg(feature = "redis")]
mod redis {
    use testkit::server;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn all() {
        let server = server::redis(&[]).await;
        super::takes_all(&format!("redis://{}", server.address())).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn some_are_killed_and_some_are_stopped() {
        let server = server::redis(&[]).await;
        super::survives(&format!("redis://{}", server.address())).await;
    }
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd() {
    let server = testkit::server::etcd(&[]).await;
    takes_all(&format!("etcd://{}", server.address())).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper() {
    let server = testkit::zookeeper::shared().await;
    takes_all(&format!("zookeeper://{}/crowd", server.address())).await;
}

#[cfg(feature = "postgres")]
mod postgres {
    use testkit::database::System;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn all() {
        let (_server, url) = crate::database::url(System::Postgres, "crowd").await;
        super::takes_all(&url).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn some_are_killed_and_some_are_stopped() {
        let (_server, url) = crate::database::url(System::Postgres, "killed").await;
        super::survives(&url).await;
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use testkit::database::System;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn all() {
        let (_server, url) = crate::database::url(System::MariaDb, "crowd").await;
        super::takes_all(&url).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn some_are_killed_and_some_are_stopped() {
        let (_server, url) = crate::database::url(System::MariaDb, "killed").await;
        super::survives(&url).await;
    }
}
