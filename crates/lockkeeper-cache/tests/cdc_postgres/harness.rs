//! A database of its own, whose log is read as lines of text.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use lockkeeper_cache::cdc::postgres::Postgres;
use lockkeeper_cache::cdc::{Batch, Cell, Change, Log, LogError, Position, Row, Source, Wanted};
use testkit::database::{Database, System};
use testkit::wait::soon;
use tokio::sync::Mutex;

const LOGICAL: [&str; 5] = [
    "-cwal_level=logical",
    "-cmax_replication_slots=60",
    "-cmax_wal_senders=60",
    "-cmax_connections=200",
    "-cmax_prepared_transactions=5",
];

/// A database with a table `done`, by which the end of something is told.
pub(crate) struct Place {
    pub(crate) server: Arc<Database>,
    pub(crate) name: String,
    wanted: Wanted,
}

/// A server for what disturbs nobody.
async fn shared() -> Arc<Database> {
    static SHARED: Mutex<Weak<Database>> = Mutex::const_new(Weak::new());
    let mut shared = SHARED.lock().await;
    if let Some(database) = shared.upgrade() {
        return database;
    }
    let database = Arc::new(System::Postgres.start(&LOGICAL).await);
    *shared = Arc::downgrade(&database);
    database
}

/// `table column column`, where a table has no schema if it is `public`.
pub(crate) fn wanted(tables: &[&str]) -> Wanted {
    let each = tables.iter().map(|text| {
        let mut words = text.split(' ');
        let table = words.next().unwrap();
        let table = if table.contains('.') { table.to_owned() } else { format!("public.{table}") };
        (table.parse().unwrap(), words.map(str::to_owned).collect())
    });
    each.collect()
}

impl Place {
    /// In the server that is shared, with what these statements make, and these tables published.
    pub(crate) async fn new(statements: &[&str], tables: &[&str]) -> Self {
        Self::at(shared().await, statements, tables).await
    }

    /// In a server of its own.
    pub(crate) async fn alone(arguments: &[&str], statements: &[&str], tables: &[&str]) -> Self {
        let arguments = [&LOGICAL[..], arguments].concat();
        let server = Arc::new(System::Postgres.start(&arguments).await);
        Self::at(server, statements, tables).await
    }

    pub(crate) async fn at(server: Arc<Database>, statements: &[&str], tables: &[&str]) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("cdc{}", COUNT.fetch_add(1, Ordering::Relaxed));
        server.operator("", &format!("CREATE DATABASE {name}"));
        let wanted = wanted(&[tables, &["done id"]].concat());
        let place = Self { server, name, wanted };
        place.sql("CREATE TABLE done (id int PRIMARY KEY)");
        for statement in statements {
            place.sql(statement);
        }
        place.source().set_up(&place.wanted).await.unwrap();
        place
    }

    pub(crate) fn sql(&self, sql: &str) -> String {
        self.server.operator(&self.name, sql)
    }

    pub(crate) fn url(&self) -> String {
        self.server.url(&self.name)
    }

    pub(crate) fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// The slot is called as the database.
    pub(crate) fn source(&self) -> Postgres {
        Postgres::new(&self.url()).unwrap().slot(&self.name)
    }

    pub(crate) fn slot(&self, column: &str) -> String {
        let name = &self.name;
        self.sql(&format!("SELECT {column} FROM pg_replication_slots WHERE slot_name = '{name}'"))
    }

    /// From now on; with the position where that is.
    pub(crate) async fn begin(&self) -> (Box<dyn Log>, Position) {
        let mut log = soon("opened", self.source().open(None, &self.wanted)).await.unwrap();
        let first = soon("the first batch", log.next()).await.unwrap();
        assert!(first.changes.is_empty());
        (log, first.position.unwrap())
    }

    pub(crate) async fn open(&self, from: &Position) -> Result<Box<dyn Log>, LogError> {
        soon("opened", self.source().open(Some(from), &self.wanted)).await
    }

    /// That the history is lost, and why.
    pub(crate) async fn lost(&self, from: &Position) -> String {
        match self.open(from).await {
            Err(LogError::Lost(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    /// Everything that was told up to now.
    pub(crate) async fn told(&self, log: &mut dyn Log) -> Vec<String> {
        self.told_to(log).await.0
    }

    /// The same, and the last position.
    pub(crate) async fn told_to(&self, log: &mut dyn Log) -> (Vec<String>, Option<Position>) {
        static DONE: AtomicU64 = AtomicU64::new(0);
        let number = DONE.fetch_add(1, Ordering::Relaxed);
        self.sql(&format!("INSERT INTO done VALUES ({number})"));
        let end = format!("done +{number}");
        let (mut lines, mut position) = (Vec::new(), None);
        let all = async {
            loop {
                let Batch { changes, position: next, .. } = log.next().await.unwrap();
                position = next.or(position.take());
                lines.extend(changes.iter().map(|change| self.line(change)));
                if lines.last() == Some(&end) {
                    lines.pop();
                    break;
                }
            }
        };
        soon("told", all).await;
        // Of others who read this log before.
        lines.retain(|line| !line.starts_with("done "));
        (lines, position)
    }
}

/// Ends with the next error.
pub(crate) async fn until_error(log: &mut dyn Log) -> LogError {
    let error = async {
        loop {
            if let Err(error) = log.next().await {
                return error;
            }
        }
    };
    soon("an error", error).await
}

fn cell(cell: &Cell) -> &str {
    match cell {
        Cell::Null => "NULL",
        Cell::Missing => "?",
        Cell::Text(text) => text,
    }
}

impl Place {
    /// `table -old +new`, with the columns in the order of their names.
    pub(crate) fn line(&self, change: &Change) -> String {
        match change {
            Change::Row { table, old, new } => {
                let row = |row: &Row| {
                    let cells = self.wanted[&**table].iter().map(|column| cell(row.get(column)));
                    cells.collect::<Vec<_>>().join("|")
                };
                let old = old.as_ref().map(|old| format!(" -{}", row(old))).unwrap_or_default();
                let new = new.as_ref().map(|new| format!(" +{}", row(new))).unwrap_or_default();
                format!("{}{old}{new}", table.name)
            }
            Change::Table { table, why } => format!("{} all: {why}", table.name),
            Change::Everything { why } => format!("everything: {why}"),
            Change::Keys { namespace, touched } => {
                let keys = touched.iter().map(|key| format!(" {}/{}", key.key, key.version));
                format!("{namespace}:{}", keys.collect::<String>())
            }
        }
    }

    pub(crate) fn lines(&self, batch: &Batch) -> Vec<String> {
        batch.changes.iter().map(|change| self.line(change)).collect()
    }
}
