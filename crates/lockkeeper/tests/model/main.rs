//! Random sequences of operations give the same answers on the model, which is the specification,
//! and on the real backends.
//!
//! Time stands still for the model and every lease is long, so nothing expires: what expiry does is
//! in `model_properties.rs`. Tokens are compared as each store counts them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod tokens;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backend::{
    Backend, Hold, Kind, Patience, Release, Renewal, Request, Status, Term, memory::Memory,
};
use lockkeeper::clock::Instant;
use lockkeeper::model::{Answer, Ask, News, Place, State, World};
use lockkeeper::{Error, Name, Owner, RequestId, Result};
use proptest::prelude::*;
use testkit::wait::{eventually, soon};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use self::tokens::Tokens;

const TTL: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
enum Op {
    Try(u8, Kind),
    Wait(u8, Kind),
    /// The following pick one of the requests made so far, held or not any more.
    Release(usize),
    Renew(usize),
    Downgrade(usize),
    Evict,
    CloseLatch(u32),
    CountDown,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let kind = || {
        prop_oneof![
            2 => Just(Kind::Mutex),
            2 => Just(Kind::FairMutex),
            3 => Just(Kind::Read),
            2 => Just(Kind::Write),
            3 => Just(Kind::FairRead),
            2 => Just(Kind::FairWrite),
            1 => Just(Kind::Permit { of: 1 }),
            1 => Just(Kind::Permit { of: 2 }),
        ]
    };
    let op = prop_oneof![
        4 => (0_u8..4, kind()).prop_map(|(owner, kind)| Op::Try(owner, kind)),
        6 => (0_u8..4, kind()).prop_map(|(owner, kind)| Op::Wait(owner, kind)),
        8 => (0_usize..12).prop_map(Op::Release),
        2 => (0_usize..12).prop_map(Op::Renew),
        2 => (0_usize..12).prop_map(Op::Downgrade),
        1 => Just(Op::Evict),
        1 => (1_u32..3).prop_map(Op::CloseLatch),
        1 => Just(Op::CountDown),
    ];
    proptest::collection::vec(op, 1..40)
}

fn owner(number: u8) -> Owner {
    Owner::try_from(format!("model:{number}")).unwrap()
}

fn id(number: usize) -> RequestId {
    RequestId::from_bytes(u128::try_from(number).unwrap().to_be_bytes())
}

/// What there is to see of a name, without times.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: Option<String>,
    holders: Vec<(String, u64)>,
    waiters: Vec<String>,
    count: Option<u32>,
}

fn seen(status: Status, in_model: impl Fn(u64) -> u64) -> Seen {
    let holders = status.holders.iter();
    let mut holders: Vec<_> =
        holders.map(|holding| (holding.owner.to_string(), in_model(holding.token.get()))).collect();
    // Those who are served in the same step may be served in any order.
    holders.sort();
    Seen {
        kind: status.kind,
        holders,
        waiters: status.waiters.iter().map(ToString::to_string).collect(),
        count: status.count,
    }
}

/// The model, with its world.
struct Model {
    state: State<()>,
    counter: u64,
    /// As what the store serves a kind.
    serves: fn(Kind) -> Kind,
}

impl Model {
    /// The token of a request that was granted.
    fn token(&mut self, number: usize) -> u64 {
        let (id, owner) = (id(number), owner(0));
        let (kind, place) = (Kind::Mutex, Place::None);
        let ask = Ask { id, owner, kind, ttl: Some(TTL), tokens: 1, place, party: () };
        // A request that is repeated finds its own grant.
        match self.step(|state, world| state.acquire(ask, world)).0 {
            Answer::Granted { tokens, .. } => tokens.first().get(),
            other => panic!("{number} was granted: {other:?}"),
        }
    }

    fn step<T>(
        &mut self,
        step: impl FnOnce(&mut State<()>, &mut World<'_, ()>) -> T,
    ) -> (T, News<()>) {
        let mut news = News::default();
        let now = Instant::from_nanos(1);
        let mut world =
            World { now, counter: &mut self.counter, alive: &|()| true, news: &mut news };
        (step(&mut self.state, &mut world), news)
    }
}

type Asking = JoinHandle<Result<Option<Arc<dyn Hold>>>>;

/// A backend, with what was asked of it.
struct Real {
    backend: Arc<dyn Backend>,
    name: Name,
    tokens: Tokens,
    holds: BTreeMap<usize, Arc<dyn Hold>>,
    waiting: BTreeMap<usize, Asking>,
}

impl Real {
    async fn new(backend: Arc<dyn Backend>, tokens: fn(u64) -> Tokens) -> Self {
        // On the name itself: some stores count for each name, some for all.
        let name: Name = "x".parse().unwrap();
        let before = backend.admin().evict(&name, "").await.unwrap();
        let (holds, waiting) = (BTreeMap::new(), BTreeMap::new());
        Self { backend, name, tokens: tokens(before.token.get()), holds, waiting }
    }

    fn ask(&self, number: usize, who: u8, kind: Kind, patience: Patience) -> Asking {
        let (name, term) = (self.name.clone(), Term::Fixed(TTL));
        let request =
            Request { name, kind, owner: owner(who), id: id(number), term, tokens: 1, patience };
        tokio::spawn(Arc::clone(&self.backend).acquire(request))
    }

    /// The answer of a request that is over, in the words of the model, which granted this token.
    async fn answer(&mut self, number: usize, asking: Asking, in_model: Option<u64>) -> String {
        match soon("an answer", asking).await.unwrap() {
            Ok(Some(hold)) => {
                let token = hold.tokens().first().get();
                self.holds.insert(number, hold);
                if let Some(in_model) = in_model {
                    self.tokens.granted(token, in_model);
                }
                format!("granted {}", self.tokens.in_model(token))
            }
            Ok(None) => "busy".into(),
            Err(Error::Upgrade { .. }) => "upgrade".into(),
            Err(Error::WrongKind { used_as, .. }) => format!("wrong kind {used_as}"),
            Err(other) => panic!("{other}"),
        }
    }

    async fn looks_like(&self, model: &Seen) {
        eventually(&format!("{model:?}"), async || {
            let status = self.backend.admin().show(&self.name).await.unwrap();
            seen(status, |token| self.tokens.in_model(token)) == *model
        })
        .await;
    }
}

fn in_words(answer: &Answer) -> String {
    match answer {
        Answer::Granted { tokens, .. } => format!("granted {}", tokens.first()),
        Answer::Queued => "queued".into(),
        Answer::Busy => "busy".into(),
        Answer::Upgrade => "upgrade".into(),
        Answer::WrongKind(used_as) => format!("wrong kind {used_as}"),
    }
}

/// Runs one sequence on both.
async fn agree(backend: Arc<dyn Backend>, ops: Vec<Op>) {
    agree_as(backend, ops, Tokens::Counted, |kind| kind).await;
}

/// Runs one sequence on both, where the store counts in its own way, and serves each kind as another.
async fn agree_as(
    backend: Arc<dyn Backend>,
    ops: Vec<Op>,
    tokens: fn(u64) -> Tokens,
    serves: fn(Kind) -> Kind,
) {
    let mut model = Model { state: State::default(), counter: 0, serves };
    let mut real = Real::new(backend, tokens).await;
    let mut asked = 0;
    for (step, op) in ops.into_iter().enumerate() {
        let news = match op {
            Op::Try(who, kind) | Op::Wait(who, kind) => {
                asked += 1;
                let waits = matches!(op, Op::Wait(..));
                ask(&mut model, &mut real, asked - 1, who, kind, waits).await
            }
            Op::Release(number) => release(&mut model, &mut real, number).await,
            Op::Renew(number) => {
                let Some(hold) = real.holds.get(&number) else { continue };
                let renewed = Arc::clone(hold).renew(TTL).await.unwrap();
                let step = |state: &mut State<()>, world: &mut World<'_, ()>| {
                    state.renew(id(number), Some(TTL), world)
                };
                let (expected, news) = model.step(step);
                assert_eq!(lost(renewed), expected.err(), "renewal of {number}");
                news
            }
            Op::Downgrade(number) => {
                let Some(hold) = real.holds.get(&number) else { continue };
                let downgraded = Arc::clone(hold).downgrade().await.unwrap();
                let (expected, news) =
                    model.step(|state, world| state.downgrade(id(number), world));
                assert_eq!(lost(downgraded), expected.err(), "downgrade of {number}");
                news
            }
            Op::Evict => {
                let held = real.backend.admin().show(&real.name).await.unwrap().holders;
                let eviction = real.backend.admin().evict(&real.name, "why").await.unwrap();
                let ((holders, token), news) = model.step(|state, world| state.evict("why", world));
                assert_eq!(in_any_order(eviction.holders), in_any_order(holders));
                real.tokens.evicted(eviction.token.get(), token.get(), &held);
                news
            }
            Op::CloseLatch(count) => {
                let latches = real.backend.latches().unwrap();
                let closed = latches.close(&real.name, count, TTL).await;
                let (expected, news) =
                    model.step(|state, world| state.close_latch(count, TTL, world));
                let closed = closed.map_err(|error| match error {
                    Error::WrongKind { used_as, .. } => used_as,
                    other => panic!("{other}"),
                });
                assert_eq!(closed, expected);
                news
            }
            Op::CountDown => {
                let latches = real.backend.latches().unwrap();
                let left = latches.count_down(&real.name, id(1000 + step)).await.unwrap();
                let (expected, news) = model.step(State::count_down);
                assert_eq!(left, expected);
                news
            }
        };
        granted(&mut model, &mut real, &news).await;
        let status = model.state.status(&real.name, Instant::from_nanos(1));
        real.looks_like(&seen(status, |token| token)).await;
        real.tokens.next_step();
    }
}

fn in_any_order(owners: Vec<Owner>) -> Vec<String> {
    let mut owners: Vec<String> = owners.iter().map(ToString::to_string).collect();
    owners.sort();
    owners
}

fn lost(renewal: Renewal) -> Option<lockkeeper::Cause> {
    match renewal {
        Renewal::Held(_) => None,
        Renewal::Lost(cause) => Some(cause),
    }
}

/// Asks both; one that is in line goes on in a task.
async fn ask(
    model: &mut Model,
    real: &mut Real,
    number: usize,
    who: u8,
    kind: Kind,
    waits: bool,
) -> News<()> {
    let place = if waits { Place::Kept } else { Place::None };
    let patience = if waits { Patience::Forever } else { Patience::TryOnce };
    let (id, owner, ttl) = (id(number), owner(who), Some(TTL));
    let ask = Ask { id, owner, kind: (model.serves)(kind), ttl, tokens: 1, place, party: () };
    let (expected, news) = model.step(|state, world| state.acquire(ask, world));
    let asking = real.ask(number, who, kind, patience);
    if expected == Answer::Queued {
        real.waiting.insert(number, asking);
    } else {
        let token = match &expected {
            Answer::Granted { tokens, .. } => Some(tokens.first().get()),
            _ => None,
        };
        let answer = real.answer(number, asking, token).await;
        assert_eq!(answer, in_words(&expected), "{kind} for {who}");
    }
    news
}

/// Gives up a hold, or a place in the queue.
async fn release(model: &mut Model, real: &mut Real, number: usize) -> News<()> {
    let (held, news) = model.step(|state, world| state.release(id(number), world));
    if let Some(hold) = real.holds.get(&number) {
        let released = Arc::clone(hold).release().await.unwrap();
        assert_eq!(released == Release::Released, held, "release of {number}");
    } else if let Some(waiting) = real.waiting.remove(&number) {
        waiting.abort();
        assert!(waiting.await.is_err_and(|error| error.is_cancelled()), "{number} was in line");
    }
    news
}

/// Those who were waiting and that the model served are served, under the same tokens.
async fn granted(model: &mut Model, real: &mut Real, news: &News<()>) {
    for (_, granted) in &news.granted {
        let number = usize::try_from(u128::from_be_bytes(granted.to_bytes())).unwrap();
        let asking = real.waiting.remove(&number).expect("in line");
        let token = model.token(number);
        let answer = real.answer(number, asking, Some(token)).await;
        assert_eq!(answer, format!("granted {token}"), "{number} waited");
    }
}

fn cases(cases: u32) -> ProptestConfig {
    // A shorter sequence is sought for a minute: each try may have to wait for what never comes.
    let max_shrink_time = 60_000;
    let failure_persistence = None;
    ProptestConfig { cases, max_shrink_time, failure_persistence, ..ProptestConfig::default() }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn memory_does_as_the_model_says(ops in ops()) {
        runtime().block_on(agree(Memory::private(), ops));
    }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn file_does_as_the_model_says(ops in ops()) {
        let dir = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let file = lockkeeper::backend::file::File::open(dir.path()).await.unwrap();
            agree(file, ops).await;
        });
    }
}

#[cfg(feature = "redis")]
fn redis_agrees(dialect: &str) {
    let runtime = runtime();
    let server = runtime.block_on(testkit::server::redis(&[]));
    let config = cases(100);
    let case = std::cell::Cell::new(0);
    proptest!(config, |(ops in ops())| {
        case.set(case.get() + 1);
        let (address, prefix) = (server.address(), case.get());
        let url = format!("redis://{address}?prefix={prefix}:&dialect={dialect}");
        let url: lockkeeper::Url = url.parse().unwrap();
        runtime.block_on(async { agree(url.open().await.unwrap(), ops).await });
    });
}

#[cfg(feature = "redis")]
#[test]
fn redis_does_as_the_model_says() {
    redis_agrees("redisson");
}

#[cfg(feature = "redis")]
#[test]
fn redis_plain_does_as_the_model_says() {
    redis_agrees("plain");
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_does_as_the_model_says() {
    let runtime = runtime();
    let server = runtime.block_on(testkit::server::etcd(&[]));
    let config = cases(100);
    let case = std::cell::Cell::new(0);
    proptest!(config, |(ops in ops())| {
        case.set(case.get() + 1);
        let url = format!("etcd://{}?prefix={}/", server.address(), case.get());
        let url: lockkeeper::Url = url.parse().unwrap();
        let tokens = |before| Tokens::Growing(BTreeMap::from([(before, 0)]), 0);
        runtime.block_on(async {
            agree_as(url.open().await.unwrap(), ops, tokens, |kind| kind).await;
        });
    });
}

/// In ZooKeeper all are served in order: an unfair reader does not pass a writer that waits, because
/// its token would pass that one's. For the rest of the model, that is a fair reader.
#[cfg(feature = "zookeeper")]
fn in_order(kind: Kind) -> Kind {
    if kind == Kind::Read { Kind::FairRead } else { kind }
}

#[cfg(feature = "zookeeper")]
fn zookeeper_agrees(options: &str) {
    let runtime = runtime();
    let server = runtime.block_on(testkit::zookeeper::shared());
    let config = cases(60);
    let case = std::cell::Cell::new(0);
    proptest!(config, |(ops in ops())| {
        case.set(case.get() + 1);
        let (address, number, dialect) = (server.address(), case.get(), options.len());
        let url = format!("zookeeper://{address}/model-{dialect}-{number}{options}");
        let url: lockkeeper::Url = url.parse().unwrap();
        let tokens = |before| Tokens::Drawn(BTreeMap::new(), before);
        runtime.block_on(async {
            agree_as(url.open().await.unwrap(), ops, tokens, in_order).await;
        });
    });
}

#[cfg(feature = "zookeeper")]
#[test]
fn zookeeper_does_as_the_model_says() {
    zookeeper_agrees("");
}

#[cfg(feature = "zookeeper")]
#[test]
fn zookeeper_kazoo_does_as_the_model_says() {
    zookeeper_agrees("?dialect=kazoo");
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
fn database_agrees(system: testkit::database::System) {
    let starting = runtime();
    let database = starting.block_on(system.start(&[]));
    starting.block_on(lockkeeper::Locks::init(&database.url("here"))).unwrap();
    let config = cases(200);
    let case = std::cell::Cell::new(0);
    proptest!(config, |(ops in ops())| {
        case.set(case.get() + 1);
        let url = format!("{}?prefix={}/", database.url("here"), case.get());
        let url: lockkeeper::Url = url.parse().unwrap();
        let tokens = |before| Tokens::Growing(BTreeMap::from([(before, 0)]), 0);
        // One of its own, so that those who still wait at the end go, and their connections.
        runtime().block_on(async {
            agree_as(url.open().await.unwrap(), ops, tokens, |kind| kind).await;
        });
    });
}

#[cfg(feature = "postgres")]
#[test]
fn postgres_does_as_the_model_says() {
    database_agrees(testkit::database::System::Postgres);
}

#[cfg(feature = "mysql")]
#[test]
fn mariadb_does_as_the_model_says() {
    database_agrees(testkit::database::System::MariaDb);
}
