//! What is in cells is what the database says is in them.

use lockkeeper_cache::cdc::{Cell, Change};

use crate::reader::Place;

/// A column of this type with these values: each as the log has it, and as the database says by this expression.
async fn compare(kind: &str, values: &[&str], expression: &str) {
    let sql =
        format!("CREATE TABLE t (n INT PRIMARY KEY AUTO_INCREMENT, y YEAR, g DOUBLE, c {kind})");
    let place = Place::shared(&["t c"], &sql).await;
    let mut reader = place.open(None).await;
    let rows: Vec<_> = values.iter().map(|value| format!("(NULL, 2020, 1.5, {value})")).collect();
    place.sql(&format!(
        "SET NAMES utf8mb4, time_zone = '+00:00', sql_mode = ''; INSERT INTO t VALUES {}",
        rows.join(",")
    ));
    let said = place.sql(&format!(
        "SET NAMES utf8mb4, time_zone = '+00:00'; SELECT IFNULL(CONCAT('=', {expression}), 'NULL') FROM t ORDER BY n"
    ));
    let mut cells = Vec::new();
    while cells.len() < values.len() {
        for change in reader.next().await.changes {
            let Change::Row { new: Some(new), .. } = change else { panic!("{change:?}") };
            cells.push(match new.get("c") {
                Cell::Text(text) => format!("={text}"),
                Cell::Null => "NULL".into(),
                Cell::Missing => "=missing".into(),
            });
        }
    }
    assert_eq!(cells, said.split('\n').collect::<Vec<_>>(), "{kind}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers() {
    for (kind, bits) in
        [("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64)]
    {
        let most = u64::MAX >> (64 - bits);
        let half = most / 2;
        let [most, half, least] = [most.to_string(), half.to_string(), format!("-{half}-1")];
        compare(kind, &[&half, &least, "0", "-1", "NULL"], "c").await;
        compare(&format!("{kind} UNSIGNED"), &[&most, &half, "0", "NULL"], "c").await;
    }
    let nines = "9".repeat(65);
    compare("DECIMAL(65,0)", &[&nines, &format!("-{nines}"), "0"], "c").await;
    compare("DECIMAL(65,30)", &["1.5", "-0.000000000000000000000000000001", "12345678901.25"], "c")
        .await;
    compare("DECIMAL(5,5)", &["0.00001", "-0.99999", "0"], "c").await;
    compare("DECIMAL(9,2)", &["1234567.89", "-0.05", "-1234567.8"], "c").await;
    compare("BIT(1)", &["b'1'", "b'0'"], "c + 0").await;
    compare("BIT(64)", &["b'1'", "18446744073709551615"], "c + 0").await;
    compare("BIT(12)", &["4095", "256"], "c + 0").await;
    compare("YEAR", &["1901", "2155", "0", "2026"], "c").await;
    compare("DOUBLE", &["1.5"], "'missing'").await;
    compare("FLOAT UNSIGNED", &["1.5"], "'missing'").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times() {
    compare("DATE", &["'2024-02-29'", "'0000-00-00'", "'9999-12-31'", "'2024-05-00'"], "c").await;
    for digits in 0..=6 {
        let times = [
            "'838:59:59.999999'",
            "'-838:59:59.5'",
            "'-00:00:00.123456'",
            "'-01:00:00'",
            "'00:00:01.000001'",
            "'0'",
        ];
        compare(&format!("TIME({digits})"), &times, "c").await;
        let dates =
            ["'2024-02-29 23:59:58.123456'", "'0000-00-00 00:00:00'", "'9999-12-31 12:34:56'"];
        compare(&format!("DATETIME({digits})"), &dates, "c").await;
        let stamps = [
            "'1970-01-01 00:00:01'",
            "'2000-02-29 01:02:03.987654'",
            "'2038-01-19 03:14:07'",
            "'0000-00-00 00:00:00'",
        ];
        compare(&format!("TIMESTAMP({digits}) NULL"), &stamps, "c").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts() {
    let texts = ["''", "'a b '", "'it''s'", "_utf8mb4 x'F09F9491C3A4'", "NULL"];
    compare("VARCHAR(20) CHARACTER SET utf8mb4", &texts, "c").await;
    compare("VARCHAR(300) CHARACTER SET utf8mb4 COLLATE utf8mb4_uca1400_ai_ci", &texts, "c").await;
    compare("CHAR(20) CHARACTER SET utf8mb4", &texts, "c").await;
    compare("CHAR(100) CHARACTER SET utf8mb4", &texts, "c").await;
    compare(
        "CHAR(20) CHARACTER SET latin1",
        &["_latin1 x'E480'", "'a'"],
        "CONVERT(c USING utf8mb4)",
    )
    .await;
    for kind in ["TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "JSON"] {
        compare(
            &format!("{kind} CHECK (1)").replace("JSON CHECK (1)", "JSON"),
            &["'{}'", "'[1]'"],
            "c",
        )
        .await;
    }
    compare(
        "ENUM('a','b ä','') CHARACTER SET latin1",
        &["'b ä'", "'a'", "''", "'wrong'"],
        "CONVERT(c USING utf8mb4)",
    )
    .await;
    compare("SET('a','b','ö') CHARACTER SET utf8mb4", &["'a,ö'", "'b'", "''"], "c").await;
    compare("VARBINARY(20)", &["x'00ff41'", "''"], "LOWER(HEX(c))").await;
    compare("BLOB", &["x'00ff41'"], "LOWER(HEX(c))").await;
    for kind in
        ["VARCHAR(9) CHARACTER SET utf16", "BINARY(4)", "VARCHAR(99) COMPRESSED", "TEXT COMPRESSED"]
    {
        compare(kind, &["'a'"], "'missing'").await;
    }
    compare("UUID", &["UUID()"], "'missing'").await;
    compare("INET6", &["'::1'"], "'missing'").await;
    compare("POINT", &["POINT(1, 2)"], "'missing'").await;
}
