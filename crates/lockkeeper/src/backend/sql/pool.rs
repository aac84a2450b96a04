//! A few connections for all, lent for one statement each.

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::dialect::Dialect;
use super::fault::{Fault, STATEMENT_TIME};

pub(super) struct Pool<D: Dialect> {
    pub(super) dialect: D,
    idle: Mutex<Vec<D::Connection>>,
    permits: Semaphore,
}

impl<D: Dialect> Pool<D> {
    pub(super) fn new(dialect: D, connections: usize) -> Self {
        Self { dialect, idle: Mutex::default(), permits: Semaphore::new(connections) }
    }

    /// The connection that was used last, or a new one.
    pub(super) async fn lend(&self) -> Result<Lent<'_, D>, Fault> {
        // Never closed, so never an error.
        let permit = self.permits.acquire().await.map_err(|_| Fault::Dropped)?;
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => {
                let connected = tokio::time::timeout(STATEMENT_TIME, self.dialect.connect());
                connected.await.map_err(|_| Fault::Silent)?.map_err(D::fault)?
            }
        };
        Ok(Lent { pool: self, connection, _permit: permit })
    }
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
        let answer = answer.map_err(|_| Fault::Silent)?.map_err(D::fault);
        match &answer {
            Err(fault) if !fault.spares_the_connection() => {
                // The others are most likely gone as well: a server that was restarted.
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
