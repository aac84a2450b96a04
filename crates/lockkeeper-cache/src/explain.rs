//! Why an answer was what it was.

use std::fmt::{self, Display};
use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;

use crate::breaker::Phase;
use crate::cache::{Cache, Inner};
use crate::entry::{Entry, Lease, Millis, Value};
use crate::error::Result;
use crate::events::Event;
use crate::filter::Verdict;
use crate::freshness::Freshness;
use crate::guard::Down;
use crate::store::Seen;

/// What is known about a key, from [`Cache::explain`]. Never the value itself.
///
/// `Display` is for people, with one fact a line; as JSON it is for programs.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The key, as it is stored.
    pub key: String,
    /// What the first level of this process has of it; `None`: there is no first level.
    pub first: Option<Near>,
    /// What the store has under it.
    pub there: There,
    /// What a read that takes [any](crate::Freshness::Any) value would do now.
    pub read: Outlook,
    /// What the filter says; `None`: there is none.
    pub filter: Option<Verdict>,
    /// Whether the store is left alone. As a whole: which stores of a group are, [`Grouped::phases`](crate::Grouped::phases) says.
    pub store: Phase,
    /// Whether the database is; `None`: there is no breaker.
    pub database: Option<Phase>,
    /// Whether it is one of the keys that are read most, in this process.
    pub hot: bool,
    /// What happened to it in this process of late, the youngest first.
    pub events: Vec<Past>,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Past {
    /// So many milliseconds ago.
    pub ago_ms: u64,
    /// What it was.
    pub event: Event,
}

/// What the [first level](crate::FirstLevel) has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Near {
    /// Nothing.
    Nothing,
    /// A copy of a value, or that the database has nothing.
    Copy {
        /// Whether it is served: its time is not over, no change of it is known, and what is known is no older than the
        /// bound. One that is not may still be, by [`Down::Stale`], while the store does not answer.
        serves: bool,
        /// For so long it may be served yet, if nothing changes.
        left_ms: u64,
        /// Its version; 0 where none is known.
        version: u64,
        /// How long ago its load began.
        age_ms: u64,
    },
}

/// What the store has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum There {
    /// It did not say.
    Unknown,
    /// Nothing.
    Nothing,
    /// Something that is not an entry.
    Unreadable,
    /// A value.
    Value {
        /// In bytes; `None`: that the database has nothing.
        bytes: Option<usize>,
        /// Its version; 0 where none is known.
        version: u64,
        /// How long ago its load began.
        age_ms: u64,
        /// How long its load took.
        load_ms: u32,
        /// In how long it is refreshed by time; `None`: it is not.
        refresh_ms: Option<u64>,
        /// Which form of value it is.
        schema: u32,
        /// Whether this program can read it.
        readable: bool,
        /// Who loads a newer one.
        lease: Option<Holder>,
    },
    /// No value.
    Gap {
        /// Who loads one.
        lease: Option<Holder>,
        /// The smallest version that may be filled.
        floor: u64,
        /// How long ago the last value was invalidated, if it is kept.
        last_ms: Option<u64>,
    },
    /// No value, and none to be filled.
    Intents {
        /// Who writes.
        writers: Vec<Holder>,
        /// The smallest version that may be filled afterwards.
        floor: u64,
    },
}

/// Who has a lease, or is about to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Holder {
    /// This process.
    pub ours: bool,
    /// For so long.
    pub left_ms: u64,
}

/// What a read would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Outlook {
    /// Take the copy of the first level, and ask nobody.
    First,
    /// Take it.
    Hit,
    /// Take it, and have it loaded anew.
    HitAndRefresh,
    /// Load and fill.
    Load,
    /// Wait for who loads it.
    Wait,
    /// Ask the database and fill nothing, because somebody writes.
    Written,
    /// The same, because what is there is of a newer program.
    Newer,
    /// The same, because the store does not answer.
    Down,
    /// The same, because an invalidation of it is still owed to the store.
    Owed,
    /// Take a copy that may be old, because the store does not answer.
    Stale,
    /// Be told by the filter that there is nothing.
    Filtered,
    /// Be refused, because the store does not answer.
    BusyStore,
    /// Be refused, because the database is left alone.
    BusyDatabase,
}

impl<K, V> Cache<K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Says what is known about a key in the [first level](crate::FirstLevel) of this process and at the store, what a read
    /// would do now, and what happened to it in this process of late. It changes nothing and counts for nothing, and it
    /// shows no values.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), lockkeeper_cache::Error> {
    /// use lockkeeper_cache::explain::Outlook;
    /// use lockkeeper_cache::{Cache, Error, Loaded, Memory};
    ///
    /// let cache = Cache::builder(Memory::new())
    ///     .namespace("user")
    ///     .build(async |id: u64| Ok::<_, Error>(Loaded::found(id)))?;
    /// assert_eq!(cache.explain(&7).await?.read, Outlook::Load);
    /// cache.get(&7).await?;
    /// let explained = cache.explain(&7).await?;
    /// assert_eq!(explained.read, Outlook::Hit);
    /// assert!(explained.to_string().starts_with("user:7\n  there: a value of 1 byte"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`](crate::Error::InvalidKey). A store that does not answer is part of the explanation.
    pub async fn explain(&self, key: &K) -> Result<Explanation> {
        let inner = &self.inner;
        let name = inner.name(key)?;
        // Past all guards: that is what it is about.
        let asked = timeout(inner.settings.timeout, inner.store.get(&[&name])).await;
        let seen = asked.ok().and_then(Result::ok).and_then(|seen| seen.into_iter().next());
        let seen = seen.unwrap_or(Seen::Down);
        let filter = match inner.guards.filter() {
            Some(filter) => {
                let keys = [inner.key_of(&name).as_bytes()];
                let said = timeout(inner.settings.timeout, filter.look(&keys)).await;
                Some(said.ok().and_then(|said| said.first().copied()).unwrap_or(Verdict::Unknown))
            }
            None => None,
        };
        let database = inner.guards.breaker().map(|gate| gate.phase());
        let store = inner.guards.store.phase();
        let mut read = inner.outlook(&seen, inner.debt.has(&name), store);
        if read == Outlook::Down && inner.stale_copy(key, Freshness::Any).is_some() {
            read = Outlook::Stale;
        }
        // What it has not been told of yet, reads do not ask it.
        let asked = filter.filter(|_| !inner.unfiltered.has(&name));
        let (mut read, first) = (inner.refused(read, asked, database), inner.near(key));
        if matches!(first, Some(Near::Copy { serves: true, .. })) {
            read = Outlook::First;
        }
        let there = inner.there(&seen);
        let past =
            |(ago, event): (Duration, Event)| Past { ago_ms: crate::store::millis(ago), event };
        let events = inner.guards.events.of(&name).into_iter().map(past).collect();
        let hot = inner.guards.hot.is_hot(&name);
        Ok(Explanation { key: name, first, there, read, filter, store, database, hot, events })
    }
}

impl<K, V> Inner<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// What a read does that nobody refuses.
    fn outlook(&self, seen: &Seen, owed: bool, store: Phase) -> Outlook {
        let now = self.store.now();
        match seen {
            // Asked first: what is there is not seen while the store is left alone.
            _ if owed => Outlook::Owed,
            _ if store != Phase::Closed => Outlook::Down,
            Seen::Down => Outlook::Down,
            Seen::Entry(Entry::Value(value)) if self.reads(value) => {
                let due = now >= value.soft && !value.lease.is_live(now);
                if due { Outlook::HitAndRefresh } else { Outlook::Hit }
            }
            Seen::Entry(Entry::Value(value)) if value.schema > self.settings.schema => {
                Outlook::Newer
            }
            Seen::Entry(Entry::Value(Value { lease, .. })) if lease.is_live(now) => Outlook::Wait,
            Seen::Entry(Entry::Gap(gap)) if gap.lease.is_live(now) => Outlook::Wait,
            Seen::Entry(Entry::Intents(intents))
                if intents.writers.iter().any(|by| by.is_live(now)) =>
            {
                Outlook::Written
            }
            _ => Outlook::Load,
        }
    }

    /// What becomes of it, if it is refused or need not be.
    fn refused(&self, read: Outlook, filter: Option<Verdict>, database: Option<Phase>) -> Outlook {
        let busy = matches!(self.guards.down(), Down::Busy | Down::Stale { otherwise: None, .. });
        match read {
            Outlook::First | Outlook::Stale => read,
            Outlook::Hit | Outlook::HitAndRefresh | Outlook::Wait => read,
            Outlook::Load | Outlook::Down | Outlook::Owed if filter == Some(Verdict::Absent) => {
                Outlook::Filtered
            }
            Outlook::Down | Outlook::Owed if busy => Outlook::BusyStore,
            _ if database == Some(Phase::Open) => Outlook::BusyDatabase,
            _ => read,
        }
    }

    /// Whether this program can read it.
    fn reads(&self, value: &Value) -> bool {
        let decoded = value.payload.as_deref().map(|bytes| self.codec.decode(bytes));
        value.schema == self.settings.schema && decoded.is_none_or(|decoded| decoded.is_ok())
    }

    fn near(&self, key: &K) -> Option<Near> {
        let Some(shown) = self.first.get()?.show(key) else { return Some(Near::Nothing) };
        Some(Near::Copy {
            serves: shown.serves,
            left_ms: crate::store::millis(shown.left),
            version: shown.version,
            age_ms: self.store.now().saturating_sub(shown.made),
        })
    }

    fn there(&self, seen: &Seen) -> There {
        let now = self.store.now();
        match seen {
            Seen::Down => There::Unknown,
            Seen::Nothing => There::Nothing,
            Seen::Unreadable => There::Unreadable,
            Seen::Entry(Entry::Value(value)) => There::Value {
                bytes: value.payload.as_ref().map(|payload| payload.len()),
                version: value.version,
                age_ms: now.saturating_sub(value.made),
                load_ms: value.cost,
                refresh_ms: (value.soft < u64::MAX).then(|| value.soft.saturating_sub(now)),
                schema: value.schema,
                readable: self.reads(value),
                lease: holder(value.lease, now),
            },
            Seen::Entry(Entry::Gap(gap)) => There::Gap {
                lease: holder(gap.lease, now),
                floor: gap.floor,
                last_ms: gap.last.as_ref().map(|_| now.saturating_sub(gap.died)),
            },
            Seen::Entry(Entry::Intents(intents)) => There::Intents {
                writers: intents.writers.iter().filter_map(|by| holder(*by, now)).collect(),
                floor: intents.floor,
            },
        }
    }
}

fn holder(lease: Lease, now: Millis) -> Option<Holder> {
    let left_ms = lease.until.saturating_sub(now);
    lease.is_live(now).then(|| Holder { ours: lease.ticket.is_ours(), left_ms })
}

/// Milliseconds for people.
struct Time(u64);

impl Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_millis(self.0))
    }
}

impl Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.ours { "this process" } else { "another process" };
        write!(f, "{whose}, for another {}", Time(self.left_ms))
    }
}

impl Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Copy { serves, left_ms, version, age_ms } = self else {
            return f.write_str("nothing");
        };
        write!(f, "a copy, version {version}, loaded {} ago; ", Time(*age_ms))?;
        match serves {
            true => write!(f, "served for another {} if nothing changes", Time(*left_ms)),
            false => f.write_str("not served"),
        }
    }
}

impl Display for There {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let floor_of = |floor: u64| match floor {
            0 => String::new(),
            floor => format!("; versions below {floor} are refused"),
        };
        match self {
            Self::Unknown => f.write_str("not known: the store does not answer"),
            Self::Nothing => f.write_str("nothing"),
            Self::Unreadable => f.write_str("something that is not an entry"),
            Self::Value {
                bytes,
                version,
                age_ms,
                load_ms,
                refresh_ms,
                schema,
                readable,
                lease,
            } => {
                match bytes {
                    Some(1) => f.write_str("a value of 1 byte")?,
                    Some(bytes) => write!(f, "a value of {bytes} bytes")?,
                    None => f.write_str("that the database has nothing")?,
                }
                write!(f, ", version {version}, schema {schema}, loaded {} ago", Time(*age_ms))?;
                write!(f, " within {}", Time(u64::from(*load_ms)))?;
                if !readable {
                    f.write_str("; this program cannot read it")?;
                }
                if let Some(left) = refresh_ms {
                    write!(f, "; to be refreshed in {}", Time(*left))?;
                }
                lease.map_or(Ok(()), |lease| write!(f, "; refreshed by {lease}"))
            }
            Self::Gap { lease, floor, last_ms } => {
                match lease {
                    Some(lease) => write!(f, "no value; loaded by {lease}")?,
                    None => f.write_str("no value, and nobody loads one")?,
                }
                f.write_str(&floor_of(*floor))?;
                last_ms.map_or(Ok(()), |ago| {
                    write!(f, "; the last one was invalidated {} ago, and is kept", Time(ago))
                })
            }
            Self::Intents { writers, floor } => {
                f.write_str("about to be written")?;
                for writer in writers {
                    write!(f, "; by {writer}")?;
                }
                f.write_str(&floor_of(*floor))
            }
        }
    }
}

impl Display for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "takes the copy in this process",
            Self::Hit => "takes it",
            Self::HitAndRefresh => "takes it, and has it loaded anew",
            Self::Load => "loads it, and fills it",
            Self::Wait => "waits for who loads it",
            Self::Written => "asks the database and fills nothing, because somebody writes",
            Self::Newer => {
                "asks the database and fills nothing, because what is there is of a newer program"
            }
            Self::Down => "asks the database and fills nothing, because the store does not answer",
            Self::Owed => {
                "asks the database and fills nothing, because an invalidation is still to be done"
            }
            Self::Stale => "takes a copy that may be old, because the store does not answer",
            Self::Filtered => "is told by the filter that there is nothing",
            Self::BusyStore => "is refused, because the store does not answer",
            Self::BusyDatabase => "is refused, because the database is left alone after failures",
        })
    }
}

impl Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, first, there, read, filter, store, database, hot, events } = self;
        writeln!(f, "{}", key.escape_debug())?;
        if let Some(first) = first {
            writeln!(f, "  in this process: {first}")?;
        }
        writeln!(f, "  there: {there}")?;
        writeln!(f, "  a read now: {read}")?;
        if let Some(filter) = filter {
            writeln!(f, "  filter: {filter:?}")?;
        }
        writeln!(f, "  breaker of the store: {store:?}")?;
        if let Some(database) = database {
            writeln!(f, "  breaker of the database: {database:?}")?;
        }
        if *hot {
            writeln!(f, "  read much")?;
        }
        for Past { ago_ms, event } in events {
            writeln!(f, "  {} ago: {event}", Time(*ago_ms))?;
        }
        Ok(())
    }
}
