//! What is not as it should be, out of the [facts](super::facts).

use std::collections::BTreeSet;

use super::Names;
use super::control::identifier;
use super::facts::{Facts, OLDEST, Part, Publication, Server, Table};
use super::wire::APPLICATION;
use crate::cdc::{Finding, TableName, Wanted};

/// `"schema"."name"`.
pub(super) fn quoted(table: &TableName) -> String {
    format!("{}.{}", identifier(&table.schema), identifier(&table.name))
}

/// Everything.
pub(super) fn all(names: &Names, wanted: &Wanted, facts: &Facts) -> Vec<Finding> {
    let mut findings = of_server(names, &facts.server);
    findings.extend(of_tables(names, wanted, facts));
    findings
}

fn of_server(names: &Names, server: &Server) -> Vec<Finding> {
    if server.version < OLDEST {
        let text = "the server is older than PostgreSQL 15";
        return vec![Finding::error(text, "Follow a server of version 15 or later.")];
    }
    let mut findings = Vec::new();
    let mut error = |wrong: bool, what: &str, fix: &str| {
        if wrong {
            findings.push(Finding::error(what, fix));
        }
    };
    error(
        server.recovery,
        "the server is a standby; the log of changes is to be had at the primary",
        "Name the primary in the URL.",
    );
    error(
        server.wal_level != "logical",
        &format!("wal_level is {}; the log does not say which rows change", server.wal_level),
        "ALTER SYSTEM SET wal_level = 'logical';\n-- and restart the server",
    );
    let user = identifier(&server.user);
    error(
        !server.replication,
        &format!("role {user} must not read the log"),
        &format!("ALTER ROLE {user} REPLICATION;"),
    );
    let valid = !names.slot.is_empty()
        && names.slot.len() < 64
        && names.slot.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_'));
    error(
        !valid,
        &format!("{:?} cannot be the name of a slot", names.slot),
        "Use lower case letters, digits and _, 63 at most.",
    );
    let foreign =
        server.slot.as_ref().filter(|slot| !slot.here || !is_ours(slot.plugin.as_deref()));
    error(
        foreign.is_some(),
        &format!(
            "slot {} is of database {:?} and plugin {:?}: somebody else's",
            names.slot,
            foreign.and_then(|slot| slot.database.as_deref()).unwrap_or("-"),
            foreign.and_then(|slot| slot.plugin.as_deref()).unwrap_or("-"),
        ),
        "Choose another name for the slot.",
    );
    error(
        server.slot.is_none() && server.slots >= server.max_slots,
        &format!("all {} replication slots are in use", server.max_slots),
        &format!(
            "ALTER SYSTEM SET max_replication_slots = {};\n-- and restart the server; or drop one that \
             nobody needs: SELECT slot_name, active FROM pg_replication_slots;",
            server.slots + 5
        ),
    );
    error(
        !server.slot.as_ref().is_some_and(|slot| slot.active)
            && server.senders >= server.max_senders,
        &format!("all {} connections for replication are in use", server.max_senders),
        &format!(
            "ALTER SYSTEM SET max_wal_senders = {};\n-- and restart the server",
            server.senders + 5
        ),
    );
    error(
        makes_us_synchronous(&server.synchronous),
        "synchronous_standby_names counts every reader of the log as a standby: commits would wait for the follower, \
         and the follower for commits",
        "ALTER SYSTEM SET synchronous_standby_names = '…'; -- the names of the standbys, without *\n\
         SELECT pg_reload_conf();",
    );
    if server.keep < 0 {
        findings.push(Finding::warning(
            "max_slot_wal_keep_size is -1: while no follower runs, the server keeps the log until the disk is full",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '8GB'; -- less than what is free\n\
             SELECT pg_reload_conf();",
        ));
    }
    findings
}

fn is_ours(plugin: Option<&str>) -> bool {
    plugin == Some("pgoutput")
}

fn makes_us_synchronous(names: &str) -> bool {
    let words = names.split(|c: char| c == ',' || c == '(' || c == ')' || c.is_whitespace());
    let mut words = words.map(|word| word.trim_matches('"'));
    words.any(|word| word == "*" || word.eq_ignore_ascii_case(APPLICATION))
}

/// What makes that changes of these tables are missed.
pub(super) fn of_tables(names: &Names, wanted: &Wanted, facts: &Facts) -> Vec<Finding> {
    if facts.server.version < OLDEST {
        return Vec::new();
    }
    let publication = facts.server.publication.as_ref();
    let mut findings: Vec<Finding> = Vec::new();
    let each = facts.tables.iter().map(|table| (table, wanted.get(&table.table())));
    let mut good = Vec::new();
    for (table, columns) in each {
        let empty = BTreeSet::new();
        let wrong = of_table(table, columns.unwrap_or(&empty));
        if wrong.is_empty() {
            good.push(table);
        }
        findings.extend(wrong);
    }
    match publication {
        None => findings.push(Finding::error(
            format!("there is no publication {}", names.publication),
            create(names, &good),
        )),
        Some(publication) => {
            findings.extend(of_publication(names, publication, &facts.tables));
            for table in &good {
                let columns = wanted.get(&table.table()).into_iter().flatten();
                findings.extend(of_published(names, table, columns));
            }
            let missing = good.into_iter().filter(|table| {
                // Its partitions may be there in its place.
                table.published.is_none() && (publication.via_root || !table.is_partitioned())
            });
            findings.extend(missing.map(|table| {
                let (name, publication) = (quoted(&table.table()), identifier(&names.publication));
                let fix = format!("ALTER PUBLICATION {publication} ADD TABLE {name};");
                Finding::error(format!("{} is not in the publication", table.table()), fix)
            }));
        }
    }
    findings
}

/// The statement that makes the publication, for the tables that can be published without harm.
pub(super) fn create(names: &Names, tables: &[&Table]) -> String {
    if tables.is_empty() {
        return "First see to the tables.".into();
    }
    let all: Vec<String> = tables.iter().map(|table| quoted(&table.table())).collect();
    format!(
        "CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true);",
        identifier(&names.publication),
        all.join(", ")
    )
}

fn of_publication(names: &Names, found: &Publication, tables: &[Table]) -> Vec<Finding> {
    let name = identifier(&names.publication);
    let mut findings = Vec::new();
    if !(found.insert && found.update && found.delete && found.truncate) {
        findings.push(Finding::error(
            format!("publication {} does not publish every kind of change", names.publication),
            format!("ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate');"),
        ));
    }
    if !found.via_root && tables.iter().any(Table::is_partitioned) {
        findings.push(Finding::error(
            "changes of a partitioned table are published in the names of its partitions",
            format!("ALTER PUBLICATION {name} SET (publish_via_partition_root = true);"),
        ));
    }
    if found.all {
        findings.push(Finding::warning(
            format!(
                "publication {} is for all tables: those without a replica identity cannot be updated any more",
                names.publication
            ),
            format!("DROP PUBLICATION {name}; -- and make one for the tables that are wanted"),
        ));
    }
    findings
}

fn of_published<'a>(
    names: &Names,
    table: &Table,
    mut columns: impl Iterator<Item = &'a String>,
) -> Option<Finding> {
    let published = table.published.as_ref()?;
    let hidden = columns.any(|column| {
        published.columns.as_ref().is_some_and(|published| !published.contains(column))
    });
    let what = match (hidden, &published.filter) {
        (true, _) => "publishes a list of columns that lacks some that keys are made of",
        (_, Some(_)) => "publishes some of the rows only",
        _ => return None,
    };
    let (publication, name) = (identifier(&names.publication), quoted(&table.table()));
    Some(Finding::error(
        format!("publication {} {what}: {}", names.publication, table.table()),
        format!(
            "ALTER PUBLICATION {publication} DROP TABLE {name};\n\
             ALTER PUBLICATION {publication} ADD TABLE {name};"
        ),
    ))
}

/// Why a table cannot be published, or must not be.
pub(super) fn of_table(table: &Table, wanted: &BTreeSet<String>) -> Vec<Finding> {
    let name = table.table();
    let error = |what: String, fix: &str| vec![Finding::error(what, fix)];
    match table.kind.as_deref() {
        Some("r" | "p") => {}
        None => return error(format!("there is no table {name}"), "Name one that there is."),
        Some(_) => {
            return error(
                format!("{name} is no plain table: its changes are not in the log"),
                "Name the tables that have the rows.",
            );
        }
    }
    if table.partition == Some(true) {
        return error(
            format!(
                "{name} is a partition: its changes are told in the name of the table that it is part of"
            ),
            "Name that table.",
        );
    }
    if let Some(children) = &table.children {
        let what = format!(
            "{name} has children ({}): statements that name it change their rows, and the log has those in the names of the \
             children",
            children.join(", ")
        );
        let each = children.iter();
        let each = each.map(|child| format!("ALTER TABLE {child} NO INHERIT {};", quoted(&name)));
        let fix = each.collect::<Vec<_>>().join("\n")
            + "\n-- or have a partitioned table instead, or a rule for each child and none for this one";
        return error(what, &fix);
    }
    let there = |column: &&String| {
        table.columns.as_ref().is_some_and(|columns| columns.contains_key(*column))
    };
    let lacks: Vec<&str> =
        wanted.iter().filter(|column| !there(column)).map(String::as_str).collect();
    if !lacks.is_empty() {
        let what = format!("{name} has no column {}", lacks.join(", "));
        return error(what, "Name columns that there are.");
    }
    let parts = table.parts.iter().flatten();
    parts.filter_map(|part| of_part(part, wanted)).collect()
}

fn of_part(part: &Part, wanted: &BTreeSet<String>) -> Option<Finding> {
    let name = &part.name;
    match (part.kind.as_str(), part.persistence.as_str()) {
        ("f", _) => {
            let what = format!("{name} is a foreign table: its changes are not in the log");
            return Some(Finding::error(what, "Have no foreign partitions."));
        }
        (_, "p") => {}
        (_, "u") => {
            let what = format!("{name} is unlogged: its changes are not in the log");
            return Some(Finding::error(what, format!("ALTER TABLE {name} SET LOGGED;")));
        }
        _ => {
            let what = format!("{name} is temporary: its changes are not in the log");
            return Some(Finding::error(what, "Name a table that lasts."));
        }
    }
    let full = format!("ALTER TABLE {name} REPLICA IDENTITY FULL;");
    let none = Vec::new();
    let identity = match (part.identity.as_str(), &part.columns) {
        ("f", _) => return None,
        ("n", _) | (_, None) => &none,
        (_, Some(columns)) => columns,
    };
    if identity.is_empty() {
        let what = format!(
            "{name} has no replica identity: once it is published, the application's own UPDATE and DELETE fail"
        );
        let fix =
            format!("ALTER TABLE {name} ADD PRIMARY KEY (…);\n-- or, with more to write:\n{full}");
        return Some(Finding::error(what, fix));
    }
    let lacks: Vec<&str> =
        wanted.iter().filter(|column| !identity.contains(column)).map(String::as_str).collect();
    if lacks.is_empty() {
        return None;
    }
    let what = format!(
        "the replica identity of {name} lacks {}: when that changes, the log does not say what it was",
        lacks.join(", ")
    );
    let fix = format!(
        "{full}\n-- or, with less to write, if there is a unique index on columns that are NOT NULL, with these among \
         them:\nALTER TABLE {name} REPLICA IDENTITY USING INDEX …;"
    );
    Some(Finding::error(what, fix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_is_never_a_synchronous_standby() {
        for names in ["*", "ANY 1 (*)", "FIRST 2 (a, LOCKKEEPER_CDC)", "\"*\"", "a,*"] {
            assert!(makes_us_synchronous(names), "{names}");
        }
        for names in ["", "a, b", "ANY 1 (lockkeeper)"] {
            assert!(!makes_us_synchronous(names), "{names}");
        }
    }
}
