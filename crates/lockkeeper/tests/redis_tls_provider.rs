//! A program that has chosen its own cryptography keeps it. The choice is made once for a process, so
//! this test is alone in its own.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use lockkeeper::Locks;
use rustls::crypto::{CryptoProvider, ring};
use testkit::authority::Authority;
use testkit::server;

#[tokio::test]
async fn the_choice_of_the_program_is_kept() {
    let suites = vec![ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256];
    let chosen = CryptoProvider { cipher_suites: suites, ..ring::default_provider() };
    chosen.install_default().unwrap();
    let before = Arc::clone(CryptoProvider::get_default().unwrap());
    let authority = Authority::new("ca");
    let server = server::redis_with_tls(&authority, "127.0.0.1", false).await;
    let url = format!("rediss://{}?ca={}", server.address(), authority.ca().display());
    let locks = Locks::connect(&url).await.unwrap();
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    assert!(Arc::ptr_eq(&before, CryptoProvider::get_default().unwrap()));
}
