//! What kinds of events there are, and what is in those that are not rows.

use std::borrow::Cow;

use super::bytes::{Bytes, Malformed, decompress};

/// What is in front of each event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Head {
    pub(super) kind: u8,
    /// Seconds since 1970 by the clock of the server.
    pub(super) time: u32,
    pub(super) server: u32,
    /// The last 32 bits of where it ends in its file; 0 if it is not from a file.
    pub(super) end: u32,
    pub(super) flags: u16,
}

impl Head {
    /// Not from a file: made for who reads.
    pub(super) fn is_artificial(&self) -> bool {
        self.end == 0 || self.flags & 0x20 != 0
    }

    /// Who does not know it may go on.
    fn may_be_ignored(&self) -> bool {
        self.flags & 0x80 != 0
    }
}

/// What a rows event does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Write,
    Update,
    Delete,
}

/// A transaction that is prepared and committed by hand, as its owner named it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Xid {
    pub(super) format: u32,
    pub(super) global: Vec<u8>,
    pub(super) branch: Vec<u8>,
}

/// How a group of events begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gtid {
    pub(super) domain: u32,
    pub(super) sequence: u64,
    /// One statement, and nothing that ends it.
    pub(super) standalone: bool,
    pub(super) xa: Option<Xa>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Xa {
    Prepared(Xid),
    Completed(Xid),
}

#[derive(Debug)]
pub(super) struct Query<'a> {
    pub(super) schema: Cow<'a, str>,
    pub(super) sql: Cow<'a, [u8]>,
    /// Backslashes in texts are only backslashes.
    pub(super) plain_backslashes: bool,
}

#[derive(Debug)]
pub(super) enum Event<'a> {
    /// The first of a file.
    Format,
    /// What follows is from this file, from there on.
    Rotate {
        offset: u64,
        file: &'a [u8],
    },
    Gtid(Gtid),
    Query(Query<'a>),
    /// The end of a transaction.
    Commit,
    /// The end of the first half of one.
    Prepare,
    Table(&'a [u8]),
    Rows {
        verb: Verb,
        second: bool,
        compressed: bool,
        data: &'a [u8],
    },
    /// Everything in files before this one is committed for good.
    Checkpoint {
        file: &'a [u8],
    },
    /// A statement that loads a file.
    Load,
    /// The server knows that something is missing.
    Incident,
    /// Nothing that changes anything.
    Nothing,
    /// Nobody knows what it means.
    Unknown,
}

impl<'a> Event<'a> {
    pub(super) fn parse(head: &Head, data: &'a [u8]) -> Result<Self, Malformed> {
        let rows = |verb, second, compressed| Self::Rows { verb, second, compressed, data };
        Ok(match head.kind {
            2 => Self::Query(query(data, false)?),
            165 => Self::Query(query(data, true)?),
            4 => {
                let mut bytes = Bytes(data);
                Self::Rotate { offset: bytes.little(8)?, file: bytes.0 }
            }
            15 => Self::Format,
            16 => Self::Commit,
            18 => Self::Load,
            19 => Self::Table(data),
            23 => rows(Verb::Write, false, false),
            24 => rows(Verb::Update, false, false),
            25 => rows(Verb::Delete, false, false),
            30 => rows(Verb::Write, true, false),
            31 => rows(Verb::Update, true, false),
            32 => rows(Verb::Delete, true, false),
            166 => rows(Verb::Write, false, true),
            167 => rows(Verb::Update, false, true),
            168 => rows(Verb::Delete, false, true),
            169 => rows(Verb::Write, true, true),
            170 => rows(Verb::Update, true, true),
            171 => rows(Verb::Delete, true, true),
            26 => Self::Incident,
            38 => Self::Prepare,
            161 => {
                let mut bytes = Bytes(data);
                let length = bytes.count(4)?;
                Self::Checkpoint { file: bytes.take(length)? }
            }
            162 => Self::Gtid(gtid(data)?),
            // Stop; variables and random numbers of a statement; files that a statement is going to load; heartbeats; the text of
            // the statement that changed rows; the state at the beginning of a file.
            3 | 5 | 9 | 11 | 13 | 14 | 17 | 27 | 28 | 29 | 160 | 163 => Self::Nothing,
            _ if head.may_be_ignored() => Self::Nothing,
            _ => Self::Unknown,
        })
    }
}

fn gtid(data: &[u8]) -> Result<Gtid, Malformed> {
    let mut bytes = Bytes(data);
    let sequence = bytes.little(8)?;
    let domain = u32::try_from(bytes.little(4)?).map_err(|_| Malformed("a domain"))?;
    let flags = bytes.byte()?;
    if flags & 0x02 != 0 {
        bytes.take(8)?; // The group that it was committed with.
    }
    let xa = match flags & 0xc0 {
        0 => None,
        which => {
            let format = u32::try_from(bytes.little(4)?).map_err(|_| Malformed("an xid"))?;
            let (global, branch) = (bytes.count(1)?, bytes.count(1)?);
            let global = bytes.take(global)?.to_vec();
            let xid = Xid { format, global, branch: bytes.take(branch)?.to_vec() };
            Some(if which == 0x40 { Xa::Prepared(xid) } else { Xa::Completed(xid) })
        }
    };
    Ok(Gtid { domain, sequence, standalone: flags & 0x01 != 0, xa })
}

fn query(data: &[u8], compressed: bool) -> Result<Query<'_>, Malformed> {
    let mut bytes = Bytes(data);
    bytes.take(8)?; // The thread, and how long it took.
    let schema = bytes.count(1)?;
    bytes.take(2)?; // What became of it.
    let status = bytes.count(2)?;
    let status = bytes.take(status)?;
    let schema = String::from_utf8_lossy(bytes.take(schema)?);
    bytes.take(1)?;
    let sql = if compressed { decompress(bytes.0)? } else { Cow::Borrowed(bytes.0) };
    Ok(Query { schema, sql, plain_backslashes: sql_mode(status)? & 1 << 20 != 0 })
}

/// It is the first or second of what is said about the session.
fn sql_mode(status: &[u8]) -> Result<u64, Malformed> {
    let mut bytes = Bytes(status);
    while !bytes.0.is_empty() {
        match bytes.byte()? {
            0 => bytes.take(4)?,
            1 => return bytes.little(8),
            _ => break,
        };
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_told_unless_it_may_be_ignored() {
        let parse = |kind, flags| {
            let head = Head { kind, flags, ..Head::default() };
            Event::parse(&head, &[]).unwrap()
        };
        for kind in [0, 20, 33, 39, 40, 164, 172, 255] {
            assert!(matches!(parse(kind, 0), Event::Unknown), "{kind}");
            assert!(matches!(parse(kind, 0x80), Event::Nothing), "{kind}");
        }
    }

    #[test]
    fn a_gtid_names_its_xid_behind_the_group() {
        let mut data = vec![7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0x42];
        data.extend([9; 8]);
        data.extend([1, 0, 0, 0, 2, 1, b'a', b'b', b'c']);
        let xid = Xid { format: 1, global: b"ab".to_vec(), branch: b"c".to_vec() };
        let xa = Some(Xa::Prepared(xid));
        assert_eq!(gtid(&data), Ok(Gtid { domain: 3, sequence: 7, standalone: false, xa }));
        assert!(gtid(&data[..data.len() - 1]).is_err());
    }
}
