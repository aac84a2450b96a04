//! PostgreSQL.
//!
//! Every statement goes by the simple protocol, with its values in the text as numbers and as
//! hexadecimal: one round trip, nothing prepared and nothing left in the session, so it does not matter
//! which connection of a pooler carries it out.

use std::sync::Weak;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, Row};

use super::dialect::{Dialect, Inserted, Message, hex, unhex};
use super::fault::Fault;
use super::hub::Hub;
use super::listener;
use super::pool::Pool;
use super::row::{Known, RawRow, Written};
use crate::error::Result as OurResult;
use crate::tls::Pem;
use crate::url::SqlOptions;

/// µs since 1970.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// What a session of ours was marked with.
pub(super) const SESSION: &str = "SELECT current_setting('lockkeeper.session', true)";

/// A PostgreSQL server. The options have the password: they are never shown.
pub(super) struct Postgres {
    pub(super) options: PgConnectOptions,
}

impl Postgres {
    pub(super) fn new(options: &SqlOptions) -> OurResult<Self> {
        let (host, port) = options.address(5432)?;
        let mut with = PgConnectOptions::new_without_pgpass()
            .host(&host)
            .port(port)
            .database(&options.servers.path)
            .application_name("lockkeeper")
            .ssl_mode(PgSslMode::Disable)
            // A pooler refuses what it does not know.
            .extra_float_digits(None);
        if let Some((user, password)) = &options.servers.credentials {
            with = with.username(user).password(password);
        }
        if let Some(files) = &options.servers.tls {
            let pem = Pem::read(files)?;
            with = with.ssl_mode(PgSslMode::VerifyFull);
            if let Some(ca) = pem.ca {
                with = with.ssl_root_cert_from_pem(ca);
            }
            if let Some((cert, key)) = pem.identity {
                with = with.ssl_client_cert_from_pem(cert).ssl_client_key_from_pem(key);
            }
        }
        Ok(Self { options: with.disable_statement_logging() })
    }

    /// What this session was marked with.
    pub(super) async fn session(
        connection: &mut PgConnection,
    ) -> Result<Option<String>, sqlx::Error> {
        sqlx::raw_sql(SESSION).fetch_one(connection).await?.try_get(0)
    }

    /// Sends a message.
    pub(super) async fn notify(
        connection: &mut PgConnection,
        channel: &str,
        text: &str,
    ) -> Result<(), sqlx::Error> {
        let sql = format!("SELECT pg_notify('{channel}', '{text}')");
        sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await.map(drop)
    }
}

pub(super) fn bytea(bytes: &[u8]) -> String {
    format!("decode('{}', 'hex')", hex(bytes))
}

async fn execute(connection: &mut PgConnection, sql: String) -> Result<bool, sqlx::Error> {
    let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?;
    Ok(done.rows_affected() > 0)
}

/// Changes one row, and tells others if it did.
async fn change(
    connection: &mut PgConnection,
    sql: String,
    messages: &[Message],
) -> Result<bool, sqlx::Error> {
    if messages.is_empty() {
        return execute(connection, sql).await;
    }
    let messages: Vec<String> =
        messages.iter().map(|(channel, text)| format!("('{channel}', '{text}')")).collect();
    let sql = format!(
        "WITH done AS ({sql} RETURNING 1) \
         SELECT pg_notify(channel, text) FROM done, (VALUES {}) AS said (channel, text)",
        messages.join(", ")
    );
    let told = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?;
    Ok(!told.is_empty())
}

pub(super) fn strange(what: &'static str) -> sqlx::Error {
    sqlx::Error::Decode(what.into())
}

pub(super) fn number(value: i64) -> Result<u64, sqlx::Error> {
    u64::try_from(value).map_err(|_| strange("a number below zero"))
}

/// The columns epoch, version, clock, token, state and the server's clock.
fn read(row: &PgRow) -> Result<(u64, Option<RawRow>), sqlx::Error> {
    let now = number(row.try_get(5)?)?;
    let Some(epoch) = row.try_get::<Option<i64>, _>(0)? else { return Ok((now, None)) };
    let state: String = row.try_get(4)?;
    let row = RawRow {
        epoch: number(epoch)?,
        version: number(row.try_get(1)?)?,
        clock: row.try_get::<Option<i64>, _>(2)?.map(number).transpose()?,
        token: number(row.try_get(3)?)?,
        state: unhex(&state).ok_or_else(|| strange("not hexadecimal"))?,
    };
    Ok((now, Some(row)))
}

fn is_known(key: &[u8], Known { epoch, version }: Known) -> String {
    format!("name = {} AND epoch = {epoch} AND version = {version}", bytea(key))
}

fn set(Written { token, ends, state }: &Written) -> String {
    let state = bytea(state);
    format!("version = version + 1, clock = NULL, token = {token}, ends = {ends}, state = {state}")
}

impl Dialect for Postgres {
    const NAME: &'static str = "postgres";

    type Connection = PgConnection;

    async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        self.options.connect().await
    }

    async fn version(connection: &mut PgConnection) -> Result<u64, sqlx::Error> {
        let found = sqlx::raw_sql("SELECT version FROM lockkeeper_meta").fetch_one(connection);
        number(found.await?.try_get(0)?)
    }

    async fn init(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        // Several statements in one text are one transaction.
        sqlx::raw_sql(include_str!("postgres.sql")).execute(connection).await?;
        Ok(())
    }

    async fn load(
        connection: &mut PgConnection,
        key: &[u8],
    ) -> Result<(u64, Option<RawRow>), sqlx::Error> {
        let sql = format!(
            "SELECT epoch, version, clock, token, encode(state, 'hex'), {NOW} \
             FROM (SELECT 1) AS one LEFT JOIN lockkeeper_names ON name = {}",
            bytea(key)
        );
        read(&sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(connection).await?)
    }

    async fn insert(
        connection: &mut PgConnection,
        key: &[u8],
        Written { token, ends, state }: &Written,
    ) -> Result<Inserted, sqlx::Error> {
        // The row that is in the way comes with the same answer, unless it has just been made.
        let (name, state) = (bytea(key), bytea(state));
        let sql = format!(
            "WITH taken AS (\
               INSERT INTO lockkeeper_names (name, version, clock, token, ends, state) \
               VALUES ({name}, 1, {NOW}, {token}, {NOW} + {ends}, {state}) \
               ON CONFLICT DO NOTHING RETURNING epoch) \
             SELECT epoch, 0::bigint, NULL::bigint, 0::bigint, NULL::text, 0::bigint FROM taken \
             UNION ALL SELECT epoch, version, clock, token, encode(state, 'hex'), {NOW} \
             FROM lockkeeper_names WHERE name = {name}"
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_optional(connection).await?;
        let Some(row) = rows else { return Ok(Inserted::Taken(None)) };
        if row.try_get::<i64, _>(1)? == 0 {
            return Ok(Inserted::Done(number(row.try_get(0)?)?));
        }
        let (now, row) = read(&row)?;
        Ok(Inserted::Taken(row.map(|row| (now, row))))
    }

    async fn update(
        connection: &mut PgConnection,
        key: &[u8],
        known: Known,
        row: &Written,
        messages: &[Message],
    ) -> Result<bool, sqlx::Error> {
        let (set, is_known) = (set(row), is_known(key, known));
        let sql = format!("UPDATE lockkeeper_names SET {set} WHERE {is_known}");
        change(connection, sql, messages).await
    }

    async fn renumber(
        connection: &mut PgConnection,
        key: &[u8],
        known: Known,
        row: &Written,
    ) -> Result<bool, sqlx::Error> {
        let (set, is_known) = (set(row), is_known(key, known));
        let sql = format!("UPDATE lockkeeper_names SET epoch = DEFAULT, {set} WHERE {is_known}");
        execute(connection, sql).await
    }

    async fn delete(
        connection: &mut PgConnection,
        key: &[u8],
        known: Known,
        alive: bool,
        messages: &[Message],
    ) -> Result<bool, sqlx::Error> {
        let alive = if alive { format!(" AND ends > {NOW}") } else { String::new() };
        let sql = format!("DELETE FROM lockkeeper_names WHERE {}{alive}", is_known(key, known));
        change(connection, sql, messages).await
    }

    async fn evictions(connection: &mut PgConnection) -> Result<u64, sqlx::Error> {
        let found = sqlx::raw_sql("SELECT evictions FROM lockkeeper_meta").fetch_one(connection);
        number(found.await?.try_get(0)?)
    }

    async fn count_eviction(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let sql = "UPDATE lockkeeper_meta SET evictions = evictions + 1";
        execute(connection, sql.to_owned()).await.map(drop)
    }

    async fn keys(
        connection: &mut PgConnection,
        prefix: &[u8],
    ) -> Result<Vec<Vec<u8>>, sqlx::Error> {
        let (length, prefix) = (prefix.len(), bytea(prefix));
        let sql = format!(
            "SELECT encode(name, 'hex') FROM lockkeeper_names \
             WHERE substring(name FROM 1 FOR {length}) = {prefix} ORDER BY name"
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?;
        rows.iter()
            .map(|row| unhex(row.try_get(0)?).ok_or_else(|| strange("not hexadecimal")))
            .collect()
    }

    async fn purge(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let sql = format!("DELETE FROM lockkeeper_names WHERE ends < {NOW}");
        execute(connection, sql).await.map(drop)
    }

    fn fault(error: sqlx::Error) -> Fault {
        let Some(code) = error.as_database_error().and_then(|error| error.code()) else {
            return Fault::of_driver(error);
        };
        match &*code {
            "40001" | "40P01" | "55P03" => Fault::Conflict(error),
            "57014" => Fault::Later("the server's statement_timeout ended the statement", error),
            "53300" => Fault::Later("the server has no connection left (max_connections)", error),
            "57P03" => Fault::Later("the server is starting up or shutting down", error),
            "57P01" | "57P02" | "57P05" => Fault::Broken(error),
            "42P01" | "42703" => Fault::Refused(super::fault::NO_TABLES, error),
            "42501" => Fault::Refused(super::fault::NO_RIGHTS, error),
            "25006" => Fault::Refused(super::fault::READ_ONLY, error),
            "28P01" => Fault::Refused("wrong user or password in the URL?", error),
            "28000" => Fault::Refused(
                "this user is not let in like this: wrong user, or a server that wants TLS (tls=on) \
                 or a certificate (cert= and key=)?",
                error,
            ),
            "3D000" => Fault::Refused("there is no such database", error),
            code if code.starts_with("53") || code.starts_with("58") => {
                Fault::Later("the server is out of something", error)
            }
            code if code.starts_with("08") => Fault::Broken(error),
            _ => Fault::Refused("the server refused a statement", error),
        }
    }

    fn listen(pool: &Weak<Pool<Self>>, hub: &Weak<Hub>) {
        listener::start(pool, hub);
    }
}
