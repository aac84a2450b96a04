//! `rediss:` does the same as `redis:`, and says what is wrong when it cannot.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Display;
use std::fs;
use std::time::Duration;

use lockkeeper::{Cause, Locks, Name};
use testkit::authority::{Authority, trusting};
use testkit::greeting::{PASSWORD, hand_over, misconfigured, unavailable};
use testkit::server::{self, Server};
use testkit::wait::{eventually, soon};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

const HOST: &str = "127.0.0.1";

fn url(scheme: &str, address: impl Display, query: &str) -> String {
    format!("{scheme}://default:{PASSWORD}@{address}{query}")
}

/// A server, and a URL that works.
async fn start(authority: &Authority, clients: bool) -> (Server, String) {
    let server = server::redis_with_tls(authority, HOST, clients).await;
    let url = url("rediss", server.address(), &trusting(authority));
    (server, url)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_lock_renew_and_wake_each_other() {
    let authority = Authority::new("ca");
    let (_server, url) = start(&authority, false).await;
    let (one, two) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    hand_over(&one, &two).await;
    let held = one.ttl(Duration::from_millis(600)).mutex("x").lock().await.unwrap();
    let first = held.expires_at().unwrap();
    eventually("renewed", async || held.expires_at().unwrap() > first).await;
    held.release().await.unwrap();
    // Not renewed: only a message can tell.
    let held = one.lease(Duration::from_secs(600)).mutex("x").lock().await.unwrap();
    two.admin().evict(&name("x"), "because").await.unwrap();
    assert_eq!(soon("told", held.lost()).await, Cause::Evicted("because".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_connections_come_back_after_a_restart() {
    let authority = Authority::new("ca");
    let (mut server, url) = start(&authority, false).await;
    let (one, two) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    hand_over(&one, &two).await;
    server.restart().await;
    for locks in [&one, &two] {
        let guard = soon("works on", locks.mutex("x").lock()).await.unwrap();
        guard.release().await.unwrap();
        // Told by a message, so the other connection is back as well.
        let guard = locks.lease(Duration::from_secs(600)).mutex("x").lock().await.unwrap();
        let evict = async || {
            locks.admin().evict(&name("x"), "because").await.unwrap();
            guard.is_lost()
        };
        eventually("told", evict).await;
    }
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
    let (server, _) = start(&authority, false).await;
    unavailable(&url("rediss", server.address(), ""), "name its CA by ca=").await;
    // The second one is a CA that was made again: the same name and another key.
    for another in [Authority::new("another"), Authority::new("ca")] {
        let url = url("rediss", server.address(), &trusting(&another));
        unavailable(&url, "not signed by a CA that we trust").await;
    }
    let server = server::redis_with_tls(&authority, "elsewhere.test", false).await;
    unavailable(&url("rediss", server.address(), &trusting(&authority)), "another host name").await;
    let port = server.address().port();
    let by_name = url("rediss", format!("localhost:{port}"), &trusting(&authority));
    unavailable(&by_name, "another host name").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_name_is_as_good_as_an_address() {
    let authority = Authority::new("ca");
    let server = server::redis_with_tls(&authority, "localhost", false).await;
    let port = server.address().port();
    let url = url("rediss", format!("localhost:{port}"), &trusting(&authority));
    let locks = Locks::connect(&url).await.unwrap();
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    assert!(!format!("{locks:?}").contains(PASSWORD), "{locks:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_on_one_side_only_is_found_out() {
    let authority = Authority::new("ca");
    let plain = server::redis(&[]).await;
    let with_tls = url("rediss", plain.address(), &trusting(&authority));
    let (server, _) = start(&authority, false).await;
    let without_tls = url("redis", server.address(), "");
    unavailable(&with_tls, "speaks no TLS on this port").await;
    unavailable(&without_tls, "write rediss://").await;
}

/// Something that says the same to everybody, and listens to nobody.
async fn parrot(words: &'static [u8]) -> std::net::SocketAddr {
    let listener = TcpListener::bind((HOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut heard = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(words).await.unwrap();
            heard.push(stream);
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_redis_server_is_given_up() {
    let silent = parrot(b"").await;
    unavailable(&url("rediss", silent, ""), "speaks no TLS on this port").await;
    let plain = parrot(b"-ERR unknown command\r\n").await;
    unavailable(&url("rediss", plain, ""), "speaks no TLS on this port").await;
    // An alert: "protocol version".
    let with_tls = parrot(b"\x15\x03\x03\x00\x02\x02\x46").await;
    unavailable(&url("redis", with_tls, ""), "write rediss://").await;
    unavailable(&url("rediss", with_tls, ""), "refuses us").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_cannot_be_used_are_named() {
    let authority = Authority::new("ca");
    let (_server, url) = start(&authority, false).await;
    let plain = url.split('?').next().unwrap();
    let (cert, key) = authority.sign("client");
    let (_, other_key) = authority.sign("client");
    let (cert, key, other_key) = (cert.display(), key.display(), other_key.display());
    let file = |name: &str, text: &str| {
        let path = authority.dir().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let empty = file("empty", "");
    let broken = file("broken", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n");
    let no_der = file("no_der", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let cases = [
        ("?ca=/nowhere/ca.pem".to_owned(), "ca=/nowhere/ca.pem cannot be read"),
        (format!("?ca={}", authority.dir().display()), "cannot be read"),
        (format!("?ca={empty}"), "must be a PEM file with certificates"),
        (format!("?ca={key}"), "must be a PEM file with certificates"),
        (format!("?ca={broken}"), "must be a PEM file with certificates"),
        (format!("?ca={no_der}"), "must be a PEM file with a CA's certificate"),
        (format!("?cert=/nowhere/cert.pem&key={key}"), "cert=/nowhere/cert.pem cannot be read"),
        (format!("?cert={cert}&key=/nowhere/key.pem"), "key=/nowhere/key.pem cannot be read"),
        (format!("?cert={empty}&key={key}"), "must be a PEM file with certificates"),
        (format!("?cert={cert}&key={cert}"), "must be a PEM file with a private key"),
        (format!("?cert={cert}&key={other_key}"), "cannot be used together"),
        (format!("?cert={cert}"), "cert= and key= belong together"),
        (format!("?key={key}"), "cert= and key= belong together"),
    ];
    for (query, hint) in cases {
        misconfigured(&format!("{plain}{query}"), hint).await;
    }
    misconfigured(&url.replace("rediss:", "redis:"), "for TLS write rediss://").await;
    misconfigured(&url.replace('?', "#insecure?"), "means nothing here").await;
}
