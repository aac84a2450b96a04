//! The topologies are what they say they are, and fail over.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::time::Duration;

use testkit::nodes::{Cluster, Sentinels, ask};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_replace_a_dead_master() {
    let mut redis = Sentinels::start(Duration::from_secs(1)).await;
    redis.nodes.cut_off_replicas().await;
    ask(redis.nodes.master().address(), "SET unseen 1").await;
    redis.nodes.servers[0].kill();
    redis.nodes.mend();
    let next = redis.master_other_than(0).await;
    assert_eq!(ask(redis.nodes.servers[next].address(), "EXISTS unseen").await, "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_moves_slots_and_replaces_a_dead_master() {
    let mut cluster = Cluster::start(Duration::from_secs(1)).await;
    let slot = cluster.slot("x").await;
    let first = cluster.owner_other_than(slot, None).await;
    ask(cluster.servers[first].address(), "SET x 1").await;
    let second = (first + 1) % 3;
    cluster.move_slot(slot, first, second).await;
    assert_eq!(cluster.owner_other_than(slot, Some(first)).await, second);
    assert_eq!(ask(cluster.servers[second].address(), "GET x").await, "1");
    cluster.servers[second].kill();
    assert_eq!(cluster.owner_other_than(slot, Some(second)).await, second + 3);
}
