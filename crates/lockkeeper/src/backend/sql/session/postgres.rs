//! Advisory locks of PostgreSQL.
//!
//! A session is a listener that listens to nothing: of all connections of the driver it alone hears that
//! the server has ended it.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgConnection, PgListener, PgPoolOptions};
use sqlx::{Acquire, AssertSqlSafe, ConnectOptions, Row, Transaction};
use tokio::runtime::Handle;

use super::super::dialect::{Dialect, unhex};
use super::super::fault::{Fault, STATEMENT_TIME};
use super::super::listener::shares_connections;
use super::super::pool::Pool;
use super::super::postgres::{Postgres, bytea, number, strange};
use super::ties::{COMMON, SPARE, Tie, Ties, WAITS, Wanted, hashed, waiter};
use super::transaction::sealed::Lock;
use super::transaction::{Attempt, Transactional};
use crate::backend::Capabilities;
use crate::clock::Instant;

/// What the server calls our sessions.
const APPLICATION: &str = "lockkeeper session";

/// A session that has no lock.
const ALL: &str = "SELECT pg_advisory_unlock_all()";

/// Settings of a session. The server must not end it for reasons of its own before its holder knows: not
/// for a statement that waits, and not because the network says nothing for less than the longest silence
/// that a holder bears. It looks for waiters that are gone, where its system can tell.
const SETTINGS: &str = "SET statement_timeout = 0; SET tcp_keepalives_idle = 7200; \
    SET tcp_user_timeout = 0; \
    DO $$ BEGIN PERFORM set_config('client_connection_check_interval', '500ms', false); \
    EXCEPTION WHEN OTHERS THEN NULL; END $$";

pub(in crate::backend::sql) struct Ear {
    /// Taken out only when it is dropped.
    listener: Option<PgListener>,
    /// It must not be dropped outside one.
    runtime: Handle,
}

impl Drop for Ear {
    fn drop(&mut self) {
        let late = Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed());
        match self.listener.take() {
            // The process ends, and its connections with it.
            Some(listener) if late => std::mem::forget(listener),
            listener => {
                let _inside = self.runtime.enter();
                drop(listener);
            }
        }
    }
}

/// A server that was started at the same moment is the same, whichever way leads to it.
const DATABASE: &str = "SELECT current_database() || ', server of ' || \
    extract(epoch FROM pg_postmaster_start_time())::numeric(20, 6)::text";

/// What the server calls the lock: 64 bits of a hash.
fn called(key: &[u8]) -> String {
    let key = bytea(&hashed(key));
    format!("('x' || left(encode(sha256({key}), 'hex'), 16))::bit(64)::bigint")
}

fn idle(time: Duration) -> String {
    // Not a moment too early: the holder knows first.
    format!("SET idle_session_timeout = {}", time.as_micros().div_ceil(1000).max(1))
}

fn text(sql: String) -> sqlx::RawSql {
    sqlx::raw_sql(AssertSqlSafe(sql))
}

fn code(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

impl Ties for Postgres {
    type Session = Ear;

    const CAN: Capabilities = Capabilities { read_write: true, ..COMMON };
    // 2^31 ms are a little more.
    const LONGEST: Duration = Duration::from_hours(24 * 24);

    async fn open(&self) -> Result<(Ear, u64), sqlx::Error> {
        let options = self.options.clone().application_name(APPLICATION);
        let one = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None);
        let one = one.acquire_timeout(STATEMENT_TIME).connect_lazy_with(options.clone());
        let listener = match PgListener::connect_with(&one).await {
            // It does not say why: ask again, without a pool.
            Err(sqlx::Error::PoolTimedOut) => {
                drop(options.connect().await?);
                PgListener::connect_with(&one).await?
            }
            connected => connected?,
        };
        let mut ear = Ear { listener: Some(listener), runtime: Handle::current() };
        if let Some(listener) = &mut ear.listener {
            listener.eager_reconnect(false);
        }
        let connection = Self::connection(&mut ear).await?;
        if connection.server_version_num().is_some_and(|version| version < 140_000) {
            let why = "mode=session needs PostgreSQL 14 or newer: use mode=lease";
            return Err(sqlx::Error::Configuration(why.into()));
        }
        let sql = format!("{SETTINGS}; {}; SELECT pg_backend_pid()", idle(SPARE));
        let row = text(sql).fetch_one(connection).await?;
        let number = number(i64::from(row.try_get::<i32, _>(0)?))?;
        Ok((ear, number))
    }

    async fn connection(session: &mut Ear) -> Result<&mut PgConnection, sqlx::Error> {
        let Some(listener) = &mut session.listener else { return Err(sqlx::Error::PoolClosed) };
        listener.acquire().await
    }

    async fn hear_the_end(session: &mut Ear) {
        let Some(listener) = &mut session.listener else { return };
        while let Ok(Some(_)) = listener.try_recv().await {}
    }

    async fn is_shared(session: &mut Ear, pool: &Pool<Self>) -> Result<bool, Fault> {
        let Some(listener) = &mut session.listener else { return Err(Fault::Dropped) };
        shares_connections(listener, pool).await
    }

    async fn lock(
        connection: &mut PgConnection,
        Wanted { key, shared, ttl, owner }: &Wanted<'_>,
        wait: Duration,
    ) -> Result<Option<String>, sqlx::Error> {
        let shared = if *shared { "_shared" } else { "" };
        let (called, idle) = (called(key), idle(*ttl));
        if wait.is_zero() {
            let sql = format!(
                "{idle}; SELECT pg_try_advisory_lock{shared}(called), called::text \
                 FROM (SELECT {called} AS called) AS lock"
            );
            let row = text(sql).fetch_one(connection).await?;
            return if row.try_get(0)? { row.try_get(1).map(Some) } else { Ok(None) };
        }
        let wait = wait.as_millis().max(1);
        let sql = format!(
            "{WAITS}{owner} */ {idle}; SET LOCAL lock_timeout = {wait}; \
             SELECT called::text, pg_advisory_lock{shared}(called) \
             FROM (SELECT {called} AS called) AS lock"
        );
        match text(sql).fetch_one(&mut *connection).await {
            Ok(row) => row.try_get(0).map(Some),
            Err(error) if code(&error).as_deref() == Some("55P03") => {
                // The server may have granted it at the moment when the time was over: then it is ours all
                // the same, because such locks outlive an error, and would be counted twice next time.
                sqlx::raw_sql(ALL).execute(connection).await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn unlock(
        connection: &mut PgConnection,
        lock: &str,
        shared: bool,
        row: &[u8],
    ) -> Result<bool, sqlx::Error> {
        let shared = if shared { "_shared" } else { "" };
        let (row, idle) = (bytea(row), idle(SPARE));
        let sql = format!(
            "DELETE FROM lockkeeper_names WHERE name = {row}; {idle}; \
             SELECT pg_advisory_unlock{shared}({lock}); {ALL}"
        );
        let rows = text(sql).fetch_all(connection).await?;
        rows.first().ok_or_else(|| strange("no answer"))?.try_get(0)
    }

    async fn share(connection: &mut PgConnection, lock: &str) -> Result<bool, sqlx::Error> {
        // Whoever has it need not wait to share it.
        let sql =
            format!("SELECT pg_advisory_lock_shared({lock}); SELECT pg_advisory_unlock({lock})");
        let rows = text(sql).fetch_all(connection).await?;
        rows.last().ok_or_else(|| strange("no answer"))?.try_get(0)
    }

    async fn beat(
        connection: &mut PgConnection,
        row: &[u8],
        left: Duration,
    ) -> Result<(u64, Option<Vec<u8>>), sqlx::Error> {
        let (row, idle) = (bytea(row), idle(left));
        let sql = format!(
            "{idle}; SELECT pg_backend_pid(), \
             (SELECT encode(state, 'hex') FROM lockkeeper_names WHERE name = {row})"
        );
        let row = text(sql).fetch_one(connection).await?;
        let state: Option<String> = row.try_get(1)?;
        let number = number(i64::from(row.try_get::<i32, _>(0)?))?;
        Ok((number, state.and_then(|state| unhex(&state))))
    }

    async fn called(connection: &mut PgConnection, key: &[u8]) -> Result<String, sqlx::Error> {
        let sql = format!("SELECT ({})::text", called(key));
        text(sql).fetch_one(connection).await?.try_get(0)
    }

    async fn ties(
        connection: &mut PgConnection,
        _locks: &[(String, Vec<u8>)],
    ) -> Result<Vec<Tie>, sqlx::Error> {
        let sql = "SELECT ((classid::bigint << 32) | objid::bigint)::text, pid, granted, query \
                   FROM pg_locks LEFT JOIN pg_stat_activity USING (pid) \
                   WHERE locktype = 'advisory' AND objsubid = 1 AND database = \
                   (SELECT oid FROM pg_database WHERE datname = current_database()) \
                   ORDER BY waitstart";
        let rows = sqlx::raw_sql(sql).fetch_all(connection).await?;
        rows.iter()
            .map(|row| {
                let query: Option<String> = row.try_get(3)?;
                Ok(Tie {
                    lock: row.try_get(0)?,
                    session: number(i64::from(row.try_get::<i32, _>(1)?))?,
                    granted: row.try_get(2)?,
                    waiter: query.and_then(|query| waiter(&query)),
                })
            })
            .collect()
    }

    async fn database(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
        sqlx::raw_sql(DATABASE).fetch_one(connection).await?.try_get(0)
    }

    /// There is none: the lock is the server's.
    async fn make_row(_connection: &mut PgConnection, _key: &[u8]) -> Result<(), sqlx::Error> {
        Ok(())
    }

    async fn purge_rows(_connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        Ok(())
    }

    async fn end(
        connection: &mut PgConnection,
        session: u64,
        key: &[u8],
        held: bool,
        since: Duration,
    ) -> Result<(), sqlx::Error> {
        // Another process of the server may have this number by now, and be ours; or this one may have let
        // go of the lock, and have another.
        let has = format!(
            " AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 \
             AND granted AND (classid::bigint << 32) | objid::bigint = {})",
            called(key)
        );
        let has = if held { has.as_str() } else { "" };
        let sql = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE pid = {session} AND application_name = '{APPLICATION}'{has} \
             AND backend_start <= clock_timestamp() - interval '{} ms'",
            since.as_millis()
        );
        text(sql).fetch_all(connection).await.map(drop)
    }
}

impl Transactional for Transaction<'_, sqlx::Postgres> {}

#[async_trait]
impl Lock for Transaction<'_, sqlx::Postgres> {
    const BACKEND: &'static str = Postgres::NAME;

    async fn database(&mut self) -> Result<String, sqlx::Error> {
        Postgres::database(self).await
    }

    async fn lock(&mut self, key: &[u8], until: Instant) -> Attempt {
        let called = called(key);
        let sql =
            format!("SELECT pg_try_advisory_xact_lock({called}), current_setting('lock_timeout')");
        let tried = text(sql).fetch_one(&mut **self).await;
        let tried = tried.and_then(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        let before: String = match tried {
            Ok((true, _)) => return Attempt::Locked,
            Ok((false, before)) => before,
            Err(error) => return Attempt::Failed(error),
        };
        let wait = until.since(Instant::now()).as_millis();
        if wait == 0 {
            return Attempt::Busy;
        }
        // An error ends the transaction, but not what was before a savepoint.
        let wait = wait.min(2_147_483_647);
        let sql = format!(
            "SAVEPOINT lockkeeper_lock_in; SET LOCAL lock_timeout = {wait}; \
             SELECT pg_advisory_xact_lock({called}); \
             SELECT set_config('lock_timeout', '{before}', true); \
             RELEASE SAVEPOINT lockkeeper_lock_in"
        );
        let Err(error) = text(sql).fetch_all(&mut **self).await else { return Attempt::Locked };
        let back = "ROLLBACK TO SAVEPOINT lockkeeper_lock_in; RELEASE SAVEPOINT lockkeeper_lock_in";
        if sqlx::raw_sql(back).execute(&mut **self).await.is_err() {
            return Attempt::Failed(error);
        }
        match code(&error).as_deref() {
            Some("55P03") => Attempt::Busy,
            Some("40P01") => Attempt::Deadlock { over: false },
            _ => Attempt::Failed(error),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use sqlx::postgres::PgConnectOptions;
    use testkit::database::System;

    use super::*;

    #[test]
    fn the_server_is_never_too_early() {
        assert_eq!(idle(Duration::from_micros(1001)), "SET idle_session_timeout = 2");
        assert_eq!(idle(Duration::from_millis(1)), "SET idle_session_timeout = 1");
    }

    /// Between a look at a session and its end it may have got another lock.
    #[tokio::test]
    async fn a_session_that_has_let_go_of_the_lock_is_not_ended() {
        let database = System::Postgres.shared().await;
        let options: PgConnectOptions = database.url("here").parse().unwrap();
        let mut other = options.connect().await.unwrap();
        let mut session = options.application_name(APPLICATION).connect().await.unwrap();
        let lock = format!("SELECT pg_backend_pid(), pg_advisory_lock({})", called(b"let go/x"));
        let row = text(lock).fetch_one(&mut session).await.unwrap();
        let pid = number(i64::from(row.get::<i32, _>(0))).unwrap();
        let mut end = async |key: &[u8], since| {
            Postgres::end(&mut other, pid, key, true, since).await.unwrap();
            let lives = sqlx::raw_sql("SELECT 1").execute(&mut session).await;
            lives.is_ok()
        };
        assert!(end(b"let go/y", Duration::ZERO).await, "it has another");
        assert!(end(b"let go/x", Duration::from_hours(1)).await, "it is another with its number");
        assert!(!end(b"let go/x", Duration::ZERO).await, "it has this one");
    }
}
