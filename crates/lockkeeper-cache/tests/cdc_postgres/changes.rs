//! What is told, and what is not.

use lockkeeper_cache::cdc::postgres::EMIT;
use lockkeeper_cache::{Cache, Error, Loaded, Memory};
use sqlx::{Connection, PgConnection};
use testkit::wait::soon;

use crate::harness::Place;

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, number int)";

const LOOKED: &str = "its columns or partitions have changed, or its rows were written anew";

/// What the log itself says, and not what was found by looking, which may be at any time.
fn said(mut told: Vec<String>) -> Vec<String> {
    told.retain(|line| !line.ends_with(LOOKED));
    told
}

#[tokio::test]
async fn what_is_committed_is_told_in_order_and_what_is_rolled_back_is_not() {
    let place = Place::new(&[ITEMS, "INSERT INTO items VALUES (9, 0)"], &["items id"]).await;
    let (mut log, _) = place.begin().await;
    place.sql("INSERT INTO items VALUES (1, 1), (2, 2)");
    place.sql("BEGIN; INSERT INTO items VALUES (3, 3); UPDATE items SET number = 0; ROLLBACK");
    place.sql(
        "BEGIN; INSERT INTO items VALUES (4, 4); SAVEPOINT a; INSERT INTO items VALUES (5, 5); \
         ROLLBACK TO a; DELETE FROM items WHERE id = 1; COMMIT",
    );
    place.sql("UPDATE items SET number = 7 WHERE id = 2");
    place.sql("UPDATE items SET id = 20 WHERE id = 2");
    let told = place.told(&mut *log).await;
    let expected = ["items +1", "items +2", "items +4", "items -1", "items +2", "items -2 +20"];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn keys_of_several_columns_and_of_others_than_the_primary_key() {
    let tables = [
        "CREATE TABLE pairs (a int, b text, c int, PRIMARY KEY (a, b))",
        "CREATE TABLE users (id int PRIMARY KEY, mail text, name text)",
        "ALTER TABLE users REPLICA IDENTITY FULL",
        "CREATE TABLE codes (id int PRIMARY KEY, code text NOT NULL UNIQUE)",
        "ALTER TABLE codes REPLICA IDENTITY USING INDEX codes_code_key",
    ];
    let place = Place::new(&tables, &["pairs a b", "users mail", "codes code"]).await;
    let (mut log, _) = place.begin().await;
    place.sql("INSERT INTO pairs VALUES (1, 'x''y', 1), (1, 'ä', 1)");
    place.sql("UPDATE pairs SET b = 'z' WHERE b = 'ä'");
    place.sql("INSERT INTO users VALUES (1, 'old@x', 'n'), (2, NULL, 'n')");
    place.sql("UPDATE users SET mail = 'new@x' WHERE id = 1");
    place.sql("DELETE FROM users");
    place.sql("INSERT INTO codes VALUES (1, 'c')");
    place.sql("UPDATE codes SET code = 'd'");
    place.sql("DELETE FROM codes");
    let told = place.told(&mut *log).await;
    let expected = [
        "pairs +1|x'y",
        "pairs +1|ä",
        "pairs -1|ä +1|z",
        "users +old@x",
        "users +NULL",
        "users -old@x +new@x",
        "users -NULL",
        "users -new@x",
        "codes +c",
        "codes -c +d",
        "codes -d",
    ];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn every_type_is_written_in_one_way_whatever_the_settings_are() {
    let types = [
        ("smallint", "-1", "-1"),
        ("int", "2147483647", "2147483647"),
        ("bigint", "-9223372036854775808", "-9223372036854775808"),
        ("numeric", "12345678901234567890.50", "12345678901234567890.50"),
        ("numeric(9,2)", "1.5", "1.50"),
        ("text", "'a\tb:\"c'", "a\tb:\"c"),
        ("varchar(9)", "'v '", "v "),
        ("char(4)", "'ab'", "ab  "),
        ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("date", "'2026-01-31'", "2026-01-31"),
        ("timestamp", "'2026-01-31 12:00:00.5'", "2026-01-31 12:00:00.5"),
        ("timestamptz", "'2026-01-31 12:00:00+02'", "2026-01-31 10:00:00+00"),
        ("time", "'12:00'", "12:00:00"),
        ("interval", "'1 day 2 hours'", "1 day 02:00:00"),
        ("bytea", "'\\x00ff'", "\\x00ff"),
        ("boolean", "true", "t"),
        ("float8", "0.1::float8 + 0.2::float8", "0.30000000000000004"),
        ("inet", "'10.0.0.1'", "10.0.0.1"),
        ("mood", "'sad day'", "sad day"),
        ("positive", "7", "7"),
    ];
    let columns = types.iter().enumerate().map(|(at, (kind, ..))| format!("c{at:02} {kind}"));
    let names: Vec<String> = (0..types.len()).map(|at| format!("c{at:02}")).collect();
    let columns = columns.collect::<Vec<_>>().join(", ");
    let table = format!("CREATE TABLE kinds ({columns}, PRIMARY KEY ({}))", names.join(", "));
    let statements = [
        "CREATE TYPE mood AS ENUM ('sad day')",
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
        &table,
        "ALTER ROLE postgres IN DATABASE postgres SET TimeZone = 'Asia/Tokyo'",
    ];
    let place = Place::new(&statements, &[&format!("kinds {}", names.join(" "))]).await;
    for setting in [
        "TimeZone = 'Asia/Tokyo'",
        "DateStyle = 'German'",
        "IntervalStyle = 'iso_8601'",
        "bytea_output = 'escape'",
        "extra_float_digits = -10",
        "client_encoding = 'LATIN1'",
    ] {
        place.sql(&format!("ALTER DATABASE {} SET {setting}", place.name));
    }
    let (mut log, _) = place.begin().await;
    let values: Vec<&str> = types.iter().map(|(_, value, _)| *value).collect();
    place.sql(&format!("SET DateStyle = 'ISO'; INSERT INTO kinds VALUES ({})", values.join(", ")));
    let expected: Vec<&str> = types.iter().map(|(.., text)| *text).collect();
    assert_eq!(place.told(&mut *log).await, [format!("kinds +{}", expected.join("|"))]);
}

#[tokio::test]
async fn cascades_and_truncated_tables_are_told() {
    let tables = [
        "CREATE TABLE parents (id int PRIMARY KEY)",
        "CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES parents \
         ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO parents VALUES (1), (2)",
        "INSERT INTO children VALUES (10, 1), (20, 2)",
    ];
    let place = Place::new(&tables, &["parents id", "children id"]).await;
    let (mut log, _) = place.begin().await;
    place.sql("UPDATE parents SET id = 3 WHERE id = 2");
    place.sql("DELETE FROM parents WHERE id = 1");
    assert_eq!(
        place.told(&mut *log).await,
        ["parents -2 +3", "children +20", "parents -1", "children -10"]
    );
    place.sql("BEGIN; TRUNCATE parents CASCADE; ROLLBACK");
    place.sql("TRUNCATE other");
    place.sql("TRUNCATE parents CASCADE");
    let mut told = said(place.told(&mut *log).await);
    told.sort();
    assert_eq!(told, ["children all: it was truncated", "parents all: it was truncated"]);
}

#[tokio::test]
async fn a_large_value_that_did_not_change_is_missing_and_the_old_row_has_it() {
    let tables = [
        "CREATE TABLE docs (id int, body text, number int, PRIMARY KEY (id, body))",
        "ALTER TABLE docs ALTER body SET STORAGE EXTERNAL",
        "ALTER TABLE docs DROP CONSTRAINT docs_pkey, ADD PRIMARY KEY (id)",
        "ALTER TABLE docs REPLICA IDENTITY FULL",
        "INSERT INTO docs VALUES (1, repeat('x', 9000), 0)",
    ];
    let place = Place::new(&tables, &["docs body id"]).await;
    let (mut log, _) = place.begin().await;
    place.sql("UPDATE docs SET number = 1");
    let old = "x".repeat(9000);
    assert_eq!(place.told(&mut *log).await, [format!("docs -{old}|1 +?|1")]);
}

#[tokio::test]
async fn columns_come_and_go_and_keys_are_still_right() {
    let place = Place::new(&[ITEMS], &["items id"]).await;
    let (mut log, _) = place.begin().await;
    place.sql("INSERT INTO items VALUES (1, 1)");
    place.sql("ALTER TABLE items ADD COLUMN more text DEFAULT 'm'");
    place.sql("INSERT INTO items VALUES (2, 1)");
    place.sql("ALTER TABLE items DROP COLUMN number");
    place.sql("INSERT INTO items VALUES (3, 'x')");
    place.sql("ALTER TABLE items RENAME COLUMN more TO less");
    place.sql("UPDATE items SET less = 'y' WHERE id = 3");
    let changed = "items all: its columns have changed";
    let told = said(place.told(&mut *log).await);
    let expected = ["items +1", changed, "items +2", changed, "items +3", changed, "items +3"];
    assert_eq!(told, expected);
    // Of a key, and back: what the log itself says, before anybody looks.
    place.sql("ALTER TABLE items RENAME COLUMN id TO key");
    place.sql("INSERT INTO items VALUES (4, 'x')");
    place.sql("ALTER TABLE items RENAME COLUMN key TO id");
    place.sql("INSERT INTO items VALUES (5, 'x')");
    let told = said(place.told(&mut *log).await);
    let gone = "items all: a column that keys are made of is not there";
    assert_eq!(told, [gone, "items +?", changed, "items +5"]);
}

#[tokio::test]
async fn what_does_not_say_what_it_was_counts_for_the_table() {
    let users = "CREATE TABLE users (id int PRIMARY KEY, mail text)";
    let tables =
        [users, "ALTER TABLE users REPLICA IDENTITY FULL", "INSERT INTO users VALUES (1, 'a')"];
    let place = Place::new(&tables, &["users mail"]).await;
    let (mut log, _) = place.begin().await;
    place.sql("ALTER TABLE users REPLICA IDENTITY DEFAULT");
    place.sql("UPDATE users SET mail = 'b'");
    place.sql("ALTER TABLE users REPLICA IDENTITY FULL");
    place.sql("UPDATE users SET mail = 'c'");
    let all = "users all: its rows are not identified by all that keys are made of";
    assert_eq!(place.told(&mut *log).await, [all, "users -b +c"]);
}

#[tokio::test]
async fn partitions_are_told_as_the_table_that_they_are_part_of() {
    let tables = [
        "CREATE TABLE events (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE events1 PARTITION OF events FOR VALUES FROM (1) TO (2)",
        "CREATE TABLE events2 PARTITION OF events FOR VALUES FROM (2) TO (3)",
    ];
    let place = Place::new(&tables, &["events id day"]).await;
    let (mut log, position) = place.begin().await;
    place.sql("INSERT INTO events VALUES (1, 1), (2, 2)");
    place.sql("UPDATE events SET day = 2 WHERE id = 1");
    place.sql("INSERT INTO events1 VALUES (3, 1)");
    place.sql("TRUNCATE events");
    let mut told = place.told(&mut *log).await;
    assert_eq!(told.pop().as_deref(), Some("events all: it was truncated"));
    // The columns of the table are in the order of their names: day, id.
    assert_eq!(told, ["events +1|1", "events +2|2", "events -1|1", "events +2|1", "events +1|3"]);
    // Once more, by looking; and then what is not in the log at all.
    for statement in [None, Some("TRUNCATE events2"), Some("DROP TABLE events1")] {
        statement.map(|statement| place.sql(statement));
        let looked = format!("events all: {LOOKED}");
        let told = async { while place.lines(&log.next().await.unwrap()) != [&*looked] {} };
        soon("told", told).await;
    }
    drop(log);
    // The same while nobody looked.
    let mut log = place.open(&position).await.unwrap();
    let first = log.next().await.unwrap();
    let lines = place.lines(&first);
    assert!(lines.len() == 1 && lines[0].starts_with("everything: columns or part"), "{lines:?}");
}

#[tokio::test]
async fn a_prepared_transaction_is_told_when_it_is_committed() {
    let place = Place::alone(&[], &[ITEMS], &["items id"]).await;
    let (mut log, _) = place.begin().await;
    place.sql("BEGIN; INSERT INTO items VALUES (1, 1); PREPARE TRANSACTION 'one'");
    place.sql("BEGIN; INSERT INTO items VALUES (2, 1); PREPARE TRANSACTION 'two'");
    assert!(place.told(&mut *log).await.is_empty());
    place.sql("COMMIT PREPARED 'two'");
    place.sql("ROLLBACK PREPARED 'one'");
    assert_eq!(place.told(&mut *log).await, ["items +2"]);
}

#[tokio::test]
async fn keys_that_a_writer_names_are_told_when_it_commits() {
    let place = Place::new(&[], &[]).await;
    let (mut log, _) = place.begin().await;
    let cache = |namespace: &str| {
        let loader = async |id: u64| Ok::<_, Error>(Loaded::found(id));
        Cache::builder(Memory::new()).namespace(namespace).build(loader).unwrap()
    };
    let (users, orders) = (cache("user"), cache("order"));
    let mut sql = PgConnection::connect(&place.url()).await.unwrap();
    for commit in [false, true] {
        let mut sql = sql.begin().await.unwrap();
        let mut tx = users.transaction();
        tx.touch_to(&7, 12).unwrap();
        tx.touch_in(&orders, &u64::from(commit), 0).unwrap();
        tx.touch(&8).unwrap();
        sqlx::query(EMIT).bind(tx.row().touched).execute(&mut *sql).await.unwrap();
        if commit {
            tx.commit(async { sql.commit().await }).await.unwrap().cache.unwrap();
        } else {
            sql.rollback().await.unwrap();
        }
    }
    place.sql("SELECT pg_logical_emit_message(true, 'other', 'x')");
    assert_eq!(place.told(&mut *log).await, ["user: 7/12 8/0", "order: 1/0"]);
    place.sql("SELECT pg_logical_emit_message(true, 'lockkeeper', 'x')");
    let everything = "everything: a writer has sent keys that cannot be read";
    assert_eq!(place.told(&mut *log).await, [everything]);
}

#[tokio::test]
async fn a_table_that_is_not_wanted_is_not_told() {
    let tables = [ITEMS, "CREATE TABLE more (id int PRIMARY KEY)"];
    let place = Place::new(&tables, &["items id"]).await;
    place.sql("ALTER PUBLICATION lockkeeper ADD TABLE more");
    let (mut log, _) = place.begin().await;
    place.sql("INSERT INTO more VALUES (1)");
    place.sql("TRUNCATE more");
    place.sql("INSERT INTO items VALUES (1)");
    assert_eq!(place.told(&mut *log).await, ["items +1"]);
}
