//! One thread that makes one transaction out of all that is asked of a directory at a time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::fs;
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::database::{Fault, NameState, Row, failed};
use super::directory::Directory;
use super::peers::{PeerId, Peers};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::model::{News, World};
use crate::name::Name;
use crate::owner::RequestId;
use crate::undo::UNDOING;

/// At most so many requests in one transaction.
const BATCH: usize = 256;
/// Between two tries to undo what a request left behind.
const UNDO_PAUSE: Duration = Duration::from_millis(200);
/// The way to the thread that owns the database.
pub(super) struct Store {
    jobs: mpsc::Sender<Box<dyn Job>>,
}

impl Store {
    pub(super) fn start(
        database: Connection,
        directory: Directory,
        peers: Arc<Peers>,
    ) -> Result<Arc<Self>> {
        let (jobs, inbox) = mpsc::channel();
        let inode = inode(&directory);
        let clerk = Clerk { database, directory, inode, peers, durable: false };
        std::thread::Builder::new()
            .name("lockkeeper-file".into())
            .spawn(move || clerk.work(&inbox))
            .map_err(|error| Error::unavailable("file", "no thread to be had", error))?;
        Ok(Arc::new(Self { jobs }))
    }

    /// Takes one step of the model on one name, in a transaction. An error: nothing was changed.
    /// Sent at once, not when it is first polled; carried out even if nobody waits for it.
    pub(super) fn change<T, F>(
        &self,
        name: &Name,
        step: F,
    ) -> impl Future<Output = Result<T>> + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce(&mut NameState, &mut World<'_, PeerId>) -> T + Send + 'static,
    {
        let (reply, outcome) = oneshot::channel();
        self.send(Change { name: name.clone(), step: Some(step), done: None, reply: Some(reply) });
        async { outcome.await.unwrap_or_else(|_| Err(gone())) }
    }

    /// Gives up whatever a request has, a hold or a place. Sent now, in line behind the request that
    /// it undoes; tried again in the background until that would have expired.
    pub(super) fn undo(self: &Arc<Self>, name: &Name, id: RequestId, until: Instant, in_: &Handle) {
        let (store, name) = (Arc::clone(self), name.clone());
        let undo = move || {
            store.change(&name, move |state, world| {
                state.release(id, world);
                state.leave_latch(id);
            })
        };
        let mut first = undo();
        let undoing = UNDOING.begin();
        in_.spawn(async move {
            let _undoing = undoing;
            while first.await.is_err() && Instant::now() < until {
                tokio::time::sleep(UNDO_PAUSE).await;
                first = undo();
            }
        });
    }

    /// All names in use.
    pub(super) async fn names(&self) -> Result<Vec<Name>> {
        let (reply, outcome) = oneshot::channel();
        self.send(List { names: Vec::new(), reply });
        outcome.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Does something else in a transaction. An error: nothing was changed. Carried out even if nobody
    /// waits for it. `durable`: it outlasts a power failure.
    pub(super) fn work<T, F>(
        &self,
        durable: bool,
        work: F,
    ) -> impl Future<Output = Result<T>> + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    {
        let (reply, outcome) = oneshot::channel();
        self.send(Work { durable, work: Some(work), done: None, reply });
        async { outcome.await.unwrap_or_else(|_| Err(gone())) }
    }

    fn send(&self, job: impl Job + 'static) {
        // Without the thread the job is dropped, and whoever waits for it sees that.
        let _ = self.jobs.send(Box::new(job));
    }
}

fn gone() -> Error {
    Error::Unavailable {
        backend: "file",
        context: "the database thread ended".into(),
        source: None,
    }
}

/// Something to do inside a transaction; `finish` is called once it is committed or rolled back.
trait Job: Send {
    fn run(&mut self, transaction: &mut Transaction<'_>) -> Result<(), Fault>;
    fn finish(self: Box<Self>, outcome: Result<()>);
    /// Whether it must be on disk when it is finished.
    fn is_durable(&self) -> bool {
        false
    }
}

/// One transaction, with what it has read so far.
struct Transaction<'a> {
    database: &'a Connection,
    peers: &'a Peers,
    rows: HashMap<Name, Row>,
    token_before: u64,
    token: u64,
    news: News<PeerId>,
}

impl<'a> Transaction<'a> {
    fn begin(database: &'a Connection, peers: &'a Peers) -> Result<Self, Fault> {
        let token: i64 =
            database.prepare_cached("SELECT token FROM meta")?.query_row([], |row| row.get(0))?;
        let token = token.cast_unsigned();
        let (rows, news) = (HashMap::new(), News::default());
        Ok(Self { database, peers, rows, token_before: token, token, news })
    }

    /// Takes one step of the model on one name.
    fn step<T>(
        &mut self,
        name: &Name,
        step: impl FnOnce(&mut NameState, &mut World<'_, PeerId>) -> T,
    ) -> Result<T, Fault> {
        let row = match self.rows.entry(name.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Row::load(self.database, name)?),
        };
        let peers = self.peers;
        let mut world = World {
            now: Instant::now(),
            counter: &mut self.token,
            alive: &|peer| peers.is_alive(*peer),
            news: &mut self.news,
        };
        Ok(step(&mut row.state, &mut world))
    }

    /// Writes what was changed; whom to tell once that is committed.
    fn end(self) -> Result<News<PeerId>, Fault> {
        for (name, row) in &self.rows {
            row.save(self.database, name.as_str())?;
        }
        if self.token != self.token_before {
            let token = self.token.cast_signed();
            self.database.prepare_cached("UPDATE meta SET token = ?")?.execute([token])?;
        }
        Ok(self.news)
    }
}

struct Change<F, T> {
    name: Name,
    step: Option<F>,
    done: Option<T>,
    reply: Option<oneshot::Sender<Result<T>>>,
}

impl<F, T> Job for Change<F, T>
where
    F: FnOnce(&mut NameState, &mut World<'_, PeerId>) -> T + Send,
    T: Send,
{
    fn run(&mut self, transaction: &mut Transaction<'_>) -> Result<(), Fault> {
        if let Some(step) = self.step.take() {
            self.done = Some(transaction.step(&self.name, step)?);
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, outcome: Result<()>) {
        let result = match (outcome, self.done.take()) {
            (Ok(()), Some(done)) => Ok(done),
            (Ok(()), None) => Err(gone()),
            (Err(error), _) => Err(error),
        };
        if let Some(reply) = self.reply.take() {
            // Nobody waits any more: then it was undone, or will be by the next job in line.
            let _ = reply.send(result);
        }
    }
}

struct Work<F, T> {
    durable: bool,
    work: Option<F>,
    done: Option<T>,
    reply: oneshot::Sender<Result<T>>,
}

impl<F, T> Job for Work<F, T>
where
    F: FnOnce(&Connection) -> Result<T, Fault> + Send,
    T: Send,
{
    fn run(&mut self, transaction: &mut Transaction<'_>) -> Result<(), Fault> {
        if let Some(work) = self.work.take() {
            self.done = Some(work(transaction.database)?);
        }
        Ok(())
    }

    fn finish(self: Box<Self>, outcome: Result<()>) {
        let Self { done, reply, .. } = *self;
        let _ = reply.send(outcome.and_then(|()| done.ok_or_else(gone)));
    }

    fn is_durable(&self) -> bool {
        self.durable
    }
}

struct List {
    names: Vec<Name>,
    reply: oneshot::Sender<Result<Vec<Name>>>,
}

impl Job for List {
    fn run(&mut self, transaction: &mut Transaction<'_>) -> Result<(), Fault> {
        let mut select = transaction.database.prepare("SELECT name FROM names ORDER BY name")?;
        let rows = select.query_map([], |row| row.get::<_, String>(0))?;
        for row in rows {
            self.names.extend(row?.parse::<Name>().ok());
        }
        Ok(())
    }

    fn finish(self: Box<Self>, outcome: Result<()>) {
        let Self { names, reply } = *self;
        let _ = reply.send(outcome.map(|()| names));
    }
}

/// The thread that owns the database.
struct Clerk {
    database: Connection,
    directory: Directory,
    inode: Option<u64>,
    peers: Arc<Peers>,
    /// Whether commits are forced to disk just now.
    durable: bool,
}

impl Clerk {
    /// Works until nobody can ask any more.
    fn work(mut self, inbox: &mpsc::Receiver<Box<dyn Job>>) {
        while let Ok(first) = inbox.recv() {
            let rest = inbox.try_iter().take(BATCH - 1);
            let mut jobs: Vec<Box<dyn Job>> = std::iter::once(first).chain(rest).collect();
            let outcome = self.transact(&mut jobs);
            match outcome {
                Ok((news, mut failures)) => {
                    // Before the answers: whoever gets one may end the process at once.
                    let lost = news.lost.into_iter().map(|(peer, id, _)| (peer, id));
                    for (peer, id) in news.granted.into_iter().chain(news.opened).chain(lost) {
                        self.peers.tell(peer, id);
                    }
                    for (at, job) in jobs.into_iter().enumerate() {
                        job.finish(failures.remove(&at).map_or(Ok(()), Err));
                    }
                }
                Err(fault) => {
                    let fault = Arc::new(fault);
                    for job in jobs {
                        job.finish(Err(failed("a transaction failed", Arc::clone(&fault))));
                    }
                }
            }
        }
    }

    /// Runs the jobs in one transaction. An error: nothing was changed. A job that fails by itself
    /// is in the map, and the others stand.
    fn transact(
        &mut self,
        jobs: &mut [Box<dyn Job>],
    ) -> Result<(News<PeerId>, HashMap<usize, Error>), Fault> {
        if self.inode != inode(&self.directory) {
            return Err(Fault::Replaced);
        }
        let durable = jobs.iter().any(|job| job.is_durable());
        if durable != self.durable {
            let level = if durable { "FULL" } else { "NORMAL" };
            self.database.pragma_update(None, "synchronous", level)?;
            self.durable = durable;
        }
        let mut failures = HashMap::new();
        let immediate = TransactionBehavior::Immediate;
        let committed = self.database.transaction_with_behavior(immediate)?;
        let mut transaction = Transaction::begin(&committed, &self.peers)?;
        for (at, job) in jobs.iter_mut().enumerate() {
            if let Err(fault) = job.run(&mut transaction) {
                failures.insert(at, failed("a request failed", fault));
            }
        }
        if committed.is_autocommit() {
            // SQLite has rolled back by itself: what follows would not be one step any more.
            return Err(Fault::RolledBack);
        }
        let news = transaction.end()?;
        committed.commit()?;
        Ok((news, failures))
    }
}

/// Tells whether the database is still the file that we opened.
fn inode(directory: &Directory) -> Option<u64> {
    fs::metadata(directory.database()).ok().map(|meta| meta.ino())
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}
