//! The tables that the log has spoken of, and rows of them in our own words.

use std::collections::HashMap;
use std::sync::Arc;

use super::pgoutput::{Column, Field, Message, Relation, Tuple};
use crate::cdc::{Cell, Change, Row, TableName, Wanted};
use crate::outbox;
use crate::transaction::Touched;

/// What a log is about, and what it said so far about that.
#[derive(Debug)]
pub(super) struct Relations {
    wanted: HashMap<TableName, Columns>,
    /// `None`: not wanted.
    known: HashMap<u32, Option<Known>>,
}

/// The columns that are wanted of a table.
type Columns = Arc<[Arc<str>]>;

#[derive(Debug)]
struct Known {
    table: Arc<TableName>,
    columns: Columns,
    /// For each column of the table, which of the wanted it is.
    places: Vec<Option<usize>>,
    /// All that there are: name, type and its modifier.
    shape: Vec<(String, u32, i32)>,
    /// Whether every wanted column is there.
    complete: bool,
    /// Whether rows are identified by every wanted column.
    identified: bool,
}

/// The log cannot be understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unknown;

/// What it says when writers send keys by [`EMIT`](super::EMIT).
pub(super) const PREFIX: &str = "lockkeeper";

impl Relations {
    pub(super) fn new(wanted: &Wanted) -> Self {
        let wanted = wanted.iter().map(|(table, columns)| {
            (table.clone(), columns.iter().map(|column| Arc::from(column.as_str())).collect())
        });
        Self { wanted: wanted.collect(), known: HashMap::new() }
    }

    /// What has changed by this message, appended.
    pub(super) fn read(
        &mut self,
        message: &Message<'_>,
        changes: &mut Vec<Change>,
    ) -> Result<(), Unknown> {
        match message {
            Message::Relation(relation) => changes.extend(self.learn(relation)),
            Message::Insert { relation, new } => {
                if let Some(known) = self.known(*relation)? {
                    changes.push(known.row_change(None, Some(*new)));
                }
            }
            Message::Update { relation, old, new } => {
                if let Some(known) = self.known(*relation)? {
                    changes.push(known.change(*old, Some(*new)));
                }
            }
            Message::Delete { relation, old } => {
                if let Some(known) = self.known(*relation)? {
                    changes.push(known.change(Some(*old), None));
                }
            }
            Message::Truncate { relations } => {
                for relation in relations {
                    if let Some(known) = self.known(*relation)? {
                        changes.push(known.all("it was truncated"));
                    }
                }
            }
            Message::Sent { prefix: PREFIX, content } => changes.extend(keys(content)),
            Message::Sent { .. } | Message::Begin { .. } => {}
            Message::Commit { .. } | Message::Other => {}
        }
        Ok(())
    }

    fn known(&self, relation: u32) -> Result<Option<&Known>, Unknown> {
        self.known.get(&relation).map(Option::as_ref).ok_or(Unknown)
    }

    /// A table, as it is from now on; and whether its rows, or their keys, may look otherwise than before.
    fn learn(&mut self, relation: &Relation<'_>) -> Option<Change> {
        let table = TableName::new(relation.schema, relation.name);
        let Some(columns) = self.wanted.get(&table) else {
            // Perhaps it had a name that is wanted.
            let before = self.known.insert(relation.id, None).flatten();
            return before.map(|before| before.all("it was renamed"));
        };
        let now = Known::new(table, columns, relation);
        let same = |id: &u32, known: &Known| *id != relation.id && known.table == now.table;
        let other = self.known.iter().find_map(|(id, known)| {
            known.as_ref().is_some_and(|known| same(id, known)).then_some(*id)
        });
        if let Some(other) = other {
            self.known.remove(&other);
        }
        let why = if !now.complete {
            Some("a column that keys are made of is not there")
        } else if other.is_some() {
            Some("there is another table of that name")
        } else {
            let before = self.known.get(&relation.id).and_then(Option::as_ref);
            before
                .is_some_and(|before| before.shape != now.shape || before.table != now.table)
                .then_some("its columns have changed")
        };
        let change = why.map(|why| now.all(why));
        self.known.insert(relation.id, Some(now));
        change
    }
}

impl Known {
    fn new(table: TableName, columns: &Columns, relation: &Relation<'_>) -> Self {
        let wanted =
            |column: &Column<'_>| columns.iter().position(|wanted| **wanted == *column.name);
        let places: Vec<Option<usize>> = relation.columns.iter().map(wanted).collect();
        let identity = relation.columns.iter().filter(|column| column.identity);
        let identity = identity.filter_map(wanted).count();
        let all = relation.columns.iter();
        let shape = all.map(|column| (column.name.to_owned(), column.kind, column.modifier));
        let shape = shape.collect();
        let complete = places.iter().flatten().count() == columns.len();
        Self {
            table: Arc::new(table),
            columns: Arc::clone(columns),
            places,
            shape,
            complete,
            identified: identity == columns.len(),
        }
    }

    fn all(&self, why: &'static str) -> Change {
        Change::Table { table: Arc::clone(&self.table), why }
    }

    /// An update or a delete.
    fn change(&self, old: Option<Tuple<'_>>, new: Option<Tuple<'_>>) -> Change {
        // Nothing says what was there, nor whether it has changed.
        if !self.identified {
            return self.all("its rows are not identified by all that keys are made of");
        }
        self.row_change(old, new)
    }

    fn row_change(&self, old: Option<Tuple<'_>>, new: Option<Tuple<'_>>) -> Change {
        let row = |tuple| self.row(tuple);
        Change::Row { table: Arc::clone(&self.table), old: old.map(row), new: new.map(row) }
    }

    fn row(&self, tuple: Tuple<'_>) -> Row {
        let mut cells = vec![Cell::Missing; self.columns.len()];
        for (field, place) in tuple.fields().zip(&self.places) {
            let Some(at) = *place else { continue };
            cells[at] = match field {
                Field::Null => Cell::Null,
                Field::Unchanged => Cell::Missing,
                // In a database without an encoding it may be anything.
                Field::Text(text) => std::str::from_utf8(text)
                    .map_or(Cell::Missing, |text| Cell::Text(Arc::from(text))),
            };
        }
        Row::new(Arc::clone(&self.columns), cells)
    }
}

/// The keys that a writer has sent.
fn keys(content: &[u8]) -> Vec<Change> {
    let text = std::str::from_utf8(content).ok();
    let all = text.and_then(outbox::decode);
    let Some(all) = all else {
        tracing::warn!(
            "a writer has sent keys that this program cannot read: all are taken for changed"
        );
        return vec![Change::Everything { why: "a writer has sent keys that cannot be read" }];
    };
    let mut by_namespace = indexmap::IndexMap::<String, Vec<Touched>>::new();
    for (namespace, touched) in all {
        by_namespace.entry(namespace).or_default().push(touched);
    }
    let each = by_namespace.into_iter();
    each.map(|(namespace, touched)| Change::Keys { namespace, touched }).collect()
}
