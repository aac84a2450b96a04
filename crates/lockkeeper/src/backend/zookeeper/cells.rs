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
        let wrong = |error| failed("reading a stock", error);
        let session = self.ensemble.session().await?;
        let dir = self.cells_dir(name);
        loop {
            match read(&session, &dir, count).await {
                // Made empty by whoever comes first, so that from now on each has a version.
                Err(ZkError::NoNode) => {
                    self.make_cells(&session, &dir, count).await.map_err(wrong)?
                }
                read => {
                    let cell = |(version, value)| match u64::try_from(version) {
                        Ok(version) => Ok(Cell { version, value }),
                        Err(_) => Err(exhausted(name)),
                    };
                    return read.map_err(wrong)?.into_iter().map(cell).collect();
                }
            }
        }
    }

    async fn read_at_once(&self, name: &Name, count: usize) -> Result<Vec<Cell>> {
        let wrong = |error| failed("reading a stock", error);
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
                Err(error) => return Err(wrong(error.into())),
            }
        }
        let context = format!("others changed the stock {name} all the time");
        Err(Error::Unavailable { backend: BACKEND, context, source: None })
    }

    async fn swap(&self, name: &Name, writes: &[Write]) -> Result<bool> {
        let wrong = |error| failed("changing a stock", error);
        let session = self.ensemble.session().await?;
        let mut writer = session.client.new_multi_writer();
        for Write { cell, version, value } in writes {
            if *version >= LAST_VERSION {
                return Err(exhausted(name));
            }
            let path = format!("{}/{cell}", self.cells_dir(name));
            writer.add_set_data(&path, value, Some(stored(*version))).map_err(wrong)?;
        }
        match answered(async { Ok(writer.commit().await) }).await.map_err(wrong)? {
            Ok(_) => Ok(true),
            Err(MultiWriteError::OperationFailed {
                source: ZkError::BadVersion | ZkError::NoNode,
                ..
            }) => Ok(false),
            Err(error) => Err(wrong(error.into())),
        }
    }

    fn may_pass(&self, error: &Error) -> bool {
        let Error::Unavailable { source: Some(source), .. } = error else { return false };
        source.downcast_ref::<ZkError>().is_some_and(|error| !is_answer(error))
    }
}

impl ZooKeeper {
    fn cells_dir(&self, name: &Name) -> String {
        format!("{}/{CELLS}/{}", self.ensemble.address.base, element(name))
    }

    async fn make_cells(&self, session: &Session, dir: &str, count: usize) -> Result<(), ZkError> {
        let options = self.ensemble.options(CreateMode::Persistent);
        answered(session.client.mkdir(dir, &options)).await?;
        for cell in 0..count {
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
    let reading = async {
        // Sent together, in this order: what is read is not older than now.
        let (syncing, reading) = (
            session.client.sync(dir),
            try_join_all(paths.iter().map(|path| session.client.get_data(path))),
        );
        let (synced, read) = futures_util::future::join(syncing, reading).await;
        synced?;
        read
    };
    let read = answered(reading).await?;
    // One that was made and never written is of version zero there, too.
    Ok(read.into_iter().map(|(value, stat)| (stat.version, value)).collect())
}

/// The version as ZooKeeper counts it.
fn stored(version: u64) -> i32 {
    i32::try_from(version).unwrap_or(i32::MAX)
}

/// At the end of its numbers ZooKeeper goes on into negative ones, of which one means "any version":
/// nothing would be compared any more.
fn exhausted(name: &Name) -> Error {
    Error::Config(format!(
        "a segment of the stock {name} was changed two thousand million times, which is all that \
         ZooKeeper can count: go on with a stock of another name"
    ))
}
