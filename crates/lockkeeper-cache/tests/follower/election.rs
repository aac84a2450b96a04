//! One at a time.

use lockkeeper::Locks;
use lockkeeper_cache::cdc::State;
use testkit::proxy::Proxy;
use testkit::wait::{eventually, soon};

use crate::world::{NAME, Shop, within};

#[tokio::test]
async fn a_standby_takes_over_when_the_first_one_ends() {
    let shop = Shop::open().await;
    shop.world.write(1, 1);
    let first = shop.followed().await;
    let second = shop.world.follow(&shop.cache, &shop.locks);
    let third = shop.world.follow(&shop.cache, &shop.locks);
    shop.warm(1).await;
    shop.world.write(1, 2);
    shop.world.caught_up(&first).await;
    for standby in [&second, &third] {
        assert_eq!((standby.status().state, standby.status().tenures), (State::Standby, 0));
    }
    first.stop().await;
    shop.warm(1).await;
    shop.world.write(1, 3);
    let follows = |status: lockkeeper_cache::cdc::Status| status.state == State::Following;
    within(&second, "one of them follows", async || {
        follows(second.status()) != follows(third.status())
    })
    .await;
    let (now, next) = if follows(second.status()) { (second, third) } else { (third, second) };
    shop.world.caught_up(&now).await;
    assert_eq!(shop.number(1).await, 3);
    // Dropped, and not stopped.
    drop(now);
    shop.world.write(1, 4);
    shop.world.caught_up(&next).await;
    assert_eq!((shop.number(1).await, next.status().resets), (4, 0));
    assert_eq!(shop.world.opened().iter().filter(|from| from.is_none()).count(), 1);
}

#[tokio::test]
async fn who_is_stopped_has_released_its_lock() {
    let shop = Shop::open().await;
    let follower = shop.followed().await;
    let lock = shop.locks.mutex(format!("cdc:{NAME}"));
    assert!(lock.try_lock().await.unwrap().is_none());
    soon("it ends", follower.stop()).await;
    let guard = lock.try_lock().await.unwrap().expect("it is free");
    // And on standby there is nothing to release.
    let standby = shop.world.follow(&shop.cache, &shop.locks);
    eventually("it asks", async || standby.status().state == State::Standby).await;
    soon("it ends", standby.stop()).await;
    guard.release().await.unwrap();
}

/// Two locks that do not know of each other stand for a holder that has lost the lock and does not know it.
#[tokio::test]
async fn who_was_replaced_cannot_save_any_more() {
    let shop = Shop::open().await;
    shop.world.write(1, 1);
    let old = shop.followed().await;
    let later = Locks::memory();
    for _ in 0..100 {
        later.mutex(format!("cdc:{NAME}")).lock().await.unwrap().release().await.unwrap();
    }
    let new = shop.world.follow(&shop.cache, &later);
    shop.world.caught_up(&new).await;
    let refused = async || matches!(old.status().state, State::Waiting { why } if why.contains("larger token"));
    within(&old, "it is refused", refused).await;
    let saves = old.status().saves;
    for number in 2..10 {
        shop.warm(1).await;
        shop.world.write(1, number);
        shop.world.caught_up(&new).await;
        assert_eq!(shop.number(1).await, number);
    }
    assert_eq!((old.status().saves, new.status().tenures), (saves, 1));
    assert_eq!(shop.saved().await, Some(shop.world.end()));
}

#[tokio::test]
async fn who_cannot_reach_the_cache_lets_another_one_try() {
    let shop = Shop::open().await;
    shop.world.write(1, 1);
    let proxy = Proxy::to(shop.server.address()).await;
    let url = format!("redis://{}", proxy.address());
    let far = shop.world.cache(lockkeeper_cache::Redis::connect(&url).await.unwrap(), "user");
    let unlucky = shop.world.follow(&far, &shop.locks);
    shop.world.caught_up(&unlucky).await;
    shop.warm(1).await;
    let standby = shop.world.follow(&shop.cache, &shop.locks);
    proxy.cut();
    shop.world.write(1, 2);
    within(&standby, "it takes over", async || standby.status().tenures == 1).await;
    shop.world.caught_up(&standby).await;
    assert_eq!(shop.number(1).await, 2);
    let status = unlucky.status();
    assert!(status.failures >= 5 && status.last_error.is_some(), "{status:?}");
    assert_eq!(standby.status().resets, 0);
}
