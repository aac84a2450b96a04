//! What transactions have changed that are prepared and not committed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::event::Xid;
use crate::cdc::{Change, TableName};

/// All together; then only their tables are kept.
const MAX: usize = 10_000;

#[derive(Debug, Default)]
enum Changes {
    #[default]
    Nothing,
    Each(Vec<Change>),
    Tables(BTreeSet<Arc<TableName>>),
    Everything(&'static str),
}

impl Changes {
    fn len(&self) -> usize {
        match self {
            Self::Each(changes) => changes.len(),
            _ => 0,
        }
    }

    fn tables(self) -> Self {
        let Self::Each(changes) = self else { return self };
        let mut tables = BTreeSet::new();
        for change in changes {
            match change {
                Change::Row { table, .. } | Change::Table { table, .. } => tables.insert(table),
                Change::Everything { why } => return Self::Everything(why),
                Change::Keys { .. } => continue,
            };
        }
        Self::Tables(tables)
    }
}

/// By the names of their transactions. Many transactions, or large ones, are remembered by their tables.
#[derive(Debug, Default)]
pub(super) struct Held {
    all: HashMap<Xid, Changes>,
    count: usize,
}

impl Held {
    pub(super) fn prepared(&mut self, xid: &Xid) {
        self.all.entry(xid.clone()).or_default();
    }

    pub(super) fn hold(&mut self, xid: &Xid, change: Change) {
        let full = self.count >= MAX;
        let held = self.all.entry(xid.clone()).or_default();
        match held {
            Changes::Everything(_) => {}
            Changes::Tables(tables) => match change {
                Change::Row { table, .. } | Change::Table { table, .. } => {
                    tables.insert(table);
                }
                Change::Everything { why } => *held = Changes::Everything(why),
                Change::Keys { .. } => {}
            },
            Changes::Nothing | Changes::Each(_) if full => {
                self.count -= held.len();
                *held = std::mem::take(held).tables();
                if matches!(held, Changes::Nothing) {
                    *held = Changes::Tables(BTreeSet::new());
                }
                self.hold(xid, change);
            }
            Changes::Each(changes) => {
                changes.push(change);
                self.count += 1;
            }
            Changes::Nothing => {
                *held = Changes::Each(vec![change]);
                self.count += 1;
            }
        }
    }

    /// `None` for one that is not known.
    pub(super) fn take(&mut self, xid: &Xid) -> Option<Vec<Change>> {
        let held = self.all.remove(xid)?;
        self.count -= held.len();
        Some(match held {
            Changes::Nothing => Vec::new(),
            Changes::Each(changes) => changes,
            Changes::Tables(tables) => {
                let why = "it was changed by a large transaction in two phases";
                tables.into_iter().map(|table| Change::Table { table, why }).collect()
            }
            Changes::Everything(why) => vec![Change::Everything { why }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xid(name: &str) -> Xid {
        Xid { format: 1, global: name.into(), branch: Vec::new() }
    }

    fn row(table: &str) -> Change {
        let table = Arc::new(TableName::new("here", table));
        Change::Row { table, old: None, new: None }
    }

    #[test]
    fn each_gets_its_own_and_only_once() {
        let mut held = Held::default();
        held.hold(&xid("a"), row("t"));
        held.hold(&xid("b"), row("u"));
        held.prepared(&xid("b"));
        held.prepared(&xid("c"));
        assert_eq!(held.take(&xid("a")), Some(vec![row("t")]));
        assert_eq!(held.take(&xid("a")), None);
        assert_eq!(held.take(&xid("b")), Some(vec![row("u")]));
        assert_eq!(held.take(&xid("c")), Some(vec![]));
        assert_eq!(held.count, 0);
    }

    #[test]
    fn too_many_become_their_tables() {
        let mut held = Held::default();
        for _ in 0..MAX {
            held.hold(&xid("a"), row("t"));
        }
        held.hold(&xid("b"), row("u"));
        held.hold(&xid("a"), row("v"));
        assert_eq!(held.count, 0);
        let tables = |name| {
            let changes = Held::take(&mut held, &xid(name)).unwrap().into_iter();
            changes
                .map(|change| match change {
                    Change::Table { table, .. } => table.name.to_string(),
                    other => panic!("{other:?}"),
                })
                .collect::<Vec<_>>()
        };
        let mut tables = tables;
        assert_eq!(tables("a"), ["t", "v"]);
        assert_eq!(tables("b"), ["u"]);
    }
}
