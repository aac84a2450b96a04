//! What comes of events, one after the other. No I/O.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::bytes::Malformed;
use super::charset::Charsets;
use super::event::{Event, Gtid, Head, Query, Verb, Xa, Xid};
use super::gate::Checkpoints;
use super::gtid::{File, Place, Saved, extend};
use super::held::Held;
use super::rows::Rows;
use super::sql::{self, Effect};
use super::table::{self, Table, Targets};
use crate::cdc::{Change, LogError};

/// What was said of a table last, so that it is not read again for every statement.
#[derive(Debug)]
struct Known {
    data: Vec<u8>,
    table: Option<Arc<Table>>,
}

/// A group of events that has begun.
#[derive(Debug)]
struct Group {
    gtid: Gtid,
    server: u32,
}

/// How far the log was read, and what there is to know about what comes next.
#[derive(Debug)]
pub(super) struct Replay {
    targets: Targets,
    charsets: Charsets,
    tables: HashMap<u64, Known>,
    /// Tables that a statement was to change and of which not all is told yet.
    silent: BTreeSet<u64>,
    /// Those of them that it has opened more than once. What one of these does is not in the log if it is a cascade.
    twice: BTreeSet<u64>,
    group: Option<Group>,
    held: Held,
    /// The server whose log it is.
    server: u32,
    born: u32,
    /// The end of the last event.
    at: Place,
    /// After the last transaction that has ended.
    pub(super) saved: Saved,
    pub(super) checkpoints: Checkpoints,
    /// When the last transaction was committed.
    pub(super) time: u32,
    /// What changes of prepared transactions must be gone from the list of those before they can be read.
    pub(super) completed: Vec<Xid>,
    /// The end of the last transaction of the file before this one.
    previous: Option<u64>,
}

/// The event that says that there is nothing to say.
const HEARTBEAT: u8 = 27;
/// More tables than this are forgotten between transactions.
const TABLES: usize = 4_096;

impl Replay {
    pub(super) fn new(targets: Targets, charsets: Charsets, saved: Saved) -> Self {
        Self {
            targets,
            charsets,
            tables: HashMap::new(),
            silent: BTreeSet::new(),
            twice: BTreeSet::new(),
            group: None,
            held: Held::default(),
            server: saved.server,
            born: 0,
            at: Place::default(),
            checkpoints: Checkpoints::default(),
            time: 0,
            completed: Vec::new(),
            previous: None,
            saved,
        }
    }

    /// When the file that is read was begun.
    pub(super) fn born(&self) -> u32 {
        self.born
    }

    /// The end of what was read.
    pub(super) fn at(&self) -> &Place {
        &self.at
    }

    /// Whether the server may still be looking for where the reader was left. It reads the file from its beginning, and says nothing.
    pub(super) fn is_before_saved(&self) -> bool {
        self.at.offset < self.behind_saved()
    }

    /// The end of what was read, or of what was saved if that is later in the same file.
    fn behind_saved(&self) -> u64 {
        let Place { file, offset } = &self.saved.place;
        if *file == self.at.file { self.at.offset.max(*offset) } else { self.at.offset }
    }

    /// The end of the last transaction in the file before this one, if this one is being read.
    pub(super) fn previous(&self, file: &File) -> Option<u64> {
        self.previous.filter(|_| *file == self.at.file)
    }

    /// Says where the stream begins, which its first event does not.
    pub(super) fn begin(&mut self, file: File) {
        if file != self.saved.place.file {
            self.previous = Some(self.saved.place.offset);
        }
        self.at = Place { file, offset: 4 };
    }

    /// What has changed is told at the end. Whether a transaction has ended.
    pub(super) fn apply(
        &mut self,
        head: &Head,
        data: &[u8],
        tell: &mut Vec<Change>,
    ) -> Result<bool, LogError> {
        let event = Event::parse(head, data).map_err(failed)?;
        match event {
            Event::Rotate { .. } => {}
            // Not from the file, and says how far it was looked through.
            _ if head.kind == HEARTBEAT => {
                self.at.offset = self.behind_saved().max(head.end.into());
            }
            _ if head.is_artificial() => {}
            // What is at the beginning of the file comes as well, and no transaction before the one that was saved.
            Event::Gtid(_) => self.at.offset = extend(self.behind_saved(), head.end),
            _ => self.at.offset = extend(self.at.offset, head.end),
        }
        match event {
            Event::Nothing => {}
            Event::Format => {
                self.born = head.time;
                // The server has died in the middle.
                self.group = None;
                self.silent.clear();
                self.twice.clear();
            }
            Event::Rotate { offset, file } => self.rotate(head, offset, file),
            Event::Checkpoint { file } => {
                let Place { file: inside, offset } = &self.at;
                self.checkpoints.note(inside, &File::from_bytes(file), *offset);
            }
            Event::Gtid(gtid) => self.group = Some(Group { gtid, server: head.server }),
            Event::Table(data) => {
                let read = self.table(data);
                self.unless_malformed(read, tell);
            }
            Event::Rows { verb, second, compressed, data } => {
                let read = self.rows(verb, second, compressed, data, tell);
                self.unless_malformed(read, tell);
            }
            Event::Query(query) => return Ok(self.query(&query, head, tell)),
            Event::Commit => return Ok(self.end(head, tell)),
            Event::Prepare => return Ok(self.prepare(head)),
            Event::Load => self.tell(
                Change::Everything { why: "a file was loaded by a statement in the log" },
                tell,
            ),
            Event::Unknown => {
                self.tell(Change::Everything { why: "an event in the log is not known" }, tell);
            }
            Event::Incident => {
                return Err(LogError::Lost("the server has not written all of its log".into()));
            }
        }
        Ok(false)
    }

    /// Trying again would not help.
    fn unless_malformed(&mut self, read: Result<(), Malformed>, tell: &mut Vec<Change>) {
        if read.is_err() {
            self.tell(Change::Everything { why: "rows in the log make no sense" }, tell);
        }
    }

    fn rotate(&mut self, head: &Head, offset: u64, file: &[u8]) {
        // The one at the end of a file comes again, made up, at the beginning of the next.
        if !head.is_artificial() {
            return;
        }
        let file = File::from_bytes(file);
        if file != self.at.file {
            self.previous = Some(self.saved.place.offset);
            self.at = Place { file, offset };
        }
        self.tables.clear();
    }

    /// Into the transaction, if it is one that is only prepared.
    fn tell(&mut self, change: Change, tell: &mut Vec<Change>) {
        match &self.group {
            Some(Group { gtid: Gtid { xa: Some(Xa::Prepared(xid)), .. }, .. }) => {
                self.held.hold(xid, change);
            }
            _ => tell.push(change),
        }
    }

    fn table(&mut self, data: &[u8]) -> Result<(), Malformed> {
        let id = table::id(data)?;
        let known = self.tables.get(&id).is_some_and(|known| known.data == data);
        if !known {
            if self.tables.len() >= TABLES && self.silent.is_empty() {
                self.tables.clear();
            }
            let table = table::parse(data, &self.targets, &self.charsets)?.map(Arc::new);
            self.tables.insert(id, Known { data: data.to_vec(), table });
        }
        if !self.silent.insert(id) {
            self.twice.insert(id);
        }
        Ok(())
    }

    fn rows(
        &mut self,
        verb: Verb,
        second: bool,
        compressed: bool,
        data: &[u8],
        tell: &mut Vec<Change>,
    ) -> Result<(), Malformed> {
        let rows = Rows::parse(verb, second, compressed, data)?;
        let last = rows.last;
        if !self.twice.contains(&rows.table) {
            self.silent.remove(&rows.table);
        }
        let table = match self.tables.get(&rows.table) {
            Some(known) => known.table.clone(),
            // An empty one that only ends a statement.
            None if rows.table == 0x00ff_ffff => None,
            None => return Err(Malformed("a table")),
        };
        if let Some(table) = table {
            let from = tell.len();
            rows.changes(&table, tell)?;
            if self.is_prepared() {
                for change in tell.split_off(from) {
                    self.tell(change, tell);
                }
            }
        }
        if last {
            self.silence(tell);
        }
        Ok(())
    }

    fn is_prepared(&self) -> bool {
        matches!(&self.group, Some(Group { gtid: Gtid { xa: Some(Xa::Prepared(_)), .. }, .. }))
    }

    /// A statement is at its end. What cascades do is not in the log, only that they may do it.
    fn silence(&mut self, tell: &mut Vec<Change>) {
        self.twice.clear();
        for id in std::mem::take(&mut self.silent) {
            let Some(Known { table: Some(table), .. }) = self.tables.get(&id) else { continue };
            let table = Arc::clone(&table.target.name);
            self.tell(Change::Table { table, why: "a cascade may have changed it" }, tell);
        }
    }

    fn query(&mut self, query: &Query<'_>, head: &Head, tell: &mut Vec<Change>) -> bool {
        let effect = sql::effect(&query.sql, query.plain_backslashes);
        match &effect {
            Effect::Nothing | Effect::End => {}
            Effect::XaCommit | Effect::XaRollback => {
                let xid = match self.group.as_ref().map(|group| &group.gtid.xa) {
                    Some(Some(Xa::Completed(xid))) => Some(xid.clone()),
                    _ => None,
                };
                self.complete(xid, effect == Effect::XaCommit, tell);
                return self.end(head, tell);
            }
            Effect::Everything(why) => self.tell(Change::Everything { why }, tell),
            Effect::Schema(schema) => self.schema(schema, tell),
            Effect::Mentioned(names) => {
                let mut told = BTreeSet::new();
                for mention in names {
                    let schema = mention.schema.as_deref().unwrap_or(&query.schema);
                    let Some(target) = self.targets.get(schema, &mention.name) else { continue };
                    let table = Arc::clone(&target.name);
                    if told.insert(Arc::clone(&table)) {
                        self.tell(Change::Table { table, why: "it was changed as a whole" }, tell);
                    }
                }
            }
        }
        let standalone = self.group.as_ref().is_some_and(|group| group.gtid.standalone);
        if standalone || effect == Effect::End { self.end(head, tell) } else { false }
    }

    fn schema(&mut self, schema: &str, tell: &mut Vec<Change>) {
        let all: Vec<_> = self.targets.iter().map(|target| Arc::clone(&target.name)).collect();
        for table in all.into_iter().filter(|name| name.schema.eq_ignore_ascii_case(schema)) {
            self.tell(Change::Table { table, why: "its database was dropped" }, tell);
        }
    }

    fn complete(&mut self, xid: Option<Xid>, commit: bool, tell: &mut Vec<Change>) {
        let held = xid.as_ref().and_then(|xid| self.held.take(xid));
        if !commit {
            return;
        }
        match held {
            Some(changes) => tell.extend(changes),
            None => tell.push(Change::Everything {
                why: "a transaction was committed that was prepared before the log was opened",
            }),
        }
        self.completed.extend(xid);
    }

    fn prepare(&mut self, head: &Head) -> bool {
        if let Some(Group { gtid: Gtid { xa: Some(Xa::Prepared(xid)), .. }, .. }) = &self.group {
            // Also if it has changed nothing that is wanted.
            self.held.prepared(xid);
        }
        self.end(head, &mut Vec::new())
    }

    fn end(&mut self, head: &Head, tell: &mut Vec<Change>) -> bool {
        self.silence(tell);
        let Some(Group { gtid, server }) = self.group.take() else { return false };
        self.saved.gtids.set(gtid.domain, server, gtid.sequence);
        self.saved.place = self.at.clone();
        self.saved.server = self.server;
        self.saved.born = self.born;
        self.time = head.time;
        true
    }
}

fn failed(error: Malformed) -> LogError {
    LogError::Failed(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdc::Wanted;

    const FORMAT: u8 = 15;
    const GTID: u8 = 162;

    /// Left there, and begun again in the same file.
    fn resumed(offset: u64) -> Replay {
        let file = File::new("bin.000001");
        let saved = Saved { place: Place { file: file.clone(), offset }, ..Saved::default() };
        let targets = Targets::new(&Wanted::new(), false);
        let mut replay = Replay::new(targets, Charsets::default(), saved);
        replay.begin(file);
        apply(&mut replay, FORMAT, 256);
        replay
    }

    /// An event that ends there.
    fn apply(replay: &mut Replay, kind: u8, end: u64) {
        let end = u32::try_from(end & 0xffff_ffff).unwrap();
        let head = Head { kind, end, ..Head::default() };
        replay.apply(&head, &[0; 20], &mut Vec::new()).unwrap();
    }

    #[test]
    fn who_goes_on_behind_four_gibibytes_knows_where_it_is() {
        const GIB: u64 = 1 << 30;
        for (left, next) in [
            (1_000, 1_042),
            (5 * GIB, 5 * GIB + 42),
            // Over the edge with the first event.
            (8 * GIB - 10, 8 * GIB + 300),
            (4 * GIB - 10, 4 * GIB + 300),
        ] {
            let mut replay = resumed(left);
            assert_eq!(replay.at().offset, 256);
            apply(&mut replay, GTID, next);
            assert_eq!(replay.at().offset, next);
            apply(&mut replay, FORMAT, next + 10);
            assert_eq!(replay.at().offset, next + 10);
        }
    }

    #[test]
    fn the_place_is_found_with_the_first_transaction_or_with_a_heartbeat() {
        for kind in [GTID, HEARTBEAT] {
            for left in [1_000, 5 << 30] {
                let mut replay = resumed(left);
                assert!(replay.is_before_saved());
                apply(&mut replay, kind, left + 42);
                assert!(!replay.is_before_saved());
            }
        }
        let mut replay = resumed(1_000);
        replay.begin(File::new("bin.000002"));
        assert!(!replay.is_before_saved(), "there is nothing to look through");
    }
}
