//! Reads the stream ahead, and tells the server that we live, whatever the follower is waiting for.

use std::time::Duration;

use futures_util::FutureExt;
use pgwire_replication::Lsn;
use pgwire_replication::protocol::{BackendMessage, ReplicationCopyData, parse_copy_data};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::wire::{Input, Output, WireError};

/// No more of these, nor more bytes, in one piece; there are three pieces at most.
const MESSAGES: usize = 512;
const BYTES: usize = 256 * 1024;

const TICK: Duration = Duration::from_secs(1);

/// The server is told so often that we live.
const STATUS: Duration = Duration::from_secs(5);

/// When it was silent for so long it is asked; and is dead when it has not answered for so long.
const SILENT: Duration = Duration::from_secs(10);
const DEAD: Duration = Duration::from_secs(20);

type Piece = Result<Vec<ReplicationCopyData>, WireError>;

/// Ended when it is dropped.
#[derive(Debug)]
pub(super) struct Pump {
    pieces: mpsc::Receiver<Piece>,
    confirmed: watch::Sender<Lsn>,
    task: AbortHandle,
}

impl Pump {
    pub(super) fn start(input: Input, output: Output, from: Lsn) -> Self {
        let (sender, pieces) = mpsc::channel(1);
        let (confirmed, confirmations) = watch::channel(from);
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let now = Instant::now();
            let line =
                Line { output, confirmations, received: from, sent: now, heard: now, asked: None };
            if let Err(error) = pump(input, line, ticks, &sender).await {
                // Nobody wants to know if this fails.
                let _ = sender.send(Err(error)).await;
            }
        });
        Self { pieces, confirmed, task: task.abort_handle() }
    }

    /// What comes next. Cancel safe.
    pub(super) async fn piece(&mut self) -> Piece {
        self.pieces.recv().await.unwrap_or_else(|| Err("the stream has ended".into()))
    }

    /// The same, if it is there.
    pub(super) fn piece_now(&mut self) -> Option<Piece> {
        self.piece().now_or_never()
    }

    pub(super) fn confirm(&self, lsn: Lsn) {
        self.confirmed.send_if_modified(|confirmed| {
            let further = lsn > *confirmed;
            *confirmed = lsn.max(*confirmed);
            further
        });
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What we say, and what we know of the other side.
struct Line {
    output: Output,
    confirmations: watch::Receiver<Lsn>,
    received: Lsn,
    sent: Instant,
    heard: Instant,
    asked: Option<Instant>,
}

impl Line {
    async fn status(&mut self, answer: bool) -> Result<(), WireError> {
        let confirmed = *self.confirmations.borrow_and_update();
        self.sent = Instant::now();
        self.output.status(self.received, confirmed, answer).await
    }

    fn hear(&mut self) {
        self.heard = Instant::now();
        self.asked = None;
    }

    async fn tick(&mut self, reading: bool) -> Result<(), WireError> {
        match self.asked {
            // What we do not read we cannot hear.
            _ if !reading => self.hear(),
            Some(asked) if asked.elapsed() > DEAD => {
                return Err(format!("the server is silent for {:?}", self.heard.elapsed()).into());
            }
            None if self.heard.elapsed() > SILENT => {
                self.asked = Some(Instant::now());
                return self.status(true).await;
            }
            _ => {}
        }
        match self.sent.elapsed() > STATUS {
            true => self.status(false).await,
            false => Ok(()),
        }
    }

    /// A message as part of a piece; whether it wants an answer.
    fn take(
        &mut self,
        message: BackendMessage,
        piece: &mut Vec<ReplicationCopyData>,
    ) -> Result<bool, WireError> {
        match message.tag {
            b'd' => {}
            b'c' | b'C' | b'Z' => return Err("the server ends the stream".into()),
            _ => return Ok(false),
        }
        let data = parse_copy_data(message.payload)?;
        let (ReplicationCopyData::XLogData { wal_end, .. }
        | ReplicationCopyData::KeepAlive { wal_end, .. }) = &data;
        self.received = self.received.max(*wal_end);
        let answer = data.requires_reply();
        piece.push(data);
        Ok(answer)
    }
}

/// Until nobody wants to read.
async fn pump(
    mut input: Input,
    mut line: Line,
    mut ticks: Interval,
    sender: &mpsc::Sender<Piece>,
) -> Result<(), WireError> {
    loop {
        let mut next = loop {
            tokio::select! {
                message = input.message() => break Some(message),
                _ = ticks.tick() => line.tick(true).await?,
                Ok(()) = line.confirmations.changed() => line.status(false).await?,
                () = sender.closed() => return Ok(()),
            }
        };
        let (mut piece, mut bytes, mut answer, mut end) = (Vec::new(), 0, false, None);
        while let Some(message) = next {
            match message {
                Ok(message) => {
                    bytes += message.payload.len();
                    answer |= line.take(message, &mut piece)?;
                }
                // What came before counts.
                Err(error) => end = Some(error),
            }
            let full = piece.len() >= MESSAGES || bytes >= BYTES || end.is_some();
            next = if full { None } else { input.message().now_or_never() };
        }
        line.hear();
        if answer {
            line.status(false).await?;
        }
        let permit = loop {
            tokio::select! {
                permit = sender.reserve() => break permit,
                _ = ticks.tick() => line.tick(false).await?,
                Ok(()) = line.confirmations.changed() => line.status(false).await?,
            }
        };
        let Ok(permit) = permit else { return Ok(()) };
        permit.send(Ok(piece));
        if let Some(error) = end {
            return Err(error);
        }
    }
}
