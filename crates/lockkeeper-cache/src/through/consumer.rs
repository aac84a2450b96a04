//! Who writes to the database what is in the queue.

use std::fmt::{self, Display};
use std::panic::AssertUnwindSafe;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::lanes::{Failed, Job, KEYS, Lanes, PAGE, PATIENCE, PAUSES};
use super::queue::Queued;
use super::{Rejected, Shared, Tell};
use crate::entry::Ticket;
use crate::error::BoxError;
use crate::load::message;
use crate::turn::{Right, in_turn};

/// Between two looks at the queue.
const LOOK: Duration = Duration::from_millis(50);

/// So long one goes on that has found what only another program can do, before it lets others have a turn.
const TURN: Duration = Duration::from_secs(1);

/// The longest reason in a letter, in bytes.
const WHY: usize = 1000;

/// Applies the writes of a queue in this process, when it is its turn; from [`Through::consume`](super::Through::consume).
///
/// Dropped, it ends in the background as by [`stop`](Self::stop).
#[must_use = "it ends when it is dropped"]
pub struct Consumer {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Consumer {
    pub(super) fn start<K, V>(shared: Arc<Shared<K, V>>) -> Self
    where
        K: FromStr + Clone + Display + Send + Sync + 'static,
        V: Send + Sync + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        Self { stop, task: tokio::spawn(run(shared, stopped)) }
    }

    /// Begins nothing more, ends what is under way, and lets another one take over at once. What is under way has the cache's
    /// [time](crate::Builder::timeout) for each of its steps: the filter, the database, the invalidation, and the load.
    /// What could not be loaded again after a [letter](super::Letter) is tried for ten seconds, also when this has returned.
    ///
    /// # Cancel safety
    ///
    /// It ends in the background.
    pub async fn stop(self) {
        let _ = self.stop.send(true);
        // Fails only with the runtime.
        let _ = self.task.await;
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}

/// What came of an attempt.
enum Outcome {
    /// It is not in the queue any more. Whether it was loaded again.
    Done(bool),
    /// To be tried again.
    Failed(Failed),
    /// Of a program with another schema, which can do it.
    Foreign,
}

/// What the cache is to be told of a write.
struct Telling<K> {
    key: K,
    name: [String; 1],
    version: u64,
    job: Job,
    given_up: bool,
}

/// How the database failed.
enum Failure {
    /// It will always.
    Final(String),
    /// It may not the next time.
    Passing(BoxError),
}

#[async_trait]
impl<K, V> Right for Shared<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    async fn take(&self, ticket: Ticket, time: Duration) -> Option<bool> {
        let taken = self.queue.lead(ticket, time).await;
        taken.inspect_err(|error| self.inner().store_failed("the right to apply", error)).ok()
    }

    async fn give_back(&self, ticket: Ticket) {
        let _ = self.queue.resign(ticket).await;
    }
}

async fn run<K, V>(shared: Arc<Shared<K, V>>, mut stop: watch::Receiver<bool>)
where
    K: FromStr + Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let (mut pause, time) = (PAUSES.0, shared.inner().settings.lease);
    while !is_over(&stop) {
        let leading = lead(&shared, stop.clone(), &mut pause);
        in_turn(shared.lock.as_ref(), &*shared, time, leading).await;
        tokio::select! {
            () = sleep(pause) => {}
            () = over(&mut stop) => {}
        }
    }
}

fn is_over(stop: &watch::Receiver<bool>) -> bool {
    *stop.borrow() || stop.has_changed().is_err()
}

/// Returns when it is to end, or its handle is gone.
async fn over(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Applies until it is to stop, or another program has to do it. If it is dropped, so is all that is under way: whether
/// that was applied is not known, and it is applied again.
async fn lead<K, V>(
    shared: &Arc<Shared<K, V>>,
    mut stop: watch::Receiver<bool>,
    pause: &mut Duration,
) where
    K: FromStr + Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let (mut lanes, mut tasks) = (Lanes::default(), JoinSet::new());
    let (mut look, mut ending, mut turn_ends) = (Instant::now(), false, None::<Instant>);
    loop {
        let now = Instant::now();
        ending |= turn_ends.is_some_and(|end| end <= now);
        if !ending && (lanes.wants_more() || look <= now) {
            look = now + if lanes.has_room() { read(shared, &mut lanes).await } else { LOOK };
        }
        while !ending
            && tasks.len() < KEYS
            && let Some(job) = lanes.next(Instant::now())
        {
            let shared = Arc::clone(shared);
            tasks.spawn(async move {
                let outcome = shared.apply(&job).await;
                (job, outcome)
            });
        }
        if tasks.is_empty() && (ending || turn_ends.is_some()) {
            break;
        }
        // Without a place nothing is tried again, and one is free only when a task ends.
        let again = lanes.wake_at().filter(|_| tasks.len() < KEYS);
        let wake = [again, turn_ends].into_iter().flatten().fold(look, Instant::min);
        tokio::select! {
            Some(joined) = tasks.join_next() => match joined {
                Ok((job, Outcome::Done(loaded))) => {
                    lanes.done(&job, loaded);
                    *pause = PAUSES.0;
                    if lanes.is_empty() {
                        look = Instant::now();
                    }
                }
                Ok((job, Outcome::Failed(why))) => lanes.failed(&job, why, Instant::now()),
                Ok((job, Outcome::Foreign)) => {
                    let now = Instant::now();
                    lanes.failed(&job, Failed::Other, now);
                    turn_ends.get_or_insert(now + TURN);
                }
                // Only with the runtime.
                Err(_) => return,
            },
            () = sleep_until(wake), if !ending => {}
            () = shared.wake.notified(), if !ending => look = Instant::now(),
            () = over(&mut stop), if !ending => ending = true,
        }
    }
    if turn_ends.is_some() {
        *pause = (*pause * 4).min(PAUSES.1);
    }
}

/// Reads a page; when to look again if nothing else happens.
async fn read<K, V>(shared: &Shared<K, V>, lanes: &mut Lanes) -> Duration
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    // Nothing is taken out of `lanes` meanwhile: what was done before this and is not known any more is not in the page.
    match shared.queue.read(lanes.after(), PAGE).await {
        Ok(page) => {
            lanes.take(page);
            LOOK
        }
        Err(error) => {
            shared.inner().store_failed("looking for writes", &error);
            // Another server may answer the next time, and have other things.
            lanes.rewind();
            sleep(PAUSES.0).await;
            LOOK
        }
    }
}

impl<K, V> Shared<K, V>
where
    K: FromStr + Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    async fn apply(self: &Arc<Self>, job: &Job) -> Outcome {
        let (order, inner) = (job.queued.order, self.inner());
        let (key, value) = match self.decode(&job.queued) {
            Ok(Some(decoded)) => decoded,
            Ok(None) => {
                tracing::error!(%order, "a write is of another program, and waits for it");
                return Outcome::Foreign;
            }
            Err(why) => return self.bury(job, why).await,
        };
        let name = match inner.name(&key) {
            Ok(name) => [name],
            Err(error) => return self.bury(job, &error.to_string()).await,
        };
        // An attempt that is given up may have been done, or one before it, and then what is cached is old: nobody else will say that.
        let (version, given_up) = match job.tried.stored {
            Some(version) => (version, None),
            // Before the commit, so that no crash leaves a row that the filter does not know of.
            None if inner.announce(&name).await.is_err() => return Outcome::Failed(Failed::Other),
            None => match self.store(&key, value.as_ref(), job).await {
                Ok(version) => (version, None),
                Err(Failure::Final(why)) => (0, Some(why)),
                Err(Failure::Passing(error)) => match self.refused(job, &*error) {
                    Some(why) => (0, Some(why)),
                    None => return Outcome::Failed(Failed::Database),
                },
            },
        };
        // Apart, because whose turn is over stops where he stands: a key that is invalidated and not loaded again is missed by those
        // who read only the cache.
        let (answer, told) = oneshot::channel();
        let telling =
            Telling { key, name, version, job: job.clone(), given_up: given_up.is_some() };
        tokio::spawn(Arc::clone(self).tell_all(telling, answer));
        let told = told.await.unwrap_or(Err(Failed::Untold(version)));
        match (given_up, told) {
            // What the cache was not told it is owed, and what is not loaded yet is tried again: a letter need not wait for that.
            (Some(why), _) => self.bury(job, &why).await,
            (None, Ok(loaded)) => self.done(job, version, loaded).await,
            (None, Err(why)) => Outcome::Failed(why),
        }
    }

    /// It is in the database, and the cache was told.
    async fn done(&self, job: &Job, version: u64, loaded: bool) -> Outcome {
        match self.queue.done(&job.queued).await {
            Ok(()) => {
                self.counters.applied.add();
                if self.tell == Tell::Refresh && !loaded {
                    self.counters.not_refreshed.add();
                }
                Outcome::Done(loaded)
            }
            Err(error) => {
                self.inner().store_failed("a write that was applied", &error);
                Outcome::Failed(Failed::Stored(version, loaded))
            }
        }
    }

    /// The database has refused it, this time; why it is given up, if it is.
    fn refused(
        &self,
        job: &Job,
        error: &(dyn std::error::Error + Send + Sync + 'static),
    ) -> Option<String> {
        self.counters.retries.add();
        if self.attempts.is_some_and(|most| job.tried.refused + 1 >= most) {
            return Some(reason(error));
        }
        let (order, attempt) = (job.queued.order, job.attempt());
        tracing::warn!(%error, %order, attempt, "a write was not applied, and is tried again");
        None
    }

    /// Tells the cache. Nobody comes back to a write that is given up, nor to one of somebody whose turn is over: then it goes on by
    /// itself, for as long as a write that has its turn.
    async fn tell_all(
        self: Arc<Self>,
        telling: Telling<K>,
        answer: oneshot::Sender<Result<bool, Failed>>,
    ) {
        let Telling { version, ref job, .. } = telling;
        let mut told = self.tell(&telling).await;
        if answer.send(told).is_ok() && !telling.given_up {
            return;
        }
        let (mut pause, end) = (PAUSES.0, Instant::now() + PATIENCE);
        while let Err(why) = told
            && Instant::now() < end
        {
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
            told = match why {
                // What was told may be cached again by who has the turn now.
                Failed::Unloaded(_) => self.load_again(&telling.key, version, job).await,
                _ => self.tell(&telling).await,
            };
        }
        if self.tell == Tell::Refresh && told != Ok(true) {
            self.counters.not_refreshed.add();
        }
    }

    /// Tells the cache that it was written. Only then does the write leave the queue: whoever dies before has it done again. Whether
    /// it was loaded again.
    async fn tell(&self, telling: &Telling<K>) -> Result<bool, Failed> {
        let (inner, Telling { key, name, version, job, .. }) = (self.inner(), telling);
        let told = match self.tell {
            // A filter that was begun since the write was announced does not have it.
            Tell::Nobody => inner.announce(name).await,
            Tell::Invalidate | Tell::Refresh => inner.invalidate_names(name, *version).await,
        };
        told.map_err(|_| Failed::Untold(*version))?;
        if self.tell == Tell::Refresh {
            self.load_again(key, *version, job).await
        } else {
            Ok(false)
        }
    }

    async fn load_again(&self, key: &K, version: u64, job: &Job) -> Result<bool, Failed> {
        // Loaded, and not set to what was written: if this came late, the database has something newer.
        let loaded = self.cache.load_into_store(key).await;
        if matches!(loaded, Ok(true)) {
            return Ok(true);
        }
        let (order, error) = (job.queued.order, loaded.err());
        let cause = error.as_ref().map(ToString::to_string);
        // What is too large is so the next time, and what cannot be cached is no reason to keep writes from the database.
        if error.is_some() && !job.is_patience_over(Instant::now()) {
            tracing::warn!(cause, %order, "what was written is not cached, and is tried again");
            return Err(Failed::Unloaded(version));
        }
        tracing::warn!(cause, %order, "what was written is not cached: who reads only the cache misses it");
        Ok(false)
    }

    /// A panic there is a failure as well, and so is no answer: if it is done late, its order tells.
    async fn store(&self, key: &K, value: Option<&V>, job: &Job) -> Result<u64, Failure> {
        let storing = async { self.database.store(key, value, Some(job.queued.order)).await };
        let storing = AssertUnwindSafe(storing).catch_unwind();
        match timeout(self.inner().settings.timeout, storing).await {
            Ok(Ok(Ok(version))) => Ok(version),
            Ok(Ok(Err(error))) if Rejected::is(&*error) => Err(Failure::Final(reason(&*error))),
            Ok(Ok(Err(error))) => Err(Failure::Passing(error)),
            Ok(Err(panic)) => {
                Err(Failure::Final(format!("the database panicked: {}", message(&*panic))))
            }
            Err(late) => Err(Failure::Passing(late.into())),
        }
    }

    /// The key and the value of a write; nothing of one whose schema is another.
    fn decode(&self, queued: &Queued) -> Result<Option<(K, Option<V>)>, &'static str> {
        let (inner, message) = (self.inner(), queued.message.as_ref().ok_or("it cannot be read")?);
        if message.schema != inner.settings.schema {
            return Ok(None);
        }
        let read = || {
            let key = message.key.parse().map_err(|_| "its key cannot be read")?;
            let value = message.value.as_deref().map(|bytes| inner.codec.decode(bytes));
            Ok(Some((key, value.transpose().map_err(|_| "its value cannot be decoded")?)))
        };
        // A panic would end it all, again and again.
        let read = std::panic::catch_unwind(AssertUnwindSafe(read));
        read.unwrap_or(Err("who was to read it panicked"))
    }

    async fn bury(&self, job: &Job, why: &str) -> Outcome {
        let order = job.queued.order;
        let end = why.floor_char_boundary(WHY);
        match self.queue.bury(&job.queued, &why[..end], job.attempt()).await {
            Ok(true) => {
                self.counters.buried.add();
                tracing::error!(%order, why, "a write is given up: it is among the letters");
                Outcome::Done(false)
            }
            Ok(false) => {
                tracing::error!(%order, why, "there are too many letters: a write holds up its key");
                Outcome::Failed(Failed::Other)
            }
            Err(error) => {
                self.inner().store_failed("a write that is given up", &error);
                Outcome::Failed(Failed::Other)
            }
        }
    }
}

/// What an error says, and its causes.
fn reason(error: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause.filter(|_| text.len() < WHY) {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
