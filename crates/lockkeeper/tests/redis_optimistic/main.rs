//! Optimistic transactions on real servers: every way in which they can end.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod ends;
mod faults;
mod nodes;
mod random;

use lockkeeper::Locks;
use testkit::proxy::Proxy;
use testkit::resp::Raw;
use testkit::server::{self, Server};

/// A server, a client of it, and somebody who looks and meddles.
async fn start() -> (Server, Locks, Raw) {
    let server = server::redis(&[]).await;
    let locks = connect(&server).await;
    let raw = Raw::connect(server.address()).await;
    (server, locks, raw)
}

async fn connect(server: &Server) -> Locks {
    Locks::connect(&format!("redis://{}", server.address())).await.unwrap()
}

/// The same with a client behind a proxy.
async fn start_behind() -> (Server, Locks, Raw, Proxy) {
    let (server, _, raw) = start().await;
    let proxy = Proxy::to(server.address()).await;
    let locks = Locks::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    (server, locks, raw, proxy)
}
