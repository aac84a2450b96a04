//! A job that runs once per tick on one of many nodes.
//!
//! Which tick is whose is decided by what [`ledger`](super::ledger) says, compared and set at the store; the
//! lock is there so that runs do not overlap, and to tell a run that died from one that goes on.

mod book;
mod run;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use self::book::Book;
pub use self::run::Run;
use super::ledger::{LastRun, Ledger, Rerun, Todo};
use super::schedule::{Schedule, Tick};
use super::target::Target;
use crate::backend::{Kind, Patience};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::locks::{Inner, Locks};
use crate::name::Name;
use crate::owner::RequestId;

/// How often to look what somebody does with the lock who has it and no tick.
const CLAIMING: Duration = Duration::from_secs(1);
/// How often to look at the clock while there is nothing to do: it may be set, and the machine may sleep.
const CLOCK: Duration = Duration::from_secs(1);
/// How far a ledger may be ahead of our clock before that is worth a warning.
const AHEAD: Duration = Duration::from_mins(1);
/// How often to begin again because somebody else was faster.
const TRIES: u32 = 100;

/// What becomes of a tick while the job still runs for one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// It is left out, on all nodes.
    #[default]
    Skip,
    /// It is run when that has ended; if several are due by then, only the latest.
    Wait,
}

/// A job of a fleet: every node asks for the [`next`](Self::next) run, and each tick is given to one of
/// them. Made by [`Locks::job`].
///
/// # What it promises
///
/// A tick is begun at most once ([`Rerun::Never`]) or twice ([`Rerun::Once`]), whatever the nodes' clocks
/// say and however late they are: at the store is written through which tick the job has come, and that
/// only grows. Runs do not overlap, as far as the lock of the same name does not; what they write can be
/// fenced with the token of their guard. Of ticks that nobody was there for, the latest is run; a job
/// that never ran begins with its next tick.
///
/// # When it breaks
///
/// With the store: if it forgets what it acknowledged, a node that has not seen it runs a tick again. A clock that is ahead takes
/// ticks early, for all nodes; one that is a year ahead keeps all others from running for a year. They
/// warn; set the clock right and give the job another name.
///
/// # Cost
///
/// For each node and tick one look at the store; for who gets it two more, two writes, and the lock. With
/// [`Rerun::Once`] all nodes wait for the lock while the job runs, and look once more.
///
/// ```
/// # use lockkeeper::{Locks, Result, Schedule};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let locks = Locks::memory();
/// # let close_orders = || async { 0 };
/// let job = locks.job("close-orders", Schedule::cron("* * * * * *")?);
/// let run = job.next().await?;
/// let code = run.guard().protect(close_orders()).await?;
/// run.finish(code).await?;
/// assert_eq!(job.last().await?.and_then(|run| run.code()), Some(0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Job {
    target: Target,
    schedule: Schedule,
    at_least: Duration,
    overlap: Overlap,
    rerun: Rerun,
    memory: Arc<Mutex<Memory>>,
}

/// What this node knows by itself.
#[derive(Debug, Default)]
struct Memory {
    /// A job that nobody knows begins after this tick.
    since: Option<Tick>,
    /// Through which tick the job had come when we looked. It stays so even if the store forgets it.
    through: Option<Tick>,
    /// The first run that we saw, and the schedule of another node that was warned of.
    first: Option<RequestId>,
    warned: Option<String>,
}

/// Whether a job that nobody knows begins with the latest tick or with the next.
#[derive(Clone, Copy)]
enum Begin {
    Latest,
    Next,
}

#[expect(
    clippy::disallowed_methods,
    reason = "a tick is a time of day; who has it is not decided by it"
)]
fn now() -> Tick {
    #[cfg(test)]
    let ahead = tests::AHEAD.get();
    #[cfg(not(test))]
    let ahead = Duration::ZERO;
    Tick::at(SystemTime::now() + ahead)
}

impl Job {
    pub(crate) fn new(locks: &Locks, name: &str, schedule: Schedule) -> Self {
        let memory = Memory { since: schedule.latest_tick(now()), ..Memory::default() };
        Self {
            target: Target::new(locks, name),
            schedule,
            at_least: Duration::ZERO,
            overlap: Overlap::default(),
            rerun: Rerun::default(),
            memory: Arc::new(Mutex::new(memory)),
        }
    }

    /// The last run of whatever job has this name.
    pub(crate) async fn last_of(inner: &Arc<Inner>, name: &Name) -> Result<Option<LastRun>> {
        let Some(cells) = inner.backend.cells() else { return Ok(None) };
        match cells.read(name, 1).await {
            // What is no ledger is no job's.
            Ok(read) => Ok(read.first().and_then(|cell| LastRun::read(name, &cell.value))),
            Err(Error::Unsupported { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same job, whose lock is kept for at least this long from the start of a run: no other run
    /// begins before, whatever the clock of its node says. Default: only while it runs.
    #[must_use]
    pub fn at_least(mut self, time: Duration) -> Self {
        self.at_least = time;
        self
    }

    /// The same job; what becomes of a tick while it still runs. Default: [`Overlap::Skip`].
    #[must_use]
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// The same job; what becomes of a run that died. Default: [`Rerun::Never`].
    #[must_use]
    pub fn rerun(mut self, rerun: Rerun) -> Self {
        self.rerun = rerun;
        self
    }

    /// Waits for a tick that is ours to run.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] where the store has nothing to agree on a tick with; [`Error::Config`] when
    /// the schedule has come to its end; when the store cannot be used, or after [`Locks::shutdown`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no lock behind. If a tick was being taken, it may count as a run that
    /// died.
    pub async fn next(&self) -> Result<Run> {
        let next = async {
            loop {
                let known = self.book()?.read().await?;
                let run = match self.todo(known.as_ref(), Begin::Next) {
                    Todo::Nothing => {
                        self.rest(known.as_ref()).await?;
                        None
                    }
                    Todo::Run(tick) => self.run(tick, Begin::Next).await?,
                    Todo::Again(_) => match self.lock(self.until_next()).await? {
                        Some(guard) => self.claim(guard, Begin::Next).await?,
                        None => None,
                    },
                };
                if let Some(run) = run {
                    return Ok(run);
                }
            }
        };
        self.target.inner.while_open(next).await
    }

    /// The latest tick, if it is due and nobody has it; for programs that something else starts at
    /// every tick. Also of a job that never ran. With [`Overlap::Wait`] it waits for the run before; else for
    /// one who has the lock and no tick, for as long as a lease lasts: it may have died.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    ///
    /// # Cancel safety
    ///
    /// As [`next`](Self::next).
    pub async fn due(&self) -> Result<Option<Run>> {
        let due = async {
            for _ in 0..TRIES {
                let known = self.book()?.read().await?;
                let run = match self.todo(known.as_ref(), Begin::Latest) {
                    Todo::Nothing => return Ok(None),
                    Todo::Run(tick) => self.run(tick, Begin::Latest).await?,
                    Todo::Again(_) => match self.lock(Patience::TryOnce).await? {
                        Some(guard) => self.claim(guard, Begin::Latest).await?,
                        // It goes on.
                        None => return Ok(None),
                    },
                };
                if run.is_some() {
                    return Ok(run);
                }
            }
            Ok(None)
        };
        self.target.inner.while_open(due).await
    }

    /// The last run, on whatever node. `None`: there was none yet.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub async fn last(&self) -> Result<Option<LastRun>> {
        Ok(self.book()?.read().await?.and_then(|ledger| ledger.last))
    }

    fn book(&self) -> Result<Book<'_>> {
        Book::open(&self.target.inner, self.target.name()?)
    }

    fn id(&self) -> RequestId {
        self.target.inner.identity.request_id()
    }

    /// What to do if this is known of the job; it is remembered.
    fn todo(&self, known: Option<&Ledger>, begin: Begin) -> Todo {
        let mut memory = self.memory.lock();
        let through = known.map(|known| known.through);
        if through < memory.through {
            let job = self.target.name().map(ToString::to_string).unwrap_or_default();
            tracing::warn!(%job, "the store has forgotten ticks that were taken");
        }
        memory.through = through.max(memory.through);
        if let Some(last) = known.and_then(|known| known.last.as_ref()) {
            self.compare(&mut memory, last);
        }
        let due = self.schedule.latest_tick(now());
        // Our clock was set back: a job that nobody knows is not kept waiting for a time that never was.
        memory.since = memory.since.min(due);
        let floor = match begin {
            Begin::Next if memory.through.is_none() => memory.since,
            _ => memory.through,
        };
        Ledger::todo(known, due, floor, self.rerun)
    }

    /// Warns if another node has another schedule: one that has just been given a new one is no news.
    fn compare(&self, memory: &mut Memory, last: &LastRun) {
        let first = *memory.first.get_or_insert(last.claim);
        let (ours, theirs) = (self.schedule.to_string(), &last.schedule);
        if first != last.claim && *theirs != ours && memory.warned.as_ref() != Some(theirs) {
            let job = self.target.name().map(ToString::to_string).unwrap_or_default();
            tracing::warn!(%job, %ours, ?theirs, owner = %last.owner, "another node has another schedule");
            memory.warned = Some(theirs.clone());
        }
    }

    /// Waits for the next tick, or until the clock is set back.
    async fn rest(&self, known: Option<&Ledger>) -> Result<()> {
        let start = now();
        let Some(next) = self.schedule.next_tick(start) else {
            let text = format!("the schedule '{}' has no more ticks", self.schedule);
            return Err(Error::Config(text));
        };
        if let Some(through) = known.map(|ledger| ledger.through.time())
            && let Ok(ahead) = through.duration_since(start.time())
            && ahead > AHEAD
        {
            let (job, ahead) = (self.target.name()?, humantime::format_duration(ahead));
            tracing::warn!(%job, %ahead, "it has run for ticks that lie ahead: is a clock wrong?");
        }
        loop {
            let at = now();
            if at < start {
                return Ok(());
            }
            match next.time().duration_since(at.time()) {
                Ok(left) if !left.is_zero() => tokio::time::sleep(left.min(CLOCK)).await,
                _ => return Ok(()),
            }
        }
    }

    /// As long as there is nothing else to do.
    fn until_next(&self) -> Patience {
        let now = now();
        let next = self.schedule.next_tick(now).map(Tick::time);
        let left = next.and_then(|next| next.duration_since(now.time()).ok());
        left.map_or(Patience::Forever, |left| Patience::Until(Instant::now() + left))
    }

    async fn lock(&self, patience: Patience) -> Result<Option<Guard>> {
        let Target { inner, options, .. } = &self.target;
        inner.acquire(self.target.name()?, Kind::Mutex, options, patience).await
    }

    /// Runs this tick, or the one that is due when the lock is free. `None`: look again.
    async fn run(&self, tick: Tick, begin: Begin) -> Result<Option<Run>> {
        let guard = match self.overlap {
            Overlap::Wait => self.lock(Patience::Forever).await?,
            Overlap::Skip => self.lock_unless_running(tick).await?,
        };
        match guard {
            Some(guard) => self.claim(guard, begin).await,
            None => {
                self.skip(tick, begin).await?;
                Ok(None)
            }
        }
    }

    /// Somebody may be about to take a tick, slowly, or was about to and died: then the lock is free when
    /// its lease is over, and nobody has run it. `None`: it is run, or the lock is kept for something else.
    async fn lock_unless_running(&self, tick: Tick) -> Result<Option<Guard>> {
        let lease = Instant::now() + self.target.ttl() + CLAIMING;
        let until = lease.min(self.until_next().deadline());
        let mut patience = Patience::TryOnce;
        loop {
            let guard = self.lock(patience).await?;
            let now = Instant::now();
            if guard.is_some() || now >= until || self.is_running(tick).await? {
                return Ok(guard);
            }
            patience = Patience::Until(until.min(now + CLAIMING));
        }
    }

    /// Whether this tick is over, or whoever holds the lock has one, and is not about to take one.
    async fn is_running(&self, tick: Tick) -> Result<bool> {
        let status = self.target.inner.backend.admin().show(self.target.name()?).await?;
        let Some(known) = self.book()?.read().await? else { return Ok(false) };
        let token = known.last.map(|last| last.token);
        let holds = status.holders.iter().any(|holding| Some(holding.token) == token);
        Ok(holds || known.through >= tick)
    }

    /// Leaves a tick out, for all nodes, unless somebody has it by now.
    async fn skip(&self, tick: Tick, begin: Begin) -> Result<()> {
        let (id, book) = (self.id(), self.book()?);
        let skipped = book.change(|known| match self.todo(known, begin) {
            Todo::Run(_) if known.is_none_or(|known| known.through < tick) => {
                Some(Ledger::skipped(known, tick, id))
            }
            _ => None,
        });
        skipped.await.map(drop)
    }

    /// Takes what there is to run now that we have the lock. `None`: nothing any more.
    async fn claim(&self, guard: Guard, begin: Begin) -> Result<Option<Run>> {
        let book = self.book()?;
        let claimed = book.change(|known| {
            let (tick, attempt) = match self.todo(known, begin) {
                _ if guard.is_lost() => return None,
                Todo::Nothing => return None,
                Todo::Run(tick) => (tick, 1),
                Todo::Again(tick) => (tick, 2),
            };
            let last = LastRun {
                tick,
                attempt,
                claim: self.id(),
                owner: guard.owner().clone(),
                token: guard.token(),
                started: now(),
                schedule: self.schedule.to_string(),
                ended: None,
            };
            Some(Ledger::begun(known, last))
        });
        let claimed = claimed.await?;
        if let Some(claimed) = &claimed {
            let mut memory = self.memory.lock();
            memory.through = memory.through.max(Some(claimed.through));
        }
        let Some(last) = claimed.and_then(|ledger| ledger.last) else {
            if let Err(error) = guard.release().await {
                tracing::debug!(%error, "not released; it ends by itself");
            }
            return Ok(None);
        };
        if let Err(error) = guard.check() {
            // Stopped in between: somebody else may run it by now.
            tracing::warn!(%error, "a tick was taken too late to run it");
            return Ok(None);
        }
        Ok(Some(Run { job: self.clone(), guard, last, since: Instant::now() }))
    }
}
