//! The time in which it is a follower's turn.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use lockkeeper::clock::Instant;
use tokio::time::{sleep, timeout};

use super::record;
use super::rules::Plan;
use super::worker::Worker;
use crate::cdc::status::{Board, State, told};
use crate::cdc::{Batch, Log, LogError, Position, Severity};
use crate::entry::Ticket;
use crate::error::{Error, Result as CacheResult, StoreError};
use crate::store::{Claim, Positions};
use crate::transaction::Touched;

/// So many keys are invalidated at once; a batch may be of several pages, which share the time.
const PAGE: usize = 1000;

/// The cache is tried so often. Each time it does what it can for as long as its own timeout says.
const ATTEMPTS: u32 = 5;

/// Between the first two of them; twice as long each time.
const RETRY: Duration = Duration::from_millis(100);

/// A position is saved so often when nothing has changed. It is a sign of life as well.
const SAVE: Duration = Duration::from_secs(1);

/// Who has given no sign of life for that long is taken for dead when tokens are compared.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two claims.
const CLAIM: Duration = Duration::from_secs(1);

/// The database answers within this time, whatever it is asked, or has failed.
const LONGEST: Duration = Duration::from_secs(60);

/// But for opening its log, which it may have to go through from an early place on.
const OPENING: Duration = Duration::from_secs(300);

/// Why it is over.
#[derive(Debug)]
pub(super) enum End {
    /// Somebody must set something up.
    Refused(String),
    /// The log, or what is around it.
    Failed(String),
    /// The cache could not be told.
    Unreachable(String),
    /// Somebody else has claimed the record since, or its server is another one now.
    Superseded,
}

/// One turn.
pub(super) struct Tenure<'a> {
    worker: &'a Worker,
    positions: &'a dyn Positions,
    ticket: Ticket,
}

impl<'a> Tenure<'a> {
    /// As long as the log can be read and the cache be told.
    pub(super) async fn run(worker: &'a Worker, token: u64) -> End {
        // Looked at when it was started.
        let Some(positions) = worker.rules.targets.first().and_then(|first| first.positions())
        else {
            return End::Refused("the store keeps no positions".into());
        };
        let tenure = Self { worker, positions, ticket: Ticket::new() };
        let Err(end) = tenure.follow(token).await;
        end
    }

    async fn follow(&self, token: u64) -> Result<Infallible, End> {
        self.check().await?;
        let saved = self.claim(token).await?;
        let lost = match record::decode(self.worker.fingerprint, saved.as_deref()) {
            Ok(position) => match self.open(Some(&position)).await {
                // Where history is lost, some databases say so only when it is read.
                Ok(log) => self.read(log, position).await?,
                Err(LogError::Lost(why)) => why,
                Err(error) => return Err(failed(error)),
            },
            Err(why) => why.to_owned(),
        };
        let (log, position) = self.reset(&lost).await?;
        // Not once more in this turn: clearing everything all the time helps nobody.
        let lost = self.read(log, position).await?;
        Err(End::Refused(format!("the history is lost again and again: {lost}")))
    }

    /// Follows the log from there on, until its history is lost, and why.
    async fn read(&self, mut log: Box<dyn Log>, mut at: Position) -> Result<String, End> {
        let Worker { board, name, rules, .. } = self.worker;
        board.note(|status| {
            status.state = State::Following;
            status.position = Some(at.clone());
        });
        tracing::info!(follower = name, position = %at, "a log is followed");
        let (mut saved, mut changed) = (Instant::now(), false);
        loop {
            let Batch { changes, position, lag } = match within("reading", log.next()).await {
                Ok(batch) => batch,
                Err(LogError::Lost(why)) => return Ok(why),
                Err(error) => return Err(failed(error)),
            };
            let count = changes.len() as u64;
            let plan = rules.plan(changes);
            changed |= !plan.is_empty();
            self.apply(plan).await?;
            // From here on all is done that the log has told so far.
            board.note(|status| {
                status.changes += count;
                status.lag = lag;
            });
            let moved = position.is_some();
            at = position.unwrap_or(at);
            if (moved && changed) || Instant::now().since(saved) >= SAVE {
                self.save(&at).await?;
                within("confirming", log.confirm(&at)).await.map_err(failed)?;
                // What came since the last transaction that is complete is saved with that one.
                changed &= !moved;
                saved = Instant::now();
            }
        }
    }

    /// Looks whether the database is as it should be.
    async fn check(&self) -> Result<(), End> {
        let Worker { source, wanted, board, name, .. } = self.worker;
        board.state(State::Starting);
        let checking = async { source.check(wanted).await.map_err(LogError::Failed) };
        let findings = within("checking", checking).await.map_err(failed)?;
        let mut errors = Vec::new();
        for finding in findings {
            let text = finding.to_string();
            match finding.severity {
                Severity::Error => errors.push(text),
                Severity::Warning if board.is_news(&text) => {
                    tracing::warn!(follower = name, "{text}");
                }
                Severity::Warning => {}
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(End::Refused(errors.join("\n"))) }
    }

    /// Takes the record. What is saved in it.
    async fn claim(&self, token: u64) -> Result<Option<String>, End> {
        let Worker { board, name, .. } = self.worker;
        loop {
            let claim = || self.positions.claim(name, self.ticket, token, PATIENCE);
            match self.insist("claiming", claim).await? {
                Claim::Granted { position, overruled } => {
                    if overruled {
                        tracing::warn!(
                            follower = name,
                            token,
                            "the locks have given larger tokens before: they have lost their counter"
                        );
                    }
                    return Ok(position);
                }
                Claim::Refused => {
                    let why = format!("somebody with a larger token than {token} follows");
                    board.failed(&why);
                    board.state(State::Waiting { why });
                    sleep(CLAIM).await;
                }
            }
        }
    }

    async fn open(&self, from: Option<&Position>) -> Result<Box<dyn Log>, LogError> {
        let Worker { source, wanted, .. } = self.worker;
        within_time(OPENING, "opening", source.open(from, wanted)).await
    }

    /// Begins anew: nobody knows what has changed since.
    ///
    /// 1. It is saved that history is lost: who dies before 4 leaves nothing behind that would let the next one go on.
    /// 2. The log is opened. From here on it will tell what changes.
    /// 3. Every namespace is cleared. What was loaded before 2 is gone, and loads that are under way fill nothing; what is loaded
    ///    afterwards has seen all that was committed before 2.
    /// 4. The position of 2 is saved.
    ///
    /// The other way round, what changes between the clearing and the opening would be missed by both.
    async fn reset(&self, why: &str) -> Result<(Box<dyn Log>, Position), End> {
        let Worker { board, name, rules, fingerprint, .. } = self.worker;
        let namespaces: Vec<&str> = rules.targets.iter().map(|target| target.namespace()).collect();
        tracing::warn!(follower = name, why, ?namespaces, "begins anew, and clears its namespaces");
        board.note(|status| {
            status.state = State::Resetting;
            status.resets += 1;
        });
        // If this turn ends before the next position is saved, the next one must not go on from the last.
        self.store_record(&record::lost(*fingerprint)).await?;
        let mut log = self.open(None).await.map_err(failed)?;
        let first = within("reading", log.next()).await.map_err(failed)?;
        let Some(at) = first.position else {
            return Err(End::Failed("the log does not say where it begins".into()));
        };
        let mut plan = rules.plan(first.changes);
        plan.work.iter_mut().for_each(|work| work.all = true);
        self.apply(plan).await?;
        self.save(&at).await?;
        within("confirming", log.confirm(&at)).await.map_err(failed)?;
        Ok((log, at))
    }

    /// Does what is to be done, all of it, or ends.
    async fn apply(&self, plan: Plan) -> Result<(), End> {
        let Worker { board, rules, name, .. } = self.worker;
        for table in &plan.unknown {
            if board.is_news(&format!("unknown {table}")) {
                tracing::warn!(follower = name, %table, "the log does not have the columns of its keys: namespaces are cleared");
            }
        }
        for (namespace, _) in &plan.foreign {
            if board.is_news(&format!("foreign {namespace}")) {
                tracing::warn!(
                    follower = name,
                    namespace,
                    "keys of a cache that this follower does not have"
                );
            }
        }
        let foreign: usize = plan.foreign.iter().map(|(_, keys)| keys).sum();
        board.note(|status| {
            status.unknown += plan.unknown.len() as u64;
            status.foreign += foreign as u64;
        });
        let mut jobs = Vec::new();
        for (target, work) in plan.work.into_iter().enumerate() {
            if work.all {
                jobs.push(Job { target, keys: None });
            }
            let keys: Vec<Touched> = work.keys.into_iter().collect();
            let pages = keys.chunks(PAGE).map(|page| Job { target, keys: Some(page.to_vec()) });
            jobs.extend(pages);
        }
        self.work(jobs).await?;
        for (rule, key) in plan.loads {
            if let Some(load) = rules.load(rule) {
                self.worker.refresher.refresh(load, key);
            }
        }
        Ok(())
    }

    /// All jobs at the same time, and those that fail again.
    async fn work(&self, mut jobs: Vec<Job>) -> Result<(), End> {
        let board = &self.worker.board;
        let mut attempts = Attempts::default();
        while !jobs.is_empty() {
            let done = join_all(jobs.iter().map(|job| self.job(job))).await;
            let (mut left, mut error) = (Vec::new(), None);
            for (job, done) in jobs.into_iter().zip(done) {
                match done {
                    Ok(()) => board.note(|status| match &job.keys {
                        Some(keys) => status.keys += keys.len() as u64,
                        None => status.cleared += 1,
                    }),
                    Err(failed) => {
                        error = Some(failed);
                        left.push(job);
                    }
                }
            }
            jobs = left;
            if let Some(error) = error {
                self.again("invalidating", &mut attempts, &error).await?;
            }
        }
        attempts.over(board);
        Ok(())
    }

    fn job<'b>(&'b self, job: &'b Job) -> BoxFuture<'b, CacheResult<()>> {
        let target = &self.worker.rules.targets[job.target];
        match &job.keys {
            Some(keys) => target.invalidate_touched(keys),
            None => Box::pin(async { target.clear_all().await.map(|_| ()) }),
        }
    }

    async fn save(&self, at: &Position) -> Result<(), End> {
        let Worker { board, fingerprint, .. } = self.worker;
        self.store_record(&record::encode(*fingerprint, at)).await?;
        board.note(|status| {
            status.saves += 1;
            status.position = Some(at.clone());
        });
        Ok(())
    }

    async fn store_record(&self, text: &str) -> Result<(), End> {
        let save = || self.positions.save(&self.worker.name, self.ticket, text);
        match self.insist("saving the position", save).await? {
            true => Ok(()),
            false => Err(End::Superseded),
        }
    }

    /// Only for what may be done twice.
    async fn insist<T, F>(&self, what: &'static str, attempt: impl Fn() -> F) -> Result<T, End>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut attempts = Attempts::default();
        loop {
            match attempt().await {
                Ok(done) => {
                    attempts.over(&self.worker.board);
                    return Ok(done);
                }
                Err(source) => {
                    let error = Error::Store { what, source };
                    self.again(what, &mut attempts, &error).await?;
                }
            }
        }
    }

    /// Waits before the next attempt, if there is to be one.
    async fn again(
        &self,
        what: &'static str,
        attempts: &mut Attempts,
        error: &Error,
    ) -> Result<(), End> {
        let Worker { board, name, .. } = self.worker;
        let why = told(error);
        attempts.failed += 1;
        attempts.before.get_or_insert_with(|| board.read().state);
        if attempts.failed >= ATTEMPTS {
            return Err(End::Unreachable(why));
        }
        tracing::warn!(follower = name, what, error = why, "the cache cannot be told: once more");
        board.failed(&why);
        board.state(State::Waiting { why });
        sleep(RETRY * 2_u32.pow(attempts.failed - 1)).await;
        Ok(())
    }
}

#[derive(Default)]
struct Attempts {
    failed: u32,
    /// What it was doing when the first one failed.
    before: Option<State>,
}

impl Attempts {
    /// One has succeeded.
    fn over(self, board: &Board) {
        if let Some(before) = self.before {
            board.state(before);
        }
    }
}

/// Something that one cache is to do.
struct Job {
    target: usize,
    /// Without keys: all.
    keys: Option<Vec<Touched>>,
}

/// The database answers in time, or has failed.
async fn within<T>(
    what: &'static str,
    asking: impl Future<Output = Result<T, LogError>>,
) -> Result<T, LogError> {
    within_time(LONGEST, what, asking).await
}

async fn within_time<T>(
    limit: Duration,
    what: &'static str,
    asking: impl Future<Output = Result<T, LogError>>,
) -> Result<T, LogError> {
    match timeout(limit, asking).await {
        Ok(answer) => answer,
        Err(_) => Err(LogError::Failed(format!("{what}: no answer within {limit:?}").into())),
    }
}

fn failed(error: LogError) -> End {
    match error {
        LogError::Refused(why) => End::Refused(why),
        LogError::Failed(error) => End::Failed(told(&*error)),
        // The next turn finds out.
        LogError::Lost(why) => End::Failed(format!("the history is lost: {why}")),
    }
}
