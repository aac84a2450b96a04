//! `etcds:` does the same as `etcd:`, and says what is wrong when it cannot.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use lockkeeper::{Cause, Locks};
use testkit::authority::{Authority, trusting};
use testkit::greeting::{PASSWORD, hand_over, misconfigured, unavailable};
use testkit::server::{self, Server};
use testkit::wait::{eventually, soon};

const HOST: &str = "127.0.0.1";

/// A server, and a URL that works.
async fn start(authority: &Authority, clients: bool) -> (Server, String) {
    let server = server::etcd_with_tls(authority, HOST, clients).await;
    let url = format!("etcds://{}{}", server.address(), trusting(authority));
    (server, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_lock_renew_and_wake_each_other() {
    let authority = Authority::new("ca");
    let (mut server, url) = start(&authority, false).await;
    let (one, two) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    hand_over(&one, &two).await;
    let held = one.ttl(Duration::from_secs(2)).mutex("x").lock().await.unwrap();
    let first = held.expires_at().unwrap();
    eventually("renewed", async || held.expires_at().unwrap() > first).await;
    held.release().await.unwrap();
    let held = one.lease(Duration::from_secs(600)).mutex("x").lock().await.unwrap();
    two.admin().evict(&"x".parse().unwrap(), "because").await.unwrap();
    assert_eq!(soon("told", held.lost()).await, Cause::Evicted("because".into()));
    server.restart().await;
    hand_over(&one, &two).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_wants_a_certificate_gets_ours() {
    let authority = Authority::new("ca");
    let (_server, url) = start(&authority, true).await;
    let (cert, key) = authority.sign("client");
    let with = format!("{url}&cert={}&key={}", cert.display(), key.display());
    let (one, two) = (Locks::connect(&with).await.unwrap(), Locks::connect(&with).await.unwrap());
    hand_over(&one, &two).await;
    unavailable(&url, "cert= and key=").await;
    let another = Authority::new("another");
    let (cert, key) = another.sign("client");
    let (cert, key) = (cert.display(), key.display());
    unavailable(&format!("{url}&cert={cert}&key={key}"), "cert= and key=").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_we_have_no_reason_to_trust_is_refused() {
    let authority = Authority::new("ca");
    let (server, url) = start(&authority, false).await;
    let with_password = |query: &str| format!("etcds://me:{PASSWORD}@{}{query}", server.address());
    unavailable(&with_password(""), "name its CA by ca=").await;
    // The second one is a CA that was made again: the same name and another key.
    for another in [Authority::new("another"), Authority::new("ca")] {
        unavailable(&with_password(&trusting(&another)), "not signed by a CA that we trust").await;
    }
    // One good member among bad ones is enough.
    let elsewhere = server::etcd_with_tls(&authority, "elsewhere.test", false).await;
    let wrong = format!("etcds://{}{}", elsewhere.address(), trusting(&authority));
    unavailable(&wrong, "another host name").await;
    let both = url.replace("etcds://", &format!("etcds://{},", elsewhere.address()));
    Locks::connect(&both).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_on_one_side_only_is_found_out() {
    let authority = Authority::new("ca");
    let plain = server::etcd(&[]).await;
    let (server, url) = start(&authority, false).await;
    let with_tls = format!("etcds://{}{}", plain.address(), trusting(&authority));
    unavailable(&with_tls, "TLS on this port").await;
    unavailable(&format!("etcd://{}", server.address()), "write etcds://").await;
    misconfigured(&url.replace("etcds:", "etcd:"), "for TLS write etcds://").await;
}
