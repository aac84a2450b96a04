//! What a log says about rows.

use std::borrow::Cow;
use std::sync::Arc;

use super::bytes::{Bytes, Malformed, bit, decompress, size};
use super::cell::Text;
use super::event::Verb;
use super::table::{Layout, Table};
use crate::cdc::{Cell, Change, Row};

/// Rows of one table.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    pub(super) table: u64,
    /// Nothing more comes from the same statement.
    pub(super) last: bool,
    verb: Verb,
    compressed: bool,
    rest: Bytes<'a>,
}

impl<'a> Rows<'a> {
    pub(super) fn parse(
        verb: Verb,
        second: bool,
        compressed: bool,
        data: &'a [u8],
    ) -> Result<Self, Malformed> {
        let mut rest = Bytes(data);
        let (table, flags) = (rest.little(6)?, rest.little(2)?);
        if second {
            let more = rest.count(2)?;
            rest.take(more.saturating_sub(2))?;
        }
        Ok(Self { table, last: flags & 1 == 1, verb, compressed, rest })
    }

    /// Only columns that are wanted become text.
    pub(super) fn changes(
        mut self,
        table: &Table,
        tell: &mut Vec<Change>,
    ) -> Result<(), Malformed> {
        let any = |why| Change::Table { table: Arc::clone(&table.target.name), why };
        let Some(layout) = &table.layout else {
            tell.push(any("the log does not say how its columns are called"));
            return Ok(());
        };
        let width = size(self.rest.packed()?)?;
        if width != layout.kinds.len() {
            return Err(Malformed("the number of columns"));
        }
        let first = self.rest.take(width.div_ceil(8))?;
        let second = match self.verb {
            Verb::Update => self.rest.take(width.div_ceil(8))?,
            _ => first,
        };
        let data = match self.compressed {
            true => decompress(self.rest.0)?,
            false => Cow::Borrowed(self.rest.0),
        };
        let (mut data, mut bad) = (Bytes(&data), false);
        while !data.0.is_empty() {
            let mut read = |present| image(&mut data, present, layout, table, &mut bad);
            let (old, new) = match self.verb {
                Verb::Write => (None, Some(read(first)?)),
                Verb::Delete => (Some(read(first)?), None),
                Verb::Update => {
                    let (old, new) = (read(first)?, read(second)?);
                    // Whatever keys are made of is as it was.
                    let same = old == new && !missing(&new, table);
                    ((!same).then_some(old), Some(new))
                }
            };
            tell.push(Change::Row { table: Arc::clone(&table.target.name), old, new });
        }
        if bad {
            tell.push(any("a value has no text"));
        }
        Ok(())
    }
}

fn missing(row: &Row, table: &Table) -> bool {
    table.target.columns.iter().any(|column| *row.get(column) == Cell::Missing)
}

fn image(
    data: &mut Bytes<'_>,
    present: &[u8],
    layout: &Layout,
    table: &Table,
    bad: &mut bool,
) -> Result<Row, Malformed> {
    let count: u32 = present.iter().map(|byte| byte.count_ones()).sum();
    let nulls = data.take(size(u64::from(count))?.div_ceil(8))?;
    let mut cells = vec![Cell::Missing; table.target.columns.len()];
    let mut at = 0;
    for (column, (kind, place)) in layout.kinds.iter().zip(&layout.places).enumerate() {
        if !bit(present, column) {
            continue;
        }
        let null = bit(nulls, at);
        at += 1;
        let cell = if null { None } else { Some(kind.read(data)?) };
        let Some(place) = *place else { continue };
        cells[place] = match cell.map(|cell| kind.text(cell)) {
            None => Cell::Null,
            Some(Text::Is(text)) => Cell::Text(text),
            Some(Text::None) => Cell::Missing,
            Some(Text::Bad) => {
                *bad = true;
                Cell::Missing
            }
        };
    }
    Ok(Row::new(Arc::clone(&table.target.columns), cells))
}
