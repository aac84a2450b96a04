//! Lockkeeper's RedLock and those of redsync and node-redlock on the same five nodes: they exclude each
//! other, notice each other's release, and go on without a minority.
#![cfg(feature = "interop")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::time::Duration;

use testkit::peer::Peer;
use testkit::redlock::Nodes;
use testkit::register::Register;
use testkit::wait::{eventually, soon};

#[derive(Clone, Copy, Debug)]
enum Kind {
    Go,
    Node,
}

async fn start(kind: Kind, nodes: &Nodes) -> Peer {
    let urls: Vec<String> =
        nodes.servers.iter().map(|server| format!("redis://{}", server.address())).collect();
    match kind {
        Kind::Go => Peer::go(&urls).await,
        Kind::Node => Peer::node(&urls).await,
    }
}

/// One test for each of the two.
macro_rules! with_every_peer {
    ($($case:ident)+) => {$(
        mod $case {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redsync() {
                super::$case(super::Kind::Go).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn node_redlock() {
                super::$case(super::Kind::Node).await;
            }
        }
    )+};
}

with_every_peer! {
    each_excludes_the_other_and_notices_its_release
    each_goes_on_without_a_minority
    many_turns_and_never_two_at_once
}

async fn each_excludes_the_other_and_notices_its_release(kind: Kind) {
    let nodes = Nodes::start(5).await;
    let (locks, peer) = (nodes.connect().await, start(kind, &nodes).await);
    let ours = locks.mutex("x").lock().await.unwrap();
    assert_eq!(peer.ask("one", "try x ttl=60000").await, "false");
    let waiting = peer.send("one", "lock x ttl=60000 delay=10 tries=60000");
    ours.release().await.unwrap();
    waiting.value().await;
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    let mutex = locks.mutex("x");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    peer.ask("one", "extend x ttl=60000").await;
    peer.ask("one", "unlock x").await;
    let ours = soon("our turn", waiting).await.unwrap().unwrap();
    ours.release().await.unwrap();
}

async fn each_goes_on_without_a_minority(kind: Kind) {
    let mut nodes = Nodes::start(5).await;
    let (locks, peer) = (nodes.connect().await, start(kind, &nodes).await);
    nodes.servers[0].kill();
    nodes.servers[3].kill();
    let ours = soon("ours", locks.mutex("x").lock()).await.unwrap();
    assert_eq!(peer.ask("one", "try x ttl=60000").await, "false");
    ours.release().await.unwrap();
    peer.ask("one", "lock x ttl=60000 delay=10 tries=6000").await;
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    peer.ask("one", "unlock x").await;
    soon("ours", locks.mutex("x").lock()).await.unwrap().release().await.unwrap();
}

async fn many_turns_and_never_two_at_once(kind: Kind) {
    let nodes = Nodes::start(5).await;
    let (locks, peer) = (nodes.connect().await, start(kind, &nodes).await);
    let inside = std::sync::atomic::AtomicUsize::new(0);
    let enter = || {
        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two at once");
    };
    let leave = || {
        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
    };
    let register = Register::default();
    let ours = async {
        for _ in 0..20 {
            let guard = locks.mutex("x").lock().await.unwrap();
            enter();
            register.write(guard.token().get(), "ours").unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
            leave();
            guard.release().await.unwrap();
        }
    };
    let theirs = async {
        for _ in 0..20 {
            peer.ask("one", "lock x ttl=60000 delay=7 tries=60000").await;
            enter();
            tokio::time::sleep(Duration::from_millis(2)).await;
            leave();
            peer.ask("one", "unlock x").await;
        }
    };
    soon("all turns", async { tokio::join!(ours, theirs) }).await;
    eventually("free", async || locks.mutex("x").try_lock().await.unwrap().is_some()).await;
}
