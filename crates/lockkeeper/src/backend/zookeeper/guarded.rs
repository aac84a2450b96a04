//! Writes to ZooKeeper itself that take effect only while a lock is held.

use std::any::Any;
use std::fmt;

use zookeeper_client::{CheckWriter, Client};

use super::hold::ZooKeeperHold;
use super::session::failed;
use crate::backend::Hold;
use crate::error::{Error, Result};
use crate::guard::Guard;

/// A way to write to ZooKeeper under a lock. The server checks, in the same step as the write, that
/// the node of the hold is still there: stronger than a token, for whatever lives in ZooKeeper.
///
/// ```no_run
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = lockkeeper::Locks::connect("zookeeper://localhost/app").await?;
/// let guard = locks.mutex("config").lock().await?;
/// let guarded = guard.zookeeper()?;
/// let mut writer = guarded.writer()?;
/// writer.add_set_data("/settings", b"new", None)?;
/// writer.commit().await?; // an error of the kind `CheckFailed`: the lock is lost, nothing is written
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Guarded {
    client: Client,
    path: String,
}

impl Guarded {
    /// Collects writes that take effect together, or not at all when the lock is not held any more.
    /// Paths are counted from the root of the ensemble.
    ///
    /// # Errors
    ///
    /// Never with the path of a hold.
    pub fn writer(&self) -> Result<CheckWriter<'_>> {
        let writer = self.client.new_check_writer(&self.path, None);
        writer.map_err(|error| failed("a guarded write", error))
    }

    /// The session that holds the lock.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The node of the hold.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl Guard {
    /// Writes to ZooKeeper that take effect only while this lock is held.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when the lock is not one of `zookeeper:`, [`Error::Lost`] when it is
    /// lost.
    pub fn zookeeper(&self) -> Result<Guarded> {
        self.check()?;
        let hold: &dyn Hold = &**self.lease().hold();
        let hold: &dyn Any = hold;
        match hold.downcast_ref::<ZooKeeperHold>() {
            Some(hold) => Ok(Guarded { client: hold.session.client.clone(), path: hold.path() }),
            None => Err(Error::Unsupported {
                backend: "this store",
                what: "writes guarded by ZooKeeper".into(),
            }),
        }
    }
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("path", &self.path).finish_non_exhaustive()
    }
}
