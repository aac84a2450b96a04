//! Servers that come back with what they had, and servers that take over without the last steps (R7, R8).

use std::time::Duration;

use lockkeeper_cache::entry::{Begun, Filled, Invalidation, Lease, Ticket, Value};
use lockkeeper_cache::{Cache, Redis, Store, StoreError};
use testkit::nodes::{Cluster, Sentinels, ask};
use testkit::resp::Raw;
use testkit::server::{self, Server};
use testkit::wait::{LONG, eventually, soon};

use crate::harness::{Client, Database, value};

/// Where a key of [`Client`] is.
const KEY: &str = "cache:1";

const HOW: Invalidation = Invalidation { floor: 0, floor_ms: 1000, keep_ms: 0 };

async fn connect(url: &str, warm: bool) -> Result<Redis, StoreError> {
    if warm { Redis::connect_warm(url).await } else { Redis::connect(url).await }
}

async fn client(url: &str, warm: bool, database: &Database) -> Client {
    let store = soon("connected", connect(url, warm)).await.unwrap();
    Client::new(Cache::builder(store).namespace("cache"), database)
}

/// Reads key 1 until the store answers again, whatever is loaded meanwhile.
async fn read_again(client: &mut Client) -> u64 {
    soon("the store answers", async {
        loop {
            let before = client.cache.stats().store_errors;
            let get = client.get();
            while !get.is_finished() {
                if let Some(load) = client.try_load() {
                    load.go();
                }
                tokio::task::yield_now().await;
            }
            let read = value(get).await;
            if client.cache.stats().store_errors == before {
                return read;
            }
        }
    })
    .await
}

/// A server that keeps its data when it is told to, and starts with it.
async fn keeping() -> Server {
    server::redis(&["--dir", "{dir}", "--dbfilename", "kept.rdb"]).await
}

/// What is read after a snapshot, an invalidation, and a crash.
async fn after_a_crash(warm: bool) -> u64 {
    let mut server = keeping().await;
    let database = Database::new();
    let url = format!("redis://{}", server.address());
    let mut client = client(&url, warm, &database).await;
    assert_eq!((client.loaded().await, client.hit().await), (1, 1));
    ask(server.address(), "SAVE").await;
    database.commit();
    client.cache.invalidate(&[1]).await.unwrap();
    server.restart().await;
    assert_eq!(
        ask(server.address(), &format!("EXISTS {KEY}")).await,
        "1",
        "it has brought it back"
    );
    let read = read_again(&mut client).await;
    assert_eq!(client.hit().await, read, "and it is cached again");
    read
}

#[tokio::test]
async fn a_server_that_is_started_again_brings_nothing_back() {
    assert_eq!(after_a_crash(false).await, 2);
}

/// That is what the other way is against.
#[tokio::test]
async fn a_server_that_is_started_again_brings_back_what_is_wanted_warm() {
    assert_eq!(after_a_crash(true).await, 1);
}

/// A lease that is brought back lets nobody fill, and an intent keeps nobody away.
#[tokio::test]
async fn a_server_that_is_started_again_brings_no_leases_back() {
    for (warm, filled) in [(false, Filled::Gone), (true, Filled::Done)] {
        let mut server = keeping().await;
        let url = format!("redis://{}", server.address());
        let store = connect(&url, warm).await.unwrap();
        let (ticket, writer) = (Ticket::new(), Ticket::new());
        store.begin("k", ticket, LONG, None).await.unwrap();
        store.intend(&["w"], writer, LONG).await.unwrap();
        ask(server.address(), "SAVE").await;
        store.invalidate(&["k"], HOW).await.unwrap();
        server.restart().await;
        eventually("the store answers", async || store.get(&["k"]).await.is_ok()).await;
        let (lease, payload) = (Lease::NONE, Some(b"old".to_vec().into()));
        let (version, made, soft, cost, schema) = (0, 0, u64::MAX, 0, 0);
        let value = Value { lease, fill: ticket, version, made, soft, cost, schema, payload };
        assert_eq!(store.fill("k", &value, LONG).await.unwrap(), filled, "warm {warm}");
        let begun = store.begin("w", Ticket::new(), LONG, None).await.unwrap();
        assert_eq!(matches!(begun, Begun::Granted { .. }), !warm, "{begun:?}");
    }
}

/// What is read when a replica has taken over that does not know of the invalidation.
async fn after_a_fail_over(warm: bool) -> u64 {
    let mut redis = Sentinels::start(Duration::from_millis(500)).await;
    let database = Database::new();
    let mut client = client(&redis.url(), warm, &database).await;
    assert_eq!(client.loaded().await, 1);
    for server in &redis.nodes.servers[1..] {
        let has = async || ask(server.address(), &format!("EXISTS {KEY}")).await == "1";
        eventually("the replicas have it", has).await;
    }
    redis.nodes.cut_off_replicas().await;
    database.commit();
    client.cache.invalidate(&[1]).await.unwrap();
    redis.nodes.servers[0].kill();
    redis.nodes.mend();
    redis.master_other_than(0).await;
    read_again(&mut client).await
}

#[tokio::test]
async fn a_replica_that_missed_the_invalidation_brings_nothing_back() {
    assert_eq!(after_a_fail_over(false).await, 2);
}

#[tokio::test]
async fn a_replica_that_missed_the_invalidation_brings_it_back_where_that_is_wanted() {
    assert_eq!(after_a_fail_over(true).await, 1);
}

#[tokio::test]
async fn a_replica_in_a_cluster_brings_nothing_back() {
    let mut redis = Cluster::start(Duration::from_secs(1)).await;
    let database = Database::new();
    let mut client = client(&redis.url(), false, &database).await;
    assert_eq!(client.loaded().await, 1);
    let slot = redis.slot(KEY).await;
    let owner = redis.owner_other_than(slot, None).await;
    let replica = redis.servers[owner + 3].address();
    let raw = Raw::connect(replica).await;
    raw.ask("READONLY").await;
    eventually("the replica has it", async || raw.exists(KEY).await).await;
    redis.cut_off_replica_of(owner).await;
    database.commit();
    client.cache.invalidate(&[1]).await.unwrap();
    redis.servers[owner].kill();
    redis.servers[owner + 3].resume();
    redis.owner_other_than(slot, Some(owner)).await;
    assert_eq!(read_again(&mut client).await, 2);
}

/// A master that becomes a replica and a master again is the same process, and may have missed what happened.
#[tokio::test]
async fn a_master_that_was_a_replica_meanwhile_is_another_one() {
    let server = server::redis(&[]).await;
    let other = server::redis(&[]).await;
    let database = Database::new();
    let url = format!("redis://{}", server.address());
    let mut before = client(&url, false, &database).await;
    assert_eq!((before.loaded().await, before.hit().await), (1, 1));
    // The other one has the same data, as if it had taken over.
    let raw = Raw::connect(server.address()).await;
    let from = server.address().port();
    ask(other.address(), &format!("REPLICAOF 127.0.0.1 {from}")).await;
    let linked = async || ask(other.address(), "INFO replication").await.contains("link_status:up");
    eventually("it follows", linked).await;
    ask(other.address(), "REPLICAOF NO ONE").await;
    raw.ask(&format!("REPLICAOF 127.0.0.1 {}", other.address().port())).await;
    let linked =
        async || ask(server.address(), "INFO replication").await.contains("link_status:up");
    eventually("it follows", linked).await;
    raw.ask("REPLICAOF NO ONE").await;
    assert!(raw.exists(KEY).await);
    database.commit();
    let mut after = client(&url, false, &database).await;
    assert_eq!(after.loaded().await, 2);
    // Who stayed connected learns of it as well, although nobody told it: then both share what is there.
    soon("it is noticed", async {
        loop {
            before.cache.invalidate(&[1]).await.unwrap();
            assert_eq!(read_again(&mut before).await, 2);
            let loads = after.cache.stats().loads;
            assert_eq!(read_again(&mut after).await, 2);
            if after.cache.stats().loads == loads {
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn who_may_not_ask_which_server_it_is_is_told_so() {
    let server = server::redis(&[]).await;
    ask(server.address(), "ACL SETUSER small on >secret ~* &* +@all -info").await;
    let url = format!("redis://small:secret@{}", server.address());
    let refused = Redis::connect(&url).await.unwrap_err();
    let why = std::error::Error::source(&refused).unwrap().to_string();
    assert!(why.contains("INFO") && why.contains("rights"), "{why}");
    Redis::connect_warm(&url).await.unwrap();
}
