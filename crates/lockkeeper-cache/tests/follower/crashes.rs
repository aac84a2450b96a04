//! A follower that ends between any two bytes that it sends or hears.

use lockkeeper_cache::Redis;
use testkit::proxy::{Proxy, Way};
use testkit::wait::eventually;

use crate::world::{Point, Shop};

async fn ends_after(shop: &Shop, way: Way, bytes: usize, number: u64) {
    shop.warm(1).await;
    let proxy = Proxy::to(shop.server.address()).await;
    let url = format!("redis://{}", proxy.address());
    // A cache of its own, so that nobody makes up for what it owes when it is gone.
    let cache = shop.world.cache(Redis::connect(&url).await.unwrap(), "user");
    let follower = shop.world.follow(&cache, &shop.locks);
    shop.world.caught_up(&follower).await;
    proxy.cut_after(way, bytes);
    shop.world.write(1, number);
    let end = shop.world.end();
    eventually("it is cut or done", async || {
        proxy.is_cut() || follower.status().position.as_ref() == Some(&end)
    })
    .await;
    follower.stop().await;
    drop((cache, proxy));
    if shop.saved().await == Some(end) {
        assert_eq!(shop.number(1).await, number, "saved, and not invalidated: {way:?} {bytes}");
    }
    let follower = shop.followed().await;
    assert_eq!(shop.number(1).await, number, "{way:?} {bytes}");
    assert_eq!(follower.status().resets, 0, "{way:?} {bytes}");
    follower.stop().await;
}

#[tokio::test]
async fn nothing_is_missed_wherever_it_ends() {
    let shop = Shop::open().await;
    shop.world.write(1, 1);
    shop.followed().await.stop().await;
    let up = (0..600).step_by(30).map(|bytes| (Way::Up, bytes));
    let down = (0..90).step_by(9).map(|bytes| (Way::Down, bytes));
    for (number, (way, bytes)) in (2..).zip(up.chain(down)) {
        ends_after(&shop, way, bytes, number).await;
    }
}

/// Everywhere in the contract of a log.
#[tokio::test]
async fn nothing_is_missed_at_whatever_step_it_ends() {
    let shop = Shop::open().await;
    shop.world.write(1, 1);
    shop.followed().await.stop().await;
    for (number, point) in (2..).zip([Point::Check, Point::Open, Point::Next, Point::Confirm]) {
        shop.warm(1).await;
        shop.world.write(1, number);
        shop.world.hold(point);
        let follower = shop.world.follow(&shop.cache, &shop.locks);
        shop.world.held().await;
        let done = shop.saved().await == Some(shop.world.end());
        assert_eq!(done, point == Point::Confirm, "{point:?}");
        assert_eq!(shop.number(1).await == number, done, "{point:?}");
        follower.stop().await;
        shop.world.let_go();
        let follower = shop.followed().await;
        assert_eq!((shop.number(1).await, follower.status().resets), (number, 0), "{point:?}");
        follower.stop().await;
    }
}
