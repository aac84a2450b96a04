//! Values that are compared and set, in an ensemble: a persistent node each.
//!
//! They are below a node of their own, whose name is none that a lock can have.

use async_trait::async_trait;
use futures_util::future::try_join_all;
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteError};

use super::layout::{CELLS, element};
use super::session::{Session, answered, failed, is_answer};
use super::{BACKEND, ZooKeeper};
use crate::backend::{Cell, Cells, Write};
use crate::error::{Error, Result};
use crate::name::Name;

/// So often cells are read again to see all of them at one moment while others change them.
const TRIES: usize = 100;

/// A cell of this version is not written any more.
const LAST_VERSION: u64 = i32::MAX as u64;

#[async_trait]
impl Cells for ZooKeeper {
    async fn read(&self, name: &Name, count: usize) -> Result<Vec<Cell>> {
        let session = self.ensemble.session().await?;
        let read = read(&session, &self.cells_dir(name), count).await;
        let cell = |(version, value)| match u64::try_from(version) {
            Ok(version) => Ok(Cell { version, value }),
            Err(_) => Err(exhausted(name)),
        };
        read.map_err(|error| failed("reading cells", error))?.into_iter().map(cell).collect()
    }

    async fn read_at_once(&self, name: &Name, count: usize) -> Result<Vec<Cell>> {
        let wrong = |error| failed("reading cells", error);
        let session = self.ensemble.session().await?;
        for _ in 0..TRIES {
            let read = self.read(name, count).await?;
            // A step that changes nothing, and is carried out only if all are as we have seen them.
            let mut writer = session.client.new_multi_writer();
            for (cell, Cell { version, .. }) in read.iter().enumerate() {
                let path = format!("{}/{cell}", self.cells_dir(name));
                writer.add_check_version(&path, stored(*version)).map_err(wrong)?;
            }
            match answered(async { Ok(writer.commit().await) }).await.map_err(wrong)? {
                Ok(_) => return Ok(read),
                Err(MultiWriteError::OperationFailed { source: ZkError::BadVersion, .. }) => {}
                // Made empty by whoever comes first, so that from now on each has a version.
                Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. }) => {
                    self.make_cells(&session, name, 0..count).await.map_err(wrong)?;
                }
                Err(error) => return Err(wrong(error.into())),
            }
        }
        let context = format!("others changed the stock {name} all the time");
        Err(Error::Unavailable { backend: BACKEND, context, source: None })
    }

    async fn swap(&self, name: &Name, writes: &[Write]) -> Result<bool> {
        let wrong = |error| failed("changing cells", error);
        let session = self.ensemble.session().await?;
        let mut made = false;
        loop {
            let mut writer = session.client.new_multi_writer();
            for Write { cell, version, value } in writes {
                if *version >= LAST_VERSION {
                    return Err(exhausted(name));
                }
                let path = format!("{}/{cell}", self.cells_dir(name));
                writer.add_set_data(&path, value, Some(stored(*version))).map_err(wrong)?;
            }
            match answered(async { Ok(writer.commit().await) }).await.map_err(wrong)? {
                Ok(_) => return Ok(true),
                Err(MultiWriteError::OperationFailed { source: ZkError::BadVersion, .. }) => {
                    return Ok(false);
                }
                // Those that were never written may have to be made first.
                Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. }) if !made => {
                    let new = writes.iter().filter(|write| write.version == 0);
                    let new = new.map(|write| write.cell);
                    self.make_cells(&session, name, new).await.map_err(wrong)?;
                    made = true;
                }
                Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. }) => {
                    return Ok(false);
                }
                Err(error) => return Err(wrong(error.into())),
            }
        }
    }

    fn may_pass(&self, error: &Error) -> bool {
        let Error::Unavailable { source, .. } = error else { return false };
        // Without a cause: another task has just found that nobody answers.
        let Some(source) = source else { return true };
        source.downcast_ref::<ZkError>().is_some_and(|error| !is_answer(error))
    }
}

impl ZooKeeper {
    fn cells_dir(&self, name: &Name) -> String {
        format!("{}/{CELLS}/{}", self.ensemble.address.base, element(name))
    }

    async fn make_cells(
        &self,
        session: &Session,
        name: &Name,
        cells: impl IntoIterator<Item = usize> + Send,
    ) -> Result<(), ZkError> {
        let (dir, options) = (self.cells_dir(name), self.ensemble.options(CreateMode::Persistent));
        answered(session.client.mkdir(&dir, &options)).await?;
        for cell in cells.into_iter().collect::<Vec<_>>() {
            let path = format!("{dir}/{cell}");
            match answered(session.client.create(&path, &[], &options)).await {
                Ok(_) | Err(ZkError::NodeExists) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

async fn read(session: &Session, dir: &str, count: usize) -> Result<Vec<(i32, Vec<u8>)>, ZkError> {
    let paths: Vec<_> = (0..count).map(|cell| format!("{dir}/{cell}")).collect();
    let get = async |path: &String| match session.client.get_data(path).await {
        // Looking makes nothing. One that was made and never written is of version zero there, too.
        Err(ZkError::NoNode) => Ok((0, Vec::new())),
        found => found.map(|(value, stat)| (stat.version, value)),
    };
    answered(async {
        // Sent together, in this order: what is read is not older than now.
        let (synced, read) = futures_util::future::join(
            session.client.sync(dir),
            try_join_all(paths.iter().map(get)),
        )
        .await;
        synced?;
        read
    })
    .await
}

/// The version as ZooKeeper counts it.
fn stored(version: u64) -> i32 {
    i32::try_from(version).unwrap_or(i32::MAX)
}

/// At the end of its numbers ZooKeeper goes on into negative ones, of which one means "any version":
/// nothing would be compared any more.
fn exhausted(name: &Name) -> Error {
    Error::Config(format!(
        "{name} was changed two thousand million times, which is all that ZooKeeper can count: go on \
         with a stock or a job of another name"
    ))
}
