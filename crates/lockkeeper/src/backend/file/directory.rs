//! The directory: where it is, whether it can be trusted, who may use it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, OFlags};

use super::peers::PeerId;
use crate::clock::Instant;
use crate::error::{Error, Result};

/// How long to wait for another process that is setting the directory up: it forces a few writes to
/// disk, which can take seconds on a busy one.
const SETUP_TIME: std::time::Duration = std::time::Duration::from_secs(30);

/// File systems on which the locks of one machine are not, or not reliably, seen by another, with
/// the magic numbers by which the kernel tells them.
const REFUSED: [(u32, &str); 10] = [
    (0x6969, "NFS"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB"),
    (0x517B, "SMB"),
    (0x0102_1997, "9P"),
    (0x00C3_6400, "Ceph"),
    (0x5346_414F, "AFS"),
    (0x0BD0_0BD0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x6573_5546, "FUSE"),
];

/// The directory for a user who names none: it must survive a reboot, or tokens would start again.
pub(super) fn default() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/lockkeeper".into());
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("lockkeeper"))
        .ok_or_else(|| {
            Error::Config("no home directory to keep locks in: name one with file:/DIR".into())
        })
}

/// A directory that exists, is local, and can be written.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    path: Arc<Path>,
    /// Mode and group of the files in it: whoever may write the directory may write them.
    mode: u32,
    group: u32,
}

impl Directory {
    pub(super) fn prepare(path: &Path) -> Result<Self> {
        let unusable = |what: String, source: io::Error| Error::unavailable("file", what, source);
        if !path.exists() {
            // 0700: a lock of ours is nobody else's business unless somebody says so.
            DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
                unusable(
                    format!("{} cannot be created: name another with file:/DIR", path.display()),
                    error,
                )
            })?;
        }
        let refuse = |error| unusable(format!("{} cannot be used", path.display()), error);
        let path = path.canonicalize().map_err(refuse)?;
        let meta = fs::metadata(&path).map_err(refuse)?;
        if !meta.is_dir() {
            return Err(refuse(io::ErrorKind::NotADirectory.into()));
        }
        let magic = rustix::fs::statfs(&path).map_err(|error| refuse(error.into()))?.f_type;
        if let Some(kind) = refused(magic) {
            return Err(Error::Unavailable {
                backend: "file",
                context: format!(
                    "{} is on {kind}, where locks are not reliable: name a local directory with \
                     file:/DIR, or use a server to lock between hosts",
                    path.display()
                ),
                source: None,
            });
        }
        rustix::fs::access(&path, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
            .map_err(|error| {
                let hint = format!(
                    "{} belongs to user {} and cannot be written by user {}: name another with \
                     file:/DIR, or let its owner share it (chmod 2770, with a common group)",
                    path.display(),
                    meta.uid(),
                    rustix::process::geteuid().as_raw()
                );
                unusable(hint, error.into())
            })?;
        // Write permission of the directory, turned into read and write permission of its files.
        let write = meta.mode() & 0o022;
        Ok(Self { path: path.into(), mode: 0o600 | write | write << 1, group: meta.gid() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn database(&self) -> PathBuf {
        self.path.join("locks.db")
    }

    pub(super) fn fifo(&self, peer: PeerId) -> PathBuf {
        self.path.join("processes").join(peer.to_string())
    }

    /// Opens a file of the directory, creating it with the right mode.
    pub(super) fn open_file(&self, path: &Path) -> Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(self.mode)
            .open(path)
            .map_err(|error| self.unusable(path, error))?;
        self.share(path)?;
        Ok(file)
    }

    /// Gives a new file its mode and group whatever umask and user say. Somebody else's file has
    /// them already; a group that we are not in is not ours to give.
    fn share(&self, path: &Path) -> Result<()> {
        let _ = std::os::unix::fs::chown(path, None, Some(self.group));
        match fs::set_permissions(path, Permissions::from_mode(self.mode)) {
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
                Err(self.unusable(path, error))
            }
            _ => Ok(()),
        }
    }

    fn unusable(&self, path: &Path, error: io::Error) -> Error {
        let hint = format!("{} cannot be opened; who may use the directory?", path.display());
        Error::unavailable("file", hint, error)
    }

    /// Waits to be the only one that sets the directory up; ends with the file that is returned.
    pub(super) fn lock(&self) -> Result<File> {
        let path = self.path.join("setup.lock");
        let file = self.open_file(&path)?;
        let until = Instant::now() + SETUP_TIME;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(fs::TryLockError::WouldBlock) if Instant::now() < until => {
                    store_pause();
                }
                Err(error) => {
                    let hint = format!(
                        "{} has been locked by another process for over {SETUP_TIME:?}",
                        path.display()
                    );
                    return Err(Error::unavailable("file", hint, error));
                }
            }
        }
    }

    /// Makes the FIFO of a new process, and removes those of dead ones. Needs [`lock`](Self::lock):
    /// one that was just made is not open yet and would look dead.
    pub(super) fn make_fifo(&self) -> Result<(PeerId, File)> {
        let folder = self.path.join("processes");
        let failed = |error: io::Error| self.unusable(&folder, error);
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => {
                let mode = fs::metadata(&*self.path).map_err(failed)?.permissions();
                fs::set_permissions(&folder, mode).map_err(failed)?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
        for entry in fs::read_dir(&folder).map_err(failed)?.flatten() {
            let name = entry.file_name();
            let peer = name.to_str().and_then(|name| name.parse().ok());
            if peer.is_some_and(|peer| self.knock(peer).is_none()) {
                // Somebody else's in a sticky directory stays; it does no harm.
                let _ = fs::remove_file(entry.path());
            }
        }
        let me = PeerId::random();
        let path = self.fifo(me);
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .map_err(|error| failed(error.into()))?;
        self.share(&path)?;
        // For reading and writing: it never sees an end of file when a writer closes.
        let fifo = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(&path)
            .map_err(failed)?;
        Ok((me, fifo))
    }

    /// Whether another process that uses the directory lives, or may: what cannot be looked at does.
    pub(super) fn anybody_but(&self, me: PeerId) -> bool {
        let Ok(mut folder) = fs::read_dir(self.path.join("processes")) else { return true };
        folder.any(|entry| {
            let Ok(entry) = entry else { return true };
            let peer = entry.file_name().to_str().and_then(|name| name.parse().ok());
            peer.is_some_and(|peer| peer != me && self.knock(peer).is_some())
        })
    }

    /// Opens a process's FIFO for writing. `None`: the process is gone. An error: it may live, but
    /// it is out of our reach.
    pub(super) fn knock(&self, peer: PeerId) -> Option<io::Result<File>> {
        let opened = OpenOptions::new()
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(self.fifo(peer));
        match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
                None
            }
            opened => Some(opened),
        }
    }
}

/// A short pause of a thread that waits for a file lock, which the kernel cannot end at a deadline.
pub(super) fn store_pause() {
    #[allow(clippy::disallowed_methods, reason = "on a thread of its own, never on the runtime's")]
    std::thread::sleep(std::time::Duration::from_micros(200));
}

/// What kind of file system this is, if locks cannot be trusted on it.
fn refused(magic: i64) -> Option<&'static str> {
    let magic = u32::try_from(magic & 0xFFFF_FFFF).unwrap_or_default();
    REFUSED.iter().find(|(refused, _)| *refused == magic).map(|(_, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_refused_and_local_ones_are_not() {
        assert_eq!(refused(0x6969), Some("NFS"));
        // CIFS has the top bit set: the kernel's signed number must not hide it.
        assert_eq!(refused(i64::from(0xFF53_4D42_u32.cast_signed())), Some("CIFS"));
        for local in [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630] {
            assert_eq!(refused(local), None, "ext4, xfs, btrfs, tmpfs, overlay");
        }
    }
}
