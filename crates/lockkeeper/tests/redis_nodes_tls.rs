//! Sentinels, clusters and the nodes of a RedLock by TLS: every connection, commands and messages alike.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use lockkeeper::{Locks, Name, Url};
use testkit::authority::Authority;
use testkit::nodes::tls;
use testkit::server;
use testkit::wait::{eventually, soon};

/// Two clients lock and wake each other, and who does not trust the servers is refused.
async fn lock_and_wake(url: &str, authority: &Authority) {
    let trusting = format!("{url}?ca={}", authority.ca().display());
    let [one, two] =
        [Locks::connect(&trusting).await.unwrap(), Locks::connect(&trusting).await.unwrap()];
    let name: Name = "x".parse().unwrap();
    let kinds: &[bool] = if url.starts_with("redlocks") { &[false] } else { &[false, true] };
    for fair in kinds.iter().copied() {
        let held = one.mutex("x").lock().await.unwrap();
        let mutex = if fair { two.mutex("x").fair() } else { two.mutex("x") };
        let waiting = tokio::spawn(async move { mutex.lock().await });
        let queued = async || one.admin().show(&name).await.unwrap().waiters.len() == 1;
        eventually("in line", queued).await;
        held.release().await.unwrap();
        soon("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
    }
    Locks::connect(url).await.map(|_| ()).expect_err("no reason to trust it");
    let plain = url.replacen("rediss", "redis", 1).replacen("redlocks", "redlock", 1);
    soon("an error", Locks::connect(&plain)).await.map(|_| ()).expect_err("it wants TLS");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_their_servers_by_tls() {
    let authority = Authority::new("ours");
    let redis = tls::sentinels(&authority).await;
    lock_and_wake(&redis.url, &authority).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_of_a_cluster_by_tls() {
    let authority = Authority::new("ours");
    let cluster = tls::cluster(&authority).await;
    lock_and_wake(&cluster.url, &authority).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_of_a_redlock_by_tls() {
    let authority = Authority::new("ours");
    let starting = (0..3).map(|_| server::redis_with_tls(&authority, "127.0.0.1", false));
    let servers = futures_util::future::join_all(starting).await;
    let hosts: Vec<String> = servers.iter().map(|server| server.address().to_string()).collect();
    let url = format!("redlocks://{}", hosts.join(","));
    let trusting: Url = format!("{url}?ca={}", authority.ca().display()).parse().unwrap();
    trusting.init().await.unwrap();
    lock_and_wake(&url, &authority).await;
}
