//! Locks that end with a transaction of the caller's.

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;

use super::super::fault::{Fault, STATEMENT_TIME};
use super::super::pool::statement;
use super::Session;
use super::ties::Ties;
use crate::backend::Transactions;
use crate::clock::Instant;
use crate::error::{BoxError, Error, Result};
use crate::locks::Locks;
use crate::name::Name;
use crate::token::Token;

/// A transaction that [`Locks::lock_in`] can lock in: `sqlx::Transaction` of PostgreSQL or MySQL.
///
/// Sealed: what a lock does to a transaction is different in each database.
pub trait Transactional: sealed::Lock {}

pub(super) mod sealed {
    use async_trait::async_trait;

    use super::Attempt;
    use crate::clock::Instant;

    #[async_trait]
    pub trait Lock: Send {
        /// The backend whose database it is.
        const BACKEND: &'static str;

        /// Which database of which server it is in.
        async fn database(&mut self) -> Result<String, sqlx::Error>;

        /// Takes the lock, waiting until then. The transaction can go on, whatever comes of it, unless
        /// the error says something else.
        async fn lock(&mut self, key: &[u8], until: Instant) -> Attempt;
    }
}

/// What became of asking for a lock in a transaction.
#[derive(Debug)]
pub enum Attempt {
    /// Held until the transaction ends.
    Locked,
    /// Somebody else has it.
    Busy,
    /// The server broke a circle of transactions that wait for each other; whether it has rolled this
    /// one back.
    Deadlock {
        /// The transaction is over.
        over: bool,
    },
    /// Something else.
    Failed(sqlx::Error),
}

/// A pause between two looks where the server cannot wait.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// Once more and again: a connection that was idle may have ended since.
async fn patiently<T, F>(attempt: impl Fn() -> F + Send) -> Result<T, Fault>
where
    F: Future<Output = Result<T, Fault>> + Send,
{
    for _ in 0..2 {
        match attempt().await {
            Err(fault) if fault.may_pass() => tokio::time::sleep(LOOK).await,
            done => return done,
        }
    }
    attempt().await
}

#[async_trait]
impl<D: Ties> Transactions for Session<D> {
    fn key(&self, name: &Name) -> Vec<u8> {
        // The method of the type itself.
        Self::key(self, name)
    }

    async fn prepare(&self, key: &[u8]) -> Result<String> {
        let prepared = patiently(|| async {
            statement!(self.sessions.pool, make_row, key)?;
            statement!(self.sessions.pool, database)
        });
        prepared.await.map_err(|fault| super::error::<D>(fault, "preparing a lock"))
    }

    async fn draw(&self) -> Result<Token> {
        let drawn = patiently(|| Self::draw(self)).await;
        let drawn = drawn.map_err(|fault| super::error::<D>(fault, "drawing a token"))?;
        Ok(drawn.first())
    }
}

impl Locks {
    /// Locks a name until the caller's transaction ends: it is free when the transaction commits or rolls
    /// back, or its connection ends, and not before. For work that is all in one transaction this needs
    /// neither a lease nor a connection of its own. Needs a [`Locks`] of the same database with
    /// `mode=session`.
    ///
    /// Waits for at most `timeout`; zero asks once. Gives the fencing token, drawn while the lock is held,
    /// and committed apart from the transaction: one that is rolled back does not give it to somebody else
    /// again.
    ///
    /// # What it excludes
    ///
    /// PostgreSQL: everybody else who locks the name with `mode=session`, here or with
    /// [`Mutex`](crate::Mutex) and [`RwLock`](crate::RwLock). MySQL and MariaDB: others who lock the name
    /// with `lock_in`, and nobody else; it is a row of `lockkeeper_rows` that is locked. Never those with
    /// `mode=lease`.
    ///
    /// # What it does to the transaction
    ///
    /// After a time-out it can go on. On PostgreSQL waiting happens behind a savepoint, because an error
    /// would end the transaction; `lock_timeout` and `innodb_lock_wait_timeout` are as before when it
    /// returns. In PostgreSQL, rolling back to a savepoint that was set before gives the lock back. On MySQL
    /// with `innodb_rollback_on_timeout` a time-out may end the transaction: let it be off, as it is by
    /// default.
    ///
    /// The transaction may go through a pooler; these `Locks` may not.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`]; [`Error::Unsupported`] without `mode=session` or for another kind of database;
    /// [`Error::Config`] when the transaction is in another database; [`Error::ShutDown`]; [`Error::Unavailable`] when the server
    /// fails, or chose the transaction as the victim of a deadlock: then roll it back and begin again.
    ///
    /// # Cancel safety
    ///
    /// None: a dropped call leaves a statement under way in the transaction. Roll it back.
    ///
    /// # Cost
    ///
    /// Three statements in the transaction if the lock is free, and three or four on a connection of these
    /// `Locks`.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # #[cfg(feature = "postgres")] {
    /// use lockkeeper::Locks;
    /// use std::time::Duration;
    ///
    /// let pool = sqlx::PgPool::connect("postgres://me:pw@host/shop").await?;
    /// let locks = Locks::connect("postgres://me:pw@host/shop?mode=session").await?;
    /// let mut transaction = pool.begin().await?;
    /// let token = locks.lock_in(&mut transaction, "orders/42", Duration::from_secs(5)).await?;
    /// sqlx::query("UPDATE orders SET state = 'paid' WHERE id = 42").execute(&mut *transaction).await?;
    /// println!("alone, under token {token}");
    /// transaction.commit().await?; // and the lock is free
    /// # }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lock_in<T: Transactional>(
        &self,
        transaction: &mut T,
        name: impl AsRef<str> + Send,
        timeout: Duration,
    ) -> Result<Token> {
        let name: Name = name.as_ref().parse()?;
        let backend = self.backend();
        let transactions = backend.transactions().filter(|_| backend.name() == T::BACKEND);
        let Some(transactions) = transactions else {
            let what = format!("lock_in, which is for {}: with mode=session", T::BACKEND);
            return Err(Error::Unsupported { backend: backend.name(), what });
        };
        if !self.inner.is_open() {
            return Err(Error::ShutDown);
        }
        let since = Instant::now();
        let until = since + timeout;
        let key = transactions.key(&name);
        let failed =
            |context: &str, source: BoxError| Error::unavailable(T::BACKEND, context, source);
        let bound = timeout.saturating_add(STATEMENT_TIME);
        let here = tokio::time::timeout(bound, transactions.prepare(&key)).await;
        let here =
            here.map_err(|late| failed("preparing a lock takes too long", late.into()))??;
        let there = tokio::time::timeout(bound, transaction.database()).await;
        let there = there.map_err(|late| failed("the transaction does not answer", late.into()))?;
        let there =
            there.map_err(|error| failed("asking in the transaction failed", error.into()))?;
        if here != there {
            return Err(Error::Config(format!(
                "the transaction is in another database than the locks: {there}, not {here}"
            )));
        }
        let locked = tokio::time::timeout(bound, transaction.lock(&key, until)).await;
        match locked.map_err(|late| failed("the transaction does not answer", late.into()))? {
            Attempt::Locked => {}
            Attempt::Busy => return Err(self.inner.timed_out(&name, since).await),
            Attempt::Deadlock { over } => {
                let context = match over {
                    true => {
                        "a deadlock with another transaction: this one was rolled back by the \
                         server; begin again"
                    }
                    false => {
                        "a deadlock with another transaction: roll this one back and begin again"
                    }
                };
                let (backend, context) = (T::BACKEND, context.to_owned());
                return Err(Error::Unavailable { backend, context, source: None });
            }
            Attempt::Failed(error) => {
                return Err(failed("locking in the transaction failed", error.into()));
            }
        }
        let token = transactions.draw().await?;
        // If the transaction is over by now, somebody else may have had the lock before this token was
        // drawn, and a smaller one.
        let lost = "the transaction was lost while its token was drawn";
        let alive = tokio::time::timeout(STATEMENT_TIME, transaction.database()).await;
        alive
            .map_err(|late| failed(lost, late.into()))?
            .map_err(|error| failed(lost, error.into()))?;
        Ok(token)
    }
}
