//! The log of a PostgreSQL database, by logical replication.
//!
//! # How it works
//!
//! A **publication** names the tables, a **slot** remembers how far the follower is, and the server keeps its log from there on.
//! Committed transactions come in the order of their commits, each row with what it is identified by. Before a change is
//! passed on, a second connection makes sure that it can be seen: the server sends transactions before that, for
//! example while they wait for a synchronous standby.
//!
//! # What it promises
//!
//! Every committed change of the tables is told, at least once, whoever made it: cascades of foreign keys, `TRUNCATE`, a
//! transaction that was prepared (when it is committed). What was rolled back is not. Where that cannot be so,
//! [`check`](Source::check) says so; and when it turns out later, the history is [lost](LogError::Lost): a table that
//! left the publication or was made anew, a slot that was dropped or had to give up its log, another server or
//! timeline, a column of a key that has changed.
//!
//! What makes rows look otherwise, and of which the log says nothing, counts as a change of the whole table: `ALTER TABLE` that
//! writes rows anew (`TYPE … USING`) or adds, drops or renames a column (also if it is undone soon), of a partitioned table
//! as well; partitions that come, go, are away for a while, or are truncated by themselves. It is told when it can be read: with
//! the next row of the table that comes by the log if its columns are others, else within five seconds. What is rolled
//! back is not told. **While no follower runs** it is not forgotten: the next one compares what there is with what was saved
//! with the position, and tells that everything has changed if that differs, which clears the namespaces of all its rules; so
//! it does once after a version of Lockkeeper that compares otherwise. `VACUUM FULL`, `CLUSTER` and `SET TABLESPACE` cannot
//! be told from that and clear the table's entries once, `TRUNCATE` does so twice. So does, once, what else is done to a
//! column (`SET DEFAULT`, `SET NOT NULL` and with it a new primary key, `GRANT`). Plain `VACUUM`, `ANALYZE`, indexes,
//! constraints and the replica identity clear nothing.
//!
//! # When it breaks
//!
//! - A slot does not move to a standby that takes over (before PostgreSQL 17): the history is lost then, and said to be.
//! - What the log does not say is found by looking at the server every five seconds, and old values are served so long: what
//!   was done to the publication, to partitions, and to tables by `DROP` and `ALTER`.
//! - What is done to a type and not to a table is not seen: `ALTER TYPE … RENAME VALUE` of an enumeration, for example.
//! - Nobody can tell a server whose disk was set back to an earlier state, and that has gone on from there, from itself.
//!
//! # What keys look like
//!
//! Cells are as PostgreSQL prints them, whatever the settings of the role: dates in ISO form, `timestamptz` in UTC
//! (`2026-01-31 12:00:00+00`), `bytea` as `\x6162`, `boolean` as `t` and `f`, `char(n)` **with its padding**, `numeric` with all
//! digits of its scale (`1.50`), floating point in the shortest form that is exact, `uuid` in lower case. An application
//! that writes them otherwise in its keys will not meet them: use integers, texts and UUIDs.
//!
//! # Cost
//!
//! Two connections; one round trip for each batch of up to some thousand changes. The server writes somewhat more to its log
//! with `wal_level = logical`, and the whole old row of each change where the replica identity is `FULL`. **While no
//! follower runs it keeps all of its log**, for which there is [`max_retained`](Postgres::max_retained) and
//! `max_slot_wal_keep_size`.
//!
//! # Keys that the writer names
//!
//! Who knows which keys a transaction changes can send them in it, without an [outbox](crate::outbox) and for tables that are not
//! published: they are told if and only if it is committed.
//!
//! ```no_run
//! # #![allow(dead_code)]
//! # mod example {
//! # use lockkeeper_cache::Cache;
//! use lockkeeper_cache::cdc::postgres;
//!
//! # async fn example(users: Cache<u64, String>, mut sql: sqlx::PgTransaction<'static>)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let mut tx = users.transaction();
//! // UPDATE users SET … WHERE id = 7
//! tx.touch(&7)?;
//! sqlx::query(postgres::EMIT).bind(tx.row().touched).execute(&mut *sql).await?;
//! // Invalidated at once; and by the follower, should we die in the middle.
//! tx.commit(async { sql.commit().await }).await?.cache?;
//! # Ok(())
//! # }
//! # }
//! ```

mod address;
mod control;
mod facts;
mod findings;
mod pgoutput;
mod position;
mod pump;
mod reader;
mod relations;
mod snapshot;
mod tls;
mod wire;

use std::collections::BTreeSet;
use std::fmt;

use async_trait::async_trait;
use pgwire_replication::Lsn;
use tokio::time::Instant;

use self::address::Address;
use self::control::{Control, identifier};
use self::facts::{Facts, Table};
use self::position::Place;
use self::pump::Pump;
use self::reader::{Reader, State, stream_error};
use self::relations::Relations;
use self::wire::{Wire, WireError};
use super::{Batch, Change, Finding, Log, LogError, Position, Severity, Source, Wanted};
use crate::error::{BoxError, Result};
use crate::provider::provider;

/// Sends the keys of [`Transaction::row`](crate::Transaction::row), its `touched`, into the log, in the transaction that changes
/// them. Anybody may do that; it needs no rights.
pub const EMIT: &str = "SELECT pg_logical_emit_message(true, 'lockkeeper', $1::text)";

/// What the slot may retain if neither we nor the server are told otherwise.
const RETAINED: u64 = 8 << 30;

/// How often a slot is asked for that somebody else has not let go of.
const ATTEMPTS: usize = 5;

/// A PostgreSQL database, from version 15 on, whose log can be read.
///
/// The role needs `REPLICATION` and `LOGIN`, and nothing else. The connection must not go through a pooler.
#[derive(Clone)]
pub struct Postgres {
    address: Address,
    names: Names,
    max_retained: Option<u64>,
}

/// What things are called at the server.
#[derive(Clone, Debug)]
struct Names {
    slot: String,
    publication: String,
}

/// What the server keeps for the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// So many bytes of its log.
    pub bytes: u64,
    /// So many more may be written before the slot is invalidated; `None`: any number.
    pub left: Option<u64>,
    /// `reserved`, `extended`, `unreserved` or `lost`: see `pg_replication_slots.wal_status`.
    pub status: String,
}

impl Postgres {
    /// The database that a URL of sqlx names; it is connected to when it is needed. `sslmode`, `sslrootcert`, `sslcert` and `sslkey`
    /// hold for both connections. With `sslrootcert` nobody else is trusted.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) for a URL that makes no sense.
    pub fn new(url: &str) -> Result<Self> {
        provider();
        let names = Names { slot: "lockkeeper".into(), publication: "lockkeeper".into() };
        Ok(Self { address: Address::parse(url)?, names, max_retained: None })
    }

    /// The slot, default `lockkeeper`: of this follower and its standbys, and of nobody else in the whole server. **It is dropped and
    /// made anew** when a follower begins from now on.
    #[must_use]
    pub fn slot(mut self, name: impl Into<String>) -> Self {
        self.names.slot = name.into();
        self
    }

    /// The publication, default `lockkeeper`.
    #[must_use]
    pub fn publication(mut self, name: impl Into<String>) -> Self {
        self.names.publication = name.into();
        self
    }

    /// So many bytes of log may be kept for the slot. With more, it is dropped, and the history is lost: better than a full disk.
    /// Default 8 GiB, if `max_slot_wal_keep_size` is not set. Looked at when the log is opened and every five seconds
    /// while it is read: when no follower runs, only `max_slot_wal_keep_size` helps.
    #[must_use]
    pub fn max_retained(mut self, bytes: u64) -> Self {
        self.max_retained = Some(bytes);
        self
    }

    /// What the server keeps for the slot; `None` if there is no such slot.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn retention(&self) -> Result<Option<Retention>, BoxError> {
        let mut control = Control::connect(&self.address).await?;
        let facts = control.facts(&self.names, &Wanted::new()).await?;
        Ok(facts.server.slot.map(|slot| Retention {
            bytes: slot.retained.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0),
            left: slot.safe.and_then(|bytes| u64::try_from(bytes).ok()),
            status: slot.status.unwrap_or_else(|| "lost".into()),
        }))
    }

    /// Makes the publication, or adds the tables that it lacks, and returns the statements that it ran. Tables that must not be
    /// published are left out: [`check`](Source::check) says why. Needs a role that owns the tables.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked, or refuses.
    pub async fn set_up(&self, wanted: &Wanted) -> Result<Vec<String>, BoxError> {
        let mut control = Control::connect(&self.address).await?;
        let facts = control.facts(&self.names, wanted).await?;
        let none = BTreeSet::new();
        let good = |table: &&Table| {
            findings::of_table(table, wanted.get(&table.table()).unwrap_or(&none)).is_empty()
        };
        let lacks = |table: &&Table| table.published.is_none();
        let good: Vec<&Table> = facts.tables.iter().filter(good).filter(lacks).collect();
        let publication = identifier(&self.names.publication);
        let statements = match &facts.server.publication {
            _ if good.is_empty() => Vec::new(),
            None => vec![findings::create(&self.names, &good)],
            Some(_) => {
                let each = good.iter().map(|table| findings::quoted(&table.table()));
                each.map(|table| format!("ALTER PUBLICATION {publication} ADD TABLE {table};"))
                    .collect()
            }
        };
        for statement in &statements {
            control.execute(statement.clone()).await?;
        }
        Ok(statements)
    }

    /// Drops the slot if it keeps too much.
    async fn limit(&self, control: &mut Control, facts: &Facts) -> Result<(), LogError> {
        let default = (facts.server.keep < 0).then_some(RETAINED);
        let retained = facts.server.slot.as_ref().and_then(|slot| slot.retained);
        let retained = retained.and_then(|bytes| u64::try_from(bytes).ok());
        let (Some(limit), Some(retained)) = (self.max_retained.or(default), retained) else {
            return Ok(());
        };
        if retained <= limit {
            return Ok(());
        }
        let slot = &self.names.slot;
        tracing::error!(%slot, retained, limit, "the slot keeps too much of the log: it is dropped");
        control.drop_slot(slot).await?;
        let text =
            format!("slot {slot} kept {retained} bytes of log, over {limit}, and was dropped");
        Err(LogError::Lost(text))
    }

    /// Where to go on, if that is still possible.
    async fn resume(
        &self,
        control: &mut Control,
        facts: &Facts,
        (then, lsn): (Place, Lsn),
        now: &Place,
    ) -> Result<Lsn, LogError> {
        let lost = |text: String| Err(LogError::Lost(text));
        if let Some(other) = then.differs(now) {
            return lost(other);
        }
        let name = &self.names.slot;
        let Some(slot) = &facts.server.slot else {
            return lost(format!("there is no slot {name} any more"));
        };
        if slot.status.as_deref().is_none_or(|status| status == "lost") {
            return lost(format!("slot {name} is lost: the server has thrown its log away"));
        }
        let confirmed = slot.confirmed.as_deref().and_then(|lsn| Lsn::parse(lsn).ok());
        if confirmed.is_none_or(|confirmed| confirmed > lsn) {
            let text = format!("slot {name} is at {confirmed:?} already, after {lsn}");
            return lost(text);
        }
        if lsn > control.moment().await?.written {
            return lost(format!("the log ends before {lsn}: the server was set back"));
        }
        self.limit(control, facts).await?;
        Ok(lsn)
    }

    async fn start(
        &self,
        control: &mut Control,
        mut wire: Wire,
        from: Lsn,
    ) -> Result<Pump, LogError> {
        // A list of names in a text.
        let publication = identifier(&self.names.publication).replace('\'', "''");
        let sql = format!(
            "START_REPLICATION SLOT {} LOGICAL {} \
             (proto_version '1', publication_names '{publication}', messages 'true')",
            identifier(&self.names.slot),
            from.to_pg_string()
        );
        for attempt in 1.. {
            control.take_over(&self.names.slot).await?;
            match wire.start(&sql).await {
                Ok((input, output)) => return Ok(Pump::start(input, output, from)),
                // Somebody was faster; or what we have ended is not gone.
                Err(WireError::Server(code, _)) if code == "55006" && attempt < ATTEMPTS => {}
                Err(error) => return Err(stream_error(error)),
            }
            wire = Wire::connect(&self.address).await.map_err(stream_error)?;
        }
        unreachable!("it returns")
    }
}

#[async_trait]
impl Source for Postgres {
    async fn check(&self, wanted: &Wanted) -> Result<Vec<Finding>, BoxError> {
        let mut control = Control::connect(&self.address).await?;
        let facts = control.facts(&self.names, wanted).await?;
        Ok(findings::all(&self.names, wanted, &facts))
    }

    async fn open(
        &self,
        from: Option<&Position>,
        wanted: &Wanted,
    ) -> Result<Box<dyn Log>, LogError> {
        let mut control = Control::connect(&self.address).await?;
        let facts = control.facts(&self.names, wanted).await?;
        let findings = findings::all(&self.names, wanted, &facts);
        let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
        let errors: Vec<String> = errors.map(ToString::to_string).collect();
        if !errors.is_empty() {
            return Err(LogError::Refused(errors.join("\n")));
        }
        let mut wire = Wire::connect(&self.address).await.map_err(stream_error)?;
        let identity = wire.row("IDENTIFY_SYSTEM").await.map_err(stream_error)?;
        let [system, timeline, ..] = &identity[..] else {
            return Err(LogError::Failed("the server does not say which one it is".into()));
        };
        let forms = facts.forms();
        let place = Place {
            system: system.clone(),
            timeline: timeline.clone(),
            database: self.address.database().to_owned(),
            slot: self.names.slot.clone(),
            publication: self.names.publication.clone(),
            tables: facts.shape(wanted),
            forms: facts::hash_of(&forms),
        };
        let mut first = None;
        let lsn = match from {
            Some(position) => {
                let odd = || LogError::Lost("the position cannot be read".into());
                let then = Place::parse(position).ok_or_else(odd)?;
                if then.0.forms != place.forms {
                    let why = "columns or partitions of a table have changed, or its rows were \
                               written anew, while nobody was looking";
                    first = Some(Batch {
                        changes: vec![Change::Everything { why }],
                        ..Batch::default()
                    });
                }
                self.resume(&mut control, &facts, then, &place).await?
            }
            None => {
                control.drop_slot(&self.names.slot).await?;
                let lsn = control.create_slot(&self.names.slot).await?;
                first = Some(Batch { position: Some(place.position(lsn)), ..Batch::default() });
                lsn
            }
        };
        let started = self.start(&mut control, wire, lsn).await;
        let pump = started.map_err(|error| match error {
            // What has just begun has no history: somebody meddles.
            LogError::Lost(why) if from.is_none() => LogError::Failed(why.into()),
            error => error,
        })?;
        let source = self.clone();
        let (relations, state, wanted) = (Relations::new(wanted), State::new(lsn), wanted.clone());
        let looked = Instant::now();
        Ok(Box::new(Reader {
            source,
            wanted,
            control,
            pump,
            relations,
            place,
            forms,
            first,
            looked,
            state,
        }))
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("address", &self.address)
            .field("names", &self.names)
            .field("max_retained", &self.max_retained)
            .finish()
    }
}
