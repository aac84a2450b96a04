//! A fenced register: what a lock protects, and the independent judge of it.
//!
//! It accepts a value together with the token of the lock, and refuses a token smaller than the
//! largest it has seen. It knows nothing of locks, so it cannot share their mistakes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

/// A write that came too late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The token of the write.
    pub token: u64,
    /// The largest token seen.
    pub largest: u64,
}

/// A register for the tasks of one process.
#[derive(Debug, Default)]
pub struct Register {
    state: Mutex<(u64, String, Vec<Refused>)>,
}

impl Register {
    /// Writes a value under a token.
    ///
    /// # Errors
    ///
    /// When a larger token was seen.
    pub fn write(&self, token: u64, value: impl Into<String>) -> Result<(), Refused> {
        let mut state = self.state.lock();
        if token < state.0 {
            let refused = Refused { token, largest: state.0 };
            state.2.push(refused.clone());
            return Err(refused);
        }
        (state.0, state.1) = (token, value.into());
        Ok(())
    }

    /// The last value and its token.
    pub fn read(&self) -> (u64, String) {
        let state = self.state.lock();
        (state.0, state.1.clone())
    }

    /// Every write that was refused.
    pub fn refusals(&self) -> Vec<Refused> {
        self.state.lock().2.clone()
    }
}

/// A register for processes: a file, updated under `flock`.
#[derive(Clone, Debug)]
pub struct FileRegister {
    path: PathBuf,
}

impl FileRegister {
    /// The register in this file, empty until it is written.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a value under a token; `Ok(Err(_))`: refused.
    ///
    /// # Errors
    ///
    /// When the file cannot be used.
    pub fn write(&self, token: u64, value: &str) -> io::Result<Result<(), Refused>> {
        let mut file = self.open()?;
        let (largest, _) = parse(&mut file)?;
        if token < largest {
            let log = self.path.with_extension("refused");
            let mut log = OpenOptions::new().append(true).create(true).mode(0o666).open(log)?;
            writeln!(log, "{token} {largest}")?;
            return Ok(Err(Refused { token, largest }));
        }
        file.set_len(0)?;
        file.rewind()?;
        write!(file, "{token} {value}")?;
        Ok(Ok(()))
    }

    /// The last value and its token.
    ///
    /// # Errors
    ///
    /// When the file cannot be used.
    pub fn read(&self) -> io::Result<(u64, String)> {
        parse(&mut self.open()?)
    }

    /// Every write that was refused.
    ///
    /// # Errors
    ///
    /// When the log is there and cannot be read.
    pub fn refusals(&self) -> io::Result<Vec<Refused>> {
        let log = match std::fs::read_to_string(self.path.with_extension("refused")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            log => log?,
        };
        let number = |text: Option<&str>| text.and_then(|text| text.parse().ok()).unwrap_or(0);
        Ok(log
            .lines()
            .map(|line| {
                let mut words = line.split(' ');
                Refused { token: number(words.next()), largest: number(words.next()) }
            })
            .collect())
    }

    /// Opens and locks the file; unlocked when it is closed.
    fn open(&self) -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o666)
            .open(&self.path)?;
        file.lock()?;
        Ok(file)
    }
}

fn parse(file: &mut File) -> io::Result<(u64, String)> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let (token, value) = text.split_once(' ').unwrap_or(("0", ""));
    Ok((token.parse().unwrap_or(0), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_write_is_refused_and_recorded() {
        let register = Register::default();
        register.write(3, "c").unwrap();
        register.write(3, "again").unwrap();
        let refused = Refused { token: 2, largest: 3 };
        assert_eq!(register.write(2, "late"), Err(refused.clone()));
        assert_eq!((register.read(), register.refusals()), ((3, "again".into()), vec![refused]));
    }

    #[test]
    fn a_file_judges_in_the_same_way() {
        let dir = tempfile::tempdir().unwrap();
        let register = FileRegister::at(dir.path().join("register"));
        assert_eq!(register.read().unwrap(), (0, String::new()));
        register.write(10, "a long value").unwrap().unwrap();
        register.write(11, "b").unwrap().unwrap();
        let refused = Refused { token: 10, largest: 11 };
        assert_eq!(register.write(10, "late").unwrap(), Err(refused.clone()));
        assert_eq!(register.read().unwrap(), (11, "b".into()));
        assert_eq!(register.refusals().unwrap(), vec![refused]);
    }
}
