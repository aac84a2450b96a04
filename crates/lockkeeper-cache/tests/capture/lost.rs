//! History that is gone when a follower comes back.

use testkit::database::System;
use testkit::wait::eventually;

use crate::ALONE;
use crate::process::{follow, is_following};
use crate::shop::TABLES;
use crate::storm::World;

/// Fills the cache, and changes every row while nobody follows.
async fn change_unseen(world: &World) {
    for (table, cache) in TABLES.iter().zip(&world.caches) {
        for number in 0..20 {
            world.shop.upsert(table, number, 0, "before").await;
        }
        let keys: Vec<String> = (0..20).map(|number| table.key(number, 0)).collect();
        // The first read loads, the second finds it.
        for _ in 0..2 {
            cache.get_many(&keys).await.unwrap();
        }
    }
}

async fn lost(system: System, lose: impl AsyncFn(&World)) {
    let _alone = ALONE.lock().await;
    let world = World::start(system).await;
    let follower = follow(&world.redis(), &world.url).await;
    is_following(&follower).await;
    change_unseen(&world).await;
    world.drained().await;
    follower.stop().await;
    change_unseen(&world).await;
    for table in &TABLES {
        for number in 0..20 {
            world.shop.upsert(table, number, 0, "after").await;
        }
    }
    let (cached, wrong) = world.compare().await;
    assert!(wrong.len() > 50, "only {} of {cached} are old while nobody follows", wrong.len());
    lose(&world).await;
    let follower = follow(&world.redis(), &world.url).await;
    eventually("it begins anew", || async { follower.status().resets == 1 }).await;
    is_following(&follower).await;
    let (_, wrong) = world.compare().await;
    assert!(wrong.is_empty(), "{wrong:#?}");
    // And it goes on from there.
    world.drained().await;
    assert_eq!(follower.status().resets, 1, "{:?}", follower.status());
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_was_dropped_leaves_nothing_old() {
    lost(System::Postgres, async |world| {
        world.database.operator("here", "SELECT pg_drop_replication_slot('lockkeeper')");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binlogs_that_were_purged_leave_nothing_old() {
    lost(System::MariaDb, async |world| {
        world.database.operator("", "FLUSH BINARY LOGS");
        let last = world.database.operator("", "SHOW MASTER STATUS");
        let last = last.split('|').next().unwrap().to_owned();
        // One that the server still sends to a follower that is gone is kept until it notices.
        eventually("they are purged", async || {
            world.database.operator("", &format!("PURGE BINARY LOGS TO '{last}'"));
            world.database.operator("", "SHOW BINARY LOGS").lines().count() == 1
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_another_history_leaves_nothing_old() {
    lost(System::MariaDb, async |world| {
        world.database.operator("", "RESET MASTER");
        world.database.operator("here", "INSERT INTO users VALUES (9999, 'x')");
    })
    .await;
}
