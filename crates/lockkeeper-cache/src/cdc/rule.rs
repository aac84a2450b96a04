//! From a row to keys.

use std::fmt;
use std::sync::Arc;

use super::{Cell, Row, TableName, Wanted};
use crate::error::{Error, Result};

/// Which key a row of a table is cached under.
///
/// A template of text and of columns in braces: `{id}` is the key for a cache by the column `id`, `{tenant}/{id}` one for a key
/// of two columns. Two braces stand for one: `{{`, `}}`. A template without a column is a key that every row of the table is part of. A
/// table may have any number of rules, for one cache or for several.
///
/// ```
/// use lockkeeper_cache::cdc::Rule;
/// let by_id = Rule::new("public.users", "{id}")?;
/// let by_mail = Rule::new("public.users", "mail:{email}")?;
/// assert!(Rule::new("users", "{id}").is_err(), "the schema is missing");
/// assert!(Rule::new("public.users", "{id").is_err());
/// # assert_eq!(by_id.to_string(), "public.users {id}");
/// # assert_eq!(by_mail.template(), "mail:{email}");
/// # Ok::<_, lockkeeper_cache::Error>(())
/// ```
///
/// # Which text
///
/// What comes in the place of a column is what the database prints, and **must be what the key of the cache is
/// [displayed](std::fmt::Display) as**, letter by letter; else another key is invalidated, and nobody notices:
///
/// - Whole numbers: decimal, with a minus where needed, no zeros before. As Rust has them.
/// - Text: as it is stored, in its case. Where a collation takes `Anna` for `anna`, only the spelling that the row has is
///   invalidated: make keys of one case in the application. A `char(n)` has its spaces in PostgreSQL, and not in MariaDB.
/// - `uuid`: lower case with hyphens.
/// - Booleans: `t` and `f` in PostgreSQL, a number in MariaDB.
/// - All others, such as numbers with a point, dates, times and bytes: see the source. They look as in its command line, and seldom as in
///   Rust.
///
/// A column of a key that is `NULL`: the row has no key. A column that the log does not have: nobody knows the key, and the whole
/// namespace is cleared. So it is for a key of more than 64 KiB, and for more than 16 MiB of keys in one batch, unless the cache
/// [takes none](crate::Builder::max_key) that long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    table: TableName,
    template: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Column(Arc<str>),
}

/// A column of a key is nowhere to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unknown;

/// The keys that a change of a row is about: the one it had and the one it has, if these are two.
pub(crate) type Keys = [Option<String>; 2];

impl Rule {
    /// Rows of this table, `schema.name`, are cached under keys of this template.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when the table or the template makes no sense. Whether there is such a column only the database knows.
    pub fn new(table: &str, template: &str) -> Result<Self> {
        let parts = parse(template).map_err(|what| {
            Error::Config(format!("the template {template:?} cannot be used: {what}"))
        })?;
        Ok(Self { table: table.parse()?, template: template.to_owned(), parts })
    }

    /// The table.
    pub fn table(&self) -> &TableName {
        &self.table
    }

    /// The template, as it was given.
    pub fn template(&self) -> &str {
        &self.template
    }

    /// The columns of the template, in its order.
    pub fn columns(&self) -> impl Iterator<Item = &Arc<str>> {
        self.parts.iter().filter_map(|part| match part {
            Part::Column(name) => Some(name),
            Part::Text(_) => None,
        })
    }

    /// The keys of a row that was changed.
    pub(crate) fn keys(&self, old: Option<&Row>, new: Option<&Row>) -> Result<Keys, Unknown> {
        let before = match old {
            Some(old) => self.key(|column| old.get(column))?,
            None => None,
        };
        let after = match new {
            Some(new) => self.key(|column| match (new.get(column), old) {
                (Cell::Missing, Some(old)) => old.get(column),
                (cell, _) => cell,
            })?,
            None => None,
        };
        Ok([before.filter(|key| Some(key) != after.as_ref()), after])
    }

    fn key<'a>(&self, cell: impl Fn(&str) -> &'a Cell) -> Result<Option<String>, Unknown> {
        let mut missing = false;
        let mut key = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => key.push_str(text),
                Part::Column(name) => match cell(name) {
                    Cell::Text(text) => key.push_str(text),
                    Cell::Missing => missing = true,
                    // Whatever the others are.
                    Cell::Null => return Ok(None),
                },
            }
        }
        if missing { Err(Unknown) } else { Ok(Some(key)) }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.template)
    }
}

/// The tables of these rules, each with its columns.
pub(crate) fn wanted<'a>(rules: impl Iterator<Item = &'a Rule>) -> Wanted {
    let mut wanted = Wanted::new();
    for rule in rules {
        let columns = wanted.entry(rule.table.clone()).or_default();
        columns.extend(rule.columns().map(ToString::to_string));
    }
    wanted
}

fn parse(template: &str) -> Result<Vec<Part>, &'static str> {
    let (mut parts, mut text) = (Vec::new(), String::new());
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, brace) = rest.split_at(at);
        text.push_str(before);
        if let Some(after) = brace.strip_prefix("{{") {
            text.push('{');
            rest = after;
        } else if let Some(after) = brace.strip_prefix("}}") {
            text.push('}');
            rest = after;
        } else if let Some(after) = brace.strip_prefix('{') {
            let (column, after) = after.split_once('}').ok_or("a brace is not closed")?;
            if column.is_empty() || column.contains('{') {
                return Err("there is no column between two braces");
            }
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            parts.push(Part::Column(column.into()));
            rest = after;
        } else {
            return Err("a brace is closed that was not opened");
        }
    }
    text.push_str(rest);
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    if parts.is_empty() { Err("it is empty") } else { Ok(parts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[(&str, Option<&str>)]) -> Row {
        let columns: Arc<[Arc<str>]> = cells.iter().map(|(name, _)| Arc::from(*name)).collect();
        let cells: Vec<Cell> = cells
            .iter()
            .map(|(_, cell)| match cell {
                Some("?") => Cell::Missing,
                Some(text) => Cell::Text((*text).into()),
                None => Cell::Null,
            })
            .collect();
        Row::new(columns, cells)
    }

    fn keys(template: &str, old: Option<Row>, new: Option<Row>) -> Result<Vec<String>, Unknown> {
        let rule = Rule::new("public.users", template).unwrap();
        let keys = rule.keys(old.as_ref(), new.as_ref())?;
        Ok(keys.into_iter().flatten().collect())
    }

    #[test]
    fn templates_are_text_and_columns() {
        let one = row(&[("id", Some("7")), ("tenant", Some("acme")), ("a b", Some("-1"))]);
        for (template, key) in [
            ("{id}", "7"),
            ("{tenant}/{id}", "acme/7"),
            ("{id}{id}", "77"),
            ("all", "all"),
            ("{{{id}}}", "{7}"),
            ("{{id}}", "{id}"),
            ("x{a b}y", "x-1y"),
        ] {
            assert_eq!(keys(template, None, Some(one.clone())).unwrap(), [key], "{template}");
        }
        for bad in ["", "{", "}", "{}", "{id", "id}", "{{id}", "{i{d}", "{id}}", "a{b}}c"] {
            let error = Rule::new("public.users", bad).expect_err(bad);
            assert!(matches!(error, Error::Config(_)), "{error:?}");
        }
        for bad in ["", "users", ".users", "public."] {
            assert!(Rule::new(bad, "{id}").is_err(), "{bad}");
        }
    }

    #[test]
    fn a_row_has_the_key_that_it_had_and_the_one_that_it_has() {
        let seven = || Some(row(&[("id", Some("7"))]));
        let eight = || Some(row(&[("id", Some("8"))]));
        assert_eq!(keys("{id}", None, seven()).unwrap(), ["7"]);
        assert_eq!(keys("{id}", seven(), None).unwrap(), ["7"]);
        assert_eq!(keys("{id}", seven(), seven()).unwrap(), ["7"]);
        assert_eq!(keys("{id}", seven(), eight()).unwrap(), ["7", "8"]);
        assert!(keys("{id}", None, None).unwrap().is_empty());
    }

    #[test]
    fn a_row_with_null_in_its_key_has_none() {
        let null = || Some(row(&[("id", Some("7")), ("mail", None)]));
        let mail = || Some(row(&[("id", Some("7")), ("mail", Some("a@b"))]));
        assert!(keys("{mail}", None, null()).unwrap().is_empty());
        assert_eq!(keys("{mail}", null(), mail()).unwrap(), ["a@b"]);
        assert_eq!(keys("{mail}", mail(), null()).unwrap(), ["a@b"]);
        // Whatever else it may be, it is no key.
        let both = || Some(row(&[("id", Some("?")), ("mail", None)]));
        assert!(keys("{id}{mail}", None, both()).unwrap().is_empty());
    }

    #[test]
    fn what_is_missing_is_as_it_was_or_not_known() {
        let old = || Some(row(&[("id", Some("7")), ("mail", Some("a@b"))]));
        let new = || Some(row(&[("id", Some("8")), ("mail", Some("?"))]));
        assert_eq!(keys("{id} {mail}", old(), new()).unwrap(), ["7 a@b", "8 a@b"]);
        assert_eq!(keys("{mail}", old(), new()).unwrap(), ["a@b"]);
        assert_eq!(keys("{mail}", None, new()), Err(Unknown));
        assert_eq!(keys("{id}", None, new()).unwrap(), ["8"]);
        // It had another one perhaps, and that is to be invalidated as well.
        let partial = || Some(row(&[("id", Some("7")), ("mail", Some("?"))]));
        assert_eq!(keys("{mail}", partial(), old()), Err(Unknown));
        assert_eq!(keys("{nowhere}", None, old()), Err(Unknown));
    }

    #[test]
    fn all_columns_of_all_rules_are_wanted() {
        let rules = [("a.b", "{x}/{y}"), ("a.b", "{z}{x}"), ("c.d", "all")]
            .map(|(table, template)| Rule::new(table, template).unwrap());
        let wanted = wanted(rules.iter());
        let columns: Vec<Vec<&str>> =
            wanted.values().map(|columns| columns.iter().map(String::as_str).collect()).collect();
        assert_eq!(columns, [vec!["x", "y", "z"], vec![]]);
        assert_eq!(wanted.keys().map(ToString::to_string).collect::<Vec<_>>(), ["a.b", "c.d"]);
    }
}
