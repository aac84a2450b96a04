//! PostgreSQL.
//!
//! A statement goes by the simple protocol, with its values in the text as numbers and as hexadecimal:
//! one round trip, nothing prepared and nothing left in the session, so it does not matter which
//! connection of a pooler carries it out. Where there is none, as the client that listens finds out, those
//! that come most often are prepared: the server has read and planned them before.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, Row};

use super::dialect::{
    Dialect, Inserted, LOCK_TIME, Message, PURGED_AT_ONCE, SPARED, When, hash, hex, unhex,
};
use super::fault::Fault;
use super::hub::Hub;
use super::listener;
use super::pool::Pool;
use super::row::{ClientId, Known, RawRow, Written};
use crate::backend::{Cell, Write};
use crate::error::Result as OurResult;
use crate::tls::Pem;
use crate::url::SqlOptions;

/// µs since 1970.
const NOW: &str = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint";

/// Joined to a write: in this transaction no lock is waited for for long.
fn in_time() -> String {
    format!("(SELECT set_config('lock_timeout', '{LOCK_TIME}s', true)) AS in_time")
}

/// The first number of the advisory locks that put inserts of one name in order.
const TURNS: u32 = 0x6c6b_7072;

/// What a session of ours was marked with.
pub(super) const SESSION: &str = "SELECT current_setting('lockkeeper.session', true)";

/// A PostgreSQL server. The options have the password: they are never shown.
pub(super) struct Postgres {
    pub(super) options: PgConnectOptions,
    /// No pooler is in between.
    direct: AtomicBool,
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
        let options = with.disable_statement_logging();
        Ok(Self { options, direct: AtomicBool::new(false) })
    }

    /// Whether sessions are our own.
    pub(super) fn set_direct(&self, direct: bool) {
        self.direct.store(direct, Ordering::Relaxed);
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

/// A statement with values in the places of `$1`, `$2` and so on.
struct Statement<'a> {
    sql: String,
    values: Vec<Value<'a>>,
}

enum Value<'a> {
    Bytes(&'a [u8]),
    Number(u64),
    Small(i32),
}

impl Statement<'_> {
    /// The first row of its answer.
    async fn fetch(
        self,
        connection: &mut PgConnection,
        prepared: bool,
    ) -> Result<Option<PgRow>, sqlx::Error> {
        if !prepared {
            let text = sqlx::raw_sql(AssertSqlSafe(self.text()));
            return text.fetch_optional(connection).await;
        }
        let mut query = sqlx::query(AssertSqlSafe(self.sql));
        for value in &self.values {
            query = match value {
                Value::Bytes(bytes) => query.bind(*bytes),
                Value::Number(number) => query.bind(number.cast_signed()),
                Value::Small(number) => query.bind(*number),
            };
        }
        query.fetch_optional(connection).await
    }

    /// With the values in the text.
    fn text(&self) -> String {
        let mut pieces = self.sql.split('$');
        let mut text = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            // There are less than ten.
            let (place, rest) = piece.split_at(1);
            match place.parse().ok().and_then(|place: usize| self.values.get(place - 1)) {
                Some(Value::Bytes(bytes)) => text += &bytea(bytes),
                Some(Value::Number(number)) => text += &number.to_string(),
                Some(Value::Small(number)) => text += &number.to_string(),
                None => {}
            }
            text += rest;
        }
        text
    }
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

/// Takes the client's lock if it can, until the end of the statement.
fn is_absent(client: ClientId) -> String {
    format!("pg_try_advisory_xact_lock({})", client.cast_signed())
}

/// What a client that listens says on that connection, and only there: it holds this lock in common
/// with the connection that it may have had before.
pub(super) fn be_present(client: ClientId) -> String {
    format!("SELECT pg_advisory_lock_shared({})", client.cast_signed())
}

fn set(Written { token, ends, state }: &Written) -> String {
    let state = bytea(state);
    format!("version = version + 1, clock = NULL, token = {token}, ends = {ends}, state = {state}")
}

impl Dialect for Postgres {
    const NAME: &'static str = "postgres";

    type Connection = PgConnection;

    fn prepares(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        self.options.connect().await
    }

    async fn version(connection: &mut PgConnection) -> Result<(u64, u64), sqlx::Error> {
        let sql = format!("SELECT version, {NOW} FROM lockkeeper_meta");
        let found = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(connection).await?;
        Ok((number(found.try_get(0)?)?, number(found.try_get(1)?)?))
    }

    async fn init(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        // Several statements in one text are one transaction.
        sqlx::raw_sql(include_str!("postgres.sql")).execute(connection).await?;
        Ok(())
    }

    async fn load(
        connection: &mut PgConnection,
        key: &[u8],
        prepared: bool,
    ) -> Result<(u64, Option<RawRow>), sqlx::Error> {
        let sql = format!(
            "SELECT epoch, version, clock, token, encode(state, 'hex'), {NOW} \
             FROM (SELECT 1) AS one LEFT JOIN lockkeeper_names ON name = $1"
        );
        let row = Statement { sql, values: vec![Value::Bytes(key)] }.fetch(connection, prepared);
        read(&row.await?.ok_or(sqlx::Error::RowNotFound)?)
    }

    async fn insert(
        connection: &mut PgConnection,
        key: &[u8],
        Written { token, ends, state }: &Written,
        too_late: u64,
        prepared: bool,
    ) -> Result<Inserted, sqlx::Error> {
        // The row that is in the way comes with the same answer, unless it has just been made.
        // The inner query comes first: the turn of this insert, then its epoch. A lock that other
        // names may share; with nobody but inserts that are under way at this moment.
        let sql = format!(
            "WITH taken AS (\
               INSERT INTO lockkeeper_names (name, version, clock, token, ends, state) \
               SELECT $1, 1, {NOW}, $2, {NOW} + $3, $4 \
               FROM (SELECT set_config('lock_timeout', '{LOCK_TIME}s', true), \
                     pg_advisory_xact_lock({TURNS}, $5)) AS turn \
               WHERE {NOW} < $6 \
               ON CONFLICT DO NOTHING RETURNING epoch) \
             SELECT epoch, 0::bigint, NULL::bigint, 0::bigint, NULL::text, 0::bigint FROM taken \
             UNION ALL SELECT epoch, version, clock, token, encode(state, 'hex'), {NOW} \
             FROM lockkeeper_names WHERE name = $1"
        );
        let turn = Value::Small((hash(key) >> 1).cast_signed());
        let (name, state) = (Value::Bytes(key), Value::Bytes(state));
        let [token, ends, too_late] = [*token, *ends, too_late].map(Value::Number);
        let values = vec![name, token, ends, state, turn, too_late];
        let row = Statement { sql, values }.fetch(connection, prepared).await?;
        let Some(row) = row else { return Ok(Inserted::Taken(None)) };
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
        When { too_late, present }: When<'_>,
        messages: &[Message],
    ) -> Result<bool, sqlx::Error> {
        let (set, is_known, in_time) = (set(row), is_known(key, known), in_time());
        let present: String =
            present.iter().map(|client| format!(" AND NOT {}", is_absent(*client))).collect();
        let sql = format!(
            "UPDATE lockkeeper_names SET {set} FROM {in_time} \
             WHERE {is_known} AND {NOW} < {too_late}{present}"
        );
        change(connection, sql, messages).await
    }

    async fn absent(
        connection: &mut PgConnection,
        clients: &[ClientId],
    ) -> Result<Vec<ClientId>, sqlx::Error> {
        let absent: Vec<String> = clients.iter().map(|client| is_absent(*client)).collect();
        let sql = format!("SELECT ARRAY[{}]::text", absent.join(", "));
        let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(connection).await?;
        let absent: String = row.try_get(0)?;
        let absent = absent.trim_matches(['{', '}']).split(',').map(|absent| absent == "t");
        let found = clients.iter().zip(absent).filter(|(_, absent)| *absent);
        Ok(found.map(|(client, _)| *client).collect())
    }

    async fn renumber(
        connection: &mut PgConnection,
        key: &[u8],
        known: Known,
        row: &Written,
    ) -> Result<bool, sqlx::Error> {
        let (set, is_known, in_time) = (set(row), is_known(key, known), in_time());
        let sql = format!(
            "UPDATE lockkeeper_names SET epoch = DEFAULT, {set} FROM {in_time} WHERE {is_known}"
        );
        execute(connection, sql).await
    }

    async fn delete(
        connection: &mut PgConnection,
        key: &[u8],
        known: Known,
        alive: bool,
        messages: &[Message],
        prepared: bool,
    ) -> Result<bool, sqlx::Error> {
        if alive && messages.is_empty() {
            // The quick way, and harmless however late: nothing but the row of this hold can be deleted.
            let sql = format!(
                "DELETE FROM lockkeeper_names \
                 WHERE name = $1 AND epoch = $2 AND version = $3 AND ends > {NOW} RETURNING 1"
            );
            let [epoch, version] = [known.epoch, known.version].map(Value::Number);
            let values = vec![Value::Bytes(key), epoch, version];
            let deleted = Statement { sql, values }.fetch(connection, prepared).await?;
            return Ok(deleted.is_some());
        }
        let alive = if alive { format!(" AND ends > {NOW}") } else { String::new() };
        let (in_time, is_known) = (in_time(), is_known(key, known));
        let sql = format!("DELETE FROM lockkeeper_names USING {in_time} WHERE {is_known}{alive}");
        change(connection, sql, messages).await
    }

    async fn evictions(connection: &mut PgConnection) -> Result<u64, sqlx::Error> {
        let found = sqlx::raw_sql("SELECT evictions FROM lockkeeper_meta").fetch_one(connection);
        number(found.await?.try_get(0)?)
    }

    async fn count_eviction(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let in_time = in_time();
        let sql = format!(
            "UPDATE lockkeeper_meta SET evictions = evictions + 1 FROM {in_time} WHERE one"
        );
        execute(connection, sql).await.map(drop)
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

    async fn expired(connection: &mut PgConnection) -> Result<Vec<(Vec<u8>, Known)>, sqlx::Error> {
        let sql = format!(
            "SELECT encode(name, 'hex'), epoch, version FROM lockkeeper_names \
             WHERE ends < {NOW} - {SPARED} LIMIT {PURGED_AT_ONCE}"
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?;
        let expired = rows.iter().map(|row| {
            let name = unhex(row.try_get(0)?).ok_or_else(|| strange("not hexadecimal"))?;
            let (epoch, version) = (number(row.try_get(1)?)?, number(row.try_get(2)?)?);
            Ok((name, Known { epoch, version }))
        });
        expired.collect()
    }

    async fn cells(
        connection: &mut PgConnection,
        key: &[u8],
    ) -> Result<Vec<(u64, Cell)>, sqlx::Error> {
        let sql = format!(
            "SELECT cell::bigint, version, encode(value, 'hex') FROM lockkeeper_cells WHERE name = {}",
            bytea(key)
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?;
        let cell = |row: &PgRow| {
            let value: String = row.try_get(2)?;
            let value = unhex(&value).ok_or_else(|| sqlx::Error::Decode("no bytes".into()))?;
            Ok((number(row.try_get(0)?)?, Cell { version: number(row.try_get(1)?)?, value }))
        };
        rows.iter().map(cell).collect()
    }

    async fn swap_cells(
        connection: &mut PgConnection,
        key: &[u8],
        writes: &[Write],
    ) -> Result<bool, sqlx::Error> {
        let (name, count, in_time) = (bytea(key), writes.len(), in_time());
        let new = writes.iter().filter(|write| write.version == 0);
        let new: Vec<_> = new.map(|write| format!("({})", write.cell)).collect();
        if !new.is_empty() {
            let sql = format!(
                "INSERT INTO lockkeeper_cells (name, cell, version, value) \
                 SELECT {name}, cell, 0, '' FROM (VALUES {}) AS new (cell), {in_time} \
                 ON CONFLICT DO NOTHING",
                new.join(", ")
            );
            execute(connection, sql).await?;
        }
        let row = |Write { cell, version, value }: &Write| {
            format!("({cell}, {version}::bigint, {})", bytea(value))
        };
        let rows: Vec<_> = writes.iter().map(row).collect();
        // First all of them are locked that are as expected, in order, and counted; then written. One
        // that somebody has changed since we began is seen as it is once it is locked.
        let sql = format!(
            "WITH next (cell, version, value) AS (VALUES {}), \
             locked AS (SELECT 1 FROM lockkeeper_cells AS c JOIN next USING (cell, version), {in_time} \
                 WHERE c.name = {name} ORDER BY c.cell FOR UPDATE OF c) \
             UPDATE lockkeeper_cells AS c SET version = c.version + 1, value = next.value \
             FROM next WHERE c.name = {name} AND c.cell = next.cell AND c.version = next.version \
                 AND (SELECT count(*) FROM locked) = {count}",
            rows.join(", ")
        );
        execute(connection, sql).await
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
            // Also "statement completion unknown".
            code if code.starts_with("08") || code == "40003" => Fault::Broken(error),
            // What was prepared is not there, or not any more what it was: another connection will do.
            "26000" | "42P05" | "0A000" => Fault::Broken(error),
            _ => Fault::Refused("the server refused a statement", error),
        }
    }

    fn listen(pool: &Weak<Pool<Self>>, hub: &Weak<Hub>) {
        listener::start(pool, hub);
    }
}
