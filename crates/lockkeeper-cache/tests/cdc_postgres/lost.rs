//! Histories that are lost, and said to be.

use lockkeeper_cache::cdc::{LogError, Position, Source};
use testkit::wait::{eventually, soon};

use crate::harness::{Place, until_error};

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, number int)";

async fn place() -> Place {
    Place::new(&[ITEMS], &["items id"]).await
}

async fn lost(place: &Place, log: &mut dyn lockkeeper_cache::cdc::Log) -> String {
    match until_error(log).await {
        LogError::Lost(why) => why,
        other => panic!("{other} at {}", place.name),
    }
}

#[tokio::test]
async fn a_slot_that_was_dropped_is_lost() {
    let place = place().await;
    let (log, position) = place.begin().await;
    drop(log);
    eventually("let go", async || place.slot("active") == "f").await;
    place.sql(&format!("SELECT pg_drop_replication_slot('{}')", place.name));
    assert!(place.lost(&position).await.contains("no slot"));
    // Made anew by somebody else.
    place.sql("INSERT INTO items VALUES (1)");
    let name = &place.name;
    place.sql(&format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"));
    assert!(place.lost(&position).await.contains("already, after"));
}

#[tokio::test]
async fn a_position_that_was_confirmed_is_not_gone_back_behind() {
    let place = place().await;
    let (mut log, old) = place.begin().await;
    place.sql("INSERT INTO items VALUES (1)");
    let (_, position) = place.told_to(&mut *log).await;
    log.confirm(&position.unwrap()).await.unwrap();
    let Position(text) = &old;
    let lsn = text.split("lsn\":\"").nth(1).unwrap().split('"').next().unwrap();
    let passed = format!("confirmed_flush_lsn > '{lsn}'");
    eventually("confirmed", async || place.slot(&passed) == "t").await;
    drop(log);
    assert!(place.lost(&old).await.contains("already, after"));
}

#[tokio::test]
async fn a_slot_that_had_to_give_up_its_log_is_lost() {
    let small = ["-cmax_slot_wal_keep_size=1MB", "-cmin_wal_size=32MB", "-cmax_wal_size=32MB"];
    let place = Place::alone(&small, &[ITEMS], &["items id"]).await;
    let (log, position) = place.begin().await;
    drop(log);
    for _ in 0..5 {
        place.sql("SELECT pg_switch_wal()");
        place.sql("INSERT INTO items SELECT coalesce(max(id), 0) + 1 FROM items");
        place.sql("DELETE FROM items");
        place.sql("CHECKPOINT");
    }
    assert_eq!(place.slot("wal_status"), "lost");
    assert!(place.lost(&position).await.contains("is lost"));
    // A new beginning works.
    let (mut log, _) = place.begin().await;
    place.sql("INSERT INTO items VALUES (1)");
    assert_eq!(place.told(&mut *log).await, ["items +1"]);
    let kept = place.source().retention().await.unwrap().unwrap();
    assert!(kept.left.is_some());
}

#[tokio::test]
async fn a_slot_that_keeps_too_much_is_dropped() {
    let place = place().await;
    let (log, position) = place.begin().await;
    drop(log);
    place.server.operator("elsewhere", "CREATE TABLE IF NOT EXISTS noise (x text)");
    place.server.operator(
        "elsewhere",
        "INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 3000)",
    );
    let source = place.source().max_retained(1 << 20);
    let error = source.open(Some(&position), place.wanted()).await.unwrap_err();
    assert!(matches!(&error, LogError::Lost(why) if why.contains("was dropped")), "{error}");
    assert_eq!(place.slot("1"), "");
    // While it is read, and is not confirmed.
    let mut log = soon("opened", source.open(None, place.wanted())).await.unwrap();
    place.server.operator(
        "elsewhere",
        "INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 3000)",
    );
    assert!(lost(&place, &mut *log).await.contains("was dropped"));
    assert_eq!(place.slot("1"), "");
}

#[tokio::test]
async fn another_server_is_another_history() {
    let (here, there) = (place().await, Place::alone(&[], &[ITEMS], &["items id"]).await);
    let (log, position) = here.begin().await;
    drop(log);
    let why = there.lost(&position).await;
    assert!(why.contains("of server"), "{why}");
    let why = here.source().slot("other").open(Some(&position), here.wanted()).await.unwrap_err();
    assert!(why.to_string().contains("of slot"), "{why}");
    assert!(here.lost(&Position("x".into())).await.contains("cannot be read"));
    let ahead = position.0.split("\"lsn\"").next().unwrap().to_owned() + "\"lsn\":\"FFFF/0\"}";
    assert!(here.lost(&Position(ahead)).await.contains("set back"));
}

#[tokio::test]
async fn a_table_that_leaves_the_publication_is_lost_and_then_refused() {
    let place = place().await;
    let (mut log, position) = place.begin().await;
    place.sql("ALTER PUBLICATION lockkeeper DROP TABLE items");
    assert!(lost(&place, &mut *log).await.contains("not in the publication"));
    drop(log);
    let refused = place.open(&position).await.unwrap_err();
    let fix = "ALTER PUBLICATION \"lockkeeper\" ADD TABLE \"public\".\"items\";";
    assert!(matches!(&refused, LogError::Refused(why) if why.contains(fix)), "{refused}");
    // What was changed meanwhile is not in the log, and nothing there says so.
    place.sql("INSERT INTO items VALUES (1)");
    place.sql(fix);
    assert!(place.lost(&position).await.contains("made anew"));
    place.begin().await;
}

#[tokio::test]
async fn a_publication_that_was_changed_and_changed_back_is_lost() {
    let place = place().await;
    let (mut log, position) = place.begin().await;
    place.sql("ALTER PUBLICATION lockkeeper SET (publish = 'insert')");
    place.sql("UPDATE items SET number = 2");
    place.sql("ALTER PUBLICATION lockkeeper SET (publish = 'insert, update, delete, truncate')");
    assert!(lost(&place, &mut *log).await.contains("made anew"));
    drop(log);
    assert!(place.lost(&position).await.contains("made anew"));
}

#[tokio::test]
async fn a_table_that_is_made_anew_is_lost() {
    let place = place().await;
    let (mut log, position) = place.begin().await;
    place.sql("DROP TABLE items");
    place.sql(ITEMS);
    place.sql("ALTER PUBLICATION lockkeeper ADD TABLE items");
    assert!(lost(&place, &mut *log).await.contains("made anew"));
    drop(log);
    assert!(place.lost(&position).await.contains("made anew"));
}

#[tokio::test]
async fn a_publication_that_is_gone_is_lost_and_then_refused() {
    let place = place().await;
    let (mut log, position) = place.begin().await;
    place.sql("DROP PUBLICATION lockkeeper");
    place.sql("INSERT INTO items VALUES (1)");
    lost(&place, &mut *log).await;
    drop(log);
    let refused = place.open(&position).await.unwrap_err();
    assert!(
        matches!(&refused, LogError::Refused(why) if why.contains("no publication")),
        "{refused}"
    );
    place.source().set_up(place.wanted()).await.unwrap();
    assert!(place.lost(&position).await.contains("made anew"));
}
