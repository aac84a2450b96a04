//! What there is at the server: the settings, the slot, the publication and the tables.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Names;
use super::control::literal;
use crate::cdc::{TableName, Wanted};
use crate::hash::hash;

/// Older servers do not have what is asked for here.
pub(super) const OLDEST: u32 = 150_000;

/// What decides how the rows of tables look, besides what the log says.
pub(super) type Forms = BTreeMap<TableName, Vec<Form>>;

#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) server: Server,
    pub(super) tables: Vec<Table>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Server {
    pub(super) version: u32,
    pub(super) recovery: bool,
    pub(super) wal_level: String,
    pub(super) max_slots: u64,
    pub(super) slots: u64,
    pub(super) max_senders: u64,
    pub(super) senders: u64,
    /// Megabytes that a slot may keep; below zero: any number.
    pub(super) keep: i64,
    pub(super) synchronous: String,
    pub(super) user: String,
    pub(super) replication: bool,
    pub(super) slot: Option<Slot>,
    pub(super) publication: Option<Publication>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Slot {
    pub(super) database: Option<String>,
    pub(super) here: bool,
    pub(super) plugin: Option<String>,
    pub(super) active: bool,
    pub(super) status: Option<String>,
    pub(super) confirmed: Option<String>,
    pub(super) retained: Option<i64>,
    pub(super) safe: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Publication {
    oid: u64,
    xmin: String,
    pub(super) insert: bool,
    pub(super) update: bool,
    pub(super) delete: bool,
    pub(super) truncate: bool,
    pub(super) via_root: bool,
    pub(super) all: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Table {
    schema: String,
    name: String,
    pub(super) oid: Option<u64>,
    pub(super) kind: Option<String>,
    pub(super) partition: Option<bool>,
    /// Number, type and its modifier of each column.
    pub(super) columns: Option<BTreeMap<String, (i64, u64, i64)>>,
    /// Itself, and those that have its rows if it is partitioned.
    pub(super) parts: Option<Vec<Part>>,
    /// Of itself, and of everything below it if it is partitioned.
    forms: Option<Vec<Form>>,
    /// Those that inherit from it, as they are written in a statement; not partitions.
    pub(super) children: Option<Vec<String>>,
    pub(super) published: Option<Published>,
    /// What is made anew when the table is published anew.
    marks: Option<Vec<(u64, String)>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Form {
    oid: u64,
    /// Another one after it was truncated or written anew.
    file: u64,
    /// Of the columns that there are and were, and of who has last changed what the catalogue says of each: so it is another one
    /// after whatever `ALTER` did to a column, also if it was undone, and after a partition was away for a while.
    columns: i64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Part {
    /// As it is written in a statement.
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) persistence: String,
    pub(super) identity: String,
    pub(super) columns: Option<Vec<String>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Published {
    pub(super) columns: Option<Vec<String>>,
    pub(super) filter: Option<String>,
}

impl Table {
    pub(super) fn table(&self) -> TableName {
        TableName::new(self.schema.as_str(), self.name.as_str())
    }

    pub(super) fn is_partitioned(&self) -> bool {
        self.kind.as_deref() == Some("p")
    }
}

impl Facts {
    /// Of all that decides what is in the log: it differs when something was missed, perhaps.
    pub(super) fn shape(&self, wanted: &Wanted) -> u64 {
        let publication = self.server.publication.as_ref();
        let mut text = format!("{:?}", publication.map(|found| (found.oid, &found.xmin)));
        for table in &self.tables {
            let columns = wanted.get(&table.table()).into_iter().flatten();
            let columns = columns
                .map(|name| (name, table.columns.as_ref().and_then(|columns| columns.get(name))));
            let columns: Vec<_> = columns.collect();
            text += &format!("{} {:?} {:?} {columns:?}", table.table(), table.oid, table.marks);
        }
        hash(text.as_bytes())
    }

    /// Of each table. Nothing in the log says that `ALTER` has rewritten all rows or given them another column, that a
    /// partition came or went, nor that one was truncated by itself.
    pub(super) fn forms(&self) -> Forms {
        let forms = |table: &Table| table.forms.clone().unwrap_or_default();
        self.tables.iter().map(|table| (table.table(), forms(table))).collect()
    }
}

pub(super) fn hash_of(forms: &Forms) -> u64 {
    hash(format!("{forms:?}").as_bytes())
}

/// One row, one text.
pub(super) fn server(names: &Names) -> String {
    let (slot, publication) = (literal(&names.slot), literal(&names.publication));
    format!(
        "SELECT json_build_object(
            'version', current_setting('server_version_num')::int,
            'recovery', pg_is_in_recovery(),
            'wal_level', current_setting('wal_level'),
            'max_slots', current_setting('max_replication_slots')::int,
            'slots', (SELECT count(*) FROM pg_replication_slots),
            'max_senders', current_setting('max_wal_senders')::int,
            'senders', (SELECT count(*) FROM pg_stat_get_wal_senders()),
            'keep', (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
            'synchronous', current_setting('synchronous_standby_names'),
            'user', current_user,
            'replication', (SELECT rolreplication OR rolsuper FROM pg_roles
                WHERE rolname = current_user),
            'slot', (SELECT json_build_object(
                'database', database, 'here', coalesce(database = current_database(), false), 'plugin', plugin,
                'active', active, 'status', wal_status, 'confirmed', confirmed_flush_lsn::text,
                'safe', safe_wal_size, 'retained', CASE WHEN NOT pg_is_in_recovery()
                    THEN pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint END)
                FROM pg_replication_slots WHERE slot_name = {slot}),
            'publication', (SELECT json_build_object(
                'oid', oid::bigint, 'xmin', xmin::text, 'insert', pubinsert, 'update', pubupdate,
                'delete', pubdelete, 'truncate', pubtruncate, 'via_root', pubviaroot,
                'all', puballtables)
                FROM pg_publication WHERE pubname = {publication}))::text"
    )
}

/// One row for each table, one text each, in the order of their names. It looks at nothing but catalogues, and locks no table, nor
/// waits for who has: an `ALTER` may take hours (`pg_partition_tree` would lock partitions).
pub(super) fn tables(names: &Names, wanted: &Wanted) -> String {
    let publication = literal(&names.publication);
    let values = wanted.keys().enumerate();
    let values = values
        .map(|(at, table)| format!("({at}, {}, {})", literal(&table.schema), literal(&table.name)));
    let values = values.collect::<Vec<_>>().join(", ");
    format!(
        "WITH RECURSIVE w (at, s, n) AS (VALUES {values}),
        tree (root, oid) AS (
            SELECT c.oid, c.oid FROM w JOIN pg_namespace n ON n.nspname = w.s
            JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.n
            UNION ALL SELECT t.root, i.inhrelid FROM tree t
            JOIN pg_class r ON r.oid = t.oid AND r.relkind = 'p'
            JOIN pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending)
        SELECT json_build_object(
            'schema', w.s, 'name', w.n, 'oid', c.oid::bigint, 'kind', c.relkind,
            'partition', c.relispartition,
            'columns', (SELECT json_object_agg(a.attname,
                json_build_array(a.attnum, a.atttypid::bigint, a.atttypmod)) FROM pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
            'parts', (SELECT json_agg(json_build_object(
                'name', r.oid::regclass::text, 'kind', r.relkind,
                'persistence', r.relpersistence, 'identity', r.relreplident,
                'columns', (SELECT json_agg(a.attname) FROM pg_index i JOIN pg_attribute a
                    ON a.attrelid = r.oid
                    AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
                    WHERE i.indrelid = r.oid AND i.indisvalid
                    AND CASE r.relreplident WHEN 'd' THEN i.indisprimary
                        WHEN 'i' THEN i.indisreplident ELSE false END)) ORDER BY r.oid)
                FROM tree t JOIN pg_class r ON r.oid = t.oid
                WHERE t.root = c.oid AND (r.oid = c.oid OR r.relkind <> 'p')),
            'forms', (SELECT json_agg(json_build_object(
                'oid', r.oid::bigint, 'file', r.relfilenode::bigint,
                'columns', (SELECT hashtextextended(coalesce(string_agg(
                    a.attnum || ' ' || a.xmin::text, ',' ORDER BY a.attnum), ''), 0)
                    FROM pg_attribute a WHERE a.attrelid = r.oid AND a.attnum > 0)) ORDER BY r.oid)
                FROM tree t JOIN pg_class r ON r.oid = t.oid WHERE t.root = c.oid),
            'children', (SELECT json_agg(i.inhrelid::regclass::text ORDER BY i.inhrelid)
                FROM pg_inherits i WHERE i.inhparent = c.oid AND c.relkind = 'r'),
            'published', (SELECT json_build_object(
                'columns', t.attnames, 'filter', t.rowfilter) FROM pg_publication_tables t
                WHERE t.pubname = p.pubname AND t.schemaname = w.s AND t.tablename = w.n),
            'marks', (SELECT json_agg(json_build_array(m.oid::bigint, m.xmin::text) ORDER BY m.oid)
                FROM (SELECT oid, xmin FROM pg_publication_rel WHERE prpubid = p.oid
                    AND prrelid IN (SELECT c.oid UNION SELECT relid
                        FROM pg_partition_ancestors(c.oid))
                    UNION ALL SELECT oid, xmin FROM pg_publication_namespace
                    WHERE pnpubid = p.oid AND pnnspid = c.relnamespace) m))::text
        FROM w
        LEFT JOIN pg_namespace n ON n.nspname = w.s
        LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.n
        LEFT JOIN pg_publication p ON p.pubname = {publication}
        ORDER BY w.at"
    )
}
