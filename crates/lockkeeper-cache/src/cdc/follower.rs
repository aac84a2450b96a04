//! Who follows a log.

mod record;
mod refresh;
mod rules;
mod tenure;
mod worker;

use std::fmt::{self, Debug, Display};
use std::str::FromStr;
use std::sync::Arc;

use lockkeeper::Locks;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::refresh::Refresher;
use self::rules::Rules;
use self::worker::Worker;
use super::status::Board;
use super::target;
use super::{Rule, Source, Status};
use crate::cache::Cache;
use crate::error::{Error, Result};

/// Makes a [`Follower`]; from [`Follower::builder`].
#[must_use = "nothing runs before start"]
pub struct Builder {
    source: Box<dyn Source>,
    name: String,
    rules: Rules,
    locks: Option<Locks>,
}

impl Builder {
    /// What this follower is called. Default `follower`. Those of one name take turns, and go on where the last one left: give it
    /// to all processes that do the same thing, and no other.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Rows of a table are cached here, under these keys. The position is kept at the store of the first cache that is given.
    pub fn rule<K, V>(mut self, rule: Rule, cache: &Cache<K, V>) -> Self
    where
        K: Clone + Display + Send + Sync + 'static,
        V: Send + Sync + 'static,
    {
        self.rules.add(rule, Arc::new(cache.clone()), None);
        self
    }

    /// The same, and keys are read again after they were invalidated, so that the next reader finds them. Whether or not anybody would
    /// have asked for them: each change costs a load. It is done in the background, 16 at a time; more than 10,000 do not wait.
    pub fn refresh<K, V>(mut self, rule: Rule, cache: &Cache<K, V>) -> Self
    where
        K: Clone + Display + FromStr + Send + Sync + 'static,
        V: Send + Sync + 'static,
    {
        self.rules.add(rule, Arc::new(cache.clone()), Some(target::load(cache)));
        self
    }

    /// A cache whose keys writers name themselves ([`Change::Keys`](super::Change::Keys)). Those with a rule need not be given again.
    pub fn cache<K, V>(mut self, cache: &Cache<K, V>) -> Self
    where
        K: Clone + Display + Send + Sync + 'static,
        V: Send + Sync + 'static,
    {
        self.rules.cache(Arc::new(cache.clone()));
        self
    }

    /// Who decides whose turn it is: by the mutex `cdc:` and the name.
    pub fn locks(mut self, locks: Locks) -> Self {
        self.locks = Some(locks);
        self
    }

    /// Begins. Must be called inside a tokio runtime. Whether the database can be followed is found out later: see
    /// [`Follower::status`].
    ///
    /// # Errors
    ///
    /// [`Error::Config`] without locks or caches, with a name that no lock can have, and for a cache whose store keeps
    /// no positions: that of [`Redis::connect_warm`](crate::Redis::connect_warm) believes entries that other servers have
    /// written, so an invalidation that was lost in a fail-over would be undone, and the position be past it.
    pub fn start(self) -> Result<Follower> {
        let Self { source, name, rules, locks } = self;
        let config = |what: String| Err(Error::Config(what));
        let Some(locks) = locks else {
            return config("a follower needs locks, by which followers take turns".into());
        };
        if rules.targets.is_empty() {
            return config("a follower needs a rule".into());
        }
        for target in &rules.targets {
            if target.positions().is_none() {
                let namespace = target.namespace();
                return config(format!(
                    "the store of the cache {namespace:?} cannot be followed for: after a fail-over it believes entries that were invalidated, \
                     as Redis::connect_warm does; use Redis::connect"
                ));
            }
        }
        let lock = locks.mutex(format!("cdc:{name}"));
        if let Err(error) = lock.name() {
            return config(error.to_string());
        }
        let (wanted, fingerprint) = (rules.wanted(), rules.fingerprint());
        let board = Arc::new(Board::new());
        let refresher = Refresher::start(&board);
        let shared = Arc::clone(&board);
        let worker = Worker { name, source, rules, wanted, fingerprint, lock, board, refresher };
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(worker.run(stopped));
        Ok(Follower { board: shared, stop, task })
    }
}

impl Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, name, .. } = self;
        f.debug_struct("Builder")
            .field("name", name)
            .field("source", source)
            .finish_non_exhaustive()
    }
}

/// Follows the log of a database in a task of its own, when it is its turn. See the [module](super).
///
/// Dropped, it ends in the background: its lock is released, and another one goes on.
#[derive(Debug)]
#[must_use = "dropped, it ends"]
pub struct Follower {
    board: Arc<Board>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Follower {
    /// A builder for a follower of this database.
    pub fn builder(source: impl Source + 'static) -> Builder {
        let (name, rules) = ("follower".to_owned(), Rules::default());
        Builder { source: Box::new(source), name, rules, locks: None }
    }

    /// What it does, and what it did. Asks nobody.
    pub fn status(&self) -> Status {
        self.board.read()
    }

    /// Ends it, and waits until its lock is released; for five seconds at most. What is under way is left where it stands: the next
    /// one does it again.
    pub async fn stop(self) {
        drop(self.stop);
        // It ends, whatever happens in it.
        let _ = self.task.await;
    }
}
