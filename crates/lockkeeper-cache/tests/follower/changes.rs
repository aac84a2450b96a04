//! What the log says, and what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_cache::cdc::{Cell, Change, Finding, Follower, Rule, Severity, State};
use lockkeeper_cache::{Cache, Error, Loaded, Memory, Redis, Touched};
use testkit::server;
use testkit::wait::{eventually, soon};
use tokio::sync::Semaphore;

use crate::world::{NAME, Point, Shop, World, changed, connect, row, table, text, within};

#[tokio::test]
async fn what_anybody_writes_is_read() {
    let shop = Shop::open().await;
    shop.world.write(1, 1);
    let follower = shop.followed().await;
    for number in 2..20 {
        shop.warm(1).await;
        shop.world.write(1, number);
        shop.world.caught_up(&follower).await;
        assert_eq!(shop.number(1).await, number);
    }
    let status = follower.status();
    assert_eq!((status.keys, status.changes, status.tenures), (18, 18, 1), "{status:?}");
    assert_eq!((status.resets, status.cleared, status.failures), (1, 1, 0), "{status:?}");
    assert_eq!(status.last_error, None);
    eventually("all is read", async || follower.status().lag.bytes.is_none()).await;
    assert_eq!(shop.saved().await, Some(shop.world.end()));
    eventually("it is confirmed", async || shop.world.confirmed() == Some(shop.world.end())).await;
    follower.stop().await;
}

#[tokio::test]
async fn positions_where_nothing_changed_are_saved_now_and_then() {
    let shop = Shop::open().await;
    let follower = shop.followed().await;
    let before = follower.status().saves;
    for _ in 0..100 {
        // Of a table that nobody wants.
        let other = row(&[("id", text(1))]);
        shop.world
            .commit(&[], vec![Change::Row { table: table("other"), old: None, new: Some(other) }]);
    }
    shop.world.caught_up(&follower).await;
    let status = follower.status();
    assert!(status.saves - before <= 5 && status.changes == 100, "{status:?}");
    assert_eq!(status.keys, 0);
}

#[tokio::test]
async fn a_key_that_changes_is_invalidated_under_both_names() {
    let shop = Shop::open().await;
    shop.world.commit(&[(1, 1), (2, 0), (3, 3)], vec![]);
    let follower = shop.followed().await;
    for id in [1, 2, 3] {
        shop.warm(id).await;
    }
    let (old, new) = (Some(row(&[("id", text(1))])), Some(row(&[("id", text(2))])));
    let moved = Change::Row { table: table("users"), old, new };
    shop.world.commit(&[(1, 0), (2, 1)], vec![moved]);
    shop.world.caught_up(&follower).await;
    assert_eq!((shop.number(1).await, shop.number(2).await), (0, 1));
    let gone = Change::Row { table: table("users"), old: Some(row(&[("id", text(2))])), new: None };
    shop.world.commit(&[(2, 0)], vec![gone]);
    shop.world.caught_up(&follower).await;
    assert_eq!(shop.number(2).await, 0);
    assert!(shop.is_cached(3).await, "nobody has touched it");
    assert_eq!(follower.status().keys, 3);
}

#[tokio::test]
async fn keys_of_several_columns_and_several_caches_have_their_rules() {
    let server = server::redis(&[]).await;
    let world = World::new();
    let loader = async |key: String| Ok::<_, Error>(Loaded::found(key));
    let pairs = Cache::builder(connect(&server).await).namespace("pair").max_key(8);
    let pairs = pairs.build(loader).unwrap();
    let names = Cache::builder(connect(&server).await).namespace("name").build(loader).unwrap();
    let rule = |template| Rule::new("public.users", template).unwrap();
    let follower = Follower::builder(world.clone())
        .name(NAME)
        .rule(rule("{tenant}/{id}"), &pairs)
        .rule(rule("{name}"), &names)
        .rule(rule("all"), &names)
        .locks(Locks::memory())
        .start()
        .unwrap();
    world.caught_up(&follower).await;
    let raw = testkit::resp::Raw::connect(server.address()).await;
    for key in ["a/1", "a/2"] {
        pairs.get(&key.to_owned()).await.unwrap();
    }
    for key in ["anna", "otto", "all"] {
        names.get(&key.to_owned()).await.unwrap();
    }
    let new = |tenant: &str| {
        let cells = [("tenant", text(tenant)), ("id", text(1)), ("name", text("anna"))];
        let new = Some(row(&cells));
        Change::Row { table: table("users"), old: None, new }
    };
    // One is longer than any key of that cache.
    world.commit(&[], vec![new("a"), new("a"), new("too long")]);
    world.caught_up(&follower).await;
    let left = async |pattern: &str| raw.keys(pattern).await;
    assert_eq!(left("pair:*").await, ["pair:a/2"]);
    assert_eq!(left("name:*").await, ["name:otto"]);
    assert_eq!(follower.status().keys, 3);
}

#[tokio::test]
async fn what_the_log_does_not_know_clears_the_namespace() {
    let shop = Shop::open().await;
    shop.world.commit(&[(1, 1), (2, 2)], vec![]);
    let follower = shop.followed().await;
    let other = shop.world.cache(connect(&shop.server).await, "other");
    other.get(&1).await.unwrap();
    let unknown =
        Change::Row { table: table("users"), old: None, new: Some(row(&[("id", Cell::Missing)])) };
    let null =
        Change::Row { table: table("users"), old: None, new: Some(row(&[("id", Cell::Null)])) };
    let truncated = Change::Table { table: table("users"), why: "TRUNCATE" };
    let everything = Change::Everything { why: "nobody knows" };
    for (at, change) in [unknown, truncated, everything].into_iter().enumerate() {
        shop.warm(1).await;
        shop.warm(2).await;
        shop.world.commit(&[(1, 10 + at as u64)], vec![null.clone(), change]);
        shop.world.caught_up(&follower).await;
        assert!(!shop.is_cached(2).await, "{at}");
        assert_eq!(shop.number(1).await, 10 + at as u64);
    }
    let raw = testkit::resp::Raw::connect(shop.server.address()).await;
    assert!(raw.exists("other:1").await, "that is not ours");
    let status = follower.status();
    assert_eq!((status.cleared, status.unknown, status.resets), (4, 1, 1), "{status:?}");
    assert_eq!(status.keys, 0);
    let position = shop.saved().await;
    assert_eq!(position, Some(shop.world.end()), "it is not cleared away with the others");
}

#[tokio::test]
async fn keys_that_writers_name_are_invalidated_in_their_namespace() {
    let shop = Shop::open().await;
    shop.world.commit(&[(1, 1)], vec![]);
    let named = shop.world.cache(connect(&shop.server).await, "named");
    let builder = shop.world.builder(&shop.cache).cache(&named).locks(shop.locks.clone());
    let follower = builder.start().unwrap();
    shop.world.caught_up(&follower).await;
    named.get(&1).await.unwrap();
    let keys = |namespace: &str| Change::Keys {
        namespace: namespace.into(),
        touched: ["1", "no number"].map(|key| Touched { key: key.into(), version: 0 }).to_vec(),
    };
    shop.world.commit(&[(1, 2)], vec![keys("named"), keys("nobody's")]);
    shop.world.caught_up(&follower).await;
    assert_eq!(named.get(&1).await.unwrap().as_deref(), Some(&2));
    let status = follower.status();
    assert_eq!((status.keys, status.foreign), (2, 2), "{status:?}");
}

#[tokio::test]
async fn what_is_to_be_refreshed_is_there_before_anybody_asks() {
    let shop = Shop::open().await;
    shop.world.commit(&[(1, 1)], vec![]);
    let rule = Rule::new("public.users", "{id}").unwrap();
    let follower = Follower::builder(shop.world.clone())
        .name(NAME)
        .refresh(rule, &shop.cache)
        .locks(shop.locks.clone())
        .start()
        .unwrap();
    shop.world.caught_up(&follower).await;
    let strange =
        Change::Row { table: table("users"), old: None, new: Some(row(&[("id", text("x"))])) };
    shop.world.commit(&[(1, 2)], vec![changed(1), strange]);
    within(&follower, "it is refreshed", async || {
        let status = follower.status();
        (status.refreshed, status.not_refreshed) == (1, 1)
    })
    .await;
    assert!(shop.is_cached(1).await);
    let loads = shop.cache.stats().loads;
    assert_eq!((shop.number(1).await, shop.cache.stats().loads), (2, loads));
    assert_eq!(follower.status().keys, 2);
}

/// Its value is of before the change, and it comes after the invalidation.
#[tokio::test]
async fn a_load_that_began_before_the_change_fills_nothing() {
    let shop = Shop::open().await;
    let follower = shop.followed().await;
    let gate = Arc::new(Semaphore::new(0));
    let (world, opens) = (shop.world.clone(), Arc::clone(&gate));
    let loader = move |id: u64| {
        let (number, opens) = (world.read(id), Arc::clone(&opens));
        async move {
            opens.acquire().await.unwrap().forget();
            Ok::<_, Error>(Loaded::found(number))
        }
    };
    let slow = Cache::builder(connect(&shop.server).await).namespace("user").build(loader).unwrap();
    shop.world.commit(&[(1, 1)], vec![]);
    let reading = tokio::spawn({
        let slow = slow.clone();
        async move { slow.get(&1).await }
    });
    eventually("it loads", async || shop.is_cached(1).await && slow.stats().loads == 1).await;
    shop.world.write(1, 2);
    shop.world.caught_up(&follower).await;
    gate.add_permits(1);
    assert_eq!(soon("a value", reading).await.unwrap().unwrap().as_deref(), Some(&1));
    slow.idle().await;
    assert_eq!(slow.stats().lost_fills, 1);
    assert_eq!(shop.number(1).await, 2);
}

#[tokio::test]
async fn a_large_transaction_is_done_in_pieces_and_saved_as_one() {
    let shop = Shop::open().await;
    let rows: Vec<(u64, u64)> = (1..=7).map(|id| (id, 1)).collect();
    shop.world.commit(&rows, vec![]);
    let follower = shop.followed().await;
    let before = shop.saved().await;
    for (id, _) in &rows {
        shop.warm(*id).await;
    }
    let seven: Vec<(u64, u64)> = (1..=7).map(|id| (id, 2)).collect();
    shop.world.hold(Point::Piece);
    shop.world.commit(&seven, (1..=7).map(changed).collect());
    shop.world.held().await;
    // The first piece is done.
    assert_eq!((follower.status().keys, shop.saved().await), (3, before.clone()));
    assert_eq!((shop.number(3).await, shop.number(4).await), (2, 1));
    // So long that a position is saved after the next piece: the one from before.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    shop.world.hold(Point::Confirm);
    shop.world.held().await;
    assert_eq!((follower.status().keys, shop.saved().await), (6, before.clone()));
    shop.world.hold(Point::Piece);
    shop.world.held().await;
    follower.stop().await;
    shop.world.let_go();
    // Whoever comes next does all of it.
    let follower = shop.followed().await;
    assert_eq!((follower.status().keys, follower.status().resets), (7, 0));
    for (id, number) in seven {
        assert_eq!(shop.number(id).await, number);
    }
}

#[tokio::test]
async fn a_database_that_is_not_set_up_is_said_and_asked_again() {
    let shop = Shop::open().await;
    let (what, fix) = ("no replica identity".to_owned(), Some("ALTER TABLE".to_owned()));
    let bad = Finding { severity: Severity::Error, what, fix };
    let warning = Finding { severity: Severity::Warning, what: "slow".into(), fix: None };
    shop.world.find(vec![warning.clone(), bad]);
    let follower = shop.world.follow(&shop.cache, &shop.locks);
    within(&follower, "it is said", async || {
        matches!(follower.status().state, State::Waiting { why } if why.contains("replica identity") && why.contains("ALTER") && !why.contains("slow"))
    })
    .await;
    assert!(shop.world.opened().is_empty() && shop.saved().await.is_none());
    shop.world.find(vec![warning]);
    shop.world.caught_up(&follower).await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_at_the_start() {
    let shop = Shop::open().await;
    let refused = |builder: lockkeeper_cache::cdc::Builder| match builder.start() {
        Err(Error::Config(why)) => why,
        other => panic!("{other:?}"),
    };
    let builder = || shop.world.builder(&shop.cache);
    assert!(refused(builder()).contains("locks"));
    let nothing = Follower::builder(shop.world.clone()).locks(shop.locks.clone());
    assert!(refused(nothing).contains("rule"));
    assert!(refused(builder().name("a\nb").locks(shop.locks.clone())).contains("U+000A"));
    let url = format!("redis://{}", shop.server.address());
    let warm = shop.world.cache(Redis::connect_warm(&url).await.unwrap(), "warm");
    let rule = Rule::new("public.users", "{id}").unwrap();
    let why = refused(builder().rule(rule, &warm).locks(shop.locks.clone()));
    assert!(why.contains("connect_warm") && why.contains("\"warm\""), "{why}");
}

#[tokio::test]
async fn it_works_inside_a_process_as_well() {
    let world = World::new();
    let source = world.clone();
    let loader = move |id: u64| {
        let number = source.read(id);
        async move { Ok::<_, Error>(Loaded::found(number)) }
    };
    let cache = Cache::builder(Memory::new()).namespace("cache").build(loader).unwrap();
    let follower = world.follow(&cache, &Locks::memory());
    world.caught_up(&follower).await;
    for number in 1..5 {
        world.write(1, number);
        world.caught_up(&follower).await;
        assert_eq!(cache.get(&1).await.unwrap().as_deref(), Some(&number));
    }
    tokio::time::timeout(Duration::from_secs(10), follower.stop()).await.unwrap();
}
