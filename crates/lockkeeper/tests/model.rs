//! Random sequences of operations give the same answers on the model, which is the specification,
//! and on the real backends.
//!
//! Time stands still for the model and every lease is long, so nothing expires: what expiry does is
//! in `model_properties.rs`. Tokens are compared by their distance from where each store began.
#![allow(clippy::unwrap_used, reason = "tests")]

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

fn seen(status: Status, base: u64) -> Seen {
    Seen {
        kind: status.kind,
        holders: status
            .holders
            .iter()
            .map(|holding| (holding.owner.to_string(), holding.token.get() - base))
            .collect(),
        waiters: status.waiters.iter().map(ToString::to_string).collect(),
        count: status.count,
    }
}

/// The model, with its world.
struct Model {
    state: State<()>,
    counter: u64,
}

impl Model {
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
    /// The last token before the sequence began.
    base: u64,
    holds: BTreeMap<usize, Arc<dyn Hold>>,
    waiting: BTreeMap<usize, Asking>,
}

impl Real {
    async fn new(backend: Arc<dyn Backend>) -> Self {
        // On the name itself: some stores count for each name, some for all.
        let name: Name = "x".parse().unwrap();
        let before = backend.admin().evict(&name, "").await.unwrap();
        let (holds, waiting) = (BTreeMap::new(), BTreeMap::new());
        Self { backend, name, base: before.token.get(), holds, waiting }
    }

    fn ask(&self, number: usize, who: u8, kind: Kind, patience: Patience) -> Asking {
        let (name, term) = (self.name.clone(), Term::Fixed(TTL));
        let request =
            Request { name, kind, owner: owner(who), id: id(number), term, tokens: 1, patience };
        tokio::spawn(Arc::clone(&self.backend).acquire(request))
    }

    /// The answer of a request that is over, in the words of the model.
    async fn answer(&mut self, number: usize, asking: Asking) -> String {
        match soon("an answer", asking).await.unwrap() {
            Ok(Some(hold)) => {
                let token = hold.tokens().first().get() - self.base;
                self.holds.insert(number, hold);
                format!("granted {token}")
            }
            Ok(None) => "busy".into(),
            Err(Error::Upgrade { .. }) => "upgrade".into(),
            Err(Error::WrongKind { used_as, .. }) => format!("wrong kind {used_as}"),
            Err(other) => panic!("{other}"),
        }
    }

    async fn looks_like(&self, model: &Seen) {
        eventually(&format!("{model:?}"), async || {
            seen(self.backend.admin().show(&self.name).await.unwrap(), self.base) == *model
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
    let mut model = Model { state: State::default(), counter: 0 };
    let mut real = Real::new(backend).await;
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
                let eviction = real.backend.admin().evict(&real.name, "why").await.unwrap();
                let ((holders, token), news) = model.step(|state, world| state.evict("why", world));
                assert_eq!(
                    (eviction.holders, eviction.token.get() - real.base),
                    (holders, token.get())
                );
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
        granted(&model, &mut real, &news).await;
        let status = model.state.status(&real.name, Instant::from_nanos(1));
        real.looks_like(&seen(status, 0)).await;
    }
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
    let ask = Ask { id, owner, kind, ttl, tokens: 1, place, party: () };
    let (expected, news) = model.step(|state, world| state.acquire(ask, world));
    let asking = real.ask(number, who, kind, patience);
    if expected == Answer::Queued {
        real.waiting.insert(number, asking);
    } else {
        let answer = real.answer(number, asking).await;
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
async fn granted(model: &Model, real: &mut Real, news: &News<()>) {
    let status = model.state.status(&real.name, Instant::from_nanos(1));
    for (_, granted) in &news.granted {
        let number = usize::try_from(u128::from_be_bytes(granted.to_bytes())).unwrap();
        let asking = real.waiting.remove(&number).expect("in line");
        let answer = real.answer(number, asking).await;
        let token: u64 = answer.strip_prefix("granted ").unwrap().parse().unwrap();
        assert!(status.holders.iter().any(|holding| holding.token.get() == token), "{answer}");
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_does_as_the_model_says(ops in ops()) {
        runtime().block_on(agree(Memory::private(), ops));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

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
fn redis_agrees(dialect: lockkeeper::Dialect) {
    use lockkeeper::RedisOptions;
    let runtime = runtime();
    let server = runtime.block_on(testkit::server::redis(&[]));
    let url = format!("redis://{}", server.address());
    let config =
        ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() };
    let case = std::cell::Cell::new(0);
    proptest!(config, |(ops in ops())| {
        case.set(case.get() + 1);
        runtime.block_on(async {
            let prefix = format!("{}:", case.get());
            let options = RedisOptions { prefix, dialect, ..RedisOptions::default() };
            let connected =
                lockkeeper::backend::redis::Redis::connect(&url, url.clone(), &options);
            agree(connected.await.unwrap(), ops).await;
        });
    });
}

#[cfg(feature = "redis")]
#[test]
fn redis_does_as_the_model_says() {
    redis_agrees(lockkeeper::Dialect::Redisson);
}

#[cfg(feature = "redis")]
#[test]
fn redis_plain_does_as_the_model_says() {
    redis_agrees(lockkeeper::Dialect::Plain);
}
