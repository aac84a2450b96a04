//! The file of a follower: what is in it, and what is wrong with it.
//!
//! It may have passwords. So no message shows a value, and not the line either: where it is must do.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::{Name, Url};
use lockkeeper_cache::cdc::mariadb::MariaDb;
use lockkeeper_cache::cdc::postgres::Postgres;
use lockkeeper_cache::cdc::{Rule, Source, TableName, Wanted};
use serde::Deserialize;
use toml::Spanned;

use super::password;
use crate::duration;
use crate::exit::Failure;

/// The longest file that is read.
const LONGEST: u64 = 1 << 20;

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    name: Spanned<String>,
    database: Spanned<String>,
    database_password_file: Option<Spanned<PathBuf>>,
    cache: Spanned<String>,
    cache_password_file: Option<Spanned<PathBuf>>,
    locks: Option<Spanned<String>>,
    locks_password_file: Option<Spanned<PathBuf>>,
    listen: Option<Spanned<String>>,
    max_lag: Option<Spanned<String>>,
    postgres: Option<Spanned<PostgresText>>,
    mariadb: Option<Spanned<MariaDbText>>,
    #[serde(default)]
    rule: Vec<RuleText>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PostgresText {
    slot: Option<Spanned<String>>,
    publication: Option<Spanned<String>>,
    max_retained: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct MariaDbText {
    server_id: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    table: Spanned<String>,
    namespace: Spanned<String>,
    key: Spanned<String>,
    keep_last: Option<Spanned<String>>,
}

/// What a follower needs, and all of it makes sense. No `Debug`: there are passwords in it.
pub(crate) struct Config {
    pub(crate) name: String,
    pub(crate) database: Database,
    pub(crate) cache: String,
    pub(crate) locks: String,
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) max_lag: Option<Duration>,
    pub(crate) namespaces: BTreeMap<String, Duration>,
    /// With the namespace of each.
    pub(crate) rules: Vec<(Rule, String)>,
}

impl Config {
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let wrong = |why: String| Failure::usage(format!("{} {why}", path.display()));
        let cannot = |error: std::io::Error| wrong(format!("cannot be read: {error}"));
        let found = std::fs::metadata(path).map_err(cannot)?;
        if found.len() > LONGEST {
            return Err(wrong("is too long".into()));
        }
        let bytes = std::fs::read(path).map_err(cannot)?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let good = error.utf8_error().valid_up_to();
            let (line, _) = place(error.as_bytes(), good);
            wrong(format!("is not UTF-8 in line {line}"))
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, folder).map_err(|Wrong { at, why }| {
            let at = at.map(|at| place(text.as_bytes(), at));
            let at = at.map_or(String::new(), |(line, column)| format!(":{line}:{column}"));
            Failure::usage(format!("{}{at}: {why}", path.display()))
        })
    }

    fn parse(text: &str, folder: &Path) -> Result<Self, Wrong> {
        let text: Text = toml::from_str(text).map_err(Wrong::syntax)?;
        let name = text.name.get_ref();
        lock(name).map_err(|error| at(&text.name, error))?;
        let database = with_password(&text.database, text.database_password_file.as_ref(), folder)?;
        let cache = with_password(&text.cache, text.cache_password_file.as_ref(), folder)?;
        check_cache(&cache).map_err(|why| at(&text.cache, why))?;
        let locks = match &text.locks {
            Some(locks) => {
                let url = with_password(locks, text.locks_password_file.as_ref(), folder)?;
                store(&url).map_err(|why| at(locks, why))?;
                url
            }
            None => match &text.locks_password_file {
                Some(file) => return Err(at(file, "it is for `locks`, and there is none")),
                None => cache.clone(),
            },
        };
        let listen = text.listen.as_ref().map(listen).transpose()?;
        let max_lag = text.max_lag.as_ref().map(time).transpose()?;
        let (namespaces, rules) = rules(&text.rule)?;
        let source = source(&text, &database)?;
        let name = name.clone();
        Ok(Self { name, database: source, cache, locks, listen, max_lag, namespaces, rules })
    }

    /// The tables and columns that are followed.
    pub(crate) fn wanted(&self) -> Wanted {
        wanted(self.rules.iter().map(|(rule, _)| rule))
    }
}

/// The lock by which followers of this name take turns.
pub(crate) fn lock(name: &str) -> Result<Name, lockkeeper::Error> {
    name.parse::<Name>()?;
    format!("cdc:{name}").parse()
}

/// The tables and columns of these rules.
pub(crate) fn wanted<'a>(rules: impl Iterator<Item = &'a Rule>) -> Wanted {
    let mut wanted = Wanted::new();
    for rule in rules {
        let columns = wanted.entry(rule.table().clone()).or_default();
        columns.extend(rule.columns().map(ToString::to_string));
    }
    wanted
}

/// A database that can be followed.
#[derive(Debug)]
pub(crate) enum Database {
    Postgres(Box<Postgres>),
    MariaDb(MariaDb),
}

impl Database {
    /// The one that a URL names.
    pub(crate) fn new(url: &str) -> Result<Self, String> {
        let made = match url.split(':').next() {
            Some("postgres" | "postgresql") => {
                Postgres::new(url).map(|source| Self::Postgres(Box::new(source)))
            }
            Some("mysql" | "mariadb") => MariaDb::new(url).map(Self::MariaDb),
            _ => {
                let known = "postgres://… or mysql://…";
                return Err(format!("it names no database that can be followed: write {known}"));
            }
        };
        made.map_err(|error| error.to_string())
    }

    pub(crate) fn source(&self) -> &dyn Source {
        match self {
            Self::Postgres(source) => &**source,
            Self::MariaDb(source) => source,
        }
    }
}

fn source(text: &Text, url: &str) -> Result<Database, Wrong> {
    match (
        Database::new(url).map_err(|why| at(&text.database, why))?,
        &text.postgres,
        &text.mariadb,
    ) {
        (Database::Postgres(_), _, Some(other)) => {
            Err(at(other, "the database is PostgreSQL: write [postgres]"))
        }
        (Database::MariaDb(_), Some(other), _) => {
            Err(at(other, "the database is MariaDB: write [mariadb]"))
        }
        (Database::Postgres(source), options, None) => {
            let mut source = *source;
            let options = options.as_ref().map(Spanned::get_ref);
            source = source.slot(slot(text, options.and_then(|options| options.slot.as_ref()))?);
            if let Some(name) = options.and_then(|options| options.publication.as_ref()) {
                source = source.publication(name.get_ref());
            }
            if let Some(bytes) = options.and_then(|options| options.max_retained) {
                source = source.max_retained(bytes);
            }
            Ok(Database::Postgres(Box::new(source)))
        }
        (Database::MariaDb(mut source), None, options) => {
            let options = options.as_ref().map(Spanned::get_ref);
            if let Some(id) = options.and_then(|options| options.server_id.as_ref()) {
                source = source.server_id(*id.get_ref());
            }
            Ok(Database::MariaDb(source))
        }
    }
}

/// The slot of this follower alone: two followers with one slot take it from each other.
fn slot(text: &Text, slot: Option<&Spanned<String>>) -> Result<String, Wrong> {
    let fits = |name: &str| {
        let is_good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        (1..=63).contains(&name.len()) && name.chars().all(is_good)
    };
    let rule = "up to 63 small letters, digits and underscores";
    match slot {
        Some(slot) if fits(slot.get_ref()) => Ok(slot.get_ref().clone()),
        Some(slot) => Err(at(slot, format!("the name of a slot is {rule}"))),
        None => {
            let derived = format!("lockkeeper_{}", text.name.get_ref());
            let why = || {
                format!(
                    "no slot can be called {derived}: choose another name, or a `slot` in [postgres], {rule}"
                )
            };
            fits(&derived).then(|| derived.clone()).ok_or_else(|| at(&text.name, why()))
        }
    }
}

type Rules = (BTreeMap<String, Duration>, Vec<(Rule, String)>);

fn rules(text: &[RuleText]) -> Result<Rules, Wrong> {
    let (mut namespaces, mut rules) = (BTreeMap::<String, Duration>::new(), Vec::new());
    for RuleText { table, namespace, key, keep_last } in text {
        let made = Rule::new(table.get_ref(), key.get_ref());
        // Either may be wrong, and what is said names it.
        let rule = made.map_err(|error| {
            let table_is_wrong = table.get_ref().parse::<TableName>().is_err();
            at(if table_is_wrong { table } else { key }, error)
        })?;
        if namespace.get_ref().is_empty() {
            return Err(at(namespace, "a namespace is not empty"));
        }
        let keep = keep_last.as_ref().map(time).transpose()?;
        let kept = namespaces.entry(namespace.get_ref().clone()).or_default();
        *kept = (*kept).max(keep.unwrap_or_default());
        rules.push((rule, namespace.get_ref().clone()));
    }
    match rules.is_empty() {
        true => {
            Err(Wrong { at: None, why: "there is no [[rule]]: nothing would be followed".into() })
        }
        false => Ok((namespaces, rules)),
    }
}

fn with_password(
    url: &Spanned<String>,
    file: Option<&Spanned<PathBuf>>,
    folder: &Path,
) -> Result<String, Wrong> {
    let Some(file) = file else { return Ok(url.get_ref().clone()) };
    password::from_file(url.get_ref(), &folder.join(file.get_ref())).map_err(|why| at(file, why))
}

/// A store that a URL names. What is no URL at all is not shown: it may be a password in the wrong place.
fn store(url: &str) -> Result<Url, String> {
    if !url.contains(':') {
        return Err("expected a URL, such as redis://HOST:PORT".into());
    }
    url.parse().map_err(|error: lockkeeper::Error| error.to_string())
}

fn check_cache(url: &str) -> Result<(), String> {
    match store(url)?.scheme() {
        scheme if scheme.starts_with("redis") => Ok(()),
        scheme => Err(format!("a cache is in Redis, and this is {scheme}:")),
    }
}

fn listen(text: &Spanned<String>) -> Result<SocketAddr, Wrong> {
    let wrong = |_| at(text, "expected an address and a port, such as 127.0.0.1:9187");
    text.get_ref().parse().map_err(wrong)
}

fn time(text: &Spanned<String>) -> Result<Duration, Wrong> {
    duration::parse(text.get_ref()).map_err(|why| at(text, why))
}

/// What is wrong, and at which byte of the file.
struct Wrong {
    at: Option<usize>,
    why: String,
}

fn at<T>(what: &Spanned<T>, why: impl ToString) -> Wrong {
    Wrong { at: Some(what.span().start), why: why.to_string() }
}

impl Wrong {
    fn syntax(error: toml::de::Error) -> Self {
        Self { at: error.span().map(|span| span.start), why: without_values(error.message()) }
    }
}

/// The message of the parser without the value that it may show, which may be a password.
fn without_values(message: &str) -> String {
    let shows = ["invalid type: ", "invalid value: ", "invalid length "];
    let Some(rest) = shows.iter().find_map(|start| message.strip_prefix(start)) else {
        return match message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`')) {
            Some((key, rest)) if !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => {
                format!("unknown field{rest}")
            }
            _ => message.lines().collect::<Vec<_>>().join(", "),
        };
    };
    let kind = rest.split([' ', ',']).next().unwrap_or_default();
    let expected = rest.rsplit_once(", expected ").map_or("another one", |(_, expected)| expected);
    format!("expected {expected}, and it is of another kind: {kind}")
}

/// Line and column, from 1.
fn place(text: &[u8], at: usize) -> (usize, usize) {
    let before = &text[..at.min(text.len())];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests;
