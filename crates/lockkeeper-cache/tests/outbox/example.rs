//! The example of a shop, at real servers.

use lockkeeper_cache::BoxError;
use testkit::database::System;
use testkit::server;

use self::shop::shop;

#[path = "../../examples/shop.rs"]
#[expect(dead_code, reason = "its own main is not called")]
mod shop;

#[tokio::test]
async fn the_example_of_a_shop_sees_what_it_writes() -> Result<(), BoxError> {
    let (database, redis) = (System::Postgres.shared().await, server::redis(&[]).await);
    database.operator("", "CREATE DATABASE shop");
    let redis = format!("redis://{}", redis.address());
    let prices = shop(&database.url("shop"), &redis).await?;
    assert_eq!(prices, [100, 100, 100, 100, 100, 100, 101, 1]);
    Ok(())
}
