//! `GET_LOCK` of MySQL and MariaDB.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Row, Transaction};

use super::super::dialect::Dialect;
use super::super::fault::Fault;
use super::super::mysql::{MySql, binary, code};
use super::super::pool::{Pool, statement};
use super::ties::{COMMON, SPARE, Tie, Ties, WAITS, Wanted, hashed, waiter};
use super::transaction::sealed::Lock;
use super::transaction::{Attempt, LOOK, Transactional};
use crate::backend::Capabilities;
use crate::clock::Instant;
use crate::owner;

/// How often it is tried out whether sessions share connections.
const PROBES: u32 = 3;

/// Settings of a session: committed statement by statement, and no limit but ours (MariaDB).
const SETTINGS: &str = "SET SESSION autocommit = 1 /*M!100101 , SESSION max_statement_time = 0 */;";

const DATABASE: &str = "SELECT CONCAT(DATABASE(), ' of ', @@hostname, ':', @@port)";

/// What the server calls the lock, which is that of the server and not of the database: no longer than 64
/// characters, and the same in upper and lower case.
fn called(key: &[u8]) -> String {
    format!("SHA2(CONCAT(DATABASE(), x'00', {}), 256)", binary(&hashed(key)))
}

/// Whole seconds, and not a moment too early.
fn idle(time: Duration) -> String {
    let seconds = time.as_millis().div_ceil(1000).max(1);
    format!("SET SESSION wait_timeout = {seconds}")
}

fn text(sql: String) -> sqlx::RawSql {
    sqlx::raw_sql(AssertSqlSafe(sql))
}

fn string(row: &MySqlRow, column: usize) -> Result<Option<String>, sqlx::Error> {
    let bytes: Option<Vec<u8>> = row.try_get_unchecked(column)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

fn number(row: &MySqlRow, column: usize) -> Result<Option<u64>, sqlx::Error> {
    let number: Option<i64> = row.try_get(column)?;
    Ok(number.and_then(|number| u64::try_from(number).ok()))
}

/// What nobody asks for, because [`CAN`](Ties::CAN) says so.
fn unshared() -> sqlx::Error {
    sqlx::Error::Configuration("mysql has no read-write locks with mode=session".into())
}

fn strange() -> sqlx::Error {
    sqlx::Error::Decode("no number".into())
}

impl MySql {
    /// What this session was marked with.
    pub(super) async fn mark(
        connection: &mut MySqlConnection,
    ) -> Result<Option<String>, sqlx::Error> {
        let row = sqlx::raw_sql("SELECT @lockkeeper_session").fetch_one(connection).await?;
        string(&row, 0)
    }
}

impl Ties for MySql {
    type Session = MySqlConnection;

    const CAN: Capabilities = COMMON;
    // What wait_timeout can be at most.
    const LONGEST: Duration = Duration::from_hours(24 * 364);

    async fn open(&self) -> Result<(MySqlConnection, u64), sqlx::Error> {
        let mut connection = self.connect().await?;
        let sql = format!("{SETTINGS} {}; SELECT CAST(CONNECTION_ID() AS SIGNED)", idle(SPARE));
        let row = text(sql).fetch_one(&mut connection).await?;
        let number = number(&row, 0)?.ok_or_else(strange)?;
        Ok((connection, number))
    }

    async fn connection(
        session: &mut MySqlConnection,
    ) -> Result<&mut MySqlConnection, sqlx::Error> {
        Ok(session)
    }

    /// Nobody hears the end of a connection without asking.
    async fn hear_the_end(_session: &mut MySqlConnection) {
        std::future::pending().await
    }

    async fn is_shared(session: &mut MySqlConnection, pool: &Pool<Self>) -> Result<bool, Fault> {
        type D = MySql;
        // A cluster has the locks of one node only.
        let wsrep = sqlx::raw_sql("SHOW VARIABLES LIKE 'wsrep_on'").fetch_optional(&mut *session);
        if let Some(row) = wsrep.await.map_err(Self::fault)?
            && string(&row, 1).map_err(Self::fault)?.as_deref() == Some("ON")
        {
            let why = "GET_LOCK is known to one node of a cluster only: use mode=lease";
            return Err(Fault::Refused(why, sqlx::Error::Configuration("wsrep_on".into())));
        }
        for _ in 0..PROBES {
            let mark = format!("{:016x}", owner::random());
            // Some proxies answer the second one themselves.
            let set = format!("SET @lockkeeper_session = '{mark}'");
            text(set).execute(&mut *session).await.map_err(Self::fault)?;
            let alone = sqlx::raw_sql("SELECT CONNECTION_ID()").fetch_one(&mut *session);
            let alone = alone.await.map_err(Self::fault)?;
            let alone: Option<u64> = alone.try_get_unchecked(0).map_err(Self::fault)?;
            let within = "SELECT CAST(CONNECTION_ID() AS SIGNED), @lockkeeper_session, \
                          (SELECT 1 FROM lockkeeper_meta)";
            let within = sqlx::raw_sql(within).fetch_one(&mut *session).await;
            let within = within.map_err(Self::fault)?;
            let ours = string(&within, 1).map_err(Self::fault)?;
            let another = statement!(pool, mark)?;
            if number(&within, 0).map_err(Self::fault)? != alone
                || ours.as_ref() != Some(&mark)
                || another.as_ref() == Some(&mark)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn lock(
        connection: &mut MySqlConnection,
        Wanted { key, shared, ttl, owner }: &Wanted<'_>,
        wait: Duration,
    ) -> Result<Option<String>, sqlx::Error> {
        if *shared {
            return Err(unshared());
        }
        let (called, idle, wait) = (called(key), idle(*ttl), wait.as_secs_f64());
        let sql = format!(
            "{idle}; SELECT {WAITS}{owner} */ CAST(GET_LOCK({called}, {wait:.6}) AS SIGNED), {called}"
        );
        let row = text(sql).fetch_one(connection).await?;
        if number(&row, 0)? == Some(1) { string(&row, 1) } else { Ok(None) }
    }

    async fn unlock(
        connection: &mut MySqlConnection,
        lock: &str,
        _shared: bool,
        row: &[u8],
    ) -> Result<bool, sqlx::Error> {
        let (row, idle) = (binary(row), idle(SPARE));
        let sql = format!(
            "DELETE FROM lockkeeper_names WHERE name = {row}; {idle}; \
             SELECT CAST(RELEASE_LOCK('{lock}') AS SIGNED)"
        );
        let rows = text(sql).fetch_all(connection).await?;
        Ok(number(rows.first().ok_or_else(strange)?, 0)? == Some(1))
    }

    async fn share(_connection: &mut MySqlConnection, _lock: &str) -> Result<bool, sqlx::Error> {
        Err(unshared())
    }

    async fn beat(
        connection: &mut MySqlConnection,
        row: &[u8],
        left: Duration,
    ) -> Result<(u64, Option<Vec<u8>>), sqlx::Error> {
        let (row, idle) = (binary(row), idle(left));
        let sql = format!(
            "{idle}; SELECT CAST(CONNECTION_ID() AS SIGNED), \
             (SELECT state FROM lockkeeper_names WHERE name = {row})"
        );
        let row = text(sql).fetch_one(connection).await?;
        Ok((number(&row, 0)?.ok_or_else(strange)?, row.try_get_unchecked(1)?))
    }

    async fn called(connection: &mut MySqlConnection, key: &[u8]) -> Result<String, sqlx::Error> {
        let sql = format!("SELECT {}", called(key));
        let row = text(sql).fetch_one(connection).await?;
        string(&row, 0)?.ok_or_else(strange)
    }

    async fn ties(
        connection: &mut MySqlConnection,
        locks: &[(String, Vec<u8>)],
    ) -> Result<Vec<Tie>, sqlx::Error> {
        if locks.is_empty() {
            return Ok(Vec::new());
        }
        let used: Vec<_> = locks
            .iter()
            .map(|(lock, _)| format!("SELECT '{lock}', CAST(IS_USED_LOCK('{lock}') AS SIGNED)"))
            .collect();
        let rows = text(used.join(" UNION ALL ")).fetch_all(&mut *connection).await?;
        let mut ties = Vec::new();
        for row in &rows {
            if let (Some(lock), Some(session)) = (string(row, 0)?, number(row, 1)?) {
                ties.push(Tie { lock, session, granted: true, waiter: None });
            }
        }
        // Those of other users are seen only by who may see all.
        let sql = format!(
            "SELECT CAST(ID AS SIGNED), INFO FROM information_schema.PROCESSLIST \
             WHERE STATE = 'User lock' AND INFO LIKE '%{WAITS}%' ORDER BY TIME DESC, ID"
        );
        for row in text(sql).fetch_all(connection).await? {
            let (Some(session), Some(info)) = (number(&row, 0)?, string(&row, 1)?) else {
                continue;
            };
            let wanted = |(_, key): &&(String, Vec<u8>)| info.contains(&binary(&hashed(key)));
            if let Some((lock, _)) = locks.iter().find(wanted) {
                let (lock, waiter) = (lock.clone(), waiter(&info));
                ties.push(Tie { lock, session, granted: false, waiter });
            }
        }
        Ok(ties)
    }

    async fn database(connection: &mut MySqlConnection) -> Result<String, sqlx::Error> {
        let row = sqlx::raw_sql(DATABASE).fetch_one(connection).await?;
        string(&row, 0)?.ok_or_else(strange)
    }

    async fn make_row(connection: &mut MySqlConnection, key: &[u8]) -> Result<(), sqlx::Error> {
        let key = binary(key);
        // Inserting would wait for whoever has locked the row, or has just made it.
        let sql = format!(
            "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED; \
             SELECT 1 FROM lockkeeper_rows WHERE name = {key}"
        );
        if text(sql).fetch_optional(&mut *connection).await?.is_some() {
            return Ok(());
        }
        let sql = format!(
            "INSERT IGNORE INTO lockkeeper_rows (name, made) VALUES ({key}, UTC_TIMESTAMP())"
        );
        match text(sql).execute(connection).await {
            // Somebody is about to make it. If not, the transaction will.
            Err(error) if code(&error) == Some(1205) => Ok(()),
            made => made.map(drop),
        }
    }

    async fn purge_rows(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        const OLD: &str = "made < UTC_TIMESTAMP() - INTERVAL 7 DAY";
        let sql = format!("SELECT name FROM lockkeeper_rows WHERE {OLD} LIMIT 200");
        for row in text(sql).fetch_all(&mut *connection).await? {
            let name = binary(row.try_get_unchecked(0)?);
            // One by one, and those in use not at all: whoever waits here stands in the way of others.
            let sql = format!(
                "BEGIN; SELECT 1 FROM lockkeeper_rows WHERE name = {name} AND {OLD} FOR UPDATE NOWAIT; \
                 DELETE FROM lockkeeper_rows WHERE name = {name} AND {OLD}; COMMIT"
            );
            if let Err(error) = text(sql).execute(&mut *connection).await {
                // Others use this connection.
                sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await?;
                if !matches!(code(&error), Some(1205 | 3572)) {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn end(
        connection: &mut MySqlConnection,
        session: u64,
        key: &[u8],
        held: bool,
        since: Duration,
    ) -> Result<(), sqlx::Error> {
        // Numbers begin again when the server does, and then there is nothing left to end.
        let up = sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Uptime'").fetch_one(&mut *connection);
        let up = string(&up.await?, 1)?.and_then(|seconds| seconds.parse::<u64>().ok());
        if up.is_some_and(|seconds| seconds < since.as_secs()) {
            return Ok(());
        }
        let mut ours =
            format!("SELECT 1 FROM DUAL WHERE IS_USED_LOCK({}) = {session}", called(key));
        if !held {
            ours += &format!(
                " UNION SELECT 1 FROM information_schema.PROCESSLIST \
                 WHERE ID = {session} AND INFO LIKE '%{WAITS}%'"
            );
        }
        if text(ours).fetch_optional(&mut *connection).await?.is_none() {
            return Ok(());
        }
        match text(format!("KILL {session}")).execute(connection).await {
            // There is no such session.
            Err(error) if code(&error) == Some(1094) => Ok(()),
            ended => ended.map(drop),
        }
    }
}

impl Transactional for Transaction<'_, sqlx::MySql> {}

#[async_trait]
impl Lock for Transaction<'_, sqlx::MySql> {
    const BACKEND: &'static str = MySql::NAME;

    async fn database(&mut self) -> Result<String, sqlx::Error> {
        MySql::database(self).await
    }

    async fn lock(&mut self, key: &[u8], until: Instant) -> Attempt {
        let name = binary(key);
        let lock = format!("SELECT 1 FROM lockkeeper_rows WHERE name = {name} FOR UPDATE");
        let make = format!(
            "INSERT IGNORE INTO lockkeeper_rows (name, made) VALUES ({name}, UTC_TIMESTAMP())"
        );
        let mut missing = false;
        loop {
            let left = until.since(Instant::now());
            // The server counts in whole seconds; what is left in the end is spent looking.
            let waits = missing || left.as_secs() > 0;
            let sql = match waits {
                false => format!("{lock} NOWAIT"),
                true => {
                    let seconds = left.as_secs().clamp(1, 1_000_000);
                    let make = if missing { format!("{make}; ") } else { String::new() };
                    format!(
                        "SET @lockkeeper_before = @@SESSION.innodb_lock_wait_timeout; \
                         SET SESSION innodb_lock_wait_timeout = {seconds}; {make}{lock}"
                    )
                }
            };
            let locked = text(sql).fetch_optional(&mut **self).await;
            if waits {
                let back = "SET SESSION innodb_lock_wait_timeout = @lockkeeper_before";
                if let Err(error) = sqlx::raw_sql(back).execute(&mut **self).await {
                    return Attempt::Failed(error);
                }
            }
            match locked {
                Ok(Some(_)) => return Attempt::Locked,
                // Deleted since it was made. By now nobody else can make it: the gap where it was is
                // locked by this transaction.
                Ok(None) => missing = true,
                Err(error) => match code(&error) {
                    Some(1205 | 3572) if Instant::now() >= until => return Attempt::Busy,
                    Some(1205 | 3572) => tokio::time::sleep(LOOK.min(left)).await,
                    Some(1213) => return Attempt::Deadlock { over: true },
                    _ => return Attempt::Failed(error),
                },
            }
        }
    }
}
