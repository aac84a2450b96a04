//! What there is at the server: the settings, the slot, the publication and the tables.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Names;
use super::control::literal;
use crate::cdc::{TableName, Wanted};
use crate::hash::hash;

/// Older servers do not have what is asked for here.
pub(super) const OLDEST: u32 = 150_000;

/// What the rows of tables are in.
pub(super) type Partitions = BTreeMap<TableName, Vec<(u64, u64)>>;

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
    pub(super) published: Option<Published>,
    /// What is made anew when the table is published anew.
    marks: Option<Vec<(u64, String)>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Part {
    oid: u64,
    /// Another one after it was truncated.
    file: u64,
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

    /// The tables that have the rows of each, and their files: nothing in the log says that a partition came or went, nor that
    /// one was truncated by itself.
    pub(super) fn partitions(&self) -> Partitions {
        let partitioned = self.tables.iter().filter(|table| table.is_partitioned());
        let part = |part: &Part| (part.oid, part.file);
        let parts = |table: &Table| table.parts.iter().flatten().map(part).collect();
        partitioned.map(|table| (table.table(), parts(table))).collect()
    }
}

pub(super) fn hash_of(partitions: &Partitions) -> u64 {
    hash(format!("{partitions:?}").as_bytes())
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

/// One row for each table, one text each, in the order of their names.
pub(super) fn tables(names: &Names, wanted: &Wanted) -> String {
    let publication = literal(&names.publication);
    let values = wanted.keys().enumerate();
    let values = values
        .map(|(at, table)| format!("({at}, {}, {})", literal(&table.schema), literal(&table.name)));
    let values = values.collect::<Vec<_>>().join(", ");
    format!(
        "SELECT json_build_object(
            'schema', w.s, 'name', w.n, 'oid', c.oid::bigint, 'kind', c.relkind,
            'partition', c.relispartition,
            'columns', (SELECT json_object_agg(a.attname,
                json_build_array(a.attnum, a.atttypid::bigint, a.atttypmod)) FROM pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
            'parts', (SELECT json_agg(json_build_object(
                'oid', r.oid::bigint, 'file', r.relfilenode::bigint,
                'name', r.oid::regclass::text, 'kind', r.relkind,
                'persistence', r.relpersistence, 'identity', r.relreplident,
                'columns', (SELECT json_agg(a.attname) FROM pg_index i JOIN pg_attribute a
                    ON a.attrelid = r.oid
                    AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
                    WHERE i.indrelid = r.oid AND i.indisvalid
                    AND CASE r.relreplident WHEN 'd' THEN i.indisprimary
                        WHEN 'i' THEN i.indisreplident ELSE false END)) ORDER BY r.oid)
                FROM pg_class r WHERE r.oid = c.oid
                OR r.oid IN (SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf)),
            'published', (SELECT json_build_object(
                'columns', t.attnames, 'filter', t.rowfilter) FROM pg_publication_tables t
                WHERE t.pubname = p.pubname AND t.schemaname = w.s AND t.tablename = w.n),
            'marks', (SELECT json_agg(json_build_array(m.oid::bigint, m.xmin::text) ORDER BY m.oid)
                FROM (SELECT oid, xmin FROM pg_publication_rel WHERE prpubid = p.oid
                    AND prrelid IN (SELECT c.oid UNION SELECT relid
                        FROM pg_partition_ancestors(c.oid))
                    UNION ALL SELECT oid, xmin FROM pg_publication_namespace
                    WHERE pnpubid = p.oid AND pnnspid = c.relnamespace) m))::text
        FROM (VALUES {values}) w (at, s, n)
        LEFT JOIN pg_namespace n ON n.nspname = w.s
        LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.n
        LEFT JOIN pg_publication p ON p.pubname = {publication}
        ORDER BY w.at"
    )
}
