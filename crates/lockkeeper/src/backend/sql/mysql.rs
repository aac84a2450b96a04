//! MySQL and MariaDB.
//!
//! Every statement is text, with its values as numbers and as hexadecimal: one round trip, nothing
//! prepared and nothing left in the session.

use std::sync::Weak;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow, MySqlSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, Row};

use super::dialect::{
    Dialect, Inserted, LOCK_TIME, Message, PURGED_AT_ONCE, SPARED, When, hash, hex,
};
use super::fault::{Fault, NO_RIGHTS, NO_TABLES, READ_ONLY};
use super::hub::Hub;
use super::pool::Pool;
use super::row::{ClientId, Known, RawRow, Written};
use crate::backend::{Cell, Write};
use crate::error::Result as OurResult;
use crate::tls::Pem;
use crate::url::SqlOptions;

/// µs since 1970. In UTC: local time has an hour twice when the clocks are put back.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// How many rows `lockkeeper_turns` has.
const TURNS: u32 = 1024;

/// A MySQL or MariaDB server. The options have the password: they are never shown.
pub(super) struct MySql {
    options: MySqlConnectOptions,
}

impl MySql {
    pub(super) fn new(options: &SqlOptions) -> OurResult<Self> {
        let (host, port) = options.address(3306)?;
        let mut with = MySqlConnectOptions::new()
            .host(&host)
            .port(port)
            .database(&options.servers.path)
            .ssl_mode(MySqlSslMode::Disabled)
            // Nothing of ours depends on any of this.
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .timezone(None)
            .set_names(false);
        if let Some((user, password)) = &options.servers.credentials {
            with = with.username(user);
            if !password.is_empty() {
                with = with.password(password);
            }
        }
        if let Some(files) = &options.servers.tls {
            let pem = Pem::read(files)?;
            with = with.ssl_mode(MySqlSslMode::VerifyIdentity);
            if let Some(ca) = pem.ca {
                with = with.ssl_ca_from_pem(ca);
            }
            if let Some((cert, key)) = pem.identity {
                with = with.ssl_client_cert_from_pem(cert).ssl_client_key_from_pem(key);
            }
        }
        Ok(Self { options: with.disable_statement_logging() })
    }
}

pub(super) fn binary(bytes: &[u8]) -> String {
    format!("x'{}'", hex(bytes))
}

async fn execute(connection: &mut MySqlConnection, sql: String) -> Result<bool, sqlx::Error> {
    let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?;
    Ok(done.rows_affected() > 0)
}

fn number(row: &MySqlRow, column: usize) -> Result<u64, sqlx::Error> {
    let value: i64 = row.try_get(column)?;
    u64::try_from(value).map_err(|_| sqlx::Error::Decode("a number below zero".into()))
}

fn is_known(key: &[u8], Known { epoch, version }: Known) -> String {
    format!("name = {} AND epoch = {epoch} AND version = {version}", binary(key))
}

/// The number of the server's own error.
pub(super) fn code(error: &sqlx::Error) -> Option<u16> {
    use sqlx::mysql::MySqlDatabaseError;
    Some(error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

impl Dialect for MySql {
    const NAME: &'static str = "mysql";

    type Connection = MySqlConnection;

    async fn connect(&self) -> Result<MySqlConnection, sqlx::Error> {
        let mut connection = self.options.connect().await?;
        // What we rely on, whatever is usual at this server.
        let sql = format!(
            "SET autocommit = 1, sql_mode = 'STRICT_ALL_TABLES', \
             innodb_lock_wait_timeout = {LOCK_TIME}, lock_wait_timeout = {LOCK_TIME}; \
             SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
        );
        execute(&mut connection, sql).await?;
        Ok(connection)
    }

    async fn version(connection: &mut MySqlConnection) -> Result<(u64, u64), sqlx::Error> {
        let sql = format!("SELECT version, {NOW} FROM lockkeeper_meta");
        let found = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(connection).await?;
        Ok((number(&found, 0)?, number(&found, 1)?))
    }

    async fn init(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(include_str!("mysql.sql")).execute(connection).await?;
        Ok(())
    }

    async fn load(
        connection: &mut MySqlConnection,
        key: &[u8],
        _prepared: bool,
    ) -> Result<(u64, Option<RawRow>), sqlx::Error> {
        let sql = format!(
            "SELECT epoch, version, clock, token, state, {NOW} \
             FROM (SELECT 1) AS one LEFT JOIN lockkeeper_names ON name = {}",
            binary(key)
        );
        let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(connection).await?;
        let now = number(&row, 5)?;
        if row.try_get::<Option<i64>, _>(0)?.is_none() {
            return Ok((now, None));
        }
        let clock = row.try_get::<Option<i64>, _>(2)?;
        let raw = RawRow {
            epoch: number(&row, 0)?,
            version: number(&row, 1)?,
            clock: clock.map(|_| number(&row, 2)).transpose()?,
            token: number(&row, 3)?,
            state: row.try_get(4)?,
        };
        Ok((now, Some(raw)))
    }

    async fn insert(
        connection: &mut MySqlConnection,
        key: &[u8],
        Written { token, ends, state }: &Written,
        too_late: u64,
        _prepared: bool,
    ) -> Result<Inserted, sqlx::Error> {
        // Not INSERT IGNORE, which also ignores what it should not, and cuts what is too long.
        // The inner query comes first: the turn of this insert, then its epoch. A token that is null,
        // because it is too late, is refused.
        let (name, state, turn) = (binary(key), binary(state), hash(key) % TURNS);
        let sql = format!(
            "INSERT INTO lockkeeper_names (name, version, clock, token, ends, state) \
             VALUES ({name}, (SELECT 1 FROM lockkeeper_turns WHERE turn = {turn} FOR UPDATE), \
             {NOW}, IF({NOW} < {too_late}, {token}, NULL), {NOW} + {ends}, {state})"
        );
        match sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await {
            Ok(done) => Ok(Inserted::Done(done.last_insert_id())),
            Err(error) => match code(&error) {
                Some(1062) => Ok(Inserted::Taken(None)),
                Some(1048) if error.to_string().contains("'token'") => Ok(Inserted::Taken(None)),
                _ => Err(error),
            },
        }
    }

    async fn update(
        connection: &mut MySqlConnection,
        key: &[u8],
        known: Known,
        Written { token, ends, state }: &Written,
        When { too_late, .. }: When<'_>,
        _messages: &[Message],
    ) -> Result<bool, sqlx::Error> {
        let (state, is_known) = (binary(state), is_known(key, known));
        let sql = format!(
            "UPDATE lockkeeper_names SET version = version + 1, clock = NULL, token = {token}, \
             ends = {ends}, state = {state} WHERE {is_known} AND {NOW} < {too_late}"
        );
        execute(connection, sql).await
    }

    async fn absent(
        _connection: &mut MySqlConnection,
        _clients: &[ClientId],
    ) -> Result<Vec<ClientId>, sqlx::Error> {
        Ok(Vec::new())
    }

    async fn renumber(
        connection: &mut MySqlConnection,
        key: &[u8],
        known: Known,
        Written { token, ends, state }: &Written,
    ) -> Result<bool, sqlx::Error> {
        let (state, is_known) = (binary(state), is_known(key, known));
        // A row that is replaced draws another epoch, which no update can. Read for update: or it could
        // be changed between being read and being replaced.
        let sql = format!(
            "REPLACE INTO lockkeeper_names (name, version, clock, token, ends, state) \
             SELECT name, version + 1, NULL, {token}, {ends}, {state} \
             FROM lockkeeper_names WHERE {is_known} FOR UPDATE"
        );
        execute(connection, sql).await
    }

    async fn delete(
        connection: &mut MySqlConnection,
        key: &[u8],
        known: Known,
        alive: bool,
        _messages: &[Message],
        _prepared: bool,
    ) -> Result<bool, sqlx::Error> {
        let alive = if alive { format!(" AND ends > {NOW}") } else { String::new() };
        let sql = format!("DELETE FROM lockkeeper_names WHERE {}{alive}", is_known(key, known));
        execute(connection, sql).await
    }

    async fn evictions(connection: &mut MySqlConnection) -> Result<u64, sqlx::Error> {
        let found = sqlx::raw_sql("SELECT evictions FROM lockkeeper_meta").fetch_one(connection);
        number(&found.await?, 0)
    }

    async fn count_eviction(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        // By its key: some servers refuse it otherwise.
        let sql = "UPDATE lockkeeper_meta SET evictions = evictions + 1 WHERE one = TRUE";
        execute(connection, sql.to_owned()).await.map(drop)
    }

    async fn keys(
        connection: &mut MySqlConnection,
        prefix: &[u8],
    ) -> Result<Vec<Vec<u8>>, sqlx::Error> {
        let (length, prefix) = (prefix.len(), binary(prefix));
        let sql = format!(
            "SELECT name FROM lockkeeper_names WHERE SUBSTRING(name, 1, {length}) = {prefix}"
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?;
        rows.iter().map(|row| row.try_get(0)).collect()
    }

    async fn expired(
        connection: &mut MySqlConnection,
    ) -> Result<Vec<(Vec<u8>, Known)>, sqlx::Error> {
        let sql = format!(
            "SELECT name, epoch, version FROM lockkeeper_names \
             WHERE ends < {NOW} - {SPARED} LIMIT {PURGED_AT_ONCE}"
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?;
        let expired = rows.iter().map(|row| {
            let known = Known { epoch: number(row, 1)?, version: number(row, 2)? };
            Ok((row.try_get(0)?, known))
        });
        expired.collect()
    }

    async fn cells(
        connection: &mut MySqlConnection,
        key: &[u8],
    ) -> Result<Vec<(u64, Cell)>, sqlx::Error> {
        let sql = format!(
            "SELECT CAST(cell AS SIGNED), version, value FROM lockkeeper_cells WHERE name = {}",
            binary(key)
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?;
        let cell = |row: &MySqlRow| {
            let (version, value) = (number(row, 1)?, row.try_get(2)?);
            Ok((number(row, 0)?, Cell { version, value }))
        };
        rows.iter().map(cell).collect()
    }

    async fn swap_cells(
        connection: &mut MySqlConnection,
        key: &[u8],
        writes: &[Write],
    ) -> Result<bool, sqlx::Error> {
        let name = binary(key);
        // Of several, all: one that somebody has deleted would not stop the others from being written.
        let new = writes.iter().filter(|write| write.version == 0 || writes.len() > 1);
        let new: Vec<_> = new.map(|write| format!("({name}, {}, 0, '')", write.cell)).collect();
        if !new.is_empty() {
            let sql = format!(
                "INSERT INTO lockkeeper_cells (name, cell, version, value) VALUES {} \
                 ON DUPLICATE KEY UPDATE version = version",
                new.join(", ")
            );
            execute(connection, sql).await?;
        }
        let (mut cases, mut cells) = (String::new(), Vec::with_capacity(writes.len()));
        for Write { cell, version, value } in writes {
            let value = binary(value);
            cases += &format!(" WHEN cell = {cell} AND version = {version} THEN {value}");
            cells.push(cell.to_string());
        }
        // A value that is null, because the version is another one, is refused, and the whole statement
        // with it. From left to right: the value is found by the version of before.
        let sql = format!(
            "UPDATE lockkeeper_cells SET value = CASE{cases} END, version = version + 1 \
             WHERE name = {name} AND cell IN ({}) ORDER BY cell",
            cells.join(", ")
        );
        match execute(connection, sql).await {
            Err(error) if code(&error) == Some(1048) => Ok(false),
            swapped => swapped,
        }
    }

    fn fault(error: sqlx::Error) -> Fault {
        let Some(code) = code(&error) else {
            return match &error {
                // Without a cryptography of its own for it, which is broken anyway.
                sqlx::Error::Configuration(why) if why.to_string().contains("RSA") => {
                    Fault::Refused(
                        "this user's password may be sent by TLS only: add tls=on",
                        error,
                    )
                }
                _ => Fault::of_driver(error),
            };
        };
        match code {
            // Deadlock, which a failed certification in Galera calls itself too; in a group; lock wait
            // time-out; changed since it was read.
            1213 | 3101 | 1205 | 1020 => Fault::Conflict(error),
            // An error during the commit: who knows.
            1180 => Fault::Broken(error),
            1317 | 1969 | 3024 => Fault::Later("the server ended the statement", error),
            1040 | 1203 | 1226 => {
                Fault::Later("the server has no connection left (max_connections)", error)
            }
            1047 => Fault::Later("the node is not part of its cluster now", error),
            // Shutting down; killed.
            1053 | 1927 => Fault::Broken(error),
            1146 | 1054 | 1048 => Fault::Refused(NO_TABLES, error),
            1142 | 1143 | 1227 | 1370 => Fault::Refused(NO_RIGHTS, error),
            1290 | 1836 | 1792 => Fault::Refused(READ_ONLY, error),
            1045 | 1698 => Fault::Refused(
                "wrong user or password in the URL, or a user who must come by TLS (tls=on) or with a \
                 certificate (cert= and key=)?",
                error,
            ),
            3159 => Fault::Refused("the server wants TLS: add tls=on", error),
            1044 | 1049 => Fault::Refused("there is no such database, or not for this user", error),
            _ => Fault::Refused("the server refused a statement", error),
        }
    }

    /// It has no messages.
    fn listen(_pool: &Weak<Pool<Self>>, _hub: &Weak<Hub>) {}
}
