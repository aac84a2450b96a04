//! The binary log of MariaDB.
//!
//! # How it works
//!
//! 1. A [`MariaDb`] asks the server for its log as a replica would, from a global transaction id (GTID) on, and reads rows as
//!    they were changed. Only columns that keys are made of become text.
//! 2. The server sends a transaction *before* it has committed it. So before a batch is told, a second connection asks how far
//!    the server has committed, until that is far enough: who is told and then loads gets what is told of.
//! 3. Where rows of a transaction in two phases (`XA`) are sent when it is prepared, they are kept until it is committed.
//! 4. What is in the log as text (`TRUNCATE`, `ALTER`, …) is told as a change of the tables that it mentions; a statement that changes
//!    rows (`binlog_format` is not `ROW`) or that is not known, as a change of everything.
//!
//! # What it promises
//!
//! Every change of a row that the server has in its log is told, at least once and in the order of the log; or its table is
//! told, or everything. What is rolled back is not. A position is after a transaction, and it is found again in the same
//! log or not at all: [`LogError::Lost`] if the log was purged or begun anew, or if another server answers.
//!
//! Cells are text as MariaDB writes it, with these differences: a `TIMESTAMP` is in UTC, a `BIT` is its number, `VARBINARY` and
//! `BLOB` are as `LOWER(HEX(…))`, and numbers have no zeros in front (`ZEROFILL`). There is no text for `FLOAT`, `DOUBLE`,
//! `BINARY`, `UUID`, `INET4`, `INET6`, geometry, compressed columns, and character sets other than `utf8mb4`, `utf8mb3`,
//! `latin1`, `ascii` and `binary`: these are [missing](super::Cell::Missing).
//!
//! # When it breaks
//!
//! - What is not in the log is not told: a session with `sql_log_bin = 0`, tables that the server is told to leave out, and what
//!   cascades of foreign keys change. Of these the log says at least which tables they *may* change, and those are told as a
//!   whole, with each statement; also where it has rows of the same table. Any table that a statement opens twice to change it
//!   looks the same.
//! - `binlog_row_metadata` must be `FULL`: without the names of columns only the table is told.
//! - `binlog_row_image = MINIMAL` leaves out the old values of columns that are not in the primary key.
//! - Two readers with the same [`server_id`](MariaDb::server_id) throw each other out.
//! - Tables without transactions (MyISAM, Aria) are told as they are in the log; a crash of the server may make that wrong.
//! - A transaction that was prepared before the log was opened is told as a change of everything when it is committed.
//!
//! # Cost
//!
//! A connection for the log and one for questions. One round trip for a batch of changes, more if the server is slow to
//! commit. When the server begins a new file, the last changes of the old one wait for its checkpoint: a second or so, in which
//! the server is asked for it, also by who is far behind in an older file. For each page of such an answer, 200 events, it holds up
//! its commits.
//!
//! To open the log where it was left, the server reads that file from its beginning, twice: a second or so for each 200 MB if it is in
//! memory. It is given minutes for that. A server that hangs meanwhile is noticed within some ten seconds once the log has begun,
//! and within two minutes before that.
//!
//! ```no_run
//! # #![allow(dead_code)]
//! use lockkeeper_cache::cdc::mariadb::MariaDb;
//! use lockkeeper_cache::cdc::{Source, Wanted};
//!
//! # async fn example(wanted: Wanted) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let source = MariaDb::new("mysql://follower:secret@db/shop")?;
//! for finding in source.check(&wanted).await? {
//!     eprintln!("{finding}");
//! }
//! let mut log = source.open(None, &wanted).await?;
//! let batch = log.next().await?;
//! # drop(batch);
//! # Ok(())
//! # }
//! ```

mod bytes;
mod cell;
mod charset;
mod check;
mod control;
mod event;
mod gate;
mod gtid;
mod held;
mod replay;
mod rows;
mod scan;
mod sql;
mod stream;
mod table;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use async_trait::async_trait;
use mysql_async::{Opts, OptsBuilder};
use tokio::time::{Instant, sleep};

use self::charset::Charsets;
use self::control::{Control, not_lost};
use self::gate::{Checkpoints, Doubt, Gate, Verdict};
use self::gtid::Saved;
use self::replay::Replay;
use self::scan::Scan;
use self::stream::{Binlog, Stream};
use self::table::Targets;
use super::{Finding, Log, LogError, Position, Source, Wanted};
use crate::error::{BoxError, Error, Result};
use crate::provider::provider;

/// A MariaDB server, 10.5 or later, with a binary log.
///
/// Its user needs `REPLICATION SLAVE` and `BINLOG MONITOR`, and `SELECT` on the tables.
pub struct MariaDb {
    options: Opts,
    id: u32,
}

impl fmt::Debug for MariaDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MariaDb")
            .field("host", &self.options.ip_or_hostname())
            .field("port", &self.options.tcp_port())
            .field("server_id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Numbers that people give to their servers are smaller.
const RANDOM_IDS: u32 = 0x8000_0000;

impl MariaDb {
    /// The server that `mysql://user:password@host:port/database` names, with options of mysql_async (`require_ssl=true`, …).
    /// It is connected to when it is needed.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a URL that makes no sense.
    pub fn new(url: &str) -> Result<Self> {
        // It may name a password.
        let bad = |_| Error::Config("the URL of a database to follow makes no sense".into());
        let options = OptsBuilder::from_opts(Opts::from_url(url).map_err(bad)?);
        let options = options.prefer_socket(false).into();
        provider();
        let random = RandomState::new().hash_one(0);
        let id = RANDOM_IDS | u32::try_from(random >> 33).unwrap_or_default();
        Ok(Self { options, id })
    }

    /// The number by which the server knows this reader among its replicas. Two readers at a time with the same one throw each
    /// other out. A large number at random by default.
    #[must_use]
    pub fn server_id(self, id: u32) -> Self {
        Self { id, ..self }
    }

    async fn resume(
        &self,
        mut control: Control,
        targets: Targets,
        charsets: Charsets,
        saved: Saved,
    ) -> Result<Box<dyn Log>, LogError> {
        let lost = |text: &str| Err(LogError::Lost(text.into()));
        if control.gtids(&saved.place).await?.as_ref() != Some(&saved.gtids) {
            return lost(
                "the server does not have this place in its log, or has another one there",
            );
        }
        let stream = Stream::open(&self.options, self.id, &saved).await?;
        let replay = Replay::new(targets, charsets, saved.clone());
        let log = Binlog::open(stream, control, replay).await?;
        let same = log.replay().at().file == saved.place.file;
        if same && log.replay().born() != saved.born {
            return lost("the log was begun anew");
        }
        Ok(Box::new(log))
    }

    async fn begin(
        &self,
        mut control: Control,
        wanted: &Wanted,
        server: u32,
        fold: bool,
    ) -> Result<Box<dyn Log>, LogError> {
        let charsets = control.charsets().await?;
        for _ in 0..5 {
            let mut saved = now(&mut control, server).await?;
            let stream = Stream::open(&self.options, self.id, &saved).await?;
            let replay = Replay::new(Targets::new(wanted, fold), charsets.clone(), saved.clone());
            let log = Binlog::open(stream, control, replay).await?;
            if log.replay().at().file == saved.place.file {
                saved.born = log.replay().born();
                return Ok(Box::new(log.telling(saved)));
            }
            // A new file was begun in between.
            control = Control::connect(&self.options).await?;
        }
        Err(LogError::Failed("the log begins new files faster than one can read".into()))
    }
}

/// What is committed comes into the log before; a place behind which nothing is, is found soon.
const SETTLE: Duration = Duration::from_secs(60);

/// A place before which everything can be read.
async fn now(control: &mut Control, server: u32) -> Result<Saved, LogError> {
    let until = Instant::now() + SETTLE;
    let (mut doubt, mut scan) = (Doubt::default(), Scan::default());
    while Instant::now() < until {
        let seen = control.look().await?;
        let place = seen.committed.clone();
        scan.go_on(control, &place.file).await?;
        let Scan { checkpoints, first, .. } = &scan;
        let mut known = Checkpoints::default();
        for (end, named) in checkpoints {
            known.note(&place.file, named, *end);
        }
        let mut verdict = Gate::default().verdict(&place, &seen, &known, None);
        let last = checkpoints.iter().find(|(_, named)| *named == place.file);
        if last
            .is_some_and(|(end, _)| *end == place.offset && first.is_none_or(|first| first > *end))
        {
            // Nothing is in front of it in the file, and everything in the files before is committed.
            verdict = Verdict::Yes;
        }
        if doubt.is_over(verdict, &seen)
            && let Some(gtids) = control.gtids(&place).await?
        {
            return Ok(Saved { server, born: 0, place, gtids });
        }
        sleep(Duration::from_millis(20)).await;
    }
    Err(LogError::Failed(format!("the server has not committed its log within {SETTLE:?}").into()))
}

#[async_trait]
impl Source for MariaDb {
    async fn check(&self, wanted: &Wanted) -> Result<Vec<Finding>, BoxError> {
        let mut control = Control::connect(&self.options).await?;
        Ok(check::check(&mut control, wanted).await?)
    }

    async fn open(
        &self,
        from: Option<&Position>,
        wanted: &Wanted,
    ) -> Result<Box<dyn Log>, LogError> {
        let mut control = Control::connect(&self.options).await.map_err(not_lost)?;
        let identity = control.identify().await.map_err(not_lost)?;
        let Some(from) = from else {
            let log = self.begin(control, wanted, identity.server, identity.fold).await;
            return log.map_err(not_lost);
        };
        let Some(saved) = Saved::parse(from) else {
            return Err(LogError::Lost("the position is none of a MariaDB server".into()));
        };
        if saved.server != identity.server {
            return Err(LogError::Lost("another server answers".into()));
        }
        let charsets = control.charsets().await?;
        self.resume(control, Targets::new(wanted, identity.fold), charsets, saved).await
    }
}
