//! A real cluster of three members, of which some go away.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::clock::Instant;
use lockkeeper::{Guard, Locks, Name};
use testkit::proxy::Proxy;
use testkit::server::EtcdCluster;
use testkit::wait::{eventually, soon};
use tokio::task::JoinHandle;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

async fn queued(locks: &Locks, waiters: usize) {
    let shown = async || {
        let status = locks.admin().show(&name("x")).await;
        status.is_ok_and(|status| status.waiters.len() == waiters)
    };
    eventually("in line", shown).await;
}

fn wait_for(locks: &Locks) -> JoinHandle<Guard> {
    let mutex = locks.mutex("x").fair();
    tokio::spawn(async move { mutex.lock().await.unwrap() })
}

/// A hold that has its whole time: it begins with less, and has it by its first renewal.
async fn hold(locks: &Locks, ttl: Duration) -> Guard {
    let guard = locks.ttl(ttl).mutex("x").fair().lock().await.unwrap();
    eventually("whole", async || guard.expires_at().unwrap() > Instant::now() + ttl / 2).await;
    guard
}

/// So many waiters, each in line before the next one comes.
async fn line_up(clients: &[Locks], waiters: usize) -> Vec<JoinHandle<Guard>> {
    let mut line = Vec::new();
    for at in 0..waiters {
        line.push(wait_for(&clients[at % clients.len()]));
        queued(&clients[0], at + 1).await;
    }
    line
}

/// All are served in their order, under growing tokens, one at a time.
async fn served_in_order(line: Vec<JoinHandle<Guard>>, mut last: u64) {
    let mut line = line.into_iter();
    while let Some(next) = line.next() {
        let guard = soon("its turn", next).await.unwrap();
        assert!(guard.token().get() > last && !guard.is_lost());
        assert!(line.as_slice().iter().all(|later| !later.is_finished()), "one at a time");
        last = guard.token().get();
        guard.release().await.unwrap();
    }
}

/// The URL with this member first, so that a client begins with it.
fn starting_with(cluster: &EtcdCluster, first: usize) -> String {
    let size = cluster.members.len();
    let members: Vec<String> =
        (0..size).map(|at| cluster.members[(first + at) % size].address().to_string()).collect();
    format!("etcd://{}", members.join(","))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_dies_costs_neither_holders_nor_waiters_their_place() {
    let mut cluster = EtcdCluster::start(3).await;
    let leader = cluster.leader().await;
    let clients = join_all(
        (0..3).map(async |at| Locks::connect(&starting_with(&cluster, leader + at)).await.unwrap()),
    )
    .await;
    let held = hold(&clients[0], Duration::from_secs(10)).await;
    let line = line_up(&clients, 4).await;
    cluster.members[leader].kill();
    let renewed = held.expires_at().unwrap();
    eventually("renewed at another member", async || {
        assert!(!held.is_lost(), "{:?}", held.check());
        held.expires_at().unwrap() > renewed
    })
    .await;
    let token = held.token().get();
    held.release().await.unwrap();
    served_in_order(line, token).await;
    // A cluster that has lost one member does all that it did.
    let guard = soon("free", clients[0].mutex("x").lock()).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_cut_off_with_its_clients_is_left_by_them() {
    let cluster = EtcdCluster::start(3).await;
    let leader = cluster.leader().await;
    let (one, two) = ((leader + 1) % 3, (leader + 2) % 3);
    // The client knows all members, but begins with the one that will be alone.
    let clients = [Locks::connect(&starting_with(&cluster, one)).await.unwrap()];
    let held = hold(&clients[0], Duration::from_secs(12)).await;
    let line = line_up(&clients, 2).await;
    // Stopped, the other two do not answer it: it knows no leader any more.
    cluster.members[leader].pause();
    cluster.members[two].pause();
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.members[leader].resume();
    cluster.members[two].resume();
    cluster.members[one].pause();
    let renewed = held.expires_at().unwrap();
    eventually("renewed at another member", async || held.expires_at().unwrap() > renewed).await;
    assert!(!held.is_lost());
    let token = held.token().get();
    held.release().await.unwrap();
    served_in_order(line, token).await;
    cluster.members[one].resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reaches_one_member_only_learns_of_the_loss_in_time() {
    let cluster = EtcdCluster::start(3).await;
    let alone = (cluster.leader().await + 1) % 3;
    let proxy = Proxy::to(cluster.members[alone].address()).await;
    let near = Locks::connect(&format!("etcd://{}", proxy.address())).await.unwrap();
    let others = Locks::connect(&starting_with(&cluster, alone + 1)).await.unwrap();
    let held = hold(&near, Duration::from_secs(4)).await;
    let waiting = wait_for(&others);
    queued(&others, 1).await;
    // The member hears nothing from the others, and its client nothing of worth from it.
    cluster.members[alone].pause();
    let lost = async {
        soon("the loss", held.lost()).await;
        assert!(!waiting.is_finished(), "the holder knows before the next one has it");
    };
    lost.await;
    let next = soon("the next", waiting).await.unwrap();
    assert!(next.token() > held.token());
    cluster.members[alone].resume();
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_all_members_keeps_holders_and_waiters() {
    let mut cluster = EtcdCluster::start(3).await;
    let clients = [
        Locks::connect(&cluster.url()).await.unwrap(),
        Locks::connect(&starting_with(&cluster, 1)).await.unwrap(),
    ];
    let held = hold(&clients[0], Duration::from_secs(30)).await;
    let line = line_up(&clients, 2).await;
    cluster.members.iter_mut().for_each(testkit::server::Server::kill);
    join_all(cluster.members.iter_mut().map(testkit::server::Server::restart)).await;
    queued(&clients[0], 2).await;
    assert!(!held.is_lost(), "{:?}", held.check());
    let token = held.token().get();
    held.release().await.unwrap();
    served_in_order(line, token).await;
}
