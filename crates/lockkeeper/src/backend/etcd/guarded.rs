//! Transactions that are carried out only while a lock is held.

use std::any::Any;

use super::hold::EtcdHold;
use super::pb;
use super::steps;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::loss::Cause;

/// Writes to the cluster that keeps the lock, carried out together and only if the lock is still held.
///
/// The cluster itself compares, in the same step, that the key of the lock is the one that the guard
/// was granted. So nothing that a late holder sends takes effect, whatever its clock says: no fencing
/// token has to be checked by anybody.
///
/// ```no_run
/// # #[tokio::main]
/// # async fn main() -> lockkeeper::Result<()> {
/// let locks = lockkeeper::Locks::connect("etcd://localhost").await?;
/// let guard = locks.mutex("orders/42").lock().await?;
/// guard.txn()?.put("state/42", "shipped").delete("todo/42").commit().await?;
/// guard.release().await
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is written before `commit`"]
pub struct Txn<'a> {
    guard: &'a Guard,
    hold: &'a EtcdHold,
    writes: Vec<pb::RequestOp>,
}

impl Txn<'_> {
    /// Writes a key. It is taken as it is: the prefix of the URL is for locks.
    pub fn put(mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.writes.push(steps::put(key.into(), value.into(), Some(0)));
        self
    }

    /// Deletes a key.
    pub fn delete(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.writes.push(steps::delete((key.into(), Vec::new())));
        self
    }

    /// Carries all of it out, or nothing; the revision in which it did.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the lock is not held any more: nothing was written. [`Error::Unknown`] when
    /// the cluster's answer was lost: it was carried out or not, and if it was, under the lock. It is
    /// not sent again, because others may have written since.
    pub async fn commit(self) -> Result<u64> {
        match self.hold.commit(self.writes).await {
            Ok(Ok(revision)) => Ok(revision),
            Ok(Err(cause)) => Err(self.guard.lost_because(cause)),
            Err(source) => Err(Error::Unknown {
                name: self.guard.name().clone(),
                operation: "the transaction",
                within: super::client::COMMAND_TIME,
                source: source.into(),
            }),
        }
    }
}

impl Guard {
    /// Begins a transaction of etcd that is carried out only while this lock is held.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when the lock is not in an etcd cluster.
    pub fn txn(&self) -> Result<Txn<'_>> {
        let hold: &dyn Any = self.hold();
        match hold.downcast_ref() {
            Some(hold) => Ok(Txn { guard: self, hold, writes: Vec::new() }),
            None => Err(Error::Unsupported {
                backend: "this store",
                what: "transactions of etcd: the lock is not there".into(),
            }),
        }
    }
}

impl EtcdHold {
    /// Writes if the key is still ours; the revision, or why it is not.
    async fn commit(&self, writes: Vec<pb::RequestOp>) -> Result<Result<u64, Cause>> {
        let answer = self.write_all(writes).await?;
        if let Some(revision) = answer {
            return Ok(Ok(revision));
        }
        let cause = self.cause().await.ok().flatten().unwrap_or(Cause::Gone);
        crate::backend::Hold::loss(self).declare(cause.clone());
        Ok(Err(cause))
    }
}
