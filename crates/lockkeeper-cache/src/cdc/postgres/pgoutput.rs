//! What the output plugin of PostgreSQL says, version 1 of its protocol.

/// A message, with everything that matters here. Rows stay as they came until it is known whether they are wanted.
#[derive(Debug, PartialEq)]
pub(super) enum Message<'a> {
    /// A transaction that is committed follows: when it was, in microseconds since 2000, and its number.
    Begin {
        time: i64,
        xid: u32,
    },
    /// It ends; the log goes on there.
    Commit {
        end: u64,
    },
    /// A table, said before its first row and after every change to it.
    Relation(Relation<'a>),
    Insert {
        relation: u32,
        new: Tuple<'a>,
    },
    Update {
        relation: u32,
        old: Option<Tuple<'a>>,
        new: Tuple<'a>,
    },
    Delete {
        relation: u32,
        old: Tuple<'a>,
    },
    Truncate {
        relations: Vec<u32>,
    },
    /// What somebody has sent into the log.
    Sent {
        prefix: &'a str,
        content: &'a [u8],
    },
    /// Origins and types.
    Other,
}

#[derive(Debug, PartialEq)]
pub(super) struct Relation<'a> {
    pub(super) id: u32,
    pub(super) schema: &'a str,
    pub(super) name: &'a str,
    pub(super) columns: Vec<Column<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Column<'a> {
    pub(super) name: &'a str,
    /// Whether rows are identified by it.
    pub(super) identity: bool,
    pub(super) kind: u32,
    pub(super) modifier: i32,
}

/// A row. As an old one it may have only what rows are identified by: the other columns say `NULL` then and mean nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tuple<'a> {
    count: u16,
    rest: &'a [u8],
}

/// What is in a column of a row.
#[derive(Debug, PartialEq)]
pub(super) enum Field<'a> {
    Null,
    /// It is as it was, and large, so it is not repeated.
    Unchanged,
    Text(&'a [u8]),
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    fn slice(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.u32()?).ok()?;
        let (slice, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(slice)
    }

    fn text(&mut self) -> Option<&'a str> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let text = std::str::from_utf8(&self.0[..end]).ok()?;
        self.0 = &self.0[end + 1..];
        Some(text)
    }

    fn field(&mut self) -> Option<Field<'a>> {
        Some(match self.u8()? {
            b'n' => Field::Null,
            b'u' => Field::Unchanged,
            b't' => Field::Text(self.slice()?),
            _ => return None,
        })
    }

    fn tuple(&mut self) -> Option<Tuple<'a>> {
        let count = self.u16()?;
        let rest = self.0;
        for _ in 0..count {
            self.field()?;
        }
        Some(Tuple { count, rest })
    }

    fn relation(&mut self) -> Option<Relation<'a>> {
        let (id, schema, name) = (self.u32()?, self.text()?, self.text()?);
        let (_identity, count) = (self.u8()?, self.u16()?);
        let columns = (0..count).map(|_| {
            Some(Column {
                identity: self.u8()? & 1 == 1,
                name: self.text()?,
                kind: self.u32()?,
                modifier: self.array().map(i32::from_be_bytes)?,
            })
        });
        let columns = columns.collect::<Option<_>>()?;
        // So it names the catalogue.
        let schema = if schema.is_empty() { "pg_catalog" } else { schema };
        Some(Relation { id, schema, name, columns })
    }
}

impl<'a> Tuple<'a> {
    /// Its columns, in the order of the relation.
    pub(super) fn fields(self) -> impl Iterator<Item = Field<'a>> {
        let mut bytes = Bytes(self.rest);
        // It was read through once, so it can be read.
        (0..self.count).map_while(move |_| bytes.field())
    }
}

/// `None` for what cannot be understood.
pub(super) fn decode(message: &[u8]) -> Option<Message<'_>> {
    let mut bytes = Bytes(message);
    let decoded = match bytes.u8()? {
        b'B' => {
            bytes.u64()?;
            Message::Begin { time: bytes.i64()?, xid: bytes.u32()? }
        }
        b'C' => {
            let (_flags, _commit) = (bytes.u8()?, bytes.u64()?);
            let (end, _time) = (bytes.u64()?, bytes.i64()?);
            Message::Commit { end }
        }
        b'R' => Message::Relation(bytes.relation()?),
        b'I' => {
            let (relation, b'N') = (bytes.u32()?, bytes.u8()?) else { return None };
            Message::Insert { relation, new: bytes.tuple()? }
        }
        b'U' => {
            let (relation, kind) = (bytes.u32()?, bytes.u8()?);
            let old = match kind {
                b'K' | b'O' => {
                    let old = bytes.tuple()?;
                    let b'N' = bytes.u8()? else { return None };
                    Some(old)
                }
                b'N' => None,
                _ => return None,
            };
            Message::Update { relation, old, new: bytes.tuple()? }
        }
        b'D' => {
            let (relation, kind) = (bytes.u32()?, bytes.u8()?);
            let (b'K' | b'O') = kind else { return None };
            Message::Delete { relation, old: bytes.tuple()? }
        }
        b'T' => {
            let (count, _options) = (bytes.u32()?, bytes.u8()?);
            let relations = (0..count).map(|_| bytes.u32()).collect::<Option<_>>()?;
            Message::Truncate { relations }
        }
        b'M' => {
            let (_flags, _lsn) = (bytes.u8()?, bytes.u64()?);
            Message::Sent { prefix: bytes.text()?, content: bytes.slice()? }
        }
        b'O' | b'Y' => return Some(Message::Other),
        _ => return None,
    };
    bytes.0.is_empty().then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPDATE: &[u8] = b"U\0\0\0\x07K\0\x02t\0\0\0\x011nN\0\x03t\0\0\0\x012un";

    #[test]
    fn an_update_has_what_was_and_what_is() {
        let Some(Message::Update { relation: 7, old: Some(old), new }) = decode(UPDATE) else {
            panic!("an update");
        };
        assert!(old.fields().eq([Field::Text(b"1"), Field::Null]));
        assert!(new.fields().eq([Field::Text(b"2"), Field::Unchanged, Field::Null]));
    }

    #[test]
    fn a_relation_has_columns_by_name() {
        let bytes = b"R\0\0\0\x07public\0items\0d\0\x01\x01id\0\0\0\0\x17\xff\xff\xff\xff";
        let column = Column { name: "id", identity: true, kind: 23, modifier: -1 };
        let relation = Relation { id: 7, schema: "public", name: "items", columns: vec![column] };
        assert_eq!(decode(bytes), Some(Message::Relation(relation)));
    }

    #[test]
    fn what_is_cut_off_or_goes_on_is_not_understood() {
        for end in 0..UPDATE.len() {
            assert_eq!(decode(&UPDATE[..end]), None, "{end}");
        }
        assert_eq!(decode(&[UPDATE, b"x"].concat()), None);
        assert_eq!(decode(b"S\0\0\0\x07\x01"), None, "streams are of a later version");
        assert_eq!(decode(b"M\x01\0\0\0\0\0\0\0\x01p\0\xff\xff\xff\xff"), None);
    }
}
