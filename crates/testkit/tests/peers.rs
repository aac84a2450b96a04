//! The peers of `interop/` and their driver, on a real Redis: what these show, the tests between a
//! peer and Lockkeeper may take for granted.
#![cfg(feature = "interop")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::net::SocketAddr;
use std::time::Duration;

use testkit::peer::{Peer, Redisson};
use testkit::server::{Recipe, Server};
use testkit::wait::{eventually, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn redis() -> Server {
    Recipe::new("redis-server", "redis-server")
        .args(["--port", "{port}", "--dir", "{dir}", "--bind", "127.0.0.1", "--save", ""])
        .ready_when(|address| async move {
            let Ok(mut stream) = TcpStream::connect(address).await else { return false };
            let mut answer = [0; 5];
            stream.write_all(b"PING\r\n").await.is_ok()
                && stream.read_exact(&mut answer).await.is_ok()
                && &answer == b"+PONG"
        })
        .start()
        .await
}

fn url(server: &Server) -> String {
    format!("redis://{}", server.address())
}

/// What the server answers, as it is on the wire.
async fn raw(server: SocketAddr, command: &str) -> String {
    let mut stream = TcpStream::connect(server).await.unwrap();
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(command, stream.read_to_string(&mut answer)).await.unwrap();
    answer.strip_suffix("+OK\r\n").unwrap().to_owned()
}

/// Waits until so many listen on a channel: that a waiter waits can be seen.
async fn listening(server: SocketAddr, channel: &str, number: usize) {
    let end = format!(":{number}\r\n");
    let command = format!("PUBSUB NUMSUB {channel}");
    eventually(channel, || async { raw(server, &command).await.ends_with(&end) }).await;
}

/// Any two Redissons: one excludes the other, and wakes it.
async fn exclude_and_wake(server: &Server, one: Peer, other: Peer) {
    one.ask("t", "lock orders").await;
    one.ask("t", "lock orders").await;
    assert_eq!(one.ask("t", "holdCount orders").await, "2");
    assert_eq!(one.ask("u", "tryLock orders").await, "false", "another thread");
    assert_eq!(other.ask("t", "tryLock orders").await, "false", "another process");
    let error = other.refused("t", "unlock orders").await;
    assert!(error.starts_with("IllegalMonitorStateException"), "{error}");
    let waits = other.send("t", "lock orders");
    listening(server.address(), "redisson_lock__channel:{orders}", 1).await;
    one.ask("t", "unlock orders").await;
    assert_eq!(other.ask("u", "isLocked orders").await, "true");
    assert!(waits.waits(), "held once more");
    one.ask("t", "unlock orders").await;
    // The lease is 30 seconds, so it was woken, or this would take longer than we wait.
    waits.value().await;
    let owner = other.ask("t", "owner").await;
    assert!(other.version().ends_with(owner.split(':').next().unwrap()), "{}", other.version());
    assert_eq!(raw(server.address(), &format!("HGET orders {owner}")).await, "$1\r\n1\r\n");
    other.ask("t", "unlock orders").await;
    one.quit().await;
    other.quit().await;
}

#[tokio::test]
async fn redisson_excludes_and_wakes_redisson() {
    let server = redis().await;
    let (one, other) = tokio::join!(async { Peer::java(&url(&server)).await }, async {
        Peer::java(&url(&server)).await
    });
    assert!(one.version().starts_with("redisson 4."), "{}", one.version());
    exclude_and_wake(&server, one, other).await;
}

#[tokio::test]
async fn an_old_redisson_excludes_and_wakes_a_new_one() {
    let server = redis().await;
    let (one, other) = (Peer::java_old(&url(&server)).await, Peer::java(&url(&server)).await);
    assert!(one.version().starts_with("redisson 3.2"), "{}", one.version());
    exclude_and_wake(&server, one, other).await;
}

#[tokio::test]
async fn redisson_is_fair_among_peers() {
    let server = redis().await;
    let (one, other) = (Peer::java(&url(&server)).await, Peer::java(&url(&server)).await);
    one.ask("holder", "fair.lock queue").await;
    let mut waiting = Vec::new();
    for (place, peer) in [&other, &one, &other].into_iter().enumerate() {
        waiting.push((peer, place, peer.send(&place.to_string(), "fair.lock queue")));
        let queued = format!(":{}\r\n", place + 1);
        let length = "LLEN redisson_lock_queue:{queue}";
        eventually("queued", || async { raw(server.address(), length).await == queued }).await;
    }
    one.ask("holder", "fair.unlock queue").await;
    while !waiting.is_empty() {
        let (peer, place, first) = waiting.remove(0);
        first.value().await;
        assert!(waiting.iter().all(|(_, _, later)| later.waits()), "one at a time, in order");
        peer.ask(&place.to_string(), "fair.unlock queue").await;
    }
}

#[tokio::test]
async fn every_kind_of_redisson_can_be_driven() {
    let server = redis().await;
    for which in [Redisson::Current, Redisson::Old] {
        raw(server.address(), "FLUSHALL").await;
        let peer = Peer::redisson(which, &url(&server), None).await;
        for (label, command, expected) in [
            ("a", "read.lock rw", ""),
            ("b", "read.tryLock rw lease=30000", "true"),
            ("c", "write.tryLock rw", "false"),
            ("a", "read.unlock rw", ""),
            ("b", "read.unlock rw", ""),
            ("c", "write.tryLock rw wait=1000", "true"),
            ("a", "read.tryLock rw", "false"),
            ("c", "write.unlock rw", ""),
            ("a", "fenced.lock token", "1"),
            ("b", "fenced.tryLock token", "none"),
            ("a", "fenced.unlock token", ""),
            ("b", "fenced.tryLock token", "2"),
            ("a", "semaphore.trySetPermits slots n=2", "true"),
            ("a", "semaphore.acquire slots n=2", ""),
            ("b", "semaphore.tryAcquire slots", "false"),
            ("a", "semaphore.release slots", ""),
            ("b", "semaphore.tryAcquire slots", "true"),
            ("b", "semaphore.available slots", "0"),
            ("a", "latch.trySetCount gate n=1", "true"),
            ("b", "latch.await gate wait=1", "false"),
            ("a", "latch.countDown gate", ""),
            ("b", "latch.await gate", "true"),
            ("b", "latch.getCount gate", "0"),
            ("a", "multi.lock m1,m2", ""),
            ("b", "tryLock m2", "false"),
            ("a", "multi.unlock m1,m2", ""),
            ("a", "spin.lock spin", ""),
            ("b", "forceUnlock spin", "true"),
            ("a", "isHeld spin", "false"),
            ("a", "remainTtl spin", "-2"),
        ] {
            assert_eq!(peer.ask(label, command).await, expected, "[{label}] {command}");
        }
        peer.ask("a", "permit.trySetPermits seats n=1").await;
        let id = peer.ask("a", "permit.acquire seats lease=60000").await;
        assert_eq!(peer.ask("b", "permit.tryAcquire seats").await, "none");
        assert_eq!(peer.ask("b", &format!("permit.release seats id={id}")).await, "true");
        assert_eq!(peer.ask("b", "permit.available seats").await, "1");
    }
}

#[tokio::test]
async fn what_a_crashed_redisson_held_is_free_after_its_lease() {
    let server = redis().await;
    let lease = Duration::from_secs(2);
    let mut holder = Peer::redisson(Redisson::Current, &url(&server), Some(lease)).await;
    let heir = Peer::java(&url(&server)).await;
    holder.ask("t", "lock orders").await;
    let waits = heir.send("t", "lock orders");
    listening(server.address(), "redisson_lock__channel:{orders}", 1).await;
    // Longer than the lease: its watchdog is at work.
    assert_eq!(heir.ask("u", "tryLock orders wait=2500").await, "false");
    assert!(waits.waits());
    holder.crash().await;
    waits.value().await;
}

/// The three that speak `SET NX`.
#[derive(Clone, Copy, Debug)]
enum Plain {
    Python,
    Go,
    Node,
}

const PLAIN: [Plain; 3] = [Plain::Python, Plain::Go, Plain::Node];

impl Plain {
    async fn start(self, server: &Server) -> Peer {
        self.start_on(&[url(server)]).await
    }

    async fn start_on(self, urls: &[String]) -> Peer {
        match self {
            Self::Python => Peer::python(&urls[0]).await,
            Self::Go => Peer::go(urls).await,
            Self::Node => Peer::node(urls).await,
        }
    }
}

#[tokio::test]
async fn plain_peers_exclude_each_other_in_every_pair() {
    let server = redis().await;
    for holder in PLAIN {
        let one = holder.start(&server).await;
        for heir in PLAIN {
            let other = heir.start(&server).await;
            one.ask("t", "lock orders ttl=60000").await;
            let owner = one.ask("t", "owner orders").await;
            let value = format!("${}\r\n{owner}\r\n", owner.len());
            assert_eq!(raw(server.address(), "GET orders").await, value, "{holder:?}");
            assert_eq!(one.ask("u", "try orders").await, "false", "{holder:?}, another label");
            assert_eq!(other.ask("t", "try orders").await, "false", "{holder:?} and {heir:?}");
            let waits = other.send("t", "lock orders ttl=60000 delay=10");
            one.ask("t", "extend orders ttl=60000").await;
            assert!(waits.waits());
            one.ask("t", "unlock orders").await;
            waits.value().await;
            one.refused("t", "unlock orders").await;
            other.ask("t", "unlock orders").await;
        }
    }
}

#[tokio::test]
async fn what_a_killed_plain_peer_held_is_free_after_its_lease() {
    let server = redis().await;
    for kind in PLAIN {
        let mut holder = kind.start(&server).await;
        let mut heir = kind.start(&server).await;
        holder.ask("t", "lock orders ttl=1000").await;
        let waits = heir.send("t", "lock orders ttl=1000 delay=10");
        holder.kill();
        waits.value().await;
        heir.crash().await;
        let answer = raw(server.address(), "PTTL orders").await;
        let left: i64 = answer.trim_start_matches(':').trim().parse().unwrap();
        assert!(left <= 1000, "{kind:?}: {left}");
    }
}

#[tokio::test]
async fn redlock_peers_need_a_majority() {
    let mut servers = [redis().await, redis().await, redis().await];
    let urls = servers.each_ref().map(url);
    for kind in [Plain::Go, Plain::Node] {
        let one = kind.start_on(&urls).await;
        let other = kind.start_on(&urls).await;
        one.ask("t", "lock orders ttl=60000").await;
        assert_eq!(other.ask("t", "try orders").await, "false");
        servers[2].kill();
        assert_eq!(other.ask("t", "try orders").await, "false", "a majority holds");
        one.ask("t", "unlock orders").await;
        assert_eq!(other.ask("t", "try orders ttl=60000").await, "true", "a majority is up");
        servers[1].kill();
        one.refused("t", "try orders").await;
        for server in &mut servers {
            server.restart().await;
            raw(server.address(), "FLUSHALL").await;
        }
    }
}
