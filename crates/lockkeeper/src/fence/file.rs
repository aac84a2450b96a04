//! Files that refuse late writers.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use lockkeeper::Locks;
//! use lockkeeper::fence::{Error, file::FencedFile};
//! # let dir = tempfile::tempdir()?;
//! let report = FencedFile::new(dir.path().join("report.txt"))?;
//! # let locks = Locks::memory();
//! let sleepy = locks.mutex("report").lock().await?.token();
//! let guard = locks.mutex("report").lock().await?;
//! report.write(guard.token(), "of the new holder").await?;
//! match report.write(sleepy, "too late").await {
//!     Err(Error::Stale(late)) => assert_eq!(late.newest, Some(guard.token())),
//!     other => panic!("{other:?}"),
//! }
//! assert_eq!(std::fs::read_to_string(report.path())?, "of the new holder");
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! The largest token is in a second file beside it, `NAME.fence`, which is also what writers lock (`flock`):
//!
//! 1. Lock `NAME.fence` and read it. A larger token: [`Error::Stale`], and nothing happens.
//! 2. Write the token to it and force it to disk.
//! 3. Write the new content to `NAME.fence.new`, force it to disk, and rename it to `NAME`; force the directory.
//! 4. Unlock.
//!
//! # What it promises
//!
//! After a write under a token nobody writes under an older one, from any process of the machine, also after
//! a crash or a loss of power. Who reads `NAME`, by whatever means, sees all of one write and nothing of
//! another. When `write` has returned the content is on disk.
//!
//! # When it breaks
//!
//! - Whoever writes to the file in another way is not stopped, nor is who deletes `NAME.fence`. Deleting
//!   `NAME` is harmless.
//! - `flock` and renaming are for local file systems. On NFS and the like two machines may both pass.
//! - A process that is stopped between 1 and 4 keeps others out until it goes on or is killed: they wait for
//!   [`patience`](FencedFile::patience) and then fail. That does not make a late write possible, only none.
//! - A crash between 2 and 3 leaves the old content under the new token.
//! - Hard links to the file keep the old content; its owner and its extended attributes are those of a new file, its
//!   permissions stay.
//!
//! # Cost
//!
//! Two forced writes and that of the directory; under the same token the first has nothing to write. The
//! content is held in memory.

mod slots;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Error, Result, Stale};
use crate::clock::Instant;
use crate::token::Token;

/// What is beside a file: its token, and what will be its content.
const FENCE: &str = ".fence";
const NEW: &str = ".fence.new";
/// How long others may be in the middle of a write.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks whether they still are.
const PAUSE: Duration = Duration::from_millis(2);

/// A file that is written under tokens.
#[derive(Clone, Debug)]
pub struct FencedFile {
    path: PathBuf,
    patience: Duration,
}

impl FencedFile {
    /// The file at this path. It need not be there; its directory must.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a path without a file name, or with one that ends with `.fence` or `.fence.new`: it
    /// could be what another fenced file has beside it.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let why = match path.file_name().map(|name| name.as_encoded_bytes()) {
            None => "names no file",
            Some(name) if [FENCE, NEW].iter().any(|end| name.ends_with(end.as_bytes())) => {
                "could be the fence of another file"
            }
            Some(_) => return Ok(Self { path, patience: PATIENCE }),
        };
        Err(Error::Invalid(format!("{} {why}", path.display())))
    }

    /// Waits for so long, instead of 10 s, for another process that is in the middle of a write.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the whole content, unless a newer token was here. A symbolic link is refused.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`]: nothing was written. [`Error::Invalid`] when `NAME.fence` is damaged.
    /// [`Error::Store`] when the file system fails, or somebody else was not done in time: the content is the old
    /// one. [`Error::Unknown`]: it is the new one, but may be the old one after a loss of power.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits for others it has done nothing; later it goes on in the background.
    pub async fn write(&self, token: Token, content: impl Into<Vec<u8>>) -> Result<()> {
        let (fence, content) = (self.lock().await?, content.into());
        let this = self.clone();
        in_background(move || {
            this.admit(&fence, token)?;
            this.replace(&content).map_err(|error| this.failed(error))?;
            this.sync_directory().map_err(|error| {
                let context =
                    format!("{} is written, but perhaps not on disk", this.path.display());
                Error::Unknown { context, source: Some(error.into()) }
            })
        })
        .await
    }

    /// Writes nothing but the token: older ones are refused from now on.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub async fn raise(&self, token: Token) -> Result<()> {
        let (fence, this) = (self.lock().await?, self.clone());
        in_background(move || this.admit(&fence, token)).await
    }

    /// The largest token that was here.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub async fn newest(&self) -> Result<Option<Token>> {
        let fence = self.lock().await?;
        slots::read(&fence).map(|seen| seen.token).map_err(|error| self.failed(error))
    }

    /// The file beside it, locked until it is closed.
    async fn lock(&self) -> Result<File> {
        let beside = self.beside(FENCE);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // Through a symbolic link it would be the fence of another file.
        options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
        let fence = options.open(&beside).map_err(|error| self.failed(error))?;
        let until = Instant::now() + self.patience;
        loop {
            match fence.try_lock() {
                Ok(()) => return Ok(fence),
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(TryLockError::WouldBlock) => {
                    let who = format!("somebody else is writing to {}", self.path.display());
                    let context = format!("{who} for longer than {:?}", self.patience);
                    return Err(Error::Store { context, source: None });
                }
                Err(TryLockError::Error(error)) => return Err(self.failed(error)),
            }
        }
    }

    /// Compares the token with the largest one, and remembers it.
    fn admit(&self, fence: &File, token: Token) -> Result<()> {
        let seen = slots::read(fence).map_err(|error| self.failed(error))?;
        match seen.token {
            Some(newest) if newest > token => {
                let resource = self.path.display().to_string();
                return Err(Error::Stale(Stale { resource, token, newest: Some(newest) }));
            }
            // Whoever wrote it may have been killed before it was on disk.
            Some(same) if same == token => fence.sync_all(),
            _ => seen.write(fence, token),
        }
        .and_then(|()| match seen.is_young {
            // It must not be gone after a crash either.
            true => self.sync_directory(),
            false => Ok(()),
        })
        .map_err(|error| self.failed(error))
    }

    fn replace(&self, content: &[u8]) -> io::Result<()> {
        let new = self.beside(NEW);
        let permissions = match fs::symlink_metadata(&self.path) {
            Ok(old) if old.is_file() => Some(old.permissions()),
            Ok(_) => return Err(io::Error::other("it is there and not a file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        // What somebody has left who was killed: nobody else is here now.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).open(&new)?;
        if let Some(permissions) = permissions {
            file.set_permissions(permissions)?;
        }
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)
    }

    fn sync_directory(&self) -> io::Result<()> {
        let directory = match self.path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => Path::new("/"),
        };
        File::open(directory)?.sync_all()
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(ending);
        name.into()
    }

    fn failed(&self, error: io::Error) -> Error {
        let path = self.path.display();
        if error.kind() == io::ErrorKind::InvalidData {
            return Error::Invalid(format!("{path}.fence is damaged: {error}"));
        }
        Error::Store { context: format!("writing to {path} failed"), source: Some(error.into()) }
    }
}

/// Where waiting for a disk keeps nobody else from going on.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        let context = "the runtime has ended, or the write has panicked".to_owned();
        Err(Error::Unknown { context, source: Some(error.into()) })
    })
}
