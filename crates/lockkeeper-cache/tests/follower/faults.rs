//! Servers that go away and come back, and sources that break.

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_cache::cdc::{Rule, State};
use lockkeeper_cache::{Cache, Error, Loaded, Memory, Redis};
use testkit::nodes::{Sentinels, ask};
use testkit::proxy::Proxy;
use testkit::server;
use testkit::wait::{eventually, soon};
use tokio::time::sleep;

use crate::world::{NAME, Point, Shop, World, within};

#[tokio::test]
async fn what_is_written_while_the_server_is_away_is_invalidated_when_it_is_back() {
    let server = server::redis(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let mut shop = Shop::at(server).await;
    shop.world.write(1, 1);
    let follower = shop.followed().await;
    shop.warm(1).await;
    let saved = shop.saved().await;
    shop.server.kill();
    shop.world.write(1, 2);
    within(&follower, "it has given up a turn", async || {
        matches!(follower.status().state, State::Waiting { .. }) && follower.status().tenures >= 2
    })
    .await;
    assert_eq!(follower.status().position, saved, "nothing is saved");
    shop.server.start_again().await;
    shop.world.caught_up(&follower).await;
    assert_eq!(shop.number(1).await, 2);
    assert_eq!(follower.status().resets, 1, "it has what it had");
}

/// What the old one has acknowledged since the replica heard of it the last time may be missing at the new one: it is done again.
#[tokio::test]
async fn after_a_fail_over_it_goes_on_from_where_the_replica_is() {
    let mut redis = Sentinels::start(Duration::from_millis(500)).await;
    let world = World::new();
    world.write(1, 1);
    let store = soon("connected", Redis::connect(&redis.url())).await.unwrap();
    let cache = world.cache(store, "user");
    let follower = world.follow(&cache, &Locks::memory());
    world.caught_up(&follower).await;
    let older = world.end();
    for server in &redis.nodes.servers[1..] {
        let has = async || {
            let saved = ask(server.address(), &format!("HGET !cdc:{NAME} position")).await;
            saved.ends_with(&older.0)
        };
        eventually("the replicas have it", has).await;
    }
    redis.nodes.cut_off_replicas().await;
    for number in 2..5 {
        world.write(1, number);
        world.caught_up(&follower).await;
    }
    redis.nodes.servers[0].kill();
    redis.nodes.mend();
    redis.master_other_than(0).await;
    let rewound = async || world.opened().last() == Some(&Some(older.clone()));
    within(&follower, "it begins where the replica is", rewound).await;
    world.caught_up(&follower).await;
    assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&4));
    world.write(1, 5);
    world.caught_up(&follower).await;
    assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&5));
    assert_eq!(follower.status().resets, 1);
}

#[tokio::test]
async fn one_cache_that_cannot_be_told_holds_up_the_position_of_all() {
    let shop = Shop::open().await;
    shop.world.write(1, 1);
    let far = server::redis(&[]).await;
    let proxy = Proxy::to(far.address()).await;
    let store = Redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let second = shop.world.cache(store, "second");
    let rule = Rule::new("public.users", "{id}").unwrap();
    let builder = shop.world.builder(&shop.cache).rule(rule, &second).locks(shop.locks.clone());
    let follower = builder.start().unwrap();
    shop.world.caught_up(&follower).await;
    let before = shop.saved().await;
    proxy.cut();
    shop.world.write(1, 2);
    let gave_up = async || follower.status().tenures >= 2 && follower.status().failures >= 6;
    within(&follower, "it has given up a turn", gave_up).await;
    assert_eq!(shop.saved().await, before);
    assert_eq!(shop.number(1).await, 2, "that one is told all the same");
    proxy.pass();
    shop.world.caught_up(&follower).await;
    assert_eq!(second.get(&1).await.unwrap().as_deref(), Some(&2));
    assert_eq!(follower.status().resets, 1);
}

#[tokio::test]
async fn a_source_that_panics_is_tried_again() {
    let shop = Shop::open().await;
    shop.world.write(1, 1);
    let follower = shop.followed().await;
    shop.warm(1).await;
    shop.world.panics(true);
    shop.world.write(1, 2);
    within(&follower, "it has failed", async || follower.status().failures >= 2).await;
    assert_eq!(shop.number(1).await, 1);
    shop.world.panics(false);
    shop.world.caught_up(&follower).await;
    assert_eq!((shop.number(1).await, follower.status().resets), (2, 1));
}

/// It may have to go through much of it.
#[tokio::test(start_paused = true)]
async fn a_database_may_take_minutes_to_open_its_log() {
    let (world, locks) = (World::new(), Locks::memory());
    let loader = |id: u64| async move { Ok::<_, Error>(Loaded::found(id)) };
    let cache = Cache::builder(Memory::new()).namespace("user").build(loader).unwrap();
    world.hold(Point::Open);
    let follower = world.follow(&cache, &locks);
    world.held().await;
    sleep(Duration::from_secs(240)).await;
    let status = follower.status();
    assert_eq!((status.tenures, status.failures), (1, 0), "{status:?}");
    let lock = locks.mutex(format!("cdc:{NAME}"));
    assert!(lock.try_lock().await.unwrap().is_none(), "it is still its turn");
    // But not for ever.
    sleep(Duration::from_secs(61)).await;
    let error = follower.status().last_error.unwrap();
    assert!(error.what.starts_with("opening"), "{error:?}");
    world.held().await;
    soon("it ends", follower.stop()).await;
    assert!(lock.try_lock().await.unwrap().is_some(), "it is free");
}
