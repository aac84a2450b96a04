//! Where the checkpoints of the newest file are.
//!
//! The server begins a file with one, which names the oldest file that has commits on their way, and writes another when a file has
//! none any more; the last one of a file names that file itself. How far into the file these are depends on how much is written
//! while an engine flushes: some events or a hundred thousand. Who is far behind has all that still to read, and need not know what it
//! says: so the server is asked, in small pages, since it commits nothing while it reads one. Only the newest file is of interest:
//! what its first checkpoint says is no older than what any file before it has said.

use std::time::Duration;

use tokio::time::Instant;

use super::control::{Control, Shown, What};
use super::gtid::File;
use crate::cdc::LogError;

/// So many events are in a page.
const PAGE: usize = 200;
/// After this time there is something else to look at.
const STEP: Duration = Duration::from_secs(1);
/// Where the first event of a file begins.
const BEGINNING: u64 = 4;

/// How far a file was gone through.
#[derive(Debug, Default)]
pub(super) struct Scan {
    file: File,
    /// Where the next event begins.
    next: u64,
    /// Where checkpoints end, and what they name.
    pub(super) checkpoints: Vec<(u64, File)>,
    /// The end of the first event of the first transaction.
    pub(super) first: Option<u64>,
    /// There is no checkpoint any more.
    is_over: bool,
}

impl Scan {
    fn of(file: &File) -> Self {
        Self { file: file.clone(), next: BEGINNING, ..Self::default() }
    }

    /// Goes on where it was left, in this file: until its last checkpoint, its end for now, or for about a second.
    pub(super) async fn go_on(
        &mut self,
        control: &mut Control,
        file: &File,
    ) -> Result<(), LogError> {
        if self.file != *file {
            *self = Self::of(file);
        }
        let until = Instant::now() + STEP;
        while !self.is_over && Instant::now() < until {
            let Some(page) = control.events(file, self.next, PAGE).await? else {
                // It was purged, or begun anew.
                *self = Self::of(file);
                return Ok(());
            };
            let count = page.len();
            self.read(page);
            if count < PAGE {
                return Ok(());
            }
        }
        Ok(())
    }

    fn read(&mut self, page: Vec<Shown>) {
        for Shown { end, what } in page {
            self.next = self.next.max(end);
            match what {
                What::Checkpoint(named) => {
                    self.is_over |= named == self.file;
                    self.checkpoints.push((end, named));
                }
                What::Gtid => self.first = self.first.or(Some(end)),
                What::Other => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_when_the_file_names_itself() {
        let [old, new] = ["bin.000001", "bin.000002"].map(File::new);
        let mut scan = Scan::of(&new);
        let shown = |end, what| Shown { end, what };
        scan.read(vec![
            shown(256, What::Other),
            shown(300, What::Checkpoint(old.clone())),
            shown(342, What::Gtid),
        ]);
        assert!(!scan.is_over);
        assert_eq!((scan.next, scan.first), (342, Some(342)));
        scan.read(vec![shown(400, What::Gtid), shown(440, What::Checkpoint(new.clone()))]);
        assert!(scan.is_over);
        assert_eq!((scan.next, scan.first), (440, Some(342)));
        assert_eq!(scan.checkpoints, [(300, old), (440, new)]);
    }
}
