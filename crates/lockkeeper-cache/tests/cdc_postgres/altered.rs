//! What is done to tables as a whole: the log says nothing of it, or only when the next row comes.

use lockkeeper_cache::cdc::{Log, Source};
use sqlx::{Connection, PgConnection};
use testkit::wait::soon;

use crate::harness::Place;

/// By this one it is known that the server was looked at.
const MARK: [&str; 2] = [
    "CREATE TABLE mark (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE mark1 PARTITION OF mark FOR VALUES FROM (1) TO (2)",
];

const LOOKED: &str = "its columns or partitions have changed, or its rows were written anew";

/// A plain table.
fn plain(name: &str) -> [String; 2] {
    [
        format!("CREATE TABLE {name} (id int PRIMARY KEY, number int)"),
        format!("INSERT INTO {name} VALUES (1, 10)"),
    ]
}

/// One with a partition that has a partition.
fn parted(name: &str) -> [String; 4] {
    [
        format!("CREATE TABLE {name} (id int PRIMARY KEY, number int) PARTITION BY RANGE (id)"),
        format!(
            "CREATE TABLE {name}_a PARTITION OF {name} FOR VALUES FROM (1) TO (9) \
             PARTITION BY RANGE (id)"
        ),
        format!("CREATE TABLE {name}_b PARTITION OF {name}_a FOR VALUES FROM (1) TO (9)"),
        format!("INSERT INTO {name} VALUES (1, 10)"),
    ]
}

async fn place(tables: Vec<String>, wanted: &[&str]) -> Place {
    let statements: Vec<&str> = MARK.into_iter().chain(tables.iter().map(String::as_str)).collect();
    Place::new(&statements, &[wanted, &["mark id"]].concat()).await
}

/// What is told until the server was looked at once more, sorted, each once.
async fn looked(place: &Place, log: &mut dyn Log) -> Vec<String> {
    place.sql("TRUNCATE mark1");
    let mut lines = Vec::new();
    let looked = async {
        while !lines.iter().any(|line: &String| line.starts_with("mark all")) {
            lines.extend(place.lines(&log.next().await.unwrap()));
        }
    };
    soon("looked at", looked).await;
    lines.retain(|line| !line.starts_with("mark all"));
    lines.sort();
    lines.dedup();
    lines
}

#[tokio::test]
async fn a_table_whose_rows_look_otherwise_is_told_once() {
    const CASES: [(&str, &[&str]); 16] = [
        ("p_type", &["ALTER TABLE p_type ALTER number TYPE bigint USING number * 100"]),
        ("p_value", &["ALTER TABLE p_value ALTER number TYPE int USING number * 100"]),
        ("p_add", &["ALTER TABLE p_add ADD more text DEFAULT 'm'"]),
        ("p_drop", &["ALTER TABLE p_drop DROP number"]),
        ("p_name", &["ALTER TABLE p_name RENAME number TO amount"]),
        ("p_back", &["ALTER TABLE p_back ADD more int", "ALTER TABLE p_back DROP more"]),
        (
            "p_named",
            &[
                "ALTER TABLE p_named RENAME number TO amount",
                "ALTER TABLE p_named RENAME amount TO number",
            ],
        ),
        ("p_full", &["VACUUM FULL p_full"]),
        ("p_order", &["CLUSTER p_order USING p_order_pkey"]),
        ("q_type", &["ALTER TABLE q_type ALTER number TYPE bigint USING number * 100"]),
        ("q_add", &["ALTER TABLE q_add ADD more text DEFAULT 'm'"]),
        ("q_drop", &["ALTER TABLE q_drop DROP number"]),
        ("q_name", &["ALTER TABLE q_name RENAME number TO amount"]),
        ("q_full", &["VACUUM FULL q_full_b"]),
        // What is changed in between is not published.
        (
            "q_away",
            &["BEGIN; ALTER TABLE q_away_a DETACH PARTITION q_away_b; \
               UPDATE q_away_b SET number = 7; \
               ALTER TABLE q_away_a ATTACH PARTITION q_away_b FOR VALUES FROM (1) TO (9); COMMIT"],
        ),
        (
            "q_far",
            &["BEGIN; ALTER TABLE q_far DETACH PARTITION q_far_a; \
               UPDATE q_far_a SET number = 7; \
               ALTER TABLE q_far ATTACH PARTITION q_far_a FOR VALUES FROM (1) TO (9); COMMIT"],
        ),
    ];
    let mut tables = Vec::new();
    for (name, _) in CASES {
        match name.starts_with('p') {
            true => tables.extend(plain(name)),
            false => tables.extend(parted(name)),
        }
    }
    let wanted = CASES.map(|(name, _)| format!("{name} id"));
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let place = place(tables, &wanted).await;
    let (mut log, _) = place.begin().await;
    for statement in CASES.iter().flat_map(|(_, statements)| *statements) {
        place.sql(statement);
    }
    let mut expected = CASES.map(|(name, _)| format!("{name} all: {LOOKED}"));
    expected.sort();
    assert_eq!(looked(&place, &mut *log).await, expected);
    // Once is enough.
    assert!(looked(&place, &mut *log).await.is_empty());
}

#[tokio::test]
async fn what_leaves_the_rows_as_they_are_is_not_told() {
    let tables = [&plain("items")[..], &parted("parts")].concat();
    let place = place(tables, &["items id", "parts id"]).await;
    let (mut log, _) = place.begin().await;
    for statement in [
        "VACUUM items",
        "VACUUM (FREEZE, ANALYZE) items",
        "VACUUM parts",
        "ANALYZE parts",
        "VACUUM FREEZE pg_attribute",
        "CREATE INDEX one ON items (number)",
        "CREATE INDEX CONCURRENTLY other ON items (number)",
        "CREATE INDEX many ON parts (number)",
        "REINDEX TABLE items",
        "DROP INDEX one",
        "ALTER TABLE items REPLICA IDENTITY FULL",
        "ALTER TABLE items REPLICA IDENTITY DEFAULT",
        "ALTER TABLE parts_b REPLICA IDENTITY FULL",
        "ALTER TABLE items SET (fillfactor = 90)",
        "ALTER TABLE items ADD CHECK (number > 0)",
        "BEGIN; ALTER TABLE items ALTER number TYPE bigint USING number * 100; ROLLBACK",
        "BEGIN; ALTER TABLE parts DROP number; ROLLBACK",
        "BEGIN; SAVEPOINT a; ALTER TABLE items ADD more int DEFAULT 1; ROLLBACK TO a; COMMIT",
    ] {
        place.sql(statement);
    }
    let told = looked(&place, &mut *log).await;
    assert!(told.is_empty(), "{told:?}");
}

/// It is told when it can be read; and while it waits for its commit nobody is held up, although it has locked the table.
#[tokio::test]
async fn an_alter_is_told_when_it_can_be_read_and_holds_nobody_up() {
    let tables = [&plain("items")[..], &parted("parts")].concat();
    let place = place(tables, &["items id", "parts id"]).await;
    let (mut log, _) = place.begin().await;
    let mut writer = PgConnection::connect(&place.url()).await.unwrap();
    let mut open = writer.begin().await.unwrap();
    let alter = "ALTER TABLE parts ALTER number TYPE bigint USING number * 100";
    sqlx::query(alter).execute(&mut *open).await.unwrap();
    place.sql("UPDATE items SET number = 11");
    assert_eq!(looked(&place, &mut *log).await, ["items +1"]);
    assert!(place.source().check(place.wanted()).await.is_ok(), "it can be asked meanwhile");
    open.commit().await.unwrap();
    let told = async {
        while place.lines(&log.next().await.unwrap()) != [format!("parts all: {LOOKED}")] {}
    };
    soon("told", told).await;
    assert_eq!(place.sql("SELECT number FROM parts"), "1000");
}

#[tokio::test]
async fn an_alter_while_nobody_follows_counts_for_everything() {
    let tables = [&plain("items")[..], &plain("others")].concat();
    let place = place(tables, &["items id", "others id"]).await;
    let (log, position) = place.begin().await;
    drop(log);
    place.sql("BEGIN; ALTER TABLE items DROP number; ROLLBACK");
    place.sql("VACUUM ANALYZE items");
    let mut log = place.open(&position).await.unwrap();
    assert!(place.told(&mut *log).await.is_empty(), "nothing has happened");
    drop(log);
    place.sql("ALTER TABLE items ALTER number TYPE bigint USING number * 100");
    place.sql("INSERT INTO others VALUES (2, 2)");
    let everything = "everything: columns or partitions of a table have changed, or its rows were \
                      written anew, while nobody was looking";
    // As often as it begins there.
    for _ in 0..2 {
        let mut log = place.open(&position).await.unwrap();
        assert_eq!(place.told(&mut *log).await, [everything, "others +2"]);
    }
    let mut log = place.open(&position).await.unwrap();
    let (_, after) = place.told_to(&mut *log).await;
    drop(log);
    let mut log = place.open(&after.unwrap()).await.unwrap();
    assert!(place.told(&mut *log).await.is_empty(), "that is done");
}

/// Nobody has to wait for the look: the log says it with the next row, and not before that can be seen.
#[tokio::test]
async fn other_columns_are_told_with_the_next_row() {
    let place = place(plain("items").to_vec(), &["items id"]).await;
    let (mut log, _) = place.begin().await;
    place.sql("UPDATE items SET number = 1");
    assert_eq!(place.told(&mut *log).await, ["items +1"]);
    place.sql("BEGIN; ALTER TABLE items ADD gone int; UPDATE items SET number = 2; ROLLBACK");
    place.sql("ALTER TABLE items REPLICA IDENTITY FULL");
    place.sql("UPDATE items SET number = 3");
    assert_eq!(place.told(&mut *log).await, ["items -1 +1"]);
    place.sql(
        "BEGIN; ALTER TABLE items ALTER number TYPE bigint; UPDATE items SET number = 4; COMMIT",
    );
    let told = place.told(&mut *log).await;
    assert_eq!(told[..2], ["items all: its columns have changed", "items -1 +1"]);
}
