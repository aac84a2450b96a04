//! Reading the log of a server.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use mysql_async::binlog::events;
use mysql_async::prelude::Queryable;
use mysql_async::{BinlogStream, BinlogStreamRequest, Conn, Opts};
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::control::{Control, Seen, connect, log_error};
use super::event::{Event, Head};
use super::gate::{Doubt, Gate};
use super::gtid::{File, Place, Saved};
use super::replay::Replay;
use super::scan::Scan;
use crate::cdc::{Batch, Change, Lag, Log, LogError, Position};

/// What a server that has nothing to say says so in.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// A server that is silent for longer is gone.
const SILENCE: Duration = Duration::from_secs(6);
/// For so long it may look for the file in which a stream begins. It says nothing meanwhile.
const FIND: Duration = Duration::from_secs(60);
/// For so long it may look for the place in that file, which it reads from its beginning. The same; whether it is alive is seen by
/// what else it is asked, each second or so.
const SEEK: Duration = Duration::from_secs(600);
/// A batch comes after this time at the latest.
const WAIT: Duration = Duration::from_secs(1);
/// About as many changes are in a batch; those of one event are never apart.
const CHANGES: usize = 2_000;
/// What is in the log is committed in this time, or something is wrong. Shorter than a follower waits for a batch, which would not
/// know what it has waited for.
const COMMIT: Duration = Duration::from_secs(45);
/// How often the end of the log is asked for, without another reason.
const LOOK: Duration = Duration::from_secs(1);

/// The log of a server, from some place on.
pub(super) struct Stream {
    events: BinlogStream,
}

fn head(event: &events::Event) -> Head {
    let header = event.header();
    Head {
        kind: header.event_type_raw(),
        time: header.timestamp(),
        server: header.server_id(),
        end: header.log_pos(),
        flags: header.flags_raw(),
    }
}

fn told(event: Option<mysql_async::Result<events::Event>>) -> Result<events::Event, LogError> {
    match event {
        Some(event) => event.map_err(log_error),
        None => Err(LogError::Failed("the server has ended the log".into())),
    }
}

impl Stream {
    pub(super) async fn open(options: &Opts, id: u32, saved: &Saved) -> Result<Self, LogError> {
        let conn = connect(options).await?;
        let open = Self::request(conn, id, saved);
        match timeout(SILENCE, open).await {
            Ok(events) => Ok(Self { events: events.map_err(log_error)? }),
            Err(_) => Err(silent(SILENCE)),
        }
    }

    async fn request(mut conn: Conn, id: u32, saved: &Saved) -> mysql_async::Result<BinlogStream> {
        let heartbeat = HEARTBEAT.as_nanos();
        conn.query_drop(format!(
            "SET @mariadb_slave_capability = 4, @slave_connect_state = '{}', \
             @slave_gtid_strict_mode = 0, @slave_gtid_ignore_duplicates = 0, \
             @master_heartbeat_period = {heartbeat}, @master_binlog_checksum = 'CRC32'",
            saved.gtids
        ))
        .await?;
        conn.get_binlog_stream(BinlogStreamRequest::new(id)).await
    }

    /// What is there already.
    fn ready(&mut self) -> Result<Option<events::Event>, LogError> {
        let event = unconstrained(self.events.next()).now_or_never();
        event.map(told).transpose()
    }

    async fn next(&mut self) -> Result<events::Event, LogError> {
        told(self.events.next().await)
    }
}

fn silent(time: Duration) -> LogError {
    LogError::Failed(format!("the server was silent for {time:?}").into())
}

/// The log of a server that is being read.
pub(super) struct Binlog {
    stream: Stream,
    control: Control,
    replay: Replay,
    gate: Gate,
    /// Comes before anything else.
    first: Option<Position>,
    scan: Scan,
    /// When something came last.
    heard: Instant,
    seen: Option<(Instant, Seen)>,
    lag: Lag,
}

impl fmt::Debug for Binlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binlog").field("at", self.replay.at()).finish_non_exhaustive()
    }
}

impl Binlog {
    /// Reads until it is known in which file the stream begins.
    pub(super) async fn open(
        mut stream: Stream,
        mut control: Control,
        mut replay: Replay,
    ) -> Result<Self, LogError> {
        let until = Instant::now() + FIND;
        let mut begun = false;
        // A rotation, and the format.
        for _ in 0..16 {
            let Ok(event) = timeout_at(until, stream.next()).await else {
                return Err(silent(FIND));
            };
            let (event, mut tell) = (event?, Vec::new());
            let head = head(&event);
            if let (false, Ok(Event::Rotate { file, .. })) =
                (begun, Event::parse(&head, event.data()))
            {
                replay.begin(first_file(&mut control, file).await?);
                begun = true;
                continue;
            }
            replay.apply(&head, event.data(), &mut tell)?;
            if begun && replay.born() > 0 {
                let (gate, scan, heard) = (Gate::default(), Scan::default(), Instant::now());
                let (first, seen, lag) = (None, None, Lag::default());
                return Ok(Self { stream, control, replay, gate, first, scan, heard, seen, lag });
            }
        }
        Err(LogError::Failed("the log does not begin as it should".into()))
    }

    pub(super) fn replay(&self) -> &Replay {
        &self.replay
    }

    /// Tells this position before anything else.
    pub(super) fn telling(mut self, saved: Saved) -> Self {
        self.first = Some(saved.position());
        self.replay.saved = saved;
        self
    }

    /// The next event. `None` if there is none: at once, or not until then.
    async fn event(&mut self, until: Option<Instant>) -> Result<Option<events::Event>, LogError> {
        let event = match self.stream.ready()? {
            Some(event) => Some(event),
            None => match until {
                Some(until) => timeout_at(until, self.stream.next()).await.ok().transpose()?,
                None => None,
            },
        };
        let patience = if self.replay.is_before_saved() { SEEK } else { SILENCE };
        match event {
            Some(_) => self.heard = Instant::now(),
            None if self.heard.elapsed() > patience => return Err(silent(patience)),
            None => {}
        }
        Ok(event)
    }

    /// Waits until everything up to there can be read.
    async fn pass(&mut self, target: &Place) -> Result<(), LogError> {
        let until = Instant::now() + COMMIT;
        let (mut pause, mut doubt) = (Duration::from_micros(200), Doubt::default());
        loop {
            let seen = self.control.look().await?;
            let previous = self.replay.previous(&target.file);
            let verdict = self.gate.verdict(target, &seen, &self.replay.checkpoints, previous);
            let yes = doubt.is_over(verdict, &seen);
            self.seen = Some((Instant::now(), seen));
            if yes && self.completed().await? {
                return Ok(());
            }
            if Instant::now() > until {
                let text = format!("what is in the log was not committed within {COMMIT:?}");
                return Err(LogError::Failed(text.into()));
            }
            self.look_for_checkpoints().await?;
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Those that were prepared are committed outside of the order of the log.
    async fn completed(&mut self) -> Result<bool, LogError> {
        if self.replay.completed.is_empty() {
            return Ok(true);
        }
        let prepared = self.control.prepared().await?;
        self.replay.completed.retain(|xid| prepared.contains(xid));
        Ok(self.replay.completed.is_empty())
    }

    /// In the newest file, which may be far ahead. There is nothing to find if its last one is known.
    async fn look_for_checkpoints(&mut self) -> Result<(), LogError> {
        let Some((_, Seen { end: Place { file, .. }, .. })) = &self.seen else { return Ok(()) };
        if self.replay.checkpoints.last(file).is_some() {
            return Ok(());
        }
        self.scan.go_on(&mut self.control, file).await?;
        for (end, named) in &self.scan.checkpoints {
            self.replay.checkpoints.note(file, named, *end);
        }
        Ok(())
    }

    async fn measure(&mut self) -> Result<Lag, LogError> {
        let old = self.seen.as_ref().is_none_or(|(when, _)| when.elapsed() > LOOK);
        if old {
            self.seen = Some((Instant::now(), self.control.look().await?));
        }
        let Some((_, seen)) = &self.seen else { return Ok(self.lag) };
        let (mut at, end, now) = (self.replay.at().clone(), seen.end.clone(), seen.now);
        let saved = &self.replay.saved.place;
        if at.file == saved.file {
            // What is before it was not sent.
            at.offset = at.offset.max(saved.offset);
        }
        let bytes = if at.file == end.file {
            end.offset.saturating_sub(at.offset)
        } else if old || self.lag.bytes.is_none() {
            let after = |name: &str| File::new(name).is_after(&at.file);
            let sizes = self.control.files().await?;
            let rest = sizes.iter().map(|(name, size)| match name.as_str() {
                name if name == at.file.name() => size.saturating_sub(at.offset),
                name if after(name) => *size,
                _ => 0,
            });
            rest.sum()
        } else {
            self.lag.bytes.unwrap_or_default()
        };
        let time = match (bytes, self.replay.time) {
            (0, _) => Some(Duration::ZERO),
            (_, 0) => None,
            (_, time) => Some(Duration::from_secs(u64::from(now.saturating_sub(time)))),
        };
        self.lag = Lag { bytes: Some(bytes), time };
        Ok(self.lag)
    }
}

/// Its name comes with a checksum behind it that nobody has announced yet.
async fn first_file(control: &mut Control, name: &[u8]) -> Result<File, LogError> {
    let short = &name[..name.len().saturating_sub(4)];
    for (file, _) in control.files().await? {
        if file.as_bytes() == name || file.as_bytes() == short {
            return Ok(File::new(&file));
        }
    }
    Err(LogError::Failed("the log begins with a file that the server does not have".into()))
}

#[async_trait]
impl Log for Binlog {
    async fn next(&mut self) -> Result<Batch, LogError> {
        if let Some(first) = self.first.take() {
            return Ok(Batch { position: Some(first), ..Batch::default() });
        }
        let until = Instant::now() + WAIT;
        let (mut changes, mut target, mut ended) = (Vec::<Change>::new(), None, false);
        loop {
            let found = ended || !changes.is_empty();
            let Some(event) = self.event((!found).then_some(until)).await? else { break };
            let before = changes.len();
            ended |= self.replay.apply(&head(&event), event.data(), &mut changes)?;
            if changes.len() > before {
                target = Some(self.replay.at().clone());
            }
            if changes.len() >= CHANGES || Instant::now() >= until {
                break;
            }
        }
        if let Some(target) = target {
            self.pass(&target).await?;
        }
        let position = ended.then(|| self.replay.saved.position());
        Ok(Batch { changes, position, lag: self.measure().await? })
    }

    async fn confirm(&mut self, _: &Position) -> Result<(), LogError> {
        // Files are kept for as long as the server is told to keep them, whoever reads them.
        Ok(())
    }
}
