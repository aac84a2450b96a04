//! When a change can be read.
//!
//! A server sends a transaction to its readers when it is in the log, which is *before* it is committed: who loads at once reads what
//! was there before. What is committed is committed in the order of the log, and the server says how far it has come, as a file and
//! an offset. Three things are wrong with that answer, all of them at the beginning of a file:
//!
//! - When a new file is begun, it says so at once, though the last transactions of the file before may still be on their way.
//! - When these are committed then, it gives their offset in the old file together with the name of the new one.
//! - When it writes a checkpoint, it gives the end of that, though the transaction in front of it may still be on its way.
//!
//! So nothing in an old file counts as committed before a checkpoint says so, which the server writes when all of them are. An offset
//! is not believed that is behind the end of its file, that is the end of the last transaction of the file before, or that is the end
//! of a checkpoint; nor any before the last checkpoint of the file is known (see [`Scan`](super::scan::Scan)). Where nothing better comes, such an offset is
//! believed after a second in which nobody waits for a replica: a commit is on its way for no other reason, and not for so long.

use std::time::Duration;

use tokio::time::Instant;

use super::control::Seen;
use super::gtid::{File, Place};

/// Whether everything up to some place can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Yes,
    /// The server says so, but it may be wrong.
    Perhaps,
    No,
}

/// After this time the server is believed, if there is nothing to say that it is wrong.
const DOUBT: Duration = Duration::from_secs(1);

/// Since when the server has said the same.
#[derive(Debug, Default)]
pub(super) struct Doubt(Option<Instant>);

impl Doubt {
    pub(super) fn is_over(&mut self, verdict: Verdict, seen: &Seen) -> bool {
        self.0 = match (verdict, seen.waiting) {
            (Verdict::Perhaps, 0) => self.0.or_else(|| Some(Instant::now())),
            _ => None,
        };
        verdict == Verdict::Yes || self.0.is_some_and(|since| since.elapsed() > DOUBT)
    }
}

/// Where checkpoints are, and what they say.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    /// Everything in files before this one is committed.
    reached: File,
    /// The file whose checkpoints these are.
    file: File,
    ends: Vec<u64>,
    /// The last that there will be in the file.
    last: Option<u64>,
}

impl Checkpoints {
    /// A checkpoint in a file: which one it names, and where it ends.
    pub(super) fn note(&mut self, inside: &File, named: &File, end: u64) {
        if named.is_after(&self.reached) {
            self.reached = named.clone();
        }
        if self.file.is_after(inside) {
            // More is known already than an older file can say.
            return;
        }
        if *inside != self.file {
            *self = Self { file: inside.clone(), reached: self.reached.clone(), ..Self::default() };
        }
        if !self.ends.contains(&end) {
            self.ends.push(end);
        }
        if named == inside {
            self.last = Some(end);
        }
    }

    /// Where the last one of this file ends, if it is known.
    pub(super) fn last(&self, file: &File) -> Option<u64> {
        self.last.filter(|_| self.file == *file)
    }
}

/// What is known about the file that is read.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// What the server says of this file is right from now on.
    sound: Option<File>,
}

impl Gate {
    /// `previous`: the end of the last transaction in the file before that of the target, if it is known.
    pub(super) fn verdict(
        &mut self,
        target: &Place,
        seen: &Seen,
        checkpoints: &Checkpoints,
        previous: Option<u64>,
    ) -> Verdict {
        let Seen { committed, end, .. } = seen;
        if committed.file != target.file {
            let is_checked = checkpoints.reached.is_after(&target.file);
            let is_after = committed.file.is_after(&target.file);
            return if is_after && is_checked { Verdict::Yes } else { Verdict::No };
        }
        if committed.offset < target.offset {
            return Verdict::No;
        }
        if self.sound.as_ref() == Some(&target.file) {
            return Verdict::Yes;
        }
        if committed.file == end.file && committed.offset > end.offset {
            return Verdict::No;
        }
        match checkpoints.last(&target.file) {
            Some(_) if previous == Some(committed.offset) => Verdict::Perhaps,
            Some(last) if committed.offset > last => {
                self.believe(&target.file);
                Verdict::Yes
            }
            Some(_) if !checkpoints.ends.contains(&committed.offset) => Verdict::Yes,
            _ => Verdict::Perhaps,
        }
    }

    /// Nothing is on its way any more that could make it wrong.
    pub(super) fn believe(&mut self, file: &File) {
        self.sound = Some(file.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: u32) -> File {
        File::new(&format!("bin.{number:06}"))
    }

    fn place(number: u32, offset: u64) -> Place {
        Place { file: file(number), offset }
    }

    fn seen(committed: (u32, u64), end: (u32, u64)) -> Seen {
        let committed = place(committed.0, committed.1);
        Seen { committed, end: place(end.0, end.1), now: 0, waiting: 0 }
    }

    /// As they are in the second file: one for the first, and later one for itself.
    fn checkpoints(last: Option<u64>) -> Checkpoints {
        let mut all = Checkpoints::default();
        all.note(&file(2), &file(1), 336);
        if let Some(last) = last {
            all.note(&file(2), &file(2), last);
        }
        all
    }

    #[test]
    fn what_is_before_the_last_commit_can_be_read() {
        let (mut gate, mut all) = (Gate::default(), Checkpoints::default());
        all.note(&file(1), &file(1), 322);
        let target = place(1, 1075);
        assert_eq!(gate.verdict(&target, &seen((1, 837), (1, 1075)), &all, None), Verdict::No);
        assert_eq!(gate.verdict(&target, &seen((1, 1075), (1, 1075)), &all, None), Verdict::Yes);
        assert_eq!(gate.verdict(&target, &seen((1, 1500), (1, 2000)), &all, None), Verdict::Yes);
    }

    #[test]
    fn an_old_file_needs_a_checkpoint() {
        let (mut gate, target, seen) = (Gate::default(), place(1, 1075), seen((2, 336), (2, 336)));
        assert_eq!(gate.verdict(&target, &seen, &checkpoints(None), None), Verdict::No);
        assert_eq!(gate.verdict(&target, &seen, &checkpoints(Some(373)), None), Verdict::Yes);
    }

    #[test]
    fn an_older_file_does_not_make_one_forget_what_a_newer_one_says() {
        let mut all = checkpoints(Some(373));
        all.note(&file(1), &file(1), 322);
        assert_eq!((all.last(&file(2)), all.last(&file(1))), (Some(373), None));
        all.note(&file(2), &file(2), 373);
        assert_eq!(all.ends, [336, 373]);
        assert_eq!(all.reached, file(2));
    }

    #[test]
    fn an_offset_of_the_file_before_is_not_believed() {
        let (mut gate, all, target) = (Gate::default(), checkpoints(Some(373)), place(2, 600));
        // Behind the end of the file.
        assert_eq!(gate.verdict(&target, &seen((2, 1075), (2, 700)), &all, None), Verdict::No);
        // The end of what was last in the file before.
        let old = seen((2, 1075), (2, 2000));
        assert_eq!(gate.verdict(&target, &old, &all, Some(1075)), Verdict::Perhaps);
        let new = seen((2, 600), (2, 2000));
        assert_eq!(gate.verdict(&target, &new, &all, Some(1075)), Verdict::Yes);
        // From here on it is one of this file.
        assert_eq!(gate.verdict(&target, &old, &all, Some(1075)), Verdict::Yes);
    }

    #[test]
    fn the_end_of_a_checkpoint_is_no_commit() {
        let (mut gate, target) = (Gate::default(), place(2, 558));
        let at_checkpoint = seen((2, 595), (2, 595));
        // It may be one that was not read yet.
        let all = checkpoints(None);
        assert_eq!(gate.verdict(&target, &at_checkpoint, &all, None), Verdict::Perhaps);
        let all = checkpoints(Some(595));
        assert_eq!(gate.verdict(&target, &at_checkpoint, &all, None), Verdict::Perhaps);
        // The commit comes after it, and goes back.
        assert_eq!(gate.verdict(&target, &seen((2, 558), (2, 595)), &all, None), Verdict::Yes);
        assert_eq!(gate.verdict(&target, &at_checkpoint, &all, None), Verdict::Perhaps);
        assert_eq!(gate.verdict(&target, &seen((2, 700), (2, 700)), &all, None), Verdict::Yes);
    }
}
