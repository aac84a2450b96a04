//! What foreign keys change, which is not in the log.

use std::collections::BTreeSet;

use crate::reader::Place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cascades_tell_of_the_whole_table() {
    let place = Place::shared(
        &["t id", "c id"],
        "CREATE TABLE t (id INT PRIMARY KEY); \
         CREATE TABLE c (id INT PRIMARY KEY, t INT, FOREIGN KEY (t) REFERENCES t (id) ON DELETE CASCADE ON UPDATE CASCADE); \
         INSERT INTO t VALUES (1), (2); INSERT INTO c VALUES (7, 1), (8, 2)",
    )
    .await;
    assert_eq!(place.says("DELETE FROM t WHERE id = 1").await, ["t -1", "c *"]);
    assert_eq!(place.says("UPDATE t SET id = 3 WHERE id = 2").await, ["t 2>3", "c *"]);
    assert_eq!(
        place.says("INSERT INTO t VALUES (5); INSERT INTO c VALUES (9, 5)").await,
        ["t +5", "c +9"]
    );
}

/// The server opens a table twice that a statement and a cascade change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cascades_into_a_table_that_has_rows_of_its_own_tell_of_it_as_a_whole() {
    let place = Place::shared(
        &["tree id", "list id", "c id"],
        "CREATE TABLE tree (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES tree (id) ON DELETE CASCADE); \
         INSERT INTO tree VALUES (1, NULL), (2, 1), (3, 2); \
         CREATE TABLE list (id INT PRIMARY KEY, next INT, FOREIGN KEY (next) REFERENCES list (id) ON DELETE SET NULL); \
         INSERT INTO list VALUES (1, NULL), (2, 1); \
         CREATE TABLE p (id INT PRIMARY KEY); \
         CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE); \
         INSERT INTO p VALUES (1), (2); INSERT INTO c VALUES (7, 1), (8, 1), (9, 2)",
    )
    .await;
    assert_eq!(place.says("DELETE FROM tree WHERE id = 1").await, ["tree -1", "tree *"]);
    assert_eq!(place.sql("SELECT COUNT(*) FROM tree"), "0");
    assert_eq!(place.says("DELETE FROM list WHERE id = 1").await, ["list -1", "list *"]);
    assert_eq!(place.sql("SELECT COUNT(*) FROM list WHERE next IS NULL"), "1");
    let join = "DELETE p, c FROM p JOIN c ON c.p = p.id WHERE c.id = 7";
    assert_eq!(place.says(join).await, ["c -7", "c *"]);
    assert_eq!(place.sql("SELECT COUNT(*) FROM c"), "1");
    // Without a cascade they are told row by row.
    let rows = "INSERT INTO tree VALUES (4, NULL), (5, 4); INSERT INTO list VALUES (3, 2); UPDATE list SET next = NULL WHERE id = 3";
    assert_eq!(place.says(rows).await, ["tree +4", "tree +5", "list +3", "list +3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cascades_into_a_table_that_a_trigger_changes_tell_of_it_as_a_whole() {
    let place = Place::shared(
        &["c id", "g id"],
        "CREATE TABLE p (id INT PRIMARY KEY); \
         CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE); \
         CREATE TABLE g (id INT PRIMARY KEY, c INT, FOREIGN KEY (c) REFERENCES c (id) ON DELETE SET NULL); \
         INSERT INTO p VALUES (1), (2); INSERT INTO c VALUES (7, 1), (8, 1), (9, 2); INSERT INTO g VALUES (77, 7), (99, 9); \
         CREATE TRIGGER gone BEFORE DELETE ON p FOR EACH ROW DELETE FROM c WHERE id = 7",
    )
    .await;
    let mut says = place.says("DELETE FROM p WHERE id = 1").await;
    says.sort();
    assert_eq!(says, ["c *", "c -7", "g *"]);
    assert_eq!(place.sql("SELECT COUNT(*) FROM c"), "1");
    // Also in a session that has locked its tables.
    let mut says = place.says("LOCK TABLES p WRITE, c WRITE; DELETE FROM p WHERE id = 2").await;
    says.sort();
    says.dedup();
    assert_eq!(place.sql("SELECT COUNT(*) FROM c"), "0");
    assert_eq!(says, ["c *", "g *"]);
}

const TABLES: [&str; 6] = ["tree", "p", "c", "g", "a", "b"];

/// Every row, with its table in front.
fn rows(place: &Place) -> BTreeSet<String> {
    let all = TABLES.map(|table| format!("SELECT '{table}', t.* FROM {table} t"));
    all.iter()
        .flat_map(|sql| place.sql(sql).lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Whether something is told of this row: `table|id|…`.
fn is_told(row: &str, says: &[String]) -> bool {
    let mut parts = row.split('|');
    let (table, id) = (parts.next().unwrap(), parts.next().unwrap());
    says.iter().any(|change| {
        let (of, what) = change.split_once(' ').unwrap_or((change, ""));
        let ids = || what.split(['+', '-', '>']).any(|told| told == id);
        of == "*" || (of == table && (what == "*" || ids()))
    })
}

/// Each in a new schema, with a circle, a chain and a tree of foreign keys, a view and a function.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_that_a_cascade_changes_is_told_somehow() {
    let schema = "CREATE TABLE tree (id INT PRIMARY KEY, v INT, FOREIGN KEY (v) REFERENCES tree (id) ON DELETE CASCADE); \
         CREATE TABLE p (id INT PRIMARY KEY, v INT); \
         CREATE TABLE c (id INT PRIMARY KEY, v INT, \
             FOREIGN KEY (v) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE); \
         CREATE TABLE g (id INT PRIMARY KEY, v INT, FOREIGN KEY (v) REFERENCES c (id) ON DELETE SET NULL ON UPDATE CASCADE); \
         CREATE TABLE a (id INT PRIMARY KEY, v INT); \
         CREATE TABLE b (id INT PRIMARY KEY, v INT, FOREIGN KEY (v) REFERENCES a (id) ON DELETE CASCADE); \
         INSERT INTO a VALUES (1, NULL), (2, NULL); INSERT INTO b VALUES (1, 1), (2, 2); UPDATE a SET v = 3 - id; \
         ALTER TABLE a ADD FOREIGN KEY (v) REFERENCES b (id) ON DELETE CASCADE; \
         INSERT INTO tree VALUES (1, NULL), (2, 1), (3, 2), (4, NULL), (5, 4); \
         INSERT INTO p VALUES (1, 0), (2, 0), (3, 0); INSERT INTO c VALUES (7, 1), (8, 1), (9, 2); INSERT INTO g VALUES (7, 7), (8, 8), (9, 9); \
         CREATE VIEW roots AS SELECT * FROM tree WHERE v IS NULL; \
         CREATE FUNCTION cut(root INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA \
         BEGIN DELETE FROM tree WHERE id = root; DELETE FROM p WHERE id = root; RETURN 1; END";
    let statements = [
        "DELETE FROM tree WHERE id = 1",
        "DELETE FROM tree WHERE v IS NULL",
        "DELETE FROM roots WHERE id = 4",
        "REPLACE INTO tree VALUES (1, 4)",
        "BEGIN; INSERT INTO tree VALUES (6, 5); DELETE FROM tree WHERE id = 4; UPDATE tree SET v = NULL WHERE id = 2; COMMIT",
        "LOCK TABLES tree WRITE; DELETE FROM tree WHERE id = 1; UNLOCK TABLES",
        "LOCK TABLES p WRITE; DELETE FROM p WHERE id = 1; UNLOCK TABLES",
        "DELETE x FROM tree x JOIN tree y ON x.id = y.v WHERE y.id = 2",
        "DELETE x, y FROM tree x JOIN tree y ON x.id = y.v WHERE y.id = 2",
        "DELETE FROM a WHERE id = 1",
        "DELETE a, b FROM a JOIN b ON b.v = a.id WHERE a.id = 1",
        "DELETE FROM p WHERE id = 1",
        "DELETE FROM p",
        "CREATE TRIGGER gone AFTER DELETE ON p FOR EACH ROW UPDATE c SET id = id + 100 WHERE id = 9; DELETE FROM p WHERE id = 1",
        "CREATE TRIGGER gone AFTER DELETE ON p FOR EACH ROW DELETE FROM tree WHERE id = 1; DELETE FROM p WHERE id = 1",
        "DELETE p, c FROM p JOIN c ON c.v = p.id WHERE c.id = 7",
        "UPDATE p SET id = 11 WHERE id = 1",
        "UPDATE p JOIN c ON c.v = p.id SET p.id = 11, c.id = 17 WHERE p.id = 2",
        "UPDATE c SET id = 17 WHERE id = 7",
        "INSERT INTO p VALUES (1, 0) ON DUPLICATE KEY UPDATE id = 11",
        "REPLACE INTO p VALUES (1, 5)",
        "SELECT cut(1)",
        "PREPARE s FROM 'DELETE FROM tree WHERE id = ?'; EXECUTE s USING 4; EXECUTE s USING 1",
        "XA START 'x'; DELETE FROM tree WHERE id = 1; XA END 'x'; XA PREPARE 'x'; XA COMMIT 'x'",
    ];
    let _keep = crate::reader::shared().await;
    let wanted = TABLES.map(|table| format!("{table} id"));
    for sql in statements {
        let place = Place::shared(&wanted.each_ref().map(String::as_str), schema).await;
        let before = rows(&place);
        let says = place.says(sql).await;
        let after = rows(&place);
        let changed: Vec<_> = before.symmetric_difference(&after).collect();
        assert!(!changed.is_empty(), "{sql}");
        for row in changed {
            assert!(is_told(row, &says), "{sql}: {row} is not in {says:?}");
        }
    }
}
