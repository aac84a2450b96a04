//! The plain connection, beside the one that the log comes by.

use std::time::Duration;

use pgwire_replication::Lsn;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Row};
use tokio::time::Instant;

use super::Names;
use super::address::Address;
use super::facts::{self, Facts};
use super::snapshot::Snapshot;
use super::wire::APPLICATION;
use crate::cdc::{LogError, Wanted};

/// Connecting, or a statement, takes no longer than this.
const TIME: Duration = Duration::from_secs(20);

/// How long older transactions are waited for when a slot is made. Whoever looks at the log of a follower that does not begin is
/// to read soon what is in the way.
const OLDER: Duration = Duration::from_secs(40);

/// How much later than the server we give up, so that it is the one who says why.
const LATER: Duration = Duration::from_secs(5);

/// How long somebody else's connection may take to let go of the slot.
const LET_GO: Duration = Duration::from_secs(10);

const PAUSE: Duration = Duration::from_millis(50);

/// What the server says at one moment.
pub(super) struct Moment {
    pub(super) snapshot: Snapshot,
    pub(super) written: Lsn,
    /// Microseconds since 2000.
    pub(super) time: i64,
}

pub(super) struct Control {
    connection: PgConnection,
}

/// Whether trying again is of no use, by what the server says.
pub(super) fn refusal(code: &str) -> bool {
    // Who we are; the database; rights; no slot, no place for a connection.
    code.starts_with("28") || matches!(code, "3D000" | "42501" | "53400")
}

fn failed(error: sqlx::Error) -> LogError {
    match error.as_database_error().and_then(|error| error.code()) {
        Some(code) if refusal(&code) => LogError::Refused(error.to_string()),
        _ => LogError::Failed(error.into()),
    }
}

/// A text in a statement.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\0', "").replace('\'', "''"))
}

/// A name in a statement.
pub(super) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('\0', "").replace('"', "\"\""))
}

async fn in_time<T>(
    time: Duration,
    future: impl Future<Output = Result<T, sqlx::Error>> + Send,
) -> Result<T, LogError> {
    match tokio::time::timeout(time, future).await {
        Ok(done) => done.map_err(failed),
        Err(_) => Err(LogError::Failed(format!("no answer within {time:?}").into())),
    }
}

impl Control {
    pub(super) async fn connect(address: &Address) -> Result<Self, LogError> {
        let settings = [("standard_conforming_strings", "on"), ("statement_timeout", "15s")];
        let options = address.options.clone().application_name(APPLICATION).options(settings);
        Ok(Self { connection: in_time(TIME, options.connect()).await? })
    }

    async fn rows(&mut self, time: Duration, sql: String) -> Result<Vec<PgRow>, LogError> {
        let statement = sqlx::raw_sql(AssertSqlSafe(sql));
        in_time(time, statement.fetch_all(&mut self.connection)).await
    }

    pub(super) async fn execute(&mut self, sql: String) -> Result<(), LogError> {
        self.rows(TIME, sql).await.map(|_| ())
    }

    /// Whatever it finds, each as one text.
    async fn texts(&mut self, sql: String) -> Result<Vec<Option<String>>, LogError> {
        let rows = self.rows(TIME, sql).await?;
        rows.iter().map(|row| row.try_get(0).map_err(failed)).collect()
    }

    pub(super) async fn facts(
        &mut self,
        names: &Names,
        wanted: &Wanted,
    ) -> Result<Facts, LogError> {
        let odd = |error: serde_json::Error| LogError::Failed(error.into());
        let server = self.texts(facts::server(names)).await?.into_iter().flatten();
        let mut facts = Facts::default();
        for server in server {
            facts.server = serde_json::from_str(&server).map_err(odd)?;
        }
        if !wanted.is_empty() && facts.server.version >= facts::OLDEST {
            let tables = self.texts(facts::tables(names, wanted)).await?.into_iter().flatten();
            let tables = tables.map(|table| serde_json::from_str(&table)).collect::<Result<_, _>>();
            facts.tables = tables.map_err(odd)?;
        }
        Ok(facts)
    }

    pub(super) async fn moment(&mut self) -> Result<Moment, LogError> {
        let sql = "SELECT pg_current_snapshot()::text, pg_current_wal_lsn()::text, \
                   trunc(extract(epoch FROM clock_timestamp() - '2000-01-01Z') * 1000000)::text";
        let rows = self.rows(TIME, sql.into()).await?;
        let text = |at: usize| rows.first().and_then(|row| row.try_get::<String, _>(at).ok());
        let moment = || {
            Some(Moment {
                snapshot: Snapshot::parse(&text(0)?)?,
                written: Lsn::parse(&text(1)?).ok()?,
                time: text(2)?.parse().ok()?,
            })
        };
        moment().ok_or_else(|| LogError::Failed("the server does not say what it is at".into()))
    }

    /// Ends whoever reads the slot: we are the one who may.
    pub(super) async fn take_over(&mut self, slot: &str) -> Result<(), LogError> {
        let name = literal(slot);
        let sql = format!(
            "SELECT (CASE WHEN pg_terminate_backend(active_pid) THEN 'told' ELSE 'gone' END) \
             FROM pg_replication_slots WHERE slot_name = {name} AND active_pid IS NOT NULL"
        );
        let since = Instant::now();
        while !self.texts(sql.clone()).await?.is_empty() {
            if since.elapsed() > LET_GO {
                let text = format!("somebody else reads slot {slot} and does not end");
                return Err(LogError::Failed(text.into()));
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    pub(super) async fn drop_slot(&mut self, slot: &str) -> Result<(), LogError> {
        self.take_over(slot).await?;
        let sql = format!(
            "SELECT pg_drop_replication_slot(slot_name)::text FROM pg_replication_slots \
             WHERE slot_name = {}",
            literal(slot)
        );
        self.execute(sql).await
    }

    /// Makes a slot, from now on: everything that was committed before can be read then.
    pub(super) async fn create_slot(&mut self, slot: &str) -> Result<Lsn, LogError> {
        let (since, time) = (Instant::now(), OLDER.as_secs());
        self.execute(format!("SET statement_timeout = '{time}s'")).await?;
        let sql = format!(
            "SELECT lsn::text FROM pg_create_logical_replication_slot({}, 'pgoutput')",
            literal(slot)
        );
        let made = match self.rows(OLDER + LATER, sql).await {
            Err(LogError::Failed(error)) => return Err(self.blocked(&error.to_string()).await),
            made => made?,
        };
        let lsn = made.first().and_then(|row| row.try_get::<String, _>(0).ok());
        let lsn = lsn.and_then(|lsn| Lsn::parse(&lsn).ok());
        let lsn = lsn.ok_or_else(|| LogError::Failed("a slot without a position".into()))?;
        self.execute("RESET statement_timeout".into()).await?;
        self.see_all(since).await?;
        Ok(lsn)
    }

    /// That a slot could not be made, and who may be in the way, the oldest first.
    async fn blocked(&mut self, why: &str) -> LogError {
        // Everybody may read that, unlike most of pg_stat_activity.
        let sql = "SELECT transactionid || coalesce(' of process ' || pid, ', prepared') FROM pg_locks \
                   WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' \
                   AND pid IS DISTINCT FROM pg_backend_pid() ORDER BY age(transactionid) DESC LIMIT 10";
        let running = self.texts(sql.into()).await.unwrap_or_default();
        let running: Vec<String> = running.into_iter().flatten().collect();
        let running = running.join("; ");
        let text = format!("a new slot waits for all transactions that run ({running})");
        LogError::Failed(
            format!("{text}, see pg_stat_activity and pg_prepared_xacts: {why}").into(),
        )
    }

    /// Waits until all that run now have ended: one of them may be committed in the log and not to be seen yet.
    async fn see_all(&mut self, since: Instant) -> Result<(), LogError> {
        let first = self.moment().await?.snapshot;
        let mut now = first.clone();
        while !now.sees_all_of(&first) {
            if since.elapsed() > OLDER {
                return Err(self.blocked(&format!("they still run after {OLDER:?}")).await);
            }
            tokio::time::sleep(PAUSE).await;
            now = self.moment().await?.snapshot;
        }
        Ok(())
    }
}
