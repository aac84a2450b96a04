//! The log, as a follower reads it.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pgwire_replication::Lsn;
use pgwire_replication::protocol::ReplicationCopyData;
use tokio::time::Instant;

use super::control::{Control, Moment};
use super::facts::{self, Facts, Forms};
use super::pgoutput::{self, Message};
use super::position::Place;
use super::pump::Pump;
use super::relations::Relations;
use super::wire::WireError;
use super::{Postgres, findings};
use crate::cdc::{Batch, Change, Lag, Log, LogError, Position, Severity, Wanted};

/// A batch has no more changes than this, and those of one message.
const CHANGES: usize = 2000;

/// A batch without changes comes after this time; one with changes does not wait for more than this for others.
const IDLE: Duration = Duration::from_secs(1);
const MORE: Duration = Duration::from_millis(20);

/// How often the server is looked at.
const LOOK: Duration = Duration::from_secs(5);

/// How long a transaction that is in the log may take until it can be seen.
const UNSEEN: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// A log that is being read.
pub(super) struct Reader {
    pub(super) source: Postgres,
    pub(super) wanted: Wanted,
    pub(super) control: Control,
    pub(super) pump: Pump,
    pub(super) relations: Relations,
    pub(super) place: Place,
    pub(super) forms: Forms,
    /// What comes before everything else.
    pub(super) first: Option<Batch>,
    pub(super) looked: Instant,
    pub(super) state: State,
}

/// How far we are.
pub(super) struct State {
    pending: VecDeque<ReplicationCopyData>,
    /// The transaction that we are in the middle of.
    open: Option<u32>,
    /// When the last that was read was committed.
    time: Option<i64>,
    read: Lsn,
    /// Everything before is in batches, and no transaction is open there.
    whole: Lsn,
    /// The last position that was given away.
    given: Lsn,
    /// The transaction that is open, if it was found to be visible: a large one is not asked for twice.
    seen: Option<u32>,
    held: Option<Held>,
}

/// Changes that cannot be given away as yet.
#[derive(Default)]
struct Held {
    changes: Vec<Change>,
    xids: BTreeSet<u32>,
    since: Option<Instant>,
}

impl State {
    pub(super) fn new(from: Lsn) -> Self {
        Self {
            pending: VecDeque::new(),
            open: None,
            time: None,
            read: from,
            whole: from,
            given: from,
            seen: None,
            held: None,
        }
    }

    fn lag(&self, moment: &Moment, idle: bool) -> Lag {
        let bytes = moment.written.as_u64().saturating_sub(self.read.as_u64());
        let time = self.time.filter(|_| !idle);
        let time = time.map(|time| u64::try_from(moment.time.saturating_sub(time)).unwrap_or(0));
        Lag { bytes: Some(bytes), time: time.map(Duration::from_micros) }
    }
}

/// Whether the server has said that what we want is not there any more.
pub(super) fn stream_error(error: WireError) -> LogError {
    match &error {
        // The publication or the slot is gone; the slot was invalidated; the files of the log are gone.
        WireError::Server(code, _) if matches!(code.as_str(), "42704" | "55000" | "58P01") => {
            LogError::Lost(error.to_string())
        }
        WireError::Server(code, _) if super::control::refusal(code) => {
            LogError::Refused(error.to_string())
        }
        _ => LogError::Failed(error.into()),
    }
}

impl Reader {
    /// Reads as much as there is, or waits a little.
    async fn collect(&mut self) -> Result<Held, LogError> {
        let (since, mut changed) = (Instant::now(), None::<Instant>);
        let mut held = Held::default();
        loop {
            while let Some(data) = self.state.pending.pop_front() {
                self.take(data, &mut held)?;
                if held.changes.len() >= CHANGES {
                    return Ok(held);
                }
            }
            let now = Instant::now();
            if changed.is_none() && !held.changes.is_empty() {
                changed = Some(now);
            }
            let piece = match changed {
                Some(changed) if changed + MORE <= now => return Ok(held),
                // The rest of a transaction is on its way.
                Some(changed) if self.state.open.is_some() => {
                    tokio::time::timeout_at(changed + MORE, self.pump.piece()).await.ok()
                }
                Some(_) => self.pump.piece_now(),
                // Nothing of what comes is wanted, perhaps; but it goes on.
                None if since + IDLE <= now => return Ok(held),
                None => tokio::time::timeout_at(since + IDLE, self.pump.piece()).await.ok(),
            };
            match piece {
                Some(piece) => self.state.pending.extend(piece.map_err(stream_error)?),
                None => return Ok(held),
            }
        }
    }

    fn take(&mut self, data: ReplicationCopyData, held: &mut Held) -> Result<(), LogError> {
        let state = &mut self.state;
        let data = match data {
            ReplicationCopyData::KeepAlive { wal_end, .. } => {
                state.read = state.read.max(wal_end);
                if state.open.is_none() {
                    state.whole = state.whole.max(wal_end);
                }
                return Ok(());
            }
            ReplicationCopyData::XLogData { wal_start, data, .. } => {
                state.read = state.read.max(wal_start);
                data
            }
        };
        let odd = || LogError::Lost("the log says something that cannot be understood".into());
        let message = pgoutput::decode(&data).ok_or_else(odd)?;
        match message {
            Message::Begin { time, xid } => {
                state.open = Some(xid);
                state.seen = None;
                state.time = Some(time);
            }
            Message::Commit { end } => {
                state.open = None;
                state.read = state.read.max(Lsn(end));
                state.whole = state.whole.max(Lsn(end));
            }
            message => {
                let before = held.changes.len();
                self.relations.read(&message, &mut held.changes).map_err(|_| odd())?;
                if held.changes.len() > before {
                    held.xids.extend(state.open.filter(|xid| state.seen != Some(*xid)));
                }
            }
        }
        Ok(())
    }

    /// Gives away what everybody can see by now; or an empty batch after a while.
    async fn give(&mut self, mut held: Held) -> Result<Batch, LogError> {
        let since = Instant::now();
        let asked = self.state.open.filter(|xid| held.xids.contains(xid));
        loop {
            let moment = self.control.moment().await?;
            held.xids.retain(|xid| !moment.snapshot.sees(*xid));
            if held.xids.is_empty() {
                self.state.seen = asked.or(self.state.seen);
                let idle = held.changes.is_empty() && self.state.open.is_none();
                let lag = self.state.lag(&moment, idle);
                let further = self.state.whole > self.state.given;
                self.state.given = self.state.whole;
                let position = further.then(|| self.place.position(self.state.whole));
                return Ok(Batch { changes: held.changes, position, lag });
            }
            let first = *held.since.get_or_insert(since);
            if first.elapsed() > UNSEEN {
                let text = "a transaction is in the log and still cannot be seen";
                let why = "does it wait for a synchronous standby?";
                let text = format!("{text} after {UNSEEN:?}: {why} {:?}", held.xids);
                return Err(LogError::Failed(text.into()));
            }
            if since.elapsed() > IDLE {
                let lag = self.state.lag(&moment, false);
                self.state.held = Some(held);
                return Ok(Batch { changes: Vec::new(), position: None, lag });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Whether everything is still as it must be; and what was changed without a word in the log.
    async fn look(&mut self) -> Result<Vec<Change>, LogError> {
        let facts = self.control.facts(&self.source.names, &self.wanted).await?;
        self.looked = Instant::now();
        let tables = findings::of_tables(&self.source.names, &self.wanted, &facts);
        if let Some(wrong) = tables.iter().find(|finding| finding.severity == Severity::Error) {
            return Err(LogError::Lost(wrong.what.clone()));
        }
        let now = Place { tables: facts.shape(&self.wanted), ..self.place.clone() };
        if let Some(other) = self.place.differs(&now) {
            return Err(LogError::Lost(other));
        }
        self.source.limit(&mut self.control, &facts).await?;
        Ok(self.reshape(&facts))
    }

    /// What looks otherwise than before. All that the catalogues say to us can be read by everybody.
    fn reshape(&mut self, facts: &Facts) -> Vec<Change> {
        let now = facts.forms();
        let changed = now.iter().filter(|(table, forms)| self.forms.get(*table) != Some(*forms));
        let changes = changed.map(|(table, _)| Change::Table {
            table: Arc::new(table.clone()),
            why: "its columns or partitions have changed, or its rows were written anew",
        });
        let changes = changes.collect();
        // Saved with positions from here on: none is given away before these changes are.
        self.place.forms = facts::hash_of(&now);
        self.forms = now;
        changes
    }
}

#[async_trait]
impl Log for Reader {
    async fn next(&mut self) -> Result<Batch, LogError> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        let mut found = Vec::new();
        if self.looked.elapsed() > LOOK {
            found = self.look().await?;
        }
        let mut held = match self.state.held.take() {
            Some(held) => held,
            None if found.is_empty() => self.collect().await?,
            None => Held::default(),
        };
        held.changes.append(&mut found);
        self.give(held).await
    }

    async fn confirm(&mut self, position: &Position) -> Result<(), LogError> {
        let odd = || LogError::Failed("a position that was never given".into());
        let (_, lsn) = Place::parse(position).ok_or_else(odd)?;
        self.pump.confirm(lsn);
        Ok(())
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("place", &self.place).finish_non_exhaustive()
    }
}
