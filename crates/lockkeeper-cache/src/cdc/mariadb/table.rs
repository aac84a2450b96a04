//! What a log says about a table before it says anything about its rows.

use std::collections::HashMap;
use std::sync::Arc;

use super::bytes::{Bytes, Malformed, bit, size};
use super::cell::Kind;
use super::charset::{Charset, Charsets};
use crate::cdc::{TableName, Wanted};

/// A table that is wanted, and its columns that are.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) name: Arc<TableName>,
    pub(super) columns: Arc<[Arc<str>]>,
}

/// The tables that are wanted.
#[derive(Debug)]
pub(super) struct Targets {
    by_name: HashMap<(String, String), Arc<Target>>,
    /// Names are the same in capital letters.
    fold: bool,
}

impl Targets {
    pub(super) fn new(wanted: &Wanted, fold: bool) -> Self {
        let mut targets = Self { by_name: HashMap::new(), fold };
        for (name, columns) in wanted {
            let key = targets.key(&name.schema, &name.name);
            let columns = columns.iter().map(|column| Arc::from(column.as_str())).collect();
            let target = Target { name: Arc::new(name.clone()), columns };
            targets.by_name.insert(key, Arc::new(target));
        }
        targets
    }

    fn key(&self, schema: &str, name: &str) -> (String, String) {
        match self.fold {
            true => (schema.to_lowercase(), name.to_lowercase()),
            false => (schema.to_owned(), name.to_owned()),
        }
    }

    pub(super) fn get(&self, schema: &str, name: &str) -> Option<&Arc<Target>> {
        self.by_name.get(&self.key(schema, name))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Target>> {
        self.by_name.values()
    }
}

/// Where the cells of a row are, and which of them are wanted.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) kinds: Vec<Kind>,
    /// For each column the place among those that are wanted.
    pub(super) places: Vec<Option<usize>>,
}

/// A table as it was when a statement changed it.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) target: Arc<Target>,
    /// `None` if rows cannot be read.
    pub(super) layout: Option<Layout>,
}

/// The number of a table and what is known of it; `None` if it is not wanted.
pub(super) fn id(data: &[u8]) -> Result<u64, Malformed> {
    Bytes(data).little(6)
}

pub(super) fn parse(
    data: &[u8],
    targets: &Targets,
    charsets: &Charsets,
) -> Result<Option<Table>, Malformed> {
    let mut bytes = Bytes(data);
    bytes.take(8)?;
    let mut name = || {
        let length = bytes.count(1)?;
        let name = bytes.take(length)?;
        bytes.take(1)?;
        Ok(String::from_utf8_lossy(name))
    };
    let (schema, name) = (name()?, name()?);
    let Some(target) = targets.get(&schema, &name) else { return Ok(None) };
    let count = size(bytes.packed()?)?;
    let kinds = bytes.take(count)?;
    let meta = bytes.counted()?;
    bytes.take(count.div_ceil(8))?;
    let details = Details::parse(bytes)?;
    let layout = details.layout(kinds, Bytes(meta), charsets, target)?;
    Ok(Some(Table { target: Arc::clone(target), layout }))
}

/// What is said about columns beyond their types.
#[derive(Default)]
struct Details<'a> {
    signs: &'a [u8],
    texts: Collations,
    choices: Collations,
    names: Option<Vec<&'a [u8]>>,
    sets: Vec<Vec<&'a [u8]>>,
    enums: Vec<Vec<&'a [u8]>>,
}

/// Of the columns that have one, in order.
#[derive(Default)]
struct Collations {
    default: u64,
    others: HashMap<usize, u64>,
}

impl Collations {
    fn with_default(mut bytes: Bytes<'_>) -> Result<Self, Malformed> {
        let mut all = Self { default: bytes.packed()?, others: HashMap::new() };
        while !bytes.0.is_empty() {
            all.others.insert(size(bytes.packed()?)?, bytes.packed()?);
        }
        Ok(all)
    }

    fn each(mut bytes: Bytes<'_>) -> Result<Self, Malformed> {
        let mut all = Self::default();
        while !bytes.0.is_empty() {
            all.others.insert(all.others.len(), bytes.packed()?);
        }
        Ok(all)
    }

    fn get(&self, at: usize) -> u64 {
        self.others.get(&at).copied().unwrap_or(self.default)
    }
}

fn choices(mut bytes: Bytes<'_>) -> Result<Vec<Vec<&[u8]>>, Malformed> {
    let mut all = Vec::new();
    while !bytes.0.is_empty() {
        let count = bytes.packed()?;
        all.push((0..count).map(|_| bytes.counted()).collect::<Result<_, _>>()?);
    }
    Ok(all)
}

impl<'a> Details<'a> {
    fn parse(mut bytes: Bytes<'a>) -> Result<Self, Malformed> {
        let mut all = Self::default();
        while !bytes.0.is_empty() {
            let kind = bytes.byte()?;
            let mut value = Bytes(bytes.counted()?);
            match kind {
                1 => all.signs = value.0,
                2 => all.texts = Collations::with_default(value)?,
                3 => all.texts = Collations::each(value)?,
                4 => {
                    let names = all.names.insert(Vec::new());
                    while !value.0.is_empty() {
                        names.push(value.counted()?);
                    }
                }
                5 => all.sets = choices(value)?,
                6 => all.enums = choices(value)?,
                10 => all.choices = Collations::with_default(value)?,
                11 => all.choices = Collations::each(value)?,
                _ => {}
            }
        }
        Ok(all)
    }

    fn layout(
        &self,
        codes: &[u8],
        mut meta: Bytes<'_>,
        charsets: &Charsets,
        target: &Target,
    ) -> Result<Option<Layout>, Malformed> {
        let Some(names) = &self.names else { return Ok(None) };
        if names.len() != codes.len() {
            return Ok(None);
        }
        let mut columns = Columns::new(self, charsets);
        let mut kinds = Vec::with_capacity(codes.len());
        for code in codes {
            let Some(kind) = columns.kind(*code, &mut meta)? else { return Ok(None) };
            kinds.push(kind);
        }
        let place = |name: &&[u8]| {
            let is = |column: &Arc<str>| column.as_bytes().eq_ignore_ascii_case(name);
            target.columns.iter().position(is)
        };
        Ok(Some(Layout { kinds, places: names.iter().map(place).collect() }))
    }
}

/// A set has no more.
const MEMBERS: usize = 64;

/// How many digits of a second there are.
fn fraction(meta: &mut Bytes<'_>) -> Result<u8, Malformed> {
    match meta.byte()? {
        digits @ 0..=6 => Ok(digits),
        _ => Err(Malformed("a time")),
    }
}

/// How many of each sort there were so far: what is said of columns counts only those that it is about.
struct Columns<'a> {
    details: &'a Details<'a>,
    charsets: &'a Charsets,
    numbers: usize,
    texts: usize,
    choices: usize,
    sets: usize,
    enums: usize,
}

impl<'a> Columns<'a> {
    fn new(details: &'a Details<'a>, charsets: &'a Charsets) -> Self {
        Self { details, charsets, numbers: 0, texts: 0, choices: 0, sets: 0, enums: 0 }
    }

    fn unsigned(&mut self) -> bool {
        let at = self.numbers;
        self.numbers += 1;
        // The greatest bit is the first here.
        bit(self.details.signs, at / 8 * 8 + 7 - at % 8)
    }

    fn charset(&mut self) -> Charset {
        let at = self.texts;
        self.texts += 1;
        self.charsets.get(self.details.texts.get(at))
    }

    fn names(&mut self, all: &[Vec<&[u8]>], at: usize) -> Option<Arc<[String]>> {
        let charset = self.charsets.get(self.details.choices.get(self.choices));
        self.choices += 1;
        all.get(at)?.iter().map(|name| charset.decode(name)).collect()
    }

    /// `None` for a type whose length cannot be told.
    fn kind(&mut self, code: u8, meta: &mut Bytes<'_>) -> Result<Option<Kind>, Malformed> {
        let int = |bytes, unsigned| Kind::Int { bytes, unsigned };
        Ok(Some(match code {
            1 => int(1, self.unsigned()),
            2 => int(2, self.unsigned()),
            9 => int(3, self.unsigned()),
            3 => int(4, self.unsigned()),
            8 => int(8, self.unsigned()),
            4 | 5 => {
                self.unsigned();
                Kind::Fixed { bytes: meta.count(1)? }
            }
            13 => {
                self.unsigned();
                Kind::Year
            }
            246 => {
                self.unsigned();
                let (precision, scale) = (meta.count(1)?, meta.count(1)?);
                if scale > precision {
                    return Err(Malformed("a decimal"));
                }
                Kind::Decimal { precision, scale }
            }
            16 => {
                let (bits, bytes) = (meta.byte()?, meta.count(1)?);
                Kind::Bit { bytes: bytes + usize::from(bits > 0) }
            }
            10 | 14 => Kind::Date,
            17 => Kind::Timestamp { digits: fraction(meta)? },
            18 => Kind::DateTime { digits: fraction(meta)? },
            19 => Kind::Time { digits: fraction(meta)? },
            15 | 253 => {
                let length = if meta.little(2)? > 255 { 2 } else { 1 };
                Kind::Text { length, charset: self.charset() }
            }
            141 => {
                self.charset();
                Kind::Opaque { length: if meta.little(2)? > 255 { 2 } else { 1 } }
            }
            249..=252 => Kind::Text { length: meta.count(1)?, charset: self.charset() },
            140 => {
                self.charset();
                Kind::Opaque { length: meta.count(1)? }
            }
            255 => Kind::Opaque { length: meta.count(1)? },
            254 => return self.string(meta.byte()?, meta.byte()?).map(Some),
            // Those of before 5.6 do not say how long they are; others are not of MariaDB.
            _ => return Ok(None),
        }))
    }

    /// The type is in the upper bits of the length, which has two bits in there.
    fn string(&mut self, first: u8, second: u8) -> Result<Kind, Malformed> {
        let length = usize::from(second) | usize::from((first & 0x30) ^ 0x30) << 4;
        let details = self.details;
        match first | 0x30 {
            247 => {
                self.enums += 1;
                let names = self.names(&details.enums, self.enums - 1);
                Ok(Kind::Enum { bytes: usize::from(second), names })
            }
            248 => {
                self.sets += 1;
                if details.sets.get(self.sets - 1).is_some_and(|names| names.len() > MEMBERS) {
                    return Err(Malformed("a set"));
                }
                let names = self.names(&details.sets, self.sets - 1);
                Ok(Kind::Set { bytes: usize::from(second), names })
            }
            254 => {
                let length = if length > 255 { 2 } else { 1 };
                Ok(match self.charset() {
                    // A UUID or an address of the network looks the same, and has another text.
                    Charset::Binary => Kind::Opaque { length },
                    charset => Kind::Text { length, charset },
                })
            }
            _ => Err(Malformed("a text")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::Text;
    use super::*;

    #[test]
    fn columns_that_no_server_has_are_malformed() {
        let charsets = Charsets(HashMap::from([(0, Charset::Utf8)]));
        let kind = |details: &Details<'_>, code, meta: &[u8]| {
            Columns::new(details, &charsets).kind(code, &mut Bytes(meta))
        };
        let none = Details::default();
        for code in [17, 18, 19] {
            assert!(matches!(kind(&none, code, &[6]), Ok(Some(_))), "{code}");
            for digits in [7, 255] {
                assert!(kind(&none, code, &[digits]).is_err(), "{code} {digits}");
            }
        }
        for (count, good) in [(64, true), (65, false)] {
            let sets = vec![vec![b"a".as_slice(); count]];
            let set = kind(&Details { sets, ..Details::default() }, 254, &[248, 8]);
            assert_eq!(set.is_ok(), good, "{set:?}");
            if let Ok(Some(set)) = set {
                // All of them.
                assert!(matches!(set.text(&[0xff; 8]), Text::Is(text) if text.len() == 127));
            }
        }
    }
}
