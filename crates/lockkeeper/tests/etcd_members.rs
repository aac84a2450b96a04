//! One member of a real cluster in trouble: cut off from the others, out of room, with another clock.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper::clock::Instant;
use lockkeeper::{Error, Guard, Locks, Name};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use testkit::conformance::judge::Judge;
use testkit::server::{self, EtcdCluster, Server, etcdctl, try_etcdctl};
use testkit::wait::{eventually, soon};
use tokio::task::JoinHandle;

fn name() -> Name {
    "x".parse().unwrap()
}

/// A client that knows these members alone.
async fn at(cluster: &EtcdCluster, members: &[usize]) -> Locks {
    let members: Vec<_> =
        members.iter().map(|at| cluster.members[*at].address().to_string()).collect();
    Locks::connect(&format!("etcd://{}", members.join(","))).await.unwrap()
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

async fn queued(locks: &Locks, waiters: usize) {
    let shown = async || {
        let status = locks.admin().show(&name()).await;
        status.is_ok_and(|status| status.waiters.len() == waiters)
    };
    eventually("in line", shown).await;
}

async fn renewed(guard: &Guard) {
    let before = guard.expires_at().unwrap();
    eventually("renewed", async || {
        assert!(!guard.is_lost(), "{:?}", guard.check());
        guard.expires_at().unwrap() > before
    })
    .await;
}

/// The holder reaches one member only, which the others do not reach any more; it goes on answering.
async fn knows_in_time(leads: bool) {
    let cluster = EtcdCluster::start(3).await;
    let alone = (cluster.leader().await + usize::from(!leads)) % 3;
    let near = at(&cluster, &[alone]).await;
    let others = at(&cluster, &[(alone + 1) % 3, (alone + 2) % 3]).await;
    let held = hold(&near, Duration::from_secs(3)).await;
    let waiting = wait_for(&others);
    queued(&others, 1).await;
    cluster.cut_off(alone);
    soon("the loss", held.lost()).await;
    assert!(!waiting.is_finished(), "the holder knows before the next one has it");
    let next = soon("the next", waiting).await.unwrap();
    assert!(next.token() > held.token());
    next.txn().unwrap().put("state", "next").commit().await.unwrap();
    let late = held.txn().unwrap().put("state", "late").commit().await;
    assert!(late.is_err(), "{late:?}");
    cluster.mend();
    let late = async || {
        let late = held.txn().unwrap().put("state", "late").commit().await;
        matches!(late, Err(Error::Lost { .. }))
    };
    eventually("refused by all", late).await;
    let state = etcdctl(&cluster.members[alone], &["get", "state", "--print-value-only"]);
    assert_eq!(state.trim(), "next");
    next.release().await.unwrap();
    soon("back", near.mutex("x").lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_at_a_follower_that_is_cut_off_knows_before_others_are_granted() {
    knows_in_time(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_at_a_leader_that_is_cut_off_knows_before_others_are_granted() {
    knows_in_time(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_member_that_is_cut_off_go_to_another_and_lose_nothing() {
    let cluster = EtcdCluster::start(3).await;
    let leader = cluster.leader().await;
    let others = at(&cluster, &[(leader + 1) % 3]).await;
    let near = at(&cluster, &[leader, (leader + 1) % 3, (leader + 2) % 3]).await;
    let held = hold(&near, Duration::from_secs(12)).await;
    let (first, second) = (wait_for(&near), {
        queued(&near, 1).await;
        wait_for(&others)
    });
    queued(&near, 2).await;
    cluster.cut_off(leader);
    renewed(&held).await;
    held.release().await.unwrap();
    let guard = soon("the first", first).await.unwrap();
    assert!(!second.is_finished());
    guard.release().await.unwrap();
    soon("the second", second).await.unwrap().release().await.unwrap();
}

/// No file of it can grow any more: a disk that is full.
fn fill_disk(server: &Server) {
    let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap());
    let full = Rlimit { current: Some(0), maximum: Some(0) };
    prlimit(pid, Resource::Fsize, full).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_disk_is_full_costs_nobody_a_hold_or_a_place() {
    let mut cluster = EtcdCluster::start(3).await;
    let leader = cluster.leader().await;
    let all = [leader, (leader + 1) % 3, (leader + 2) % 3];
    let (near, others) = (at(&cluster, &all).await, at(&cluster, &all[1..]).await);
    let held = hold(&near, Duration::from_secs(12)).await;
    let (first, second) = (wait_for(&near), {
        queued(&near, 1).await;
        wait_for(&others)
    });
    queued(&near, 2).await;
    fill_disk(&cluster.members[leader]);
    // Its next write ends it, and it must be somebody's: only then is there something to see.
    let noticed = async || {
        drop(others.mutex("y").try_lock().await);
        cluster.leader().await != leader
    };
    eventually("another one leads", noticed).await;
    renewed(&held).await;
    held.release().await.unwrap();
    let guard = soon("the first", first).await.unwrap();
    assert!(!second.is_finished());
    guard.release().await.unwrap();
    soon("the second", second).await.unwrap().release().await.unwrap();
    // Room again.
    cluster.members[leader].restart().await;
    let back = at(&cluster, &[leader]).await;
    soon("back", back.mutex("x").lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_database_keeps_holds_and_says_what_to_do() {
    let server = server::etcd(&["--quota-backend-bytes", "8388608"]).await;
    let locks = Locks::connect(&format!("etcd://{}", server.address())).await.unwrap();
    let held = locks.ttl(Duration::from_secs(3)).mutex("x").lock().await.unwrap();
    // Each version stays until it is compacted.
    let lump = "x".repeat(100_000);
    let full = (0..200).any(|_| !try_etcdctl(&server, &["put", "lump", &lump]).status.success());
    assert!(full, "the quota is used up");
    let since = Instant::now();
    let refused = locks.mutex("y").try_lock().await.unwrap_err();
    assert!(refused.to_string().contains("the database is full"), "{refused}");
    assert!(Instant::now().since(since) < Duration::from_secs(5), "at once");
    renewed(&held).await;
    held.release().await.unwrap();
    // What the message says helps.
    let revision = etcdctl(&server, &["get", "lump", "--write-out=fields", "--keys-only"]);
    let revision = revision.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
    etcdctl(&server, &["compact", revision.unwrap().trim()]);
    etcdctl(&server, &["defrag"]);
    etcdctl(&server, &["alarm", "disarm"]);
    soon("room again", locks.mutex("y").lock()).await.unwrap().release().await.unwrap();
}

/// Leases end by the leader's clock, and a new leader begins them again: the clock of a member that is
/// days ahead ends nothing early when it takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_clock_is_ahead_ends_nothing_early_and_nothing_late() {
    let cluster = EtcdCluster::start_with_a_clock_ahead(3).await;
    let locks = at(&cluster, &[1, 2]).await;
    let ttl = Duration::from_secs(4);
    let held = hold(&locks, ttl).await;
    let waiting = wait_for(&locks);
    queued(&locks, 1).await;
    let leader = cluster.leader().await;
    // Twice: to the one that is ahead, and away from it.
    for to in [0, 1] {
        if leader != to || to == 1 {
            let now = cluster.leader().await;
            let list = etcdctl(&cluster.members[now], &["member", "list"]);
            let name = format!(" m{to},");
            let id = list.lines().find(|line| line.contains(&name)).unwrap();
            let id = id.split(',').next().unwrap();
            etcdctl(&cluster.members[now], &["move-leader", id]);
        }
        assert_eq!(cluster.leader().await, to);
        renewed(&held).await;
        renewed(&held).await;
        assert!(!waiting.is_finished());
        // One that is not renewed: lost in time, and free soon after.
        let fixed = locks.lease(Duration::from_secs(3)).mutex("y").lock().await.unwrap();
        let since = Instant::now();
        let next = locks.mutex("y").lock().await.unwrap();
        let waited = Instant::now().since(since);
        assert!(fixed.is_lost() && waited > Duration::from_secs(2), "{waited:?}");
        assert!(waited < Duration::from_secs(6), "{waited:?}");
        next.release().await.unwrap();
    }
    held.release().await.unwrap();
    soon("its turn", waiting).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_two_holders_while_members_die_are_cut_off_and_come_back() {
    let mut cluster = EtcdCluster::start(3).await;
    let judge = Arc::<Judge>::default();
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for who in 0..6 {
        let locks = at(&cluster, &[who % 3, (who + 1) % 3, (who + 2) % 3]).await;
        let locks = locks.ttl(Duration::from_secs(3));
        let (judge, stop) = (Arc::clone(&judge), Arc::clone(&stop));
        tasks.push(tokio::spawn(async move {
            let mut visits = 0;
            while !stop.load(Ordering::SeqCst) {
                // An outage is an error now and then; that is not the point here.
                let Ok(guard) = locks.mutex("x").fair().lock().await else { continue };
                if !guard.is_lost() {
                    judge.visit(u32::try_from(who).unwrap(), &guard).await;
                    visits += 1;
                }
                drop(guard.release().await);
            }
            visits
        }));
    }
    for round in 0..4 {
        let leader = cluster.leader().await;
        if round % 2 == 0 {
            cluster.members[leader].kill();
        } else {
            cluster.cut_off(leader);
        }
        let before = judge.history.events().len();
        let going_on = async || judge.history.events().len() > before + 20;
        eventually("the others go on", going_on).await;
        if round % 2 == 0 {
            cluster.members[leader].start_again().await;
        } else {
            cluster.mend();
        }
    }
    stop.store(true, Ordering::SeqCst);
    let mut visits = 0;
    for task in tasks {
        visits += soon("the end", task).await.unwrap();
    }
    judge.all_alone(visits);
}
