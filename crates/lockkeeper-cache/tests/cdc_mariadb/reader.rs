//! Reads a log and writes down what it says.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_cache::cdc::{
    Batch, Cell, Change, Log, LogError, MariaDb, Position, Row, Source, TableName, Wanted,
};
use testkit::database::{BINLOG, Database, System};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// One server for all tests that leave others alone.
pub(crate) async fn shared() -> Arc<Database> {
    static SHARED: Mutex<Weak<Database>> = Mutex::const_new(Weak::new());
    let mut shared = SHARED.lock().await;
    if let Some(database) = shared.upgrade() {
        return database;
    }
    let database = Arc::new(start(&[]).await);
    *shared = Arc::downgrade(&database);
    database
}

/// A server of its own.
pub(crate) async fn start(more: &[&str]) -> Database {
    System::MariaDb.start(&[&BINLOG[..], more].concat()).await
}

/// Tables in a schema of their own, that is the default.
pub(crate) struct Place {
    pub(crate) database: Arc<Database>,
    pub(crate) schema: String,
    pub(crate) wanted: Wanted,
}

impl Place {
    /// In each table the columns that are wanted: `"t id,name"`.
    pub(crate) fn new(database: Arc<Database>, tables: &[&str], sql: &str) -> Self {
        static SCHEMAS: AtomicU64 = AtomicU64::new(0);
        let schema = format!("s{}", SCHEMAS.fetch_add(1, Ordering::Relaxed));
        let mut wanted = Wanted::new();
        for table in tables.iter().chain(&["done n"]) {
            let (name, columns) = table.split_once(' ').unwrap();
            let columns: BTreeSet<_> = columns.split(',').map(str::to_owned).collect();
            wanted.insert(TableName::new(schema.as_str(), name), columns);
        }
        database.operator("", &format!("CREATE DATABASE {schema}"));
        let place = Self { database, schema, wanted };
        place.sql("CREATE TABLE done (n BIGINT PRIMARY KEY)");
        place.sql(sql);
        place
    }

    pub(crate) async fn shared(tables: &[&str], sql: &str) -> Self {
        Self::new(shared().await, tables, sql)
    }

    /// In one session.
    pub(crate) fn sql(&self, sql: &str) -> String {
        self.database.operator(&self.schema, sql)
    }

    pub(crate) fn source(&self) -> MariaDb {
        MariaDb::new(&self.database.url("")).unwrap()
    }

    pub(crate) async fn try_open(&self, from: Option<&Position>) -> Result<Reader, LogError> {
        let log = self.source().open(from, &self.wanted).await?;
        Ok(Reader { log, position: from.cloned() })
    }

    /// From now on, or from where another has left it.
    pub(crate) async fn open(&self, from: Option<&Position>) -> Reader {
        let mut reader = self.try_open(from).await.unwrap();
        if from.is_none() {
            let first = reader.log.next().await.unwrap();
            assert!(first.changes.is_empty() && first.position.is_some(), "{first:?}");
            reader.position = first.position;
        }
        reader
    }

    /// What the log says about these statements, read by a new reader.
    pub(crate) async fn says(&self, sql: &str) -> Vec<String> {
        let mut reader = self.open(None).await;
        self.sql(sql);
        reader.told(self).await
    }
}

pub(crate) struct Reader {
    pub(crate) log: Box<dyn Log>,
    pub(crate) position: Option<Position>,
}

const LONG: Duration = Duration::from_secs(90);

impl Reader {
    pub(crate) async fn try_next(&mut self) -> Result<Batch, LogError> {
        let batch = timeout(LONG, self.log.next()).await.expect("a batch comes soon")?;
        if batch.position.is_some() {
            self.position.clone_from(&batch.position);
        }
        Ok(batch)
    }

    pub(crate) async fn next(&mut self) -> Batch {
        self.try_next().await.unwrap()
    }

    /// Everything up to now.
    pub(crate) async fn told(&mut self, place: &Place) -> Vec<String> {
        static MARKS: AtomicU64 = AtomicU64::new(0);
        let mark = MARKS.fetch_add(1, Ordering::Relaxed);
        place.sql(&format!("INSERT INTO done VALUES ({mark})"));
        let (mark, mut all) = (format!("done +{mark}"), Vec::new());
        for _ in 0..100_000 {
            all.extend(self.next().await.changes.iter().map(text));
            if let Some(at) = all.iter().position(|change| *change == mark) {
                all.truncate(at);
                all.retain(|change| !change.starts_with("done +"));
                return all;
            }
        }
        panic!("{mark} does not come");
    }

    /// Reads until it cannot.
    pub(crate) async fn error(&mut self) -> LogError {
        for _ in 0..100 {
            if let Err(error) = self.try_next().await {
                return error;
            }
        }
        panic!("it can be read");
    }
}

/// `t +1` for a new row or one that keeps its key, `t -1` for one that is gone, `t 1>2` for another key, `t *`, `*`.
pub(crate) fn text(change: &Change) -> String {
    match change {
        Change::Row { table, old, new } => match (old, new) {
            (None, Some(new)) => format!("{} +{}", table.name, cells(new)),
            (Some(old), None) => format!("{} -{}", table.name, cells(old)),
            (Some(old), Some(new)) => format!("{} {}>{}", table.name, cells(old), cells(new)),
            (None, None) => "nothing".into(),
        },
        Change::Table { table, .. } => format!("{} *", table.name),
        Change::Everything { .. } => "*".into(),
        other => format!("{other:?}"),
    }
}

/// By the names of the columns; those that tests use.
fn cells(row: &Row) -> String {
    let cell = |name: &str| match row.get(name) {
        Cell::Null => Some("NULL".to_owned()),
        Cell::Text(text) => Some(text.to_string()),
        Cell::Missing => None,
    };
    let all: Vec<_> = ["n", "id", "a", "b", "c", "d", "e", "f", "name"]
        .iter()
        .filter_map(|name| cell(name))
        .collect();
    if all.is_empty() { "?".into() } else { all.join("/") }
}
