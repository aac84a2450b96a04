//! A few connections for all, lent for one statement each.

use std::io;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::dialect::Dialect;
use super::fault::{Fault, STATEMENT_TIME};

pub(super) struct Pool<D: Dialect> {
    pub(super) dialect: D,
    idle: Mutex<Vec<D::Connection>>,
    permits: Semaphore,
    /// Of all that can wait one at a time waits for a permit; the others wait here.
    gate: Semaphore,
}

impl<D: Dialect> Pool<D> {
    pub(super) fn new(dialect: D, connections: usize) -> Self {
        let (idle, permits) = (Mutex::default(), Semaphore::new(connections));
        Self { dialect, idle, permits, gate: Semaphore::new(1) }
    }

    /// A connection for what can wait.
    pub(super) async fn lend(&self) -> Result<Lent<'_, D>, Fault> {
        Lane { pool: self, urgent: false }.lend().await
    }
}

/// A way to a connection. What must not come too late need not wait behind everything else.
pub(super) struct Lane<'a, D: Dialect> {
    pub(super) pool: &'a Pool<D>,
    pub(super) urgent: bool,
}

impl<'a, D: Dialect> Lane<'a, D> {
    /// The connection that was used last, or a new one.
    pub(super) async fn lend(&self) -> Result<Lent<'a, D>, Fault> {
        let pool = self.pool;
        let permit = async {
            let _gate = match self.urgent {
                true => None,
                false => Some(pool.gate.acquire().await?),
            };
            pool.permits.acquire().await
        };
        let permit = tokio::time::timeout(STATEMENT_TIME, permit).await;
        // Never closed, so never an error.
        let permit = permit.map_err(|_| Fault::Busy)?.map_err(|_| Fault::Dropped)?;
        let idle = pool.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => {
                let connected = tokio::time::timeout(STATEMENT_TIME, pool.dialect.connect());
                let connected = connected.await.unwrap_or_else(|_| Err(timed_out()));
                connected.map_err(D::fault).map_err(|fault| match fault {
                    Fault::Broken(error) => Fault::Unreachable(error),
                    fault => fault,
                })?
            }
        };
        Ok(Lent { pool, connection, _permit: permit })
    }
}

fn timed_out() -> sqlx::Error {
    let text = format!("no answer within {STATEMENT_TIME:?}");
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, text))
}

/// A connection; closed when dropped, because nobody knows what is still to come from it.
pub(super) struct Lent<'a, D: Dialect> {
    pool: &'a Pool<D>,
    connection: D::Connection,
    _permit: SemaphorePermit<'a>,
}

impl<D: Dialect> Lent<'_, D> {
    pub(super) fn connection(&mut self) -> &mut D::Connection {
        &mut self.connection
    }

    /// Takes the answer of a statement, and gives the connection back if it is good for another.
    pub(super) fn answered<T>(self, answer: Answered<T>) -> Result<T, Fault> {
        let answer = answer.map_or(Err(Fault::Silent), |answer| answer.map_err(D::fault));
        match &answer {
            Err(fault) if !fault.spares_the_connection() => {
                // The others are most likely gone as well: a server that was restarted, a machine in
                // between that has forgotten them.
                self.pool.idle.lock().clear();
            }
            _ => self.pool.idle.lock().push(self.connection),
        }
        answer
    }
}

type Answered<T> = Result<Result<T, sqlx::Error>, tokio::time::error::Elapsed>;

/// Runs one statement on a connection of the pool.
macro_rules! statement {
    ($pool:expr, $method:ident $(, $argument:expr)*) => {{
        let mut lent = $pool.lend().await?;
        let asked = D::$method(lent.connection() $(, $argument)*);
        let answer = tokio::time::timeout($crate::backend::sql::fault::STATEMENT_TIME, asked).await;
        lent.answered(answer)
    }};
}
pub(super) use statement;
