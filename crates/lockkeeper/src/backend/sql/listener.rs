//! The one connection for the messages of PostgreSQL, which comes back by itself and knows whether it
//! hears.
//!
//! A pooler that lends a connection for one transaction accepts `LISTEN`, and then delivers the
//! messages to whoever has that connection by chance, which disturbs him. So the first thing is to find
//! out whether there is one: where a setting of this session is gone in the next statement, or is seen
//! by another session of ours, they share connections. Nobody listens then.
//!
//! And a client sends a message to itself, by another connection, and believes only what arrives.

use std::sync::Weak;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor, Row};

use super::dialect::{Dialect, unhex};
use super::fault::{Fault, STATEMENT_TIME};
use super::hub::{Hub, LATCHES};
use super::pool::{Pool, statement};
use super::postgres::{Postgres, SESSION, be_present};
use crate::clock::Instant;
use crate::owner::{self, RequestId};

/// First and longest pause between two attempts to listen.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How often it is tried out whether sessions share connections. Each time is enough before an idle
/// pooler; a busy one may have lent the connection to somebody else in between.
const PROBES: u32 = 5;
/// A connection that says nothing for so long is tried out.
const SILENCE: Duration = Duration::from_secs(15);
/// How long a message to oneself may take.
const ECHO: Duration = STATEMENT_TIME;

/// Listens until the last user is gone; connects again as often as it takes.
pub(super) fn start(pool: &Weak<Pool<Postgres>>, hub: &Weak<Hub>) {
    let Some(present) = hub.upgrade() else { return };
    let gone = present.when_gone();
    drop(present);
    let (pool, hub) = (Weak::clone(pool), Weak::clone(hub));
    tokio::spawn(async move {
        tokio::select! {
            _ = gone => {}
            () = keep_listening(&pool, &hub) => {}
        }
    });
}

async fn keep_listening(pool: &Weak<Pool<Postgres>>, hub: &Weak<Hub>) {
    let mut attempts = 0;
    while let Some(connected) = connect(pool, hub).await {
        match connected {
            Ok(Some(mut ear)) => {
                if ear.listen(pool, hub).await.is_some() {
                    attempts = 0;
                }
            }
            Ok(None) => {
                tracing::info!(
                    "a pooler shares connections: no messages, whoever waits has to look"
                );
                return;
            }
            Err(fault) => tracing::debug!(%fault, "cannot listen; trying again"),
        }
        let Some(present) = hub.upgrade() else { return };
        present.set_hearing(false);
        drop(present);
        let pause = (RECONNECT.0 * (1 << attempts.min(10))).min(RECONNECT.1);
        attempts += 1;
        tokio::time::sleep(pause).await;
    }
}

/// A connection that has said that it listens.
struct Ear {
    listener: PgListener,
}

/// `None`: nobody needs it any more. `Some(Ok(None))`: there is a pooler.
async fn connect(
    pool: &Weak<Pool<Postgres>>,
    hub: &Weak<Hub>,
) -> Option<Result<Option<Ear>, Fault>> {
    let (pool, hub) = (pool.upgrade()?, hub.upgrade()?);
    let own = Hub::channel(hub.me);
    let connecting = async {
        let one = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None);
        let one = one.acquire_timeout(STATEMENT_TIME);
        let one = one.connect_lazy_with(pool.dialect.options.clone());
        let mut listener = PgListener::connect_with(&one).await.map_err(Postgres::fault)?;
        listener.eager_reconnect(false);
        let shares = shares_connections(&mut listener, &pool).await?;
        pool.dialect.set_direct(!shares);
        if shares {
            return Ok(None);
        }
        listener.listen_all([own.as_str(), LATCHES]).await.map_err(Postgres::fault)?;
        let presence = sqlx::raw_sql(AssertSqlSafe(be_present(hub.me)));
        listener.execute(presence).await.map_err(Postgres::fault)?;
        Ok(Some(Ear { listener }))
    };
    let connected = tokio::time::timeout(2 * STATEMENT_TIME, connecting).await;
    Some(connected.unwrap_or(Err(Fault::Silent)))
}

/// Whether a session of ours is not always the same at the server, or the same as another of ours.
pub(super) async fn shares_connections(
    listener: &mut PgListener,
    pool: &Pool<Postgres>,
) -> Result<bool, Fault> {
    type D = Postgres;
    for _ in 0..PROBES {
        let mark = format!("{:016x}", owner::random());
        let set = format!("SET lockkeeper.session = '{mark}'");
        listener.execute(sqlx::raw_sql(AssertSqlSafe(set))).await.map_err(Postgres::fault)?;
        let ours = listener.fetch_one(sqlx::raw_sql(SESSION)).await.map_err(Postgres::fault)?;
        let ours: Option<String> = ours.try_get(0).map_err(Postgres::fault)?;
        let another = statement!(pool, session)?;
        if ours.as_ref() != Some(&mark) || another.as_ref() == Some(&mark) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Ear {
    /// Takes in messages until the connection ends. `None`: it never heard anything.
    async fn listen(&mut self, pool: &Weak<Pool<Postgres>>, hub: &Weak<Hub>) -> Option<()> {
        let mut heard = None;
        let mut echo = self.call(pool, hub).await.ok()?;
        let mut until = Instant::now() + ECHO;
        loop {
            let waiting = until.since(Instant::now());
            let message = match tokio::time::timeout(waiting, self.listener.try_recv()).await {
                Ok(Ok(Some(message))) => message,
                Ok(Ok(None) | Err(_)) => return heard,
                Err(_) if echo.is_empty() => {
                    let Ok(sent) = self.call(pool, hub).await else { return heard };
                    (echo, until) = (sent, Instant::now() + ECHO);
                    continue;
                }
                // Not even what we said ourselves.
                Err(_) => return heard,
            };
            let Some(hub) = hub.upgrade() else { return heard };
            until = until.max(Instant::now() + SILENCE);
            if message.payload() == echo {
                echo.clear();
                until = Instant::now() + SILENCE;
                if heard.replace(()).is_none() {
                    hub.set_hearing(true);
                    // Whatever was said before, we did not hear it.
                    hub.requests.missed();
                }
            } else if message.channel() == LATCHES {
                hub.latch_opened(&unhex(message.payload()).unwrap_or_default());
            } else {
                let ids = message.payload().split(' ').filter_map(|id| unhex(id)?.try_into().ok());
                ids.for_each(|id| hub.requests.hear(RequestId::from_bytes(id), None));
            }
        }
    }

    /// Says something to ourselves, by a connection of the pool.
    async fn call(&self, pool: &Weak<Pool<Postgres>>, hub: &Weak<Hub>) -> Result<String, Fault> {
        type D = Postgres;
        let (Some(pool), Some(hub)) = (pool.upgrade(), hub.upgrade()) else {
            return Err(Fault::Dropped);
        };
        let text = format!("echo-{:016x}", owner::random());
        let own = Hub::channel(hub.me);
        statement!(pool, notify, &own, &text)?;
        Ok(text)
    }
}
