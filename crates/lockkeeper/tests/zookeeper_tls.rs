//! `zookeepers:` does the same as `zookeeper:`, and says what is wrong when it cannot.
#![cfg(feature = "zookeeper-tls")]
#![allow(clippy::unwrap_used, reason = "tests")]

use lockkeeper::Locks;
use testkit::authority::{Authority, trusting};
use testkit::greeting::{PASSWORD, hand_over, misconfigured, unavailable};
use testkit::zookeeper;

const HOST: &str = "127.0.0.1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_lock_and_wake_each_other() {
    let authority = Authority::new("ca");
    let (mut server, secure) = zookeeper::with_tls(&authority, HOST, false).await;
    let url = format!("zookeepers://{}/app{}", secure.address, trusting(&authority));
    let (one, two) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    hand_over(&one, &two).await;
    server.restart().await;
    hand_over(&one, &two).await;
    // Those who come without TLS find the same locks.
    let plain = Locks::connect(&format!("zookeeper://{}/app", server.address())).await.unwrap();
    hand_over(&one, &plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_wants_a_certificate_gets_ours() {
    let authority = Authority::new("ca");
    let (_server, secure) = zookeeper::with_tls(&authority, HOST, true).await;
    let url = format!("zookeepers://{}{}", secure.address, trusting(&authority));
    let (cert, key) = authority.sign("client");
    let with = format!("{url}&cert={}&key={}", cert.display(), key.display());
    let (one, two) = (Locks::connect(&with).await.unwrap(), Locks::connect(&with).await.unwrap());
    hand_over(&one, &two).await;
    unavailable(&url, "cert= and key=").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_we_have_no_reason_to_trust_is_refused() {
    let (authority, another) = (Authority::new("ca"), Authority::new("ca"));
    let (server, secure) = zookeeper::with_tls(&authority, "elsewhere.test", false).await;
    let url = |authority: &Authority| {
        format!("zookeepers://me:{PASSWORD}@{}{}", secure.address, trusting(authority))
    };
    unavailable(&url(&another), "certificate").await;
    unavailable(&url(&authority), "certificate").await;
    misconfigured(&format!("zookeepers://{}", secure.address), "needs ca=").await;
    let plain = format!("zookeepers://{}{}", server.address(), trusting(&authority));
    unavailable(&plain, "certificate").await;
    unavailable(&format!("zookeeper://{}", secure.address), "zookeepers://").await;
    let bad = format!("zookeepers://{}?ca=/nowhere/ca.pem", secure.address);
    misconfigured(&bad, "ca=/nowhere/ca.pem cannot be read").await;
}
