//! New beginnings.

use lockkeeper_cache::Store;
use lockkeeper_cache::cdc::{Position, Rule, State};
use testkit::resp::Raw;

use crate::world::{NAME, Point, Shop, connect, within};

#[tokio::test]
async fn nobody_knows_where_it_was_left_so_everything_is_cleared() {
    let shop = Shop::open().await;
    shop.world.write(1, 1);
    shop.warm(1).await;
    // Nobody follows.
    shop.world.write(1, 2);
    assert_eq!(shop.number(1).await, 1);
    let follower = shop.followed().await;
    assert_eq!(shop.number(1).await, 2);
    assert_eq!((follower.status().resets, shop.world.opened()), (1, vec![None]));
}

#[tokio::test]
async fn it_goes_on_where_it_was_left() {
    let shop = Shop::open().await;
    shop.world.write(1, 1);
    let follower = shop.followed().await;
    shop.warm(1).await;
    let at = shop.world.end();
    follower.stop().await;
    shop.world.write(1, 2);
    assert_eq!(shop.number(1).await, 1);
    shop.world.commit(&[(2, 2)], vec![]);
    shop.warm(2).await;
    let follower = shop.followed().await;
    assert_eq!(shop.number(1).await, 2);
    assert!(shop.is_cached(2).await, "only what has changed");
    assert_eq!((follower.status().resets, shop.world.opened()), (0, vec![None, Some(at)]));
}

async fn lost_history(late: bool) {
    let shop = Shop::open().await;
    shop.world.write(1, 1);
    let follower = shop.followed().await;
    shop.warm(1).await;
    follower.stop().await;
    shop.world.write(1, 2);
    shop.world.purge(late);
    let follower = shop.followed().await;
    assert_eq!(shop.number(1).await, 2);
    let status = follower.status();
    assert_eq!((status.resets, status.cleared, status.tenures), (1, 1, 1), "{status:?}");
    shop.world.write(1, 3);
    shop.world.caught_up(&follower).await;
    assert_eq!(shop.number(1).await, 3);
}

#[tokio::test]
async fn history_that_is_lost_clears_everything() {
    lost_history(false).await;
}

#[tokio::test]
async fn history_that_is_lost_when_it_is_read_clears_everything() {
    lost_history(true).await;
}

#[tokio::test]
async fn other_rules_clear_everything() {
    let shop = Shop::open().await;
    shop.world.write(1, 1);
    let second = shop.world.cache(connect(&shop.server).await, "second");
    let follower = shop.followed().await;
    follower.stop().await;
    // Nobody has told this one.
    second.get(&1).await.unwrap();
    shop.world.write(1, 2);
    let rules = |template| {
        let rule = Rule::new("public.users", template).unwrap();
        shop.world.builder(&shop.cache).rule(rule, &second).locks(shop.locks.clone()).start()
    };
    let follower = rules("{id}").unwrap();
    shop.world.caught_up(&follower).await;
    assert_eq!(second.get(&1).await.unwrap().as_deref(), Some(&2));
    assert_eq!((follower.status().resets, follower.status().cleared), (1, 2));
    follower.stop().await;
    let follower = rules("{id}").unwrap();
    shop.world.caught_up(&follower).await;
    assert_eq!(follower.status().resets, 0, "they are the same");
    follower.stop().await;
    let follower = rules("u{id}").unwrap();
    shop.world.caught_up(&follower).await;
    assert_eq!(follower.status().resets, 1);
}

/// What changes between the two would be missed by both, the other way round.
#[tokio::test]
async fn the_log_is_opened_before_anything_is_cleared_and_nothing_is_saved_before_that() {
    let shop = Shop::open().await;
    shop.world.write(1, 1);
    shop.warm(1).await;
    // Dies when the log is open.
    shop.world.hold(Point::Next);
    let follower = shop.world.follow(&shop.cache, &shop.locks);
    shop.world.held().await;
    assert_eq!(follower.status().state, State::Resetting);
    assert!(shop.is_cached(1).await && shop.saved().await == Some(Position(String::new())));
    follower.stop().await;
    // Dies when it is saved, and not confirmed.
    shop.world.hold(Point::Confirm);
    let follower = shop.world.follow(&shop.cache, &shop.locks);
    shop.world.held().await;
    assert!(!shop.is_cached(1).await);
    assert_eq!((shop.saved().await, shop.world.confirmed()), (Some(shop.world.end()), None));
    follower.stop().await;
    shop.world.let_go();
    let opened = shop.world.opened();
    let follower = shop.followed().await;
    assert_eq!((follower.status().resets, opened), (0, vec![None, None]));
}

/// The position from before may look well again by then, and what was lost is lost all the same.
#[tokio::test]
async fn a_new_beginning_that_was_not_finished_is_begun_again() {
    let shop = Shop::open().await;
    shop.world.write(1, 1);
    let follower = shop.followed().await;
    shop.warm(1).await;
    let at = shop.world.end();
    follower.stop().await;
    shop.world.write(1, 2);
    shop.world.purge(false);
    shop.world.hold(Point::Next);
    let follower = shop.world.follow(&shop.cache, &shop.locks);
    shop.world.held().await;
    assert_eq!(follower.status().state, State::Resetting);
    follower.stop().await;
    shop.world.let_go();
    let follower = shop.followed().await;
    assert_eq!((follower.status().resets, shop.number(1).await), (1, 2));
    assert_eq!(shop.world.opened(), vec![None, Some(at), None, None]);
}

#[tokio::test]
async fn a_server_that_has_forgotten_everything_means_a_new_beginning() {
    let mut shop = Shop::open().await;
    shop.world.write(1, 1);
    let follower = shop.followed().await;
    shop.warm(1).await;
    shop.server.restart().await;
    shop.world.write(1, 2);
    within(&follower, "it begins anew", async || follower.status().resets == 2).await;
    shop.world.caught_up(&follower).await;
    assert_eq!(shop.number(1).await, 2);
    assert_eq!(shop.saved().await, Some(shop.world.end()));
    // The record alone is enough.
    connect(&shop.server).await.positions().unwrap().forget(NAME).await.unwrap();
    within(&follower, "it begins anew", async || follower.status().resets == 3).await;
    shop.world.caught_up(&follower).await;
    let raw = Raw::connect(shop.server.address()).await;
    assert_eq!(raw.keys("!cdc:*").await, [format!("!cdc:{NAME}")]);
}
