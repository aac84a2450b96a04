//! A database of numbers that writes a log, and caches in front of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::Locks;
use lockkeeper_cache::cdc::{
    Batch, Cell, Change, Finding, Follower, Lag, Log, LogError, Position, Row, Rule, Source, State,
    TableName, Wanted,
};
use lockkeeper_cache::{BoxError, Cache, Error, Loaded, Redis};
use parking_lot::Mutex;
use testkit::resp::Raw;
use testkit::server::{self, Server};
use testkit::wait::{eventually, soon};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// What they are all called.
pub(crate) const NAME: &str = "shop";

/// Nothing comes within this time: an empty batch.
const IDLE: Duration = Duration::from_millis(50);

/// So many changes are in one batch.
const PIECE: usize = 3;

pub(crate) type Numbers = Cache<u64, u64>;

/// Where the log can be made to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    Check,
    Open,
    Next,
    /// In the middle of a transaction.
    Piece,
    Confirm,
}

/// A database. A clone is the same one.
#[derive(Clone, Debug)]
pub(crate) struct World {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<Data>,
    /// How many transactions there are.
    written: watch::Sender<usize>,
    /// Who gets here has to wait, and how many have come.
    holding: watch::Sender<(Option<Point>, u64)>,
}

#[derive(Debug, Default)]
struct Data {
    rows: BTreeMap<u64, u64>,
    log: Vec<Vec<Change>>,
    /// Transactions before this one are thrown away.
    purged: usize,
    /// Lost history is found out only when it is read.
    late: bool,
    history: u64,
    findings: Vec<Finding>,
    confirmed: Option<Position>,
    opened: Vec<Option<Position>>,
    panics: bool,
}

/// A row of `public.users`.
pub(crate) fn row(cells: &[(&str, Cell)]) -> Row {
    let columns: Arc<[Arc<str>]> = cells.iter().map(|(name, _)| Arc::from(*name)).collect();
    Row::new(columns, cells.iter().map(|(_, cell)| cell.clone()).collect::<Vec<_>>())
}

pub(crate) fn text(text: impl ToString) -> Cell {
    Cell::Text(text.to_string().into())
}

pub(crate) fn table(name: &str) -> Arc<TableName> {
    Arc::new(TableName::new("public", name))
}

/// A row of which the log has only the number.
pub(crate) fn changed(id: u64) -> Change {
    Change::Row { table: table("users"), old: None, new: Some(row(&[("id", text(id))])) }
}

impl World {
    pub(crate) fn new() -> Self {
        let (written, holding) = (watch::Sender::new(0), watch::Sender::new((None, 0)));
        Self { shared: Arc::new(Shared { state: Mutex::default(), written, holding }) }
    }

    /// Commits these numbers, and says in the log that these things have changed.
    pub(crate) fn commit(&self, rows: &[(u64, u64)], changes: Vec<Change>) {
        let mut state = self.shared.state.lock();
        state.rows.extend(rows.iter().copied());
        state.log.push(changes);
        self.shared.written.send_replace(state.log.len());
    }

    /// Commits a number.
    pub(crate) fn write(&self, id: u64, number: u64) {
        self.commit(&[(id, number)], vec![changed(id)]);
    }

    pub(crate) fn read(&self, id: u64) -> u64 {
        self.shared.state.lock().rows.get(&id).copied().unwrap_or(0)
    }

    /// Throws away all that was written so far.
    pub(crate) fn purge(&self, late: bool) {
        let mut state = self.shared.state.lock();
        (state.purged, state.late) = (state.log.len(), late);
    }

    pub(crate) fn find(&self, findings: Vec<Finding>) {
        self.shared.state.lock().findings = findings;
    }

    pub(crate) fn panics(&self, panics: bool) {
        self.shared.state.lock().panics = panics;
    }

    /// Where the log ends.
    pub(crate) fn end(&self) -> Position {
        let state = self.shared.state.lock();
        Position(format!("{}:{}", state.history, state.log.len()))
    }

    pub(crate) fn confirmed(&self) -> Option<Position> {
        self.shared.state.lock().confirmed.clone()
    }

    /// From where it was opened, each time.
    pub(crate) fn opened(&self) -> Vec<Option<Position>> {
        self.shared.state.lock().opened.clone()
    }

    /// Who gets there from now on has to wait.
    pub(crate) fn hold(&self, point: Point) {
        self.shared.holding.send_replace((Some(point), 0));
    }

    /// Waits until somebody does.
    pub(crate) async fn held(&self) {
        let mut holding = self.shared.holding.subscribe();
        soon("somebody is held", holding.wait_for(|(_, count)| *count > 0)).await.unwrap();
    }

    pub(crate) fn let_go(&self) {
        self.shared.holding.send_replace((None, 0));
    }

    async fn pass(&self, point: Point) {
        let mut holding = self.shared.holding.subscribe();
        self.shared.holding.send_if_modified(|(at, count)| {
            let held = *at == Some(point);
            *count += u64::from(held);
            held
        });
        holding.wait_for(|(at, _)| *at != Some(point)).await.unwrap();
    }

    /// A cache of it, in this namespace.
    pub(crate) fn cache(&self, store: Redis, namespace: &str) -> Numbers {
        let world = self.clone();
        let builder = Cache::builder(store).namespace(namespace).timeout(Duration::from_secs(1));
        let loader = move |id: u64| {
            let number = world.read(id);
            async move { Ok::<_, Error>(Loaded::found(number)) }
        };
        builder.build(loader).unwrap()
    }

    /// The builder of a follower by one rule, the usual one.
    pub(crate) fn builder(&self, cache: &Numbers) -> lockkeeper_cache::cdc::Builder {
        let rule = Rule::new("public.users", "{id}").unwrap();
        Follower::builder(self.clone()).name(NAME).rule(rule, cache)
    }

    pub(crate) fn follow(&self, cache: &Numbers, locks: &Locks) -> Follower {
        self.builder(cache).locks(locks.clone()).start().unwrap()
    }

    /// Waits until all that was written is invalidated and saved.
    pub(crate) async fn caught_up(&self, follower: &Follower) {
        let end = self.end();
        let up = async || {
            let status = follower.status();
            status.state == State::Following && status.position.as_ref() == Some(&end)
        };
        within(follower, "it has caught up", up).await;
    }
}

/// Waits for a condition, and says what the follower did if it does not come.
pub(crate) async fn within<F>(follower: &Follower, what: &str, condition: impl Fn() -> F + Send)
where
    F: Future<Output = bool> + Send,
{
    let waiting = async move {
        while !condition().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    if timeout(Duration::from_secs(40), waiting).await.is_err() {
        panic!("{what}: {:?}", follower.status());
    }
}

#[async_trait]
impl Source for World {
    async fn check(&self, wanted: &Wanted) -> Result<Vec<Finding>, BoxError> {
        self.pass(Point::Check).await;
        assert!(wanted.keys().all(|table| *table.schema == *"public"), "{wanted:?}");
        Ok(self.shared.state.lock().findings.clone())
    }

    async fn open(&self, from: Option<&Position>, _: &Wanted) -> Result<Box<dyn Log>, LogError> {
        self.pass(Point::Open).await;
        let mut state = self.shared.state.lock();
        state.opened.push(from.cloned());
        let at = match from {
            None => state.log.len(),
            Some(position) => {
                let (history, at) = position.0.split_once(':').unwrap();
                let at = at.parse().unwrap();
                if history != state.history.to_string() || (at < state.purged && !state.late) {
                    return Err(LogError::Lost("it was thrown away".into()));
                }
                at
            }
        };
        let (first, rest) = (from.is_none(), Vec::new());
        Ok(Box::new(Reading { world: self.clone(), at, first, rest }))
    }
}

/// The log being read.
#[derive(Debug)]
struct Reading {
    world: World,
    at: usize,
    first: bool,
    /// What is left of a transaction, the last ones first.
    rest: Vec<Change>,
}

impl Reading {
    fn position(&self) -> Option<Position> {
        Some(Position(format!("{}:{}", self.world.shared.state.lock().history, self.at)))
    }
}

#[async_trait]
impl Log for Reading {
    async fn next(&mut self) -> Result<Batch, LogError> {
        let inside = !self.rest.is_empty();
        self.world.pass(if inside { Point::Piece } else { Point::Next }).await;
        if std::mem::take(&mut self.first) {
            return Ok(Batch { position: self.position(), ..Batch::default() });
        }
        if self.rest.is_empty() {
            let mut written = self.world.shared.written.subscribe();
            let at = self.at;
            let _ = timeout(IDLE, written.wait_for(|written| *written > at)).await;
            let state = self.world.shared.state.lock();
            assert!(!state.panics, "told to panic");
            if self.at < state.purged {
                return Err(LogError::Lost("it was thrown away".into()));
            }
            match state.log.get(self.at) {
                Some(changes) => self.rest = changes.iter().rev().cloned().collect(),
                None => {
                    drop(state);
                    return Ok(Batch { position: self.position(), ..Batch::default() });
                }
            }
            self.at += 1;
        }
        let keep = self.rest.len().saturating_sub(PIECE);
        let changes: Vec<Change> = self.rest.drain(keep..).rev().collect();
        let position = if self.rest.is_empty() { self.position() } else { None };
        Ok(Batch { changes, position, lag: Lag { bytes: Some(7), time: None } })
    }

    async fn confirm(&mut self, position: &Position) -> Result<(), LogError> {
        self.world.pass(Point::Confirm).await;
        self.world.shared.state.lock().confirmed = Some(position.clone());
        Ok(())
    }
}

pub(crate) async fn connect(server: &Server) -> Redis {
    Redis::connect(&format!("redis://{}", server.address())).await.unwrap()
}

/// A database, a server, a cache with some numbers in it, and who follows.
pub(crate) struct Shop {
    pub(crate) world: World,
    pub(crate) server: Server,
    pub(crate) cache: Numbers,
    pub(crate) locks: Locks,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        Self::at(server::redis(&[]).await).await
    }

    pub(crate) async fn at(server: Server) -> Self {
        let world = World::new();
        let cache = world.cache(connect(&server).await, "user");
        Self { world, server, cache, locks: Locks::memory() }
    }

    /// Follows, and has caught up.
    pub(crate) async fn followed(&self) -> Follower {
        let follower = self.world.follow(&self.cache, &self.locks);
        self.world.caught_up(&follower).await;
        follower
    }

    pub(crate) async fn number(&self, id: u64) -> u64 {
        let number = *soon("a number", self.cache.get(&id)).await.unwrap().unwrap();
        self.cache.idle().await;
        number
    }

    /// Has this number in the cache, as it is now.
    pub(crate) async fn warm(&self, id: u64) {
        let expected = self.world.read(id);
        eventually("it is cached", async || {
            self.number(id).await == expected && self.is_cached(id).await
        })
        .await;
    }

    pub(crate) async fn is_cached(&self, id: u64) -> bool {
        Raw::connect(self.server.address()).await.exists(&format!("user:{id}")).await
    }

    /// What is saved, without the rules.
    pub(crate) async fn saved(&self) -> Option<Position> {
        let raw = Raw::connect(self.server.address()).await;
        let saved = raw.text(&format!("HGET !cdc:{NAME} position")).await?;
        Some(Position(saved.split_once(' ').unwrap().1.to_owned()))
    }
}
