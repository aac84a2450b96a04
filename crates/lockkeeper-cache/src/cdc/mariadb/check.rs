//! What is not as it should be.

use std::collections::BTreeSet;

use mysql_async::Row;

use super::control::Control;
use crate::cdc::{Finding, LogError, Severity, TableName, Wanted};

pub(super) async fn check(
    control: &mut Control,
    wanted: &Wanted,
) -> Result<Vec<Finding>, LogError> {
    let version = control.value("VERSION()").await?;
    if !version.contains("MariaDB") {
        let what = format!("the server is MySQL {version}: only MariaDB can be followed so far");
        return Ok(vec![Finding { severity: Severity::Error, what, fix: None }]);
    }
    if control.value("@@GLOBAL.log_bin").await? != "1" {
        let fix = "[mariadb]\nlog_bin = mariadb-bin\nserver_id = 1\nbinlog_format = ROW\n\
                   binlog_row_metadata = FULL\n# then restart the server";
        return Ok(vec![Finding::error("the server writes no binary log", fix)]);
    }
    let mut found = settings(control).await?;
    grants(control, &mut found).await?;
    let mut beyond_key = false;
    for (table, columns) in wanted {
        beyond_key |= self::table(control, table, columns, &mut found).await?;
        cascades(control, table, &mut found).await?;
    }
    image(control, beyond_key, &mut found).await?;
    filters(control, wanted, &mut found).await?;
    Ok(found)
}

async fn settings(control: &mut Control) -> Result<Vec<Finding>, LogError> {
    let mut found = Vec::new();
    let global = |name: &str| format!("@@GLOBAL.{name}");
    if control.value(&global("server_id")).await? == "0" {
        let fix = "SET GLOBAL server_id = 1;\n# and in the configuration\nserver_id = 1";
        found.push(Finding::error("server_id is 0: nobody may read the log", fix));
    }
    let format = control.value(&global("binlog_format")).await?;
    if format != "ROW" {
        let what = format!(
            "binlog_format is {format}: statements are in the log instead of rows, and each clears everything"
        );
        let fix = "SET GLOBAL binlog_format = 'ROW';\n# sessions that are open keep theirs; and in the \
                   configuration\nbinlog_format = ROW";
        found.push(Finding::error(what, fix));
    }
    let metadata = control.value(&global("binlog_row_metadata")).await?;
    if metadata != "FULL" {
        let what = format!(
            "binlog_row_metadata is {metadata}: the log does not name columns, and each change clears its table"
        );
        let fix = "SET GLOBAL binlog_row_metadata = 'FULL';\n# and in the configuration\nbinlog_row_metadata = FULL";
        found.push(Finding::error(what, fix));
    }
    let kept = control.value(&global("binlog_expire_logs_seconds")).await?;
    let kept = kept.parse::<f64>().unwrap_or_default();
    if kept > 0.0 && kept < 86_400.0 {
        let what = format!(
            "the log is kept for {kept} seconds (binlog_expire_logs_seconds): a follower that is away for longer \
             clears everything"
        );
        found.push(Finding::warning(what, "SET GLOBAL binlog_expire_logs_seconds = 259200;"));
    }
    if control.value(&global("sync_binlog")).await? != "1" {
        let what = "sync_binlog is not 1: when the machine crashes, what was committed may be missing in the log";
        found.push(Finding::warning(what, "SET GLOBAL sync_binlog = 1;"));
    }
    if control.value(&global("gtid_strict_mode")).await? != "1" {
        let what = "gtid_strict_mode is off: a replica that was written to may have another log with the same ids";
        found.push(Finding::warning(what, "SET GLOBAL gtid_strict_mode = 1;"));
    }
    if control.value(&global("wsrep_on")).await.is_ok_and(|on| on == "1") {
        let what =
            "Galera is on: each node has a log of its own, and a follower must stay with one";
        found.push(Finding { severity: Severity::Warning, what: what.into(), fix: None });
    }
    Ok(found)
}

async fn grants(control: &mut Control, found: &mut Vec<Finding>) -> Result<(), LogError> {
    let user = control.value("CURRENT_USER()").await?;
    let user = user.split('@').map(|part| format!("'{part}'")).collect::<Vec<_>>().join("@");
    let grants: Vec<String> = control.rows("SHOW GRANTS").await?;
    let global = |right: &str| {
        let mut lines = grants.iter().filter(|line| line.contains(" ON *.* "));
        lines.any(|line| line.contains(right) || line.starts_with("GRANT ALL PRIVILEGES "))
    };
    for right in ["REPLICATION SLAVE", "BINLOG MONITOR"] {
        if !global(right) {
            let what = format!("{user} may not read the log: {right} is missing");
            found.push(Finding::error(what, format!("GRANT {right} ON *.* TO {user};")));
        }
    }
    Ok(())
}

/// Whether keys are made of columns that are not in the primary key.
async fn table(
    control: &mut Control,
    table: &TableName,
    wanted: &BTreeSet<String>,
    found: &mut Vec<Finding>,
) -> Result<bool, LogError> {
    let name = || (&*table.schema, &*table.name);
    let rows: Vec<(String, Option<String>)> = control
        .rows_with(
            "SELECT table_type, engine FROM information_schema.tables \
             WHERE table_schema = ? AND table_name = ?",
            name(),
        )
        .await?;
    let Some((kind, engine)) = rows.into_iter().next() else {
        let fix = format!("GRANT SELECT ON `{}`.`{}` TO CURRENT_USER;", table.schema, table.name);
        let what = format!("there is no table {table}, or it may not be seen");
        found.push(Finding::error(what, fix));
        return Ok(false);
    };
    if kind != "BASE TABLE" {
        let what =
            format!("{table} is no table but a {}: the log has only tables", kind.to_lowercase());
        found.push(Finding { severity: Severity::Error, what, fix: None });
        return Ok(false);
    }
    let engine = engine.unwrap_or_default();
    if engine != "InnoDB" {
        let what = format!(
            "{table} has the engine {engine}, which has no transactions that are safe in a crash"
        );
        let fix = format!("ALTER TABLE `{}`.`{}` ENGINE = InnoDB;", table.schema, table.name);
        found.push(Finding::warning(what, fix));
    }
    let columns: Vec<Row> = control
        .rows_with(
            "SELECT column_name, data_type, column_type, column_key, character_set_name \
             FROM information_schema.columns WHERE table_schema = ? AND table_name = ?",
            name(),
        )
        .await?;
    let mut beyond = false;
    for column in wanted {
        let text =
            |row: &Row, at| row.get_opt::<String, _>(at).and_then(Result::ok).unwrap_or_default();
        let Some(row) = columns.iter().find(|row| text(row, 0).eq_ignore_ascii_case(column)) else {
            let what = format!("{table} has no column {column}, or it may not be seen");
            found.push(Finding { severity: Severity::Error, what, fix: None });
            continue;
        };
        beyond |= text(row, 3) != "PRI";
        if let Some(why) = no_text(&text(row, 1), &text(row, 2), &text(row, 4)) {
            let what = format!("{column} of {table} {why}");
            found.push(Finding { severity: Severity::Warning, what, fix: None });
        }
    }
    Ok(beyond)
}

/// Why keys cannot be made of such a column, or not as one would think.
fn no_text(kind: &str, full: &str, charset: &str) -> Option<String> {
    let clears = "each change clears the whole namespace";
    match kind {
        "float" | "double" | "binary" | "uuid" | "inet4" | "inet6" | "geometry" | "point" => {
            Some(format!("is {kind}, whose text the log does not say: {clears}"))
        }
        _ if full.contains("compressed") => Some(format!("is compressed: {clears}")),
        _ if full.contains("zerofill") => {
            Some("has ZEROFILL: in keys it has no zeros in front".into())
        }
        "timestamp" => Some("is a timestamp: in keys it is in UTC".into()),
        "varbinary" | "blob" | "tinyblob" | "mediumblob" | "longblob" => {
            Some("has no text: in keys it is as LOWER(HEX(…))".into())
        }
        _ => match charset {
            "" | "utf8mb4" | "utf8mb3" | "latin1" | "ascii" => None,
            other => Some(format!("is in {other}, which is not read: {clears}")),
        },
    }
}

async fn cascades(
    control: &mut Control,
    table: &TableName,
    found: &mut Vec<Finding>,
) -> Result<(), LogError> {
    let rows: Vec<(String, String, String, String)> = control
        .rows_with(
            "SELECT constraint_name, referenced_table_name, update_rule, delete_rule \
             FROM information_schema.referential_constraints \
             WHERE constraint_schema = ? AND table_name = ?",
            (&*table.schema, &*table.name),
        )
        .await?;
    for (name, parent, update, delete) in rows {
        let does = |rule: &str| matches!(rule, "CASCADE" | "SET NULL" | "SET DEFAULT");
        let rules = [("updates", &update), ("deletes from", &delete)];
        let verbs: Vec<_> =
            rules.into_iter().filter(|(_, rule)| does(rule)).map(|(verb, _)| verb).collect();
        if verbs.is_empty() {
            continue;
        }
        let what = format!(
            "the foreign key {name} changes {table} without a word in the log: each statement that {} {parent} \
             clears everything that is cached of {table}",
            verbs.join(" or ")
        );
        let fix = format!(
            "ALTER TABLE `{}`.`{}` DROP FOREIGN KEY `{name}`;\n# and again with ON UPDATE RESTRICT ON DELETE \
             RESTRICT, if the application changes {table} itself",
            table.schema, table.name
        );
        found.push(Finding::warning(what, fix));
    }
    Ok(())
}

async fn image(
    control: &mut Control,
    beyond_key: bool,
    found: &mut Vec<Finding>,
) -> Result<(), LogError> {
    let image = control.value("@@GLOBAL.binlog_row_image").await?;
    if image.starts_with("FULL") {
        return Ok(());
    }
    let fix = "SET GLOBAL binlog_row_image = 'FULL';\n# sessions that are open keep theirs; and in the \
               configuration\nbinlog_row_image = FULL";
    found.push(if beyond_key {
        let what = format!(
            "binlog_row_image is {image}: the log does not have the old values of columns that keys are made of"
        );
        Finding::error(what, fix)
    } else {
        let what = format!("binlog_row_image is {image}: keys can be made of the primary key only");
        Finding::warning(what, fix)
    });
    Ok(())
}

async fn filters(
    control: &mut Control,
    wanted: &Wanted,
    found: &mut Vec<Finding>,
) -> Result<(), LogError> {
    // Who may not ask has been told so.
    let Ok(rows) = control.rows::<Row>("SHOW MASTER STATUS").await else { return Ok(()) };
    let list = |at| {
        let text = rows.first().and_then(|row| row.get_opt::<String, _>(at)).and_then(Result::ok);
        let text = text.unwrap_or_default();
        text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let (only, never) = (list(2), list(3));
    let schemas: BTreeSet<_> = wanted.keys().map(|table| &*table.schema).collect();
    for schema in schemas {
        let hidden = never.contains(schema) || !only.is_empty() && !only.contains(schema);
        if hidden {
            let what = format!(
                "the server leaves {schema} out of its log (binlog_do_db, binlog_ignore_db)"
            );
            let fix = format!("# in the configuration, then restart\nbinlog_do_db = {schema}");
            found.push(Finding::error(what, fix));
        }
    }
    Ok(())
}
