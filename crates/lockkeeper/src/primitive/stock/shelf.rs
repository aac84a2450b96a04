//! The segments of one stock as this process knows them, and the one way to change them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::plan::{self, Plan};
use super::segment::{ChangeId, Made, Segment};
use crate::backend::{Cell, Cells, Write};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::locks::Inner;
use crate::name::Name;
use crate::owner;

/// A stock has at most so many segments: what one transaction of etcd may write.
const MOST_SEGMENTS: usize = 100;
/// How long a store may fail, or others be faster, before a change gives up.
const OUTAGE: Duration = Duration::from_secs(10);
/// For so long a change whose outcome is not known is inquired about.
pub(super) const SETTLED: Duration = Duration::from_secs(60);
/// Between two attempts to reach a store that fails.
const RETRY: Duration = Duration::from_millis(100);
/// Pauses of those who find others faster grow up to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// After so many conflicts a restocking is content with one segment: all of them at once may never be
/// to be had, and whoever finds his own dry takes his part from there.
const SPREADS: u32 = 3;

/// After so many conflicts a request that needs several segments gathers them bit by bit.
const GATHERS: u32 = 8;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Take(u64),
    Restock(u64),
    /// Unless there was anything ever.
    First(u64),
}

/// A segment as it was seen: the version of its cell, and what is in it.
type Seen = (u64, Arc<Segment>);

/// The segments, and after them a spare one.
pub(super) struct Shelf {
    pub(super) inner: Arc<Inner>,
    count: usize,
    client: u64,
    changes: AtomicU64,
    /// As they were last seen; empty at first.
    seen: Mutex<Vec<Seen>>,
    /// Where to take from.
    home: AtomicUsize,
    /// Of this process one at a time changes a segment. Others would only be in its way; and a client is
    /// remembered in a segment with its last change alone.
    busy: Vec<tokio::sync::Mutex<()>>,
}

impl Shelf {
    pub(super) fn new(inner: Arc<Inner>, count: usize) -> Self {
        let home = usize::try_from(owner::random() % (count.max(1) as u64)).unwrap_or(0);
        Self {
            inner,
            count,
            client: owner::random(),
            changes: AtomicU64::new(1),
            seen: Mutex::default(),
            home: AtomicUsize::new(home),
            busy: (0..=count.min(MOST_SEGMENTS)).map(|_| tokio::sync::Mutex::default()).collect(),
        }
    }

    fn cells(&self) -> Result<&dyn Cells> {
        if !(1..=MOST_SEGMENTS).contains(&self.count) {
            let count = self.count;
            let text =
                format!("a stock has 1 to {MOST_SEGMENTS} segments: {count} are not possible");
            return Err(Error::Config(text));
        }
        let backend = &self.inner.backend;
        backend.cells().ok_or_else(|| Error::Unsupported {
            backend: backend.name(),
            what: "stocks: it has no place for amounts that are changed in one step".into(),
        })
    }

    /// With the spare one.
    fn all(&self) -> usize {
        self.count + 1
    }

    /// What there is in each, at one moment; the spare one is the last.
    pub(super) async fn amounts(&self, name: &Name) -> Result<Vec<u64>> {
        let seen = self.look(name, true, Instant::now()).await?;
        Ok(amounts(&seen))
    }

    /// Reads the segments, again while the store fails. `at_once`: all at one moment.
    async fn look(&self, name: &Name, at_once: bool, since: Instant) -> Result<Vec<Seen>> {
        let cells = self.cells()?;
        loop {
            let read = match at_once {
                true => cells.read_at_once(name, self.all()).await,
                false => cells.read(name, self.all()).await,
            };
            match read {
                Ok(read) => {
                    let seen = read.into_iter().map(|cell| self.open(name, &cell));
                    let seen = seen.collect::<Result<Vec<_>>>()?;
                    self.seen.lock().clone_from(&seen);
                    return Ok(seen);
                }
                Err(error) if cells.may_pass(&error) && Instant::now().since(since) < OUTAGE => {
                    tokio::time::sleep(RETRY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn open(&self, name: &Name, cell: &Cell) -> Result<Seen> {
        let segment = Segment::read(&cell.value).map_err(|error| {
            let context = format!("the stock {name} cannot be read");
            Error::unavailable(self.inner.backend.name(), context, error)
        })?;
        if segment.of > 0 && segment.of != self.count {
            let (is, asked) = (segment.of, self.count);
            let text = format!("the stock {name} has {is} segments, not {asked}");
            return Err(Error::Config(text));
        }
        Ok((cell.version, Arc::new(segment)))
    }

    /// Makes the change, whatever it takes; whether it could be made.
    pub(super) async fn change(&self, name: &Name, change: Change, since: Instant) -> Result<bool> {
        let cells = self.cells()?;
        let mut known = self.seen.lock().clone();
        // Whether `known` is how it is, and not how it was.
        let mut fresh = false;
        let is_first = matches!(change, Change::First(_));
        if known.is_empty() || is_first {
            (known, fresh) = (self.look(name, is_first, since).await?, is_first);
        }
        let mut conflicts = 0;
        loop {
            if is_first && known.iter().any(|seen| seen.1.of > 0) {
                return Ok(false);
            }
            let Some((plan, is_last)) = self.plan(change, &known, conflicts) else {
                if !fresh {
                    (known, fresh) = (self.look(name, true, since).await?, true);
                    continue;
                }
                return match change {
                    Change::Take(_) => Ok(false),
                    _ => Err(Error::Config(format!("more than 2^64 - 1 in the stock {name}"))),
                };
            };
            let time = OUTAGE.saturating_sub(Instant::now().since(since));
            let Ok(alone) = tokio::time::timeout(time, self.enter(&plan)).await else {
                return Err(self.gave_up(name, "another task of this process kept it busy"));
            };
            if self.is_outdated(&plan, &known) {
                // By another task of ours, while we waited for it.
                (known, fresh) = (self.seen.lock().clone(), false);
            } else if self.write(cells, name, &plan, &known).await? {
                if is_last {
                    return Ok(true);
                }
                drop(alone);
                (known, fresh) = (self.look(name, false, since).await?, false);
            } else {
                drop(alone);
                conflicts += 1;
                self.give_way(conflicts, plan.len()).await;
                (known, fresh) = (self.look(name, is_first, since).await?, is_first);
            }
            if Instant::now().since(since) > OUTAGE {
                return Err(self.gave_up(name, "others changed it all the time"));
            }
        }
    }

    fn gave_up(&self, name: &Name, why: &str) -> Error {
        let (backend, context) = (self.inner.backend.name(), format!("the stock {name}: {why}"));
        Error::Unavailable { backend, context, source: None }
    }

    /// What to write next, and whether that is all.
    fn plan(&self, change: Change, known: &[Seen], conflicts: u32) -> Option<(Plan, bool)> {
        let amounts = amounts(known);
        let home = self.free_home();
        let (mut plan, is_last) = match change {
            Change::Take(amount) if conflicts < GATHERS => {
                (plan::take(&amounts, amount, home)?, true)
            }
            Change::Take(amount) => plan::gather(&amounts, amount, home)?,
            Change::Restock(amount) if conflicts >= SPREADS => {
                (plan::put(&amounts, amount, home)?, true)
            }
            Change::First(amount) | Change::Restock(amount) => {
                (plan::spread(&amounts, amount)?, true)
            }
        };
        // The first one always says how many there are: whoever thinks otherwise sees it there.
        if known.first().is_some_and(|first| first.1.of == 0) && plan.iter().all(|(at, _)| *at != 0)
        {
            plan.push((0, 0));
        }
        plan.sort_unstable();
        Some((plan, is_last))
    }

    /// Where to take from: one that no other task of this process is busy with.
    fn free_home(&self) -> usize {
        let home = self.home.load(Ordering::Relaxed) % self.count;
        let mut around = (home..self.count).chain(0..home);
        around.find(|at| self.busy[*at].try_lock().is_ok()).unwrap_or(home)
    }

    /// Alone of this process with these segments. In order: nobody waits in a circle.
    async fn enter(&self, plan: &Plan) -> Vec<tokio::sync::MutexGuard<'_, ()>> {
        let mut alone = Vec::with_capacity(plan.len());
        for (at, _) in plan {
            alone.push(self.busy[*at].lock().await);
        }
        alone
    }

    fn is_outdated(&self, plan: &Plan, known: &[Seen]) -> bool {
        let seen = self.seen.lock();
        plan.iter().any(|(at, _)| seen.get(*at).is_some_and(|seen| seen.0 > known[*at].0))
    }

    /// Others want the same segment: leaves it to them, and waits a moment at random if that does not help.
    async fn give_way(&self, conflicts: u32, segments: usize) {
        let random = owner::random();
        let home = usize::try_from(random % self.count as u64).unwrap_or(0);
        self.home.store(home, Ordering::Relaxed);
        if conflicts > 2 {
            // Whoever needs several must find all of them unchanged: it is lucky only by trying often.
            let longest = if segments > 1 { LONGEST_PAUSE / 4 } else { LONGEST_PAUSE };
            let longest = Duration::from_micros(100 << conflicts.min(10)).min(longest);
            let part = u32::try_from(random >> 32 & 1023).unwrap_or(0);
            tokio::time::sleep(longest * part / 1024).await;
        }
    }

    /// One step at the store. `false`: somebody else was faster.
    async fn write(
        &self,
        cells: &dyn Cells,
        name: &Name,
        plan: &Plan,
        known: &[Seen],
    ) -> Result<bool> {
        let number = self.changes.fetch_add(1, Ordering::Relaxed);
        let id = ChangeId { client: self.client, number };
        let after = |(at, amount): &(usize, u64)| {
            let (version, segment) = &known[*at];
            (*at, *version, Arc::new(segment.changed(self.count, *amount, id)))
        };
        let after: Vec<_> = plan.iter().map(after).collect();
        let write = |(cell, version, segment): &(usize, u64, Arc<Segment>)| Write {
            cell: *cell,
            version: *version,
            value: segment.to_value(),
        };
        let writes: Vec<_> = after.iter().map(write).collect();
        match cells.swap(name, &writes).await {
            Ok(true) => {
                let mut seen = self.seen.lock();
                if after.len() > 1 {
                    // The next time we look first, as those must who were not so fast; or who needs
                    // several would never be faster than us.
                    seen.clear();
                }
                for (at, version, segment) in after {
                    if let Some(seen) = seen.get_mut(at) {
                        *seen = (version + 1, segment);
                    }
                }
                Ok(true)
            }
            Err(error) if cells.may_pass(&error) => {
                tracing::debug!(%name, %error, "no answer; finding out whether it was done");
                let first = writes[0].cell;
                self.settle(cells, name, first, &known[first].1, id).await
            }
            swapped => swapped,
        }
    }

    /// Finds out whether a change was made whose answer was lost. If it may still arrive, the segment is
    /// written again, so that it cannot.
    async fn settle(
        &self,
        cells: &dyn Cells,
        name: &Name,
        at: usize,
        before: &Segment,
        id: ChangeId,
    ) -> Result<bool> {
        let since = Instant::now();
        loop {
            let error = match cells.read(name, self.all()).await {
                Ok(read) => {
                    let (version, segment) = self.open(name, &read[at])?;
                    match segment.made(before, id) {
                        Made::Yes => return Ok(true),
                        Made::No => return Ok(false),
                        Made::Forgotten => {
                            return Err(unknown(name, "too many others have written since".into()));
                        }
                        Made::NotYet => {}
                    }
                    let value = segment.touched().to_value();
                    match cells.swap(name, &[Write { cell: at, version, value }]).await {
                        Ok(_) => continue,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            // Also one that does not look as if it would pass: it says nothing about what was sent, and a
            // server that took the place of another may know.
            if Instant::now().since(since) > SETTLED {
                return Err(unknown(name, error.into()));
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

fn unknown(name: &Name, source: crate::error::BoxError) -> Error {
    let operation = "a change of the stock";
    Error::Unknown { name: name.clone(), operation, within: Duration::ZERO, source }
}

fn amounts(seen: &[Seen]) -> Vec<u64> {
    seen.iter().map(|(_, segment)| segment.amount).collect()
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shelf").field("segments", &self.count).finish_non_exhaustive()
    }
}
