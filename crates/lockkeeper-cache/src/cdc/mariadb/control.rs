//! Questions to the server, beside the log.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use mysql_async::prelude::{FromRow, Queryable, StatementLike};
use mysql_async::{Conn, Opts, OptsBuilder, Params, Row, Value};
use tokio::time::timeout;

use super::charset::{Charset, Charsets};
use super::event::Xid;
use super::gtid::{File, Gtids, Place, extend};
use crate::cdc::LogError;

/// No answer takes longer.
const ANSWER: Duration = Duration::from_secs(10);
/// The server reads a file of its log from its beginning for this one.
const LONG_ANSWER: Duration = Duration::from_secs(120);

/// The largest packet that a server sends.
const PACKET: usize = 1 << 30;
/// A file of the log, or a place in it, is not there.
const NO_SUCH_PLACE: u16 = 1220;

/// What has been committed, and where the log ends.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// The end of the last transaction that can be read. Not to be trusted in every case: see [`Gate`](super::gate::Gate).
    pub(super) committed: Place,
    /// Taken after it.
    pub(super) end: Place,
    /// The server's clock.
    pub(super) now: u32,
    /// How many transactions are in the log and wait for a replica.
    pub(super) waiting: u64,
}

/// What the server says of itself.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) server: u32,
    /// Names of tables are the same in capital letters.
    pub(super) fold: bool,
}

/// An event of a file.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) end: u64,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Checkpoint(File),
    Gtid,
    Other,
}

impl Shown {
    fn read(row: &Row) -> Option<Self> {
        let (begin, end): (u64, u32) = (row.get_opt(1)?.ok()?, row.get_opt(4)?.ok()?);
        let kind: String = row.get_opt(2)?.ok()?;
        let what = match kind.as_str() {
            "Binlog_checkpoint" => What::Checkpoint(File::new(&row.get_opt::<String, _>(5)?.ok()?)),
            "Gtid" => What::Gtid,
            _ => What::Other,
        };
        Some(Self { end: extend(begin, end), what })
    }
}

pub(super) struct Control {
    conn: Conn,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Control")
    }
}

/// Which errors no trying again helps against.
pub(super) fn log_error(error: mysql_async::Error) -> LogError {
    let mysql_async::Error::Server(server) = &error else { return LogError::Failed(error.into()) };
    let text = &server.message;
    match server.code {
        1236 => LogError::Lost(text.clone()),
        1044 | 1045 | 1049 | 1142 | 1143 | 1227 | 1698 => LogError::Refused(text.clone()),
        1381 => LogError::Refused(format!("{text}: start the server with log_bin")),
        4052 => {
            let text =
                format!("another reader has taken the same server_id: each needs its own ({text})");
            LogError::Failed(text.into())
        }
        _ => LogError::Failed(error.into()),
    }
}

/// The same where nothing can be lost, since nothing was asked for.
pub(super) fn not_lost(error: LogError) -> LogError {
    match error {
        LogError::Lost(text) => LogError::Failed(text.into()),
        other => other,
    }
}

fn nonsense() -> LogError {
    LogError::Failed("the server's answer makes no sense".into())
}

async fn in_time<T>(
    limit: Duration,
    answer: impl Future<Output = mysql_async::Result<T>> + Send,
) -> Result<T, LogError> {
    match timeout(limit, answer).await {
        Ok(answer) => answer.map_err(log_error),
        Err(_) => Err(LogError::Failed(format!("no answer within {limit:?}").into())),
    }
}

pub(super) async fn connect(options: &Opts) -> Result<Conn, LogError> {
    let options = OptsBuilder::from_opts(options.clone()).max_allowed_packet(Some(PACKET));
    in_time(ANSWER, Conn::new(options)).await
}

impl Control {
    pub(super) async fn connect(options: &Opts) -> Result<Self, LogError> {
        Ok(Self { conn: connect(options).await? })
    }

    pub(super) async fn rows<T>(&mut self, sql: &str) -> Result<Vec<T>, LogError>
    where
        T: FromRow + Send + 'static,
    {
        in_time(ANSWER, self.conn.query(sql)).await
    }

    pub(super) async fn rows_with<T>(
        &mut self,
        sql: &str,
        values: impl Into<Params> + Send,
    ) -> Result<Vec<T>, LogError>
    where
        T: FromRow + Send + 'static,
        for<'a> &'a str: StatementLike,
    {
        in_time(ANSWER, self.conn.exec(sql, values)).await
    }

    /// A variable or function, as text.
    pub(super) async fn value(&mut self, what: &str) -> Result<String, LogError> {
        let rows: Vec<Option<String>> = self.rows(&format!("SELECT {what}")).await?;
        Ok(rows.into_iter().flatten().next().unwrap_or_default())
    }

    /// Refuses what is no MariaDB with a log.
    pub(super) async fn identify(&mut self) -> Result<Identity, LogError> {
        let version = self.value("VERSION()").await?;
        if !version.contains("MariaDB") {
            let text = format!("only MariaDB can be followed so far, and this is MySQL {version}");
            return Err(LogError::Refused(text));
        }
        if self.value("@@GLOBAL.log_bin").await? != "1" {
            let text = "the server has no binary log: start it with log_bin and a server_id";
            return Err(LogError::Refused(text.into()));
        }
        let server = self.value("@@GLOBAL.server_id").await?.parse().map_err(|_| nonsense())?;
        let fold = self.value("@@GLOBAL.lower_case_table_names").await? != "0";
        Ok(Identity { server, fold })
    }

    pub(super) async fn charsets(&mut self) -> Result<Charsets, LogError> {
        let all = "SELECT id, character_set_name FROM information_schema.";
        let new = format!("{all}collation_character_set_applicability WHERE id IS NOT NULL");
        let rows: Result<Vec<(u64, String)>, _> = self.rows(&new).await;
        let rows = match rows {
            Ok(rows) => rows,
            // Before 10.10 the numbers are elsewhere.
            Err(_) => self.rows(&format!("{all}collations WHERE id IS NOT NULL")).await?,
        };
        let named = |(id, name): (u64, String)| (id, Charset::named(&name));
        Ok(Charsets(rows.into_iter().map(named).collect()))
    }

    pub(super) async fn look(&mut self) -> Result<Seen, LogError> {
        let all = async {
            let mut sets = self
                .conn
                .query_iter(
                    "SHOW STATUS WHERE Variable_name IN ('Binlog_snapshot_file', \
                     'Binlog_snapshot_position', 'Rpl_semi_sync_master_wait_sessions'); \
                     SHOW MASTER STATUS; \
                     SELECT UNIX_TIMESTAMP()",
                )
                .await?;
            let status: Vec<(String, String)> = sets.collect().await?;
            let end: Vec<Row> = sets.collect().await?;
            let now: Vec<u32> = sets.collect().await?;
            sets.drop_result().await?;
            Ok((status, end, now))
        };
        let (status, end, now) = in_time(ANSWER, all).await?;
        let status: HashMap<_, _> = status.into_iter().collect();
        let committed = || {
            let file = File::new(status.get("Binlog_snapshot_file")?);
            let offset = status.get("Binlog_snapshot_position")?.parse().ok()?;
            Some(Place { file, offset })
        };
        let end = || {
            let row = end.first()?;
            let file: String = row.get_opt(0)?.ok()?;
            Some(Place { file: File::new(&file), offset: row.get_opt(1)?.ok()? })
        };
        let waiting = status.get("Rpl_semi_sync_master_wait_sessions");
        let waiting = waiting.and_then(|count| count.parse().ok()).unwrap_or_default();
        let seen = || {
            let now = now.first().copied()?;
            Some(Seen { committed: committed()?, end: end()?, now, waiting })
        };
        seen().ok_or_else(nonsense)
    }

    /// The transactions that came before this place; `None` if there is no such place.
    pub(super) async fn gtids(&mut self, place: &Place) -> Result<Option<Gtids>, LogError> {
        let values = (place.file.name(), place.offset);
        let rows = self.conn.exec("SELECT BINLOG_GTID_POS(?, ?)", values);
        let rows: Vec<Option<String>> = in_time(LONG_ANSWER, rows).await?;
        match rows.into_iter().flatten().next() {
            Some(text) => text.parse().map(Some).map_err(|()| nonsense()),
            None => Ok(None),
        }
    }

    /// The files of the log and how long they are.
    pub(super) async fn files(&mut self) -> Result<Vec<(String, u64)>, LogError> {
        let rows: Vec<Row> = self.rows("SHOW BINARY LOGS").await?;
        let file = |row: Row| Some((row.get_opt(0)?.ok()?, row.get_opt(1)?.ok()?));
        Ok(rows.into_iter().filter_map(file).collect())
    }

    /// So many events of a file from there on, or fewer if it ends; `None` if it does not have that place. Nothing is committed while the
    /// server reads them.
    pub(super) async fn events(
        &mut self,
        file: &File,
        from: u64,
        limit: usize,
    ) -> Result<Option<Vec<Shown>>, LogError> {
        let name = file.name().replace('\\', "\\\\").replace('\'', "''");
        let sql = format!("SHOW BINLOG EVENTS IN '{name}' FROM {from} LIMIT {limit}");
        let page = async {
            let (mut rows, mut page) = (self.conn.query_iter(sql).await?, Vec::new());
            // One at a time: some have the text of a statement.
            while let Some(row) = rows.next().await? {
                page.extend(Shown::read(&row));
            }
            Ok(page)
        };
        let page = async {
            match page.await {
                Err(mysql_async::Error::Server(error)) if error.code == NO_SUCH_PLACE => Ok(None),
                page => page.map(Some),
            }
        };
        in_time(ANSWER, page).await
    }

    /// Transactions that are prepared and not committed.
    pub(super) async fn prepared(&mut self) -> Result<Vec<Xid>, LogError> {
        let rows: Vec<(u32, usize, usize, Value)> = self.rows("XA RECOVER").await?;
        let xid = |(format, global, branch, data): (u32, usize, usize, Value)| {
            let Value::Bytes(data) = data else { return None };
            let (first, second) = data.split_at_checked(global)?;
            let branch = second.get(..branch)?.to_vec();
            Some(Xid { format, global: first.to_vec(), branch })
        };
        Ok(rows.into_iter().filter_map(xid).collect())
    }
}
