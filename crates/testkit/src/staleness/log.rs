//! Operations on paper: one JSON line each, so that every process writes a file of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper::clock::Instant;
use serde::{Deserialize, Serialize};

use super::{Kind, Operation, Outcome, Source};

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    /// A write is about to be asked for: if nothing follows, its outcome is unknown.
    Begin(Operation),
    /// It ended.
    End(Operation),
    /// A process is dead, so nothing that it began is still under way.
    Dead { process: u32, at: Instant },
}

/// Takes down what one process does.
///
/// # What it promises
///
/// Every line is in the file (not on the disk) when the call returns, without a buffer: a process
/// that is killed loses nothing that others may have seen the effect of. Costs a system call each.
#[derive(Debug)]
pub struct Log {
    process: u32,
    file: File,
    next: AtomicU64,
}

impl Log {
    /// A log at this path, which is made or added to. Two processes have two numbers, also when one is
    /// the other started again.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened.
    pub fn create(path: impl AsRef<Path>, process: u32) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self { process, file, next: AtomicU64::new(0) })
    }

    /// An operation begins, now: call it directly before. Dropping the ticket leaves the outcome of
    /// a write unknown, and of a read nothing.
    ///
    /// # Panics
    ///
    /// When it cannot be written: the history would be worth nothing.
    pub fn begin(&self, session: u64, key: &str, kind: Kind) -> Ticket<'_> {
        let operation = Operation {
            process: self.process,
            number: self.next.fetch_add(1, Ordering::Relaxed),
            session,
            key: key.to_owned(),
            kind,
            inv: Instant::now(),
            res: Instant::NEVER,
            outcome: Outcome::Unknown,
            version: None,
            source: None,
        };
        let ticket = Ticket { log: self, operation };
        if kind.writes() {
            self.write(&Line::Begin(ticket.operation.clone()));
        }
        ticket
    }

    /// Another process is dead and was waited for: what it left open ended now at the latest.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn dead(&self, process: u32) {
        self.write(&Line::Dead { process, at: Instant::now() });
    }

    fn write(&self, line: &Line) {
        let mut text = serde_json::to_vec(line).unwrap();
        text.push(b'\n');
        // One call for the whole line: appended at once, whoever else writes.
        (&self.file).write_all(&text).unwrap();
    }
}

/// An operation under way.
#[derive(Debug)]
#[must_use = "an operation that is not ended says nothing"]
pub struct Ticket<'a> {
    log: &'a Log,
    operation: Operation,
}

impl Ticket<'_> {
    /// It wrote this version.
    pub fn wrote(self, version: u64) {
        self.end(Outcome::Ok, Some(version), None);
    }

    /// It returned this version, or found the key absent.
    pub fn found(self, version: Option<u64>, source: Source) {
        self.end(Outcome::Ok, version, Some(source));
    }

    /// It is certain that nothing was done.
    pub fn failed(self) {
        self.end(Outcome::Fail, None, None);
    }

    /// Nobody knows; perhaps which version it would be.
    pub fn unknown(self, version: Option<u64>) {
        self.end(Outcome::Unknown, version, None);
    }

    /// Any end, now: call it directly after.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn end(mut self, outcome: Outcome, version: Option<u64>, source: Option<Source>) {
        self.operation.res = Instant::now();
        self.operation.outcome = outcome;
        self.operation.version = version;
        self.operation.source = source;
        self.log.write(&Line::End(self.operation));
    }
}

/// Merges the files of all processes, in the order in which the operations began.
///
/// A last line without its end is left out: its writer was killed over it, and the operation is
/// unknown like any other that did not end.
///
/// # Errors
///
/// When a file cannot be read or holds anything else, or two processes had the same number.
pub fn read<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> io::Result<Vec<Operation>> {
    let mut open: BTreeMap<(u32, u64), Operation> = BTreeMap::new();
    let mut ended: BTreeMap<(u32, u64), Operation> = BTreeMap::new();
    let mut dead: BTreeMap<u32, Instant> = BTreeMap::new();
    for path in paths {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for (at, line) in whole.lines().enumerate() {
            let bad = |what: &dyn std::fmt::Display| {
                let place = format!("{}:{}: {what}", path.display(), at + 1);
                io::Error::new(io::ErrorKind::InvalidData, place)
            };
            let (all, operation) = match serde_json::from_str(line).map_err(|error| bad(&error))? {
                Line::Begin(operation) => (&mut open, operation),
                Line::End(operation) => (&mut ended, operation),
                Line::Dead { process, at } => {
                    dead.entry(process).or_insert(at);
                    continue;
                }
            };
            if all.insert((operation.process, operation.number), operation).is_some() {
                return Err(bad(&"the same operation of the same process, again"));
            }
        }
    }
    for (id, mut operation) in open {
        if let Some(at) = dead.get(&operation.process) {
            operation.res = *at;
        }
        ended.entry(id).or_insert(operation);
    }
    let mut history: Vec<_> = ended.into_values().collect();
    history.sort_by_key(|operation| operation.inv);
    Ok(history)
}
